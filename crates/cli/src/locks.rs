//! What the answers of the nodes say about a lock: in words, as a table, and as JSON.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorlock_client::{
    Fence, HeldLock, InspectError, Inspection, LeaseInfo, LockMode, LockState, NodeInspection,
    WaiterInfo,
};
use quorlock_core::quorum::Majority;
use serde_json::{Value, json};

use crate::exit;
use crate::output::{self, escape_short, ms, or_dash, table, time, with_heading, with_plural};

/// Returns what the nodes answered, or the error of an inspection that no node answered.
pub(crate) fn answers<T>(inspected: Result<T, InspectError>) -> anyhow::Result<T> {
    inspected.map_err(|error| match &error {
        InspectError::NoAnswer { nodes } => exit::no_answer(&error, nodes),
        _ => error.into(),
    })
}

/// What the answers of the nodes say about a lock.
pub(crate) struct Summary<'a> {
    pub(crate) verdict: Verdict,
    /// `None` if no majority of the nodes has the same lock.
    pub(crate) held: Option<&'a HeldLock>,
    /// The time since the first node granted the lock; `None` if no lock is held, or no node says.
    pub(crate) held_for: Option<Duration>,
    pub(crate) waiters: u64,
    pub(crate) queue: &'a [WaiterInfo],
    /// The number of keys of the lock, this one included.
    keys: u64,
    /// The number of nodes on which the lock is revoked.
    revoked: usize,
    nodes: usize,
    /// The exit code if too few nodes answered.
    code_without_majority: u8,
}

/// The state of a lock, as the answers of all nodes show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Free,
    Held,
    /// The lock is held, and a majority has revoked it.
    Revoked,
    /// A majority has a foreign string under the key.
    Foreign,
    /// Too few nodes answered.
    NoMajority,
    /// A majority answered, and no majority agrees.
    Divided,
}

impl Verdict {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Held | Self::Revoked => "held",
            Self::Foreign => "foreign",
            Self::NoMajority => "unknown",
            Self::Divided => "divided",
        }
    }
}

/// Returns the leases of all nodes that have one.
pub(crate) fn leases(inspection: &Inspection) -> impl Iterator<Item = &LeaseInfo> {
    inspection.nodes.iter().filter_map(lease_of)
}

/// Returns the lease of a node; `None` if it has none, or did not answer.
fn lease_of(node: &NodeInspection) -> Option<&LeaseInfo> {
    node.lease.as_ref().ok()?.as_ref()
}

impl<'a> Summary<'a> {
    pub(crate) fn of(inspection: &'a Inspection) -> Self {
        let nodes = inspection.nodes.len();
        let majority = Majority::of(nodes).map_or(1, Majority::size);
        let leases = || leases(inspection);
        let held = match &inspection.state {
            LockState::Held(held) => Some(held),
            LockState::Free | LockState::Unclear => None,
        };
        let lease_on = |&node: &usize| lease_of(inspection.nodes.get(node)?);
        let lock_leases = || held.into_iter().flat_map(|held| &held.nodes).filter_map(lease_on);
        let revoked = lock_leases().filter(|lease| lease.revoked).count();
        let foreign = leases().filter(|lease| lease.mode == LockMode::Foreign).count();
        let answered = inspection.nodes.iter().filter(|node| node.lease.is_ok()).count();
        let verdict = match inspection.state {
            LockState::Free => Verdict::Free,
            LockState::Held(_) if revoked >= majority => Verdict::Revoked,
            LockState::Held(_) => Verdict::Held,
            LockState::Unclear if foreign >= majority => Verdict::Foreign,
            LockState::Unclear if answered < majority => Verdict::NoMajority,
            LockState::Unclear => Verdict::Divided,
        };
        let errors = inspection.nodes.iter().filter_map(|node| node.lease.as_ref().err());
        let longest = leases().max_by_key(|lease| lease.queue.len());
        Self {
            verdict,
            held,
            held_for: lock_leases().filter_map(|lease| lease.held_for).max(),
            // A waiter stands in line on every node that it reaches.
            waiters: leases().map(|lease| lease.waiters).max().unwrap_or(0),
            queue: longest.map(|lease| &*lease.queue).unwrap_or_default(),
            keys: lock_leases().map(|lease| lease.keys).max().unwrap_or(1),
            revoked,
            nodes,
            code_without_majority: exit::without_majority(errors, nodes),
        }
    }

    pub(crate) fn code(&self) -> u8 {
        match self.verdict {
            Verdict::Held | Verdict::Revoked | Verdict::Foreign => exit::SUCCESS,
            Verdict::Free => exit::FREE,
            Verdict::NoMajority => self.code_without_majority,
            Verdict::Divided => exit::NO_MAJORITY,
        }
    }

