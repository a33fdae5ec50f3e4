//! The environment of a client's state machines, for the tests that drive them.

use quorlock_core::Ttl;
use quorlock_core::client::{
    ClientState, Context, Keys, NodeError, NodeStatus, Random, Spec, Topology,
};
use quorlock_core::quorum::{Majority, Moment};

/// Tokens that count up, and pauses that are the same in each run.
#[derive(Default)]
pub(crate) struct TestRandom {
    last: u128,
    /// Whether pauses vary. If not, each pause is the shortest one.
    varies: bool,
}

impl Random for TestRandom {
    fn bits(&mut self) -> Option<u128> {
        self.last += 1;
        Some(self.last)
    }

    fn below(&mut self, end: u64) -> u64 {
        if !self.varies {
            return 0;
        }
        self.last += 1;
        u64::try_from(self.last).unwrap() % end
    }
}

pub(crate) struct Client {
    pub(crate) state: ClientState,
    pub(crate) topology: Topology,
    random: TestRandom,
}

impl Client {
    /// A client that is connected to `nodes` nodes, all of which vote.
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            state: ClientState::new(Majority::of(nodes).unwrap()),
            topology: nodes_after_restarts(nodes, 0),
            random: TestRandom::default(),
        }
    }

    pub(crate) fn with_varied_pauses(nodes: usize) -> Self {
        Self { random: TestRandom { last: 0, varies: true }, ..Self::new(nodes) }
    }

    /// Takes away the connection to a node. Requests to the node fail with this error.
    pub(crate) fn disconnect(&mut self, node: usize, error: NodeError) {
        let mut nodes = self.topology.nodes().to_vec();
        nodes[node].link = Err(error);
        self.topology = Topology::new(nodes);
    }

    pub(crate) fn ctx(&mut self, now: Moment, wall_us: u64) -> Context<'_> {
        let Self { state, topology, random } = self;
        Context { now, wall_us, client_state: state, topology, random }
    }
}

/// Nodes that have each restarted `restarts` times.
pub(crate) fn nodes_after_restarts(nodes: usize, restarts: u64) -> Topology {
    let status = NodeStatus { link: Ok(0), admission: Ok(()), incarnation: restarts };
    Topology::new(vec![status; nodes])
}

/// An exclusive lock on all of these keys.
pub(crate) fn spec(keys: Keys, ttl_ms: u64) -> Spec {
    Spec::exclusive(keys, Ttl::from_ms(ttl_ms).unwrap())
}
