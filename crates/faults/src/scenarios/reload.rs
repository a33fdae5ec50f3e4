//! The server empties itself and loads its own data again. That is not a flush by an operator.

use anyhow::Result;

use super::{MINUTE_S, is_its_holders, module_or_set_nx};
use crate::node::{Node, PATIENCE};
use crate::{Protected, Scenario, Tally, Twin};

const KEYS_SURVIVE: Twin = Twin::Unharmed("SET NX PX: the keys are loaded again");

/// From a snapshot that it makes.
pub static DEBUG_RELOAD: Scenario = Scenario {
    fault: "DEBUG RELOAD",
    twin: KEYS_SURVIVE,
    round: |protected, tally| reloaded("RELOAD", Clock::Right, protected, tally),
};

/// From its append-only file.
pub static DEBUG_LOADAOF: Scenario = Scenario {
    fault: "DEBUG LOADAOF",
    twin: KEYS_SURVIVE,
    round: |protected, tally| reloaded("LOADAOF", Clock::Right, protected, tally),
};

/// A snapshot is loaded without the keys that have expired by the wall clock.
pub static DEBUG_RELOAD_AFTER_A_STEP: Scenario = Scenario {
    fault: "wall clock +60 s, then DEBUG RELOAD",
    twin: Twin::Harmed("SET NX PX"),
    round: |protected, tally| reloaded("RELOAD", Clock::Stepped, protected, tally),
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Clock {
    Right,
    Stepped,
}

fn reloaded(from: &str, clock: Clock, protected: Protected, tally: &mut Tally) -> Result<()> {
    let way = module_or_set_nx(protected);
    let mut node = Node::start(|builder| builder.arg("appendonly", "yes"))?;
    let held = node.take(way, "key", "holder", PATIENCE)?;
    if clock == Clock::Stepped {
        node.step_clock(MINUTE_S)?;
    }
    let _: String = node.call(&["DEBUG", from])?;
    tally.injected();
    is_its_holders(&mut node, way, &held, tally)
}
