//! The wall clock is stepped while a lock is held: by an administrator, NTP, or the host of a
//! virtual machine.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::node::{Answer, Held, Node, PATIENCE};
use super::trial::Trial;
use super::{HOUR_S, MINUTE_S};

const TTL: Duration = Duration::from_millis(800);
/// Longest allowed time between a lock's deadline and its end.
const LATE_MAX: Duration = Duration::from_millis(50);

pub(super) fn stepped_back(trial: &mut Trial) -> Result<()> {
    const ATTEMPTS: u32 = 4;
    let mut node = Node::start(trial.method(), |builder| builder)?;
    // The baseline must wait until after the end, and its locks must outlast the step.
    let ttl = if trial.is_protected() { TTL } else { 3 * TTL };
    let mut min_late = Duration::MAX;
    for attempt in 1..=ATTEMPTS {
        // Of several locks and attempts, the best one counts, because this machine may be busy
        // for a moment.
        let held = (0_u32..5).map(|n| {
            let ttl = ttl + n * Duration::from_millis(30);
            node.acquire(&format!("key {attempt} {n}"), "holder", ttl)?.granted()
        });
        let held: Vec<_> = held.collect::<Result<_>>()?;
        node.step_clock(-HOUR_S)?;
        trial.count_injected();
        for held in &held {
            let Some(late) = lateness(&mut node, held, trial)? else {
                trial.harm("the lock did not end");
                return Ok(());
            };
            min_late = min_late.min(late);
        }
        if min_late <= LATE_MAX {
            return Ok(());
        }
    }
    trial.harm(format!("the lock ended {} ms late", min_late.as_millis()));
    Ok(())
}

/// Returns the time from the latest possible deadline of the lock until its key was found gone;
/// `None` if the key still exists long after that. Records harm if the key is gone too early.
fn lateness(node: &mut Node, held: &Held, trial: &mut Trial) -> Result<Option<Duration>> {
    let limit = Duration::from_millis(500);
    loop {
        let checked_at = Instant::now();
        // Only reads the key: the lock must end although no client requests it.
        if !node.exists(&held.key)? {
            let gone_by = Instant::now();
            trial.check(gone_by >= held.must_last_until(), "the lock ended early");
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
pub(super) fn old_client(trial: &mut Trial) -> Result<()> {
    let mut node = Node::start(trial.method(), |builder| builder)?;
    // Otherwise the server may find the expired key before the old client does, and the module
    // would write the key again.
    let _: String = node.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"])?;
    let held = node.acquire("key", "holder", 2 * TTL)?.granted()?;
    node.step_clock(MINUTE_S)?;
    let old = node.set_nx("key", "old client", 3 * TTL)?;
    ensure!(
        Instant::now() < held.must_last_until(),
        "this machine is too slow: the lock has ended"
    );
    let Answer::Granted(old) = old else {
        bail!("the old client did not find the key gone: {old:?}")
    };
    trial.count_injected();
    if !trial.is_protected() {
        trial.harm("the old client and the holder both hold the lock");
        return Ok(());
    }
    trial.check(node.extend(&held)?.is_some(), "the holder could not extend the lock");
    let until = old.must_end_by() + PATIENCE;
    let other = node.retry_until(until, |node| node.acquire("key", "another", TTL))?;
    trial.check(other.is_some(), "the lock did not end");
    trial.check(Instant::now() >= old.must_last_until(), "the old client's key was removed");
    Ok(())
}
