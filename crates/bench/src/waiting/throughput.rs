//! How fast a lock passes through many waiters, from the release of the first holder to the last
//! grant, and the throughput of a thousand tasks of one process.
//!
//! The waiters of [`measure`] run on one thread, because the masters need the other processors. For
//! comparison, a separate phase passes the lock between raw blocking sockets with the same number
//! of commands. This phase checks neither fences nor times, does not retry, and reads the replies
//! to a release only after the next client has sent its requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
use super::processes::{Behaviour, acquire_and_release_once};
use super::{Effort, as_f64};
use crate::probes::{Socket, waiters};
use crate::quorum::{acquire_until, start_masters};
use crate::report::{Progress, TargetRow, median};

const NODES: usize = 5;
/// Number of waiters, all in one process.
const WAITERS: usize = 64;
/// Time for which another client holds the lock first, so that all waiters are in the queue before
/// it is released.
const QUEUE_FILL_TIME: Duration = Duration::from_millis(500);
/// Duration of each measurement.
const TIME: Duration = Duration::from_secs(8);
/// Smallest allowed ratio of the locks per second to those of rslock.
const RSLOCK_RATIO_MIN: f64 = 8.0;

/// How the waiters are connected.
#[derive(Clone, Copy)]
enum Connections {
    /// Each waiter is a client with its own connections.
    OwnPerWaiter,
    /// The waiters are tasks that share the connections of one client.
    Shared,
}

pub(crate) async fn measure(effort: Effort, progress: &Progress) -> anyhow::Result<Vec<TargetRow>> {
    progress.begin("locks per second on one key, 64 waiters");
    let one_thread = runtime::Builder::new_current_thread().enable_all().build()?;
    spawn_blocking(move || one_thread.block_on(measure_on_one_thread(effort))).await?
}

async fn measure_on_one_thread(effort: Effort) -> anyhow::Result<Vec<TargetRow>> {
    let masters = start_masters(NODES)?;
    let time = effort.time(TIME);
    let [own, shared] = [Connections::OwnPerWaiter, Connections::Shared];
    let rslock = locks_per_second(&masters, Kind::Rslock, own, time).await?;
    let ours = locks_per_second(&masters, Kind::Quorlock, own, time).await?;
    let raw = raw_locks_per_second(&masters, time)?;
    let rslock_tasks = locks_per_second(&masters, Kind::Rslock, shared, time).await?;
    let our_tasks = locks_per_second(&masters, Kind::Quorlock, shared, time).await?;
    let row = |waiters, ours, rslock, besides: &str| TargetRow {
        case: format!(
            "locks per second on one key and {NODES} masters: {WAITERS} {waiters} acquire it once each"
        ),
        measured: format!("{ours:.0}, {:.1} × rslock 0.10's {rslock:.0}{besides}", ours / rslock),
        target: "≥ 8 × rslock's",
        met: ours / rslock >= RSLOCK_RATIO_MIN,
    };
    let besides = format!("; through raw sockets {raw:.0}, {:.1} × rslock's", raw / rslock);
    Ok(vec![
        row("clients", ours, rslock, &besides),
        row("tasks of one client", our_tasks, rslock_tasks, ""),
    ])
}

/// Returns the locks per second, counted from the release of the first holder to the last grant.
///
/// Repeats the measurement for `time`.
async fn locks_per_second(
    masters: &Masters,
    kind: Kind,
    connections: Connections,
    time: Duration,
) -> anyhow::Result<f64> {
    let behaviour = Behaviour { kind, key: format!("{kind:?}"), hold_us: 0, urls: masters.urls() };
    let first_holder = Contender::connect(kind, &behaviour.urls).await?;
    let mut clients = vec![Contender::connect(kind, &behaviour.urls).await?];
    while clients.len() < WAITERS {
        clients.push(match connections {
            Connections::OwnPerWaiter => Contender::connect(kind, &behaviour.urls).await?,
            Connections::Shared => clients[0].clone(),
        });
    }
    let (mut locks, mut took) = (0_u32, Duration::ZERO);
    let until = Instant::now() + time;
    while Instant::now() < until {
        let held = first_holder.acquire(&behaviour.key).await?;
        let mut tasks = JoinSet::new();
        for client in &clients {
            let (client, behaviour) = (client.clone(), behaviour.clone());
            tasks.spawn(async move { acquire_and_release_once(&client, &behaviour).await });
        }
        sleep(QUEUE_FILL_TIME).await;
        let released_at = now();
        held.release().await?;
        let acquisitions =
            tasks.join_all().await.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let last_grant_at = acquisitions.iter().map(|acquisition| acquisition.grant.from).max();
        took += last_grant_at.unwrap_or(released_at).saturating_sub(released_at);
        locks += u32::try_from(acquisitions.len())?;
    }
    for client in clients {
        client.close().await;
    }
    Ok(f64::from(locks) / took.as_secs_f64())
}

/// The connections of one waiter.
struct RawClient {
    /// One connection to each master.
    command_sockets: Vec<Socket>,
    /// This client's other connection to the first master, where every client waits.
    waiting: Socket,
}

impl RawClient {
    fn connect(masters: &Masters) -> anyhow::Result<Self> {
        let command_sockets = masters.iter().map(Socket::connect).collect::<anyhow::Result<_>>()?;
        let first = masters.iter().next().context("no master runs")?;
        Ok(Self { command_sockets, waiting: Socket::connect(first)? })
    }

    /// Waits until the first master grants the lock, and then acquires it on the other masters.
    fn await_and_acquire(&mut self, client: usize) -> anyhow::Result<()> {
        self.waiting.read_grant()?;
        let (_, others) = self.command_sockets.split_first_mut().context("no master runs")?;
        for other in &mut *others {
            other.ask_for_the_lock(client)?;
        }
        others.iter_mut().try_for_each(Socket::read_grant)
    }

