//! How soon all waiters of one key have had it, and a thousand tasks of one process.
//!
//! All waiters run on one thread: the masters need the rest of the machine. Beside them, a thread
//! hands the lock from one set of blocking sockets to the next, with the same number of commands,
//! and does nothing else: it checks nothing, never retries, and reads what a client does not wait
//! for while the requests of the next one are in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use quorlock_client::Quorum;
use quorlock_faults::harness::now;
use quorlock_testkit::Masters;
use tokio::runtime;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use super::clients::{Contender, Kind};
use super::processes::{Behaviour, take_turn};
use super::{Effort, ratio};
use crate::probes::{Socket, waiters};
use crate::report::{Limit, Progress};

/// Number of masters.
const NODES: usize = 5;
/// Number of waiters, all in one process.
const WAITERS: usize = 64;
/// Time for which another client holds the lock first, until all wait for it.
const ALL_WAIT: Duration = Duration::from_millis(500);
/// Duration of each measurement.
const TIME: Duration = Duration::from_secs(8);
/// Smallest ratio to the peer's locks per second.
const RSLOCK_RATIO_MIN: f64 = 8.0;

/// The waiters.
#[derive(Clone, Copy)]
enum Who {
    /// Clients with connections of their own.
    Clients,
    /// Tasks that share the connections of one client.
    TasksOfOne,
}

pub(crate) async fn measure(effort: Effort, progress: &Progress) -> anyhow::Result<Vec<Limit>> {
    progress.begin("locks per second on one key, 64 waiters");
    let one_thread = runtime::Builder::new_current_thread().enable_all().build()?;
    spawn_blocking(move || one_thread.block_on(measure_there(effort))).await?
}

async fn measure_there(effort: Effort) -> anyhow::Result<Vec<Limit>> {
    let masters = Masters::start_with(NODES, |_, builder| builder.tcp())?;
    let time = effort.time(TIME);
    let [clients, tasks] = [Who::Clients, Who::TasksOfOne];
    let rslock = locks_per_second(&masters, Kind::Rslock, clients, time).await?;
    let ours = locks_per_second(&masters, Kind::Quorlock, clients, time).await?;
    let bare = bare_locks_per_second(&masters, time)?;
    let rslock_tasks = locks_per_second(&masters, Kind::Rslock, tasks, time).await?;
    let our_tasks = locks_per_second(&masters, Kind::Quorlock, tasks, time).await?;
    let row = |who, ours, rslock, besides: &str| Limit {
        case: format!(
            "locks per second of one key on {NODES} masters, until {WAITERS} {who} have had it"
        ),
        measured: format!("{ours:.0}, {:.1} × rslock 0.10's {rslock:.0}{besides}", ours / rslock),
        target: "≥ 8 × rslock's",
        met: ours / rslock >= RSLOCK_RATIO_MIN,
    };
    let besides = format!("; through bare sockets {bare:.0}, {:.1} × rslock's", bare / rslock);
    Ok(vec![
        row("clients", ours, rslock, &besides),
        row("tasks of one client", our_tasks, rslock_tasks, ""),
    ])
}

/// Measures from the release of another client to the last grant, repeatedly.
async fn locks_per_second(
    masters: &Masters,
    kind: Kind,
    who: Who,
    time: Duration,
) -> anyhow::Result<f64> {
    let behaviour = Behaviour { kind, key: format!("{kind}"), hold_us: 0, urls: masters.urls() };
    let first = Contender::connect(kind, &behaviour.urls).await?;
    let mut clients = vec![Contender::connect(kind, &behaviour.urls).await?];
    while clients.len() < WAITERS {
        clients.push(match who {
            Who::Clients => Contender::connect(kind, &behaviour.urls).await?,
            Who::TasksOfOne => clients[0].clone(),
        });
    }
    let (mut locks, mut took) = (0_u32, Duration::ZERO);
    let until = Instant::now() + time;
    while Instant::now() < until {
        let held = first.acquire(&behaviour.key).await?;
        let mut tasks = JoinSet::new();
        for client in &clients {
            let (client, behaviour) = (client.clone(), behaviour.clone());
            tasks.spawn(async move { take_turn(&client, &behaviour).await });
        }
        sleep(ALL_WAIT).await;
        let released = now();
        held.release().await?;
        let turns = tasks.join_all().await.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let last = turns.iter().map(|turn| turn.grant.from).max().unwrap_or(released);
        took += last.saturating_sub(released);
        locks += u32::try_from(turns.len())?;
    }
    for client in clients {
        client.close().await;
    }
    Ok(f64::from(locks) / took.as_secs_f64())
}

/// The connections of one waiter.
struct Bare {
    /// To each master.
    shared: Vec<Socket>,
    /// To the first master, on which all wait.
    waiting: Socket,
}

impl Bare {
    fn connect(masters: &Masters) -> anyhow::Result<Self> {
        let shared = masters.iter().map(Socket::connect).collect::<anyhow::Result<_>>()?;
        let first = masters.iter().next().context("there are masters")?;
        Ok(Self { shared, waiting: Socket::connect(first)? })
    }

    /// Acquires the lock on the others once the first master has granted it.
    fn take(&mut self, client: usize) -> anyhow::Result<()> {
        self.waiting.read_grant()?;
        let (_, others) = self.shared.split_first_mut().context("there are masters")?;
        for other in &mut *others {
            other.ask_for_the_lock(client)?;
        }
        others.iter_mut().try_for_each(Socket::read_grant)
    }

