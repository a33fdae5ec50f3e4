//! What is wrong with one node.

use std::time::Duration;

use quorlock_core::Ttl;
use quorlock_core::client::{NodeError, limits};
use quorlock_core::node::Unwritable;

use super::findings::{Finding, Severity};
use super::rights::{COMMANDS_FOR_SEVERAL_KEYS, Denial};
use crate::duration::text_of_ms;
use crate::fleet::info::ModuleInfo;
use crate::fleet::{Facts, NodeReport, State, advice, unwritable_advice};
use crate::status::{short_time, signed_time};

/// Assumed if the user may not read `lock.max-clock-skew`.
const MAX_CLOCK_SKEW_DEFAULT_MS: u64 = 60_000;
/// A clock offset above the accepted skew divided by this is a warning.
pub(super) const CLOCK_WARNING_DIVISOR: u64 = 10;
/// It is a warning if the waiters reach this percentage of `lock.max-waiters`.
const WAITERS_WARNING_PERCENT: u64 = 80;
/// It is a warning if a node has less time to answer than this many round trips.
const ROUND_TRIPS_WANTED: u32 = 4;

pub(super) fn findings(
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

pub(super) fn max_clock_skew_us(facts: &Facts) -> u64 {
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
