//! What is wrong with one node.

use std::time::Duration;

use quorlock_core::Ttl;
use quorlock_core::client::{NodeError, limits};

use super::findings::Finding;
use super::rights::{COMMANDS_FOR_SEVERAL_KEYS, Denial};
use crate::duration::text_of_ms;
use crate::fleet::info::ModuleInfo;
use crate::fleet::{Facts, NodeReport, State, advice};
use crate::status::{short_time, signed_time};

/// The default of `lock.max-clock-skew`. Assumed if the user may not read the value.
const MAX_CLOCK_SKEW_DEFAULT_MS: u64 = 60_000;
/// A clock offset above the accepted skew divided by this is a warning.
pub(super) const CLOCK_WARNING_DIVISOR: u64 = 10;
/// It is a warning if the waiters reach this percentage of `lock.max-waiters`.
const WAITERS_WARNING_PERCENT: u64 = 80;
/// It is a warning if a node has less time to answer than this many round trips.
const ROUND_TRIPS_WANTED: u32 = 4;

/// Returns the findings about one node. `denials` are the missing rights of the user there.
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
            let left = abstention
                .left
                .map(|left| format!(" for {}", short_time(left)))
                .unwrap_or_default();
            Some(Finding::warning(
                "abstaining",
                format!(
                    "it grants no locks{left}, since it may have forgotten some ({})",
                    abstention.reason
                ),
                "wait; restart nodes one at a time, each after the previous one votes again",
            ))
        }
        State::NotCounted(error) | State::Down(error) => Some(of_error(error)),
    }
}

/// Returns the name of the check that finds this error.
pub(crate) fn check_of(error: &NodeError) -> &'static str {
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
        NodeError::NotAMaster { mode } => Finding::error(
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
            let todo = advice(error).unwrap_or("see the log of the server");
            Finding::warning("down", words, todo)
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
        Some(Finding::error("clock", what + ": it may refuse the fences of clients", todo))
    } else {
        (certain_us > skew_us / CLOCK_WARNING_DIVISOR)
            .then(|| Finding::warning("clock", what, todo))
    }
}

pub(super) fn max_clock_skew_us(facts: &Facts) -> u64 {
    facts.max_clock_skew_ms.unwrap_or(MAX_CLOCK_SKEW_DEFAULT_MS).saturating_mul(1000)
}

fn round_trip(facts: &Facts, ttl: Ttl) -> Option<Finding> {
    let (round_trip, ttl_text) = (facts.round_trip, text_of_ms(ttl.ms()));
    let limit = limits::node_timeout(round_trip, ttl);
    let shown = short_time(round_trip);
    if let Some(enough) = limits::ttl_needed(round_trip, ttl) {
        return Some(Finding::error(
            "round-trip",
            format!("a round trip takes {shown}, too long for locks with a ttl of {ttl_text}"),
            format!(
                "use a ttl of at least {}, or a node that is nearer",
                text_of_ms(whole_ms(enough))
            ),
        ));
    }
    (round_trip * ROUND_TRIPS_WANTED > limit).then(|| {
        let enough = round_trip * ROUND_TRIPS_WANTED * limits::NODE_TIMEOUT_PER_TTL;
        Finding::warning(
            "round-trip",
            format!(
                "a round trip takes {shown}, and with a ttl of {ttl_text} the node has {} to answer: a slow \
                 answer is no vote",
                short_time(limit)
            ),
            format!("use a ttl of at least {}, or a node that is nearer", text_of_ms(whole_ms(enough))),
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
            "only a new server may have it: remove lock.rejoin-delay from redis.conf before the \
             next start",
        )
    })
}

fn waiters(waiters: u64, max_waiters: Option<u64>) -> Option<Finding> {
    let max_waiters = max_waiters?;
    (waiters.saturating_mul(100) >= max_waiters.saturating_mul(WAITERS_WARNING_PERCENT) && waiters > 0).then(
        || {
            Finding::warning(
                "waiters",
                format!(
                    "{waiters} clients wait, and lock.max-waiters is {max_waiters}: further waiters are refused"
                ),
                "find out why so many wait, with LOCK.INSPECT of their keys, or raise lock.max-waiters",
            )
        },
    )
}

fn rights(denials: &[Denial]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let commands = denials.iter().filter_map(|denial| match denial {
        Denial::Command(command) => Some(*command),
        Denial::Key(_) => None,
    });
    let (not_for_plain_locks, needed): (Vec<&str>, Vec<&str>) =
        commands.partition(|command| COMMANDS_FOR_SEVERAL_KEYS.contains(command));
    let remedy = |denied: &[&str]| {
        let rights: Vec<_> =
            denied.iter().map(|command| format!("+{}", command.to_lowercase())).collect();
        format!("give the user {}, with ACL SETUSER and in the server's ACL file", rights.join(" "))
    };
    if !needed.is_empty() {
        findings.push(Finding::error(
            "rights",
            format!("the user may not run {}, which clients need", join_with_and(&needed)),
            remedy(&needed),
        ));
    }
    if !not_for_plain_locks.is_empty() {
        findings.push(Finding::warning(
            "rights",
            format!(
                "the user may not run {}, which locks of several keys and semaphores need",
                join_with_and(&not_for_plain_locks)
            ),
            remedy(&not_for_plain_locks),
        ));
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

fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}
