//! All accidents to a single node, and the table of their results.
//!
//! Most scenarios are claims of the tables of steps. The others need a server that is started in a
//! way of its own, or a client that acts within a turn of the server:
//!
//! - `memory`: locks expire unreleased
//! - `node`: one server, and the commands of a lock
//! - `operator`: an operator changes the key of a lock, or reconfigures or unloads the module, and
//!   an old client writes it
//! - `restart`: a server restarts with less data than before, or a replica is promoted
//! - `trial`: a scenario, and the result of its runs

mod memory;
mod node;
mod operator;
mod restart;
mod trial;

use std::fmt;

use anyhow::Result;

use self::Baseline::{Harmed, None as NoBaseline, Unharmed};
pub use self::memory::{Leftovers, expire_unreleased};
use self::trial::Run::{Claim, Claims, Code};
pub use self::trial::{Baseline, Scenario, Trial};
use crate::Protected;

const HOUR_S: i64 = 3600;
const MINUTE_S: i64 = 60;

const SET_NX: Baseline = Harmed("SET NX PX");
const VOTES_AT_ONCE: Baseline = Harmed("lock.rejoin-delay 0");
const KEYS_SURVIVE: Baseline = Unharmed("SET NX PX: the keys are loaded again");
const MUST_OBEY: Baseline = NoBaseline("an operator's command: the lock must obey it");
const MUST_REFUSE: Baseline = NoBaseline("the server must refuse it");
const LIST_OF_READERS: Baseline = Harmed("a list of readers that expires");
const SET_NX_OF_SLOTS: Baseline = Harmed("SET NX PX of each slot");

/// Defines [`ALL`], and a test of each scenario, which is named after the claim.
macro_rules! scenarios {
    ($($claim:ident: $accident:literal, $baseline:expr, $run:expr;)*) => {
        pub static ALL: &[Scenario] = &[$(Scenario {
            claim: stringify!($claim),
            accident: $accident,
            baseline: $baseline,
            run: $run,
        },)*];

        #[cfg(test)]
        mod claims {
            $(#[test]
            fn $claim() {
                super::check(stringify!($claim));
            })*
        }
    };
}

