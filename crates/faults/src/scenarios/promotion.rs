//! The master is gone, and a replica takes its place that has not yet heard of its last grant.

use std::time::Instant;

use anyhow::{Result, ensure};
use quorlock_testkit::{Direction, Proxy};

use super::{Abstention, module_or_set_nx};
use crate::node::{Node, Way, port};
use crate::{Protected, Scenario, Tally, Twin};

/// `REPLICAOF NO ONE` while the grant is still on its way to the replica.
pub static NOT_YET_REPLICATED: Scenario = Scenario {
    fault: "replica promoted, the lock not yet replicated",
    twin: Twin::Harmed("SET NX PX"),
    round: not_yet_replicated,
};

fn not_yet_replicated(protected: Protected, tally: &mut Tally) -> Result<()> {
    let way = module_or_set_nx(protected);
    let abstention = Abstention::of(protected);
    let max_ttl_ms = abstention.max_ttl.as_millis();
    // Where the replica need not wait for the master to gather others.
    let mut master = Node::start(|builder| {
        builder.arg("lock.max-ttl", max_ttl_ms).arg("repl-diskless-sync-delay", 0).tcp()
    })?;
    let mut replica = Node::start(|builder| builder.arg("lock.max-ttl", max_ttl_ms))?;
    let network = Proxy::start(master.server.url());
    let _: String = replica.call(&["REPLICAOF", "127.0.0.1", port(&network.url())?])?;
    let _: String = master.call(&["SET", "replicated", "value"])?;
    replica.eventually("the replica is in step", |replica| replica.exists("replicated"))?;

    network.hold(Direction::ToClient);
    let held = master.take(way, "key", "holder", abstention.max_ttl)?;
    master.server.kill();
    ensure!(!replica.exists("key")?, "the grant was replicated");
    let promoted_at = Instant::now();
    let _: String = replica.call(&["REPLICAOF", "NO", "ONE"])?;
    tally.injected();
    match way {
        Way::Module => abstention.is_kept(&mut replica, protected, &held, promoted_at, "promotion", tally),
        Way::SetNx => {
            let other =
                replica.acquire_until(way, "key", "another", abstention.max_ttl, held.must_last_until())?;
            tally.must(other.is_none(), || "another was granted the lock while it was held".into());
            Ok(())
        }
    }
}
