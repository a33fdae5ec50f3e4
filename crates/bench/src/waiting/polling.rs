//! A client that asks again and again, as `node-redlock` and most other Redlock libraries do.

use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::join_all;
use rand::RngExt as _;
use redis::aio::MultiplexedConnection;
use redis::{Script, cmd};
use tokio::time::sleep;

use crate::quorum::open;
use crate::server_time::COMPARE_AND_DELETE;

/// `node-redlock`'s `retryDelay`.
const RETRY_DELAY_MS: u64 = 200;
/// `node-redlock`'s `retryJitter`: that much more or less.
const RETRY_JITTER_MS: u64 = 100;

/// One client and its connections.
#[derive(Clone)]
pub(crate) struct Polling {
    nodes: Vec<MultiplexedConnection>,
    delete: Script,
}

/// A lock.
pub(crate) struct Polled {
    client: Polling,
    key: String,
    token: String,
}

impl Polling {
    pub(crate) async fn connect(urls: &[String]) -> anyhow::Result<Self> {
        let delete = Script::new(COMPARE_AND_DELETE);
        let mut nodes = Vec::new();
        for url in urls {
            let mut node = open(url.clone())?.get_multiplexed_async_connection().await?;
            delete.load_async(&mut node).await?;
            nodes.push(node);
        }
        Ok(Self { nodes, delete })
    }

    /// Asks all nodes, releases all nodes if that was no majority, waits for some 200 ms, and asks again.
    pub(crate) async fn acquire(&self, key: &str, ttl: Duration) -> anyhow::Result<Polled> {
        let ttl_ms = u64::try_from(ttl.as_millis()).context("such a ttl is not to be had")?;
        loop {
            let token = format!("{:032x}", rand::rng().random::<u128>());
            let asked = self.nodes.iter().cloned().map(|mut node| {
                let set = cmd("SET").arg(key).arg(&token).arg("NX").arg("PX").arg(ttl_ms).take();
                async move { set.query_async::<Option<String>>(&mut node).await }
            });
            let granted =
                join_all(asked).await.into_iter().filter(|answer| matches!(answer, Ok(Some(_)))).count();
            let lock = Polled { client: self.clone(), key: key.to_owned(), token };
            if granted > self.nodes.len() / 2 {
                return Ok(lock);
            }
            lock.release().await;
            let pause_ms =
                rand::rng().random_range(RETRY_DELAY_MS - RETRY_JITTER_MS..=RETRY_DELAY_MS + RETRY_JITTER_MS);
            sleep(Duration::from_millis(pause_ms)).await;
        }
    }
}

impl Polled {
    /// Returns when all nodes have answered.
    pub(crate) async fn release(self) {
        let Self { client, key, token } = &self;
        let asked = client.nodes.iter().cloned().map(|mut node| async move {
            client.delete.key(key).arg(token).invoke_async::<u64>(&mut node).await
        });
        // A node that does not answer lets the key expire.
        let _ = join_all(asked).await;
    }
}
