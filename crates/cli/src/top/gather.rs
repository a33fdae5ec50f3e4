//! Asks the nodes again and again, in a separate thread, so that replies with thousands of locks do
//! not delay the handling of key presses. Takes at most a hundredth of a node's time.

use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join;
use quorlock_core::client::limits::LISTED_MAX;
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::app::{Moment, rows_of};
use crate::fleet::{Fleet, Node, query};
use crate::nodes::NodeSettings;
use crate::output::escape_short;

/// The least interval between gatherings, as a multiple of the cost of one. Gatherings may take a
/// hundredth of a node's time. A fifth of this share is left for reading requests and writing
/// replies, which the node's command statistics do not count.
const INTERVAL_PER_COST: u32 = 125;
/// The commands of a gathering, as `INFO commandstats` names them.
const COMMANDS: [&str; 5] = ["lock.scan", "info", "config|get", "time", "ping"];

/// Which nodes to ask, for which locks, and how often.
pub(super) struct GatherOptions {
    pub(super) nodes: NodeSettings,
    pub(super) fleet: Fleet,
    pub(super) pattern: Vec<u8>,
    pub(super) node_timeout: Duration,
    /// The load of the nodes may require a longer interval.
    pub(super) interval_min: Duration,
}

/// Starts the thread. It ends after it has sent an error, or when the receiver is dropped.
pub(super) fn start(options: GatherOptions) -> Receiver<anyhow::Result<Moment>> {
    // One snapshot is drawn while the next one is made.
    let (sender, receiver) = mpsc::channel(1);
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => runtime.block_on(async {
                if let Err(error) = ask(&options, &sender).await {
                    let _ = sender.send(Err(error)).await;
                }
            }),
            Err(error) => {
                let _ = sender.blocking_send(Err(error.into()));
            }
        }
    });
    receiver
}

async fn ask(
    options: &GatherOptions,
    sender: &Sender<anyhow::Result<Moment>>,
) -> anyhow::Result<()> {
    let GatherOptions { nodes, fleet, pattern, node_timeout, interval_min } = options;
    let quorum = nodes.connect_within(*node_timeout).await?;
    let mut spent_before = fleet.each(ask_spent).await;
    loop {
        let started = Instant::now();
        let (locks, nodes) =
            join(quorum.scan(pattern.as_slice(), LISTED_MAX), fleet.gather()).await;
        let spent_now = fleet.each(ask_spent).await;
        let interval = interval(*interval_min, &spent_before, &spent_now);
        spent_before = spent_now;
        let (locks, problem) = match locks.map(rows_of) {
            Ok((locks, problem)) => (Some(locks), problem),
            Err(error) => (None, Some(escape_short(error.to_string()))),
        };
        let moment = Moment { at: Instant::now(), interval, nodes, locks, problem };
        if sender.send(Ok(moment)).await.is_err() {
            return Ok(());
        }
        tokio::time::sleep(interval.saturating_sub(started.elapsed())).await;
    }
}

/// Returns the time from the start of one gathering to the start of the next, given the time that
/// each node had spent on gatherings before the last one, and after it. A node that does not answer
/// does not lengthen the interval.
fn interval(least: Duration, before: &[Option<Duration>], now: &[Option<Duration>]) -> Duration {
    // The statistics of a restarted server begin at zero.
    let costs = before.iter().zip(now).filter_map(|(before, now)| now.zip(*before));
    let cost = costs.map(|(now, before)| now.saturating_sub(before)).max().unwrap_or_default();
    least.max(cost.saturating_mul(INTERVAL_PER_COST))
}

/// Returns [`parse_spent`] of this node, if it answers.
async fn ask_spent(node: &Node) -> Option<Duration> {
    let asking = node.ask(async |connection| query(connection, &["INFO", "commandstats"]).await);
    let stats: String = asking.await.ok()?;
    Some(parse_spent(&stats))
}

/// Returns the time that a server has spent on [`COMMANDS`] since its start, by its reply to
/// `INFO commandstats`. Other clients' commands count too: the limit is for all clients together.
fn parse_spent(stats: &str) -> Duration {
    let us = |line: &str| -> Option<u64> {
        let (command, figures) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        COMMANDS.iter().find(|name| name.eq_ignore_ascii_case(command))?;
        figures.split(',').find_map(|figure| figure.strip_prefix("usec="))?.parse().ok()
    };
    Duration::from_micros(stats.lines().filter_map(us).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_keeps_the_load_of_a_node_below_a_hundredth() {
        let second = Duration::from_secs(1);
        let of = |before, now| interval(second, &[before, Some(second)], &[now, Some(second)]);
        assert_eq!(of(Some(second), Some(second)), second);
        assert_eq!(of(None, Some(second)), second, "a silent node does not lengthen it");
        assert_eq!(of(Some(second), None), second);
        assert_eq!(of(Some(second), Some(Duration::ZERO)), second, "the server was restarted");
        assert!(of(Some(second), Some(second * 2)) > second * 100);
    }

    #[test]
    fn only_commands_of_gatherings_count() {
        let stats = "# Commandstats\r\ncmdstat_LOCK.SCAN:calls=3,usec=120,usec_per_call=40.00,rejected_calls=0\r\n\
            cmdstat_info:calls=1,usec=30,usec_per_call=30.00\r\ncmdstat_lock.acquire:calls=9,usec=9000\r\n\
            cmdstat_config|get:calls=1,usec=5\r\n";
        assert_eq!(parse_spent(stats), Duration::from_micros(155));
    }
}
