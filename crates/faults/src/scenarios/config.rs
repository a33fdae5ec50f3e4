//! Somebody configures the protection away while it is needed.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::Abstention;
use crate::node::{Node, Way};
use crate::{Protected, Scenario, Tally, Twin};

/// A shorter delay is for the next start.
pub static REJOIN_DELAY: Scenario = Scenario {
    fault: "CONFIG SET lock.rejoin-delay 0 during an abstention",
    twin: Twin::Harmed("lock.rejoin-delay 0 from the start"),
    round: rejoin_delay,
};

fn rejoin_delay(protected: Protected, tally: &mut Tally) -> Result<()> {
    let abstention = Abstention::of(protected);
    let mut node = Node::start(|builder| builder.arg("lock.max-ttl", abstention.max_ttl.as_millis()))?;
    let held = node.take(Way::Module, "key", "holder", abstention.max_ttl)?;
    node.server.kill();
    let killed_at = Instant::now();
    node.restart(abstention.rejoin_delay_ms)?;
    node.set_config("lock.rejoin-delay", "0")?;
    tally.injected();
    abstention.is_kept(&mut node, protected, &held, killed_at, "start", tally)
}

/// The largest ttl bounds what a server may have granted before it forgot.
pub static MAX_TTL: Scenario =
    Scenario { fault: "CONFIG SET lock.max-ttl", twin: Twin::None("it is to be refused"), round: max_ttl };

fn max_ttl(_: Protected, tally: &mut Tally) -> Result<()> {
    let mut node = Node::start(|builder| builder.arg("lock.max-ttl", 2000))?;
    for ms in ["1000", "3000", "2000"] {
        tally.injected();
        let is_set = node.set_config("lock.max-ttl", ms);
        tally.must(is_set.is_err(), || format!("it was set to {ms}"));
    }
    let ttl = Duration::from_secs(2);
    let granted = node.acquire(Way::Module, "key", "holder", ttl);
    tally.must(granted.is_ok(), || format!("it has changed: {granted:?}"));
    let granted = node.acquire(Way::Module, "other", "holder", ttl + Duration::from_millis(1));
    tally.must(granted.is_err(), || format!("it has changed: {granted:?}"));
    Ok(())
}
