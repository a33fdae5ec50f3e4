use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorlock_core::{Fence, Ttl};

use crate::held::Held;
use crate::keys::Keys;
use crate::token::Token;

/// What the text of a [`Handover`] begins with.
const VERSION: &str = "quorlock1";

/// A lock on its way to another process: made by [`Lock::hand_over`](crate::Lock::hand_over), and made a lock again by
/// [`Quorum::resume`](crate::Quorum::resume), there.
///
/// Of all who resume the same lock one at most succeeds.
#[must_use = "the lock is nobody's until it is resumed, and ends by its deadline"]
pub struct Handover {
    keys: Keys,
    token: Token,
    ttl: Ttl,
    fence: Fence,
    until: SystemTime,
}

/// Why a text is not a [`Handover`]. It does not show the text, which may be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandoverError {
    /// It is something else, or cut short.
    ///
    /// ```
    /// # use quorlock_client::{Handover, HandoverError};
    /// let error = "orders/42".parse::<Handover>().unwrap_err();
    /// assert_eq!(error, HandoverError::NotAHandover);
    /// ```
    #[error("this is not the text of a handover, or not all of it")]
    NotAHandover,
    /// A version of this crate wrote it that this one does not know.
    ///
    /// ```
    /// # use quorlock_client::{Handover, HandoverError};
    /// let error = "quorlock9:orders/42:…:10000:1:1".parse::<Handover>().unwrap_err();
    /// assert_eq!(error, HandoverError::OtherVersion);
    /// ```
    #[error("this handover is of another version of quorlock-client: give both programs the same")]
    OtherVersion,
}

impl Handover {
    pub(crate) fn new(held: &Held, remaining: Duration) -> Self {
        Self {
            keys: held.keys.clone(),
            token: held.token.clone(),
            ttl: held.ttl,
            fence: held.fence,
            until: SystemTime::now() + remaining,
        }
    }

    /// The locked key; of [several](crate::Quorum::lock_all) the first in the order of their bytes.
    pub fn key(&self) -> &[u8] {
        self.keys.first()
    }

    /// The locked keys, in the order of their bytes.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.keys.iter().map(AsRef::as_ref)
    }

    pub(crate) fn is_of(&self, keys: &Keys) -> bool {
        self.keys == *keys
    }

    /// The fence of the lock so far. Who resumes it gets a larger one.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// How long the lock lasts once it is resumed.
    pub fn ttl(&self) -> Duration {
        self.ttl.duration()
    }

    /// By when it must be resumed, by the wall clock of the process that gave it. For people: the nodes decide.
    pub fn until(&self) -> SystemTime {
        self.until
    }

    /// The text that [`Handover::from_str`] reads: one line, without spaces. It has the token in it: **whoever knows it
    /// can take the lock, or release it.** Pass it on as you would a password.
    pub fn to_secret_text(&self) -> String {
        let until_ms = self.until.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let keys: Vec<_> = self.keys().map(to_text).collect();
        let (keys, token) = (keys.join(","), self.token.as_str());
        format!("{VERSION}:{keys}:{token}:{}:{}:{until_ms}", self.ttl.ms(), self.fence)
    }

    pub(crate) fn into_parts(self) -> (Token, Fence) {
        (self.token, self.fence)
    }
}

impl FromStr for Handover {
    type Err = HandoverError;

    fn from_str(text: &str) -> Result<Self, HandoverError> {
        let parts: Vec<_> = text.trim().split(':').collect();
        let (Some(&version), [_, keys, token, ttl, fence, until]) = (parts.first(), parts.as_slice()) else {
            return Err(HandoverError::NotAHandover);
        };
        if version != VERSION {
            let is_later = version.starts_with("quorlock");
            return Err(if is_later { HandoverError::OtherVersion } else { HandoverError::NotAHandover });
        }
        let read = || {
            let until = Duration::from_millis(until.parse().ok()?);
            Some(Self {
                keys: keys.split(',').map(from_text).collect::<Option<_>>()?,
                token: Token::from_text(token)?,
                ttl: Ttl::from_ms(ttl.parse().ok()?).ok()?,
                fence: Fence::new(fence.parse().ok()?)?,
                until: UNIX_EPOCH.checked_add(until)?,
            })
        };
        read().ok_or(HandoverError::NotAHandover)
    }
}

impl fmt::Debug for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handover")
            .field("key", &format_args!("{}", self.keys))
            .field("fence", &self.fence)
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}

/// Bytes as one word: as they are where they are letters, digits and the like, and else as `%` and two hexadecimal digits.
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
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first == b'%' {
            let (digits, after) = after.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handover<const N: usize>(keys: [&[u8]; N]) -> Handover {
        Handover {
            keys: keys.into_iter().collect(),
            token: Token::random().unwrap(),
            ttl: Ttl::from_ms(10_000).unwrap(),
            fence: Fence::new(1_795_249_538_261_001).unwrap(),
            until: UNIX_EPOCH + Duration::from_millis(1_795_249_548_261),
        }
    }

    #[test]
    fn a_text_is_one_word_and_is_read_as_what_it_was() {
        for key in [&b"orders/42"[..], b"", b"a:b c%\n\x00\xff", "l\u{f6}ck".as_bytes()] {
            let given = handover([key]);
            let text = given.to_secret_text();
            assert!(text.chars().all(|c| c.is_ascii_graphic()), "{text}");
            let read: Handover = format!("{text}\n").parse().unwrap();
            assert_eq!(read.key(), key);
            assert_eq!(read.token.as_str(), given.token.as_str());
            assert_eq!((read.fence, read.ttl, read.until), (given.fence, given.ttl, given.until));
        }
    }

    #[test]
    fn several_keys_are_read_as_they_were() {
        let read: Handover = handover([b"b,", b"a", b""]).to_secret_text().parse().unwrap();
        assert!(read.keys().eq([&b""[..], b"a", b"b,"]));
    }

    #[test]
    fn what_is_not_a_handover_is_refused() {
        let text = handover([b"k"]).to_secret_text();
        for other in
            ["", "quorlock1", "quorlock1:k:t:0:1:1", &text[..text.len() - 14], &text.replace(':', " ")]
        {
            assert_eq!(other.parse::<Handover>().unwrap_err(), HandoverError::NotAHandover, "{other}");
        }
        let later = text.replace("quorlock1", "quorlock2");
        assert_eq!(later.parse::<Handover>().unwrap_err(), HandoverError::OtherVersion);
    }

    #[test]
    fn the_token_is_only_in_the_text() {
        let handover = handover([b"k"]);
        assert!(handover.to_secret_text().contains(handover.token.as_str()));
        assert!(!format!("{handover:?}").contains(handover.token.as_str()));
    }
}
