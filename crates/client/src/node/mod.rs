//! One node: its address, its connection, and what it is asked.

mod link;
mod question;

use std::sync::Arc;
use std::time::Duration;

use ::redis::Client;
use ::redis::aio::ConnectionLike;
use futures_util::future::BoxFuture;
pub(crate) use link::{Connection, Link};
pub(crate) use question::{Question, Reply};
use tokio_util::sync::CancellationToken;

/// A node, as the client sees it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Node {
    name: Arc<str>,
    link: Arc<Link>,
}

/// A question on its way: which node, and what came of it.
pub(crate) type Asked = BoxFuture<'static, (usize, Reply)>;

impl Node {
    pub(crate) fn new(name: &str, link: Link) -> Self {
        Self { name: name.into(), link: Arc::new(link) }
    }

    /// For people: the address, without any password.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Connects, and connects again whenever the connection breaks, until told to stop.
    pub(crate) async fn keep_connected(&self, client: &Client, stop: CancellationToken) {
        self.link.keep_connected(client, stop).await;
    }

    /// Waits, for so long at most, until it is known whether the node can be reached.
    pub(crate) async fn settled(&self, limit: Duration) {
        self.link.settled(limit).await;
    }

    /// The connection as it is now. What is sent through one connection arrives in that order, so whoever must undo
    /// something asks through the connection that did it.
    pub(crate) fn connection(&self) -> Result<Connection, crate::NodeError> {
        self.link.connection()
    }

    /// Asks through a connection. The question is sent at the first poll.
    pub(crate) async fn ask(&self, connection: Connection, question: &Question) -> Reply {
        let mut connection = connection;
        match connection.handle.req_packed_command(&question.command).await {
            Ok(value) => question.read(value),
            Err(error) => {
                if error.is_unrecoverable_error() || error.is_io_error() {
                    self.link.broken(connection.generation);
                }
                Reply::Failed(question::read_error(&error))
            }
        }
    }
}
