//! Locks per second without contention: what the client itself costs, beside a bare loop that sends
//! the same commands, and beside `rslock`.
//!
//! All tasks share one client, which has one connection to each node. Each task acquires and
//! releases a lock of its own, again and again. The bare loop awaits a majority of answers, and
//! checks neither fences nor validity. A refusal ends the measurement. The answers beyond the
//! majority arrive while the loop acquires its next lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use quorlock_client::Quorum;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisResult, Value, cmd};
use rslock::LockManager;
use tokio::task::{JoinSet, unconstrained};
use tokio::time::sleep;

use crate::quorum::{
    acquire_and_release, acquire_and_release_by_rslock, connect_rslock, open, start_masters,
};
use crate::report::{Progress, Row};

const NODES: [usize; 2] = [3, 5];
const TASKS: [usize; 3] = [1, 16, 128];
/// Duration of the run of one client in a round.
const RUN_TIME: Duration = Duration::from_millis(200);
/// Pause after a run.
const PAUSE: Duration = Duration::from_millis(20);
/// Each client runs first, second and third in equally many rounds.
const ROUNDS: u32 = 48;
/// A ttl longer than any lock is held.
const TTL_MS: u64 = 30_000;
/// The owner label of the bare loop's locks, about as long as the default label of Quorlock's
/// client.
const OWNER: &str = "host.example.com:12345";
/// Size of the queue of a connection of the bare loop. As in Quorlock's client, no request waits
/// for a place in the queue: a later request could overtake a waiting one.
const QUEUE_MAX: usize = 65_536;
/// Largest allowed ratio of times: the throughput is at least 0.9 × that of the bare loop.
const TARGET_OF_BARE: f64 = 1.0 / 0.9;
/// Largest allowed ratio of times with the most tasks: at least 2.5 × the throughput of the peer.
const TARGET_OF_RSLOCK: f64 = 1.0 / 2.5;

pub(crate) const STEPS: u64 = (NODES.len() * TASKS.len()) as u64;

#[derive(Clone)]
enum LockClient {
    Quorlock(Quorum),
    Bare(Bare),
    Rslock(LockManager),
}

#[derive(Clone)]
struct Bare {
    connections: Vec<MultiplexedConnection>,
    /// Number of locks so far. It makes each token unique.
    locks: Arc<AtomicU64>,
}

/// The unanswered requests of one task. Each answer arrives with the number of its request.
#[derive(Default)]
struct InFlight {
    sent: u64,
    answers: FuturesUnordered<BoxFuture<'static, (u64, RedisResult<Value>)>>,
}

/// The total duration of a client's runs, and the number of its locks.
#[derive(Clone, Copy, Default)]
struct Total {
    time: Duration,
    locks: u32,
}

pub(crate) async fn measure(progress: Progress) -> anyhow::Result<Vec<Row>> {
    progress.begin("locks per second of many tasks");
    let mut rows = Vec::new();
    for nodes in NODES {
        let masters = start_masters(nodes)?;
        let lock_clients = [
            LockClient::Quorlock(Quorum::connect(masters.urls()).await?),
            LockClient::Bare(Bare::connect(masters.urls()).await?),
            LockClient::Rslock(connect_rslock(masters.urls())?),
        ];
        for tasks in TASKS {
            rows.extend(compare(&lock_clients, nodes, tasks).await?);
            progress.step();
        }
    }
    Ok(rows)
}

async fn compare(
    lock_clients: &[LockClient; 3],
    nodes: usize,
    tasks: usize,
) -> anyhow::Result<[Row; 2]> {
    let mut totals = [Total::default(); 3];
    // The first round does not count: scripts are loaded, and tables grow.
    for round in 0..=ROUNDS {
        for place in 0..lock_clients.len() {
            // The order changes, so that no client always follows the same other client.
            let index = (place + round as usize) % lock_clients.len();
            let (run, total) = (lock_clients[index].run(tasks).await?, &mut totals[index]);
            if round > 0 {
                total.time += run.time;
                total.locks += run.locks;
            }
        }
    }
    let [ours, bare, rslock] = totals.map(|total| total.time / total.locks.max(1));
    let row = |peer_name, peer, target| Row {
        case: format!(
            "time per lock with {}, {nodes} nodes",
            if tasks == 1 { "1 task".into() } else { format!("{tasks} tasks") }
        ),
        ours,
        peer_name,
        peer,
        target,
    };
    let rslock_target = TASKS.iter().all(|others| *others <= tasks).then_some(TARGET_OF_RSLOCK);
    Ok([row("bare loop", bare, Some(TARGET_OF_BARE)), row("rslock 0.10", rslock, rslock_target)])
}

