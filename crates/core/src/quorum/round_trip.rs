use std::time::Duration;

/// By which part of it a longer time is believed.
const BELIEVED_PART: u32 = 8;

/// How long a client believes that the nodes take to answer, after an attempt that took so long, if it believed this before.
///
/// A shorter time is believed at once, and a longer one bit by bit: whatever else holds up an attempt only makes it longer.
pub fn round_trip_after(before: Option<Duration>, took: Duration) -> Duration {
    let Some(before) = before else { return took };
    before.min(took).saturating_add(took.saturating_sub(before) / BELIEVED_PART)
}
