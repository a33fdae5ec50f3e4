//! Which set of nodes a node belongs to, and which nodes the set admits. `client/links.rs` decides
//! which nodes may vote, by the set and by what else a node reports.
//!
//! Two clients with different lists of nodes can both win the same lock. Each node therefore
//! carries its set in the config `lock.set NAME ID MEMBERS`, and a client compares the reports of
//! its nodes before it asks any of them for a lock.
//!
//! # Why clients with different lists exclude each other
//!
//! A client of N nodes admits a node only if the node's set has a list L of N members, the node's
//! ID is in L, no other of the client's nodes has that NAME and ID, and N/2 + 1 of the client's
//! nodes report the same NAME and L. The two lists of a change differ in size, so a node has at
//! most one list of N members. Two majorities share a node, so a client has at most one L. Its
//! admitted nodes have different IDs of L, so the nodes that grant it a lock are a majority of L.
//! Take two clients with the lists L and M of one NAME:
//!
//! 1. L and M are equal or differ by one member. Every majority of L shares a member with every
//!    majority of M: with N and N + 1 members the two majorities count N + 2 members together, and
//!    the lists have only N + 1 different members.
//! 2. L and M differ by more. No node is admitted by both clients, since no set has both lists.
//!
//! Admission alone does not make case 2 safe. When nodes 1 and 2 report `1,2,3`, and nodes 3, 4 and
//! 5 report `1,2,3,4,5`, each group is a majority of its own list, and neither client needs a node
//! of the other group. Two rules for the operator prevent case 2:
//!
//! - An ID names one server and is never used again.
//! - A set has one change at a time, by one member, and the change is complete on every node before
//!   the next one begins.
//!
//! Then the nodes report at most two lists at a time, the one before the present change and the one
//! after it, and each client that wins a lock has one of them: case 1. Unset nodes have no list, so
//! none of this holds for a client whose majority is unset.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use crate::quorum::Majority;

/// The longest NAME.
pub const NAME_MAX_BYTES: usize = 64;

/// The most members in one list.
pub const MEMBERS_MAX: usize = 64;

const EXCERPT_MAX_CHARS: usize = 40;

/// The ID of a node within its set: 1 to 65535. An ID is never given to another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(NonZeroU16);

/// The IDs of the nodes of a set, ascending, each once: 1 to [`MEMBERS_MAX`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemberList(Vec<NodeId>);

/// The members of a set: one list, or two while a member is added or removed: before the change and
/// after it. Written `OLD>NEW`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Members(Vec<MemberList>);

/// The set that one node belongs to: the value of its config `lock.set`.
///
/// Parses from `NAME ID MEMBERS` and displays as the same text with sorted members.
///
/// ```
/// use quorlock_core::node_set::NodeSet;
///
/// let set: NodeSet = "eu-locks 2 4,2,1".parse()?;
/// assert_eq!(set.to_string(), "eu-locks 2 1,2,4");
/// # Ok::<(), quorlock_core::node_set::InvalidSet>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeSet {
    name: String,
    id: NodeId,
    members: Members,
}

