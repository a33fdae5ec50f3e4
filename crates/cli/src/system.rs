//! What the system provides: the clocks that measure a validity, as in the client library, and the
//! signals that would end this program if it did not handle them.

use std::fs;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use anyhow::Context as _;
pub(crate) use quorlock_client::now;
use quorlock_core::quorum::Moment;
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};
use tokio::time::sleep;

use crate::exit::Ended;

/// The longest time for which [`reach`] sleeps before it reads the clocks again: timers stop while
/// the machine is suspended, validities do not.
const RECHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Waits until one of the two clocks has reached `moment`.
pub(crate) async fn reach(moment: Moment) {
    loop {
        let left = now().until(moment);
        if left.is_zero() {
            return;
        }
        sleep(left.min(RECHECK_INTERVAL)).await;
    }
}

const LISTENED_TO: [Signal; 6] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// A listener for the signals that this program handles. They no longer end the program, even after
/// the listener is dropped.
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let ignored = ignored_mask();
        LISTENED_TO
            .into_iter()
            // A signal that is ignored, as under nohup or in the background of a script, stays
            // ignored. A child inherits this, because this program does not listen for the signal.
            .filter(|signal| ignored & (1 << (signal.as_raw() - 1)) == 0)
            .map(|signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?)))
            .collect::<Result<_, std::io::Error>>()
            .map(Self)
            .context("cannot listen for signals")
    }

    /// Awaits `work`. If a signal arrives first, drops `work`.
    pub(crate) async fn interrupting<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<T, Ended> {
        tokio::select! {
            biased;
            signal = self.next() => Err(Ended::by(signal)),
            done = work => Ok(done),
        }
    }

    /// Waits for the next signal.
    ///
    /// # Cancel safety
    /// Dropping the future loses no signal.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (signal, arrived) in &mut self.0 {
                if arrived.poll_recv(cx).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Returns the signals that this process ignores, as far as the system reports them: the lowest bit
/// is signal 1.
fn ignored_mask() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
