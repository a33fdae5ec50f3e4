const HEX: &[u8; 16] = b"0123456789abcdef";

/// Proves who holds a lock: 128 random bits of the operating system, new for every attempt. A token that is used twice
/// gives two holders: its late RELEASE would free what its next attempt was granted. Whoever knows it can release the
/// lock, so it is never shown.
#[derive(Clone)]
pub(crate) struct Token(String);

impl Token {
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits)?;
        let mut hex = String::with_capacity(32);
        for byte in bits {
            hex.extend([byte >> 4, byte & 0xf].map(|digit| char::from(HEX[usize::from(digit)])));
        }
        Ok(Self(hex))
    }

    /// One that another process made.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let is_token = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_token.then(|| Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}
