use std::collections::HashSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use crate::server::Server;

/// Stores each distinct server of the states of a world once.
///
/// Millions of states contain far fewer distinct servers.
#[derive(Default)]
pub(crate) struct Pool {
    servers: Mutex<HashSet<Pooled>>,
}

/// A server in a pool. It never changes, so its hash is computed once.
#[derive(Clone, Debug)]
pub(crate) struct Pooled(Arc<Entry>);

#[derive(Debug)]
struct Entry {
    server: Server,
    hash: u64,
}

impl Pool {
    /// Returns the server of this pool that equals `server`. Adds `server` if there is none.
    pub(crate) fn share(&self, server: Server) -> Pooled {
        let mut hasher = DefaultHasher::new();
        server.hash(&mut hasher);
        let pooled = Pooled(Arc::new(Entry { server, hash: hasher.finish() }));
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = servers.get(&pooled) {
            return same.clone();
        }
        servers.insert(pooled.clone());
        pooled
    }
}

/// A clone is an empty pool, because the copy of a world has states of its own.
impl Clone for Pool {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

impl Deref for Pooled {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0.server
    }
}

impl PartialEq for Pooled {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.0.hash == other.0.hash && self.0.server == other.0.server)
    }
}

impl Eq for Pooled {}

impl Hash for Pooled {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash.hash(state);
    }
}
