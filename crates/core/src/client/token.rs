use std::fmt;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Proves who holds a lock: 128 random bits, new for every call, and whenever a call
/// releases its part of a lock.
///
/// A token that is used twice can give a lock two holders: a late RELEASE of the first lock ends
/// the second. `Debug` hides tokens, because a token is enough to release the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; 32]);

impl Token {
    /// The token of these random bits.
    pub fn of_bits(bits: u128) -> Self {
        let mut hex = [0; 32];
        for (digits, byte) in hex.chunks_exact_mut(2).zip(bits.to_be_bytes()) {
            digits[0] = HEX[usize::from(byte >> 4)];
            digits[1] = HEX[usize::from(byte & 0xf)];
        }
        Self(hex)
    }

    /// Reads a token that another process made; `None` unless `text` is 32 hexadecimal digits.
    pub fn from_text(text: &str) -> Option<Self> {
        let digits: [u8; 32] = text.as_bytes().try_into().ok()?;
        digits.iter().all(u8::is_ascii_hexdigit).then_some(Self(digits))
    }

    /// The token as it is sent: 32 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}