impl LockClient {
    async fn run(&self, tasks: usize) -> anyhow::Result<Total> {
        let began = Instant::now();
        let mut working = JoinSet::new();
        for task in 0..tasks {
            let lock_client = self.clone();
            working.spawn(async move {
                let (key, mut in_flight, mut locks) =
                    (format!("{}/{task}", lock_client.key_prefix()), InFlight::default(), 0);
                while began.elapsed() < RUN_TIME {
                    lock_client.lock_once(&key, &mut in_flight).await?;
                    locks += 1;
                }
                anyhow::Ok((locks, in_flight))
            });
        }
        let ended = working.join_all().await;
        let mut total = Total { time: began.elapsed(), locks: 0 };
        for ended in ended {
            let (locks, mut in_flight) = ended?;
            total.locks += locks;
            while in_flight.answers.next().await.is_some() {}
        }
        // Background work of this client must not fall into the run of the next client.
        sleep(PAUSE).await;
        Ok(total)
    }

    /// Returns the prefix of this client's keys. Other clients use other keys, so its background
    /// work does not delay the next client.
    fn key_prefix(&self) -> &'static str {
        match self {
            Self::Quorlock(_) => "quorlock",
            Self::Bare(_) => "bare",
            Self::Rslock(_) => "rslock",
        }
    }

    async fn lock_once(&self, key: &str, in_flight: &mut InFlight) -> anyhow::Result<()> {
        match self {
            Self::Quorlock(quorum) => drop(acquire_and_release(quorum, key).await?),
            Self::Bare(bare) => bare.acquire_and_release(key, in_flight).await?,
            Self::Rslock(manager) => drop(acquire_and_release_by_rslock(manager, key).await?),
        }
        Ok(())
    }
}

impl Bare {
    async fn connect(urls: Vec<String>) -> anyhow::Result<Self> {
        let mut connections = Vec::new();
        for url in urls {
            let client = open(url)?;
            let config = AsyncConnectionConfig::new()
                .set_response_timeout(None)
                .set_pipeline_buffer_size(QUEUE_MAX);
            connections.push(client.get_multiplexed_async_connection_with_config(&config).await?);
        }
        Ok(Self { connections, locks: Arc::default() })
    }

    async fn acquire_and_release(&self, key: &str, in_flight: &mut InFlight) -> anyhow::Result<()> {
        let n = self.locks.fetch_add(1, Ordering::Relaxed);
        let token = format!("{n:032x}");
        let fence = UNIX_EPOCH.elapsed().context("the clock is before 1970")?.as_micros();
        let mut acquire = cmd("LOCK.ACQUIRE");
        acquire.arg(key).arg(&token).arg(TTL_MS).arg("FENCE").arg(u64::try_from(fence)?);
        acquire.arg("OWNER").arg(OWNER);
        self.ask_all(acquire, in_flight).await?;
        self.ask_all(cmd("LOCK.RELEASE").arg(key).arg(&token).take(), in_flight).await
    }

    /// Sends a command to all nodes, and returns once a majority has agreed.
    async fn ask_all(&self, command: Cmd, in_flight: &mut InFlight) -> anyhow::Result<()> {
        in_flight.sent += 1;
        let (request, command) = (in_flight.sent, Arc::new(command));
        for connection in &self.connections {
            let (mut connection, command) = (connection.clone(), Arc::clone(&command));
            // As in Quorlock's client, tokio's budget for each task does not delay the sending.
            let answer = async move { (request, connection.send_packed_command(&command).await) };
            in_flight.answers.push(unconstrained(answer).boxed());
        }
        let mut missing = self.connections.len() / 2 + 1;
        while missing > 0 {
            let (to, answer) = in_flight.answers.next().await.context("a node did not answer")?;
            let answer = answer?;
            ensure!(matches!(answer, Value::Int(1..)), "a node answered {answer:?}");
            if to == request {
                missing -= 1;
            }
        }
        Ok(())
    }
}
