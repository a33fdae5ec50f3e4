//! Whether everybody who waits is served, and about equally often.

use std::time::Duration;

use quorlock_testkit::Masters;

use super::contender::Kind;
use super::effort::Effort;
use super::masters::{PROCESSES, see};
use super::ratio;
use crate::latencies::Latencies;
use crate::limits::Row;
use crate::progress::Progress;
use crate::table::readable;

/// How many masters there are.
const NODES: usize = 5;
/// How long each process holds the lock.
const HOLD: Duration = Duration::from_millis(5);
/// How long they compete.
const TIME: Duration = Duration::from_secs(60);
/// How many times the mean the largest wait may be.
const LARGEST_WAIT: u32 = 3;
/// How many times as many locks one process may get as another.
const MOST_GRANTS: f64 = 1.2;

pub(crate) async fn measure(effort: Effort, progress: &Progress) -> anyhow::Result<Vec<Row>> {
    progress.begin("fairness");
    let masters = Masters::start_with(NODES, |_, builder| builder.tcp())?;
    let time = effort.time(TIME);
    let seen = see(&masters, Kind::Quorlock, HOLD, time).await?;

    // Also how long those waited that were not served before the end.
    let mut waits = Latencies::new();
    seen.course.accounts.iter().flat_map(super::turns::Account::waits).for_each(|wait| waits.record(wait));
    let grants = seen.course.accounts.iter().map(|account| account.turns.len() as u64);
    let (most, fewest) = (grants.clone().max().unwrap_or_default(), grants.min().unwrap_or_default());
    let spread = ratio(most, fewest);
    let (mean, largest) = (waits.mean(), waits.max());
    Ok(vec![
        Row {
            case: format!("waits of {PROCESSES} processes on {NODES} masters in {} s", time.as_secs()),
            measured: format!("mean {}, largest {}", readable(mean), readable(largest)),
            target: "largest ≤ 3 × mean",
            met: largest <= mean * LARGEST_WAIT,
        },
        Row {
            case: "their grants".into(),
            measured: format!("{fewest} to {most}, {spread:.2} ×"),
            target: "most ≤ 1.2 × fewest",
            met: spread <= MOST_GRANTS,
        },
    ])
}
