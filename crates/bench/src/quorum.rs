//! Acquire and release on three nodes, by one caller of [`rslock`] or of Quorlock.
//!
//! To acquire and to release, `rslock` waits for the answers of all nodes. Quorlock waits for two
//! of the three answers, and reads the third one when it arrives.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use quorlock_client::{Quorum, Released};
use quorlock_testkit::{Masters, StartError};
use redis::{Client, IntoConnectionInfo as _, RedisResult};
use rslock::LockManager;

use crate::probes::Latencies;
use crate::report::Progress;
use crate::report::Row;

/// Number of nodes.
pub(crate) const NODES: usize = 3;
/// A ttl longer than any lock is held.
const TTL: Duration = Duration::from_secs(30);
/// How long a node may take to answer. `rslock` has the same limit: the default of redis-rs.
const NODE_TIMEOUT: Duration = Duration::from_millis(500);
/// Number of locks of each client in a round.
pub(crate) const LOCKS_PER_ROUND: usize = 10;

/// Number of rounds that count.
const ROUNDS: u64 = 400;
/// Number of rounds that do not count, because connections open and scripts are loaded in them.
const WARM_UP_ROUNDS: u64 = 20;

/// Number of steps of [`Progress`].
pub(crate) const STEPS: u64 = ROUNDS + WARM_UP_ROUNDS;

/// Measures both clients on the same servers in turn.
pub(crate) async fn measure(progress: Progress) -> anyhow::Result<Vec<Row>> {
    progress.begin("acquire + release on three nodes");
    let masters = start_masters()?;
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

/// Starts [`NODES`] nodes that listen on TCP.
pub(crate) fn start_masters() -> Result<Masters, StartError> {
    Masters::start_with(NODES, |_, builder| builder.tcp())
}

/// Opens a client with `TCP_NODELAY`, which the client of Quorlock sets too.
pub(crate) fn open(url: String) -> RedisResult<Client> {
    let info = url.into_connection_info()?;
    let settings = info.tcp_settings().clone().set_nodelay(true);
    Client::open(info.set_tcp_settings(settings))
}

/// Connects `rslock`, the peer.
pub(crate) fn connect_rslock(urls: Vec<String>) -> anyhow::Result<LockManager> {
    let clients = urls.into_iter().map(open).collect::<Result<_, _>>()?;
    Ok(LockManager::from_clients(clients))
}

/// Acquires and releases, and returns how long both took, with their confirmations.
pub(crate) async fn acquire_and_release(quorum: &Quorum, key: &str) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let lock = quorum.lock(key).ttl(TTL).node_timeout(NODE_TIMEOUT).acquire().await?;
    let released = lock.release().await?;
    let took = started.elapsed();
    ensure!(released == Released::Released, "a lock had ended before it was released");
    Ok(took)
}

/// Returns the time of acquire and release by the peer.
pub(crate) async fn acquire_and_release_by_rslock(
    manager: &LockManager,
    key: &str,
) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let guard = manager.acquire(key, TTL).await.context("rslock")?;
    guard.release().await;
    Ok(started.elapsed())
}