/// Why a text is not a [`NodeSet`], and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSet {
    /// The text does not have three words.
    #[error(
        "lock.set needs three words, NAME ID MEMBERS, but has {words}; write, for example, \
         lock.set \"eu-locks 2 1,2,4,5,6\", without spaces inside MEMBERS"
    )]
    WordCount {
        /// How many words there are.
        words: usize,
    },
    /// NAME is too long, or has a character that is not allowed.
    #[error(
        "NAME \"{name}\" in lock.set is not valid; write 1 to {NAME_MAX_BYTES} letters, digits, \
         \"-\", \"_\" or \".\", for example eu-locks"
    )]
    Name {
        /// The beginning of what was written.
        name: String,
    },
    /// ID is not a number in the allowed range.
    #[error(
        "ID \"{id}\" in lock.set is not valid; write this node's own ID, a whole number from 1 to \
         65535"
    )]
    Id {
        /// The beginning of what was written.
        id: String,
    },
    /// A member is not a number in the allowed range.
    #[error(
        "member \"{member}\" in lock.set is not valid; write MEMBERS as whole numbers from 1 to \
         65535 with commas between them, for example 1,2,4,5,6"
    )]
    Member {
        /// The beginning of what was written.
        member: String,
    },
    /// A list has the same ID twice.
    #[error("MEMBERS in lock.set has ID {id} more than once; write each ID once")]
    RepeatedMember {
        /// The ID.
        id: NodeId,
    },
    /// A list is too long.
    #[error("MEMBERS in lock.set has {count} IDs; write at most {MEMBERS_MAX}")]
    TooManyMembers {
        /// How many IDs the list has.
        count: usize,
    },
    /// MEMBERS has more than one `>`.
    #[error(
        "MEMBERS in lock.set has more than one \">\"; write one change, for example \
         1,2,3>1,2,3,4"
    )]
    SeveralChanges,
    /// The lists of a change do not differ by exactly one member.
    #[error(
        "MEMBERS in lock.set adds {added} and removes {removed} members; write a change that adds \
         one or removes one, for example 1,2,3>1,2,3,4. To replace a member, add the new one and \
         complete that change, then remove the old one"
    )]
    NotOneMember {
        /// How many members only the new list has.
        added: usize,
        /// How many members only the old list has.
        removed: usize,
    },
    /// The node's own ID is in no list.
    #[error(
        "ID {id} in lock.set is not one of MEMBERS; write this node's own ID, or add it to \
         MEMBERS"
    )]
    NotAMember {
        /// The node's ID.
        id: NodeId,
    },
}

/// What a client knows of the set of one of its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SetReport {
    /// The node has not been reached yet, or this client cannot read its report.
    #[default]
    Unheard,
    /// The node's `lock.set` is empty.
    Unset,
    /// The node belongs to this set.
    Set(NodeSet),
}

/// What a majority of a client's nodes agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgreedSet {
    /// Their `lock.set` is empty. Warn: nothing protects the client from clients with other nodes.
    Unset,
    /// A majority belongs to the set of this name.
    Set {
        /// The NAME of the set.
        name: String,
        /// The list that has as many members as the client has nodes.
        members: MemberList,
    },
}

/// Whether a client asks a node for locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Not decided yet: too few nodes have been heard. Do not send ACQUIRE.
    Unknown,
    /// The node counts. Send ACQUIRE.
    Admitted,
    /// The node does not count. Do not send ACQUIRE; release and extend held locks as usual.
    Refused(NotAdmitted),
}

