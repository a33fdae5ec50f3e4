//! Accidents that only readers of a lock meet.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::holders::{Holders, KEY};
use super::node::{Held, LockMethod, Node};
use super::trial::{LONG_TTL, Trial};

/// No client knows the value of the key on the disk. The key keeps writers and readers out until
/// the last reader's deadline.
pub(super) fn kept_disk(trial: &mut Trial) -> Result<()> {
    let mut node = start_with_disk(trial.method())?;
    let first = node.share(KEY, "first", LONG_TTL)?.granted()?;
    let first_expiry_ms: u64 = node.call(&["PEXPIRETIME", KEY])?;
    let longer = Duration::from_millis(600);
    let last = node.share(KEY, "second", LONG_TTL + longer)?.granted()?;
    node.inner.server.kill();
    node.restart(0)?;
    ensure!(node.exists(KEY)?, "the disk is empty");
    trial.count_injected();
    // The key must expire at the deadline of the second reader, which is the later one.
    let expiry_ms: u64 = node.call(&["PEXPIRETIME", KEY])?;
    let later_ms = expiry_ms.saturating_sub(first_expiry_ms);
    trial.check(
        u128::from(later_ms) >= longer.as_millis(),
        format!("the key expires only {later_ms} ms after the first reader's deadline"),
    );
    if trial.is_protected() {
        let extended = node.extend(&first)?;
        trial.check(extended.is_none(), "the node accepted a reader's token for the loaded key");
        trial.check(!node.release(&first)?, "a reader ended the lock of both");
        // The key does not say that its holders share the lock.
        let reader = node.share(KEY, "third", LONG_TTL)?;
        trial.check(reader.is_refused(), format!("a third reader was not refused: {reader:?}"));
    }
    check_refuses_writers(&mut node, &last, trial)
}

/// A former writer's token must not end the lock for readers that joined after the downgrade.
pub(super) fn killed_after_a_downgrade(trial: &mut Trial) -> Result<()> {
    let mut node = start_with_disk(LockMethod::Module)?;
    let first = node.acquire(KEY, "first", LONG_TTL)?.granted()?;
    let ms = LONG_TTL.as_millis().to_string();
    let extended: Option<u64> = node.call(&["LOCK.EXTEND", KEY, "first", &ms, "SHARED"])?;
    ensure!(extended.is_some(), "the lock was not downgraded");
    let reader = node.share(KEY, "second", LONG_TTL)?.granted()?;
    let value = node.get(KEY)?;
    trial.count_injected();
    if trial.is_protected() {
        let is_random = value.is_some_and(|value| value != "first" && value != "second");
        trial.check(is_random, "the key shows the token of one of the holders");
    } else {
        // Like a module that writes the key only once, when it grants the lock.
        let _: String = node.call(&["SET", KEY, "first", "PX", &ms])?;
    }
    node.inner.server.kill();
    node.restart(0)?;
    ensure!(node.exists(KEY)?, "the disk is empty");
    trial.check(!node.release(&first)?, "one of the holders ended the lock of both");
    check_refuses_writers(&mut node, &reader, trial)
}

/// An operator's command ends the lock for all readers.
pub(super) fn deleted_or_set(trial: &mut Trial) -> Result<()> {
    for command in [&["DEL", KEY][..], &["SET", KEY, "old client", "PX", "60000"]] {
        let mut node = Node::start(LockMethod::Module, |builder| builder)?;
        let readers = Holders::Readers.acquire(&mut node, LONG_TTL)?;
        let _: redis::Value = node.call(command)?;
        trial.count_injected();
        for reader in &readers {
            trial.check(node.extend(reader)?.is_none(), "a reader could still extend the lock");
        }
        let writer = node.acquire(KEY, "writer", LONG_TTL)?;
        let is_free = command[0] == "DEL";
        trial.check(writer.is_granted() == is_free, format!("the writer was told {writer:?}"));
    }
    Ok(())
}

/// A module that alone knows the readers cannot be unloaded.
pub(super) fn unloaded(trial: &mut Trial) -> Result<()> {
    let mut node = Node::start(LockMethod::Module, |builder| builder)?;
    let readers = Holders::Readers.acquire(&mut node, LONG_TTL)?;
    let refused = node.call::<String>(&["MODULE", "UNLOAD", "lock"]);
    trial.count_injected();
    trial.check(refused.is_err(), "the module was unloaded");
    Holders::Readers.check_still_held(&mut node, &readers, trial)
}

/// Starts a node whose writes are on the disk before they are answered.
fn start_with_disk(method: LockMethod) -> Result<Node> {
    Node::start(method, |builder| builder.arg("appendonly", "yes").arg("appendfsync", "always"))
}

/// Checks once that a writer is refused, unless the lock of `last` has ended.
fn check_refuses_writers(node: &mut Node, last: &Held, trial: &mut Trial) -> Result<()> {
    let writer = node.acquire(KEY, "writer", LONG_TTL)?;
    if Instant::now() < last.must_last_until() {
        trial.check(writer.is_refused(), format!("a writer was granted the lock: {writer:?}"));
    }
    Ok(())
}
