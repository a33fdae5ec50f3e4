//! An operator changes the key of a lock by a command.
//!
//! That is no accident. Most of these commands end the lock, as they would end a lock that is a key
//! and nothing else. It is harm when the lock does not do so.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Abstention, ends_in_time, module_or_set_nx};
use crate::harness::{Answer, Held, Node, PATIENCE, Protected, Way, port};
use crate::{Baseline, Scenario, Tally};

/// So long that no lock expires.
const TTL: Duration = PATIENCE;
const AS_TOLD: Baseline = Baseline::None("an operator's command: the lock must obey it");

const fn command(fault: &'static str, round: fn(Protected, &mut Tally) -> Result<()>) -> Scenario {
    Scenario { fault, baseline: AS_TOLD, round }
}

/// The lock ends. The same holds for UNLINK, GETDEL and other commands that remove a key.
pub static DEL: Scenario = command("DEL, UNLINK, GETDEL of a held lock", |_, tally| {
    for name in ["DEL", "UNLINK", "GETDEL"] {
        ended_by(tally, |node| node.call::<redis::Value>(&[name, "key"]).map(drop))?;
    }
    Ok(())
});

/// The lock ends. Its token is an ordinary string under the new name, held by its token.
pub static RENAME: Scenario = command("RENAME of a held lock", |_, tally| {
    let mut node = Node::start(|builder| builder)?;
    let held = node.take(Way::Module, "key", "holder", TTL)?;
    let _: String = node.call(&["RENAME", "key", "other"])?;
    tally.injected();
    has_ended(&mut node, &held, tally)?;
    is_held_as_a_string(&mut node, &held.under("other"), tally)
});

/// The lock ends where the server reports that a command removed the key.
///
/// Valkey reports an expiry, as after a step of the clock: there the lock goes on.
pub static EXPIRE_0: Scenario = command("EXPIRE 0 of a held lock", |_, tally| {
    let mut node = Node::start(|builder| builder)?;
    let held = node.take(Way::Module, "key", "holder", Duration::from_millis(800))?;
    let _: i64 = node.call(&["EXPIRE", "key", "0"])?;
    tally.injected();
    if node.is_valkey()? {
        ends_in_time(&mut node, Way::Module, &held, tally)
    } else {
        has_ended(&mut node, &held, tally)
    }
});

/// All locks end, or those of one database.
pub static FLUSHALL: Scenario = command("FLUSHALL, FLUSHDB with a held lock", |_, tally| {
    for flush in [&["FLUSHALL"][..], &["FLUSHALL", "ASYNC"], &["FLUSHDB"]] {
        ended_by(tally, |node| node.call::<String>(flush).map(drop))?;
    }
    Ok(())
});

/// The locks of both databases end, and the node abstains until forgotten locks must have ended.
pub static SWAPDB: Scenario = Scenario {
    fault: "SWAPDB with a held lock",
    baseline: Baseline::Harmed("SET NX PX"),
    round: swapped,
};

fn swapped(protected: Protected, tally: &mut Tally) -> Result<()> {
    let way = module_or_set_nx(protected);
    let abstention = Abstention::of(protected);
    let mut node =
        Node::start(|builder| builder.arg("lock.max-ttl", abstention.max_ttl.as_millis()))?;
    let held = node.take(way, "key", "holder", abstention.max_ttl)?;
    let before = Instant::now();
    let _: String = node.call(&["SWAPDB", "0", "1"])?;
    tally.injected();
    match protected {
        Protected::Yes => abstention.is_kept(&mut node, protected, &held, before, "swapdb", tally),
        Protected::No => {
            let other = node.acquire(way, "key", "another", abstention.max_ttl)?;
            tally.must(!matches!(other, Answer::Granted(_)), || {
                "another was granted it while it was held".into()
            });
            Ok(())
        }
    }
}

/// A copy under another key is a string that its token holds, and the lock goes on.
///
/// A copy that replaces the key ends the lock, and is such a string.
pub static RESTORE: Scenario = command("DUMP and RESTORE of a held lock", |_, tally| {
    let mut node = Node::start(|builder| builder)?;
    let held = node.take(Way::Module, "key", "holder", TTL)?;
    let dumped: Vec<u8> = node.call(&["DUMP", "key"])?;
    node.restore("copy", &dumped, TTL)?;
    tally.injected();
    is_refused(&mut node, "key", tally)?;
    is_held_as_a_string(&mut node, &held.under("copy"), tally)?;

    node.restore("key", &dumped, TTL)?;
    tally.must(node.info("lock", "lock_ended_by_operator")? == 1, || "it was not ended".into());
    is_held_as_a_string(&mut node, &held, tally)
});

/// The lock ends here, and its token is an ordinary string on the other server.
pub static MIGRATE: Scenario = command("MIGRATE of a held lock", |_, tally| {
    let mut node = Node::start(|builder| builder)?;
    let mut other = Node::start(quorlock_testkit::ServerBuilder::tcp)?;
    let held = node.take(Way::Module, "key", "holder", TTL)?;
    let _: String = node.call(&[
        "MIGRATE",
        "127.0.0.1",
        port(&other.master.server.url())?,
        "key",
        "0",
        "5000",
    ])?;
    tally.injected();
    has_ended(&mut node, &held, tally)?;
    is_held_as_a_string(&mut other, &held, tally)
});

/// Acquires a lock that a command must end.
fn ended_by(tally: &mut Tally, command: impl FnOnce(&mut Node) -> Result<()>) -> Result<()> {
    let mut node = Node::start(|builder| builder)?;
    let held = node.take(Way::Module, "key", "holder", TTL)?;
    command(&mut node)?;
    tally.injected();
    has_ended(&mut node, &held, tally)
}

/// Checks that the holder has lost the lock, and that another client can acquire it.
fn has_ended(node: &mut Node, held: &Held, tally: &mut Tally) -> Result<()> {
    tally.must(node.extend(Way::Module, held)?.is_none(), || "it was still its holder's".into());
    let other = node.acquire(Way::Module, &held.key, "another", TTL)?;
    tally.must(matches!(other, Answer::Granted(_)), || "it did not end as it was told".into());
    Ok(())
}

fn is_refused(node: &mut Node, key: &str, tally: &mut Tally) -> Result<()> {
    let other = node.acquire(Way::Module, key, "another", TTL)?;
    tally.must(matches!(other, Answer::Refused), || {
        format!("another was not refused {key}: {other:?}")
    });
    Ok(())
}

/// Checks that no other client is granted the lock, and that its holder can adopt and release it.
fn is_held_as_a_string(node: &mut Node, held: &Held, tally: &mut Tally) -> Result<()> {
    is_refused(node, &held.key, tally)?;
    tally.must(node.extend(Way::Module, held)?.is_some(), || {
        "its holder could not extend the string".into()
    });
    tally.must(node.release(Way::Module, held)?, || {
        "its holder could not release the string".into()
    });
    Ok(())
}
