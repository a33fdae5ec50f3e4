//! The server's process dies, and is started again while a lock is held that it gave.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::{Abstention, MINUTE_S};
use crate::node::{Node, Way};
use crate::{Protected, Scenario, Tally, Twin};

/// Killed, and started with nothing of what it knew.
pub static EMPTY_DISK: Scenario = Scenario {
    fault: "kill -9, restart on an empty disk",
    twin: Twin::Harmed("lock.rejoin-delay 0"),
    round: empty_disk,
};

fn empty_disk(protected: Protected, tally: &mut Tally) -> Result<()> {
    let abstention = Abstention::of(protected);
    let max_ttl_ms = abstention.max_ttl.as_millis();
    let mut node = Node::start(|builder| builder.arg("lock.max-ttl", max_ttl_ms))?;
    let held = node.take(Way::Module, "key", "holder", abstention.max_ttl)?;

    node.server.kill();
    let killed_at = Instant::now();
    node.restart(abstention.rejoin_delay_ms)?;
    ensure!(!node.exists("key")?, "the disk was not empty");
    tally.injected();
    abstention.is_kept(&mut node, protected, &held, killed_at, "start", tally)
}

/// Every write is on the disk, and the keys of the locks have expired all the same when the server loads them.
pub static CLOCK_STEPPED_MEANWHILE: Scenario = Scenario {
    fault: "wall clock +60 s during a restart, appendfsync always",
    twin: Twin::Harmed("lock.rejoin-delay 0"),
    round: clock_stepped_meanwhile,
};

fn clock_stepped_meanwhile(protected: Protected, tally: &mut Tally) -> Result<()> {
    let abstention = Abstention::of(protected);
    let max_ttl_ms = abstention.max_ttl.as_millis();
    let mut node = Node::start(|builder| {
        builder.arg("lock.max-ttl", max_ttl_ms).arg("appendonly", "yes").arg("appendfsync", "always")
    })?;
    let held = node.take(Way::Module, "key", "holder", abstention.max_ttl)?;

    let lost_bytes = node.cut_power();
    let cut_at = Instant::now();
    ensure!(lost_bytes == 0, "appendfsync always lost {lost_bytes} bytes");
    node.clock.step_ms(MINUTE_S * 1000);
    node.restart(abstention.rejoin_delay_ms)?;
    ensure!(!node.exists("key")?, "the key has not expired");
    tally.injected();
    abstention.is_kept(&mut node, protected, &held, cut_at, "start", tally)
}
