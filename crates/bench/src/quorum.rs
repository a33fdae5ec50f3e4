//! Acquire and release on three nodes, by one caller of [`rslock`] or of Quorlock.
//!
//! `rslock` waits for the answers of all nodes. Quorlock waits for two of the three answers, and
//! reads the third one when it arrives.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use quorlock_client::{AcquireError, Lock, LockBuilder, Quorum, Released};
use quorlock_testkit::{Masters, StartError};
use redis::{Client, IntoConnectionInfo as _, RedisResult};
use rslock::LockManager;

use crate::probes::Latencies;
use crate::report::{Progress, Row};

pub(crate) const NODES: usize = 3;
/// A ttl longer than any lock is held.
const TTL: Duration = Duration::from_secs(30);
/// How long a node may take to answer. `rslock` has the same limit: the default of redis-rs.
const NODE_TIMEOUT: Duration = Duration::from_millis(500);
/// Number of locks of each client in a round.
pub(crate) const LOCKS_PER_ROUND: usize = 10;

const ROUNDS: u64 = 400;
/// These rounds do not count, because connections open and scripts are loaded in them.
const WARM_UP_ROUNDS: u64 = 20;

pub(crate) const STEPS: u64 = ROUNDS + WARM_UP_ROUNDS;

/// Measures both clients on the same servers in turn.
pub(crate) async fn measure(progress: Progress) -> anyhow::Result<Vec<Row>> {
    progress.begin("acquire + release on three nodes");
    let masters = start_masters(NODES)?;
    let quorum = Quorum::connect(masters.urls()).await?;
    let rslock = connect_rslock(masters.urls())?;

    let (mut ours, mut theirs) = (Latencies::new(), Latencies::new());
    for round in 0..STEPS {
        if round == WARM_UP_ROUNDS {
            (ours, theirs) = (Latencies::new(), Latencies::new());
        }
        for _ in 0..LOCKS_PER_ROUND {
            ours.record(acquire_and_release(&quorum, "orders/42").await?);
        }
        for _ in 0..LOCKS_PER_ROUND {
            theirs.record(acquire_and_release_by_rslock(&rslock, "orders/42").await?);
        }
        progress.step();
    }
    Ok(vec![Row {
        case: "three nodes".into(),
        ours: ours.p50(),
        peer_name: "rslock 0.10",
        peer: theirs.p50(),
        target: Some(1.0),
    }])
}

/// Starts masters that listen on TCP.
pub(crate) fn start_masters(nodes: usize) -> Result<Masters, StartError> {
    Masters::start_with(nodes, |_, builder| builder.tcp())
}

/// Opens a client with `TCP_NODELAY`, as the client of Quorlock does.
pub(crate) fn open(url: String) -> RedisResult<Client> {
    let info = url.into_connection_info()?;
    let settings = info.tcp_settings().clone().set_nodelay(true);
    Client::open(info.set_tcp_settings(settings))
}

pub(crate) fn connect_rslock(urls: Vec<String>) -> anyhow::Result<LockManager> {
    let clients = urls.into_iter().map(open).collect::<Result<_, _>>()?;
    Ok(LockManager::from_clients(clients))
}

/// Returns the time to acquire and to release a lock, until both are confirmed.
pub(crate) async fn acquire_and_release(quorum: &Quorum, key: &str) -> anyhow::Result<Duration> {
    let started = Instant::now();
    acquire_and_release_with(&quorum.lock(key).ttl(TTL).node_timeout(NODE_TIMEOUT)).await?;
    Ok(started.elapsed())
}

/// Acquires and releases the lock that `builder` describes, until both are confirmed.
pub(crate) async fn acquire_and_release_with(builder: &LockBuilder) -> anyhow::Result<()> {
    let released = builder.acquire().await?.release().await?;
    ensure!(released == Released::Released, "a lock had ended before it was released");
    Ok(())
}

/// Acquires a lock, or returns `None` if other clients hold it until `until`.
pub(crate) async fn acquire_until(
    builder: LockBuilder,
    until: Instant,
) -> anyhow::Result<Option<Lock>> {
    let left = until.saturating_duration_since(Instant::now());
    match builder.wait(left).acquire().await {
        Ok(lock) => Ok(Some(lock)),
        Err(AcquireError::TimedOut { .. } | AcquireError::Held { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

pub(crate) async fn acquire_and_release_by_rslock(
    manager: &LockManager,
    key: &str,
) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let guard = manager.acquire(key, TTL).await.context("rslock")?;
    guard.release().await;
    Ok(started.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_held_lock_ends_a_turn_without_an_error() {
        let mut masters = Masters::start(NODES);
        let other = Quorum::connect(masters.urls()).await.unwrap();
        let quorum = Quorum::connect(masters.urls()).await.unwrap();
        let _held = other.lock("k").ttl(TTL).acquire().await.unwrap();
        for wait in [Duration::ZERO, Duration::from_millis(50)] {
            let acquired = acquire_until(quorum.lock("k"), Instant::now() + wait).await;
            assert!(acquired.unwrap().is_none());
        }
        masters[0].kill();
        masters[1].kill();
        let error = acquire_until(quorum.lock("k"), Instant::now()).await.unwrap_err();
        let error = error.downcast::<AcquireError>().unwrap();
        assert!(matches!(error, AcquireError::NoQuorum { .. }), "{error}");
    }
}
