//! Renews and checks the lock while the command runs.

use std::future::pending;
use std::time::Duration;

use quorlock_client::{ExtendError, Lock, NodeAnswers, NodeError, Ownership};
use quorlock_core::quorum::Moment;
use quorlock_core::{Confirmation, LockCheck};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::output::{say_in_background, time};
use crate::system;

const CHECKS_PER_TTL: u32 = 20;

pub(crate) struct LockRenewer {
    pub(crate) lock: Lock,
    check_interval: Interval,
    confirmation: Confirmation,
    /// Why the last check did not confirm the lock; `None` if it did.
    error: Option<ExtendError>,
    is_revoked: bool,
}

pub(crate) enum CheckResult {
    ValidUntil(Moment),
    /// The nodes say that the lock has ended.
    Lost,
}

impl LockRenewer {
    pub(crate) fn new(mut lock: Lock, ttl: Duration) -> Self {
        lock.renew();
        let mut check_interval = interval(ttl / CHECKS_PER_TTL);
        check_interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            lock,
            check_interval,
            confirmation: Confirmation::default(),
            error: None,
            is_revoked: false,
        }
    }

    /// The end of the validity.
    pub(crate) fn deadline(&self) -> Moment {
        // Reads the clock first: a pause between the two lines makes the deadline early, not late.
        let now = system::now();
        now.plus(self.lock.remaining())
    }

    /// Waits for the next check. Never returns again after [`CheckResult::Lost`].
    ///
    /// # Cancel safety
    /// Dropping the future loses no result.
    pub(crate) async fn next(&mut self) -> CheckResult {
        if self.confirmation.is_lost() {
            return pending().await;
        }
        self.check_interval.tick().await;
        let checked = match self.lock.ownership() {
            Ownership::Held(_) => Ok(()),
            // An extension now may succeed sooner than the next renewal in the background, and its
            // error has the answer of each node.
            Ownership::Uncertain(_) | Ownership::Lost => self.lock.extend().await,
        };
        let check = match &checked {
            Ok(()) => LockCheck::Confirmed,
            Err(ExtendError::Revoked { .. }) => LockCheck::Revoked,
            Err(ExtendError::Lost { .. }) => LockCheck::Lost,
            Err(_) => LockCheck::Unconfirmed,
        };
        self.error = checked.err();
        let left = time(self.lock.remaining());
        match self.confirmation.handle_check(check) {
            Some(LockCheck::Confirmed) => say_in_background("the lock is confirmed again".into()),
            Some(LockCheck::Unconfirmed) => {
                say_in_background(format!("cannot confirm the lock, {left} left"));
            }
            Some(LockCheck::Revoked) => {
                self.is_revoked = true;
                let on = match &self.error {
                    Some(ExtendError::Revoked { nodes }) => revoked_nodes(nodes).collect(),
                    _ => Vec::new(),
                };
                let on = on.join(", ");
                say_in_background(format!(
                    "an operator revoked the lock on {on}: it ends in {left}, and the command is stopped before that"
                ));
            }
            Some(LockCheck::Lost) => return CheckResult::Lost,
            None => {}
        }
        CheckResult::ValidUntil(self.deadline())
    }

    pub(crate) fn reason(&self) -> String {
        match &self.error {
            // Later errors of the nodes are only consequences of the revocation.
            _ if self.is_revoked => "an operator revoked the lock".into(),
            Some(error) => error.to_string(),
            None => {
                "the lock was not extended in time: the quorlock process may have been suspended"
                    .into()
            }
        }
    }
}

pub(crate) fn revoked_nodes(nodes: &NodeAnswers) -> impl Iterator<Item = &str> {
    let revoked = nodes.failed().filter(|(_, error)| matches!(error, NodeError::Revoked { .. }));
    revoked.map(|(node, _)| node)
}
