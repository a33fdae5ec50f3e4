//! A server restarts with less data than before, or a replica without the lock is promoted. The
//! node abstains until all locks have ended that it may have forgotten.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use quorlock_testkit::{Direction, Proxy};

use super::node::{Held, Node, PATIENCE};
use super::trial::{GRANTED_WHILE_HELD, Trial};
use super::{HOUR_S, MINUTE_S};
use crate::wait_until;

/// Each write is on the disk, but the keys of the locks have expired when the server loads them.
pub(super) fn clock_stepped_meanwhile(trial: &mut Trial) -> Result<()> {
    let mut node = start("always", trial.max_ttl())?;
    let held = node.acquire("key", "holder", trial.max_ttl())?.granted()?;
    let lost_bytes = node.inner.cut_power();
    let cut_at = Instant::now();
    ensure!(lost_bytes == 0, "appendfsync always lost {lost_bytes} bytes");
    node.inner.injectors.clock.step_ms(MINUTE_S * 1000);
    node.restart(trial.rejoin_delay_ms())?;
    ensure!(!node.exists("key")?, "the key has not expired");
    trial.injected += 1;
    trial.check_abstains(&mut node, &held, cut_at, "start")
}

/// The server syncs once a second, and measures the second by the wall clock.
///
/// After a step back by an hour, Redis 7.0 and 8.0 and Valkey 8.1 and 9.1 do not sync for an hour.
pub(super) fn stepped_back_before(trial: &mut Trial) -> Result<()> {
    /// Without the step, the server would sync within this time.
    const SYNC_DUE_AFTER: Duration = Duration::from_millis(1500);
    // The lock must outlast the sleep.
    let max_ttl = trial.max_ttl() + SYNC_DUE_AFTER;
    let mut node = start("everysec", max_ttl)?;
    node.step_clock(-HOUR_S)?;
    let held = node.acquire("key", "holder", max_ttl)?.granted()?;
    thread::sleep(SYNC_DUE_AFTER);
    let lost_bytes = node.inner.cut_power();
    let cut_at = Instant::now();
    ensure!(lost_bytes > 0, "the server has synced after all");
    node.restart(trial.rejoin_delay_ms())?;
    trial.injected += 1;
    trial.check_abstains(&mut node, &held, cut_at, "start")
}

/// The power fails: with `no` the operating system decides when to sync, with `everysec` the server
/// syncs once a second, and with `always` before it answers.
pub(super) fn power_cut(trial: &mut Trial, fsync: &str) -> Result<()> {
    let (mut node, mut held, lost_bytes) = cut_after_a_grant(fsync, trial.max_ttl())?;
    let cut_at = Instant::now();
    node.restart(trial.rejoin_delay_ms())?;
    trial.injected += 1;
    if fsync == "always" {
        trial.check(lost_bytes == 0, format!("{lost_bytes} synced bytes were lost"));
        // The key has survived, so the holder can extend the lock even while the node abstains.
        let extended = node.extend(&held)?;
        trial.check(extended.is_some(), "the holder could not extend the lock");
        held = extended.unwrap_or(held);
    }
    trial.check_abstains(&mut node, &held, cut_at, "start")
}

/// Starts a node, acquires a lock, and cuts the power. Returns the number of lost bytes, too.
///
/// Without `appendfsync always`, the grant is lost: if the server has synced it before the cut,
/// this is repeated on a new server.
fn cut_after_a_grant(fsync: &str, max_ttl: Duration) -> Result<(Node, Held, u64)> {
    const ATTEMPTS_MAX: usize = 20;
    for _ in 0..ATTEMPTS_MAX {
        let mut node = start(fsync, max_ttl)?;
        let held = node.acquire("key", "holder", max_ttl)?.granted()?;
        let lost_bytes = node.inner.cut_power();
        if lost_bytes > 0 || fsync == "always" {
            return Ok((node, held, lost_bytes));
        }
    }
    bail!("appendfsync {fsync}: none of {ATTEMPTS_MAX} power cuts lost data")
}

/// Starts a node with an append-only file. With `appendfsync everysec`, it has just synced.
fn start(fsync: &str, max_ttl: Duration) -> Result<Node> {
    let mut node = Node::start(|builder| {
        builder
            .arg("lock.max-ttl", max_ttl.as_millis())
            .arg("appendonly", "yes")
            .arg("appendfsync", fsync)
    })?;
    if fsync == "everysec" {
        let power = node.inner.injectors.power.clone();
        // After this SET is synced, the next write is synced up to a second later.
        let before = power.syncs();
        let _: String = node.call(&["SET", "other", "value"])?;
        wait_until(PATIENCE, "the server syncs", || Ok(power.syncs() > before))?;
    }
    Ok(node)
}

/// The grant is still on its way to the replica that is promoted.
pub(super) fn not_yet_replicated(trial: &mut Trial) -> Result<()> {
    let max_ttl = trial.max_ttl();
    // With a delay, the master would wait for more replicas before it sends its data.
    let mut primary = Node::start(|builder| {
        builder.arg("lock.max-ttl", max_ttl.as_millis()).arg("repl-diskless-sync-delay", 0).tcp()
    })?;
    let mut replica = Node::start(|builder| builder.arg("lock.max-ttl", max_ttl.as_millis()))?;
    let network = Proxy::start(primary.inner.server.url());
    let port = network.port().to_string();
    let _: String = replica.call(&["REPLICAOF", "127.0.0.1", &port])?;
    let _: String = primary.call(&["SET", "replicated", "value"])?;
    wait_until(PATIENCE, "the replica is in step", || replica.exists("replicated"))?;

    network.hold(Direction::ToClient);
    let acquire = if trial.is_protected() { Node::acquire } else { Node::set_nx };
    let held = acquire(&mut primary, "key", "holder", max_ttl)?.granted()?;
    primary.inner.server.kill();
    ensure!(!replica.exists("key")?, "the grant was replicated");
    let promoted_at = Instant::now();
    let _: String = replica.call(&["REPLICAOF", "NO", "ONE"])?;
    trial.injected += 1;
    if trial.is_protected() {
        return trial.check_abstains(&mut replica, &held, promoted_at, "promotion");
    }
    let other = acquire(&mut replica, "key", "another", max_ttl)?;
    trial.check(!other.is_granted(), GRANTED_WHILE_HELD);
    Ok(())
}