/// Why a client does not ask a node for locks, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// The node is unset, and the program names a set.
    #[error(
        "its lock.set is empty, but the program expects the set {expected}; write lock.set \
         \"{expected} ID MEMBERS\" into its redis.conf and restart it"
    )]
    UnsetNotExpected {
        /// The NAME that the program expects.
        expected: String,
    },
    /// The node belongs to another set than the one that the program names.
    #[error(
        "its lock.set is \"{set}\", but the program expects the set {expected}; give the program \
         the nodes of {expected}, or change the name that it expects"
    )]
    NameNotExpected {
        /// The set that the node reports.
        set: NodeSet,
        /// The NAME that the program expects.
        expected: String,
    },
    /// The set has no list with as many members as the client has nodes.
    #[error(
        "its lock.set is \"{set}\", but the client was given {}; give the client every member of \
         the set and no other node",
        number_of_nodes(*nodes)
    )]
    WrongNodeCount {
        /// The set that the node reports.
        set: NodeSet,
        /// How many nodes the client was given.
        nodes: usize,
    },
    /// The node is a member only before or after the change, and the client has the other list.
    #[error(
        "its lock.set is \"{set}\", and ID {id} is not one of the {nodes} members {members}; give \
         the client exactly the members before the change or exactly those after it",
        id = .set.id(),
        nodes = .members.ids().len()
    )]
    NotAMember {
        /// The set that the node reports.
        set: NodeSet,
        /// The list of the client.
        members: MemberList,
    },
    /// Another of the client's nodes reports the same NAME and ID.
    #[error(
        "its lock.set is \"{set}\", and node {other} of the client's list has the same ID; list \
         each server once, and give each server an ID of its own",
        other = .other + 1
    )]
    DuplicateId {
        /// The set that the node reports.
        set: NodeSet,
        /// The position of the first other node with this ID in the client's list, from 0.
        other: usize,
    },
    /// The node is unset, and a majority belongs to a set.
    #[error(
        "its lock.set is empty, but most of the client's nodes belong to {name} with the members \
         {members}; write lock.set \"{name} ID {members}\" into its redis.conf and restart it, or \
         take it off the client's list"
    )]
    UnsetAmongSet {
        /// The NAME of the majority.
        name: String,
        /// The members of the majority.
        members: MemberList,
    },
    /// The node belongs to a set, and a majority is unset.
    #[error(
        "its lock.set is \"{set}\", but most of the client's nodes have none; write lock.set into \
         their redis.conf and restart them one at a time"
    )]
    SetAmongUnset {
        /// The set that the node reports.
        set: NodeSet,
    },
    /// The node reports another NAME or other members than a majority.
    #[error(
        "its lock.set is \"{set}\", but most of the client's nodes belong to {name} with the \
         members {members}; correct its lock.set and restart it, or take it off the client's list"
    )]
    OtherSet {
        /// The set that the node reports.
        set: NodeSet,
        /// The NAME of the majority.
        name: String,
        /// The members of the majority.
        members: MemberList,
    },
    /// No majority of the client's nodes report the same set.
    #[error(
        "{}, and no majority of the client's nodes report the same set; give the client the nodes \
         of one set, and write the same NAME and MEMBERS on each of them",
        reported(.set.as_ref())
    )]
    NoMajority {
        /// The set that the node reports; `None` when it is unset.
        set: Option<NodeSet>,
    },
}

/// The result of [`agree`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// What a majority of the nodes agree on; `None` if no majority agrees, or not yet.
    pub agreed: Option<AgreedSet>,
    /// Whether each node is admitted, in the order of the client's list.
    pub nodes: Vec<Admission>,
}

/// Decides which of a client's nodes are admitted.
///
/// `nodes` has every node that the client was given, reached or not; a majority is N/2 + 1 of them.
/// `expected` is the NAME that the program names, if any.
///
/// Call this again whenever a node reports. If one more node reports for the first time, no node
/// that was refused becomes admitted, and an admitted node is refused only if it has the ID of the
/// new one.
pub fn agree(expected: Option<&str>, nodes: &[SetReport]) -> Agreement {
    let majority = Majority::of(nodes.len()).map_or(1, Majority::size);
    let unheard = nodes.iter().filter(|report| **report == SetReport::Unheard).count();
    let views: Vec<_> = nodes.iter().map(|report| view(expected, report, nodes.len())).collect();
    let valid_views = || views.iter().flatten().flatten();
    let count = |set: &AgreedSet| valid_views().filter(|view| *view == set).count();
    let agreed = valid_views().find(|set| count(set) >= majority);

    let admit = |node: usize| {
        let set = match &views[node] {
            None => return Admission::Unknown,
            Some(Err(refusal)) => return Admission::Refused(refusal.clone()),
            Some(Ok(set)) => set,
        };
        if let Some(refusal) = wrong_id(nodes, node, set) {
            return Admission::Refused(refusal);
        }
        match agreed {
            Some(agreed) if agreed == set => Admission::Admitted,
            Some(agreed) => Admission::Refused(outvoted(nodes[node].set(), agreed)),
            None if count(set) + unheard >= majority => Admission::Unknown,
            None => Admission::Refused(NotAdmitted::NoMajority { set: nodes[node].set().cloned() }),
        }
    };
    Agreement { agreed: agreed.cloned(), nodes: (0..nodes.len()).map(admit).collect() }
}

