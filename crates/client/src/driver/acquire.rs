//! Going after a lock until it is held or the time is over: carries out what [`Pursuit`] decides.

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::quorum::{Ended, Loss, Move, Pursuit};
use rand::RngExt as _;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{Instrument as _, Span};

use crate::attempt::{self, Failure, Wanted};
use crate::quorum::Shared;
use crate::slots::Turn;
use crate::token::Token;
use crate::wait::{Waited, wait};
use crate::{AcquireError, Answer, Lock, NodeError, Nodes};

/// How far an attempt may go beyond the end of the wait.
const LAST_ATTEMPT_LIMIT: Duration = Duration::from_millis(40);

/// Acquires a lock by `until`, or whenever it can be had.
pub(crate) async fn acquire(
    shared: &Arc<Shared>,
    wanted: &Wanted,
    started: Instant,
    until: Option<Instant>,
) -> Result<Lock, AcquireError> {
    let turn = shared.slots.turn(&wanted.keys);
    let turn = match until {
        Some(until) => timeout_at(until, turn).await.ok(),
        None => Some(turn.await),
    };
    let Some(turn) = turn else {
        return Err(AcquireError::TimedOut { waited: started.elapsed(), nodes: Nodes(Vec::new()) });
    };
    let chase = Chase { shared, wanted, until, started, turn: &turn, attempts: 0, last: None };
    chase.run().await
}

struct Chase<'a> {
    shared: &'a Arc<Shared>,
    wanted: &'a Wanted,
    until: Option<Instant>,
    started: Instant,
    turn: &'a Turn,
    /// How many attempts there have been, waits included.
    attempts: u32,
    /// Why the last attempt failed, and what the nodes said.
    last: Option<(Loss, Nodes)>,
}

/// Why a wait has not come to a lock.
enum NoLock {
    TimedOut,
    Refused(NodeError),
    Gone(NodeError),
    /// It was granted on the node, but not on enough others.
    Lost(Failure),
}

impl Chase<'_> {
    async fn run(mut self) -> Result<Lock, AcquireError> {
        let shared = self.shared;
        let contended = self.turn.contended();
        // In what order the nodes come matters only to those who wait, or are refused.
        let failed = if contended {
            None
        } else {
            match self.ask_all().await? {
                Ok(lock) => return Ok(lock),
                Err(failure) => Some(failure),
            }
        };
        let mut pursuit = Pursuit::new(shared.order(self.wanted.keys.first()), shared.round_trip());
        let mut next = match failed {
            Some(failure) => self.lost(&mut pursuit, failure, None).await,
            None => pursuit.first(contended),
        };
        loop {
            if self.time_is_up() {
                return Err(self.gave_up());
            }
            next = match next {
                Move::AskAll => match self.ask_all().await? {
                    Ok(lock) => return Ok(lock),
                    Err(failure) => self.lost(&mut pursuit, failure, None).await,
                },
                Move::WaitOn { node } => match self.wait_on(node, &pursuit).await? {
                    Ok(lock) => return Ok(lock),
                    Err(NoLock::Lost(failure)) => self.lost(&mut pursuit, failure, Some(node)).await,
                    Err(NoLock::TimedOut) => pursuit.next(Ended::NotWaited),
                    Err(NoLock::Refused(error)) => {
                        self.cannot_wait(node, error);
                        pursuit.next(Ended::NotWaited)
                    }
                    Err(NoLock::Gone(error)) => {
                        self.cannot_wait(node, error);
                        pursuit.next(Ended::NodeGone)
                    }
                },
                Move::Pause { at_most } => {
                    self.pause(at_most).await;
                    pursuit.resume()
                }
            };
        }
    }

    async fn ask_all(&mut self) -> Result<Result<Lock, Failure>, AcquireError> {
        let (limit, span) = (self.node_limit(), self.span());
        // It may turn out that it is before anybody hears of the lock.
        self.set_contended(false);
        attempt::attempt(self.shared, self.wanted, limit).instrument(span).await
    }

    fn set_contended(&self, contended: bool) {
        self.turn.set_contended(contended);
    }

    /// For observers: the attempt that begins now.
    fn span(&mut self) -> Span {
        self.attempts += 1;
        tracing::debug_span!("attempt", attempt = self.attempts)
    }

    async fn wait_on(
        &mut self,
        node: usize,
        pursuit: &Pursuit,
    ) -> Result<Result<Lock, NoLock>, AcquireError> {
        let span = self.span();
        tracing::debug!(parent: &span, node = self.shared.nodes[node].name(), "waiting");
        // On the heap: it is much larger than the rest, and most locks are had without.
        Box::pin(self.wait(node, pursuit)).instrument(span).await
    }

    /// Waits on a node, and takes the others when it grants.
    async fn wait(&self, node: usize, pursuit: &Pursuit) -> Result<Result<Lock, NoLock>, AcquireError> {
        self.set_contended(true);
        let token = Token::random().map_err(attempt::no_token)?;
        let granted = match wait(self.shared, self.wanted, token, node, self.until).await {
            Waited::Granted(granted) => granted,
            Waited::TimedOut => return Ok(Err(NoLock::TimedOut)),
            Waited::Refused(error) => return Ok(Err(NoLock::Refused(error))),
            Waited::Gone(error) => return Ok(Err(NoLock::Gone(error))),
        };
        self.set_contended(!granted.waited.is_zero());
        let limit = self.node_limit();
        let rest = attempt::attempt_after_wait(self.shared, self.wanted, node, granted, pursuit, limit);
        Ok(rest.await.map_err(NoLock::Lost))
    }

    /// Where to go from an attempt that was lost, after a wait on a node if there was one.
    async fn lost(&mut self, pursuit: &mut Pursuit, mut failure: Failure, waited_on: Option<usize>) -> Move {
        while let Some(node) = pursuit.to_hear(&failure.heard) {
            failure.hear(node).await;
        }
        let heard = &failure.heard;
        let next = pursuit.next(match waited_on {
            None => Ended::Lost { heard },
            Some(node) => Ended::LostAfterWait { node, heard },
        });
        self.last = Some((failure.loss, failure.nodes));
        next
    }

    fn cannot_wait(&mut self, node: usize, error: NodeError) {
        tracing::debug!(node = self.shared.nodes[node].name(), %error, "cannot wait there");
        if let Some((_, nodes)) = &mut self.last {
            nodes.0[node].answer = Answer::Failed(error);
        }
    }

    /// The first attempt takes its time. Those after it, and after a wait, do not go far beyond the end of the wait.
    fn node_limit(&self) -> Duration {
        match self.until {
            Some(until) if self.attempts > 0 => {
                let left = until.saturating_duration_since(Instant::now()).max(LAST_ATTEMPT_LIMIT);
                self.wanted.node_limit.min(left)
            }
            _ => self.wanted.node_limit,
        }
    }

    async fn pause(&self, at_most: Duration) {
        // Two that start together must not go on together. The last attempt is at the very end.
        let again = Instant::now() + rand::rng().random_range(at_most / 2..=at_most);
        sleep_until(self.until.map_or(again, |until| until.min(again))).await;
    }

    fn time_is_up(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// The wait is over.
    fn gave_up(self) -> AcquireError {
        match self.last {
            Some((Loss::NoQuorum, nodes)) => AcquireError::NoQuorum { nodes },
            Some((Loss::TooLate, nodes)) => AcquireError::Expired { nodes },
            Some((Loss::Held, nodes)) => AcquireError::TimedOut { waited: self.started.elapsed(), nodes },
            None => AcquireError::TimedOut { waited: self.started.elapsed(), nodes: Nodes(Vec::new()) },
        }
    }
}
