//! No accident does harm with the protection, and each baseline shows what its scenario says.

use quorlock_faults::Scenario;
use quorlock_faults::scenarios::{
    clock, memory, module, operator, permits, reload, restart, shared,
};

#[track_caller]
fn check_scenario(scenario: &Scenario) {
    let complaints = scenario.complaints(1).unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(complaints, [""; 0]);
}

#[test]
fn wall_clock_stepped_ahead_ends_no_lock() {
    check_scenario(&clock::STEPPED_AHEAD);
}

#[test]
fn wall_clock_stepped_back_prolongs_no_lock() {
    check_scenario(&clock::STEPPED_BACK);
}

#[test]
fn old_client_after_a_clock_step_ends_no_lock_and_keeps_its_own_key() {
    check_scenario(&clock::STEPPED_AHEAD_FOR_AN_OLD_CLIENT);
}

#[test]
fn eviction_of_the_soonest_expiry_ends_no_lock() {
    check_scenario(&memory::VOLATILE_TTL);
}

#[test]
fn eviction_of_the_least_recently_used_ends_no_lock() {
    check_scenario(&memory::ALLKEYS_LRU);
}

#[test]
fn killed_node_without_its_data_grants_no_held_lock() {
    check_scenario(&restart::EMPTY_DISK);
}

#[test]
fn node_after_a_clock_step_during_restart_grants_no_held_lock() {
    check_scenario(&restart::CLOCK_STEPPED_MEANWHILE);
}

#[test]
fn node_after_a_power_cut_without_syncs_grants_no_held_lock() {
    check_scenario(&restart::SYNCED_BY_THE_SYSTEM);
}

#[test]
fn node_after_a_power_cut_between_syncs_grants_no_held_lock() {
    check_scenario(&restart::SYNCED_EVERY_SECOND);
}

#[test]
fn power_cut_leaves_a_synced_lock_to_its_holder() {
    check_scenario(&restart::ALWAYS_SYNCED);
}

#[test]
fn node_after_a_clock_step_and_a_power_cut_grants_no_held_lock() {
    check_scenario(&restart::STEPPED_BACK_BEFORE);
}

#[test]
fn promoted_replica_grants_no_lock_that_was_not_replicated() {
    check_scenario(&reload::NOT_YET_REPLICATED);
}

#[test]
fn reload_from_a_snapshot_is_not_a_flush() {
    check_scenario(&reload::DEBUG_RELOAD);
}

#[test]
fn reload_from_the_append_only_file_is_not_a_flush() {
    check_scenario(&reload::DEBUG_LOADAOF);
}

#[test]
fn reload_without_keys_that_a_clock_step_expired_ends_no_lock() {
    check_scenario(&reload::DEBUG_RELOAD_AFTER_A_STEP);
}

#[test]
fn operator_ends_a_lock_by_removing_its_key() {
    check_scenario(&operator::DEL);
}

#[test]
fn operator_ends_a_lock_by_renaming_its_key() {
    check_scenario(&operator::RENAME);
}

#[test]
fn operator_ends_a_lock_by_expire_if_the_server_reports_a_deletion() {
    check_scenario(&operator::EXPIRE_0);
}

#[test]
fn operator_ends_all_locks_by_a_flush() {
    check_scenario(&operator::FLUSHALL);
}

#[test]
fn node_with_swapped_databases_grants_no_held_lock() {
    check_scenario(&operator::SWAPDB);
}

#[test]
fn only_its_token_extends_a_restored_copy_of_a_lock() {
    check_scenario(&operator::RESTORE);
}

#[test]
fn only_its_token_extends_a_migrated_key() {
    check_scenario(&operator::MIGRATE);
}

#[test]
fn configured_delay_shortens_no_abstention_that_has_begun() {
    check_scenario(&module::REJOIN_DELAY);
}

#[test]
fn largest_ttl_cannot_be_changed_while_the_server_runs() {
    check_scenario(&module::MAX_TTL);
}

#[test]
fn reloaded_module_grants_no_held_lock() {
    check_scenario(&module::UNLOAD_AND_LOAD);
}

#[test]
fn module_that_alone_knows_of_a_lock_is_not_unloaded() {
    check_scenario(&module::UNLOAD_WITHOUT_MIRRORS);
}

#[test]
fn wall_clock_stepped_ahead_grants_no_writer_beside_readers() {
    check_scenario(&shared::STEPPED_AHEAD);
}

#[test]
fn eviction_of_a_shared_key_ends_no_readers_lock() {
    check_scenario(&shared::EVICTION);
}

#[test]
fn killed_node_without_its_data_grants_no_shared_lock_to_a_writer() {
    check_scenario(&shared::EMPTY_DISK);
}

#[test]
fn killed_node_with_its_data_keeps_writers_out_until_the_last_reader() {
    check_scenario(&shared::KEPT_DISK);
}

#[test]
fn restart_after_a_downgrade_leaves_no_token_that_ends_the_lock() {
    check_scenario(&shared::KILLED_AFTER_A_DOWNGRADE);
}

#[test]
fn reload_without_a_shared_key_ends_no_readers_lock() {
    check_scenario(&shared::DEBUG_RELOAD);
}

#[test]
fn operator_ends_a_lock_for_all_of_its_readers() {
    check_scenario(&shared::DEL_OR_SET);
}

#[test]
fn module_that_alone_knows_the_readers_is_not_unloaded() {
    check_scenario(&shared::UNLOAD);
}

#[test]
fn wall_clock_stepped_ahead_frees_no_permit() {
    check_scenario(&permits::STEPPED_AHEAD);
}

#[test]
fn eviction_of_a_slot_frees_no_permit() {
    check_scenario(&permits::EVICTION);
}

#[test]
fn killed_node_without_its_data_grants_no_held_permit() {
    check_scenario(&permits::EMPTY_DISK);
}

#[test]
fn operator_ends_the_permit_of_one_slot_only() {
    check_scenario(&permits::DEL);
}
