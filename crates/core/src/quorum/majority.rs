/// How many of N configured nodes decide: N/2 + 1 of all that are configured, never of those that answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Majority {
    nodes: usize,
}

impl Majority {
    /// The majority of `nodes` nodes; `None` for no nodes at all.
    pub const fn of(nodes: usize) -> Option<Self> {
        if nodes == 0 { None } else { Some(Self { nodes }) }
    }

    /// N.
    pub const fn nodes(self) -> usize {
        self.nodes
    }

    /// N/2 + 1.
    pub const fn size(self) -> usize {
        self.nodes / 2 + 1
    }

    /// How many nodes may be missing before a majority is out of reach.
    pub const fn spare(self) -> usize {
        self.nodes - self.size()
    }
}
