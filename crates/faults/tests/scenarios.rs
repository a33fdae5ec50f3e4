//! No accident does harm with the protection, and each baseline shows what its scenario says.

use quorlock_faults::scenarios::{
    clock, memory, module, operator, permits, reload, restart, shared,
};
use quorlock_faults::{Baseline, Protected, Scenario, Tally};

/// Checks that there is no harm with the protection, and that the baseline has the expected effect.
#[track_caller]
fn assert_no_harm(scenario: &Scenario) {
    let with = run(scenario, Protected::Yes);
    assert!(with.harms.is_empty(), "{}: {:?}", scenario.accident, with.harms);
    match scenario.baseline {
        Baseline::Harmed(how) => {
            let without = run(scenario, Protected::No);
            assert!(!without.harms.is_empty(), "{}: no harm with {how}", scenario.accident);
        }
        Baseline::Unharmed(why) => {
            let without = run(scenario, Protected::No);
            assert!(
                without.harms.is_empty(),
                "{}: {:?}, although: {why}",
                scenario.accident,
                without.harms
            );
        }
        Baseline::None(_) => {}
    }
}

#[track_caller]
fn run(scenario: &Scenario, protected: Protected) -> Tally {
    let tally = scenario.run(protected, 1).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(tally.injected > 0, "{}: did not happen", scenario.accident);
    tally
}

#[test]
fn wall_clock_stepped_ahead_ends_no_lock() {
    assert_no_harm(&clock::STEPPED_AHEAD);
}

#[test]
fn wall_clock_stepped_back_prolongs_no_lock() {
    assert_no_harm(&clock::STEPPED_BACK);
}

#[test]
fn old_client_after_a_clock_step_ends_no_lock_and_keeps_its_own_key() {
    assert_no_harm(&clock::STEPPED_AHEAD_FOR_AN_OLD_CLIENT);
}

#[test]
fn eviction_of_the_soonest_expiry_ends_no_lock() {
    assert_no_harm(&memory::VOLATILE_TTL);
}

#[test]
fn eviction_of_the_least_recently_used_ends_no_lock() {
    assert_no_harm(&memory::ALLKEYS_LRU);
}

#[test]
fn killed_node_without_its_data_grants_no_held_lock() {
    assert_no_harm(&restart::EMPTY_DISK);
}

#[test]
fn node_after_a_clock_step_during_restart_grants_no_held_lock() {
    assert_no_harm(&restart::CLOCK_STEPPED_MEANWHILE);
}

#[test]
fn node_after_a_power_cut_without_syncs_grants_no_held_lock() {
    assert_no_harm(&restart::SYNCED_BY_THE_SYSTEM);
}

#[test]
fn node_after_a_power_cut_between_syncs_grants_no_held_lock() {
    assert_no_harm(&restart::SYNCED_EVERY_SECOND);
}

#[test]
fn power_cut_leaves_a_synced_lock_to_its_holder() {
    assert_no_harm(&restart::ALWAYS_SYNCED);
}

#[test]
fn node_after_a_clock_step_and_a_power_cut_grants_no_held_lock() {
    assert_no_harm(&restart::STEPPED_BACK_BEFORE);
}

#[test]
fn promoted_replica_grants_no_lock_that_was_not_replicated() {
    assert_no_harm(&reload::NOT_YET_REPLICATED);
}

#[test]
fn reload_from_a_snapshot_is_not_a_flush() {
    assert_no_harm(&reload::DEBUG_RELOAD);
}

#[test]
fn reload_from_the_append_only_file_is_not_a_flush() {
    assert_no_harm(&reload::DEBUG_LOADAOF);
}

#[test]
fn reload_without_keys_that_a_clock_step_expired_ends_no_lock() {
    assert_no_harm(&reload::DEBUG_RELOAD_AFTER_A_STEP);
}

#[test]
fn operator_ends_a_lock_by_removing_its_key() {
    assert_no_harm(&operator::DEL);
}

#[test]
fn operator_ends_a_lock_by_renaming_its_key() {
    assert_no_harm(&operator::RENAME);
}

#[test]
fn operator_ends_a_lock_by_expire_where_the_server_reports_a_command() {
    assert_no_harm(&operator::EXPIRE_0);
}

#[test]
fn operator_ends_all_locks_by_a_flush() {
    assert_no_harm(&operator::FLUSHALL);
}

#[test]
fn node_with_swapped_databases_grants_no_held_lock() {
    assert_no_harm(&operator::SWAPDB);
}

#[test]
fn restored_copy_of_a_lock_belongs_to_its_token() {
    assert_no_harm(&operator::RESTORE);
}

#[test]
fn migrated_key_belongs_to_its_token() {
    assert_no_harm(&operator::MIGRATE);
}

#[test]
fn configured_delay_shortens_no_abstention_that_has_begun() {
    assert_no_harm(&module::REJOIN_DELAY);
}

#[test]
fn largest_ttl_cannot_be_changed_while_the_server_runs() {
    assert_no_harm(&module::MAX_TTL);
}

#[test]
fn reloaded_module_grants_no_held_lock() {
    assert_no_harm(&module::UNLOAD_AND_LOAD);
}

#[test]
fn module_that_alone_knows_of_a_lock_is_not_unloaded() {
    assert_no_harm(&module::UNLOAD_WITHOUT_MIRRORS);
}

#[test]
fn wall_clock_stepped_ahead_grants_no_writer_beside_readers() {
    assert_no_harm(&shared::STEPPED_AHEAD);
}

#[test]
fn eviction_of_a_shared_key_ends_no_readers_lock() {
    assert_no_harm(&shared::EVICTION);
}

#[test]
fn killed_node_without_its_data_grants_no_shared_lock_to_a_writer() {
    assert_no_harm(&shared::EMPTY_DISK);
}

#[test]
fn killed_node_with_its_data_keeps_writers_out_until_the_last_reader() {
    assert_no_harm(&shared::KEPT_DISK);
}

#[test]
fn restart_after_a_downgrade_leaves_no_token_that_ends_the_lock() {
    assert_no_harm(&shared::KILLED_AFTER_A_DOWNGRADE);
}

#[test]
fn reload_without_a_shared_key_ends_no_readers_lock() {
    assert_no_harm(&shared::DEBUG_RELOAD);
}

#[test]
fn operator_ends_a_lock_for_all_of_its_readers() {
    assert_no_harm(&shared::DEL_OR_SET);
}

#[test]
fn module_that_alone_knows_the_readers_is_not_unloaded() {
    assert_no_harm(&shared::UNLOAD);
}

#[test]
fn wall_clock_stepped_ahead_frees_no_permit() {
    assert_no_harm(&permits::STEPPED_AHEAD);
}

#[test]
fn eviction_of_a_slot_frees_no_permit() {
    assert_no_harm(&permits::EVICTION);
}

#[test]
fn killed_node_without_its_data_grants_no_held_permit() {
    assert_no_harm(&permits::EMPTY_DISK);
}

#[test]
fn operator_ends_the_permit_of_one_slot_only() {
    assert_no_harm(&permits::DEL);
}
