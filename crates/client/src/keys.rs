use std::fmt;
use std::sync::Arc;

use ::redis::Cmd;
use quorlock_core::node::KEYS_MAX;

/// How many arguments a command has besides its keys, owner and all: for a start.
const OTHER_ARGS: usize = 10;
/// How many bytes they have.
const OTHER_BYTES: usize = 160;

/// A key of a lock.
pub(crate) type Key = Arc<[u8]>;

/// The keys of one lock: each once, in the order of their bytes. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Keys(Arc<[Key]>);

impl Keys {
    /// At least one and at most as many as a node takes; otherwise why not, for people.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.0.len() {
            0 => Err("a lock needs a key".into()),
            keys if keys > KEYS_MAX => Err(format!("a lock has at most {KEYS_MAX} keys, not {keys}")),
            _ => Ok(()),
        }
    }

    /// The one that decides for all of them where there can be only one: whose queue node is that of the lock.
    pub(crate) fn first(&self) -> &[u8] {
        self.0.first().map_or(&[], AsRef::as_ref)
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Key> {
        self.0.iter()
    }

    /// A command with these keys: the one for a single key, or else the one for several.
    pub(crate) fn command(&self, one: &str, several: &str) -> Cmd {
        let key_bytes: usize = self.0.iter().map(|key| key.len()).sum();
        let mut command = Cmd::with_capacity(OTHER_ARGS + self.0.len(), OTHER_BYTES + key_bytes);
        if let [key] = &*self.0 {
            command.arg(one).arg(&**key);
        } else {
            command.arg(several).arg(self.0.len());
            for key in &*self.0 {
                command.arg(&**key);
            }
        }
        command
    }
}

impl<K: AsRef<[u8]>> FromIterator<K> for Keys {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Self {
        let mut keys: Vec<Key> = keys.into_iter().map(|key| key.as_ref().into()).collect();
        keys.sort_unstable();
        keys.dedup();
        Self(keys.into())
    }
}

/// For people.
impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, key) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{}", String::from_utf8_lossy(key))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_same_in_whatever_order_and_however_often_they_are_named() {
        let keys: Keys = ["b", "a", "b", "c"].into_iter().collect();
        let same: Keys = ["c", "b", "a"].into_iter().collect();
        assert!(keys == same);
        assert_eq!((keys.to_string(), keys.first()), ("a, b, c".into(), &b"a"[..]));
        assert!(keys.check().is_ok());
    }

    #[test]
    fn no_key_and_too_many_are_refused() {
        assert!(Keys::from_iter([""; 0]).check().is_err());
        let many: Keys = (0..=KEYS_MAX).map(|n| n.to_string()).collect();
        assert!(many.check().is_err());
    }
}
