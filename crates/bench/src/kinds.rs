//! Shared locks and semaphores beside an exclusive lock, on five masters.

use std::iter::repeat_n;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use quorlock_client::{Lock, LockBuilder, Quorum};
use quorlock_testkit::Masters;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::probes::{Latencies, lock_calls};
use crate::quorum::{acquire_and_release_with, acquire_until, start_masters};
use crate::report::{Progress, Row, TargetRow};

const NODES: usize = 5;
const PERMITS: usize = 4;
/// Number of permits that another client holds.
const TAKEN: usize = PERMITS / 2;
/// A ttl longer than a measurement of latencies.
const TTL: Duration = Duration::from_secs(60);

/// Number of rounds for the latencies.
const ROUNDS: u64 = 400;
/// These rounds do not count, because connections open in them.
const WARM_UP_ROUNDS: u64 = 20;
/// Number of locks of each kind in a round for the latencies.
const LOCKS_OF_EACH_KIND: usize = 10;
/// Largest allowed ratio of the time of a permit to the time of an exclusive lock.
const PERMIT_TARGET: f64 = 1.15;
/// Number of commands of a lock on each node: one acquires it, and one releases it.
const COMMANDS_PER_LOCK: f64 = 2.0;
/// Largest allowed mean of [`COMMANDS_PER_LOCK`]: a late command of another lock may count too.
const COMMANDS_PER_LOCK_MAX: f64 = 2.01;

/// Number of clients that compete, each with connections of its own.
const CLIENTS: usize = 64;
/// Time for which each client holds a lock.
const HELD: Duration = Duration::from_millis(50);
/// Number of rounds for the locks per second. Their mean counts.
const THROUGHPUT_ROUNDS: u64 = 2;
/// Duration of each kind in such a round.
const THROUGHPUT_TIME: Duration = Duration::from_secs(6);
/// Smallest allowed ratio of the permits per second to the exclusive locks per second.
const PERMITS_RATIO_MIN: f64 = 3.5;

pub(crate) const STEPS: u64 = WARM_UP_ROUNDS + ROUNDS + 3 * THROUGHPUT_ROUNDS;

pub(crate) async fn measure(progress: Progress) -> anyhow::Result<(Vec<Row>, Vec<TargetRow>)> {
    progress.begin("shared locks and permits beside an exclusive lock");
    let masters = start_masters(NODES)?;
    let (rows, commands) = latencies(&masters, &progress).await?;
    progress.begin("64 clients, each of which holds a lock for 50 ms");
    let mut target_rows = vec![commands];
    target_rows.extend(throughput(&masters, &progress).await?);
    Ok((rows, target_rows))
}

/// Measures each kind in turn, while another client holds half of the permits and a shared lock.
async fn latencies(
    masters: &Masters,
    progress: &Progress,
) -> anyhow::Result<(Vec<Row>, TargetRow)> {
    let quorum = Quorum::connect(masters.urls()).await?;
    let other = Quorum::connect(masters.urls()).await?;
    let semaphore = |quorum: &Quorum| quorum.semaphore("encoder", PERMITS).ttl(TTL);
    let report = |quorum: &Quorum| quorum.lock("report").shared().ttl(TTL);
    let mut held = Vec::new();
    for builder in repeat_n(semaphore(&other), TAKEN).chain([report(&other)]) {
        let mut lock = builder.acquire().await?;
        lock.renew();
        held.push(lock);
    }

    let kinds = [quorum.lock("orders/42").ttl(TTL), semaphore(&quorum), report(&quorum)];
    let mut took = kinds.each_ref().map(|_| Latencies::new());
    let mut commands = 0;
    for round in 0..WARM_UP_ROUNDS + ROUNDS {
        if round == WARM_UP_ROUNDS {
            took = kinds.each_ref().map(|_| Latencies::new());
        }
        for (index, kind) in kinds.iter().enumerate() {
            let counts_commands = index == 1 && round >= WARM_UP_ROUNDS;
            let before = if counts_commands { settled_calls(masters).await? } else { 0 };
            for _ in 0..LOCKS_OF_EACH_KIND {
                let started = Instant::now();
                acquire_and_release_with(kind).await?;
                took[index].record(started.elapsed());
            }
            if counts_commands {
                commands += settled_calls(masters).await? - before;
            }
        }
        progress.step();
    }
    for lock in held {
        lock.release().await?;
    }
    let [exclusive, permit, shared] = took.each_ref().map(Latencies::p50);
    let row = |case: &str, ours, target| Row {
        case: format!("{case}, {NODES} nodes"),
        ours,
        peer_name: "exclusive lock",
        peer: exclusive,
        target,
    };
    let rows = vec![
        row(&format!("a permit while {TAKEN} of {PERMITS} are taken"), permit, Some(PERMIT_TARGET)),
        row("a shared lock beside another reader", shared, None),
    ];
    let locks = u32::try_from(ROUNDS)? * u32::try_from(LOCKS_OF_EACH_KIND * NODES)?;
    let each = f64::from(u32::try_from(commands)?) / f64::from(locks);
    let counted = TargetRow {
        case: format!(
            "commands on each of {NODES} nodes for a permit while {TAKEN} of {PERMITS} are taken"
        ),
        measured: format!("{each:.3}: to acquire and to release it"),
        target: "2: one round trip each",
        met: (COMMANDS_PER_LOCK..=COMMANDS_PER_LOCK_MAX).contains(&each),
    };
    Ok((rows, counted))
}

