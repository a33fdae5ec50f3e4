use quorlock_core::client::Random;

/// Random numbers: from the operating system for tokens, and from a fast generator for pauses.
#[doc(hidden)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn bits(&mut self) -> Option<u128> {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits).ok()?;
        Some(u128::from_ne_bytes(bits))
    }

    fn below(&mut self, end: u64) -> u64 {
        fastrand::u64(..end)
    }
}
