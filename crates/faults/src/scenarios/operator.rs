//! An operator changes the key of a lock by a command, or reconfigures or unloads the module.
//!
//! A command that changes the key is no accident: the harm is a missing effect on the lock. Most of
//! these commands end the lock, as they would end a lock that is only a key. The claims about the
//! others are in a table of steps.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use quorlock_testkit::{ServerBuilder, module_path};
use redis::pipe;

use super::MINUTE_S;
use super::node::{Answer, Held, Node, PATIENCE};
use super::trial::{LONG_TTL, Trial};
use crate::wait_until;

const KEY: &str = "key";

fn node_and_lock(ttl: Duration) -> Result<(Node, Held)> {
    let mut node = Node::start(|builder| builder)?;
    let held = node.acquire(KEY, "holder", ttl)?.granted()?;
    Ok((node, held))
}

/// The lock ends if the server reports to the module that a command removed the key. Valkey reports
/// an expiry instead, as after a step of the clock, so on Valkey the lock stays until its deadline.
pub(super) fn expired(trial: &mut Trial) -> Result<()> {
    let (mut node, held) = node_and_lock(Duration::from_millis(800))?;
    let _: i64 = node.call(&["EXPIRE", KEY, "0"])?;
    trial.injected += 1;
    if !node.call::<String>(&["INFO", "server"])?.contains("valkey_version:") {
        return check_ended(&mut node, &held, trial);
    }
    let extended = node.extend(&held)?;
    // A slow machine may extend too late.
    let is_over = Instant::now() >= held.must_last_until();
    trial.check(extended.is_some() || is_over, "the holder could not extend the lock");
    trial.check_ends(&mut node, &extended.unwrap_or(held), Instant::now())?;
    Ok(())
}

/// The lock ends. On the other server, the key is a foreign string whose value is the token.
pub(super) fn migrated(trial: &mut Trial) -> Result<()> {
    let (mut node, held) = node_and_lock(LONG_TTL)?;
    let mut other = Node::start(ServerBuilder::tcp)?;
    let port = other.inner.server.port().to_string();
    let _: String = node.call(&["MIGRATE", "127.0.0.1", &port, KEY, "0", "5000"])?;
    trial.injected += 1;
    check_ended(&mut node, &held, trial)?;
    let refused = other.acquire(KEY, "another", LONG_TTL)?;
    trial.check(refused.is_refused(), format!("another client was not refused: {refused:?}"));
    trial.check(other.extend(&held)?.is_some(), "the holder could not extend the string");
    trial.check(other.release(&held)?, "the holder could not release the string");
    Ok(())
}

/// Checks that the holder has lost the lock, and that another client can acquire it.
fn check_ended(node: &mut Node, held: &Held, trial: &mut Trial) -> Result<()> {
    trial.check(node.extend(held)?.is_none(), "the holder could still extend the lock");
    let other = node.acquire(&held.key, "another", LONG_TTL)?;
    trial.check(other.is_granted(), "the command did not end the lock");
    Ok(())
}

/// While the module is unloaded, a step of the clock expires the keys. When the module is loaded
/// again, the node abstains.
pub(super) fn unloaded_and_loaded(trial: &mut Trial) -> Result<()> {
    let max_ttl_ms = trial.max_ttl().as_millis().to_string();
    let mut node = Node::start(|builder| builder.arg("lock.max-ttl", &max_ttl_ms))?;
    let held = node.acquire("key", "holder", trial.max_ttl())?.granted()?;
    let _: String = node.call(&["MODULE", "UNLOAD", "lock"])?;
    let unloaded_at = Instant::now();
    trial.injected += 1;
    // Harm of the baseline counts only after the load.
    if trial.is_protected() {
        trial.check(node.get("key")?.as_deref() == Some("holder"), "the key is gone");
        let other = node.set_nx("key", "another", trial.max_ttl())?;
        trial.check(other.is_refused(), format!("an old client was not refused: {other:?}"));
    }

    node.step_clock(MINUTE_S)?;
    let path = module_path()?;
    let path = path.to_str().context("a path that is text")?;
    let rejoin_delay_ms = trial.rejoin_delay_ms().to_string();
    let words = ["MODULE", "LOAD", path, "max-ttl", &max_ttl_ms, "rejoin-delay", &rejoin_delay_ms];
    let _: String = node.call(&words)?;
    trial.check_abstains(&mut node, &held, unloaded_at, "start")
}

/// A module that alone knows of a lock cannot be unloaded.
pub(super) fn unloaded_without_mirrors(trial: &mut Trial) -> Result<()> {
    let (mut node, held) = node_and_lock(Duration::from_secs(5))?;
    let _: String = node.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"])?;
    node.step_clock(MINUTE_S)?;
    // EXISTS finds that the key has expired. Both commands run in one turn, so that the module
    // cannot write the mirror again in between.
    let mut unload = pipe();
    unload.exists("key").cmd("MODULE").arg("UNLOAD").arg("lock");
    let unloaded = unload.exec(&mut node.connection);
    trial.injected += 1;
    trial.check(unloaded.is_err(), "the module was unloaded");
    trial.check(node.extend(&held)?.is_some(), "the holder could not extend the lock");
    wait_until(PATIENCE, "the key is written again", || node.exists("key"))?;
    let _: String = node.call(&["MODULE", "UNLOAD", "lock"])?;
    trial.check(node.get("key")?.as_deref() == Some("holder"), "the key is gone");
    Ok(())
}

const OLD_TTL: Duration = Duration::from_millis(800);

/// An old client, which uses plain `SET NX PX`, finds the key expired and writes it.
///
/// The module cannot prevent that this client and the holder both hold the lock. While the old
/// client's key exists, the module does not change it, and grants the lock to no other client.
pub(super) fn old_client(trial: &mut Trial) -> Result<()> {
    let (mut node, held) = node_and_lock(2 * OLD_TTL)?;
    // Otherwise the server may find the expired key before the old client does, and the module
    // would write the key again.
    let _: String = node.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"])?;
    node.step_clock(MINUTE_S)?;
    let old = node.set_nx("key", "old client", 3 * OLD_TTL)?;
    ensure!(
        Instant::now() < held.must_last_until(),
        "this machine is too slow: the lock has ended"
    );
    let Answer::Granted(old) = old else {
        bail!("the old client did not find the key gone: {old:?}")
    };
    trial.injected += 1;
    if !trial.is_protected() {
        trial.harm("the old client and the holder both hold the lock");
        return Ok(());
    }
    trial.check(node.extend(&held)?.is_some(), "the holder could not extend the lock");
    // Until its end, the old client's key stays, and keeps others out.
    trial.check_ends(&mut node, &old, Instant::now())?;
    Ok(())
}
