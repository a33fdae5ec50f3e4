//! Keeps the lock while the command runs.

use std::future::pending;
use std::time::Duration;
use std::{fmt, thread};

use quorlock_client::{ExtendError, Lock, Ownership, ReleaseError, Released};
use quorlock_core::quorum::Moment;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::{clock, say};

/// How often in a ttl the keeper looks at the lock.
const GLANCES_PER_TTL: u32 = 20;

/// A lock that is extended, and what is known of it.
pub(crate) struct Keeper {
    lock: Lock,
    glance: Interval,
    /// Why the last extension was not confirmed.
    trouble: Option<ExtendError>,
}

/// What became of the lock.
pub(crate) enum Kept {
    /// It is valid until then.
    Until(Moment),
    /// The nodes say that it has ended.
    Lost,
}

impl Keeper {
    pub(crate) fn new(mut lock: Lock, ttl: Duration) -> Self {
        lock.renew();
        let mut glance = interval(ttl / GLANCES_PER_TTL);
        glance.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { lock, glance, trouble: None }
    }

    /// The end of the validity.
    pub(crate) fn deadline(&self) -> Moment {
        // In this order: a pause in between makes the deadline too early, and not too late.
        let now = clock::now();
        now.plus(self.lock.remaining())
    }

    /// How the lock stands after a while. Never returns once it is lost.
    ///
    /// Nothing is lost when this is not awaited to its end.
    pub(crate) async fn next(&mut self) -> Kept {
        if matches!(self.trouble, Some(ExtendError::Lost { .. })) {
            return pending().await;
        }
        self.glance.tick().await;
        let extended = match self.lock.ownership() {
            Ownership::Held(_) => Ok(()),
            Ownership::Uncertain(_) | Ownership::Lost => self.lock.extend().await,
        };
        match extended {
            Ok(()) => {
                if self.trouble.take().is_some() {
                    notice("the lock is confirmed again".into());
                }
            }
            Err(error) => {
                let is_lost = matches!(error, ExtendError::Lost { .. });
                let is_revoked = matches!(error, ExtendError::Revoked { .. });
                let before = self.trouble.replace(error);
                let was_revoked = matches!(before, Some(ExtendError::Revoked { .. }));
                let left = Left(self.lock.remaining());
                if is_revoked && !was_revoked {
                    notice(format!("an operator revoked the lock, {left} left: it cannot be extended"));
                } else if before.is_none() && !is_lost {
                    notice(format!("cannot confirm the lock, {left} left"));
                }
                if is_lost {
                    return Kept::Lost;
                }
            }
        }
        Kept::Until(self.deadline())
    }

    /// Why the command was stopped.
    pub(crate) fn reason(&self) -> String {
        match &self.trouble {
            Some(error) => error.to_string(),
            None => "the lock was not extended in time: was quorlock itself stopped?".into(),
        }
    }

    pub(crate) async fn release(self) -> Result<Released, ReleaseError> {
        self.lock.release().await
    }
}

/// Tells the person while the command runs. A reader of stderr that is stuck must not delay the extensions.
fn notice(message: String) {
    thread::spawn(move || say(message));
}

/// A time as people read it.
struct Left(Duration);

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            0 => write!(f, "{} ms", self.0.as_millis()),
            seconds => write!(f, "{seconds} s"),
        }
    }
}
