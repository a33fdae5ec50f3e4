//! An operator reconfigures or unloads the module while a lock is held.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use quorlock_testkit::module_path;

use super::{AbstentionSettings, MINUTE_S};
use crate::harness::{LockMethod, Node, Protected};
use crate::scenario::{Baseline, Scenario, Tally};

/// A shorter `lock.rejoin-delay` applies only to the next start.
pub static REJOIN_DELAY: Scenario = Scenario {
    accident: "CONFIG SET lock.rejoin-delay 0 during an abstention",
    baseline: Baseline::Harmed("lock.rejoin-delay 0 from the start"),
    run: rejoin_delay,
};

fn rejoin_delay(protected: Protected, tally: &mut Tally) -> Result<()> {
    let settings = AbstentionSettings::of(protected);
    let mut node = settings.start_node()?;
    let held = node.acquire_free(LockMethod::Module, "key", "holder", settings.max_ttl)?;
    node.master.server.kill();
    let killed_at = Instant::now();
    node.restart(settings.rejoin_delay_ms)?;
    node.set_config("lock.rejoin-delay", "0")?;
    tally.count_injected();
    settings.check(&mut node, protected, &held, killed_at, "start", tally)
}

/// The largest ttl limits how long forgotten locks may still be held, so it must not change.
pub static MAX_TTL: Scenario = Scenario {
    accident: "CONFIG SET lock.max-ttl",
    baseline: Baseline::None("the server must refuse it"),
    run: max_ttl,
};

fn max_ttl(_: Protected, tally: &mut Tally) -> Result<()> {
    let mut node = Node::start(|builder| builder.arg("lock.max-ttl", 2000))?;
    for ms in ["1000", "3000", "2000"] {
        tally.count_injected();
        let is_set = node.set_config("lock.max-ttl", ms);
        tally.check(is_set.is_err(), format!("lock.max-ttl was set to {ms}"));
    }
    let ttl = Duration::from_secs(2);
    let granted = node.acquire(LockMethod::Module, "key", "holder", ttl);
    tally.check(granted.is_ok(), format!("lock.max-ttl has changed: {granted:?}"));
    let granted =
        node.acquire(LockMethod::Module, "other", "holder", ttl + Duration::from_millis(1));
    tally.check(granted.is_err(), format!("lock.max-ttl has changed: {granted:?}"));
    Ok(())
}

/// While the module is unloaded, a step of the clock expires the keys. When the module is loaded
/// again, the node abstains.
pub static UNLOAD_AND_LOAD: Scenario = Scenario {
    accident: "MODULE UNLOAD, wall clock +60 s, MODULE LOAD",
    baseline: Baseline::Harmed("rejoin-delay 0"),
    run: unload_and_load,
};

fn unload_and_load(protected: Protected, tally: &mut Tally) -> Result<()> {
    let settings = AbstentionSettings::of(protected);
    let mut node = settings.start_node()?;
    let held = node.acquire_free(LockMethod::Module, "key", "holder", settings.max_ttl)?;
    let _: String = node.call(&["MODULE", "UNLOAD", "lock"])?;
    let unloaded_at = Instant::now();
    tally.count_injected();
    // Harm of the baseline counts only after the load.
    if protected == Protected::Yes {
        let token = node.get("key")?;
        tally.check(token.as_deref() == Some("holder"), "the key is gone");
        let other = node.acquire(LockMethod::SetNx, "key", "another", settings.max_ttl)?;
        tally.check(other.is_refused(), format!("an old client was not refused: {other:?}"));
    }

    node.step_clock(MINUTE_S)?;
    let path = module_path()?;
    let path = path.to_str().context("a path that is text")?;
    let max_ttl_ms = settings.max_ttl.as_millis().to_string();
    let rejoin_delay_ms = settings.rejoin_delay_ms.to_string();
    let arguments =
        ["MODULE", "LOAD", path, "max-ttl", &max_ttl_ms, "rejoin-delay", &rejoin_delay_ms];
    let _: String = node.call(&arguments)?;
    settings.check(&mut node, protected, &held, unloaded_at, "start", tally)
}

/// A module that alone knows of a lock cannot be unloaded.
pub static UNLOAD_WITHOUT_MIRRORS: Scenario = Scenario {
    accident: "MODULE UNLOAD while a lock's key is lost",
    baseline: Baseline::None("the server must refuse it"),
    run: unload_without_mirrors,
};

fn unload_without_mirrors(_: Protected, tally: &mut Tally) -> Result<()> {
    let mut node = Node::start(|builder| builder)?;
    let _: String = node.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"])?;
    let held = node.acquire_free(LockMethod::Module, "key", "holder", Duration::from_secs(5))?;
    node.step_clock(MINUTE_S)?;
    // EXISTS finds that the key has expired. Both commands run in one turn, so that the module
    // cannot write the mirror again in between.
    let unloaded = node.call_all(&[&["EXISTS", "key"], &["MODULE", "UNLOAD", "lock"]])?;
    tally.count_injected();
    tally.check(unloaded[1].is_err(), "the module was unloaded");
    let extended = node.extend(LockMethod::Module, &held)?;
    tally.check(extended.is_some(), "the holder could not extend the lock");
    node.eventually("the key is written again", |node| node.exists("key"))?;
    let _: String = node.call(&["MODULE", "UNLOAD", "lock"])?;
    tally.check(node.get("key")?.as_deref() == Some("holder"), "the key is gone");
    Ok(())
}