    fn release(&mut self, client: usize) -> anyhow::Result<()> {
        self.command_sockets.iter_mut().try_for_each(|master| master.release(client))
    }

    fn read_release_replies(&mut self) -> anyhow::Result<()> {
        self.command_sockets.iter_mut().try_for_each(|master| master.expect(":1"))
    }
}

/// Returns the figure of [`locks_per_second`] for raw sockets, which send only the lock commands.
fn raw_locks_per_second(masters: &Masters, time: Duration) -> anyhow::Result<f64> {
    let mut clients =
        (0..=WAITERS).map(|_| RawClient::connect(masters)).collect::<anyhow::Result<Vec<_>>>()?;
    let (mut locks, mut took) = (0_u32, Duration::ZERO);
    let until = now() + time;
    while now() < until {
        for (client, raw) in clients.iter_mut().enumerate() {
            raw.waiting.ask_for_the_lock(client)?;
            if client == 0 {
                raw.await_and_acquire(client)?;
            }
        }
        thread::sleep(QUEUE_FILL_TIME);
        let released_at = now();
        clients[0].release(0)?;
        let mut last_grant_at = released_at;
        for client in 1..=WAITERS {
            clients[client].await_and_acquire(client)?;
            last_grant_at = now();
            clients[client].release(client)?;
            clients[client - 1].read_release_replies()?;
            locks += 1;
        }
        took += last_grant_at.saturating_sub(released_at);
        clients[WAITERS].read_release_replies()?;
    }
    Ok(f64::from(locks) / took.as_secs_f64())
}

const MANY: usize = 1000;
const FEW: usize = 16;
/// How many times each number of tasks is measured.
const ROUNDS: u64 = 6;
/// Duration of one measurement, with `MANY` tasks or with `FEW`.
const ROUND_TIME: Duration = Duration::from_secs(1);
/// Time for which another client of this process holds the lock, so that a task of the measured
/// client must wait in the queue of a server.
const OTHERS_HOLD: Duration = Duration::from_millis(200);
/// Smallest allowed throughput of `MANY` tasks, as a fraction of the throughput of `FEW` tasks.
const MANY_RATIO_MIN: f64 = 0.8;
/// The key for which all tasks compete.
const KEY: &str = "orders/42";
/// Limit of each wait in [`most_waiters`], longer than any that occurs.
const WAIT_MAX: Duration = Duration::from_secs(60);

pub(crate) async fn measure_one_process(
    effort: Effort,
    progress: &Progress,
) -> anyhow::Result<Vec<TargetRow>> {
    progress.begin("1,000 tasks of one process");
    let masters = start_masters(NODES)?;
    let quorum = Quorum::connect(masters.urls()).await?;
    let other = Quorum::connect(masters.urls()).await?;

    let (mut many, mut few) = (Vec::new(), Vec::new());
    let time = effort.time(ROUND_TIME);
    for _ in 0..ROUNDS {
        few.push(count_locks(&quorum, FEW, time).await?);
        many.push(count_locks(&quorum, MANY, time).await?);
    }
    let waiters_max = most_waiters(&quorum, &other, &masters).await?;

    let [many, few] = [many, few].map(|locks| median(locks.into_iter().map(as_f64)));
    let fraction = many / few;
    let many_per_second = many / time.as_secs_f64();
    Ok(vec![
        TargetRow {
            case: format!("locks per second, {MANY} tasks of one process on {NODES} masters"),
            measured: format!("{many_per_second:.0}, {fraction:.2} × those of {FEW} tasks"),
            target: "≥ 0.8 × those of 16 tasks",
            met: fraction >= MANY_RATIO_MIN,
        },
        TargetRow {
            case: format!(
                "largest number of connections to one master that wait for the lock, for {MANY} tasks"
            ),
            measured: format!("{waiters_max}"),
            target: "1",
            met: waiters_max == 1,
        },
    ])
}

/// Runs `tasks` tasks for `time`, and returns how many locks they acquired in total.
async fn count_locks(quorum: &Quorum, tasks: usize, time: Duration) -> anyhow::Result<u64> {
    let mut running = JoinSet::new();
    let until = Instant::now() + time;
    for _ in 0..tasks {
        let quorum = quorum.clone();
        running.spawn(async move {
            let mut acquired = 0_u64;
            while Instant::now() < until {
                // Tasks that still wait at the end of a round give up.
                let Some(lock) = acquire_until(quorum.lock(KEY), until).await? else { break };
                acquired += 1;
                lock.release().await?;
            }
            anyhow::Ok(acquired)
        });
    }
    running.join_all().await.into_iter().sum()
}

/// Returns the largest number of waiters on one node while another client acquires the lock
/// repeatedly.
async fn most_waiters(quorum: &Quorum, other: &Quorum, masters: &Masters) -> anyhow::Result<u64> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut running = JoinSet::new();
    for _ in 0..MANY {
        let (quorum, stop) = (quorum.clone(), Arc::clone(&stop));
        running.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                quorum.lock(KEY).wait(WAIT_MAX).acquire().await?.release().await?;
            }
            anyhow::Ok(())
        });
    }
    let mut most = 0;
    for _ in 0..5 {
        let lock = other.lock(KEY).wait(WAIT_MAX).acquire().await?;
        let until = Instant::now() + OTHERS_HOLD;
        while Instant::now() < until {
            for master in masters {
                most = most.max(waiters(master)?);
            }
            sleep(Duration::from_millis(1)).await;
        }
        lock.release().await?;
    }
    stop.store(true, Ordering::Relaxed);
    running.join_all().await.into_iter().collect::<anyhow::Result<()>>()?;
    Ok(most)
}
