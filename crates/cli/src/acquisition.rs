//! How `run` and `acquire` acquire a lock: their common options, and the wait for the lock.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::future::pending;
use std::io::{IsTerminal as _, stderr};
use std::os::unix::ffi::OsStrExt as _;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::ensure;
use quorlock_client::{AcquireError, Lock, LockBuilder, Quorum};
use quorlock_core::client::limits::COMPARE_PERMITS_AFTER;
use tokio::time::sleep;

use crate::output::{escape_short, say, say_in_background};
use crate::values::duration;
use crate::{advice, exit};

/// The default ttl of a lock.
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(10);
/// A fraction of the ttl must be enough time to start a process, extend the lock, or stop the
/// command.
const TTL_MIN: Duration = Duration::from_millis(100);
/// How long to wait for a lock that is in use before saying who holds it. Most waits are shorter.
const TELL_HOLDER_AFTER: Duration = Duration::from_secs(1);
/// How long to wait for silent nodes at the end. A lease that remains on one of them ends by its
/// ttl.
pub(crate) const FLUSH_LIMIT: Duration = Duration::from_millis(250);

/// The options of `run` and `acquire` that choose the kind of the lock.
#[derive(clap::Args)]
pub(crate) struct KindArgs {
    /// Share the lock with others that have --shared
    ///
    /// For commands that only read. Without this option, the lock is exclusive.
    #[arg(long)]
    shared: bool,

    /// Let at most N, 1 to 64, hold KEY at a time
    ///
    /// KEY is then a semaphore. Give the same number everywhere.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64), conflicts_with = "shared")]
    pub(crate) permits: Option<u8>,
}

/// The options of `run` and `acquire` that say how long to wait.
#[derive(clap::Args)]
pub(crate) struct WaitArgs {
    /// Wait at most this long [default: for ever]
    ///
    /// The time includes connecting.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    wait: Option<Duration>,

    /// The same in seconds or a fraction, as in flock
    #[arg(short = 'w', value_parser = seconds, value_name = "SECONDS", conflicts_with = "wait")]
    wait_seconds: Option<Duration>,
}

impl KindArgs {
    pub(crate) fn lock(&self, quorum: &Quorum, key: &OsStr) -> LockBuilder {
        let key = key.as_bytes();
        match self.permits {
            Some(permits) => quorum.semaphore(key, permits.into()),
            None if self.shared => quorum.lock(key).shared(),
            None => quorum.lock(key),
        }
    }
}

impl WaitArgs {
    /// Returns how long to wait for the lock; [`Duration::MAX`] without a limit.
    pub(crate) fn limit(&self, no_wait: bool, default: Option<Duration>) -> Duration {
        let given = if no_wait { Some(Duration::ZERO) } else { self.wait.or(self.wait_seconds) };
        given.or(default).unwrap_or(Duration::MAX)
    }
}

/// Reads seconds as `flock -w` does: `10`, `0.5`.
fn seconds(text: &str) -> Result<Duration, &'static str> {
    let seconds: f64 = text.parse().map_err(|_| "give a number of seconds, such as 10 or 0.5")?;
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| "give a number of seconds from 0 up, such as 10 or 0.5")
}

pub(crate) fn check_ttl(ttl: Duration) -> anyhow::Result<Duration> {
    ensure!(
        ttl >= TTL_MIN,
        "a ttl of {ttl:?} is too short for the nodes to answer in time: give at least {TTL_MIN:?}"
    );
    Ok(ttl)
}

