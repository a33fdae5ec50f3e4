use std::ops::{Deref, DerefMut};
use std::slice;

use crate::{Server, ServerBuilder, StartError, in_parallel};

/// Independent servers with the Quorlock module, over which a quorum is formed.
#[derive(Debug)]
pub struct Nodes(pub Vec<Server>);

impl Nodes {
    /// Starts `n` nodes at the same time.
    ///
    /// # Panics
    ///
    /// With the error of the first node that does not start; see [`Nodes::start_with`].
    #[track_caller]
    pub fn start(n: usize) -> Self {
        match Self::start_with(n, |_, builder| builder) {
            Ok(nodes) => nodes,
            Err(error) => panic!("{n} nodes do not start: {error}"),
        }
    }

    /// Starts `n` nodes at the same time. `configure` sets up each node by its number, from 0.
    ///
    /// If one node does not start, all others have ended when this function returns.
    pub fn start_with(
        n: usize,
        mut configure: impl FnMut(usize, ServerBuilder) -> ServerBuilder,
    ) -> Result<Self, StartError> {
        let builders: Vec<_> =
            (0..n).map(|index| configure(index, Server::with_module())).collect();
        in_parallel(builders, ServerBuilder::start).into_iter().collect::<Result<_, _>>().map(Self)
    }

    /// Returns the address of each node, in order.
    pub fn urls(&self) -> Vec<String> {
        self.iter().map(Server::url).collect()
    }
}

/// The nodes in order, running or not.
impl Deref for Nodes {
    type Target = [Server];

    fn deref(&self) -> &[Server] {
        &self.0
    }
}

impl DerefMut for Nodes {
    fn deref_mut(&mut self) -> &mut [Server] {
        &mut self.0
    }
}

impl<'a> IntoIterator for &'a Nodes {
    type Item = &'a Server;
    type IntoIter = slice::Iter<'a, Server>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
