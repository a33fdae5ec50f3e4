//! What a client tells of itself: events for `tracing`, and with the feature `metrics` figures for the `metrics` facade.
//! Neither ever has a token in it.

use std::time::Duration;

use quorlock_core::quorum::ExtensionVerdict;
use tokio::time::Instant;

use crate::held::Held;
use crate::{AcquireError, Lock, Released};

/// A call of `acquire` or `try_acquire` has come to an end.
pub(crate) fn acquired(outcome: &Result<Lock, AcquireError>, since: Instant) {
    let outcome = match outcome {
        Ok(lock) => {
            tracing::debug!(
                fence = lock.fence().get(),
                coverage = %lock.coverage(),
                took = ?since.elapsed(),
                "acquired"
            );
            "acquired"
        }
        Err(error) => {
            tracing::debug!(%error, took = ?since.elapsed(), "not acquired");
            match error {
                AcquireError::Held { .. } => "held",
                AcquireError::NoQuorum { .. } => "no_quorum",
                AcquireError::TimedOut { .. } => "timed_out",
                AcquireError::Expired { .. } => "expired",
                AcquireError::Unusable { .. } => "unusable",
            }
        }
    };
    figures::count("quorlock_acquires_total", outcome);
    figures::measure("quorlock_wait_seconds", || since.elapsed());
}

/// One attempt on all nodes has come to an end.
pub(crate) fn attempted(took: Duration) {
    figures::measure("quorlock_acquire_seconds", || took);
}

/// A round of extends was decided for a lock.
pub(crate) fn extended(held: &Held, verdict: ExtensionVerdict) {
    let outcome = match verdict {
        ExtensionVerdict::Extended(_) => {
            tracing::trace!(key = %held.keys, coverage = %held.coverage(), "extended");
            "extended"
        }
        ExtensionVerdict::Uncertain if held.is_over() => "uncertain",
        ExtensionVerdict::Uncertain => {
            tracing::warn!(key = %held.keys, nodes = %held.report(), "no majority confirmed the lock");
            "uncertain"
        }
        ExtensionVerdict::Lost if held.is_over() => "lost",
        ExtensionVerdict::Lost => {
            tracing::warn!(key = %held.keys, nodes = %held.report(), "the lock is lost");
            "lost"
        }
    };
    figures::count("quorlock_extends_total", outcome);
}

/// A node that had missed a lock was asked to take it.
pub(crate) fn repaired(granted: bool) {
    figures::count("quorlock_repairs_total", if granted { "repaired" } else { "refused" });
}

/// A release has come to an end; `None` when too few nodes have confirmed it.
pub(crate) fn released(held: &Held, released: Option<Released>) {
    let outcome = match released {
        Some(Released::Released) => "released",
        Some(Released::AlreadyOver) => "already_over",
        None => "unconfirmed",
    };
    gone(held, outcome);
}

/// A lock was dropped.
pub(crate) fn dropped(held: &Held) {
    gone(held, "dropped");
}

/// A lock was given to another process.
pub(crate) fn handed_over(held: &Held) {
    gone(held, "handed_over");
}

fn gone(held: &Held, outcome: &'static str) {
    tracing::debug!(key = %held.keys, held_for = ?held.held_for(), outcome, "given back");
    figures::count("quorlock_releases_total", outcome);
    figures::measure("quorlock_hold_seconds", || held.held_for());
}

#[cfg(feature = "metrics")]
mod figures {
    use std::time::Duration;

    pub(super) fn count(name: &'static str, outcome: &'static str) {
        metrics::counter!(name, "outcome" => outcome).increment(1);
    }

    pub(super) fn measure(name: &'static str, took: impl FnOnce() -> Duration) {
        metrics::histogram!(name).record(took().as_secs_f64());
    }
}

#[cfg(not(feature = "metrics"))]
mod figures {
    use std::time::Duration;

    pub(super) fn count(_name: &'static str, _outcome: &'static str) {}

    pub(super) fn measure(_name: &'static str, _took: impl FnOnce() -> Duration) {}
}
