//! The checks, of one node and of all of them together: pure functions of a snapshot.

use std::collections::BTreeMap;
use std::time::Duration;

use quorlock_core::Ttl;
use quorlock_core::client::{NodeError, limits};
use quorlock_core::node::Unwritable;
use quorlock_core::node_set::Members;
use serde::Serialize;

use super::rights::{COMMANDS_FOR_SEVERAL_KEYS, Denial};
use crate::fleet::info::ModuleInfo;
use crate::fleet::{Facts, NodeReport, Snapshot, State, advice, unwritable_advice};
use crate::output::{escape, short_time, signed_time};
use crate::values::text_of_ms;

/// Assumed if the user may not read `lock.max-clock-skew`.
const MAX_CLOCK_SKEW_DEFAULT_MS: u64 = 60_000;
/// A clock offset above the accepted skew divided by this is a warning.
const CLOCK_WARNING_DIVISOR: u64 = 10;
/// It is a warning if the waiters reach this percentage of `lock.max-waiters`.
const WAITERS_WARNING_PERCENT: u64 = 80;
/// It is a warning if a node has less time to answer than this many round trips.
const ROUND_TRIPS_WANTED: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// Locks work, or will work soon, with less safety or capacity than they could have.
    Warning,
    /// A node never counts, refuses some requests of the programs, or is too far away for their
    /// ttl; or no majority votes.
    Error,
}

/// One fault, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// The name of the check, for programs.
    pub(super) check: &'static str,
    /// The nodes with this fault, in the order in which the user names them; empty if the fault
    /// concerns all nodes together.
    pub(super) nodes: Vec<String>,
    pub(super) what: String,
    pub(super) todo: String,
}

impl Finding {
    /// Makes a finding with these texts, which are escaped: they may quote a server.
    pub(super) fn error(
        check: &'static str,
        what: impl Into<String>,
        todo: impl Into<String>,
    ) -> Self {
        let (what, todo) = (escape(&what.into()), escape(&todo.into()));
        Self { severity: Severity::Error, check, nodes: Vec::new(), what, todo }
    }

    fn warning(check: &'static str, what: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(check, what, todo) }
    }

    /// Makes this a finding about one node.
    pub(super) fn about(self, node: &str) -> Self {
        Self { nodes: vec![node.to_owned()], ..self }
    }

    pub(super) fn is_same_fault(&self, other: &Self) -> bool {
        let key = |finding: &Self| (finding.severity, finding.check);
        key(self) == key(other) && self.what == other.what && self.todo == other.todo
    }
}

/// Returns the findings about all nodes together.
pub(super) fn of_fleet(snapshot: &Snapshot) -> Vec<Finding> {
    let checks = [majority, number, set, versions, max_ttls, clock_here];
    checks.into_iter().filter_map(|check| check(snapshot)).collect()
}

fn majority(snapshot: &Snapshot) -> Option<Finding> {
    let (voting, nodes, needed) = (snapshot.voting(), snapshot.nodes.len(), snapshot.majority());
    (!snapshot.has_majority()).then(|| {
        Finding::error(
            "no-majority",
            format!(
                "{voting} of {nodes} nodes vote, and a lock needs {needed}: none can be acquired"
            ),
            "check the nodes that do not vote: the other findings have the reasons",
        )
    })
}

fn number(snapshot: &Snapshot) -> Option<Finding> {
    match snapshot.nodes.len() {
        1 => Some(Finding::warning(
            "single-node",
            "there is one node: when it stops, no lock can be acquired",
            "use 3 nodes, or 5 to survive the loss of 2",
        )),
        2 => Some(Finding::warning(
            "even-number",
            "there are two nodes: when one of them stops, no lock can be acquired",
            "use 3 nodes",
        )),
        nodes if nodes % 2 == 0 => Some(Finding::warning(
            "even-number",
            format!(
                "{nodes} nodes survive the loss of {} of them, but so do {} nodes",
                nodes / 2 - 1,
                nodes - 1
            ),
            format!("use {} or {} nodes", nodes - 1, nodes + 1),
        )),
        _ => None,
    }
}

