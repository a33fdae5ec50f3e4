//! The signals that would end this program if it did not listen.

use std::fs;
use std::future::poll_fn;
use std::task::Poll;

use anyhow::Context as _;
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

const LISTENED_TO: [Signal; 6] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// What comes in of these signals. They end this program no more, even after this is dropped.
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let ignored = ignored_mask();
        LISTENED_TO
            .into_iter()
            // Under nohup, and in the background of a script, some are to be ignored: by this program and by its child,
            // which inherits that as long as nobody listens here.
            .filter(|signal| ignored & (1 << (signal.as_raw() - 1)) == 0)
            .map(|signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?)))
            .collect::<Result<_, std::io::Error>>()
            .map(Self)
            .context("cannot listen for signals")
    }

    /// Awaits `work`, unless a signal arrives first. Then `work` is dropped.
    pub(crate) async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Signal> {
        tokio::select! {
            biased;
            signal = self.next() => Err(signal),
            done = work => Ok(done),
        }
    }

    /// The next signal. Nothing is lost when this is not awaited to its end.
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

/// One bit for each signal that this program was started with ignored, from the lowest; none where the system does not
/// tell.
fn ignored_mask() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
