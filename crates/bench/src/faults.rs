//! Acquire and release while one of three nodes is faulty.
//!
//! Several quorums run side by side, some of them healthy, and locks are acquired on each in turn.

use quorlock_client::Quorum;
use quorlock_faults::harness::{Accident, Disk, Fleet};
use quorlock_testkit::Direction;
use rslock::LockManager;
use tokio::task::JoinSet;

use crate::probes::Latencies;
use crate::quorum::{
    LOCKS_PER_ROUND, NODES, acquire_and_release, acquire_and_release_by_rslock, connect_rslock,
};
use crate::report::{Progress, Row};

const ROUNDS: u64 = 500;
/// These rounds do not count, because clients notice the fault in them.
const WARM_UP_ROUNDS: u64 = 20;
/// Number of locks in a group that is acquired at once.
const AT_ONCE: usize = 10;
/// Number of such groups of each [`Setup`] in a round.
const GROUPS_PER_ROUND: usize = LOCKS_PER_ROUND / AT_ONCE;
/// Number of locks of the peer. Each takes up to a second: the peer waits for the faulty node
/// twice, half a second each time.
const PEER_LOCKS: usize = 5;

/// Largest allowed ratio of the time with a faulty node to the time with healthy nodes.
const TARGET: f64 = 1.2;

pub(crate) const STEPS: u64 = WARM_UP_ROUNDS + ROUNDS + 1;

/// The state of the last of the three nodes.
struct Condition {
    name: &'static str,
    /// Whether a proxy is in front of the node. A proxy costs time even without a fault, so such a
    /// node is compared with a healthy node behind a proxy.
    is_behind_proxy: bool,
    accident: Option<Accident>,
}

const HEALTHY: Condition = Condition { name: "healthy", is_behind_proxy: false, accident: None };
const HEALTHY_BEHIND_PROXY: Condition =
    Condition { name: "healthy, same proxy", is_behind_proxy: true, accident: None };
const FAULTY: [Condition; 3] = [
    Condition { name: "paused", is_behind_proxy: false, accident: Some(Accident::Pause) },
    Condition {
        name: "refusing connections",
        is_behind_proxy: false,
        accident: Some(Accident::Kill(Disk::Kept)),
    },
    Condition {
        name: "with its replies swallowed",
        is_behind_proxy: true,
        accident: Some(Accident::Drop(Direction::ToClient)),
    },
];

/// Three nodes, both clients, and the latencies of Quorlock.
struct Setup {
    condition: Condition,
    quorum: Quorum,
    rslock: LockManager,
    alone: Latencies,
    ten_at_once: Latencies,
    _fleet: Fleet,
}

pub(crate) async fn measure(progress: Progress) -> anyhow::Result<Vec<Row>> {
    progress.begin("one of three nodes faulty");
    let mut healthy = Setup::start(HEALTHY).await?;
    let mut behind_proxy = Setup::start(HEALTHY_BEHIND_PROXY).await?;
    let mut faulty = Vec::new();
    for condition in FAULTY {
        faulty.push(Setup::start(condition).await?);
    }
    for round in 0..WARM_UP_ROUNDS + ROUNDS {
        for setup in [&mut healthy, &mut behind_proxy].into_iter().chain(&mut faulty) {
            if round == WARM_UP_ROUNDS {
                (setup.alone, setup.ten_at_once) = (Latencies::new(), Latencies::new());
            }
            setup.run_round().await?;
        }
        progress.step();
    }

    // The peer mostly waits, so all faults are measured at the same time.
    let peers: Vec<_> =
        faulty.iter().map(|setup| tokio::spawn(measure_rslock(setup.rslock.clone()))).collect();
    let mut rows = Vec::new();
    for (setup, peer) in faulty.iter().zip(peers) {
        let healthy = if setup.condition.is_behind_proxy { &behind_proxy } else { &healthy };
        rows.extend(setup.rows(healthy, &peer.await??));
    }
    progress.step();
    Ok(rows)
}

impl Setup {
    /// Starts the nodes, connects the clients, and injects the fault into the last node.
    async fn start(condition: Condition) -> anyhow::Result<Self> {
        let mut fleet = Fleet::start(NODES, 1, |_, builder| builder.tcp())?;
        let mut urls: Vec<_> = fleet.masters.iter().map(|master| master.server.url()).collect();
        let last = NODES - 1;
        if condition.is_behind_proxy {
            urls[last] = fleet.masters[last].networks[0].url();
        }
        let quorum = Quorum::connect(&urls).await?;
        let rslock = connect_rslock(urls)?;
        acquire_and_release(&quorum, "orders/42").await?;
        acquire_and_release_by_rslock(&rslock, "orders/42").await?;

        if let Some(accident) = condition.accident {
            fleet.masters[last].inject(accident, 0)?;
        }
        Ok(Self {
            condition,
            quorum,
            rslock,
            alone: Latencies::new(),
            ten_at_once: Latencies::new(),
            _fleet: fleet,
        })
    }

    /// Acquires locks one after the other, and then ten at once.
    async fn run_round(&mut self) -> anyhow::Result<()> {
        for _ in 0..LOCKS_PER_ROUND {
            self.alone.record(acquire_and_release(&self.quorum, "orders/42").await?);
        }
        for _ in 0..GROUPS_PER_ROUND {
            let mut locks = JoinSet::new();
            for n in 0..AT_ONCE {
                let quorum = self.quorum.clone();
                locks.spawn(
                    async move { acquire_and_release(&quorum, &format!("orders/{n}")).await },
                );
            }
            while let Some(took) = locks.join_next().await {
                self.ten_at_once.record(took??);
            }
        }
        Ok(())
    }

    /// Returns the figures beside those of healthy nodes, and beside the peer with the same fault.
    fn rows(&self, healthy: &Self, rslock: &Latencies) -> [Row; 3] {
        let row = |load: &str, ours: &Latencies, peer_name, peer: &Latencies, target| Row {
            case: format!("one of three {}{load}", self.condition.name),
            ours: ours.p50(),
            peer_name,
            peer: peer.p50(),
            target,
        };
        let (at_once, target) = (", ten locks at once", Some(TARGET));
        let beside = healthy.condition.name;
        [
            row("", &self.alone, beside, &healthy.alone, target),
            row(at_once, &self.ten_at_once, beside, &healthy.ten_at_once, target),
            row("", &self.alone, "rslock 0.10", rslock, None),
        ]
    }
}

async fn measure_rslock(rslock: LockManager) -> anyhow::Result<Latencies> {
    let mut latencies = Latencies::new();
    for _ in 0..PEER_LOCKS {
        latencies.record(acquire_and_release_by_rslock(&rslock, "orders/42").await?);
    }
    Ok(latencies)
}
