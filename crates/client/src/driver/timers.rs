//! Waits until a state machine next has something to do.

use std::future::pending;
use std::pin::Pin;

use quorlock_core::quorum::Moment;
use tokio::time::{Instant, Sleep};

use crate::clock;

/// Waits until this moment with a new timer. Never returns if there is none.
pub(super) async fn sleep_until(wake_at: Option<Moment>) {
    match wake_at {
        Some(wake_at) => tokio::time::sleep(clock::now().until(wake_at)).await,
        None => pending().await,
    }
}

/// Waits until this moment with a timer that stays set when the future is dropped. `armed` is the
/// time for which the timer is set. Never returns if there is none.
///
/// A timer that is set for an earlier time is not set again, so this may return before `wake_at`.
/// Setting a timer costs more than calling a state machine that has nothing to do yet.
pub(super) async fn sleep_with_timer(
    mut timer: Pin<&mut Sleep>,
    armed: &mut Option<Moment>,
    wake_at: Option<Moment>,
) {
    let Some(wake_at) = wake_at else { return pending().await };
    if armed.is_none_or(|armed| armed.earlier(wake_at) != armed) {
        timer.as_mut().reset(Instant::now() + clock::now().until(wake_at));
        *armed = Some(wake_at);
    }
    timer.await;
    *armed = None;
}
