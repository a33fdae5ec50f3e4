use std::ops::RangeInclusive;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::Scene;

/// How long a message is on its way, in microseconds.
const DELAY_US: RangeInclusive<u64> = 50..=400;

/// A connection in one direction: whose, to which node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) client: usize,
    pub(super) node: usize,
    pub(super) kind: Kind,
    pub(super) back: bool,
}

/// A client has two connections to a node: one would not be answered while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Shared,
    ForWaiting,
}

/// Delays messages at random, and lets none overtake another on the same connection.
#[derive(Debug)]
pub(super) struct Network {
    rng: StdRng,
    nodes: usize,
    /// How much longer a message to or from which node takes.
    farther_us: (usize, u64),
    /// When the last message of each way arrives.
    last_us: Vec<u64>,
}

impl Network {
    pub(super) fn new(scene: &Scene, queue_node: usize) -> Self {
        Self {
            rng: StdRng::seed_from_u64(scene.seed),
            nodes: scene.nodes,
            farther_us: (queue_node, scene.queue_node_farther_us),
            last_us: vec![0; scene.clients * scene.nodes * 4],
        }
    }

    /// When a message arrives that is sent now.
    pub(super) fn arrival_us(&mut self, now_us: u64, way: Way) -> u64 {
        let Way { client, node, kind, back } = way;
        let connection = (client * self.nodes + node) * 2 + usize::from(kind == Kind::ForWaiting);
        let last_us = &mut self.last_us[connection * 2 + usize::from(back)];
        let (far, farther_us) = self.farther_us;
        let delay_us = self.rng.random_range(DELAY_US) + if node == far { farther_us } else { 0 };
        *last_us = (now_us + delay_us).max(*last_us);
        *last_us
    }
}
