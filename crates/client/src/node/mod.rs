//! One node: its address, its connection, and what it is asked.

mod asked;
mod link;
mod question;
mod roll;
mod waiting;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::{Client, Pipeline, RedisError};
pub(crate) use asked::Asked;
pub(crate) use link::{Connection, Link};
pub(crate) use question::{Question, Reply};
use quorlock_core::quorum::Pursuit;
pub(crate) use roll::Roll;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use waiting::WaitingRoom;

use crate::NodeError;

/// A node, as the client sees it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Node(Arc<Inner>);

struct Inner {
    name: Box<str>,
    link: Link,
    waiting_room: Arc<WaitingRoom>,
    /// Until when it comes last of those that are asked first.
    late_until: Mutex<Option<Instant>>,
}

/// Whether, and how, an ACQUIRE was sent to a node.
pub(crate) type Reached = crate::reach::Reached<Connection>;

impl Node {
    /// A node that is asked through `link`, and of which `client` makes further connections for those who wait.
    pub(crate) fn new(name: &str, link: Link, client: Option<Client>) -> Self {
        let waiting_room = Arc::new(WaitingRoom::new(client));
        Self(Arc::new(Inner { name: name.into(), link, waiting_room, late_until: Mutex::default() }))
    }

    /// It takes longer than others.
    pub(crate) fn set_late(&self) {
        *self.late_until() = Some(Instant::now() + Pursuit::LATE_FOR);
    }

    /// Whether that was so a moment ago.
    pub(crate) fn was_late(&self) -> bool {
        self.late_until().is_some_and(|until| Instant::now() < until)
    }

    fn late_until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.late_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn waiting_room(&self) -> &Arc<WaitingRoom> {
        &self.0.waiting_room
    }

    /// What names the server behind this node, the same for all clients; its address until that is known.
    pub(crate) fn identity(&self) -> Arc<str> {
        self.0.link.identity().unwrap_or_else(|| (&*self.0.name).into())
    }

    /// Which start of the server this is, as far as this client has seen: what a server said before it was started again
    /// need not hold any more.
    pub(crate) fn incarnation(&self) -> u64 {
        self.0.link.incarnation()
    }

    /// Whether the node answers at all.
    pub(crate) async fn is_there(&self, limit: Duration) -> Result<(), NodeError> {
        let connection = self.connection()?;
        match timeout(limit, connection.send(&::redis::cmd("PING"))).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(question::read_error(&error)),
            Err(_) => Err(NodeError::timed_out(limit)),
        }
    }

    /// For people: the address, without any password.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// Connects, and connects again whenever the connection breaks or does not answer, until told to stop.
    pub(crate) async fn keep_connected(&self, client: &Client, stop: CancellationToken) {
        self.0.link.keep_connected(client, stop).await;
    }

    /// Looks, until told to stop, whether the server that a ready connection leads to can have a vote.
    pub(crate) async fn watch_ready(&self, stop: CancellationToken) {
        self.0.link.watch_ready(stop).await;
    }

    /// Waits, for so long at most, until it is known whether the node can be reached.
    pub(crate) async fn settled(&self, limit: Duration) {
        self.0.link.settled(limit).await;
    }

    /// Whether there can be connections on which somebody waits.
    pub(crate) fn lets_wait(&self) -> bool {
        self.0.waiting_room.has_seats()
    }

    /// Whether there is a connection now.
    pub(crate) fn is_connected(&self) -> bool {
        self.0.link.is_up()
    }

    /// The connection as it is now. What is sent through one connection arrives in that order, so whoever must undo
    /// something asks through the connection that did it.
    pub(crate) fn connection(&self) -> Result<Connection, NodeError> {
        self.0.link.connection()
    }
}

/// Asks through a connection, if there is one.
pub(crate) async fn ask(connection: Result<Connection, NodeError>, question: &Question) -> Reply {
    match connection {
        Ok(connection) => connection.ask(question).await,
        Err(error) => Reply::Failed(error),
    }
}

impl Connection {
    /// Asks a question, which is sent at the first poll.
    pub(crate) async fn ask(&self, question: &Question) -> Reply {
        match self.send(&question.command).await {
            Ok(value) => question.read(value),
            Err(error) => Reply::Failed(self.failed(&error)),
        }
    }

    /// Asks many questions at once, each of which is answered by a fence or nil. They are sent at the first poll.
    pub(crate) async fn ask_fences(&self, questions: &Pipeline) -> Vec<Reply> {
        let count = questions.len();
        match self.send_all(questions).await {
            Ok(values) if values.len() == count => values.into_iter().map(question::read_fence).collect(),
            Ok(_) => vec![Reply::Failed(NodeError::Nonsense); count],
            Err(error) => vec![Reply::Failed(self.failed(&error)); count],
        }
    }

    fn failed(&self, error: &RedisError) -> NodeError {
        if error.is_unrecoverable_error() || error.is_io_error() {
            self.broken();
        }
        question::read_error(error)
    }
}
