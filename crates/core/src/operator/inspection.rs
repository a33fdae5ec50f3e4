use std::collections::{BTreeMap, BTreeSet};
use std::iter::repeat_n;
use std::time::Duration;

use crate::client::Topology;
use crate::quorum::Majority;
use crate::{Fence, NodeError};

/// A key that is taken on one node, as the node describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseInfo {
    /// The label, if any, of the client that acquired the lock: the first holder if it is shared.
    pub owner: Option<String>,
    /// The label, if any, of each client that holds the lock, in the order of the grants. A node
    /// names at most ten holders of a shared lock.
    pub owners: Vec<Option<String>>,
    /// The fence of the lock; `None` for a key that another program wrote with `SET`.
    pub fence: Option<Fence>,
    /// How much longer the key is taken; `None` for a key without an expiry.
    pub ttl: Option<Duration>,
    /// How many clients wait for the key on this node.
    pub waiters: u64,
    /// How many keys the lock has.
    pub keys: u64,
    /// How long ago the node granted the lock; `None` for a key that another program wrote.
    pub held_for: Option<Duration>,
    /// The kind of lock.
    pub mode: LockMode,
    /// How many clients hold the lock: one, unless it is shared.
    pub holders: u64,
    /// The first clients that wait on this node, in the order of the queue.
    pub queue: Vec<WaiterInfo>,
    /// Whether an operator revoked the lock; always false for a key that another program wrote.
    pub revoked: bool,
}

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockMode {
    /// It has one holder.
    Exclusive,
    /// Several clients can hold it together.
    Shared,
    /// A string that another program wrote with `SET`.
    Foreign,
    /// A kind that this version of the client does not know.
    Unknown,
}

/// A client that waits for a lock, as a node describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaiterInfo {
    /// The label that it gave, if it gave one.
    pub owner: Option<String>,
    /// The name of its connection.
    pub client: Option<String>,
    /// Its user on the node.
    pub user: Option<String>,
    /// Its address, `host:port` or `unix`.
    pub address: Option<String>,
}

/// What a client's nodes say together about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockState {
    /// The key is free on a majority of the nodes.
    Free,
    /// One lock holds the key on a majority of the nodes, as its fence or its owner shows.
    Held(HeldLock),
    /// Neither. Too few nodes answered, several clients compete for the key, or programs that use
    /// `SET` hold it.
    Unclear,
}

/// A lock that a majority of the nodes holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldLock {
    /// The fence that a majority of the nodes has in common. Without one, the smallest fence of an
    /// exclusive lock, which is most likely the holder's, and the largest of a shared one.
    pub fence: Fence,
    /// The owner that most of these nodes name; one of the holders of a shared lock.
    pub owner: Option<String>,
    /// The kind of lock.
    pub mode: LockMode,
    /// How many clients hold it, as far as the nodes say: one, unless it is shared.
    pub holders: u64,
    /// The sorted labels, if any, of the clients that the nodes name.
    pub owners: Vec<Option<String>>,
    /// The nodes that hold the lock, as indices into the client's list of nodes.
    pub nodes: Vec<usize>,
    /// The longest time for which the lock excludes other clients, unless it is extended.
    pub at_most: Duration,
}

impl Default for LeaseInfo {
    /// A lock of one key, about which nothing else is known.
    fn default() -> Self {
        Self {
            owner: None,
            owners: Vec::new(),
            fence: None,
            ttl: None,
            waiters: 0,
            keys: 1,
            held_for: None,
            mode: LockMode::Unknown,
            holders: 1,
            queue: Vec::new(),
            revoked: false,
        }
    }
}

/// The connection of each node for an INSPECT, or why the node is not asked.
pub fn inspection_routes(topology: &Topology) -> Vec<Result<u64, NodeError>> {
    (0..topology.nodes.len()).map(|node| topology.route_inspect(node)).collect()
}

/// The answer of a node about a key. `abstains` says why the node abstains, if it does.
///
/// A node that abstains may have forgotten the lock. If the key is free there, returns an error.
pub fn inspection_answer(
    lease: Option<LeaseInfo>,
    abstains: Option<String>,
) -> Result<Option<LeaseInfo>, NodeError> {
    match (lease, abstains) {
        (None, Some(reason)) => Err(NodeError::Abstains { reason }),
        (lease, _) => Ok(lease),
    }
}

