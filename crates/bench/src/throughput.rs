//! Locks per second without contention: what the client itself costs, beside a bare loop that sends
//! the same commands, and beside `rslock`.
//!
//! All tasks share one client, which has one connection to each node. Each task acquires and
//! releases a lock of its own, again and again. The bare loop awaits a majority of answers and
//! checks nothing else: no fence, no clock, no refusal. The other answers arrive while it acquires
//! its next lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use quorlock_client::Quorum;
use quorlock_testkit::Masters;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisResult, Value, cmd};
use rslock::LockManager;
use tokio::task::{JoinSet, unconstrained};
use tokio::time::sleep;

use crate::quorum::{acquire_and_release, acquire_and_release_by_rslock, connect_rslock, open};
use crate::report::Progress;
use crate::report::Row;

/// Number of nodes.
const NODES: [usize; 2] = [3, 5];
/// Number of tasks.
const TASKS: [usize; 3] = [1, 16, 128];
/// Duration of a turn.
const TURN: Duration = Duration::from_millis(200);
/// Pause after a turn.
const PAUSE: Duration = Duration::from_millis(20);
/// Number of rounds: each client has each place in the order equally often.
const ROUNDS: u32 = 48;
/// Ttl in milliseconds, longer than any lock is held.
const TTL_MS: u64 = 30_000;
/// The owner label of the bare loop's locks.
const OWNER: &str = "host.example.com:12345";
/// Size of the queue of a connection of the bare loop.
const QUEUE_MAX: usize = 65_536;
/// A throughput of 0.9 × the bare loop's.
const TARGET_OF_BARE: f64 = 1.0 / 0.9;
/// A throughput of 2.5 × the peer's, with the largest number of tasks.
const TARGET_OF_RSLOCK: f64 = 1.0 / 2.5;

/// Number of steps of [`Progress`].
pub(crate) const STEPS: u64 = (NODES.len() * TASKS.len()) as u64;

/// The clients that acquire locks.
#[derive(Clone)]
enum Taker {
    Quorlock(Quorum),
    Bare(Bare),
    Rslock(LockManager),
}

/// Connections to all nodes, and nothing else.
#[derive(Clone)]
struct Bare {
    connections: Vec<MultiplexedConnection>,
    locks: Arc<AtomicU64>,
}

/// The requests of one task: an answer arrives with the number of its request.
#[derive(Default)]
struct Asked {
    questions: u64,
    answers: FuturesUnordered<BoxFuture<'static, (u64, RedisResult<Value>)>>,
}

/// The duration of a client's turns, and the number of its locks.
#[derive(Clone, Copy, Default)]
struct Share {
    time: Duration,
    locks: u32,
}

/// Measures all three on the same servers in turn.
pub(crate) async fn measure(progress: Progress) -> anyhow::Result<Vec<Row>> {
    progress.begin("locks per second of many tasks");
    let mut rows = Vec::new();
    for nodes in NODES {
        let masters = Masters::start_with(nodes, |_, builder| builder.tcp())?;
        let takers = [
            Taker::Quorlock(Quorum::connect(masters.urls()).await?),
            Taker::Bare(Bare::connect(masters.urls()).await?),
            Taker::Rslock(connect_rslock(masters.urls())?),
        ];
        for tasks in TASKS {
            rows.extend(compare(&takers, nodes, tasks).await?);
            progress.step();
        }
    }
    Ok(rows)
}

async fn compare(takers: &[Taker; 3], nodes: usize, tasks: usize) -> anyhow::Result<[Row; 2]> {
    let mut shares = [Share::default(); 3];
    // The first round does not count: scripts are loaded, and tables grow.
    for round in 0..=ROUNDS {
        for turn in 0..takers.len() {
            // The order changes, so that no client always follows the same one.
            let index = (turn + round as usize) % takers.len();
            let (turn, share) = (takers[index].turn(tasks).await?, &mut shares[index]);
            if round > 0 {
                share.time += turn.time;
                share.locks += turn.locks;
            }
        }
    }
    let [ours, bare, rslock] = shares.map(|share| share.time / share.locks.max(1));
    let row = |peer_name, peer, target| Row {
        case: format!(
            "a lock of {}, {nodes} nodes",
            if tasks == 1 { "1 task".into() } else { format!("{tasks} tasks") }
        ),
        ours,
        peer_name,
        peer,
        target,
    };
    let of_rslock = TASKS.iter().all(|others| *others <= tasks).then_some(TARGET_OF_RSLOCK);
    Ok([row("bare loop", bare, Some(TARGET_OF_BARE)), row("rslock 0.10", rslock, of_rslock)])
}

