//! What the rules about who waits where are good for: with each of them all is well, and without it nothing is.

use std::time::Duration;

use quorlock_sim::waiting::{Account, Rule, Scene, comparisons, play};

const SEEDS: [u64; 3] = [1, 2, 3];

/// The scene of a rule, with other random numbers each time.
fn scenes(rule: Rule) -> impl Iterator<Item = Scene> {
    let comparison = comparisons().into_iter().find(|comparison| comparison.rule == rule);
    let scene = comparison.expect("there is one for each rule").scene;
    SEEDS.into_iter().map(move |seed| Scene { seed, ..scene.clone() })
}

fn with(rule: Rule) -> impl Iterator<Item = Account> {
    scenes(rule).map(|scene| play(&scene))
}

/// With the rule, and without it.
fn both(rule: Rule) -> impl Iterator<Item = (Account, Account)> {
    scenes(rule).map(move |scene| (play(&scene), play(&scene.without(rule))))
}

#[test]
fn newcomers_that_yield_starve_nobody() {
    for account in with(Rule::NewcomersYield) {
        assert_eq!(account.starved(), 0, "{account:?}");
        assert!(account.most() <= 2 * account.fewest(), "{account:?}");
    }
}

#[test]
fn newcomers_that_do_not_yield_leave_little_to_those_who_queue() {
    for (with, without) in both(Rule::NewcomersYield) {
        assert!(without.most() > 10 * without.fewest(), "{without:?}");
        assert!(without.longest_wait() > 5 * with.longest_wait(), "{with:?} {without:?}");
    }
}

#[test]
fn a_lock_costs_few_commands_where_most_holders_do_not_reach_the_queue_node() {
    for (scene, account) in scenes(Rule::WaitWhereRefused).zip(with(Rule::WaitWhereRefused)) {
        let nodes = u32::try_from(scene.nodes).unwrap();
        // Three for each node, and what the one who does reach it spends there in vain.
        assert!(account.commands_per_lock() <= f64::from(6 * nodes), "{account:?}");
        assert!(account.locks() >= 150, "{account:?}");
        assert_eq!(account.starved(), 0, "{account:?}");
    }
}

#[test]
fn who_waits_where_nobody_holds_the_lock_spends_commands_for_as_long_as_it_is_held() {
    for (with, without) in both(Rule::WaitWhereRefused) {
        assert!(without.commands_per_second() > 10.0 * with.commands_per_second(), "{with:?} {without:?}");
        assert!(without.longest_wait() > 2 * with.longest_wait(), "{with:?} {without:?}");
    }
}

#[test]
fn who_hears_the_queue_node_before_it_waits_does_so_where_the_others_wait() {
    for (with, without) in both(Rule::HearTheQueueNode) {
        assert!(with.commands_per_lock() < 22.0, "{with:?}");
        assert!(without.commands_per_lock() > 1.4 * with.commands_per_lock(), "{with:?} {without:?}");
        assert!(without.locks() < with.locks() * 9 / 10, "{with:?} {without:?}");
    }
}

#[test]
fn those_who_begin_together_soon_have_one_queue() {
    for (scene, account) in scenes(Rule::EarlierNodesFirst).zip(with(Rule::EarlierNodesFirst)) {
        let nodes = u32::try_from(scene.nodes).unwrap();
        // Two on each, and one more on each of those that were asked first, which took the lock to the others.
        assert!(account.commands_per_lock() < 1.1 * f64::from(2 * nodes + nodes / 2 + 1), "{account:?}");
    }
}

#[test]
fn those_who_waited_elsewhere_and_do_not_hear_the_earlier_nodes_stay_there() {
    let accounts: Vec<_> = both(Rule::EarlierNodesFirst).collect();
    let suffers =
        |(with, without): &&(Account, Account)| without.commands_per_lock() > 3.0 * with.commands_per_lock();
    // Not every beginning divides them.
    assert!(accounts.iter().filter(suffers).count() >= 2, "{accounts:?}");
}

#[test]
fn who_asks_no_more_nodes_than_it_takes_spends_two_commands_on_each_of_a_majority() {
    for account in with(Rule::AskNoMoreThanItTakes) {
        assert!(account.commands_per_lock() < 6.2, "{account:?}");
        assert!(account.most() <= account.fewest() * 12 / 10, "{account:?}");
    }
}

#[test]
fn who_asks_all_nodes_spends_two_commands_on_each() {
    for (with, without) in both(Rule::AskNoMoreThanItTakes) {
        assert!(without.commands_per_lock() > 1.6 * with.commands_per_lock(), "{with:?} {without:?}");
    }
}

#[test]
fn who_stays_queued_waits_for_each_of_the_others_once() {
    for (scene, account) in scenes(Rule::StayQueued).zip(with(Rule::StayQueued)) {
        let longest_hold = Duration::from_micros(*scene.hold_us.end());
        let clients = u32::try_from(scene.clients).unwrap();
        assert!(account.longest_wait() <= clients * longest_hold, "{account:?}");
        assert!(account.most() <= account.fewest() + 3, "{account:?}");
    }
}

#[test]
fn who_leaves_the_queue_and_enters_it_again_waits_for_some_of_the_others_many_times() {
    for (with, without) in both(Rule::StayQueued) {
        assert!(2 * without.longest_wait() > 5 * with.longest_wait(), "{with:?} {without:?}");
    }
}

#[test]
fn a_scene_always_comes_to_the_same() {
    for scene in scenes(Rule::StayQueued) {
        assert_eq!(play(&scene), play(&scene));
    }
}
