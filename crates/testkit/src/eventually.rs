use std::panic::Location;
use std::time::Duration;

use quorlock_localserver::{POLL_INTERVAL, holds_within};

/// Waits until `f` returns true. Calls `f` every few milliseconds, and once when the time is up.
///
/// # Panics
///
/// When the condition does not hold within `timeout`. The message contains `what`.
#[track_caller]
pub fn eventually(timeout: Duration, what: &str, f: impl FnMut() -> bool) {
    assert!(holds_within(timeout, f), "not within {} ms: {what}", timeout.as_millis());
}

/// Waits until `f` returns true. When the time is up, drops the future of `f`, without a last call.
///
/// # Panics
///
/// When the condition does not hold within `timeout`. The message contains `what`.
#[track_caller]
pub fn eventually_async(
    timeout: Duration,
    what: &str,
    mut f: impl AsyncFnMut() -> bool,
) -> impl Future<Output = ()> {
    // `#[track_caller]` does not apply to panics within an async block.
    let caller = Location::caller();
    async move {
        let holds = async {
            while !f().await {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        let in_time = tokio::time::timeout(timeout, holds).await.is_ok();
        assert!(in_time, "not within {} ms, waited for at {caller}: {what}", timeout.as_millis());
    }
}
