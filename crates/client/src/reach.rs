//! On which nodes a lock may be, from the first ACQUIRE to its end: where it must be released.

use std::time::{Duration, Instant};

use crate::sync::{Mutex, PoisonError};

/// Whether, and how, an ACQUIRE was sent to a node through a connection `C`.
#[derive(Clone, Debug)]
pub(crate) enum Reached<C> {
    No,
    /// Through this connection, and it may not have arrived yet.
    Through(C),
    /// It has arrived, and any connection will do.
    Somehow,
}

/// The nodes of one held lock. Its holder ends it at any moment, also while it is being repaired.
///
/// A repair asks [`begin`](Self::begin) before it sends, and [`is_over`](Self::is_over) when it has been answered or given up.
/// Whoever ends the lock takes all nodes with [`end`](Self::end) before it sends. So either the end knows of the repair, or
/// the repair of the end; and if the two cross, the repair undoes itself.
pub(crate) struct Reach<C> {
    nodes: Mutex<Nodes<C>>,
}

struct Nodes<C> {
    over: bool,
    reached: Vec<Reached<C>>,
    /// By when they were sent their ACQUIREs,
    sent: Instant,
    /// but for those that were sent another one, and when.
    sent_again: Vec<(usize, Instant)>,
}

impl<C: Clone> Reach<C> {
    pub(crate) fn new(reached: Vec<Reached<C>>) -> Self {
        let nodes = Nodes { over: false, reached, sent: Instant::now(), sent_again: Vec::new() };
        Self { nodes: Mutex::new(nodes) }
    }

    /// A node is about to be sent an ACQUIRE. False if nothing may be sent: because the lock is over, or because an earlier
    /// ACQUIRE may still be on its way there. Two of them could give the node the lock again after somebody has ended it
    /// there. One that has not arrived for so long is not waited for.
    pub(crate) fn begin(&self, node: usize, through: &C, on_its_way_max: Duration) -> bool {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if nodes.over {
            return false;
        }
        let again = nodes.sent_again.iter().find(|(other, _)| *other == node);
        let sent = again.map_or(nodes.sent, |(_, again)| *again);
        if matches!(nodes.reached[node], Reached::Through(_)) && sent.elapsed() < on_its_way_max {
            return false;
        }
        nodes.reached[node] = Reached::Through(through.clone());
        nodes.sent_again.retain(|(other, _)| *other != node);
        nodes.sent_again.push((node, Instant::now()));
        true
    }

    /// A node has answered something that shows that its ACQUIRE has arrived, if it was sent through such a connection.
    pub(crate) fn arrived(&self, node: usize, shows: impl FnOnce(&C) -> bool) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever ended it has taken them all.
        if let Some(Reached::Through(connection)) = nodes.reached.get(node)
            && shows(connection)
        {
            nodes.reached[node] = Reached::Somehow;
        }
    }

    /// Whether a node was sent an ACQUIRE.
    pub(crate) fn has_reached(&self, node: usize) -> bool {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        !matches!(nodes.reached.get(node), Some(Reached::No))
    }

    /// Whether its holder has ended it.
    pub(crate) fn is_over(&self) -> bool {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).over
    }

    /// Its holder ends it: where it must be released.
    pub(crate) fn end(&self) -> Vec<Reached<C>> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.over = true;
        std::mem::take(&mut nodes.reached)
    }
}
