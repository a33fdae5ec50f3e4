//! Waits for the deadlines of machines.

use std::future::pending;
use std::pin::Pin;

use quorlock_core::quorum::Moment;
use tokio::time::{Instant, Sleep};

use crate::clock;

/// Waits for a deadline of a machine. Never returns if there is none.
pub(super) async fn sleep_until(deadline: Option<Moment>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(clock::now().until(deadline)).await,
        None => pending().await,
    }
}

/// Waits for a deadline of a machine. The timer stays set when the future is dropped, and `armed`
/// is the time for which it is set.
///
/// May return before the deadline, because a timer that is set for an earlier time is not set
/// again. Setting the timer costs more than calling a machine that has nothing to do yet.
pub(super) async fn reach(
    mut timer: Pin<&mut Sleep>,
    armed: &mut Option<Moment>,
    deadline: Option<Moment>,
) {
    let Some(deadline) = deadline else { return pending().await };
    if armed.is_none_or(|armed| armed.earlier(deadline) != armed) {
        timer.as_mut().reset(Instant::now() + clock::now().until(deadline));
        *armed = Some(deadline);
    }
    timer.await;
    *armed = None;
}
