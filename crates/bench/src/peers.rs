//! Acquire and release on three nodes, by one caller of [`rslock`] or of Quorlock, while all nodes
//! are healthy and while one is faulty.
//!
//! `rslock` waits for the answers of all nodes. Quorlock waits for two of the three answers, and
//! reads the third one when it arrives.

use futures_util::future::try_join_all;
use quorlock_testkit::{Accident, Direction, Disk};

use crate::Effort;
use crate::clients::{FailingNodes, LockClient};
use crate::instruments::Latencies;
use crate::report::Row;

const KEY: &str = "orders/42";
/// Number of locks of each client in a round.
const LOCKS_PER_ROUND: usize = 10;
const ROUNDS: u32 = 450;
/// These rounds do not count: connections open, scripts are loaded, and clients notice faults.
const WARM_UP_ROUNDS: u32 = 20;
/// Number of locks of the peer beside a fault. Each takes up to a second: the peer waits for the
/// faulty node twice, half a second each time.
const PEER_LOCKS: usize = 5;

/// Largest allowed ratio of the time with healthy nodes to the time of the peer.
const RATIO_TO_PEER_MAX: f64 = 1.0;
/// Largest allowed ratio of the time with a faulty node to the time with healthy nodes.
const RATIO_TO_HEALTHY_MAX: f64 = 1.2;

/// The state of one of the three nodes.
#[derive(Clone, Copy)]
struct Condition {
    name: &'static str,
    accident: Option<Accident>,
    /// Whether a proxy is in front of the node. A proxy costs time even without a fault, so such a
    /// node is compared with a healthy node behind a proxy.
    behind_proxy: bool,
}

const HEALTHY: [Condition; 2] = [
    Condition { name: "healthy", accident: None, behind_proxy: false },
    Condition { name: "healthy, same proxy", accident: None, behind_proxy: true },
];
const FAULTY: [Condition; 3] = [
    Condition { name: "paused", accident: Some(Accident::Pause), behind_proxy: false },
    Condition {
        name: "refusing connections",
        accident: Some(Accident::Kill(Disk::Kept)),
        behind_proxy: false,
    },
    Condition {
        name: "with its replies swallowed",
        accident: Some(Accident::Drop(Direction::ToClient)),
        behind_proxy: true,
    },
];

/// Three nodes, both clients, and the latencies of Quorlock.
struct Setup {
    condition: Condition,
    client: LockClient,
    rslock: LockClient,
    ours: Latencies,
    peers: Latencies,
    _nodes: FailingNodes,
}

/// Acquires locks beside each condition in turn.
pub(crate) async fn measure(effort: Effort) -> anyhow::Result<Vec<Row>> {
    let mut setups = Vec::new();
    for condition in HEALTHY.into_iter().chain(FAULTY) {
        setups.push(Setup::start(condition).await?);
    }
    for round in 0..effort.count(ROUNDS) + WARM_UP_ROUNDS {
        for (index, setup) in setups.iter_mut().enumerate() {
            if round == WARM_UP_ROUNDS {
                (setup.ours, setup.peers) = (Latencies::new(), Latencies::new());
            }
            setup.run_round().await?;
            if index == 0 {
                setup.run_rslock(LOCKS_PER_ROUND).await?;
            }
        }
    }
    let (healthy, faulty) = setups.split_at_mut(HEALTHY.len());
    // The peer mostly waits, so all faults are measured at the same time.
    try_join_all(faulty.iter_mut().map(|setup| setup.run_rslock(PEER_LOCKS))).await?;
    let (ours, peer) = (healthy[0].ours.p50(), healthy[0].peers.p50());
    let max = Some(RATIO_TO_PEER_MAX);
    let mut rows = vec![Row::of_times("three nodes", ours, "rslock 0.10", peer, max)];
    for setup in faulty {
        rows.extend(setup.rows(&healthy[usize::from(setup.condition.behind_proxy)]));
    }
    Ok(rows)
}

impl Setup {
    /// Starts the nodes, connects the clients, and injects the fault.
    async fn start(condition: Condition) -> anyhow::Result<Self> {
        let mut nodes = FailingNodes::start(condition.behind_proxy)?;
        let [client, rslock] = LockClient::connect_both(&nodes.urls()).await?;
        if let Some(accident) = condition.accident {
            nodes.inject(accident)?;
        }
        let (ours, peers) = (Latencies::new(), Latencies::new());
        Ok(Self { condition, client, rslock, ours, peers, _nodes: nodes })
    }

    async fn run_rslock(&mut self, locks: usize) -> anyhow::Result<()> {
        for _ in 0..locks {
            self.peers.record(self.rslock.lock_once(KEY).await?);
        }
        Ok(())
    }

    async fn run_round(&mut self) -> anyhow::Result<()> {
        for _ in 0..LOCKS_PER_ROUND {
            self.ours.record(self.client.lock_once(KEY).await?);
        }
        Ok(())
    }

    /// Returns the figures beside those of healthy nodes, and beside the peer with the same fault.
    fn rows(&self, healthy: &Self) -> [Row; 2] {
        let (case, ours) = (format!("one of three {}", self.condition.name), self.ours.p50());
        let (beside, max) = (healthy.condition.name, Some(RATIO_TO_HEALTHY_MAX));
        [
            Row::of_times(&*case, ours, beside, healthy.ours.p50(), max),
            Row::of_times(&*case, ours, "rslock 0.10", self.peers.p50(), None),
        ]
    }
}
