use std::collections::BTreeMap;

use super::inspection::{inspection_answer, summarize};
use super::{LeaseInfo, LockState};
use crate::NodeError;
use crate::quorum::Majority;

/// The locks that the nodes list, merged by key: the first ones in the order of their keys.
///
/// Its memory is bounded: a key that is not among the first `limit` keys is dropped. A dropped key
/// is never among the first ones later, so each key that is kept has the answer of every node.
#[derive(Debug)]
pub struct Listing {
    limit: usize,
    locks: BTreeMap<Vec<u8>, Vec<Option<LeaseInfo>>>,
    /// How each node's list [ended](Self::finish); an error while the node may list more locks.
    nodes: Vec<Result<Option<String>, NodeError>>,
    is_truncated: bool,
}

/// A key that some nodes list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedLock {
    /// The key.
    pub key: Vec<u8>,
    /// What a majority of the nodes says about the key. [`LockState::Free`] means that only a
    /// minority has a lock: its client is acquiring or releasing it, or is gone.
    pub state: LockState,
    /// The answer of each node, in the order of the nodes.
    pub nodes: Vec<Result<Option<LeaseInfo>, NodeError>>,
}

impl Listing {
    /// Makes an empty list of at most `limit` locks on `nodes` nodes.
    pub fn new(nodes: usize, limit: usize) -> Self {
        let nodes = vec![Err(NodeError::UnexpectedReply); nodes];
        Self { limit, locks: BTreeMap::new(), nodes, is_truncated: false }
    }

    /// Records a lock that a node lists. If the node lists a key twice, the later entry counts.
    pub fn add(&mut self, node: usize, key: Vec<u8>, lease: LeaseInfo) {
        let nodes = self.nodes.len();
        self.locks.entry(key).or_insert_with(|| vec![None; nodes])[node] = Some(lease);
        if self.locks.len() > self.limit {
            self.locks.pop_last();
            self.is_truncated = true;
        }
    }

    /// Records how a node's list ended. After `Ok(None)` the list is complete. `Ok` with the reason
    /// of an abstention means that the node may have forgotten locks.
    pub fn finish(&mut self, node: usize, ended: Result<Option<String>, NodeError>) {
        self.nodes[node] = ended;
    }

    /// Whether keys were dropped because there were more than the limit.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// Why each node's list may lack locks; `None` if it is complete.
    pub fn failures(&self) -> impl Iterator<Item = Option<NodeError>> + use<'_> {
        self.nodes.iter().map(|node| answer(node, None).err())
    }

    /// Merges the answers of the nodes, in the order of the keys.
    pub fn merge(mut self, majority: Majority) -> Vec<ListedLock> {
        let locks = std::mem::take(&mut self.locks);
        let listed = |(key, leases): (Vec<u8>, Vec<Option<LeaseInfo>>)| {
            let answers = self.nodes.iter().zip(leases);
            let nodes: Vec<_> = answers.map(|(node, lease)| answer(node, lease)).collect();
            ListedLock { key, state: summarize(majority, &nodes), nodes }
        };
        locks.into_iter().map(listed).collect()
    }
}

/// A node's answer about a key, from what it lists for the key and how its list ended.
fn answer(
    ended: &Result<Option<String>, NodeError>,
    lease: Option<LeaseInfo>,
) -> Result<Option<LeaseInfo>, NodeError> {
    match (lease, ended) {
        (Some(lease), _) => Ok(Some(lease)),
        (None, Ok(abstains)) => inspection_answer(None, abstains.clone()),
        (None, Err(error)) => Err(error.clone()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Fence;

    fn lease(fence: u64) -> LeaseInfo {
        LeaseInfo {
            fence: Fence::new(fence),
            ttl: Some(Duration::from_secs(fence)),
            ..LeaseInfo::default()
        }
    }

    fn merged(listing: Listing) -> Vec<(String, &'static str)> {
        let locks = listing.merge(Majority::of(3).unwrap());
        let name = |lock: ListedLock| {
            let state = match lock.state {
                LockState::Held(_) => "held",
                LockState::Free => "free",
                LockState::Unclear => "unclear",
            };
            (String::from_utf8(lock.key).unwrap(), state)
        };
        locks.into_iter().map(name).collect()
    }

    fn named((key, state): (&str, &'static str)) -> (String, &'static str) {
        (key.to_owned(), state)
    }

    #[test]
    fn keys_are_merged_into_what_a_majority_says() {
        let mut listing = Listing::new(3, 10);
        for (node, key, fence) in [
            (0, "c", 7),
            (1, "c", 7),
            (2, "c", 7),
            (0, "a", 5),
            (2, "a", 5),
            (1, "b", 9),
            (1, "a", 4),
        ] {
            listing.add(node, key.into(), lease(fence));
        }
        (0..3).for_each(|node| listing.finish(node, Ok(None)));
        assert!(!listing.is_truncated());
        assert!(listing.failures().all(|error| error.is_none()));
        assert_eq!(merged(listing), [("a", "held"), ("b", "free"), ("c", "held")].map(named));
    }

    #[test]
    fn key_is_not_free_on_a_node_whose_list_is_incomplete() {
        let mut listing = Listing::new(3, 10);
        listing.add(0, b"k".to_vec(), lease(7));
        listing.finish(0, Ok(None));
        listing.finish(1, Err(NodeError::timed_out(Duration::from_millis(50))));
        listing.finish(2, Ok(Some("9 ms more (start)".into())));
        let failures: Vec<_> = listing.failures().collect();
        assert!(failures[0].is_none() && matches!(failures[1], Some(NodeError::TimedOut { .. })));
        assert!(matches!(failures[2], Some(NodeError::Abstains { .. })));
        assert_eq!(merged(listing), [("k", "unclear")].map(named));
    }

    #[test]
    fn limit_keeps_the_first_keys_with_the_answer_of_every_node() {
        let keys = ["d", "b", "e", "a", "c"];
        for order in [[0, 1, 2], [2, 0, 1]] {
            let mut listing = Listing::new(3, 2);
            for node in order {
                for turn in 0..keys.len() {
                    let key = keys[(turn + node) % keys.len()];
                    listing.add(node, key.into(), lease(7));
                }
                listing.finish(node, Ok(None));
            }
            assert!(listing.is_truncated());
            let locks = listing.merge(Majority::of(3).unwrap());
            assert_eq!(locks.iter().map(|lock| &lock.key[..]).collect::<Vec<_>>(), [b"a", b"b"]);
            let on_all =
                |lock: &ListedLock| lock.nodes.iter().all(|node| matches!(node, Ok(Some(_))));
            assert!(locks.iter().all(on_all));
        }
    }
}