scenarios! {
    wall_clock_stepped_ahead_ends_no_lock:
        "wall clock +60 s while a lock is held", SET_NX,
        Claims("lock outlives a step of the wall clock, and its key is written again",
            "string ends when the wall clock steps ahead");
    wall_clock_stepped_back_prolongs_no_lock:
        "wall clock −1 h while a lock is held", SET_NX,
        Claims("lock ends at its deadline by the monotonic clock alone",
            "string outlasts its expiry when the wall clock steps back");
    old_client_after_a_clock_step_ends_no_lock_and_keeps_its_own_key:
        "wall clock +60 s, then SET NX PX by an old client", SET_NX, Code(operator::old_client);
    eviction_of_the_soonest_expiry_ends_no_lock:
        "eviction under volatile-ttl", SET_NX,
        Claims("lock outlives the eviction of its key under volatile-ttl",
            "string is lost by an eviction under volatile-ttl");
    eviction_of_the_least_recently_used_ends_no_lock:
        "eviction under allkeys-lru", SET_NX,
        Claims("lock outlives the eviction of its key under allkeys-lru",
            "string is lost by an eviction under allkeys-lru");
    killed_node_without_its_data_grants_no_held_lock:
        "kill -9, restart on an empty disk", VOTES_AT_ONCE,
        Claims("node that has lost its data grants nothing until all locks have ended",
            "lock is granted to another client by a node that has lost its data and votes at once");
    node_after_a_clock_step_during_restart_grants_no_held_lock:
        "wall clock +60 s during a restart, appendfsync always", VOTES_AT_ONCE,
        Code(restart::clock_stepped_meanwhile);
    node_after_a_power_cut_without_syncs_grants_no_held_lock:
        "power cut, appendfsync no", VOTES_AT_ONCE,
        Code(|trial| restart::power_cut(trial, "no"));
    node_after_a_power_cut_between_syncs_grants_no_held_lock:
        "power cut, appendfsync everysec", VOTES_AT_ONCE,
        Code(|trial| restart::power_cut(trial, "everysec"));
    power_cut_leaves_a_synced_lock_to_its_holder:
        "power cut, appendfsync always",
        Unharmed("lock.rejoin-delay 0: what is synced before the answer is not lost"),
        Code(|trial| restart::power_cut(trial, "always"));
    node_after_a_clock_step_and_a_power_cut_grants_no_held_lock:
        "wall clock −1 h, a second later a power cut, appendfsync everysec", VOTES_AT_ONCE,
        Code(restart::stepped_back_before);
    promoted_replica_grants_no_lock_that_was_not_replicated:
        "replica promoted, the lock not yet replicated", SET_NX, Code(restart::not_yet_replicated);
    reload_from_a_snapshot_is_not_a_flush:
        "DEBUG RELOAD", KEYS_SURVIVE,
        Claims("reload ends no lock",
            "string outlives a reload from a snapshot");
    reload_from_the_append_only_file_is_not_a_flush:
        "DEBUG LOADAOF", KEYS_SURVIVE,
        Claims("reload from the append-only file ends no lock",
            "string outlives a reload from the append-only file");
    reload_without_keys_that_a_clock_step_expired_ends_no_lock:
        "wall clock +60 s, then DEBUG RELOAD", SET_NX,
        Claims("reload after a step of the wall clock ends no lock",
            "string is gone when the wall clock steps ahead before a reload");
    operator_ends_a_lock_by_removing_its_key:
        "DEL, UNLINK, GETDEL of a held lock", MUST_OBEY,
        Claim("command that removes the key ends the lock");
    operator_ends_a_lock_by_renaming_its_key:
        "RENAME of a held lock", MUST_OBEY,
        Claim("renamed lock is a string that its token holds");
    operator_ends_a_lock_by_expire_if_the_server_reports_a_deletion:
        "EXPIRE 0 of a held lock", MUST_OBEY, Code(operator::expired);
    operator_ends_all_locks_by_a_flush:
        "FLUSHALL, FLUSHDB with a held lock", MUST_OBEY,
        Claim("flush ends all locks");
    node_with_swapped_databases_grants_no_held_lock:
        "SWAPDB with a held lock", SET_NX,
        Claims("two swapped databases end their locks, and the node abstains for the largest ttl",
            "string of a swapped database does not keep others out");
    only_its_token_extends_a_restored_copy_of_a_lock:
        "DUMP and RESTORE of a held lock", MUST_OBEY,
        Claim("restored copy of a lock is a string that its token holds");
    only_its_token_extends_a_migrated_key:
        "MIGRATE of a held lock", MUST_OBEY, Code(operator::migrated);
    configured_delay_shortens_no_abstention_that_has_begun:
        "CONFIG SET lock.rejoin-delay 0 during an abstention",
        Harmed("lock.rejoin-delay 0 from the start"),
        Claims("configured delay applies to no abstention that has begun",
            "lock is granted to another client by a node that has lost its data and votes at once");
    largest_ttl_cannot_be_changed_while_the_server_runs:
        "CONFIG SET lock.max-ttl", MUST_REFUSE,
        Claim("largest ttl cannot be changed while the server runs");
    reloaded_module_grants_no_held_lock:
        "MODULE UNLOAD, wall clock +60 s, MODULE LOAD", VOTES_AT_ONCE,
        Code(operator::unloaded_and_loaded);
    module_that_alone_knows_of_a_lock_is_not_unloaded:
        "MODULE UNLOAD while a lock's key is lost", MUST_REFUSE,
        Code(operator::unloaded_without_mirrors);
    wall_clock_stepped_ahead_grants_no_writer_beside_readers:
        "wall clock +60 s while readers share a lock", LIST_OF_READERS,
        Claims("accidents take no lock from readers",
            "list of readers ends when the wall clock steps ahead");
    eviction_of_a_shared_key_ends_no_readers_lock:
        "eviction under volatile-ttl while readers share a lock", LIST_OF_READERS,
        Claims("accidents take no lock from readers",
            "list of readers is lost by an eviction under volatile-ttl");
    killed_node_without_its_data_grants_no_shared_lock_to_a_writer:
        "kill -9, restart on an empty disk while readers share a lock", VOTES_AT_ONCE,
        Claims("node that has lost its data grants nothing until all locks have ended",
            "writer is admitted beside readers by a node that has lost its data and votes at once");
    killed_node_with_its_data_keeps_writers_out_until_the_last_reader:
        "kill -9, restart with the disk while readers share a lock, lock.rejoin-delay 0",
        Unharmed("a list of readers that expires: it is loaded again"),
        Claims("restart leaves a string that blocks the key until it expires",
            "list of readers outlives a restart");
    restart_after_a_downgrade_leaves_no_token_that_ends_the_lock:
        "downgrade, a reader joins, kill -9, restart with the disk, release by the former writer",
        Harmed("the key keeps the token of the writer"),
        Claims("restart after a downgrade leaves no token that ends the lock",
            "token of a former writer ends the lock of a reader after a restart");
    reload_without_a_shared_key_ends_no_readers_lock:
        "wall clock +60 s, then DEBUG RELOAD while readers share a lock", LIST_OF_READERS,
        Claims("reload after a step of the wall clock ends no lock",
            "list of readers is gone when the wall clock steps ahead before a reload");
    operator_ends_a_lock_for_all_of_its_readers:
        "DEL, SET of the key of a lock that readers share", MUST_OBEY,
        Claim("command of an operator ends the lock of all readers");
    module_that_alone_knows_the_readers_is_not_unloaded:
        "MODULE UNLOAD while readers share a lock", MUST_REFUSE,
        Claim("module that alone knows the readers is not unloaded");
    wall_clock_stepped_ahead_frees_no_permit:
        "wall clock +60 s while all permits are held", SET_NX_OF_SLOTS,
        Claims("permits outlive a step of the wall clock and an eviction",
            "slots are free when the wall clock steps ahead");
    eviction_of_a_slot_frees_no_permit:
        "eviction under volatile-ttl while all permits are held", SET_NX_OF_SLOTS,
        Claims("permits outlive a step of the wall clock and an eviction",
            "slots are free after an eviction under volatile-ttl");
    killed_node_without_its_data_grants_no_held_permit:
        "kill -9, restart on an empty disk while all permits are held", VOTES_AT_ONCE,
        Claims("node that has lost its data grants nothing until all locks have ended",
            "third permit of two is granted by a node that has lost its data and votes at once");
    operator_ends_the_permit_of_one_slot_only:
        "DEL of one slot while all permits are held", MUST_OBEY,
        Claim("removal of a slot ends the permit of that slot only");
}

