use std::time::Duration;

/// By which part of it a longer time is believed.
const BELIEVED_PART: u32 = 8;

/// How long a client believes that the nodes take to answer, of what its attempts took.
///
/// A shorter time is believed at once, and a longer one bit by bit: whatever else holds up an attempt only makes it longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip(Duration);

impl RoundTrip {
    /// So long, as far as is known.
    pub const fn new(duration: Duration) -> Self {
        Self(duration)
    }

    /// How long that is.
    pub const fn duration(self) -> Duration {
        self.0
    }

    /// After an attempt that took so long.
    #[must_use]
    pub fn learn(self, took: Duration) -> Self {
        Self(self.0.min(took).saturating_add(took.saturating_sub(self.0) / BELIEVED_PART))
    }
}
