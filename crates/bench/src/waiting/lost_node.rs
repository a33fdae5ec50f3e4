//! What becomes of those who wait when the node goes away on which they wait.

use std::time::Duration;

use anyhow::Context as _;
use quorlock_testkit::{Masters, Proxy};
use tokio::time::sleep;

use super::clock;
use super::contender::Kind;
use super::crowd::Crowd;
use super::effort::Effort;
use super::info::waiters;
use super::masters::PROCESSES;
use super::turns::Course;
use super::worker::Behaviour;
use crate::limits::Row;
use crate::progress::Progress;
use crate::table::readable;

/// How many masters there are.
const NODES: usize = 3;
/// How long a process holds the lock.
const HOLD: Duration = Duration::from_millis(5);
/// Before the node goes.
const BEFORE: Duration = Duration::from_secs(1);
/// How long it is gone.
const AFTER: Duration = Duration::from_secs(10);
/// How long nobody may get the lock.
const LONGEST_STALL: Duration = Duration::from_secs(2);

/// How it goes.
#[derive(Clone, Copy)]
enum Loss {
    Killed,
    /// Stopped with SIGSTOP: connections stay, and nothing is answered.
    Stopped,
    /// Its connections are reset, and new ones too.
    CutOff,
}

pub(crate) async fn measure(effort: Effort, progress: &Progress) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for loss in [Loss::Killed, Loss::Stopped, Loss::CutOff] {
        progress.begin("the node on which all wait goes away");
        rows.push(lose(loss, effort).await?);
    }
    Ok(rows)
}

async fn lose(loss: Loss, effort: Effort) -> anyhow::Result<Row> {
    let mut masters = Masters::start_with(NODES, |_, builder| builder.tcp())?;
    let proxies: Vec<_> = masters.iter().map(|master| Proxy::start(master.url())).collect();
    let behaviour = Behaviour {
        kind: Kind::Quorlock,
        key: "orders/42".into(),
        hold_us: u64::try_from(HOLD.as_micros())?,
        urls: proxies.iter().map(Proxy::url).collect(),
    };
    let mut crowd = Crowd::start(PROCESSES, &behaviour).await?;
    crowd.go().await?;
    sleep(BEFORE).await;

    let queue_node = queue_node(&masters)?;
    let gone_at = clock::now();
    match loss {
        Loss::Killed => masters[queue_node].kill(),
        Loss::Stopped => masters[queue_node].pause(),
        Loss::CutOff => proxies[queue_node].cut(),
    }
    sleep(effort.time(AFTER)).await;
    let until = clock::now();
    // What has been measured is over, and clients end when all nodes have confirmed their releases.
    match loss {
        Loss::Killed => masters[queue_node].restart()?,
        Loss::Stopped => masters[queue_node].resume(),
        Loss::CutOff => proxies[queue_node].heal(),
    }
    let course = crowd.stop().await?;
    Ok(row(loss, &course, gone_at, until))
}

fn row(loss: Loss, course: &Course, gone_at: Duration, until: Duration) -> Row {
    let stall = course.longest_stall_between(gone_at, until);
    let served =
        course.accounts.iter().filter(|account| account.turns.iter().any(|turn| turn.asked > gone_at));
    let (served, double) = (served.count(), course.double_grants());
    let waits = course.accounts.iter().flat_map(super::turns::Account::waits);
    let mut measured = format!(
        "{served} of {PROCESSES} served, longest stall {}, longest wait {}, two holders {double} times",
        readable(stall),
        readable(waits.max().unwrap_or_default()),
    );
    if let Some(failure) = course.first_failure() {
        measured = format!("{measured}; failed: {failure}");
    }
    Row {
        case: format!("the queue node of {NODES} is {} while {PROCESSES} wait", loss.name()),
        measured,
        target: "all served, no stall > 2 s, never two holders",
        met: served == PROCESSES && stall <= LONGEST_STALL && double == 0 && course.first_failure().is_none(),
    }
}

impl Loss {
    fn name(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Stopped => "stopped",
            Self::CutOff => "cut off",
        }
    }
}

/// The index of the server on which most wait.
fn queue_node(masters: &Masters) -> anyhow::Result<usize> {
    let waiting = masters.iter().map(waiters).collect::<anyhow::Result<Vec<_>>>()?;
    let most = waiting.iter().enumerate().max_by_key(|(_, waiters)| **waiters);
    most.map(|(node, _)| node).filter(|&node| waiting[node] > 0).context("nobody waits")
}
