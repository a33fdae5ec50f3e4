//! Measures handovers of a lock: on one node beside a PING, and between processes with the number
//! of commands and the fairness.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use quorlock_faults::harness::{Grant, now};
use quorlock_testkit::{Masters, Server};
use tokio::task::yield_now;
use tokio::time::sleep;

use super::clients::{Contender, Kind};
use super::processes::{Behaviour, Crowd};
use super::timeline::{Acquisition, ClientReport, Timeline};
use super::{Effort, ratio};
use crate::probes::{Latencies, Socket, lock_calls};
use crate::quorum::start_masters;
use crate::report::{Progress, TargetRow, readable};

/// Number of processes that compete.
pub(crate) const PROCESSES: usize = 16;
/// Time for which another client holds the lock first, so that all processes are in the queue
/// before it is released.
const QUEUE_FILL_TIME: Duration = Duration::from_millis(300);
/// Times for which the lock is held while commands are counted.
const HOLDS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(5), Duration::from_millis(200)];
/// Time before the measurement: all processes start at once, and then wait in one queue.
const WARM_UP: Duration = Duration::from_secs(1);
/// Duration of each measurement.
const TIME: Duration = Duration::from_secs(4);
/// Measurements of polling clients last this many times as long, because their handovers vary at
/// random.
const POLLING_TIME_FACTOR: u32 = 4;

/// Largest allowed p50 of the handovers between processes: this many times the p50 of a PING to one
/// idle node, and the constant part.
const HANDOVER_PER_PING: f64 = 1.6;
const HANDOVER_CONSTANT: Duration = Duration::from_micros(100);
/// Number of measured PINGs.
const PINGS: usize = 5000;
/// Largest allowed number of commands that a node executes for one lock, on average, if waiters do
/// not have to repeat their waits.
const COMMANDS_PER_NODE_MAX: f64 = 3.2;

pub(crate) async fn measure_between_processes(
    effort: Effort,
    progress: &Progress,
) -> anyhow::Result<Vec<TargetRow>> {
    let mut rows = measure_on(3, effort, progress).await?;
    rows.extend(measure_on(5, effort, progress).await?);
    Ok(rows)
}

async fn measure_on(
    nodes: usize,
    effort: Effort,
    progress: &Progress,
) -> anyhow::Result<Vec<TargetRow>> {
    progress.begin("handovers on masters, between processes");
    let masters = start_masters(nodes)?;
    let time = effort.time(TIME);
    let mut commands = Vec::new();
    for hold in HOLDS {
        let (_, calls_per_lock) = compete(&masters, hold, time).await?;
        commands.push(calls_per_lock);
    }
    let mut p50 = Vec::new();
    for (kind, time) in [
        (Kind::Quorlock, time),
        (Kind::Rslock, POLLING_TIME_FACTOR * time),
        (Kind::Polling, POLLING_TIME_FACTOR * time),
    ] {
        p50.push(handovers(&masters, kind, time).await?.p50());
    }

    let (ours, rslock, polling) = (p50[0], p50[1], p50[2]);
    let ping = ping_p50(&masters)?;
    let limit = COMMANDS_PER_NODE_MAX * f64::from(u32::try_from(nodes)?);
    Ok(vec![
        TargetRow {
            case: format!("handover on {nodes} masters, {PROCESSES} processes, p50"),
            measured: format!(
                "{}, PING {}; rslock 0.10: {}; polling: {}",
                readable(ours),
                readable(ping),
                readable(rslock),
                readable(polling)
            ),
            target: "≤ 1.6 × a PING + 100 µs",
            met: ours <= ping.mul_f64(HANDOVER_PER_PING) + HANDOVER_CONSTANT,
        },
        TargetRow {
            case: format!(
                "commands per lock, on all {nodes} masters together, held for 0, 5 and 200 ms"
            ),
            measured: commands
                .iter()
                .map(|calls| format!("{calls:.1}"))
                .collect::<Vec<_>>()
                .join(", "),
            target: "≤ 3.2 per master, held for 0 and 5 ms",
            met: commands[..2].iter().all(|calls| *calls <= limit),
        },
    ])
}

