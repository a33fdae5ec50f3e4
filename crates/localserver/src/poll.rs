use std::thread;
use std::time::{Duration, Instant};

/// Interval between two checks of a condition.
pub const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Returns whether `condition` holds within `timeout`, by checking it every few milliseconds.
///
/// Checks the condition at least once. The last check begins when the time is up.
pub fn holds_within(timeout: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    loop {
        let time_is_up = started.elapsed() >= timeout;
        if condition() {
            return true;
        }
        if time_is_up {
            return false;
        }
        thread::sleep(POLL_INTERVAL);
    }
}
