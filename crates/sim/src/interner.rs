use std::collections::HashSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use crate::server::Server;

/// Stores equal servers once: the millions of states of a [`World`](crate::World) share far fewer
/// distinct servers.
#[derive(Default)]
pub(crate) struct Interner {
    servers: Mutex<HashSet<Interned>>,
}

/// A server in an interner. It never changes, so its hash is computed once.
#[derive(Clone, Debug)]
pub(crate) struct Interned(Arc<Entry>);

#[derive(Debug)]
struct Entry {
    server: Server,
    hash: u64,
}

impl Interner {
    /// Returns the stored server that equals `server`. Adds `server` if there is none.
    pub(crate) fn intern(&self, server: Server) -> Interned {
        let mut hasher = DefaultHasher::new();
        server.hash(&mut hasher);
        let interned = Interned(Arc::new(Entry { server, hash: hasher.finish() }));
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = servers.get(&interned) {
            return same.clone();
        }
        servers.insert(interned.clone());
        interned
    }
}

/// A clone is empty, because a copied world has states of its own.
impl Clone for Interner {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for Interner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interner").finish_non_exhaustive()
    }
}

impl Deref for Interned {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0.server
    }
}

impl PartialEq for Interned {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.0.hash == other.0.hash && self.0.server == other.0.server)
    }
}

impl Eq for Interned {}

impl Hash for Interned {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash.hash(state);
    }
}
