//! The checks, of one node and of all of them together: pure functions of a snapshot.

use std::collections::BTreeMap;
use std::time::Duration;

use quorlock_core::Ttl;
use quorlock_core::client::limits;

use crate::fleet::{Facts, Finding, ModuleInfo, NodeReport, Snapshot};
use crate::output::{short_time, signed_time};
use crate::values::text_of_ms;

/// Assumed if the user may not read `lock.max-clock-skew`.
const MAX_CLOCK_SKEW_DEFAULT_MS: u64 = 60_000;
/// A clock offset above the accepted skew divided by this is a warning.
const CLOCK_WARNING_DIVISOR: u64 = 10;
/// It is a warning if the waiters reach this percentage of `lock.max-waiters`.
const WAITERS_WARNING_PERCENT: u64 = 80;
/// It is a warning if a node has less time to answer than this many round trips.
const ROUND_TRIPS_WANTED: u32 = 4;

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
    let changing = sets.into_iter().flatten().find(|set| set.members().is_changing())?;
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

/// Returns the findings about one node, except those about the rights of the user.
pub(super) fn of_node(node: &NodeReport, ttl: Ttl) -> Vec<Finding> {
    let mut findings: Vec<_> = node.state.finding().into_iter().collect();
    let Some(facts) = node.facts() else { return findings };
    findings.extend(clock(facts));
    findings.extend(round_trip(facts, ttl));
    let Some(lock) = &facts.module else { return findings };
    findings.extend(evicts(facts));
    findings.extend(max_ttl(lock, ttl));
    findings.extend(rejoin_delay(lock));
    findings.extend(waiters(lock.waiters, facts.max_waiters));
    findings
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
    let policy = facts.maxmemory_policy.as_ref().filter(|_| facts.evicts())?;
    let effect = if facts.maxmemory_bytes == 0 {
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