fn set(snapshot: &Snapshot) -> Option<Finding> {
    let sets: Vec<_> = snapshot.modules().map(|(node, _)| node.set()).collect();
    if sets.is_empty() {
        return None;
    }
    if sets.iter().all(Option::is_none) {
        return Some(Finding::warning(
            "no-set",
            "no node has a lock.set: two programs with different lists of nodes could hold the same lock",
            "write lock.set \"NAME ID MEMBERS\" into the redis.conf of each node and restart them one at a time",
        ));
    }
    let changing =
        sets.into_iter().flatten().find(|set| matches!(set.members(), Members::Changing { .. }))?;
    Some(Finding::warning(
        "set-changes",
        format!(
            "the members of the set {} are being changed: {}",
            changing.name(),
            changing.members()
        ),
        "complete the change on every node before you begin the next change",
    ))
}

fn versions(snapshot: &Snapshot) -> Option<Finding> {
    let by_version = groups(snapshot.modules().map(|(node, lock)| (lock.version.clone(), node)))?;
    Some(Finding::warning(
        "module-versions",
        format!("the nodes have different versions of the module: {by_version}"),
        "load the same version everywhere: restart the nodes one at a time, each after the \
         previous one votes again",
    ))
}

fn max_ttls(snapshot: &Snapshot) -> Option<Finding> {
    let max_ttls = snapshot
        .modules()
        .filter_map(|(node, lock)| Some((format!("{} ms", lock.max_ttl_ms?), node)));
    let by_max_ttl = groups(max_ttls)?;
    Some(Finding::warning(
        "max-ttl-differs",
        format!("the nodes have different values of lock.max-ttl: {by_max_ttl}"),
        "write the same value into the redis.conf of each node: each refuses a ttl above its own",
    ))
}

fn clock_here(snapshot: &Snapshot) -> Option<Finding> {
    let offset_us = offset_from_this_machine_us(snapshot)?;
    Some(Finding::warning(
        "clock-here",
        format!("the clocks of all nodes differ from this machine's by {}", signed_time(offset_us)),
        "synchronize the clock of this machine, with chrony for example",
    ))
}

/// Returns the least offset of the nodes' clocks, if they agree with each other but not with this
/// machine's.
pub(super) fn offset_from_this_machine_us(snapshot: &Snapshot) -> Option<i64> {
    let clocks = || snapshot.nodes.iter().filter_map(NodeReport::facts);
    let offsets: Vec<_> = clocks().filter_map(|facts| facts.clock_offset_us).collect();
    let tolerated_us = clocks().map(max_clock_skew_us).min()? / CLOCK_WARNING_DIVISOR;
    let (least, most) = (*offsets.iter().min()?, *offsets.iter().max()?);
    let agree = most.abs_diff(least) <= tolerated_us;
    let differ = offsets.iter().all(|offset| offset.unsigned_abs() > tolerated_us);
    (offsets.len() > 1 && agree && differ).then_some(least)
}

/// Groups the nodes by value: `A on a, b; B on c`. Returns `None` if all values are equal.
fn groups<'a>(values: impl Iterator<Item = (String, &'a NodeReport)>) -> Option<String> {
    let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (value, node) in values {
        groups.entry(value).or_default().push(&node.name);
    }
    let text = |(value, nodes): (&String, &Vec<&str>)| format!("{value} on {}", nodes.join(", "));
    (groups.len() > 1).then(|| groups.iter().map(text).collect::<Vec<_>>().join("; "))
}

/// Returns the findings about one node. `denials` are the missing rights of the user on it.
pub(super) fn of_node(
    node: &NodeReport,
    state: &State,
    denials: &[Denial],
    ttl: Ttl,
) -> Vec<Finding> {
    let mut findings: Vec<_> = of_state(state).into_iter().collect();
    let Some(facts) = node.facts() else { return findings };
    findings.extend(clock(facts));
    findings.extend(round_trip(facts, ttl));
    let Some(lock) = &facts.info.lock else { return findings };
    findings.extend(evicts(facts));
    findings.extend(max_ttl(lock, ttl));
    findings.extend(rejoin_delay(lock));
    findings.extend(waiters(lock.waiters, facts.max_waiters));
    findings.extend(rights(denials));
    findings
}

