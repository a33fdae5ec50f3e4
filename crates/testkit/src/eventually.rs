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
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    fn panic_text(f: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("it panics");
        *panic.downcast().expect("with a text")
    }

    #[test]
    fn condition_that_never_holds_is_named() {
        let text = panic_text(|| eventually(SHORT, "pigs fly", || false));
        assert!(text.contains("pigs fly") && text.contains("20 ms"), "{text}");
    }

    #[tokio::test]
    async fn awaited_condition_is_checked_until_it_holds() {
        let checks = Cell::new(0);
        eventually_async(Duration::from_secs(5), "the fifth check", async || {
            tokio::task::yield_now().await;
            checks.update(|checks| checks + 1);
            checks.get() == 5
        })
        .await;
        assert_eq!(checks.get(), 5);
    }

    #[test]
    fn hanging_condition_is_named_with_its_place() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let never = eventually_async(SHORT, "pigs fly", async || std::future::pending().await);
        let text = panic_text(|| runtime.block_on(never));
        assert!(text.contains("pigs fly") && text.contains(file!()), "{text}");
    }
}
