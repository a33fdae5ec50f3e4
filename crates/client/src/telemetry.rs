//! Events for `tracing`, and counters and histograms for the `metrics` facade if the feature
//! `metrics` is on. None of them contains a token.

use std::time::Duration;

use quorlock_core::quorum::ExtensionVerdict;
use tokio::time::Instant;

use crate::api::LockInner;
use crate::{AcquireError, Lock};

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
    count("quorlock_acquires_total", outcome);
    measure("quorlock_wait_seconds", || since.elapsed());
}

pub(crate) fn extended(lock: &LockInner, verdict: ExtensionVerdict) {
    let (outcome, warning) = match verdict {
        ExtensionVerdict::Extended(_) => ("extended", None),
        ExtensionVerdict::Uncertain => ("uncertain", Some("no majority confirmed the lock")),
        ExtensionVerdict::Lost => ("lost", Some("the lock is lost")),
    };
    let key = &lock.spec.keys;
    // Not in the span of the call that happens to drive the runtime.
    match warning {
        None => tracing::trace!(parent: None, %key, coverage = %lock.coverage(), "extended"),
        // A lock that its holder has released or detached causes no warning.
        Some(_) if lock.was_given_up() => {}
        Some(warning) => tracing::warn!(parent: None, %key, nodes = %lock.report(), "{warning}"),
    }
    count("quorlock_extends_total", outcome);
}

/// `granted`: whether the node has the lock again.
pub(crate) fn repaired(granted: bool) {
    count("quorlock_repairs_total", if granted { "repaired" } else { "refused" });
}

/// The program has ended the lock.
pub(crate) fn ended(lock: &LockInner, outcome: &'static str) {
    tracing::debug!(key = %lock.spec.keys, held_for = ?lock.held_for(), outcome, "ended");
    count("quorlock_releases_total", outcome);
    measure("quorlock_hold_seconds", || lock.held_for());
}

#[cfg_attr(not(feature = "metrics"), expect(unused_variables, reason = "only for the facade"))]
fn count(name: &'static str, outcome: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!(name, "outcome" => outcome).increment(1);
}

#[cfg_attr(not(feature = "metrics"), expect(unused_variables, reason = "only for the facade"))]
fn measure(name: &'static str, took: impl FnOnce() -> Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!(name).record(took().as_secs_f64());
}
