const HEX: &[u8; 16] = b"0123456789abcdef";

/// Proves who holds a lock: 128 random bits of the operating system, new for every attempt. A token that is used twice
/// gives two holders: its late RELEASE would free what its next attempt was granted. Whoever knows it can release the
/// lock, so it is never shown.
#[derive(Clone)]
pub(crate) struct Token([u8; 32]);

impl Token {
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits)?;
        let mut hex = [0; 32];
        for (digits, byte) in hex.chunks_exact_mut(2).zip(bits) {
            digits.copy_from_slice(&[byte >> 4, byte & 0xf].map(|digit| HEX[usize::from(digit)]));
        }
        Ok(Self(hex))
    }

    /// One that another process made.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let digits = text.as_bytes().try_into().ok()?;
        text.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(Self(digits))
    }

    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(&self.0).expect("there are only hexadecimal digits")
    }
}
