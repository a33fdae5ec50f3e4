use std::panic::Location;
use std::time::Duration;

use quorlock_localserver::{POLL_INTERVAL, holds_within};

/// Waits until `condition` returns true. Calls it every few milliseconds, and once more when the
/// time is up.
///
/// # Panics
///
/// When the condition does not hold within `timeout`. The message contains `what`.
#[track_caller]
pub fn eventually(timeout: Duration, what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(timeout, condition), "not within {} ms: {what}", timeout.as_millis());
}

/// Waits until `condition` returns true. When the time is up, abandons the call that is under way,
/// and does not call it again.
///
/// # Panics
///
/// When the condition does not hold within `timeout`. The message contains `what`.
#[track_caller]
pub fn eventually_async(
    timeout: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> bool,
) -> impl Future<Output = ()> {
    // `#[track_caller]` does not apply to panics within an async block.
    let caller = Location::caller();
    async move {
        let holds = async {
            while !condition().await {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        let in_time = tokio::time::timeout(timeout, holds).await.is_ok();
        assert!(in_time, "not within {} ms, waited for at {caller}: {what}", timeout.as_millis());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[should_panic(expected = "pigs fly")]
    async fn hanging_condition_ends_in_time_and_is_named() {
        let short = Duration::from_millis(20);
        eventually_async(short, "pigs fly", async || std::future::pending().await).await;
    }
}