fn of_state(state: &State) -> Option<Finding> {
    match state {
        State::Voting => None,
        State::Abstaining(abstention) => {
            let left = abstention.left.map(|left| format!(" for {}", short_time(left)));
            let left = left.unwrap_or_default();
            Some(Finding::warning(
                "abstaining",
                format!(
                    "it grants no locks{left}, since it may have forgotten some ({})",
                    abstention.reason
                ),
                "wait, and restart no other node until it votes again",
            ))
        }
        State::Unwritable(reason) => {
            let (what, todo) = unwritable_advice(reason);
            let passing = [Unwritable::Loading, Unwritable::WritesPaused].map(Unwritable::word);
            let finding =
                if passing.contains(&&**reason) { Finding::warning } else { Finding::error };
            Some(finding("unwritable", what, todo))
        }
        State::NotCounted(error) | State::Down(error) => Some(of_error(error)),
    }
}

pub(crate) fn name_of_check(error: &NodeError) -> &'static str {
    of_error(error).check
}

fn of_error(error: &NodeError) -> Finding {
    let words = error.to_string();
    match error {
        NodeError::NoModule => Finding::error(
            "module-missing",
            "the lock module is not loaded",
            "add `loadmodule /path/to/libquorlock.so` to its redis.conf and restart it",
        ),
        NodeError::Replica => Finding::error(
            "replica",
            "it is a replica, and grants no locks",
            "name its master instead",
        ),
        NodeError::WrongMode { mode } => Finding::error(
            "cluster-or-sentinel",
            format!("it runs in {mode} mode"),
            "name servers that are independent masters",
        ),
        NodeError::SameServer { node } => Finding::error(
            "same-server",
            format!("it is the same server as {node}, and has no vote of its own"),
            "list each server once, or start another one in its place",
        ),
        NodeError::NotAdmitted { reason } => {
            let (what, todo) = reason.split_once("; ").unwrap_or((reason, "correct its lock.set"));
            Finding::error("set-differs", what, todo)
        }
        NodeError::Denied { reason } => Finding::error(
            "denied",
            format!("it does not accept the user: {reason}"),
            "correct user, password or ACL",
        ),
        error if error.is_permanent() => Finding::error(
            "misconfigured",
            words,
            advice(error).unwrap_or("correct the URL of the node"),
        ),
        error => {
            Finding::warning("down", words, advice(error).unwrap_or("see the log of the server"))
        }
    }
}

fn clock(facts: &Facts) -> Option<Finding> {
    let offset_us = facts.clock_offset_us?;
    // The measurement is accurate to half a round trip.
    let doubt_us = u64::try_from(facts.round_trip.as_micros() / 2).unwrap_or(u64::MAX);
    let certain_us = offset_us.unsigned_abs().saturating_sub(doubt_us);
    let skew_us = max_clock_skew_us(facts);
    let what = format!(
        "its clock differs from this machine's by {}, and lock.max-clock-skew is {}",
        signed_time(offset_us),
        text_of_ms(skew_us / 1000)
    );
    let todo = "synchronize the clocks of nodes and clients, with chrony for example";
    if certain_us > skew_us {
        return Some(Finding::error("clock", what + ": nodes may fail to agree on a fence", todo));
    }
    (certain_us > skew_us / CLOCK_WARNING_DIVISOR).then(|| Finding::warning("clock", what, todo))
}

fn max_clock_skew_us(facts: &Facts) -> u64 {
    facts.max_clock_skew_ms.unwrap_or(MAX_CLOCK_SKEW_DEFAULT_MS).saturating_mul(1000)
}

