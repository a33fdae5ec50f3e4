//! Asks the nodes again and again, in a separate thread, so that replies with thousands of locks do
//! not delay the handling of key presses.

use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join;
use quorlock_client::Quorum;
use quorlock_core::client::limits::LISTED_MAX;
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::pace;
use super::snapshot::{Locks, Snapshot};
use crate::fleet::{Fleet, Node, query};
use crate::nodes::NodeSettings;
use crate::output::escape_short;

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
pub(super) fn start(options: GatherOptions) -> Receiver<anyhow::Result<Snapshot>> {
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
    sender: &Sender<anyhow::Result<Snapshot>>,
) -> anyhow::Result<()> {
    let GatherOptions { nodes, fleet, pattern, node_timeout, interval_min } = options;
    let quorum = nodes.connect_within(*node_timeout).await?;
    let mut spent_before = fleet.each(ask_spent).await;
    loop {
        let started = Instant::now();
        let (locks, report) = join(list(&quorum, pattern), fleet.gather()).await;
        let spent_now = fleet.each(ask_spent).await;
        let costs =
            spent_before.iter().zip(&spent_now).map(|(before, now)| pace::cost(*before, *now));
        let interval = pace::interval(*interval_min, costs.max().unwrap_or_default());
        spent_before = spent_now;
        let snapshot = Snapshot { at: Instant::now(), interval, report, locks };
        if sender.send(Ok(snapshot)).await.is_err() {
            return Ok(());
        }
        tokio::time::sleep(interval.saturating_sub(started.elapsed())).await;
    }
}

async fn list(quorum: &Quorum, pattern: &[u8]) -> Locks {
    match quorum.scan(pattern, LISTED_MAX).await {
        Ok(list) => Locks::new(list),
        Err(error) => Locks::failed(escape_short(error.to_string())),
    }
}

/// Returns [`pace::parse_spent`] of this node, if it answers.
async fn ask_spent(node: &Node) -> Option<Duration> {
    let asking = node.ask(async |connection| query(connection, &["INFO", "commandstats"]).await);
    let stats: String = asking.await.ok()?;
    Some(pace::parse_spent(&stats))
}