/// The result of a scenario. `Display` writes a row of a Markdown table.
#[derive(Debug)]
pub struct Row {
    scenario: &'static Scenario,
    with: Trial,
    /// `None` where there is no baseline.
    without: Option<Trial>,
}

/// The head of the table of results.
pub const HEAD: &str = "| accident | times | harm without the protection | harm with it |
|---|---|---|---|";

impl Row {
    /// Runs a scenario, with the protection and without it.
    ///
    /// # Errors
    /// When an accident could not be caused, or a server failed in another way.
    pub fn of(scenario: &'static Scenario, rounds: u32) -> Result<Self> {
        let with = scenario.run(Protected::Yes, rounds)?;
        let without = match scenario.baseline {
            NoBaseline(_) => None,
            Harmed(_) | Unharmed(_) => Some(scenario.run(Protected::No, rounds)?),
        };
        Ok(Self { scenario, with, without })
    }

    /// Returns what is wrong: harm despite the protection, accidents that did not happen, and a
    /// baseline that differs from what its scenario says.
    pub fn complaints(&self) -> Vec<String> {
        let Self { scenario: Scenario { accident, baseline, .. }, with, without } = self;
        let mut complaints = with.harms.clone();
        if with.injected == 0 {
            complaints.push("did not happen".into());
        }
        if without.as_ref().is_some_and(|without| without.injected == 0) {
            complaints.push("did not happen in the baseline".into());
        }
        let baseline_harm = without.as_ref().and_then(|without| without.harms.first());
        match (baseline, baseline_harm) {
            (Harmed(instead), None) => {
                complaints
                    .push(format!("does no harm with {instead}: the baseline proves nothing"));
            }
            (Unharmed(why), Some(harm)) => {
                complaints.push(format!("the baseline did unexpected harm ({why}): {harm}"));
            }
            _ => {}
        }
        complaints.iter().map(|complaint| format!("{accident}: {complaint}")).collect()
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario: Scenario { accident, baseline, .. }, with, without } = self;
        let (Harmed(text) | Unharmed(text) | NoBaseline(text)) = baseline;
        let without = match without {
            Some(trial) => format!("{} of {} ({text})", trial.harms.len(), trial.injected),
            None => format!("– ({text})"),
        };
        write!(f, "| {accident} | {} | {without} | {} |", with.injected, with.harms.len())
    }
}

/// Runs a scenario once with the protection, and once without it.
#[cfg(test)]
#[track_caller]
fn check(claim: &str) {
    let scenario = ALL.iter().find(|scenario| scenario.claim == claim).expect("a row of the table");
    let row = Row::of(scenario, 1).unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(row.complaints(), [""; 0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn safety_page_names_all_scenarios() {
        let page = include_str!("../../../../docs/safety.md");
        for Scenario { claim, .. } in ALL {
            assert!(page.contains(&format!("`{claim}`")), "docs/safety.md lacks {claim}");
        }
    }

    #[test]
    fn baseline_without_its_accident_is_reported() {
        let trial = |protected, injected| Trial { protected, injected, harms: Vec::new() };
        let scenario = ALL.iter().find(|scenario| matches!(scenario.baseline, Unharmed(_)));
        let scenario = scenario.expect("an unharmed baseline");
        let row = Row {
            scenario,
            with: trial(Protected::Yes, 1),
            without: Some(trial(Protected::No, 0)),
        };
        let complaint = format!("{}: did not happen in the baseline", scenario.accident);
        assert_eq!(row.complaints(), [complaint]);
    }
}
