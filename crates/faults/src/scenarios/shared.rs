//! Readers share a lock when the accident happens.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::{AbstentionSettings, LONG_TTL, MINUTE_S, memory, module_or_set_nx, ttl_of};
use crate::harness::{Answer, Held, LockMethod, Node, PATIENCE, Protected};
use crate::scenario::{Baseline, Scenario, Tally};

/// How readers share a lock without the module.
const SET_OF_READERS: Baseline = Baseline::Harmed("a set of readers that expires");
/// Much longer than a scenario takes.
const TTL: Duration = Duration::from_secs(60);
/// A short ttl of a reader, and how much longer the ttl of a second reader is.
const SHORT_TTL: Duration = Duration::from_millis(600);

pub static STEPPED_AHEAD: Scenario = Scenario {
    accident: "wall clock +60 s while readers share a lock",
    baseline: SET_OF_READERS,
    run: stepped_ahead,
};

fn stepped_ahead(protected: Protected, tally: &mut Tally) -> Result<()> {
    let method = module_or_set_nx(protected);
    let mut node = Node::start(|builder| builder)?;
    let ttl = ttl_of(protected, SHORT_TTL);
    let first = share(&mut node, method, "first", ttl)?;
    let second = share(&mut node, method, "second", 2 * ttl)?;
    node.step_clock(MINUTE_S)?;
    tally.count_injected();
    let until = second.must_end_by() + PATIENCE;
    let writer = node.acquire_until(method, &first.key, "writer", TTL, until)?;
    let granted_by = Instant::now();
    tally.check(writer.is_some(), "the readers' locks did not end");
    tally.check(
        granted_by >= second.must_last_until(),
        "a writer was granted the lock beside a reader",
    );
    Ok(())
}

pub static EVICTION: Scenario = Scenario {
    accident: "eviction under volatile-ttl while readers share a lock",
    baseline: SET_OF_READERS,
    run: eviction,
};

fn eviction(protected: Protected, tally: &mut Tally) -> Result<()> {
    let method = module_or_set_nx(protected);
    let mut node = memory::start("volatile-ttl")?;
    let readers = share_twice(&mut node, method)?;
    memory::evict(&mut node, method, &readers[0].key)?;
    tally.count_injected();
    check_still_shared(&mut node, method, &readers, tally)
}

pub static EMPTY_DISK: Scenario = Scenario {
    accident: "kill -9, restart on an empty disk while readers share a lock",
    baseline: Baseline::Harmed("lock.rejoin-delay 0"),
    run: empty_disk,
};

fn empty_disk(protected: Protected, tally: &mut Tally) -> Result<()> {
    let settings = AbstentionSettings::of(protected);
    let mut node = settings.start_node()?;
    share(&mut node, LockMethod::Module, "first", settings.max_ttl / 2)?;
    let last = share(&mut node, LockMethod::Module, "second", settings.max_ttl)?;
    let killed_at = settings.restart_without(&mut node, &last.key, tally)?;
    settings.check(&mut node, protected, &last, killed_at, "start", tally)
}

/// No client knows the value of the key on the disk. The key keeps writers and readers out until
/// the last reader's deadline.
pub static KEPT_DISK: Scenario = Scenario {
    accident: "kill -9, restart with the disk while readers share a lock, lock.rejoin-delay 0",
    baseline: Baseline::Unharmed("a set of readers that expires: it is loaded again"),
    run: kept_disk,
};

fn kept_disk(protected: Protected, tally: &mut Tally) -> Result<()> {
    let method = module_or_set_nx(protected);
    let mut node = start_with_disk()?;
    let first = share(&mut node, method, "first", LONG_TTL)?;
    let first_expiry_ms: u64 = node.call(&["PEXPIRETIME", &first.key])?;
    let last = share(&mut node, method, "second", LONG_TTL + SHORT_TTL)?;
    node.master.server.kill();
    node.restart(0)?;
    ensure!(node.exists(&last.key)?, "the disk is empty");
    tally.count_injected();
    // The key must expire at the deadline of the second reader, which is the later one.
    let expiry_ms: u64 = node.call(&["PEXPIRETIME", &last.key])?;
    let later_ms = expiry_ms.saturating_sub(first_expiry_ms);
    tally.check(
        u128::from(later_ms) >= SHORT_TTL.as_millis(),
        format!("the key expires only {later_ms} ms after the first reader's deadline"),
    );
    if method == LockMethod::Module {
        let extended = node.extend(method, &first)?;
        tally.check(extended.is_none(), "the node accepted a reader's token for the loaded key");
        tally.check(!node.release(method, &first)?, "a reader ended the lock of both");
        // The key does not say that its holders share the lock.
        let reader = node.share(method, &last.key, "third", TTL)?;
        tally.check(
            reader.is_refused(),
            format!("a third reader was not refused the lock: {reader:?}"),
        );
    }
    check_refuses_writers(&mut node, method, &last, tally)
}

/// A former writer's token must not end the lock for readers that joined after the downgrade.
pub static KILLED_AFTER_A_DOWNGRADE: Scenario = Scenario {
    accident: "downgrade, a reader joins, kill -9, restart with the disk, release by the former \
               writer",
    baseline: Baseline::Harmed("the key keeps the token of the writer"),
    run: killed_after_a_downgrade,
};

