//! Waits for the deadlines at which a state machine next has something to do.

use std::future::pending;
use std::pin::Pin;

use quorlock_core::quorum::Moment;
use tokio::time::{Instant, Sleep};

use crate::clock;

/// Waits with a new timer. Never returns if there is no deadline.
pub(super) async fn sleep_until(deadline: Option<Moment>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(clock::now().until(deadline)).await,
        None => pending().await,
    }
}

/// Waits with a timer that stays set when the future is dropped. `armed` is the time for which the
/// timer is set. Never returns if there is no deadline.
///
/// A timer that is set for an earlier time is not set again, so this may return before `deadline`.
/// Setting a timer costs more than calling a state machine that has nothing to do yet.
pub(super) async fn sleep_with_timer(
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
