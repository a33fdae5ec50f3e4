//! Which server has which node's vote.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The servers that the nodes of a client are connected to, by their run ids. A server to which two nodes lead has one vote.
#[derive(Default)]
pub(crate) struct Roll {
    nodes: Mutex<HashMap<Arc<str>, Arc<str>>>,
}

impl Roll {
    /// A node leads to this server. `Err` names another node that does so already.
    pub(super) fn enter(&self, node: &Arc<str>, run_id: &Arc<str>) -> Result<(), Arc<str>> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((other, _)) = nodes.iter().find(|(other, known)| *other != node && *known == run_id) {
            return Err(Arc::clone(other));
        }
        nodes.insert(Arc::clone(node), Arc::clone(run_id));
        Ok(())
    }

    /// A node leads to no server now.
    pub(super) fn leave(&self, node: &Arc<str>) {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).remove(node);
    }
}
