use std::time::Duration;

use redis::{Client, Cmd, Connection, FromRedisValue, RedisError, RedisResult};

/// A blocking connection to a node. After a timeout or a lost connection, the next call opens a new
/// one.
pub(crate) struct NodeConnection {
    client: Client,
    connection: Option<Connection>,
    limit: Duration,
}

impl NodeConnection {
    /// Opens no connections yet. `limit` applies to connecting, and to each answer.
    pub(crate) fn all(urls: &[String], limit: Duration) -> RedisResult<Vec<Self>> {
        urls.iter()
            .map(|url| Ok(Self { client: Client::open(url.as_str())?, connection: None, limit }))
            .collect()
    }

    pub(crate) fn call<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.client.get_connection_with_timeout(self.limit)?,
        };
        connection.set_read_timeout(Some(self.limit))?;
        let answer = command.query(&mut connection);
        // After a timeout, the next call would read the late answer as its own.
        if !answer.as_ref().is_err_and(RedisError::is_io_error) {
            self.connection = Some(connection);
        }
        answer
    }
}