/// The p50 of a PING to one of the masters, which are idle.
fn ping_p50(masters: &Masters) -> anyhow::Result<Duration> {
    let server = masters.iter().next().context("there are masters")?;
    let (mut socket, mut latencies) = (Socket::connect(server)?, Latencies::new());
    time_pings(&mut socket, PINGS, &mut latencies)?;
    Ok(latencies.p50())
}

/// Sends PINGs one after another.
fn time_pings(socket: &mut Socket, pings: usize, latencies: &mut Latencies) -> anyhow::Result<()> {
    for _ in 0..pings {
        let started = Instant::now();
        socket.ping()?;
        latencies.record(started.elapsed());
    }
    Ok(())
}

/// Measures handovers from process to process until each process has held the lock once, and
/// repeats this for `time`.
async fn handovers(masters: &Masters, kind: Kind, time: Duration) -> anyhow::Result<Latencies> {
    let behaviour = behaviour(masters, kind, Duration::ZERO)?;
    let first_holder = Contender::connect(kind, &behaviour.urls).await?;
    let mut crowd = Crowd::start(PROCESSES, &behaviour)?;
    let mut latencies = Latencies::new();
    let until = Instant::now() + time;
    while Instant::now() < until {
        let asked = now();
        let held = first_holder.acquire(&behaviour.key).await?;
        let from = now();
        crowd.once()?;
        sleep(QUEUE_FILL_TIME).await;
        let (key, fence) = (behaviour.key.clone(), held.fence());
        let grant = Grant { key, client: std::process::id(), from, to: now(), fence };
        let acquisition = Acquisition { asked, grant };
        held.release().await?;
        let mut reports = crowd.reports()?;
        reports.push(ClientReport::of(acquisition));
        let timeline = Timeline::new(reports).require_no_failure()?;
        timeline.handovers().for_each(|took| latencies.record(took));
    }
    crowd.stop()?;
    Ok(latencies)
}

/// Lets processes of Quorlock compete. Each process requests the lock again as soon as it has
/// released the lock.
///
/// Returns what they did, warm-up included, and the number of commands per lock since the warm-up.
async fn compete(
    masters: &Masters,
    hold: Duration,
    time: Duration,
) -> anyhow::Result<(Timeline, f64)> {
    let mut crowd = Crowd::start(PROCESSES, &behaviour(masters, Kind::Quorlock, hold)?)?;
    crowd.go()?;
    sleep(WARM_UP).await;
    let (from, before) = (now(), lock_calls(masters)?);
    sleep(time).await;
    let (to, after) = (now(), lock_calls(masters)?);
    let timeline = crowd.stop()?.require_no_failure()?;
    let calls_per_lock = ratio(after - before, timeline.grants_between(from, to));
    Ok((timeline, calls_per_lock))
}

/// Returns the behaviour of the processes. Each combination of kind and hold has its own key.
fn behaviour(masters: &Masters, kind: Kind, hold: Duration) -> anyhow::Result<Behaviour> {
    let hold_us = u64::try_from(hold.as_micros())?;
    Ok(Behaviour { kind, key: format!("{kind:?}:{hold_us}"), hold_us, urls: masters.urls() })
}

const FAIRNESS_NODES: usize = 5;
/// Time for which each process holds the lock.
const FAIRNESS_HOLD: Duration = Duration::from_millis(5);
/// Duration of the competition.
const FAIRNESS_TIME: Duration = Duration::from_secs(60);
/// Largest allowed wait, as a multiple of the mean wait.
const WAIT_TO_MEAN_MAX: u32 = 3;
/// Largest allowed ratio of the grants of two processes.
const GRANTS_RATIO_MAX: f64 = 1.05;

