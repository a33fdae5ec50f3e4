//! Who competes for a lock.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use quorlock_client::{Lock, Quorum, ReleaseError, Released};
use rslock::{LockGuard, LockManager};

use super::polling::{Polled, Polling};
use crate::quorum::connect_rslock;

/// How long a lock lasts if it is not released: longer than anybody here holds one.
const TTL: Duration = Duration::from_secs(20);
/// How patient everybody is: longer than anybody here waits.
const PATIENCE: Duration = Duration::from_secs(120);

/// Which client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Ours, which waits on a server
    Quorlock,
    /// `rslock`, with the retries it makes unless told otherwise: after 0 to 200 ms
    Rslock,
    /// One that polls as `node-redlock` does unless told otherwise: after 100 to 300 ms
    Polling,
}

/// A client with connections of its own. All of them set `TCP_NODELAY`.
#[derive(Clone)]
pub(crate) enum Contender {
    Quorlock(Quorum),
    Rslock(LockManager),
    Polling(Polling),
}

/// A lock that one of them holds.
pub(crate) enum Held {
    Quorlock(Box<Lock>),
    Rslock(LockGuard),
    Polling(Polled),
}

impl Contender {
    /// Connects to all nodes, and takes a lock of its own there, once.
    pub(crate) async fn connect(kind: Kind, urls: &[String]) -> anyhow::Result<Self> {
        let contender = match kind {
            Kind::Quorlock => Self::Quorlock(Quorum::connect(urls).await?),
            Kind::Rslock => Self::Rslock(connect_rslock(urls.to_vec())?),
            Kind::Polling => Self::Polling(Polling::connect(urls).await?),
        };
        let own = format!("warm-up:{:032x}", rand::random::<u128>());
        contender.acquire(&own).await?.release().await?;
        Ok(contender)
    }

    pub(crate) async fn acquire(&self, key: &str) -> anyhow::Result<Held> {
        Ok(match self {
            Self::Quorlock(quorum) => {
                Held::Quorlock(Box::new(quorum.lock(key).ttl(TTL).wait(PATIENCE).acquire().await?))
            }
            Self::Rslock(manager) => Held::Rslock(manager.acquire(key, TTL).await.context("rslock")?),
            Self::Polling(polling) => Held::Polling(polling.acquire(key, TTL).await?),
        })
    }

    /// Leaves nothing behind, as far as the client sees to that.
    pub(crate) async fn close(self) {
        if let Self::Quorlock(quorum) = self {
            let _ = quorum.flush(Duration::from_secs(10)).await;
        }
    }
}

impl Held {
    /// The fence, or 0 where there are none.
    pub(crate) fn fence(&self) -> u64 {
        match self {
            Self::Quorlock(lock) => lock.fence().get(),
            Self::Rslock(_) | Self::Polling(_) => 0,
        }
    }

    /// One that is not confirmed in time goes on in the background: then the next one's grant is late, which counts.
    pub(crate) async fn release(self) -> anyhow::Result<()> {
        match self {
            Self::Quorlock(lock) => match lock.release().await {
                Ok(Released::Released) | Err(ReleaseError::NoQuorum { .. }) => {}
                Ok(Released::AlreadyOver) => bail!("a lock had ended before it was released"),
                Err(error) => return Err(error.into()),
            },
            Self::Rslock(guard) => guard.release().await,
            Self::Polling(polled) => polled.release().await,
        }
        Ok(())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quorlock => "Quorlock",
            Self::Rslock => "rslock 0.10",
            Self::Polling => "polling",
        })
    }
}
