use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorlock_core::client::{Keys, Mode, Token};
use quorlock_core::{Fence, Ttl};

use super::lock_inner::LockInner;

/// The first part of the text: the version of its format.
const VERSION: &str = "quorlock1";
/// The last part of the text of a shared lock.
const SHARED: &str = "shared";
/// Precedes the slot in the last part of the text of a lock that has one.
const SLOT: &str = "slot";

/// A lock without a process: made by [`Lock::detach`](crate::Lock::detach), for another process to
/// [attach](crate::Quorum::attach).
///
/// At most one process succeeds in attaching it. A lock that no process attaches can be released
/// with [`Quorum::release_detached`](crate::Quorum::release_detached).
#[derive(Clone)]
#[must_use = "a detached lock ends by its deadline unless it is attached"]
pub struct DetachedLock {
    pub(crate) keys: Keys,
    pub(crate) token: Token,
    pub(crate) ttl: Ttl,
    pub(crate) fence: Fence,
    until: SystemTime,
    pub(crate) mode: Mode,
    pub(crate) slot: Option<usize>,
}

/// Why a text is not a [`DetachedLock`]. The error does not show the text, which may be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidDetached {
    /// The text is not that of a detached lock, or a part of it is missing.
    #[error("this is not the text of a detached lock, or a part of it is missing")]
    NotDetached,
    /// Another version of this crate wrote the text.
    #[error(
        "another version of quorlock-client wrote this text: use the same version in both programs"
    )]
    OtherVersion,
}

impl DetachedLock {
    pub(crate) fn new(lock: &LockInner, remaining: Duration) -> Self {
        Self {
            keys: lock.spec.keys.clone(),
            token: lock.token,
            ttl: lock.spec.ttl,
            fence: lock.fence,
            until: SystemTime::now() + remaining,
            mode: lock.mode(),
            slot: lock.slot,
        }
    }

    /// The locked key. For [several keys](crate::Quorum::lock_all), the first one in byte order.
    pub fn key(&self) -> &[u8] {
        self.keys.first()
    }

    /// The locked keys, in byte order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.keys.iter()
    }

    /// The number of its slot, if the lock is a permit: see [`Lock::slot`](crate::LockWatch::slot).
    pub fn slot(&self) -> Option<usize> {
        self.slot
    }

    /// The fence before the attachment. The process that attaches the lock gets a larger one.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The ttl of the lock. [`Quorum::attach`](crate::Quorum::attach) keeps it.
    pub fn ttl(&self) -> Duration {
        self.ttl.duration()
    }

    /// When the lock ends unless it is attached, by the wall clock of the process that detached it.
    ///
    /// For people only: the nodes decide.
    pub fn until(&self) -> SystemTime {
        self.until
    }

    /// The text that [`DetachedLock::from_str`] reads: one line without spaces.
    ///
    /// **A program that knows the text can attach or release the lock.** Treat it as a password.
    pub fn to_secret_text(&self) -> String {
        let until_ms = self.until.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let keys: Vec<_> = self.keys().map(to_text).collect();
        let (keys, token) = (keys.join(","), self.token.as_str());
        let (ttl_ms, fence) = (self.ttl.ms(), self.fence);
        let kind = match (self.mode, self.slot) {
            (Mode::Shared, _) => format!(":{SHARED}"),
            (Mode::Exclusive, Some(slot)) => format!(":{SLOT}{slot}"),
            (Mode::Exclusive, None) => String::new(),
        };
        format!("{VERSION}:{keys}:{token}:{ttl_ms}:{fence}:{until_ms}{kind}")
    }

    /// Reads the parts of the text, none of which contains a colon.
    fn read(parts: &[&str]) -> Option<Self> {
        let [_, keys, token, ttl, fence, until, kind @ ..] = parts else { return None };
        let (mode, slot) = match kind {
            [] => (Mode::Exclusive, None),
            [SHARED] => (Mode::Shared, None),
            [slot] => (Mode::Exclusive, Some(slot.strip_prefix(SLOT)?.parse().ok()?)),
            _ => return None,
        };
        Some(Self {
            keys: keys.split(',').map(from_text).collect::<Option<_>>()?,
            token: Token::from_text(token)?,
            ttl: Ttl::from_ms(ttl.parse().ok()?).ok()?,
            fence: Fence::new(fence.parse().ok()?)?,
            until: UNIX_EPOCH.checked_add(Duration::from_millis(until.parse().ok()?))?,
            mode,
            slot,
        })
    }
}

impl FromStr for DetachedLock {
    type Err = InvalidDetached;

    fn from_str(text: &str) -> Result<Self, InvalidDetached> {
        let parts: Vec<_> = text.trim().split(':').collect();
        // Another version may have another number of parts.
        let version = parts.first().copied().unwrap_or_default();
        if version != VERSION {
            let number = version.strip_prefix("quorlock").map(str::parse::<u32>);
            return Err(if matches!(number, Some(Ok(_))) {
                InvalidDetached::OtherVersion
            } else {
                InvalidDetached::NotDetached
            });
        }
        Self::read(&parts).ok_or(InvalidDetached::NotDetached)
    }
}

impl fmt::Debug for DetachedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedLock")
            .field("key", &format_args!("{}", self.keys))
            .field("fence", &self.fence)
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}

/// Writes bytes as one word: ASCII letters, digits and `-._/{}` stand for themselves, and every
/// other byte is `%` with two hexadecimal digits.
fn to_text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._/{}".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}

fn from_text(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        // `from_str_radix` would accept a sign.
        let digits = Some(digits).filter(|digits| !digits.contains('+'))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(rest.as_bytes());
    }
    Some(bytes)
}
