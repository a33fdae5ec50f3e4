//! One node: its address, its connection, and what it is asked.

mod link;
mod question;
mod roll;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::ConnectionLike;
use ::redis::{Client, Pipeline, RedisError};
use futures_util::future::BoxFuture;
pub(crate) use link::{Connection, Link};
pub(crate) use question::{Question, Reply};
pub(crate) use roll::Roll;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use waiting::WaitingRoom;

use crate::NodeError;

/// A node, as the client sees it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Node {
    name: Arc<str>,
    link: Arc<Link>,
    waiting_room: Arc<WaitingRoom>,
}

/// Whether, and how, an ACQUIRE was sent to a node.
pub(crate) type Reached = crate::reach::Reached<Connection>;

/// A question on its way: which node, and what came of it.
pub(crate) type Asked = BoxFuture<'static, (usize, Reply)>;

impl Node {
    /// A node that is asked through `link`, and of which `client` makes further connections for those who wait.
    pub(crate) fn new(name: &str, link: Link, client: Option<Client>) -> Self {
        Self { name: name.into(), link: Arc::new(link), waiting_room: Arc::new(WaitingRoom::new(client)) }
    }

    pub(crate) fn waiting_room(&self) -> &Arc<WaitingRoom> {
        &self.waiting_room
    }

    /// What names the server behind this node, the same for all clients; its address until that is known.
    pub(crate) fn identity(&self) -> Arc<str> {
        self.link.identity().unwrap_or_else(|| Arc::clone(&self.name))
    }

    /// Which start of the server this is, as far as this client has seen: what a server said before it was started again
    /// need not hold any more.
    pub(crate) fn incarnation(&self) -> u64 {
        self.link.incarnation()
    }

    /// Whether the node answers at all.
    pub(crate) async fn is_there(&self, limit: Duration) -> Result<(), NodeError> {
        let mut connection = self.connection()?;
        match timeout(limit, connection.handle.req_packed_command(&::redis::cmd("PING"))).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(question::read_error(&error)),
            Err(_) => {
                Err(NodeError::TimedOut { limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX) })
            }
        }
    }

    /// For people: the address, without any password.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Connects, and connects again whenever the connection breaks or does not answer, until told to stop.
    pub(crate) async fn keep_connected(&self, client: &Client, stop: CancellationToken) {
        self.link.keep_connected(client, stop).await;
    }

    /// Looks, until told to stop, whether the server that a ready connection leads to can have a vote.
    pub(crate) async fn watch_ready(&self, stop: CancellationToken) {
        self.link.watch_ready(stop).await;
    }

    /// Waits, for so long at most, until it is known whether the node can be reached.
    pub(crate) async fn settled(&self, limit: Duration) {
        self.link.settled(limit).await;
    }

    /// The connection as it is now. What is sent through one connection arrives in that order, so whoever must undo
    /// something asks through the connection that did it.
    pub(crate) fn connection(&self) -> Result<Connection, NodeError> {
        self.link.connection()
    }

    /// Asks through a connection. The question is sent at the first poll.
    pub(crate) async fn ask(&self, connection: Connection, question: &Question) -> Reply {
        let mut connection = connection;
        match connection.handle.req_packed_command(&question.command).await {
            Ok(value) => question.read(value),
            Err(error) => Reply::Failed(self.failed(&connection, &error)),
        }
    }

    /// Asks many questions at once, each of which is answered by a fence or nil. They are sent at the first poll.
    pub(crate) async fn ask_fences(&self, connection: Connection, questions: &Pipeline) -> Vec<Reply> {
        let (mut connection, count) = (connection, questions.len());
        match connection.handle.req_packed_commands(questions, 0, count).await {
            Ok(values) if values.len() == count => values.into_iter().map(question::read_fence).collect(),
            Ok(_) => vec![Reply::Failed(NodeError::Nonsense); count],
            Err(error) => vec![Reply::Failed(self.failed(&connection, &error)); count],
        }
    }

    fn failed(&self, connection: &Connection, error: &RedisError) -> NodeError {
        if error.is_unrecoverable_error() || error.is_io_error() {
            self.link.broken(connection.generation);
        }
        question::read_error(error)
    }
}
