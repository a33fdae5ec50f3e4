//! What the machines of a process are given with each event: times, round trips, random numbers.

use std::time::Duration;

use quorlock_core::client::{ClientState, Context, Places, Random, Spec, Topology, limits};
use quorlock_core::quorum::{Majority, Moment};
use rand::RngExt as _;
use rand::rngs::StdRng;

use super::clock::{ClientClock, Ns};
use super::plan::Plan;

pub(super) struct Inputs {
    pub(super) clock: ClientClock,
    pub(super) client_state: ClientState,
    pub(super) topology: Topology,
    pub(super) random: SeededRandom,
}

pub(super) struct SeededRandom(StdRng);

impl Random for SeededRandom {
    fn bits(&mut self) -> Option<u128> {
        Some(self.0.random())
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0.random_range(0..end)
    }
}

impl Inputs {
    pub(super) fn new(clock: ClientClock, plan: &Plan, topology: Topology, rng: StdRng) -> Self {
        let majority = Majority::of(plan.nodes).expect("a fleet has nodes");
        let places = Places::new(plan.wait_connections);
        let client_state = ClientState { places, ..ClientState::new(majority) };
        Self { clock, client_state, topology, random: SeededRandom(rng) }
    }

    pub(super) fn now(&self, now: Ns) -> Moment {
        self.clock.at(now)
    }

    /// Records the round trip of what was sent to a node, and answered now. Returns the time.
    pub(super) fn sample_round_trip(&self, node: usize, sent: Moment, now: Ns) -> Moment {
        let now = self.clock.at(now);
        self.client_state.round_trips.sample(node, now.since(sent));
        now
    }

    pub(super) fn context(&mut self, now: Ns) -> Context<'_> {
        Context {
            now: self.clock.at(now),
            wall_us: self.clock.wall_us(now),
            client_state: &self.client_state,
            topology: &self.topology,
            random: &mut self.random,
        }
    }

    /// Returns the time limit of a request to the slowest node.
    pub(super) fn longest_timeout(&self, spec: &Spec) -> Duration {
        let nodes = 0..self.client_state.majority.nodes();
        let longest = nodes.map(|node| self.client_state.round_trips.of(node)).max();
        limits::node_timeout(longest.unwrap_or_default(), spec.ttl)
    }
}
