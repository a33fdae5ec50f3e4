//! The clients that compete for a lock.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use futures_util::future::join_all;
use quorlock_client::{Lock, Quorum, ReleaseError, Released};
use redis::aio::MultiplexedConnection;
use redis::{Script, cmd};
use rslock::{LockGuard, LockManager};
use tokio::time::sleep;

use crate::quorum::{connect_rslock, open};
use crate::server_time::COMPARE_AND_DELETE;

/// Ttl of each lock, longer than any hold.
const TTL: Duration = Duration::from_secs(20);
/// Limit of Quorlock's waits, longer than any that occurs.
const WAIT_MAX: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Quorlock, which waits on a server
    Quorlock,
    /// `rslock` with its default retries, after 0 to 200 ms
    Rslock,
    /// A client that polls as `node-redlock` does by default, after 100 to 300 ms
    Polling,
}

/// A client with its own connections. All clients set `TCP_NODELAY`.
#[derive(Clone)]
pub(crate) enum Contender {
    Quorlock(Quorum),
    Rslock(LockManager),
    Polling(Polling),
}

/// A lock that a [`Contender`] holds.
pub(crate) enum Held {
    Quorlock(Box<Lock>),
    Rslock(LockGuard),
    Polling(Polled),
}

impl Contender {
    /// Connects to all nodes, and acquires a lock on them once.
    pub(crate) async fn connect(kind: Kind, urls: &[String]) -> anyhow::Result<Self> {
        let contender = match kind {
            Kind::Quorlock => Self::Quorlock(Quorum::connect(urls).await?),
            Kind::Rslock => Self::Rslock(connect_rslock(urls.to_vec())?),
            Kind::Polling => Self::Polling(Polling::connect(urls).await?),
        };
        let warm_up_key = format!("warm-up:{:032x}", rand::random::<u128>());
        contender.acquire(&warm_up_key).await?.release().await?;
        Ok(contender)
    }

    pub(crate) async fn acquire(&self, key: &str) -> anyhow::Result<Held> {
        Ok(match self {
            Self::Quorlock(quorum) => {
                Held::Quorlock(Box::new(quorum.lock(key).ttl(TTL).wait(WAIT_MAX).acquire().await?))
            }
            Self::Rslock(manager) => Held::Rslock(
                manager.acquire(key, TTL).await.context("rslock could not acquire the lock")?,
            ),
            Self::Polling(polling) => Held::Polling(polling.acquire(key).await?),
        })
    }

    /// Waits up to 10 s for all nodes to confirm the background releases, if the client has any.
    pub(crate) async fn close(self) {
        if let Self::Quorlock(quorum) = self {
            let _ = quorum.flush(Duration::from_secs(10)).await;
        }
    }
}

impl Held {
    /// Returns the fence, or 0 for a client without fences.
    pub(crate) fn fence(&self) -> u64 {
        match self {
            Self::Quorlock(lock) => lock.fence().get(),
            Self::Rslock(_) | Self::Polling(_) => 0,
        }
    }

    /// Releases the lock. An unconfirmed release goes on in the background, and delays the next
    /// grant.
    pub(crate) async fn release(self) -> anyhow::Result<()> {
        match self {
            Self::Quorlock(lock) => match lock.release().await {
                Ok(Released::Released) | Err(ReleaseError::NoQuorum { .. }) => {}
                Ok(Released::AlreadyOver) => bail!("the lock ended before it was released"),
                Err(error) => return Err(error.into()),
            },
            Self::Rslock(guard) => guard.release().await,
            Self::Polling(polled) => polled.release().await,
        }
        Ok(())
    }
}

/// `node-redlock`'s `retryDelay`.
const RETRY_DELAY_MS: u64 = 200;
/// `node-redlock`'s `retryJitter`: the delay is up to this much shorter or longer.
const RETRY_JITTER_MS: u64 = 100;

#[derive(Clone)]
pub(crate) struct Polling {
    nodes: Vec<MultiplexedConnection>,
    delete: Script,
}

/// A lock that a [`Polling`] client holds.
pub(crate) struct Polled {
    client: Polling,
    key: String,
    token: String,
}

impl Polling {
    async fn connect(urls: &[String]) -> anyhow::Result<Self> {
        let delete = Script::new(COMPARE_AND_DELETE);
        let mut nodes = Vec::new();
        for url in urls {
            let mut node = open(url.clone())?.get_multiplexed_async_connection().await?;
            delete.load_async(&mut node).await?;
            nodes.push(node);
        }
        Ok(Self { nodes, delete })
    }

    /// Requests the lock from all nodes. Without a majority, releases it on all nodes, waits 100
    /// to 300 ms, and begins again.
    async fn acquire(&self, key: &str) -> anyhow::Result<Polled> {
        let ttl_ms = u64::try_from(TTL.as_millis()).context("the ttl is too large")?;
        loop {
            let token = format!("{:032x}", rand::random::<u128>());
            let requests = self.nodes.iter().cloned().map(|mut node| {
                let set = cmd("SET").arg(key).arg(&token).arg("NX").arg("PX").arg(ttl_ms).take();
                async move { set.query_async::<Option<String>>(&mut node).await }
            });
            let granted = join_all(requests)
                .await
                .into_iter()
                .filter(|answer| matches!(answer, Ok(Some(_))))
                .count();
            let lock = Polled { client: self.clone(), key: key.to_owned(), token };
            if granted > self.nodes.len() / 2 {
                return Ok(lock);
            }
            lock.release().await;
            let pause_ms = rand::random_range(
                RETRY_DELAY_MS - RETRY_JITTER_MS..=RETRY_DELAY_MS + RETRY_JITTER_MS,
            );
            sleep(Duration::from_millis(pause_ms)).await;
        }
    }
}

impl Polled {
    /// Returns when all nodes have answered.
    async fn release(self) {
        let Self { client, key, token } = &self;
        let requests = client.nodes.iter().cloned().map(|mut node| async move {
            client.delete.key(key).arg(token).invoke_async::<u64>(&mut node).await
        });
        // The key expires on a node that does not answer.
        let _ = join_all(requests).await;
    }
}