    pub(crate) fn headline(&self) -> String {
        match (self.verdict, self.held) {
            (Verdict::Held | Verdict::Revoked, Some(held)) => {
                let revoked = if self.verdict == Verdict::Revoked { ", revoked" } else { "" };
                let by = match held.mode {
                    LockMode::Shared => {
                        format!("shared by {}", with_plural(held.holders, "client"))
                    }
                    _ => format!("held by {}", output::owner(held.owner.as_deref())),
                };
                format!("{by} on {} of {} nodes{revoked}", held.nodes.len(), self.nodes)
            }
            (Verdict::Free, _) => "free".to_owned(),
            (Verdict::Foreign, _) => "taken by a program that uses SET".to_owned(),
            (Verdict::Divided, _) => "unclear: the nodes disagree".to_owned(),
            _ => "unknown: too few nodes answered".to_owned(),
        }
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.held.is_some_and(|held| held.mode == LockMode::Shared)
    }

    fn meaning(&self) -> String {
        let next = match self.waiters {
            0 => "The next client that asks acquires it",
            _ => "The first waiter acquires it",
        };
        match self.verdict {
            Verdict::Free => "A client that asks for the lock acquires it.".to_owned(),
            Verdict::Held if self.revoked > 0 => format!(
                "An operator has revoked it on {} of {} nodes only: the holder can extend it while the other nodes are a majority.",
                self.revoked, self.nodes
            ),
            Verdict::Held if self.is_shared() => {
                "Other clients can share it, until a client waits for it exclusively. That client \
                 acquires it when every holder has released it or stopped extending it."
                    .to_owned()
            }
            Verdict::Held => format!("{next} when the holder releases it or no longer extends it."),
            Verdict::Revoked => {
                let holders = if self.is_shared() { "holders" } else { "holder" };
                format!("The {holders} cannot extend it any more. {next} at the deadline, or earlier if the lock is released.")
            }
            Verdict::Foreign => {
                "No fence and no owner is known. Clients of this lock wait until the key expires or is deleted."
                    .to_owned()
            }
            Verdict::NoMajority => {
                "A client may hold it: ask again when a majority of the nodes answers.".to_owned()
            }
            Verdict::Divided => {
                "Clients are acquiring or releasing the lock just now, or some nodes have leases of an \
                 attempt that was not completed. Such leases end by their deadlines."
                    .to_owned()
            }
        }
    }
}

/// Describes the lock: who holds it, since when and until when, and what each node answered.
pub(crate) fn text(key: &[u8], inspection: &Inspection, summary: &Summary<'_>) -> String {
    let mut lines = format!("{}: {}\n", escape_short(key), summary.headline());
    let mut facts = Vec::new();
    if let Some(held) = summary.held {
        let fact = |name: &str, value: String| vec![format!("  {name}"), value];
        if summary.is_shared() {
            let names = held.owners.iter().map(|owner| output::owner(owner.as_deref()));
            facts.push(fact("holders", number_and_names(held.holders, names)));
        }
        facts.push(fact("fence", held.fence.to_string()));
        if let Some(since) = summary.held_for {
            facts.push(fact("since", format!("{} ago", time(since))));
        }
        let unless =
            if summary.verdict == Verdict::Revoked { "" } else { ", unless it is extended" };
        facts.push(fact("until", format!("{} from now at most{unless}", time(held.at_most))));
        if summary.keys > 1 {
            let others = with_plural(summary.keys - 1, "other");
            facts.push(fact("keys", format!("this one and {others}")));
        }
    }
    if summary.waiters > 0 {
        facts.push(vec!["  waiting".to_owned(), waiters_text(summary.waiters, summary.queue)]);
    }
    lines.push_str(&table(&facts));
    lines.push_str(&table(&node_rows(inspection)));
    lines.push_str(&summary.meaning());
    lines.push('\n');
    lines
}

/// Lists the waiters that a node names, after the number of all waiters.
pub(crate) fn waiters_text(all: u64, queue: &[WaiterInfo]) -> String {
    let name = |waiter: &WaiterInfo| {
        let owner = output::owner(waiter.owner.as_deref());
        let address =
            waiter.address.as_ref().map(|address| format!(" ({})", escape_short(address)));
        owner + &address.unwrap_or_default()
    };
    number_and_names(all, queue.iter().map(name))
}