/// A node's set as the client sees it, or why the client refuses the node, whatever others report.
type View = Result<AgreedSet, NotAdmitted>;

/// The view of a client of `nodes` nodes; `None` when the node has not been heard.
fn view(expected: Option<&str>, report: &SetReport, nodes: usize) -> Option<View> {
    let set = match (report, expected) {
        (SetReport::Unheard, _) => return None,
        (SetReport::Unset, None) => return Some(Ok(AgreedSet::Unset)),
        (SetReport::Unset, Some(expected)) => {
            return Some(Err(NotAdmitted::UnsetNotExpected { expected: expected.to_owned() }));
        }
        (SetReport::Set(set), _) => set,
    };
    Some(match expected {
        Some(expected) if expected != set.name => {
            Err(NotAdmitted::NameNotExpected { set: set.clone(), expected: expected.to_owned() })
        }
        _ => match set.members.list_of(nodes) {
            Some(list) => Ok(AgreedSet::Set { name: set.name.clone(), members: list.clone() }),
            None => Err(NotAdmitted::WrongNodeCount { set: set.clone(), nodes }),
        },
    })
}

/// Why the node's ID cannot count among the client's members.
fn wrong_id(nodes: &[SetReport], node: usize, view: &AgreedSet) -> Option<NotAdmitted> {
    let set = nodes[node].set()?;
    let AgreedSet::Set { members, .. } = view else { return None };
    if !members.contains(set.id) {
        return Some(NotAdmitted::NotAMember { set: set.clone(), members: members.clone() });
    }
    let is_same = |other: &NodeSet| (&other.name, other.id) == (&set.name, set.id);
    let has_same_id = |other: &usize| *other != node && nodes[*other].set().is_some_and(is_same);
    let other = (0..nodes.len()).find(has_same_id)?;
    Some(NotAdmitted::DuplicateId { set: set.clone(), other })
}

/// Why a node whose report differs from the majority's does not count.
fn outvoted(set: Option<&NodeSet>, agreed: &AgreedSet) -> NotAdmitted {
    use AgreedSet::{Set, Unset};
    match (set.cloned(), agreed.clone()) {
        (None, Set { name, members }) => NotAdmitted::UnsetAmongSet { name, members },
        (Some(set), Set { name, members }) => NotAdmitted::OtherSet { set, name, members },
        (Some(set), Unset) => NotAdmitted::SetAmongUnset { set },
        (None, Unset) => unreachable!("an unset node agrees with an unset majority"),
    }
}

fn number_of_nodes(nodes: usize) -> String {
    format!("{nodes} node{}", if nodes == 1 { "" } else { "s" })
}

fn reported(set: Option<&NodeSet>) -> String {
    match set {
        None => "its lock.set is empty".to_owned(),
        Some(set) => format!("its lock.set is \"{set}\""),
    }
}

impl SetReport {
    /// The set that the node reports, if it belongs to one.
    pub const fn set(&self) -> Option<&NodeSet> {
        match self {
            Self::Set(set) => Some(set),
            Self::Unheard | Self::Unset => None,
        }
    }
}

impl NodeSet {
    /// The NAME of the set: 1 to [`NAME_MAX_BYTES`] letters, digits, `-`, `_` or `.`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The ID of this node within the set: one of its members.
    pub const fn id(&self) -> NodeId {
        self.id
    }

    /// The members of the set.
    pub const fn members(&self) -> &Members {
        &self.members
    }
}

impl FromStr for NodeSet {
    type Err = InvalidSet;