pub(crate) async fn measure_fairness(
    effort: Effort,
    progress: &Progress,
) -> anyhow::Result<Vec<TargetRow>> {
    progress.begin("fairness");
    let masters = start_masters(FAIRNESS_NODES)?;
    let time = effort.time(FAIRNESS_TIME);
    let (timeline, _) = compete(&masters, FAIRNESS_HOLD, time).await?;

    // Includes waits that were not served before the end.
    let mut waits = Latencies::new();
    timeline.reports.iter().flat_map(ClientReport::waits).for_each(|wait| waits.record(wait));
    let grants = timeline.reports.iter().map(|report| report.acquisitions.len() as u64);
    let (most, fewest) =
        (grants.clone().max().unwrap_or_default(), grants.min().unwrap_or_default());
    let spread = ratio(most, fewest);
    let (mean, largest) = (waits.mean(), waits.max());
    Ok(vec![
        TargetRow {
            case: format!(
                "waits of {PROCESSES} processes on {FAIRNESS_NODES} masters in {} s",
                time.as_secs()
            ),
            measured: format!("mean {}, largest {}", readable(mean), readable(largest)),
            target: "largest ≤ 3 × mean",
            met: largest <= mean * WAIT_TO_MEAN_MAX,
        },
        TargetRow {
            case: format!("grants of these {PROCESSES} processes"),
            measured: format!("{fewest} to {most}, {spread:.2} ×"),
            target: "most ≤ 1.05 × fewest",
            met: spread <= GRANTS_RATIO_MAX,
        },
    ])
}

const ONE_NODE_WAITERS: usize = 16;
const ROUNDS: u64 = 400;
/// Number of rounds that do not count, before the [`ROUNDS`] that do.
const WARM_UP_ROUNDS: u64 = 20;
/// Number of handovers, and then of PINGs, in a round.
const EVENTS_PER_ROUND: usize = 64;
/// Largest allowed ratio of the p50 of a handover to that of a PING.
const PING_RATIO_MAX: f64 = 1.3;
/// Largest allowed difference between these p50s.
const BEYOND_PING_MAX: Duration = Duration::from_micros(15);

pub(crate) async fn measure_on_one_node(
    effort: Effort,
    progress: &Progress,
) -> anyhow::Result<Vec<TargetRow>> {
    progress.begin("handovers on one node");
    let server = Server::with_module().tcp().start()?;
    let mut pinging = Socket::connect(&server)?;
    let mut sockets = Socket::connect_many(&server, ONE_NODE_WAITERS + 1)?;
    for (client, socket) in sockets.iter_mut().enumerate() {
        socket.ask_for_the_lock(client)?;
    }
    sockets[0].read_grant()?;

    let (mut handovers, mut pings) = (Latencies::new(), Latencies::new());
    let mut holder = 0;
    for round in 0..effort.count(ROUNDS) + WARM_UP_ROUNDS {
        if round == WARM_UP_ROUNDS {
            (handovers, pings) = (Latencies::new(), Latencies::new());
        }
        for _ in 0..EVENTS_PER_ROUND {
            let next = (holder + 1) % sockets.len();
            let started = Instant::now();
            sockets[holder].release(holder)?;
            sockets[next].read_grant()?;
            handovers.record(started.elapsed());
            // The previous holder requests the lock again. The PING waits until the server has
            // queued this request, so that the queue is full at the next handover.
            sockets[holder].expect(":1")?;
            sockets[holder].ask_for_the_lock(holder)?;
            pinging.ping()?;
            holder = next;
        }
        time_pings(&mut pinging, EVENTS_PER_ROUND, &mut pings)?;
        yield_now().await;
    }

    let (handover, ping) = (handovers.p50(), pings.p50());
    let ratio = handover.div_duration_f64(ping);
    let beyond = handover.saturating_sub(ping);
    Ok(vec![
        TargetRow {
            case: format!("handover on one node, {ONE_NODE_WAITERS} waiters, p50"),
            measured: format!("{}, {ratio:.2} × a PING's {}", readable(handover), readable(ping)),
            target: "≤ 1.3 × a PING",
            met: ratio <= PING_RATIO_MAX,
        },
        TargetRow {
            case: "difference between that handover and a PING, p50".into(),
            measured: readable(beyond),
            target: "≤ 15 µs",
            met: beyond <= BEYOND_PING_MAX,
        },
    ])
}
