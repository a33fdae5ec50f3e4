//! A condition is checked until it holds. If it does not hold in time, the panic names it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use quorlock_testkit::{eventually, eventually_async};

const LIMIT: Duration = Duration::from_secs(5);
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
    eventually_async(LIMIT, "the fifth check", async || {
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
