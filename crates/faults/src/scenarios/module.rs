//! An operator reconfigures or unloads the module while a lock is held.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use quorlock_testkit::module_path;

use super::MINUTE_S;
use super::node::{LockMethod, Node};
use super::trial::Trial;

/// A shorter `lock.rejoin-delay` applies only to the next start.
pub(super) fn rejoin_delay(trial: &mut Trial) -> Result<()> {
    let mut node = trial.start_abstaining_node()?;
    let held = node.acquire("key", "holder", trial.max_ttl())?.granted()?;
    node.inner.server.kill();
    let killed_at = Instant::now();
    node.restart(trial.rejoin_delay_ms())?;
    node.set_config("lock.rejoin-delay", "0")?;
    trial.count_injected();
    trial.check_abstains(&mut node, &held, killed_at, "start")
}

/// The largest ttl limits how long forgotten locks may still be held, so it must not change.
pub(super) fn max_ttl(trial: &mut Trial) -> Result<()> {
    let mut node = Node::start(LockMethod::Module, |builder| builder.arg("lock.max-ttl", 2000))?;
    for ms in ["1000", "3000", "2000"] {
        trial.count_injected();
        let is_set = node.set_config("lock.max-ttl", ms);
        trial.check(is_set.is_err(), format!("lock.max-ttl was set to {ms}"));
    }
    for (ms, is_allowed) in [(2000, true), (2001, false)] {
        let answer = node.acquire(&format!("key {ms}"), "holder", Duration::from_millis(ms));
        trial.check(answer.is_ok() == is_allowed, format!("lock.max-ttl has changed: {answer:?}"));
    }
    Ok(())
}

/// While the module is unloaded, a step of the clock expires the keys. When the module is loaded
/// again, the node abstains.
pub(super) fn unloaded_and_loaded(trial: &mut Trial) -> Result<()> {
    let mut node = trial.start_abstaining_node()?;
    let held = node.acquire("key", "holder", trial.max_ttl())?.granted()?;
    let _: String = node.call(&["MODULE", "UNLOAD", "lock"])?;
    let unloaded_at = Instant::now();
    trial.count_injected();
    // Harm of the baseline counts only after the load.
    if trial.is_protected() {
        trial.check(node.get("key")?.as_deref() == Some("holder"), "the key is gone");
        let other = node.set_nx("key", "another", trial.max_ttl())?;
        trial.check(other.is_refused(), format!("an old client was not refused: {other:?}"));
    }

    node.step_clock(MINUTE_S)?;
    let path = module_path()?;
    let path = path.to_str().context("a path that is text")?;
    let max_ttl_ms = trial.max_ttl().as_millis().to_string();
    let rejoin_delay_ms = trial.rejoin_delay_ms().to_string();
    let words = ["MODULE", "LOAD", path, "max-ttl", &max_ttl_ms, "rejoin-delay", &rejoin_delay_ms];
    let _: String = node.call(&words)?;
    trial.check_abstains(&mut node, &held, unloaded_at, "start")
}

/// A module that alone knows of a lock cannot be unloaded.
pub(super) fn unloaded_without_mirrors(trial: &mut Trial) -> Result<()> {
    let mut node = Node::start(LockMethod::Module, |builder| builder)?;
    let _: String = node.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"])?;
    let held = node.acquire("key", "holder", Duration::from_secs(5))?.granted()?;
    node.step_clock(MINUTE_S)?;
    // EXISTS finds that the key has expired. Both commands run in one turn, so that the module
    // cannot write the mirror again in between.
    let unloaded = node.call_all(&[&["EXISTS", "key"], &["MODULE", "UNLOAD", "lock"]])?;
    trial.count_injected();
    trial.check(unloaded[1].is_err(), "the module was unloaded");
    trial.check(node.extend(&held)?.is_some(), "the holder could not extend the lock");
    node.eventually("the key is written again", |node| node.exists("key"))?;
    let _: String = node.call(&["MODULE", "UNLOAD", "lock"])?;
    trial.check(node.get("key")?.as_deref() == Some("holder"), "the key is gone");
    Ok(())
}