/// Decides what the answers of all nodes say about a key. `Ok(None)` is a node where it is free.
///
/// The fence identifies a lock, because only one lock can have a given fence on a majority of the
/// nodes. The owner label does not: an attached lock keeps its label on some nodes and gets another
/// one where it is repaired.
///
/// A node can hold that lock with a larger fence: its clock is ahead, or it was repaired after it
/// had lost the lock, and a node never grants a fence twice. Only the label shows that such a node
/// holds the lock. If a majority has no fence in common, the smallest one is most likely that of
/// the lock.
pub fn summarize(majority: Majority, nodes: &[Result<Option<LeaseInfo>, NodeError>]) -> LockState {
    let free = nodes.iter().filter(|answer| matches!(answer, Ok(None))).count();
    if free >= majority.size() {
        return LockState::Free;
    }
    let leases =
        || nodes.iter().enumerate().filter_map(|(node, answer)| Some((node, lease(answer)?)));
    let held = |fence: Fence, holding: &[(usize, &LeaseInfo)]| {
        let unknown = nodes.iter().filter(|answer| answer.is_err()).count();
        let owners = owners(holding);
        let most = holding.iter().map(|(_, lease)| lease.holders).max().unwrap_or(1);
        LockState::Held(HeldLock {
            fence,
            owner: most_named(holding),
            mode: holding.first().map_or(LockMode::Unknown, |(_, lease)| lease.mode),
            holders: most.max(u64::try_from(owners.len()).unwrap_or(u64::MAX)),
            owners,
            nodes: holding.iter().map(|&(node, _)| node).collect(),
            at_most: at_most(majority, holding.iter().filter_map(|(_, lease)| lease.ttl), unknown),
        })
    };
    let shared: Vec<_> = leases().filter(|(_, lease)| lease.mode == LockMode::Shared).collect();
    let largest = shared.iter().filter_map(|(_, lease)| lease.fence).max();
    if let Some(fence) = largest.filter(|_| shared.len() >= majority.size()) {
        // Each node reports the largest fence that a holder has had there.
        return held(fence, &shared);
    }
    let is_named = |lease: &LeaseInfo, owner: &Option<String>| {
        owner.is_some() && lease.owner == *owner && lease.mode == LockMode::Exclusive
    };
    let holding = |fence: Option<Fence>, owner: &Option<String>| -> Vec<(usize, &LeaseInfo)> {
        let has_fence = |lease: &LeaseInfo| fence.is_some() && lease.fence == fence;
        leases().filter(|(_, lease)| has_fence(lease) || is_named(lease, owner)).collect()
    };
    let mut fences = leases().filter_map(|(_, lease)| lease.fence);
    if let Some(fence) = fences.find(|fence| holding(Some(*fence), &None).len() >= majority.size())
    {
        let owner = most_named(&holding(Some(fence), &None));
        return held(fence, &holding(Some(fence), &owner));
    }
    for (_, LeaseInfo { owner, .. }) in leases() {
        let holding = holding(None, owner);
        let smallest = holding.iter().filter_map(|(_, lease)| lease.fence).min();
        if let Some(fence) = smallest.filter(|_| holding.len() >= majority.size()) {
            return held(fence, &holding);
        }
    }
    LockState::Unclear
}

/// Chooses the lease to name as the reason why a lock is refused, from the leases that each node
/// has under the lock's keys: the one that most nodes report, as its fence shows, or else the
/// oldest one. Its number of holders includes those of the other leases.
pub fn main_lease(nodes: &[Vec<LeaseInfo>]) -> Option<LeaseInfo> {
    let reports = |fence| {
        let has = |leases: &&Vec<LeaseInfo>| leases.iter().any(|lease| lease.fence == fence);
        nodes.iter().filter(has).count()
    };
    // A lock of several keys has the same fence under each of them.
    let holders = |leases: &Vec<LeaseInfo>| {
        let locks: BTreeMap<_, _> = leases.iter().map(|it| (it.fence, it.holders)).collect();
        locks.into_values().fold(0, u64::saturating_add)
    };
    let main = nodes.iter().flatten().max_by_key(|it| (reports(it.fence), it.held_for))?;
    let holders = nodes.iter().map(holders).max().unwrap_or(main.holders);
    Some(LeaseInfo { holders, ..main.clone() })
}

/// The labels of the clients that hold the lock on any of these nodes.
///
/// A label of a shared lock appears as often as on the node that names it most often. An exclusive
/// lock has one label: the one that most of the nodes name.
fn owners(holding: &[(usize, &LeaseInfo)]) -> Vec<Option<String>> {
    let count_on = |lease: &LeaseInfo, owner: &Option<String>| {
        lease.owners.iter().filter(|other| *other == owner).count()
    };
    let all: BTreeSet<_> = holding.iter().flat_map(|(_, lease)| &lease.owners).collect();
    let times = |owner: &&Option<String>| {
        let most = holding.iter().map(|(_, lease)| count_on(lease, owner)).max().unwrap_or(0);
        repeat_n((*owner).clone(), most)
    };
    let is_shared = holding.iter().any(|(_, lease)| lease.mode == LockMode::Shared);
    if is_shared { all.iter().flat_map(times).collect() } else { vec![most_named(holding)] }
}

