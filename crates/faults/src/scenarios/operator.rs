//! An operator changes the key of a lock by a command.
//!
//! Such a command is no accident: the harm is a missing effect on the lock. Most of these commands
//! end the lock, as they would end a lock that is only a key.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{
    AbstentionSettings, GRANTED_WHILE_HELD, LONG_TTL, check_ends_in_time, module_or_set_nx,
};
use crate::harness::{Held, LockMethod, Node, Protected, port};
use crate::scenario::{Baseline, Scenario, Tally};

const MUST_OBEY: Baseline = Baseline::None("an operator's command: the lock must obey it");

const fn command(accident: &'static str, run: fn(Protected, &mut Tally) -> Result<()>) -> Scenario {
    Scenario { accident, baseline: MUST_OBEY, run }
}

/// The lock ends.
pub static DEL: Scenario = command("DEL, UNLINK, GETDEL of a held lock", |_, tally| {
    for name in ["DEL", "UNLINK", "GETDEL"] {
        check_ended_by(tally, |node| node.call::<redis::Value>(&[name, "key"]).map(drop))?;
    }
    Ok(())
});

/// The lock ends. Under the new name, the key is a foreign string whose value is the token.
pub static RENAME: Scenario = command("RENAME of a held lock", |_, tally| {
    let mut node = Node::start(|builder| builder)?;
    let held = node.acquire_free(LockMethod::Module, "key", "holder", LONG_TTL)?;
    let _: String = node.call(&["RENAME", "key", "other"])?;
    tally.count_injected();
    check_ended(&mut node, &held, tally)?;
    check_held_as_string(&mut node, &held.under("other"), tally)
});

/// The lock ends if the server reports to the module that a command removed the key. Valkey reports
/// an expiry instead, as after a step of the clock, so on Valkey the lock stays.
pub static EXPIRE_0: Scenario = command("EXPIRE 0 of a held lock", |_, tally| {
    let mut node = Node::start(|builder| builder)?;
    let held =
        node.acquire_free(LockMethod::Module, "key", "holder", Duration::from_millis(800))?;
    let _: i64 = node.call(&["EXPIRE", "key", "0"])?;
    tally.count_injected();
    if node.is_valkey()? {
        check_ends_in_time(&mut node, LockMethod::Module, &held, tally)
    } else {
        check_ended(&mut node, &held, tally)
    }
});

/// All locks end, or those of one database.
pub static FLUSHALL: Scenario = command("FLUSHALL, FLUSHDB with a held lock", |_, tally| {
    for flush in [&["FLUSHALL"][..], &["FLUSHALL", "ASYNC"], &["FLUSHDB"]] {
        check_ended_by(tally, |node| node.call::<String>(flush).map(drop))?;
    }
    Ok(())
});

/// The locks of both databases end, and the node abstains for `lock.max-ttl`.
pub static SWAPDB: Scenario = Scenario {
    accident: "SWAPDB with a held lock",
    baseline: Baseline::Harmed("SET NX PX"),
    run: swapdb,
};

fn swapdb(protected: Protected, tally: &mut Tally) -> Result<()> {
    let method = module_or_set_nx(protected);
    let settings = AbstentionSettings::of(protected);
    let mut node = settings.start_node()?;
    let held = node.acquire_free(method, "key", "holder", settings.max_ttl)?;
    let before = Instant::now();
    let _: String = node.call(&["SWAPDB", "0", "1"])?;
    tally.count_injected();
    match protected {
        Protected::Yes => settings.check(&mut node, protected, &held, before, "swapdb", tally),
        Protected::No => {
            let other = node.acquire(method, "key", "another", settings.max_ttl)?;
            tally.check(!other.is_granted(), GRANTED_WHILE_HELD);
            Ok(())
        }
    }
}

/// The lock stays, and a copy under another key is a foreign string whose value is the token. A
/// copy that replaces the key ends the lock, and is a foreign string too.
pub static RESTORE: Scenario = command("DUMP and RESTORE of a held lock", |_, tally| {
    let mut node = Node::start(|builder| builder)?;
    let held = node.acquire_free(LockMethod::Module, "key", "holder", LONG_TTL)?;
    let dumped: Vec<u8> = node.call(&["DUMP", "key"])?;
    node.restore("copy", &dumped, LONG_TTL)?;
    tally.count_injected();
    check_refused(&mut node, "key", tally)?;
    check_held_as_string(&mut node, &held.under("copy"), tally)?;

    node.restore("key", &dumped, LONG_TTL)?;
    let ended = node.info("lock", "lock_ended_by_operator")?;
    tally.check(ended == 1, "the operator did not end the lock");
    check_held_as_string(&mut node, &held, tally)
});

/// The lock ends. On the other server, the key is a foreign string whose value is the token.
pub static MIGRATE: Scenario = command("MIGRATE of a held lock", |_, tally| {
    let mut node = Node::start(|builder| builder)?;
    let mut other = Node::start(quorlock_testkit::ServerBuilder::tcp)?;
    let held = node.acquire_free(LockMethod::Module, "key", "holder", LONG_TTL)?;
    let port = port(&other.master.server.url())?.to_string();
    let _: String = node.call(&["MIGRATE", "127.0.0.1", &port, "key", "0", "5000"])?;
    tally.count_injected();
    check_ended(&mut node, &held, tally)?;
    check_held_as_string(&mut other, &held, tally)
});

fn check_ended_by(tally: &mut Tally, command: impl FnOnce(&mut Node) -> Result<()>) -> Result<()> {
    let mut node = Node::start(|builder| builder)?;
    let held = node.acquire_free(LockMethod::Module, "key", "holder", LONG_TTL)?;
    command(&mut node)?;
    tally.count_injected();
    check_ended(&mut node, &held, tally)
}

/// Checks that the holder has lost the lock, and that another client can acquire it.
fn check_ended(node: &mut Node, held: &Held, tally: &mut Tally) -> Result<()> {
    let extended = node.extend(LockMethod::Module, held)?;
    tally.check(extended.is_none(), "the holder could still extend the lock");
    let other = node.acquire(LockMethod::Module, &held.key, "another", LONG_TTL)?;
    tally.check(other.is_granted(), "the command did not end the lock");
    Ok(())
}

fn check_refused(node: &mut Node, key: &str, tally: &mut Tally) -> Result<()> {
    let other = node.acquire(LockMethod::Module, key, "another", LONG_TTL)?;
    tally.check(other.is_refused(), format!("another client was not refused {key}: {other:?}"));
    Ok(())
}

/// Checks that the key holds a foreign string: other clients are refused, and the holder, who knows
/// its value, can extend and release it.
fn check_held_as_string(node: &mut Node, held: &Held, tally: &mut Tally) -> Result<()> {
    check_refused(node, &held.key, tally)?;
    let extended = node.extend(LockMethod::Module, held)?;
    tally.check(extended.is_some(), "the holder could not extend the string");
    tally.check(node.release(LockMethod::Module, held)?, "the holder could not release the string");
    Ok(())
}
