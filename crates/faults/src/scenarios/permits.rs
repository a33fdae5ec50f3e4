//! Clients hold all permits of a semaphore when the accident happens.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::{AbstentionSettings, MINUTE_S, memory, module_or_set_nx, ttl_of};
use crate::harness::{Answer, Held, LockMethod, Node, PATIENCE, Protected};
use crate::scenario::{Baseline, Scenario, Tally};

const SLOTS: [&str; 2] = ["encoder:00", "encoder:01"];
/// Much longer than a scenario takes.
const TTL: Duration = Duration::from_secs(60);
const SHORT_TTL: Duration = Duration::from_millis(800);
const SET_NX: Baseline = Baseline::Harmed("SET NX PX of each slot");

pub static STEPPED_AHEAD: Scenario = Scenario {
    accident: "wall clock +60 s while all permits are held",
    baseline: SET_NX,
    run: stepped_ahead,
};

fn stepped_ahead(protected: Protected, tally: &mut Tally) -> Result<()> {
    let method = module_or_set_nx(protected);
    let mut node = Node::start(|builder| builder)?;
    let permits = acquire_both(&mut node, method, ttl_of(protected, SHORT_TTL))?;
    node.step_clock(MINUTE_S)?;
    tally.count_injected();
    let first_end = permits.iter().map(Held::must_last_until).min();
    let until = permits[0].must_end_by() + PATIENCE;
    let granted = node.retry_until(until, |node| node.acquire_any(method, &SLOTS, "third", TTL))?;
    tally.check(granted.is_some(), "no permit ended");
    let one_has_ended = first_end.is_some_and(|end| Instant::now() >= end);
    tally.check(one_has_ended, "a third client was granted one of two permits");
    Ok(())
}

/// Evicts the slot that would expire soonest.
pub static EVICTION: Scenario = Scenario {
    accident: "eviction under volatile-ttl while all permits are held",
    baseline: SET_NX,
    run: eviction,
};

fn eviction(protected: Protected, tally: &mut Tally) -> Result<()> {
    let method = module_or_set_nx(protected);
    let mut node = memory::start("volatile-ttl")?;
    let permits = acquire_both(&mut node, method, TTL)?;
    memory::evict(&mut node, method, SLOTS[0])?;
    tally.count_injected();
    check_all_held(&mut node, method, &permits, tally)
}

pub static EMPTY_DISK: Scenario = Scenario {
    accident: "kill -9, restart on an empty disk while all permits are held",
    baseline: Baseline::Harmed("lock.rejoin-delay 0"),
    run: empty_disk,
};

fn empty_disk(protected: Protected, tally: &mut Tally) -> Result<()> {
    let settings = AbstentionSettings::of(protected);
    let mut node = settings.start_node()?;
    let permits = acquire_both(&mut node, LockMethod::Module, settings.max_ttl)?;
    let killed_at = settings.restart_without(&mut node, SLOTS[0], tally)?;
    let third = node.acquire_any(LockMethod::Module, &SLOTS, "third", settings.max_ttl)?;
    if killed_at.elapsed() < settings.max_ttl {
        tally.check(!third.is_granted(), "a third client was granted one of two permits");
    }
    settings.check(&mut node, protected, &permits[1], killed_at, "start", tally)
}

/// An operator's command ends one permit, and no other.
pub static DEL: Scenario = Scenario {
    accident: "DEL of one slot while all permits are held",
    baseline: Baseline::None("the command must end that permit"),
    run: del,
};

fn del(_: Protected, tally: &mut Tally) -> Result<()> {
    let mut node = Node::start(|builder| builder)?;
    let method = LockMethod::Module;
    let permits = acquire_both(&mut node, method, TTL)?;
    let _: u64 = node.call(&["DEL", SLOTS[1]])?;
    tally.count_injected();
    let extended = node.extend(method, &permits[1])?;
    tally.check(extended.is_none(), "the holder could still extend the permit");
    match node.acquire_any(method, &SLOTS, "third", TTL)? {
        Answer::Granted(third) => {
            tally.check(third.key == SLOTS[1], "a third client was granted the other slot");
            check_all_held(&mut node, method, &[permits[0].clone(), third], tally)
        }
        other => {
            tally.harm(format!("the slot was not free: {other:?}"));
            Ok(())
        }
    }
}

/// Acquires both permits, the slots in order.
fn acquire_both(node: &mut Node, method: LockMethod, ttl: Duration) -> Result<[Held; 2]> {
    let mut acquire = |token| match node.acquire_any(method, &SLOTS, token, ttl)? {
        Answer::Granted(held) => Ok(held),
        other => bail!("a free permit was not granted: {other:?}"),
    };
    let permits = [acquire("first")?, acquire("second")?];
    ensure!(
        permits.each_ref().map(|held| held.key.as_str()) == SLOTS,
        "the slots were not granted in order: {permits:?}"
    );
    Ok(permits)
}

/// Checks that no permit is free, and that each holder can extend and release its permit.
fn check_all_held(
    node: &mut Node,
    method: LockMethod,
    permits: &[Held],
    tally: &mut Tally,
) -> Result<()> {
    let third = node.acquire_any(method, &SLOTS, "further", TTL)?;
    tally.check(third.is_refused(), format!("one more client was granted a permit: {third:?}"));
    for permit in permits {
        let extended = node.extend(method, permit)?;
        tally.check(extended.is_some(), "a holder could not extend its permit");
        tally.check(node.release(method, permit)?, "a holder could not release its permit");
    }
    Ok(())
}