    fn from_str(text: &str) -> Result<Self, InvalidSet> {
        let words: Vec<_> = text.split_ascii_whitespace().collect();
        let [name, id, members] = words[..] else {
            return Err(InvalidSet::WordCount { words: words.len() });
        };
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.len() > NAME_MAX_BYTES || !name.bytes().all(is_allowed) {
            return Err(InvalidSet::Name { name: excerpt(name) });
        }
        let id = NodeId::parse(id).ok_or_else(|| InvalidSet::Id { id: excerpt(id) })?;
        let members: Members = members.parse()?;
        if !members.0.iter().any(|list| list.contains(id)) {
            return Err(InvalidSet::NotAMember { id });
        }
        Ok(Self { name: name.to_owned(), id, members })
    }
}

impl fmt::Display for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.name, self.id, self.members)
    }
}

impl Members {
    /// Whether a member is being added or removed.
    pub const fn is_changing(&self) -> bool {
        self.0.len() > 1
    }

    /// The list of `nodes` members, at most one: the lists of a change differ in size.
    fn list_of(&self, nodes: usize) -> Option<&MemberList> {
        self.0.iter().find(|list| list.0.len() == nodes)
    }
}

impl FromStr for Members {
    type Err = InvalidSet;

    fn from_str(text: &str) -> Result<Self, InvalidSet> {
        let lists = text.split('>').map(str::parse).collect::<Result<Vec<MemberList>, _>>()?;
        match &lists[..] {
            [_] => Ok(Self(lists)),
            [old, new] => match (new.count_missing_in(old), old.count_missing_in(new)) {
                (1, 0) | (0, 1) => Ok(Self(lists)),
                (added, removed) => Err(InvalidSet::NotOneMember { added, removed }),
            },
            _ => Err(InvalidSet::SeveralChanges),
        }
    }
}

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&joined(&self.0, ">"))
    }
}

impl MemberList {
    /// The IDs, ascending.
    pub fn ids(&self) -> &[NodeId] {
        &self.0
    }

    /// Whether the node with this ID is a member.
    pub fn contains(&self, id: NodeId) -> bool {
        self.0.binary_search(&id).is_ok()
    }

    fn count_missing_in(&self, other: &Self) -> usize {
        self.0.iter().filter(|id| !other.contains(**id)).count()
    }
}

impl FromStr for MemberList {
    type Err = InvalidSet;

    fn from_str(text: &str) -> Result<Self, InvalidSet> {
        let invalid = |word| InvalidSet::Member { member: excerpt(word) };
        let parse = |word| NodeId::parse(word).ok_or_else(|| invalid(word));
        let mut ids = text.split(',').map(parse).collect::<Result<Vec<_>, _>>()?;
        ids.sort_unstable();
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(InvalidSet::RepeatedMember { id: pair[0] });
        }
        if ids.len() > MEMBERS_MAX {
            return Err(InvalidSet::TooManyMembers { count: ids.len() });
        }
        Ok(Self(ids))
    }
}

impl fmt::Display for MemberList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&joined(&self.0, ","))
    }
}

fn joined(items: &[impl ToString], separator: &str) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator)
}

impl NodeId {
    /// The ID with this number; `None` for zero.
    pub const fn new(id: u16) -> Option<Self> {
        match NonZeroU16::new(id) {
            Some(id) => Some(Self(id)),
            None => None,
        }
    }

    /// The number: 1 to 65535.
    pub const fn get(self) -> u16 {
        self.0.get()
    }

    /// Accepts digits only: a sign is a mistake.
    fn parse(word: &str) -> Option<Self> {
        let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { word.parse().ok().and_then(Self::new) } else { None }
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The beginning of a word, safe to print on one line.
fn excerpt(word: &str) -> String {
    let mut excerpt: String = word.escape_default().take(EXCERPT_MAX_CHARS).collect();
    if word.escape_default().nth(EXCERPT_MAX_CHARS).is_some() {
        excerpt.push_str("...");
    }
    excerpt
}