fn killed_after_a_downgrade(protected: Protected, tally: &mut Tally) -> Result<()> {
    let mut node = start_with_disk()?;
    let first = node.acquire_free(LockMethod::Module, "key", "first", LONG_TTL)?;
    let (key, ms) = (first.key.as_str(), LONG_TTL.as_millis().to_string());
    let extended: Option<u64> = node.call(&["LOCK.EXTEND", key, "first", &ms, "SHARED"])?;
    ensure!(extended.is_some(), "the lock was not downgraded");
    let reader = share(&mut node, LockMethod::Module, "second", LONG_TTL)?;
    let value = node.get(key)?;
    tally.count_injected();
    if protected == Protected::No {
        // Like a module that writes the key only once, when it grants the lock.
        let _: String = node.call(&["SET", key, "first", "PX", &ms])?;
    } else {
        let is_random = value.is_some_and(|value| value != "first" && value != "second");
        tally.check(is_random, "the key shows the token of one of the holders");
    }
    node.master.server.kill();
    node.restart(0)?;
    ensure!(node.exists(key)?, "the disk is empty");
    let released = node.release(LockMethod::Module, &first)?;
    tally.check(!released, "one of the holders ended the lock of both");
    check_refuses_writers(&mut node, LockMethod::Module, &reader, tally)
}

/// The snapshot lacks the key, which a clock step expired.
pub static DEBUG_RELOAD: Scenario = Scenario {
    accident: "wall clock +120 s, then DEBUG RELOAD while readers share a lock",
    baseline: SET_OF_READERS,
    run: debug_reload,
};

fn debug_reload(protected: Protected, tally: &mut Tally) -> Result<()> {
    let method = module_or_set_nx(protected);
    let mut node = Node::start(|builder| builder)?;
    let readers = share_twice(&mut node, method)?;
    node.step_clock(2 * MINUTE_S)?;
    let _: String = node.call(&["DEBUG", "RELOAD"])?;
    tally.count_injected();
    check_still_shared(&mut node, method, &readers, tally)
}

/// An operator's command ends the lock for all readers.
pub static DEL_OR_SET: Scenario = Scenario {
    accident: "DEL, SET of the key of a lock that readers share",
    baseline: Baseline::None("the command must end the lock"),
    run: del_or_set,
};

fn del_or_set(_: Protected, tally: &mut Tally) -> Result<()> {
    for by_set in [false, true] {
        let mut node = Node::start(|builder| builder)?;
        let method = LockMethod::Module;
        let readers = share_twice(&mut node, method)?;
        if by_set {
            let _: String = node.call(&["SET", "key", "old client", "PX", "60000"])?;
        } else {
            let _: u64 = node.call(&["DEL", "key"])?;
        }
        tally.count_injected();
        for reader in &readers {
            let extended = node.extend(method, reader)?;
            tally.check(extended.is_none(), "a reader could still extend the lock");
        }
        let writer = node.acquire(method, "key", "writer", TTL)?;
        tally.check(writer.is_granted() != by_set, format!("the writer was answered {writer:?}"));
    }
    Ok(())
}

/// A module that alone knows the readers cannot be unloaded.
pub static UNLOAD: Scenario = Scenario {
    accident: "MODULE UNLOAD while readers share a lock",
    baseline: Baseline::None("the server must refuse it"),
    run: unload,
};

fn unload(_: Protected, tally: &mut Tally) -> Result<()> {
    let mut node = Node::start(|builder| builder)?;
    let method = LockMethod::Module;
    let readers = share_twice(&mut node, method)?;
    let refused = node.call::<String>(&["MODULE", "UNLOAD", "lock"]);
    tally.count_injected();
    tally.check(refused.is_err(), "the module was unloaded");
    check_still_shared(&mut node, method, &readers, tally)
}

/// Acquires the lock as two readers.
fn share_twice(node: &mut Node, method: LockMethod) -> Result<[Held; 2]> {
    Ok([share(node, method, "first", TTL)?, share(node, method, "second", TTL)?])
}

/// Acquires the lock as a reader. The node must grant it.
fn share(node: &mut Node, method: LockMethod, token: &str, ttl: Duration) -> Result<Held> {
    match node.share(method, "key", token, ttl)? {
        Answer::Granted(held) => Ok(held),
        other => bail!("a reader was not granted the lock: {other:?}"),
    }
}

/// Starts a node whose writes are on the disk before they are answered.
fn start_with_disk() -> Result<Node> {
    Node::start(|builder| builder.arg("appendonly", "yes").arg("appendfsync", "always"))
}

/// Checks once that a writer is refused, unless the lock of `last` has ended.
fn check_refuses_writers(
    node: &mut Node,
    method: LockMethod,
    last: &Held,
    tally: &mut Tally,
) -> Result<()> {
    let writer = node.acquire(method, &last.key, "writer", TTL)?;
    if Instant::now() < last.must_last_until() {
        tally.check(
            writer.is_refused(),
            format!("a writer was not refused beside a reader: {writer:?}"),
        );
    }
    Ok(())
}

/// Checks that a writer is refused. With the module, also checks that another reader joins, that
/// each reader can extend and release the lock, and that the lock is free after that.
fn check_still_shared(
    node: &mut Node,
    method: LockMethod,
    readers: &[Held],
    tally: &mut Tally,
) -> Result<()> {
    check_refuses_writers(node, method, &readers[0], tally)?;
    if method == LockMethod::SetNx {
        return Ok(());
    }
    let joined = node.share(method, &readers[0].key, "joined", TTL)?;
    let Answer::Granted(joined) = joined else {
        tally.harm(format!("another reader was not granted the lock: {joined:?}"));
        return Ok(());
    };
    for reader in readers.iter().chain([&joined]) {
        tally.check(node.extend(method, reader)?.is_some(), "a reader could not extend the lock");
        check_refuses_writers(node, method, reader, tally)?;
        tally.check(node.release(method, reader)?, "a reader could not release the lock");
    }
    let writer = node.acquire(method, &joined.key, "writer", TTL)?;
    tally.check(
        writer.is_granted(),
        format!("the lock was not free after all releases: {writer:?}"),
    );
    Ok(())
}
