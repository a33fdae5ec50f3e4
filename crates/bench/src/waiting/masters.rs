//! Handing a lock over on three and on five masters, from process to process.

use std::time::{Duration, Instant};

use quorlock_testkit::Masters;
use tokio::time::sleep;

use super::clock;
use super::contender::{Contender, Kind};
use super::crowd::Crowd;
use super::effort::Effort;
use super::info::lock_calls;
use super::ratio;
use super::turns::{Account, Course, Turn};
use super::worker::Behaviour;
use crate::latencies::Latencies;
use crate::limits::Row;
use crate::progress::Progress;
use crate::table::readable;

/// How many processes want the lock.
pub(crate) const PROCESSES: usize = 16;
/// How long somebody else holds it at first, until all processes wait for it.
const ALL_WAIT: Duration = Duration::from_millis(300);
/// How long the lock is held while commands are counted.
const HOLDS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(5), Duration::from_millis(200)];
/// Before anything counts: those that began at the same moment have found one queue.
const WARM_UP: Duration = Duration::from_secs(1);
/// How long each client is measured.
const TIME: Duration = Duration::from_secs(4);
/// How many times longer those are whose handovers come at random.
const POLLING_TIMES: u32 = 4;

/// The longest that a handover may take.
const LIMIT: Duration = Duration::from_millis(5);
/// How many commands each node may be sent for one lock.
const COMMANDS_PER_NODE: f64 = 3.0;

/// What was seen of a crowd, between two moments.
pub(crate) struct Seen {
    pub(crate) course: Course,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
    /// How many commands of ours the nodes carried out.
    calls: u64,
}

/// Measures both numbers of masters.
pub(crate) async fn measure(effort: Effort, progress: &Progress) -> anyhow::Result<Vec<Row>> {
    let mut rows = measure_on(3, effort, progress).await?;
    rows.extend(measure_on(5, effort, progress).await?);
    Ok(rows)
}

async fn measure_on(nodes: usize, effort: Effort, progress: &Progress) -> anyhow::Result<Vec<Row>> {
    progress.begin("handing over on masters, between processes");
    let masters = Masters::start_with(nodes, |_, builder| builder.tcp())?;
    let time = effort.time(TIME);
    let mut commands = Vec::new();
    for hold in HOLDS {
        let seen = see(&masters, Kind::Quorlock, hold, time).await?;
        commands.push(seen.calls_per_lock());
    }
    let mut p50 = Vec::new();
    for (kind, time) in
        [(Kind::Quorlock, time), (Kind::Rslock, POLLING_TIMES * time), (Kind::Polling, POLLING_TIMES * time)]
    {
        p50.push(handovers(&masters, kind, time).await?.p50());
    }

    let (ours, rslock, polling) = (p50[0], p50[1], p50[2]);
    let limit = COMMANDS_PER_NODE * f64::from(u32::try_from(nodes)?);
    Ok(vec![
        Row {
            case: format!("handover on {nodes} masters, {PROCESSES} processes, p50"),
            measured: format!(
                "{}; rslock 0.10 {}, polling {}",
                readable(ours),
                readable(rslock),
                readable(polling)
            ),
            target: "≤ 5 ms",
            met: ours <= LIMIT,
        },
        Row {
            case: format!("commands per lock on {nodes} masters, held for 0, 5 and 200 ms"),
            measured: commands.iter().map(|calls| format!("{calls:.1}")).collect::<Vec<_>>().join(", "),
            target: "≤ 3 for each master",
            met: commands.iter().all(|calls| *calls <= limit),
        },
    ])
}

/// Handovers from each of the processes to the next, until each has had the lock once; and again.
async fn handovers(masters: &Masters, kind: Kind, time: Duration) -> anyhow::Result<Latencies> {
    let behaviour = behaviour(masters, kind, Duration::ZERO)?;
    let first = Contender::connect(kind, &behaviour.urls).await?;
    let mut crowd = Crowd::start(PROCESSES, &behaviour).await?;
    let mut latencies = Latencies::new();
    let until = Instant::now() + time;
    while Instant::now() < until {
        let asked = clock::now();
        let held = first.acquire(&behaviour.key).await?;
        let got = clock::now();
        crowd.once().await?;
        sleep(ALL_WAIT).await;
        let turn = Turn { asked, got, releasing: clock::now(), fence: held.fence() };
        held.release().await?;
        let mut accounts = crowd.turns().await?;
        accounts.push(Account::of(turn));
        let course = Course::new(accounts).require_no_failure()?;
        course.handovers().for_each(|took| latencies.record(took));
    }
    crowd.stop().await?;
    Ok(latencies)
}

/// Lets processes compete, each of which asks for the lock again as soon as it has released it.
pub(crate) async fn see(
    masters: &Masters,
    kind: Kind,
    hold: Duration,
    time: Duration,
) -> anyhow::Result<Seen> {
    let mut crowd = Crowd::start(PROCESSES, &behaviour(masters, kind, hold)?).await?;
    crowd.go().await?;
    sleep(WARM_UP).await;
    let (from, before) = (clock::now(), lock_calls(masters)?);
    sleep(time).await;
    let (to, after) = (clock::now(), lock_calls(masters)?);
    let course = crowd.stop().await?.require_no_failure()?;
    Ok(Seen { course, from, to, calls: after - before })
}

/// With a key of its own.
fn behaviour(masters: &Masters, kind: Kind, hold: Duration) -> anyhow::Result<Behaviour> {
    let hold_us = u64::try_from(hold.as_micros())?;
    Ok(Behaviour { kind, key: format!("{kind}:{hold_us}"), hold_us, urls: masters.urls() })
}

impl Seen {
    fn calls_per_lock(&self) -> f64 {
        let locks = self.course.grants_between(self.from, self.to);
        ratio(self.calls, locks)
    }
}