fn lease(answer: &Result<Option<LeaseInfo>, NodeError>) -> Option<&LeaseInfo> {
    answer.as_ref().ok()?.as_ref()
}

/// How long until the nodes that do not hold the lock are a majority. Each of the `unknown` nodes
/// may hold the lock longer than all nodes that answered.
fn at_most(majority: Majority, ttls: impl Iterator<Item = Duration>, unknown: usize) -> Duration {
    let mut ttls: Vec<_> = ttls.collect();
    ttls.sort_unstable_by(|a, b| b.cmp(a));
    // A majority answered, so at most `spare` nodes are unknown.
    let last = majority.spare().saturating_sub(unknown);
    ttls.get(last).or(ttls.last()).copied().unwrap_or_default()
}

/// The label that most of the nodes name; the first one if several are named equally often.
fn most_named(holding: &[(usize, &LeaseInfo)]) -> Option<String> {
    let owners = || holding.iter().map(|(_, lease)| lease.owner.as_deref());
    let mut best = (None, 0);
    for owner in owners() {
        let count = owners().filter(|other| *other == owner).count();
        if count > best.1 {
            best = (owner, count);
        }
    }
    best.0.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Inspected = Result<Option<LeaseInfo>, NodeError>;

    const FREE: Inspected = Ok(None);

    #[expect(clippy::unnecessary_wraps, reason = "as a node answers")]
    fn held(owner: &str, fence: u64, ttl_ms: u64) -> Inspected {
        Ok(Some(LeaseInfo {
            owner: (!owner.is_empty()).then(|| owner.to_owned()),
            fence: Fence::new(fence),
            ttl: Some(Duration::from_millis(ttl_ms)),
            mode: LockMode::Exclusive,
            ..LeaseInfo::default()
        }))
    }

    /// A key that another program wrote.
    #[expect(clippy::unnecessary_wraps, reason = "as a node answers")]
    fn foreign() -> Inspected {
        Ok(Some(LeaseInfo::default()))
    }

    fn silent() -> Inspected {
        Err(NodeError::timed_out(Duration::from_millis(50)))
    }

    fn state(answers: &[Inspected]) -> LockState {
        summarize(Majority::of(answers.len()).unwrap(), answers)
    }

    fn held_by(answers: &[Inspected]) -> HeldLock {
        match state(answers) {
            LockState::Held(held) => held,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn majority_of_free_nodes_is_free() {
        assert_eq!(state(&[FREE, FREE, FREE]), LockState::Free);
        assert_eq!(state(&[FREE, silent(), FREE]), LockState::Free);
        assert_eq!(state(&[held("a", 7, 100), FREE, FREE]), LockState::Free);
    }

    #[test]
    fn majority_with_one_fence_is_held() {
        let held = held_by(&[held("a", 7, 900), FREE, held("a", 7, 800)]);
        assert_eq!((held.fence.get(), held.owner.as_deref()), (7, Some("a")));
        assert_eq!(held.nodes, [0, 2]);
    }

    #[test]
    fn node_with_another_fence_counts_if_it_names_the_same_owner() {
        let nodes =
            |other: Inspected| held_by(&[held("a", 7, 900), other, held("a", 7, 800)]).nodes;
        assert_eq!(nodes(held("a", 9, 900)), [0, 1, 2], "repaired, or with a clock that is ahead");
        assert_eq!(nodes(held("b", 9, 900)), [0, 2], "another client");
        assert_eq!(nodes(held("", 9, 900)), [0, 2]);
        assert_eq!(nodes(foreign()), [0, 2]);
        // A node whose clock is ahead, one that was repaired, and one with the fence of the lock.
        let none_in_common = held_by(&[held("a", 9, 900), held("a", 8, 900), held("a", 7, 800)]);
        assert_eq!((none_in_common.nodes, none_in_common.fence.get()), (vec![0, 1, 2], 7));
        let unnamed = held_by(&[held("", 7, 900), held("", 9, 900), held("", 7, 800)]);
        assert_eq!((unnamed.nodes, unnamed.fence.get()), (vec![0, 2], 7));
    }

    #[test]
    fn main_lease_is_the_one_that_most_nodes_report_or_else_the_oldest() {
        let lease = |owner: &str, fence, held_ms| {
            let lease = held(owner, fence, 900).unwrap().unwrap();
            LeaseInfo { held_for: Some(Duration::from_millis(held_ms)), ..lease }
        };
        let named = |nodes: &[Vec<LeaseInfo>]| {
            main_lease(nodes).map(|lease| (lease.owner.unwrap_or_default(), lease.holders))
        };
        let (a, partial) = (|| vec![lease("a", 7, 5)], || vec![lease("partial", 9, 70)]);
        assert_eq!(named(&[a(), partial(), a()]), Some(("a".into(), 1)));
        assert_eq!(named(&[a(), partial(), vec![]]), Some(("partial".into(), 1)));
        assert_eq!(named(&[vec![], vec![]]), None);
        // Two of the permits of a semaphore are taken, and both keys of a lock of two keys.
        let permits = || vec![lease("a", 7, 5), lease("b", 6, 9)];
        assert_eq!(named(&[permits(), permits()]), Some(("b".into(), 2)));
        assert_eq!(named(&[[a(), a()].concat(), a()]), Some(("a".into(), 1)));
    }

    #[test]
    fn shared_lock_has_the_holders_of_all_nodes() {
        let shared = |owners: &[&str], fence| {
            held(owners[0], fence, 100).map(|lease| {
                lease.map(|lease| LeaseInfo {
                    mode: LockMode::Shared,
                    holders: u64::try_from(owners.len()).unwrap(),
                    owners: owners.iter().map(|owner| Some((*owner).to_owned())).collect(),
                    ..lease
                })
            })
        };
        let lock = held_by(&[shared(&["b", "a"], 7), shared(&["a", "c", "a"], 9), FREE]);
        let owners: Vec<_> = lock.owners.iter().map(|owner| owner.as_deref().unwrap()).collect();
        assert_eq!((lock.mode, lock.holders, lock.fence.get()), (LockMode::Shared, 4, 9));
        assert_eq!(owners, ["a", "a", "b", "c"], "two holders have the same label");
        assert_eq!(lock.nodes, [0, 1]);
        // A writer on a minority of the nodes, and a reader on another minority.
        let mixed = [shared(&["a"], 7), held("w", 8, 100), FREE];
        assert_eq!(state(&mixed), LockState::Unclear);
    }

    #[test]
    fn no_majority_is_unclear() {
        for answers in [
            vec![silent(), silent(), FREE],
            vec![silent(), silent(), held("a", 7, 100)],
            vec![held("a", 7, 100), held("b", 8, 100), FREE],
            vec![held("a", 7, 100), FREE, silent()],
            vec![held("", 7, 100), held("", 8, 100), held("", 9, 100)],
            vec![foreign(), foreign(), foreign()],
            // Half of an even number of nodes is no majority.
            vec![held("a", 7, 100), held("a", 7, 100), FREE, FREE],
        ] {
            assert_eq!(state(&answers), LockState::Unclear, "{answers:?}");
        }
    }

    #[test]
    fn lock_excludes_others_until_a_majority_is_free() {
        // A lock on one of three nodes excludes no other client.
        let three = [held("", 7, 900), held("", 7, 800), held("", 7, 100)];
        assert_eq!(held_by(&three).at_most.as_millis(), 800);
        let five = [held("", 7, 500), held("", 7, 300), FREE, held("", 7, 400), FREE];
        assert_eq!(held_by(&five).at_most.as_millis(), 300);
        // Three of four are a majority. While two nodes hold the lock, no other client gets three.
        let four = [held("", 7, 500), held("", 7, 400), held("", 7, 300), FREE];
        assert_eq!(held_by(&four).at_most.as_millis(), 400);
        assert_eq!(held_by(&[held("", 7, 500)]).at_most.as_millis(), 500);
    }

    #[test]
    fn silent_node_may_hold_the_lock_longer() {
        let three = [held("", 7, 900), silent(), held("", 7, 800)];
        assert_eq!(held_by(&three).at_most.as_millis(), 900);
        let five = [silent(), held("", 7, 300), held("", 7, 500), held("", 7, 400), silent()];
        assert_eq!(held_by(&five).at_most.as_millis(), 500);
    }

    #[test]
    fn abstaining_node_answers_only_with_a_lease() {
        let abstains = || Some("9 ms more (start)".to_owned());
        let forgot = inspection_answer(None, abstains());
        assert_eq!(forgot, Err(NodeError::Abstains { reason: "9 ms more (start)".into() }));
        let lease = LeaseInfo::default();
        assert_eq!(inspection_answer(Some(lease.clone()), abstains()), Ok(Some(lease)));
        assert_eq!(inspection_answer(None, None), Ok(None));
    }

    #[test]
    fn owner_is_the_one_that_most_nodes_name() {
        let held = held_by(&[held("old", 7, 1), held("new", 7, 1), held("new", 7, 1)]);
        assert_eq!(held.owner.as_deref(), Some("new"));
        let unnamed = [self::held("", 7, 1), self::held("", 7, 1), self::held("new", 7, 1)];
        assert_eq!(held_by(&unnamed).owner, None);
    }
}
