//! Waiting on one node, where the lock is, until it is handed over.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use quorlock_core::Fence;
use quorlock_core::quorum::Moment;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::attempt::Wanted;
use crate::keys::Keys;
use crate::node::{Question, Reply};
use crate::quorum::Shared;
use crate::release::Undo;
use crate::token::Token;
use crate::{NodeError, clock};

/// How often it is looked whether the node is still there.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a node may take to show that it is.
const LIVENESS_LIMIT: Duration = Duration::from_millis(500);
/// How long a node may be late with the news that the wait is over, before it is not listened to any more.
const GRACE: Duration = Duration::from_millis(20);
/// After the waiting was given up, the first pause before the node is told so again; it doubles.
const LEAVE_PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest such pause.
const LEAVE_PAUSE_MAX: Duration = Duration::from_millis(500);

/// What a wait came to.
pub(crate) enum Waited {
    /// This node granted the lock, which is held there now.
    Granted(Granted),
    /// The time is over.
    TimedOut,
    /// The node does not let anybody wait.
    Refused(NodeError),
    /// The node is gone, or does not answer.
    Gone(NodeError),
}

pub(crate) struct Granted {
    pub(crate) token: Token,
    pub(crate) fence: Fence,
    pub(crate) sent: Moment,
    /// By the node's clock.
    pub(crate) waited: Duration,
    /// Which start of the server was asked.
    pub(crate) incarnation: u64,
}

/// A wait on its way. Dropped before its end, it leaves the queue from a background task.
struct Wait {
    shared: Arc<Shared>,
    node: usize,
    keys: Keys,
    token: Token,
    lasts: Duration,
    answer: Option<BoxFuture<'static, Reply>>,
}

/// Waits until `until`, or without end.
pub(crate) async fn wait(
    shared: &Arc<Shared>,
    wanted: &Wanted,
    token: Token,
    node: usize,
    until: Option<Instant>,
) -> Waited {
    let room = shared.nodes[node].waiting_room();
    let sitting_down = async {
        match until {
            Some(until) => tokio::time::timeout_at(until, room.sit_down()).await.ok(),
            None => Some(room.sit_down().await),
        }
    };
    let place = match sitting_down.await {
        Some(Ok(place)) => place,
        Some(Err(error)) => return Waited::Gone(error),
        None => return Waited::TimedOut,
    };
    let wait = until.map_or(Question::WAIT_MAX, |until| until.saturating_duration_since(Instant::now()));
    let question = Question::wait(
        &wanted.keys,
        &token,
        wanted.ttl,
        wait,
        shared.propose_fence(),
        wanted.owner.as_deref(),
    );
    let mut wait = Wait {
        shared: Arc::clone(shared),
        node,
        keys: wanted.keys.clone(),
        token: token.clone(),
        lasts: wanted.ttl.duration(),
        answer: None,
    };
    let incarnation = shared.nodes[node].incarnation();
    // Before the first byte is sent.
    let sent = clock::now();
    wait.answer = Some(place.ask(question).boxed());
    match wait.run(until).await {
        Ok(Reply::Granted { fence, waited }) => {
            Waited::Granted(Granted { token, fence, sent, waited, incarnation })
        }
        Ok(Reply::No) => Waited::TimedOut,
        Ok(Reply::Failed(error @ NodeError::Down { .. })) => Waited::Gone(error),
        Ok(Reply::Failed(error)) => Waited::Refused(error),
        Ok(Reply::Yes(_)) => Waited::Refused(NodeError::Nonsense),
        Err(gone) => gone,
    }
}

impl Wait {
    /// The node's answer, or that it is gone, or that the time is over.
    async fn run(&mut self, until: Option<Instant>) -> Result<Reply, Waited> {
        let too_late = async {
            match until {
                Some(until) => sleep_until(until + GRACE).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(too_late);
        let node = self.shared.nodes[self.node].clone();
        let gone = async {
            loop {
                sleep(LOOK_EVERY).await;
                if let Err(error) = node.is_there(LIVENESS_LIMIT).await {
                    return error;
                }
            }
        };
        tokio::pin!(gone);
        let answer = self.answer.as_mut().expect("set before it runs");
        tokio::select! {
            biased;
            reply = answer => {
                self.answer = None;
                Ok(reply)
            }
            () = &mut too_late => Err(Waited::TimedOut),
            error = &mut gone => Err(Waited::Gone(error)),
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let Some(answer) = self.answer.take() else { return };
        let (shared, node, lasts) = (Arc::clone(&self.shared), self.node, self.lasts);
        let (keys, token) = (self.keys.clone(), self.token.clone());
        self.shared.spawn(async move { leave(shared, node, keys, token, lasts, answer).await });
    }
}

/// Leaves the queue. RELEASE takes a waiter out, but it goes through another connection and may get there first; so it
/// is repeated until the wait has been answered. What was granted in the meantime is given back.
async fn leave(
    shared: Arc<Shared>,
    node: usize,
    keys: Keys,
    token: Token,
    lasts: Duration,
    mut answer: BoxFuture<'static, Reply>,
) {
    let release = Question::release(&keys, &token);
    let until = Instant::now() + lasts;
    let mut pause = LEAVE_PAUSE_MIN;
    let reply = loop {
        if let Ok(connection) = shared.nodes[node].connection() {
            // Its answer is of no interest: that of the wait is.
            let _ = timeout(pause, connection.ask(&release)).await;
        }
        match timeout(pause, &mut answer).await {
            Ok(reply) => break Some(reply),
            Err(_) if Instant::now() >= until => break None,
            Err(_) => pause = (pause * 2).min(LEAVE_PAUSE_MAX),
        }
    };
    // A connection that is closed is a place that is free.
    drop(answer);
    if !matches!(reply, Some(Reply::No)) {
        Undo::on(&shared, node, &keys, &token, lasts).spawn();
    }
}