fn round_trip(facts: &Facts, ttl: Ttl) -> Option<Finding> {
    let (round_trip, ttl_text) = (facts.round_trip, text_of_ms(ttl.ms()));
    let limit = limits::node_timeout(round_trip, ttl);
    let shown = short_time(round_trip);
    let todo = |enough: Duration| {
        let ms = u64::try_from(enough.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
        format!("use a ttl of at least {}, or a node that is nearer", text_of_ms(ms))
    };
    if let Some(enough) = limits::ttl_needed(round_trip, ttl) {
        return Some(Finding::error(
            "round-trip",
            format!("a round trip takes {shown}, too long for locks with a ttl of {ttl_text}"),
            todo(enough),
        ));
    }
    (round_trip * ROUND_TRIPS_WANTED > limit).then(|| {
        Finding::warning(
            "round-trip",
            format!(
                "a round trip takes {shown}, and with a ttl of {ttl_text} the node has {} to answer: a slow \
                 answer is no vote",
                short_time(limit)
            ),
            todo(round_trip * ROUND_TRIPS_WANTED * limits::NODE_TIMEOUT_PER_TTL),
        )
    })
}

fn evicts(facts: &Facts) -> Option<Finding> {
    let policy = facts.info.maxmemory_policy.as_ref().filter(|_| facts.info.evicts())?;
    let effect = if facts.info.maxmemory_bytes == 0 {
        "once maxmemory is set, it may evict"
    } else {
        "when its memory is full, it evicts"
    };
    Some(Finding::warning(
        "evicts",
        format!("maxmemory-policy is {policy}: {effect} the keys of locks"),
        "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf",
    ))
}

fn max_ttl(lock: &ModuleInfo, ttl: Ttl) -> Option<Finding> {
    let max_ms = lock.max_ttl_ms.filter(|max_ms| *max_ms < ttl.ms())?;
    let (max, ttl) = (text_of_ms(max_ms), text_of_ms(ttl.ms()));
    Some(Finding::error(
        "max-ttl",
        format!("it allows a ttl of at most {max}, and programs use {ttl}"),
        format!(
            "lower the ttl of programs to at most {max}, or raise lock.max-ttl in its redis.conf and restart it"
        ),
    ))
}

fn rejoin_delay(lock: &ModuleInfo) -> Option<Finding> {
    let (delay_ms, max_ms) = (lock.rejoin_delay_ms?, lock.max_ttl_ms?);
    (delay_ms < max_ms).then(|| {
        Finding::warning(
            "rejoin-delay",
            format!(
                "lock.rejoin-delay is {delay_ms} ms, below lock.max-ttl: after a restart it may grant locks that \
                 are still held"
            ),
            "only a new server may have so short a delay: remove lock.rejoin-delay from redis.conf before the \
             next start",
        )
    })
}

fn waiters(waiters: u64, max_waiters: Option<u64>) -> Option<Finding> {
    let max_waiters = max_waiters?;
    let is_few = waiters.saturating_mul(100) < max_waiters.saturating_mul(WAITERS_WARNING_PERCENT);
    if is_few || waiters == 0 {
        return None;
    }
    Some(Finding::warning(
        "waiters",
        format!("{waiters} clients wait, and at most {max_waiters} may (lock.max-waiters)"),
        "find out for which keys so many wait, with quorlock top, or raise lock.max-waiters",
    ))
}

fn rights(denials: &[Denial]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let commands = denials.iter().filter_map(|denial| match denial {
        Denial::Command(command) => Some(*command),
        Denial::Key(_) => None,
    });
    let (for_several_keys, for_all): (Vec<&str>, Vec<&str>) =
        commands.partition(|command| COMMANDS_FOR_SEVERAL_KEYS.contains(command));
    let denied = |severity: Severity, commands: &[&str], needed_by: &str| {
        let names = join_with_and(commands);
        let what = format!("the user may not run {names}, which {needed_by} need");
        let rights = commands.join(" +").to_lowercase();
        let todo =
            format!("give the user +{rights}, with ACL SETUSER and in the server's ACL file");
        Finding { severity, ..Finding::error("rights", what, todo) }
    };
    if !for_all.is_empty() {
        findings.push(denied(Severity::Error, &for_all, "clients"));
    }
    if !for_several_keys.is_empty() {
        let needed_by = "locks of several keys and semaphores";
        findings.push(denied(Severity::Warning, &for_several_keys, needed_by));
    }
    findings.extend(denials.iter().filter_map(|denial| match denial {
        Denial::Key(key) => Some(Finding::error(
            "rights",
            format!("the user may not use the key {key}"),
            "give the user its keys, such as ~orders/*, with ACL SETUSER and in the server's ACL \
             file",
        )),
        Denial::Command(_) => None,
    }));
    findings
}

fn join_with_and(words: &[&str]) -> String {
    match words {
        [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => words.concat(),
    }
}
