//! A server restarts while a lock is held. In most scenarios it has lost some or all of its data.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::{AbstentionSettings, HOUR_S, MINUTE_S};
use crate::harness::{Held, LockMethod, Node, Protected};
use crate::scenario::{Baseline, Scenario, Tally};

pub static EMPTY_DISK: Scenario = Scenario {
    accident: "kill -9, restart on an empty disk",
    baseline: Baseline::Harmed("lock.rejoin-delay 0"),
    run: empty_disk,
};

fn empty_disk(protected: Protected, tally: &mut Tally) -> Result<()> {
    let settings = AbstentionSettings::of(protected);
    let mut node = settings.start_node()?;
    let held = node.acquire_free(LockMethod::Module, "key", "holder", settings.max_ttl)?;
    let killed_at = settings.restart_without(&mut node, "key", tally)?;
    settings.check(&mut node, protected, &held, killed_at, "start", tally)
}

/// Each write is on the disk, but the keys of the locks have expired when the server loads them.
pub static CLOCK_STEPPED_MEANWHILE: Scenario = Scenario {
    accident: "wall clock +60 s during a restart, appendfsync always",
    baseline: Baseline::Harmed("lock.rejoin-delay 0"),
    run: clock_stepped_meanwhile,
};

fn clock_stepped_meanwhile(protected: Protected, tally: &mut Tally) -> Result<()> {
    let settings = AbstentionSettings::of(protected);
    let mut node = start(Fsync::Always, &settings)?;
    let held = node.acquire_free(LockMethod::Module, "key", "holder", settings.max_ttl)?;

    let lost_bytes = node.master.cut_power()?;
    let cut_at = Instant::now();
    ensure!(lost_bytes == 0, "appendfsync always lost {lost_bytes} bytes");
    node.master.injectors()?.clock.step_ms(MINUTE_S * 1000);
    node.restart(settings.rejoin_delay_ms)?;
    ensure!(!node.exists("key")?, "the key has not expired");
    tally.count_injected();
    settings.check(&mut node, protected, &held, cut_at, "start", tally)
}

/// The operating system decides when to sync.
pub static SYNCED_BY_THE_SYSTEM: Scenario = Scenario {
    accident: "power cut, appendfsync no",
    baseline: Baseline::Harmed("lock.rejoin-delay 0"),
    run: |protected, tally| power_cut(Fsync::No, protected, tally),
};

/// The server syncs once a second.
pub static SYNCED_EVERY_SECOND: Scenario = Scenario {
    accident: "power cut, appendfsync everysec",
    baseline: Baseline::Harmed("lock.rejoin-delay 0"),
    run: |protected, tally| power_cut(Fsync::EverySecond, protected, tally),
};

/// The server syncs before it answers.
pub static ALWAYS_SYNCED: Scenario = Scenario {
    accident: "power cut, appendfsync always",
    baseline: Baseline::Unharmed(
        "lock.rejoin-delay 0: what is synced before the answer is not lost",
    ),
    run: |protected, tally| power_cut(Fsync::Always, protected, tally),
};

/// The server syncs once a second, and measures the second by the wall clock.
///
/// After a step back by an hour, Redis 7.0 and 8.0 and Valkey 8.1 and 9.1 do not sync for an hour.
pub static STEPPED_BACK_BEFORE: Scenario = Scenario {
    accident: "wall clock −1 h, a second later a power cut, appendfsync everysec",
    baseline: Baseline::Harmed("lock.rejoin-delay 0"),
    run: stepped_back_before,
};

fn stepped_back_before(protected: Protected, tally: &mut Tally) -> Result<()> {
    /// Without the step, the server would sync within this time.
    const SYNC_DUE_AFTER: Duration = Duration::from_millis(1500);
    let settings = AbstentionSettings::of(protected);
    // The lock must outlast the sleep.
    let settings = AbstentionSettings { max_ttl: settings.max_ttl + SYNC_DUE_AFTER, ..settings };
    let mut node = start(Fsync::EverySecond, &settings)?;
    node.step_clock(-HOUR_S)?;
    let held = node.acquire_free(LockMethod::Module, "key", "holder", settings.max_ttl)?;
    thread::sleep(SYNC_DUE_AFTER);
    let lost_bytes = node.master.cut_power()?;
    let cut_at = Instant::now();
    ensure!(lost_bytes > 0, "the server has synced after all");
    node.restart(settings.rejoin_delay_ms)?;
    tally.count_injected();
    settings.check(&mut node, protected, &held, cut_at, "start", tally)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fsync {
    No,
    EverySecond,
    Always,
}

impl Fsync {
    const fn word(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::EverySecond => "everysec",
            Self::Always => "always",
        }
    }
}

fn power_cut(fsync: Fsync, protected: Protected, tally: &mut Tally) -> Result<()> {
    let settings = AbstentionSettings::of(protected);
    let (mut node, mut held, lost_bytes) = cut_after_a_grant(fsync, &settings)?;
    let cut_at = Instant::now();
    node.restart(settings.rejoin_delay_ms)?;
    tally.count_injected();
    if fsync == Fsync::Always {
        tally.check(lost_bytes == 0, format!("{lost_bytes} synced bytes were lost"));
        // The key has survived, so the holder can extend the lock even while the node abstains.
        let extended = node.extend(LockMethod::Module, &held)?;
        tally.check(extended.is_some(), "the holder could not extend the lock");
        held = extended.unwrap_or(held);
    }
    settings.check(&mut node, protected, &held, cut_at, "start", tally)
}

/// Starts a node, acquires a lock, and cuts the power. Returns the number of lost bytes, too.
///
/// Without `appendfsync always`, the grant is lost: if the server has synced it before the cut,
/// this is repeated on a new server.
fn cut_after_a_grant(fsync: Fsync, settings: &AbstentionSettings) -> Result<(Node, Held, u64)> {
    const ATTEMPTS_MAX: usize = 20;
    for _ in 0..ATTEMPTS_MAX {
        let mut node = start(fsync, settings)?;
        let held = node.acquire_free(LockMethod::Module, "key", "holder", settings.max_ttl)?;
        let lost_bytes = node.master.cut_power()?;
        if lost_bytes > 0 || fsync == Fsync::Always {
            return Ok((node, held, lost_bytes));
        }
    }
    bail!("appendfsync {}: none of {ATTEMPTS_MAX} power cuts lost data", fsync.word())
}

/// Starts a node with an append-only file. With `appendfsync everysec`, it has just synced.
fn start(fsync: Fsync, settings: &AbstentionSettings) -> Result<Node> {
    let max_ttl_ms = settings.max_ttl.as_millis();
    let mut node = Node::start(|builder| {
        builder
            .arg("lock.max-ttl", max_ttl_ms)
            .arg("appendonly", "yes")
            .arg("appendfsync", fsync.word())
    })?;
    if fsync == Fsync::EverySecond {
        // After this SET is synced, the next write is synced up to a second later.
        let before = node.syncs()?;
        let _: String = node.call(&["SET", "other", "value"])?;
        node.eventually("the server syncs", |node| Ok(node.syncs()? > before))?;
    }
    Ok(node)
}
