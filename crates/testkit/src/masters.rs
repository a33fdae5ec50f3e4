use std::ops::{Index, IndexMut};
use std::slice;
use std::thread;

use crate::{Server, ServerBuilder, StartError};

/// Independent servers with the Quorlock module: what a quorum is taken from.
#[derive(Debug)]
pub struct Masters(Vec<Server>);

impl Masters {
    /// The largest number that is started: more would be a mistake.
    pub const MAX: usize = 64;

    /// Starts `n` masters at the same time.
    ///
    /// # Panics
    ///
    /// With the error of the first one that does not start; see [`Masters::start_with`].
    #[track_caller]
    pub fn start(n: usize) -> Self {
        match Self::start_with(n, |_, builder| builder) {
            Ok(masters) => masters,
            Err(error) => panic!("{n} masters do not start: {error}"),
        }
    }

    /// Starts `n` masters at the same time, each with the settings that `configure` gives to its number, from 0.
    ///
    /// When one of them does not start, the others are gone too when this returns.
    ///
    /// # Panics
    ///
    /// When `n` is larger than [`Masters::MAX`].
    pub fn start_with(
        n: usize,
        mut configure: impl FnMut(usize, ServerBuilder) -> ServerBuilder,
    ) -> Result<Self, StartError> {
        assert!(n <= Self::MAX, "{n} masters are more than {}", Self::MAX);
        let builders: Vec<_> = (0..n).map(|index| configure(index, Server::with_module())).collect();
        let started: Vec<_> = thread::scope(|scope| {
            let starting: Vec<_> =
                builders.into_iter().map(|builder| scope.spawn(move || builder.start())).collect();
            starting.into_iter().map(thread::ScopedJoinHandle::join).collect()
        });
        let servers =
            started.into_iter().map(|joined| joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        servers.collect::<Result<_, _>>().map(Self)
    }

    /// How many there are, running or not.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The address of each, in order.
    pub fn urls(&self) -> Vec<String> {
        self.iter().map(Server::url).collect()
    }

    /// All of them, in order.
    pub fn iter(&self) -> slice::Iter<'_, Server> {
        self.0.iter()
    }

    /// All of them, in order, to be killed and restarted.
    pub fn iter_mut(&mut self) -> slice::IterMut<'_, Server> {
        self.0.iter_mut()
    }
}

impl Index<usize> for Masters {
    type Output = Server;

    fn index(&self, index: usize) -> &Server {
        &self.0[index]
    }
}

impl IndexMut<usize> for Masters {
    fn index_mut(&mut self, index: usize) -> &mut Server {
        &mut self.0[index]
    }
}

impl<'a> IntoIterator for &'a Masters {
    type Item = &'a Server;
    type IntoIter = slice::Iter<'a, Server>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Masters {
    type Item = &'a mut Server;
    type IntoIter = slice::IterMut<'a, Server>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}