/// Returns the number of lock commands so far, once it has stopped growing.
async fn settled_calls(masters: &Masters) -> anyhow::Result<u64> {
    let mut calls = lock_calls(masters)?;
    loop {
        sleep(Duration::from_micros(500)).await;
        let now = lock_calls(masters)?;
        if now == calls {
            return Ok(now);
        }
        calls = now;
    }
}

/// Measures permits and shared locks beside exclusive locks that are held for the same time.
async fn throughput(masters: &Masters, progress: &Progress) -> anyhow::Result<Vec<TargetRow>> {
    let clients: Vec<_> = join_all((0..CLIENTS).map(|_| Quorum::connect(masters.urls()))).await;
    let clients: Vec<_> = clients.into_iter().collect::<Result<_, _>>()?;
    let (mut exclusive, mut permits, mut readers) = (0.0, 0.0, 0.0);
    for _ in 0..THROUGHPUT_ROUNDS {
        exclusive += locks_per_second(&clients, |quorum| quorum.lock("one")).await?;
        progress.step();
        permits += locks_per_second(&clients, |quorum| quorum.semaphore("four", PERMITS)).await?;
        progress.step();
        readers += locks_per_second(&clients, |quorum| quorum.lock("all").shared()).await?;
        progress.step();
    }
    let (for_permits, for_readers) = (permits / exclusive, readers / exclusive);
    #[expect(clippy::cast_precision_loss, reason = "there are few rounds")]
    let [exclusive, permits, readers] =
        [exclusive, permits, readers].map(|sum| sum / THROUGHPUT_ROUNDS as f64);
    let ms = HELD.as_millis();
    Ok(vec![
        TargetRow {
            case: format!("{CLIENTS} clients for {PERMITS} permits, each held for {ms} ms"),
            measured: format!(
                "{permits:.1} per second, {for_permits:.2} × one exclusive lock's {exclusive:.1}"
            ),
            target: "≥ 3.5 × the exclusive lock's",
            met: for_permits >= PERMITS_RATIO_MIN,
        },
        TargetRow {
            case: format!("{CLIENTS} readers, each of which holds the lock for {ms} ms"),
            measured: format!(
                "{readers:.0} per second, {for_readers:.0} × one exclusive lock's {exclusive:.1}"
            ),
            target: "more per second than with 4 permits",
            met: for_readers > for_permits,
        },
    ])
}

/// Lets all clients compete for a while, and returns how many locks they acquired per second.
async fn locks_per_second(
    clients: &[Quorum],
    of: impl Fn(&Quorum) -> LockBuilder,
) -> anyhow::Result<f64> {
    let began = Instant::now();
    let until = began + THROUGHPUT_TIME;
    let mut running = JoinSet::new();
    for quorum in clients {
        let builder = of(quorum);
        running.spawn(async move {
            let mut locks = 0_u32;
            while Instant::now() < until {
                // Clients that still wait at the end give up.
                let Some(lock) = acquire_until(builder.clone(), until).await? else { break };
                locks += 1;
                hold(lock).await?;
            }
            anyhow::Ok(locks)
        });
    }
    let locks: u32 = running.join_all().await.into_iter().sum::<anyhow::Result<_>>()?;
    Ok(f64::from(locks) / began.elapsed().as_secs_f64())
}

async fn hold(lock: Lock) -> anyhow::Result<()> {
    sleep(HELD).await;
    // An unconfirmed release goes on in the background.
    let _ = lock.release().await;
    Ok(())
}