/// Formats a number of clients and the known names: `3: web-1, web-2 and 1 more`.
fn number_and_names(all: u64, names: impl Iterator<Item = String>) -> String {
    let names: Vec<_> = names.collect();
    let hidden = all.saturating_sub(names.len() as u64);
    let more = if hidden > 0 { format!(" and {hidden} more") } else { String::new() };
    format!("{all}: {}{more}", names.join(", "))
}

fn node_rows(inspection: &Inspection) -> Vec<Vec<String>> {
    let heading = ["NODE", "STATE", "OWNER", "FENCE", "HELD FOR", "ENDS IN", "WAITING"];
    let rows = inspection.nodes.iter().map(|NodeInspection { node, lease, .. }| match lease {
        Ok(Some(lease)) => [vec![node.clone()], cells(lease)].concat(),
        Ok(None) => vec![node.clone(), "free".to_owned()],
        Err(error) => vec![node.clone(), escape_short(error.to_string())],
    });
    with_heading(heading, rows)
}

fn cells(lease: &LeaseInfo) -> Vec<String> {
    let state = match lease.mode {
        LockMode::Foreign => "foreign",
        _ if lease.revoked => "revoked",
        LockMode::Shared => "shared",
        _ => "held",
    };
    vec![
        state.to_owned(),
        or_dash(owners_text(lease)),
        or_dash(lease.fence.map(|fence| fence.to_string())),
        or_dash(lease.held_for.map(time)),
        lease.ttl.map_or_else(|| "never".to_owned(), time),
        lease.waiters.to_string(),
    ]
}

/// Returns the label of the holder; `None` if it has none. For several holders, returns the first
/// label and the number of the other holders.
fn owners_text(lease: &LeaseInfo) -> Option<String> {
    let first = lease.owner.as_ref().map(escape_short);
    match lease.holders {
        0 | 1 => first,
        all => Some(format!("{} +{}", or_dash(first), all - 1)),
    }
}

/// Describes a key and its lock, as the answers of all nodes show them.
pub(crate) fn key_json(key: &[u8], summary: &Summary<'_>) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let held = summary.held;
    let mut shown = json!({
        "key": String::from_utf8_lossy(key),
        "state": summary.verdict.name(),
        "revoked": summary.verdict == Verdict::Revoked,
        "mode": held.and_then(|held| mode(held.mode)),
        "owner": held.and_then(|held| held.owner.as_deref()),
        "holders": held.map_or(0, |held| held.holders),
        "owners": held.map(|held| &*held.owners).unwrap_or_default(),
        "fence": held.map(|held| held.fence.get()),
        "held_ms": summary.held_for.map(ms),
        "since_unix_ms": summary.held_for.map(|since| ms(now.saturating_sub(since))),
        // See [`HeldLock::at_most`].
        "at_most_ms": held.map(|held| ms(held.at_most)),
        "keys": summary.keys,
        "waiters": summary.waiters,
        "queue": queue_json(summary.queue),
        "meaning": summary.meaning(),
    });
    if let Some(hex) = output::key_hex(key) {
        shown["key_hex"] = hex.into();
    }
    shown
}

pub(crate) fn queue_json(queue: &[WaiterInfo]) -> Value {
    let waiter = |waiter: &WaiterInfo| {
        json!({
            "owner": waiter.owner,
            "client": waiter.client,
            "user": waiter.user,
            "address": waiter.address,
        })
    };
    queue.iter().map(waiter).collect()
}

pub(crate) fn node_json(NodeInspection { node, lease, .. }: &NodeInspection) -> Value {
    let free = LeaseInfo::default();
    let (state, error, lease) = match lease {
        Err(error) => ("failed", Some(error.to_string()), None),
        Ok(None) => ("free", None, None),
        Ok(Some(lease)) if lease.mode == LockMode::Foreign => ("foreign", None, Some(lease)),
        Ok(Some(lease)) => ("held", None, Some(lease)),
    };
    let (mode, holders) =
        (lease.and_then(|lease| mode(lease.mode)), lease.map_or(0, |lease| lease.holders));
    let lease = lease.unwrap_or(&free);
    json!({
        "node": node,
        "state": state,
        "error": error,
        "mode": mode,
        "owner": lease.owner,
        "holders": holders,
        "owners": lease.owners,
        "fence": lease.fence.map(Fence::get),
        "held_ms": lease.held_for.map(ms),
        "ttl_ms": lease.ttl.map(ms),
        "waiters": lease.waiters,
        "revoked": lease.revoked,
    })
}

fn mode(mode: LockMode) -> Option<&'static str> {
    match mode {
        LockMode::Exclusive => Some("exclusive"),
        LockMode::Shared => Some("shared"),
        _ => None,
    }
}
