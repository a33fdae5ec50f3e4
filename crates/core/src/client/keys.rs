use std::fmt;
use std::sync::Arc;

use crate::node::{KEY_BYTES_MAX, KEYS_MAX};

/// The keys of one lock: each once, in the order of their bytes. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Keys(Arc<[Arc<[u8]>]>);

/// Why keys cannot be locked together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKeys {
    /// There is no key.
    #[error("a lock needs a key")]
    None,
    /// There are more keys than a node accepts.
    #[error("a lock has at most {KEYS_MAX} keys, not {0}")]
    TooMany(usize),
    /// A key is longer than a node accepts.
    #[error("a key of a lock has at most {KEY_BYTES_MAX} bytes, not {0}")]
    TooLong(usize),
}

impl Keys {
    /// Checks that a node accepts these keys: 1 to 64, of at most 65,536 bytes each.
    ///
    /// # Errors
    /// [`InvalidKeys`] says what is wrong.
    pub fn check(&self) -> Result<(), InvalidKeys> {
        match self.0.len() {
            0 => Err(InvalidKeys::None),
            keys if keys > KEYS_MAX => Err(InvalidKeys::TooMany(keys)),
            _ => match self.iter().map(<[u8]>::len).find(|&bytes| bytes > KEY_BYTES_MAX) {
                Some(bytes) => Err(InvalidKeys::TooLong(bytes)),
                None => Ok(()),
            },
        }
    }

    /// The first key.
    pub fn first(&self) -> &[u8] {
        self.0.first().map_or(&[], AsRef::as_ref)
    }

    /// The same keys, in the order in which nodes try them for any one of them: this one first, the
    /// next ones after it, and then those before it.
    pub(super) fn starting_at(&self, index: usize) -> Self {
        let mut keys = self.0.to_vec();
        let len = keys.len().max(1);
        keys.rotate_left(index % len);
        Self(keys.into())
    }

    /// Only the key with this index.
    pub(super) fn only(&self, index: usize) -> Self {
        self.0.get(index..).unwrap_or_default().iter().take(1).collect()
    }

    /// All keys, in the order of their bytes.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.0.iter().map(AsRef::as_ref)
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K: AsRef<[u8]>> FromIterator<K> for Keys {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Self {
        let mut keys: Vec<Arc<[u8]>> = keys.into_iter().map(|key| key.as_ref().into()).collect();
        keys.sort_unstable();
        keys.dedup();
        Self(keys.into())
    }
}

/// Shows the keys separated by commas. Bytes that are not UTF-8 are replaced.
impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, key) in self.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{}", String::from_utf8_lossy(key))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_equal_in_any_order_and_with_repeats() {
        let keys: Keys = ["b", "a", "b", "c"].into_iter().collect();
        let same: Keys = ["c", "b", "a"].into_iter().collect();
        assert_eq!(keys, same);
        assert_eq!((keys.to_string(), keys.first()), ("a, b, c".into(), &b"a"[..]));
        assert_eq!(keys.check(), Ok(()));
    }

    #[test]
    fn no_key_too_many_keys_and_long_keys_are_refused() {
        assert_eq!(Keys::from_iter([""; 0]).check(), Err(InvalidKeys::None));
        let many: Keys = (0..=KEYS_MAX).map(|n| n.to_string()).collect();
        assert_eq!(many.check(), Err(InvalidKeys::TooMany(KEYS_MAX + 1)));
        let of = |bytes| Keys::from_iter(["k".into(), "l".repeat(bytes)]).check();
        assert_eq!(of(KEY_BYTES_MAX), Ok(()));
        assert_eq!(of(KEY_BYTES_MAX + 1), Err(InvalidKeys::TooLong(KEY_BYTES_MAX + 1)));
    }
}
