use std::panic::Location;
use std::thread;
use std::time::{Duration, Instant};

/// How often a condition is looked at that nothing reports.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Waits until `f` returns true, looking every few milliseconds, and once more when the time is up.
///
/// # Panics
///
/// With `what`, which says what is waited for, when that takes longer than `timeout`.
#[track_caller]
pub fn eventually(timeout: Duration, what: &str, mut f: impl FnMut() -> bool) {
    assert!(holds_within(timeout, &mut f), "not within {} ms: {what}", timeout.as_millis());
}

/// Whether `f` returns true within `timeout`.
pub(crate) fn holds_within(timeout: Duration, mut f: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    loop {
        let time_is_up = started.elapsed() >= timeout;
        if f() {
            return true;
        }
        if time_is_up {
            return false;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// The same as [`eventually`] for a condition that has to be awaited, which is given up when the time is up.
///
/// # Panics
///
/// With `what`, which says what is waited for, when that takes longer than `timeout`.
#[track_caller]
pub fn eventually_async(
    timeout: Duration,
    what: &str,
    mut f: impl AsyncFnMut() -> bool,
) -> impl Future<Output = ()> {
    // Panics within an async block are not traced to the caller.
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
