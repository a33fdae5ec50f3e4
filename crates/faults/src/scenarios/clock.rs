//! The wall clock is stepped while a lock is held: by an administrator, NTP, or the host of a
//! virtual machine.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::{HOUR_S, LONG_TTL, MINUTE_S, check_ends_in_time, module_or_set_nx};
use crate::harness::{Answer, Held, LockMethod, Node, PATIENCE, Protected};
use crate::scenario::{Baseline, Scenario, Tally};

const TTL: Duration = Duration::from_millis(800);

pub static STEPPED_AHEAD: Scenario = Scenario {
    accident: "wall clock +60 s while a lock is held",
    baseline: Baseline::Harmed("SET NX PX"),
    run: stepped_ahead,
};

fn stepped_ahead(protected: Protected, tally: &mut Tally) -> Result<()> {
    let method = module_or_set_nx(protected);
    let mut node = Node::start(|builder| builder)?;
    let released = node.acquire_free(method, "released", "holder", LONG_TTL)?;
    let held = node.acquire_free(method, "held", "holder", TTL)?;

    node.step_clock(MINUTE_S)?;
    tally.count_injected();
    if method == LockMethod::Module {
        node.eventually("the keys are written again", |node| {
            Ok(node.get("released")?.is_some_and(|token| token == released.token)
                && node.info("lock", "lock_saved_from_clock_step")? >= 1)
        })?;
    }
    check_ends_in_time(&mut node, method, &held, tally)?;
    let is_released = node.release(method, &released)?;
    tally.check(is_released, "the holder could not release the lock");
    Ok(())
}

pub static STEPPED_BACK: Scenario = Scenario {
    accident: "wall clock −1 h while a lock is held",
    baseline: Baseline::Harmed("SET NX PX"),
    run: stepped_back,
};

/// Longest allowed time between a lock's deadline and its end.
const LATE_MAX: Duration = Duration::from_millis(50);

fn stepped_back(protected: Protected, tally: &mut Tally) -> Result<()> {
    const ATTEMPTS: u32 = 4;
    let method = module_or_set_nx(protected);
    let mut node = Node::start(|builder| builder)?;
    // The baseline must wait until after the end, and its locks must outlast the step.
    let ttl = if protected == Protected::No { 3 * TTL } else { TTL };
    let mut min_late = Duration::MAX;
    for attempt in 1..=ATTEMPTS {
        // Of several locks and attempts, the best one counts, because this machine may be busy
        // for a moment.
        let held = (0_u32..5).map(|n| {
            let ttl = ttl + n * Duration::from_millis(30);
            node.acquire_free(method, &format!("key {attempt} {n}"), "holder", ttl)
        });
        let held: Vec<_> = held.collect::<Result<_>>()?;
        node.step_clock(-HOUR_S)?;
        tally.count_injected();
        for held in &held {
            let Some(late) = lateness(&mut node, held, tally)? else {
                tally.harm("the lock did not end");
                return Ok(());
            };
            min_late = min_late.min(late);
        }
        if min_late <= LATE_MAX {
            return Ok(());
        }
    }
    tally.harm(format!("the lock ended {} ms late", min_late.as_millis()));
    Ok(())
}

/// Returns the time from the latest possible deadline of the lock until its key was found gone;
/// `None` if the key still exists long after that. Records harm if the key is gone too early.
fn lateness(node: &mut Node, held: &Held, tally: &mut Tally) -> Result<Option<Duration>> {
    let limit = Duration::from_millis(500);
    loop {
        let checked_at = Instant::now();
        // Only reads the key: the lock must end although no client requests it.
        if !node.exists(&held.key)? {
            let gone_by = Instant::now();
            tally.check(gone_by >= held.must_last_until(), "the lock ended early");
            return Ok(Some(gone_by.saturating_duration_since(held.must_end_by())));
        }
        if checked_at > held.must_end_by() + limit {
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// An old client, which uses plain `SET NX PX`, finds the key expired and writes it.
///
/// The module cannot prevent that this client and the holder both hold the lock. While the old
/// client's key exists, the module does not change it, and grants the lock to no other client.
pub static STEPPED_AHEAD_FOR_AN_OLD_CLIENT: Scenario = Scenario {
    accident: "wall clock +60 s, then SET NX PX by an old client",
    baseline: Baseline::Harmed("SET NX PX"),
    run: stepped_ahead_for_an_old_client,
};

fn stepped_ahead_for_an_old_client(protected: Protected, tally: &mut Tally) -> Result<()> {
    let method = module_or_set_nx(protected);
    let mut node = Node::start(|builder| builder)?;
    // Otherwise the server may find the expired key before the old client does, and the module
    // would write the key again.
    let _: String = node.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"])?;
    let held = node.acquire_free(method, "key", "holder", 2 * TTL)?;
    node.step_clock(MINUTE_S)?;
    let old = node.acquire(LockMethod::SetNx, "key", "old client", 3 * TTL)?;
    ensure!(
        Instant::now() < held.must_last_until(),
        "this machine is too slow: the lock has ended"
    );
    let Answer::Granted(old) = old else {
        bail!("the old client did not find the key gone: {old:?}")
    };
    tally.count_injected();
    if protected == Protected::No {
        tally.harm("the old client and the holder both hold the lock");
        return Ok(());
    }
    tally.check(node.extend(method, &held)?.is_some(), "the holder could not extend the lock");
    let other = node.acquire_until(method, "key", "another", TTL, old.must_end_by() + PATIENCE)?;
    tally.check(other.is_some(), "the lock did not end");
    tally.check(Instant::now() >= old.must_last_until(), "the old client's key was removed");
    Ok(())
}
