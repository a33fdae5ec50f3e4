//! Events for `tracing`, and counters and histograms for the `metrics` facade if the feature
//! `metrics` is on. None of them contains a token.

use std::sync::Arc;

use quorlock_core::quorum::ExtensionVerdict;
use tokio::time::Instant;

use crate::driver::LockInner;
use crate::{AcquireError, Lock, Released};

/// Records the result of a call of `acquire` or `try_acquire`.
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
                AcquireError::InsufficientValidity { .. } => "insufficient_validity",
                AcquireError::InvalidRequest { .. } => "invalid",
            }
        }
    };
    metrics_facade::count("quorlock_acquires_total", outcome);
    metrics_facade::measure("quorlock_wait_seconds", || since.elapsed());
}

/// Records the verdict of a round of extensions for a lock.
pub(crate) fn extended(lock: &Arc<LockInner>, verdict: ExtensionVerdict) {
    // A lock that its holder has released or detached causes no warning.
    let outcome = match verdict {
        ExtensionVerdict::Extended(_) => {
            tracing::trace!(key = %lock.spec.keys, coverage = %lock.coverage(), "extended");
            "extended"
        }
        ExtensionVerdict::Uncertain if lock.is_over() => "uncertain",
        ExtensionVerdict::Uncertain => {
            tracing::warn!(key = %lock.spec.keys, nodes = %lock.report(), "no majority confirmed the lock");
            "uncertain"
        }
        ExtensionVerdict::Lost if lock.is_over() => "lost",
        ExtensionVerdict::Lost => {
            tracing::warn!(key = %lock.spec.keys, nodes = %lock.report(), "the lock is lost");
            "lost"
        }
    };
    metrics_facade::count("quorlock_extends_total", outcome);
}

/// Records the end of a repair: whether the node has the lock again.
pub(crate) fn repaired(granted: bool) {
    metrics_facade::count("quorlock_repairs_total", if granted { "repaired" } else { "refused" });
}

/// Records the result of a release; `None` when too few nodes confirmed it.
pub(crate) fn released(lock: &Arc<LockInner>, released: Option<Released>) {
    let outcome = match released {
        Some(Released::Released) => "released",
        Some(Released::AlreadyOver) => "already_over",
        None => "unconfirmed",
    };
    ended(lock, outcome);
}

/// Records a dropped lock.
pub(crate) fn dropped(lock: &Arc<LockInner>) {
    ended(lock, "dropped");
}

/// Records a lock that was detached for another process.
pub(crate) fn detached(lock: &Arc<LockInner>) {
    ended(lock, "detached");
}

fn ended(lock: &Arc<LockInner>, outcome: &'static str) {
    tracing::debug!(key = %lock.spec.keys, held_for = ?lock.held_for(), outcome, "ended");
    metrics_facade::count("quorlock_releases_total", outcome);
    metrics_facade::measure("quorlock_hold_seconds", || lock.held_for());
}

#[cfg(feature = "metrics")]
mod metrics_facade {
    use std::time::Duration;

    pub(super) fn count(name: &'static str, outcome: &'static str) {
        metrics::counter!(name, "outcome" => outcome).increment(1);
    }

    pub(super) fn measure(name: &'static str, took: impl FnOnce() -> Duration) {
        metrics::histogram!(name).record(took().as_secs_f64());
    }
}

#[cfg(not(feature = "metrics"))]
mod metrics_facade {
    use std::time::Duration;

    pub(super) fn count(_name: &'static str, _outcome: &'static str) {}

    pub(super) fn measure(_name: &'static str, _took: impl FnOnce() -> Duration) {}
}
