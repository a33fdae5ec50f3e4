//! Asks the nodes again and again, in a separate thread: replies with thousands of locks do not
//! delay the keyboard.

use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join;
use quorlock_client::Quorum;
use quorlock_core::client::limits::LISTED_MAX;
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::pace;
use super::snapshot::{Locks, Snapshot};
use crate::fleet::{Fleet, Node, query};
use crate::nodes::Nodes;
use crate::shown::escaped;

/// Which nodes to ask, for which locks, and how often.
pub(super) struct Questions {
    pub(super) nodes: Nodes,
    pub(super) fleet: Fleet,
    /// The pattern of the keys.
    pub(super) pattern: Vec<u8>,
    pub(super) node_limit: Duration,
    /// The interval, unless the load of the nodes requires a longer one.
    pub(super) wanted: Duration,
}

/// Starts the thread. Nothing follows an error.
pub(super) fn start(questions: Questions) -> Receiver<anyhow::Result<Snapshot>> {
    // One snapshot is drawn while the next one is made.
    let (sender, receiver) = mpsc::channel(1);
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => runtime.block_on(async {
                if let Err(error) = ask(&questions, &sender).await {
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
    questions: &Questions,
    sender: &Sender<anyhow::Result<Snapshot>>,
) -> anyhow::Result<()> {
    let Questions { nodes, fleet, pattern, node_limit, wanted } = questions;
    let quorum = nodes.connect_within(*node_limit).await?;
    let mut spent = fleet.each(spent).await;
    loop {
        let started = Instant::now();
        let (locks, report) = join(list(&quorum, pattern), fleet.gather()).await;
        let now_spent = fleet.each(self::spent).await;
        let costs = spent.iter().zip(&now_spent).map(|(before, now)| pace::cost(*before, *now));
        let interval = pace::interval(*wanted, costs.max().unwrap_or_default());
        spent = now_spent;
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
        Err(error) => Locks::failed(escaped(error.to_string())),
    }
}

/// The time that this node has spent on gatherings since its start, if it reports it.
async fn spent(node: &Node) -> Option<Duration> {
    let stats: String = node
        .ask(async |connection| query(connection, &["INFO", "commandstats"]).await)
        .await
        .ok()?;
    Some(pace::spent(&stats))
}
