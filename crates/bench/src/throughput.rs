//! Locks per second of many tasks that do not compete.
//!
//! They show what the client itself costs, beside a bare loop that sends the same commands, and
//! beside `rslock`. All tasks share one client, which has one connection to each
//! node. Each task acquires and releases a lock of its own, again and again. The bare loop awaits a
//! majority of answers, and checks neither fences nor validity. A refusal ends the measurement. The
//! answers beyond the majority arrive while the loop acquires its next lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisResult, Value, cmd};
use tokio::task::{JoinSet, unconstrained};
use tokio::time::sleep;

use crate::Effort;
use crate::clients::{LockClient, open, start_nodes};
use crate::report::Row;

const NODES: [usize; 2] = [3, 5];
const TASKS: [usize; 3] = [1, 16, 128];
/// Duration of the run of one client in a round.
const RUN_TIME: Duration = Duration::from_millis(200);
/// Pause after a run: background work of a client must not fall into the run of the next one.
const PAUSE: Duration = Duration::from_millis(20);
/// Each client runs first, second and third in equally many rounds.
const ROUNDS: u32 = 48;
/// Largest allowed ratio of times: the throughput is at least 0.9 × that of the bare loop.
const RATIO_TO_BARE_MAX: f64 = 1.0 / 0.9;
/// Largest allowed ratio of times with the most tasks: at least 2.5 × the throughput of the peer.
const RATIO_TO_RSLOCK_MAX: f64 = 1.0 / 2.5;

#[derive(Clone)]
enum Contestant {
    Client(LockClient),
    Bare(Bare),
}

/// The total duration of a client's runs, and the number of its locks.
#[derive(Clone, Copy, Default)]
struct Total {
    time: Duration,
    locks: u32,
}

pub(crate) async fn many_tasks(effort: Effort) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for count in NODES {
        let nodes = start_nodes(count)?;
        // Each client has keys of its own, so its background work does not delay the next client.
        let [ours, rslock] = LockClient::connect_both(&nodes.urls()).await?;
        let bare = ("bare", Contestant::Bare(Bare::connect(nodes.urls()).await?));
        let contestants =
            [("quorlock", Contestant::Client(ours)), bare, ("rslock", Contestant::Client(rslock))];
        for tasks in TASKS {
            rows.extend(compare(&contestants, count, tasks, effort).await?);
        }
    }
    Ok(rows)
}

async fn compare(
    contestants: &[(&'static str, Contestant); 3],
    nodes: usize,
    tasks: usize,
    effort: Effort,
) -> anyhow::Result<[Row; 2]> {
    let mut totals = [Total::default(); 3];
    // The first round does not count: scripts are loaded, and tables grow.
    for round in 0..=effort.count(ROUNDS) {
        for place in 0..contestants.len() {
            // The order changes, so that no client always follows the same other client.
            let index = (place + round as usize) % contestants.len();
            let (prefix, contestant) = &contestants[index];
            let run = contestant.run(prefix, tasks).await?;
            if round > 0 {
                totals[index].time += run.time;
                totals[index].locks += run.locks;
            }
        }
    }
    let [ours, bare, rslock] = totals.map(|total| total.time / total.locks.max(1));
    let of = if tasks == 1 { "1 task".into() } else { format!("{tasks} tasks") };
    let case = format!("time per lock with {of}, {nodes} nodes");
    let rslock_max = TASKS.iter().all(|others| *others <= tasks).then_some(RATIO_TO_RSLOCK_MAX);
    Ok([
        Row::of_times(&*case, ours, "bare loop", bare, Some(RATIO_TO_BARE_MAX)),
        Row::of_times(&*case, ours, "rslock 0.10", rslock, rslock_max),
    ])
}

impl Contestant {
    async fn run(&self, prefix: &str, tasks: usize) -> anyhow::Result<Total> {
        let began = Instant::now();
        let mut working = JoinSet::new();
        for task in 0..tasks {
            let (contestant, key) = (self.clone(), format!("{prefix}/{task}"));
            working.spawn(async move {
                let (mut in_flight, mut locks) = (InFlight::default(), 0);
                while began.elapsed() < RUN_TIME {
                    match &contestant {
                        Self::Client(client) => drop(client.lock_once(&key).await?),
                        Self::Bare(bare) => bare.lock_once(&key, &mut in_flight).await?,
                    }
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
        sleep(PAUSE).await;
        Ok(total)
    }
}

/// A ttl longer than any lock of the bare loop is held.
const TTL_MS: u64 = 30_000;
/// The owner label of the bare loop's locks, about as long as the default label of Quorlock's
/// client.
const OWNER: &str = "host.example.com:12345";
/// Size of the queue of a connection of the bare loop. As in Quorlock's client, no request waits
/// for a place in the queue: a later request could overtake a waiting one.
const QUEUE_MAX: usize = 65_536;

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

impl Bare {
    async fn connect(urls: Vec<String>) -> anyhow::Result<Self> {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUE_MAX);
        let mut connections = Vec::new();
        for url in urls {
            let client = open(url)?;
            connections.push(client.get_multiplexed_async_connection_with_config(&config).await?);
        }
        Ok(Self { connections, locks: Arc::default() })
    }

    async fn lock_once(&self, key: &str, in_flight: &mut InFlight) -> anyhow::Result<()> {
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