impl Taker {
    /// Lets tasks acquire locks for a while.
    async fn turn(&self, tasks: usize) -> anyhow::Result<Share> {
        let began = Instant::now();
        let mut working = JoinSet::new();
        for task in 0..tasks {
            let taker = self.clone();
            working.spawn(async move {
                let (key, mut asked, mut locks) =
                    (format!("{}/{task}", taker.name()), Asked::default(), 0);
                while began.elapsed() < TURN {
                    taker.take(&key, &mut asked).await?;
                    locks += 1;
                }
                anyhow::Ok((locks, asked))
            });
        }
        let ended = working.join_all().await;
        let mut share = Share { time: began.elapsed(), locks: 0 };
        for ended in ended {
            let (locks, mut asked) = ended?;
            share.locks += locks;
            while asked.answers.next().await.is_some() {}
        }
        // Background work of a client does not fall into the next one's turn.
        sleep(PAUSE).await;
        Ok(share)
    }

    /// With keys of its own, so that background work does not delay the next client.
    fn name(&self) -> &'static str {
        match self {
            Self::Quorlock(_) => "quorlock",
            Self::Bare(_) => "bare",
            Self::Rslock(_) => "rslock",
        }
    }

    /// Acquires a lock, and releases it.
    async fn take(&self, key: &str, asked: &mut Asked) -> anyhow::Result<()> {
        match self {
            Self::Quorlock(quorum) => drop(acquire_and_release(quorum, key).await?),
            Self::Bare(bare) => bare.acquire_and_release(key, asked).await?,
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
            // As in our client: a request that waits for a place in the queue may be overtaken.
            let config = AsyncConnectionConfig::new()
                .set_response_timeout(None)
                .set_pipeline_buffer_size(QUEUE_MAX);
            connections.push(client.get_multiplexed_async_connection_with_config(&config).await?);
        }
        Ok(Self { connections, locks: Arc::default() })
    }

    async fn acquire_and_release(&self, key: &str, asked: &mut Asked) -> anyhow::Result<()> {
        let n = self.locks.fetch_add(1, Ordering::Relaxed);
        let token = format!("{n:032x}");
        let fence = UNIX_EPOCH.elapsed().context("the clock is before 1970")?.as_micros();
        let mut acquire = cmd("LOCK.ACQUIRE");
        acquire.arg(key).arg(&token).arg(TTL_MS).arg("FENCE").arg(u64::try_from(fence)?);
        // As long as the default label of the client.
        acquire.arg("OWNER").arg(OWNER);
        self.ask_all(acquire, asked).await?;
        self.ask_all(cmd("LOCK.RELEASE").arg(key).arg(&token).take(), asked).await
    }

    /// Returns when a majority has agreed.
    async fn ask_all(&self, command: Cmd, asked: &mut Asked) -> anyhow::Result<()> {
        asked.questions += 1;
        let (question, command) = (asked.questions, Arc::new(command));
        for connection in &self.connections {
            let (mut connection, command) = (connection.clone(), Arc::clone(&command));
            // Sent at the first poll, as in our client: tokio may delay it, too.
            let answer = async move { (question, connection.send_packed_command(&command).await) };
            asked.answers.push(unconstrained(answer).boxed());
        }
        let mut missing = self.connections.len() / 2 + 1;
        while missing > 0 {
            let (to, answer) = asked.answers.next().await.context("a node did not answer")?;
            let answer = answer?;
            ensure!(matches!(answer, Value::Int(1..)), "a node answered {answer:?}");
            if to == question {
                missing -= 1;
            }
        }
        Ok(())
    }
}