/// Awaits `acquiring`. If that takes [`COMPARE_PERMITS_AFTER`], or finds all permits taken, warns
/// if another client uses a larger number of permits.
pub(crate) async fn comparing_permits(
    quorum: &Quorum,
    name: &OsStr,
    permits: Option<u8>,
    mut acquiring: impl Future<Output = Result<Lock, AcquireError>> + Unpin,
) -> Result<Lock, AcquireError> {
    let Some(permits) = permits.map(usize::from) else { return acquiring.await };
    let name = name.as_bytes();
    let compare = async || {
        if let Some(larger) = quorum.larger_permits(name, permits).await {
            warn_of_larger(name, permits, larger);
        }
    };
    tokio::select! {
        biased;
        acquired = &mut acquiring => {
            if matches!(acquired, Err(AcquireError::Held { .. } | AcquireError::TimedOut { .. })) {
                compare().await;
            }
            return acquired;
        }
        () = sleep(COMPARE_PERMITS_AFTER) => {}
    }
    // The comparison must not delay the grant.
    let compare_once = async {
        compare().await;
        pending::<Infallible>().await
    };
    tokio::select! {
        biased;
        acquired = acquiring => acquired,
        never = compare_once => match never {},
    }
}

/// Tries once, and then waits for the lock. `wait` counts from `called_at`, and so includes the
/// time to connect.
///
/// Prints why it waits: at once, or after [`TELL_HOLDER_AFTER`] if the lock is merely in use. Then
/// it prints this only on a terminal or if `verbose`, so that cron sends no mail.
pub(crate) async fn acquire(
    builder: LockBuilder,
    called_at: Instant,
    wait: Duration,
    verbose: bool,
) -> Result<Lock, AcquireError> {
    let reason = match builder.try_acquire().await {
        Err(error) if called_at.elapsed() < wait && !waiting_cannot_help(&error) => error,
        Err(AcquireError::Held { nodes, .. }) => {
            return Err(AcquireError::Held { nodes, holder: builder.holder().await });
        }
        decided => return decided,
    };
    let builder = builder.wait(wait.saturating_sub(called_at.elapsed()));
    if !is_usual(&reason) {
        say(format_args!("waiting: {}", advice::describe(&reason)));
    } else if verbose || stderr().is_terminal() {
        let mut acquiring = pin!(builder.acquire());
        let telling = async {
            sleep(TELL_HOLDER_AFTER).await;
            builder.holder().await
        };
        let holder = tokio::select! {
            biased;
            acquired = &mut acquiring => return acquired,
            holder = telling => holder,
        };
        say_in_background(format!("waiting: {}", advice::describe_wait(reason, holder)));
        return acquiring.await;
    }
    builder.acquire().await
}

/// Returns whether waiting cannot help: the request is invalid, or too many nodes fail permanently.
pub(crate) fn waiting_cannot_help(error: &AcquireError) -> bool {
    match error {
        AcquireError::InvalidRequest { .. } => true,
        AcquireError::NoQuorum { nodes } => nodes.is_permanent(),
        _ => false,
    }
}

pub(crate) fn exit_code_for(error: &AcquireError, conflict: u8) -> u8 {
    match error {
        AcquireError::Held { .. } | AcquireError::TimedOut { .. } => conflict,
        AcquireError::NoQuorum { .. } | AcquireError::InsufficientValidity { .. } => {
            exit::NO_MAJORITY
        }
        _ => exit::FAILED,
    }
}

/// Returns whether the lock is merely in use, or only a minority of the nodes failed.
fn is_usual(error: &AcquireError) -> bool {
    match error {
        AcquireError::NoQuorum { nodes } => 2 * nodes.failed().count() < nodes.0.len(),
        error => matches!(error, AcquireError::Held { .. }),
    }
}

pub(crate) fn warn_of_larger(name: &[u8], permits: usize, larger_permits: usize) {
    say(format_args!(
        "warning: another client gives {} at least {larger_permits} permits, so more than {permits} \
         can be held at once: use the same `--permits` everywhere",
        escape_short(name)
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_may_be_fractions_and_are_never_negative() {
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        assert_eq!(seconds("10"), Ok(Duration::from_secs(10)));
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for invalid in ["", "-1", "1s", "NaN", "inf", "1e30"] {
            assert!(seconds(invalid).is_err(), "{invalid}");
        }
    }
}