    fn release(&mut self, client: usize) -> anyhow::Result<()> {
        self.shared.iter_mut().try_for_each(|master| master.release(client))
    }

    /// Reads the answers to the release.
    fn read_the_rest(&mut self) -> anyhow::Result<()> {
        self.shared.iter_mut().try_for_each(|master| master.expect(":1"))
    }
}

/// Measures as [`locks_per_second`] does, with nothing but the commands.
fn bare_locks_per_second(masters: &Masters, time: Duration) -> anyhow::Result<f64> {
    let mut clients =
        (0..=WAITERS).map(|_| Bare::connect(masters)).collect::<anyhow::Result<Vec<_>>>()?;
    let (mut locks, mut took) = (0_u32, Duration::ZERO);
    let until = now() + time;
    while now() < until {
        for (client, bare) in clients.iter_mut().enumerate() {
            bare.waiting.ask_for_the_lock(client)?;
            if client == 0 {
                bare.take(client)?;
            }
        }
        thread::sleep(ALL_WAIT);
        let released = now();
        clients[0].release(0)?;
        let mut got = released;
        for client in 1..=WAITERS {
            clients[client].take(client)?;
            got = now();
            clients[client].release(client)?;
            clients[client - 1].read_the_rest()?;
            locks += 1;
        }
        took += got.saturating_sub(released);
        clients[WAITERS].read_the_rest()?;
    }
    Ok(f64::from(locks) / took.as_secs_f64())
}

/// Number of tasks.
const MANY: usize = 1000;
/// Number of tasks for comparison.
const FEW: usize = 16;
/// Number of turns of the many, and of the few.
const ROUNDS: u64 = 6;
/// Duration of a turn.
const TURN: Duration = Duration::from_secs(1);
/// Time for which another client holds the lock, so that a task has to wait on a server.
const OTHERS_HOLD: Duration = Duration::from_millis(200);
/// Smallest throughput as a fraction of that of the few.
const MANY_RATIO_MIN: f64 = 0.8;
/// The key.
const KEY: &str = "orders/42";
/// Longer than any wait.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn measure_one_process(
    effort: Effort,
    progress: &Progress,
) -> anyhow::Result<Vec<Limit>> {
    progress.begin("1,000 tasks of one process");
    let masters = Masters::start_with(NODES, |_, builder| builder.tcp())?;
    let quorum = Quorum::connect(masters.urls()).await?;
    let other = Quorum::connect(masters.urls()).await?;

    let (mut many, mut few) = (Vec::new(), Vec::new());
    let turn = effort.time(TURN);
    for _ in 0..ROUNDS {
        few.push(locks(&quorum, FEW, turn).await?);
        many.push(locks(&quorum, MANY, turn).await?);
    }
    let waiting = most_waiting(&quorum, &other, &masters).await?;

    let median = |mut locks: Vec<u64>| {
        locks.sort_unstable();
        locks[locks.len() / 2]
    };
    let (many, few) = (median(many), median(few));
    let (part, seconds) = (ratio(many, few), turn.as_secs_f64());
    let per_second = |locks| ratio(locks, 1) / seconds;
    Ok(vec![
        Limit {
            case: format!("locks per second, {MANY} tasks of one process on {NODES} masters"),
            measured: format!("{:.0}, {part:.2} × those of {FEW} tasks", per_second(many)),
            target: "≥ 0.8 × those of 16 tasks",
            met: part >= MANY_RATIO_MIN,
        },
        Limit {
            case: format!("the most connections on which {MANY} tasks wait on one master"),
            measured: format!("{waiting}"),
            target: "1",
            met: waiting == 1,
        },
    ])
}

/// Counts the locks of this number of tasks.
async fn locks(quorum: &Quorum, tasks: usize, time: Duration) -> anyhow::Result<u64> {
    let got = Arc::new(AtomicU64::new(0));
    let mut running = JoinSet::new();
    let until = Instant::now() + time;
    for _ in 0..tasks {
        let (quorum, got) = (quorum.clone(), Arc::clone(&got));
        running.spawn(async move {
            while Instant::now() < until {
                // Tasks that still wait at the end of a turn give up.
                let left = until.saturating_duration_since(Instant::now());
                let Ok(lock) = quorum.lock(KEY).wait(left).acquire().await else { break };
                got.fetch_add(1, Ordering::Relaxed);
                lock.release().await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(got.load(Ordering::Relaxed))
}

/// Returns the largest number of waiters on one node while another client acquires the lock
/// repeatedly.
async fn most_waiting(quorum: &Quorum, other: &Quorum, masters: &Masters) -> anyhow::Result<u64> {
    let over = Arc::new(AtomicBool::new(false));
    let mut running = JoinSet::new();
    for _ in 0..MANY {
        let (quorum, over) = (quorum.clone(), Arc::clone(&over));
        running.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                quorum.lock(KEY).wait(PATIENCE).acquire().await?.release().await?;
            }
            anyhow::Ok(())
        });
    }
    let mut most = 0;
    for _ in 0..5 {
        let lock = other.lock(KEY).wait(PATIENCE).acquire().await?;
        let until = Instant::now() + OTHERS_HOLD;
        while Instant::now() < until {
            for master in masters {
                most = most.max(waiters(master)?);
            }
            sleep(Duration::from_millis(1)).await;
        }
        lock.release().await?;
    }
    over.store(true, Ordering::Relaxed);
    while let Some(done) = running.join_next().await {
        done.context("a task")??;
    }
    Ok(most)
}
