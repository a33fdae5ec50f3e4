/// The majority of N configured nodes: N/2 + 1 of all nodes, however few of them answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Majority {
    nodes: usize,
}

impl Majority {
    /// Returns the majority of `nodes` nodes; `None` for zero nodes.
    pub const fn of(nodes: usize) -> Option<Self> {
        if nodes == 0 { None } else { Some(Self { nodes }) }
    }

    /// The number of nodes: N.
    pub const fn nodes(self) -> usize {
        self.nodes
    }

    /// The number of nodes that decide: N/2 + 1.
    pub const fn size(self) -> usize {
        self.nodes / 2 + 1
    }

    /// How many nodes may be missing while the other nodes are still a majority.
    pub const fn spare(self) -> usize {
        self.nodes - self.size()
    }
}
