//! The order of a turn: which keys the node checks, writes, propagates and hands over, and when.

use crate::support::Server;
use quorlock_core::node::memory_server::{Name, Value};
use quorlock_core::node::{
    Command, CommandError, Holder, KeyEvent, Mode, Release, ServerEvent, WaitReply, Wants,
};

fn enqueue_many(server: &mut Server, keys: &[&[u8]], clients: u32, wait_ms: u64) {
    for n in 0..clients {
        server.wait_for_all(keys, &n.to_le_bytes(), wait_ms);
    }
}

#[test]
fn timed_out_waiters_delay_no_other_client() {
    let mut server = Server::with_max_waiters(20_000);
    server.acquire(b"k", b"holder", 60_000).unwrap();
    // All other places of the default of lock.max-waiters.
    enqueue_many(&mut server, &[b"k"], 9999, 1000);
    let in_time = server.wait_for_all(&[b"k"], b"in time", 5000);
    server.pass_ms(1000);
    // The release comes in the same turn in which the other waiters time out.
    assert!(server.release(b"k", b"holder"));
    assert_eq!(server.granted(), [in_time]);
    server.run_turns();
    assert_eq!(server.answers.len(), 10_000);
}

#[test]
fn free_key_whose_waiters_are_out_of_time_is_granted_to_a_newcomer() {
    let mut server = Server::with_max_waiters(20_000);
    server.acquire(b"k", b"holder", 60_000).unwrap();
    enqueue_many(&mut server, &[b"k"], 950, 1000);
    server.pass_ms(1000);
    assert!(server.release(b"k", b"holder"));
    assert!(server.acquire(b"k", b"newcomer", 1000).is_some());
}

#[test]
fn waiter_behind_a_timed_out_waiter_is_granted_without_delay() {
    let mut server = Server::with_max_waiters(20_000);
    server.set(b"k", b"data", None);
    server.wait_for_all(&[b"k"], b"first", 1);
    server.pass_ms(2);
    // The node planned to check the key in a second. A lock that ends sooner moves the check.
    server.memory.keys.take(0, b"k");
    server.acquire(b"k", b"holder", 50).unwrap();
    let second = server.wait_for_all(&[b"k"], b"second", 5000);
    server.turn_after_ms(50);
    assert_eq!(server.granted(), [second]);
}

#[test]
fn release_considers_only_the_waiters_that_lacked_its_key() {
    let mut server = Server::with_max_waiters(20_000);
    let keys: Vec<_> = (0..64_u8).map(|n| [n]).collect();
    let all: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    for key in &all[..63] {
        server.set(key, b"data", None);
    }
    server.acquire(all[63], b"holder", 60_000).unwrap();
    enqueue_many(&mut server, &all, 900, 50_000);
    let single = server.wait_for_all(&[all[63]], b"single", 50_000);
    server.run_turns();
    assert!(server.release(all[63], b"holder"));
    assert_eq!(server.granted(), [single]);
    // All waiters that are left lack another key, so none of them is considered.
    assert!(server.release(all[63], b"single"));
    assert!(server.memory.one_turn(server.now()) <= 2);
}

#[test]
fn turn_leaves_work_for_the_next_turn_and_schedules_it() {
    let mut server = Server::new();
    for n in 0..20_000_u32 {
        server.acquire(&n.to_le_bytes(), b"a", 1000).unwrap();
    }
    // The wall clock stood still, so every mirror is still there.
    server.mono_us += 1_000_000;
    let jobs = server.memory.one_turn(server.now());
    assert!((1..2000).contains(&jobs), "{jobs}");
    assert!(server.node().next_wake().unwrap() <= server.now().monotonic);
    server.run_turns();
    assert_eq!((server.node().leases(), server.key_count()), (0, 0));
}

#[test]
fn work_of_a_freed_key_does_not_grow_with_waiters_times_keys() {
    let mut server = Server::with_max_waiters(20_000);
    let keys: Vec<_> = (0..64_u8).map(|n| [n]).collect();
    let all: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    for key in &all {
        server.set(key, b"data", None);
    }
    enqueue_many(&mut server, &all, 2000, 50_000);
    // All waiters lacked this key. Now they lack another one.
    server.remove_key(all[0], KeyEvent::Removed);
    let mut turns = 0;
    while server.node().next_wake().is_some_and(|at| at <= server.now().monotonic) {
        server.memory.one_turn(server.now());
        turns += 1;
        assert!(
            turns < 40,
            "2000 waiters times 63 keys, at 800 units a turn, would take 157 turns"
        );
    }
    assert!(turns > 1, "2000 waiters are more than one turn may consider");
    let newcomer = server.acquire(all[0], b"newcomer", 1000);
    assert!(newcomer.is_some(), "the waiters reserve nothing");
}

#[test]
fn work_of_a_release_does_not_grow_with_waiters_that_are_refused() {
    let mut server = Server::with_max_waiters(1000);
    for n in 0..200_u8 {
        server.acquire_shared(b"k", &[b'x', n], 60_000).unwrap();
    }
    server.wait_for_all(&[b"k"], b"writer", 60_000);
    for n in 0..200_u8 {
        server.wait_for_shared(b"k", &[b't', n], 60_000);
        // The token now holds the lock that it waits for.
        server.extend_with(&[b"k"], &[b'x', n], 60_000, None, Some(&[b't', n])).unwrap();
    }
    assert!(!server.release(b"k", b"writer"), "it only waits");
    assert_eq!(server.node().waiters(), 192, "a refusal counts as much as a grant");
    server.run_turns();
    assert_eq!(server.node().waiters(), 0);
}

/// Does all due work. Returns the number of turns, and the most jobs of a turn.
fn count_turns(server: &mut Server) -> (usize, usize) {
    let (mut turns, mut most) = (0, 0);
    while server.node().next_wake().is_some_and(|at| at <= server.now().monotonic) {
        most = most.max(server.memory.one_turn(server.now()));
        turns += 1;
    }
    (turns, most)
}

#[test]
fn end_of_a_lock_with_many_readers_takes_many_turns() {
    let mut server = Server::new();
    for n in 0..20_000_u32 {
        server.acquire_shared(b"k", &n.to_le_bytes(), 60_000).unwrap();
    }
    server.remove_key(b"k", KeyEvent::Removed);
    assert_eq!(server.node().leases(), 0);
    let (turns, most) = count_turns(&mut server);
    assert!(turns >= 20 && most <= 1000, "each holder costs units: {turns} turns, {most} jobs");
}

#[test]
fn release_of_many_keys_leaves_handovers_to_the_next_turns() {
    let mut server = Server::with_max_waiters(1000);
    let keys: Vec<_> = (0..64_u8).map(|n| [n]).collect();
    let all: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    server.acquire_all(&all, b"holder", 60_000).unwrap();
    for n in 0..64_u8 {
        server.wait_for_any(&all, &[n], 60_000);
    }
    let names: Vec<_> = keys.iter().map(|key| Name::from_slice(key)).collect();
    let token = Name::from_slice(b"holder");
    let release = Release { db: 0, keys: &names, token: &token };
    server.memory.execute(server.now(), &Command::Release(release)).unwrap();
    // Each grant takes a waiter out of 64 queues.
    assert!((1..10).contains(&server.memory.keys.woken.len()));
    assert_eq!(server.acquire(all[63], b"newcomer", 1000), None, "the waiters come first");
    server.run_turns();
    assert_eq!(server.granted().len(), 64);
}

#[test]
fn flush_plans_checks_of_queues_in_steps() {
    let mut server = Server::with_max_waiters(10_000);
    for n in 0..4000_u32 {
        server.set(&n.to_le_bytes(), b"data", None);
        server.wait_for_all(&[&n.to_le_bytes()], b"waiter", 60_000);
    }
    server.handle_event(&ServerEvent::Flush(Some(1)));
    let first = server.memory.one_turn(server.now());
    assert!(first <= 1500, "each queue costs a unit: {first} jobs");
    let (turns, _) = count_turns(&mut server);
    assert!(turns >= 4000 * 9 / 1500, "{turns}");
    assert_eq!(server.node().waiters(), 4000);
}

#[test]
fn reload_plans_checks_of_mirrors_in_steps() {
    let mut server = Server::new();
    for n in 0..5000_u32 {
        server.acquire(&n.to_le_bytes(), b"a", 50_000).unwrap();
    }
    let (lost, overwritten) = (4000_u32.to_le_bytes(), 4001_u32.to_le_bytes());
    server.handle_event(&ServerEvent::LoadingBegins);
    server.memory.keys.take(0, &lost);
    server.memory.keys.insert(0, &overwritten, Value::text(b"other", None));
    server.handle_event(&ServerEvent::LoadingEnds);
    assert!(server.node().next_wake().unwrap() <= server.now().monotonic);
    server.memory.one_turn(server.now());
    assert!(server.node().lacks_mirrors(), "not all at once");
    // Meanwhile the leases decide, as before the reload.
    assert_eq!(server.acquire(&lost, b"b", 1000), None);
    assert!(server.acquire(&overwritten, b"b", 1000).is_none(), "another client's string");
    assert_eq!(server.extend(&overwritten, b"a", 1000), None);
    server.run_turns();
    assert!(!server.node().lacks_mirrors());
    assert_eq!(server.text(&lost), b"a");
    assert_eq!((server.text(&overwritten), server.node().leases()), (&b"other"[..], 4999));
}

#[test]
fn mirror_that_the_server_refuses_is_written_later() {
    let mut server = Server::with_lock(&[b"k"], b"a", 50_000);
    server.remove_key(b"k", KeyEvent::Evicted);
    server.memory.keys.writes_left = Some(0);
    assert!(server.extend(b"k", b"a", 50_000).is_some(), "the lease decides");
    assert!(!server.has(b"k"));
    server.turn_after_ms(2000);
    assert!(server.node().lacks_mirrors());
    server.memory.keys.writes_left = None;
    server.turn_after_ms(2000);
    assert_eq!(server.text(b"k"), b"a");
}

#[test]
fn grant_that_the_server_refuses_leaves_nothing() {
    let mut server = Server::with_lock(&[b"a"], b"holder", 50_000);
    let blocked_id = server.wait_for_all(&[b"a"], b"waiter", 50_000);
    server.memory.keys.writes_left = Some(0);
    assert!(server.release(b"a", b"holder"));
    assert!(matches!(server.answers[..], [(waiter, WaitReply::Failed(_))] if waiter == blocked_id));
    assert!(server.is_empty());
    assert_eq!(server.node().leases(), 0);
}

#[test]
fn node_writes_nothing_during_a_pause_but_refuses_timed_out_waiters() {
    let mut server = Server::with_lock(&[b"k"], b"a", 1000);
    let late = server.wait_for_all(&[b"k"], b"b", 500);
    server.wait_for_all(&[b"k"], b"c", 50_000);
    server.memory.keys.is_paused = true;
    server.pass_ms(1000);
    server.memory.one_turn(server.now());
    assert_eq!(server.memory.keys.woken, [late]);
    assert_eq!(server.text(b"k"), b"a");
    assert!(server.node().next_wake().unwrap() > server.now().monotonic, "the node does not spin");
    server.memory.keys.is_paused = false;
    server.turn_after_ms(10);
    assert_eq!(server.answers.first(), Some(&(late, WaitReply::Refused)));
    assert_eq!(server.text(b"k"), b"c");
}

#[test]
fn deferred_answers_are_sent_at_the_end_of_the_turn() {
    let mut server = Server::that_defers_wakes();
    server.acquire(b"k", b"a", 50_000).unwrap();
    let first = server.wait_for_all(&[b"k"], b"b", 50_000);
    assert!(server.release(b"k", b"a"));
    assert_eq!(server.granted(), [], "not yet");
    server.run_turns();
    assert_eq!(server.granted(), [first]);
    // A waiter that `CLIENT UNBLOCK` ends after its grant, in the same turn, keeps the grant.
    let second = server.wait_for_all(&[b"k"], b"c", 50_000);
    assert!(server.release(b"k", b"b"));
    let exit = server.memory.node.unblock(second);
    assert!(exit.wake);
    assert!(matches!(exit.reply, WaitReply::Granted { .. }));
    assert!(server.inspect(b"k").is_some());
}

#[test]
fn flush_ends_many_locks_at_once_and_removes_their_leases_in_steps() {
    let mut server = Server::new();
    for n in 0..50_000_u32 {
        server.acquire(&n.to_le_bytes(), b"a", 50_000).unwrap();
    }
    server.flush();
    assert!(server.acquire(&7_u32.to_le_bytes(), b"b", 50_000).is_some());
    server.memory.one_turn(server.now());
    assert!(server.node().leases() > 1000, "not all at once");
    server.run_turns();
    assert_eq!(server.node().leases(), 1);
    assert_eq!(server.text(&7_u32.to_le_bytes()), b"b");
}

#[test]
fn extension_does_not_delay_the_rewrite_of_a_mirror() {
    let mut server = Server::with_lock(&[b"k"], b"a", 500);
    server.remove_key(b"k", KeyEvent::Expired);
    server.set(b"k", b"old client", Some(10_000));
    // The key holds another client's string, so the node tries again when the lock ends. The
    // extension moves that end, but must not move the next try.
    server.run_turns();
    assert!(server.extend(b"k", b"a", 50_000).is_some());
    server.remove_key(b"k", KeyEvent::Removed);
    server.turn_after_ms(1000);
    assert_eq!(server.text(b"k"), b"a");
}

#[test]
fn lock_whose_second_mirror_is_not_written_leaves_nothing() {
    let mut server = Server::new();
    server.memory.keys.writes_left = Some(1);
    let terms = (Mode::Exclusive, None, 0);
    let result = server.execute_acquire(Wants::All, &[b"a", b"b"], b"t", 1000, terms);
    assert_eq!(result, Err(CommandError::NotWritten));
    assert!(server.is_empty());
    assert_eq!(server.node().leases(), 0);
}

#[test]
fn refused_write_propagates_the_deletion_of_an_old_mirror() {
    let mut server = Server::new();
    server.memory.keys.has_replica = true;
    server.acquire(b"k", b"a", 1000).unwrap();
    // The lease has ended, and the server has not expired its mirror.
    server.mono_us += 1_100_000;
    server.memory.keys.propagated.clear();
    server.memory.keys.writes_left = Some(0);
    let terms = (Mode::Exclusive, None, 0);
    let result = server.execute_acquire(Wants::All, &[b"k"], b"t", 1000, terms);
    assert_eq!(result, Err(CommandError::NotWritten));
    assert!(!server.has(b"k"));
    let deleted = (Name::from_slice(b"k"), true);
    assert_eq!(server.memory.keys.propagated, [deleted], "a replica must not keep the mirror");
}

#[test]
fn refusal_of_a_waiter_that_disconnected_is_not_sent() {
    let mut server = Server::with_lock(&[b"k"], b"a", 50_000);
    let dismissed = server.wait_for_all(&[b"k"], b"b", 50_000);
    // The RELEASE removes the waiter, whose refusal is sent at the end of the turn.
    assert!(!server.release(b"k", b"b"));
    let exit = server.memory.node.disconnect(dismissed);
    assert!(exit.wake, "the waiter was not unblocked yet");
    server.run_turns();
    assert_eq!(server.answers, []);
    assert!(!server.memory.node.unblock(dismissed).wake, "nothing is left of the waiter");
}

#[test]
fn node_waits_out_a_pause_that_outlasts_its_abstention() {
    let mut server = Server::that_rejoins_after_ms(1000);
    server.memory.keys.is_paused = true;
    server.pass_ms(1000);
    server.memory.one_turn(server.now());
    assert!(server.node().next_wake().unwrap() > server.now().monotonic, "the node does not spin");
    server.memory.keys.is_paused = false;
    server.turn_after_ms(10);
    assert!(server.acquire(b"k", b"a", 1000).is_some());
}

#[test]
fn module_cannot_be_unloaded_while_a_mirror_must_be_removed() {
    let mut server = Server::with_lock(&[b"a", b"b"], b"t", 50_000);
    assert!(server.node().can_unload(server.now().monotonic));
    server.remove_key(b"a", KeyEvent::Removed);
    assert!(!server.node().can_unload(server.now().monotonic), "the mirror of b could be adopted");
    server.run_turns();
    assert!(server.node().can_unload(server.now().monotonic));
}

#[test]
fn doubted_mirror_is_compared_before_many_deadlines_are_sorted() {
    let mut server = Server::new();
    for n in 0..50_000_u32 {
        server.acquire(&n.to_le_bytes(), b"a", 30_000 + u64::from(n % 7919)).unwrap();
    }
    server.acquire(b"k", b"token", 50_000).unwrap();
    server.pass_ms(25_000);
    let expires_at_ms = Some(server.wall_ms + 100);
    server.memory.write(server.now(), 0, b"k", Value::text(b"other", expires_at_ms));
    server.memory.one_turn(server.now());
    assert_eq!(server.node().stats().ended_by_operator, 1);
}

/// The number of holders that INSPECT shows for a shared key.
fn holders(server: &mut Server) -> usize {
    match server.inspect(b"k").unwrap().holder {
        Holder::Lease { holders, .. } => holders,
        other @ Holder::Foreign { .. } => panic!("{other:?}"),
    }
}

#[test]
fn inspect_passes_over_a_bounded_number_of_ended_holders() {
    let mut server = Server::new();
    server.memory.keys.is_paused = true;
    for n in 0..5000_u32 {
        server.acquire_shared(b"k", &n.to_le_bytes(), 1000).unwrap();
    }
    server.acquire_shared(b"k", b"reader", 60_000).unwrap();
    server.pass_ms(1000);
    server.memory.one_turn(server.now());
    assert_eq!(holders(&mut server), 4901, "5000 have ended, 100 are counted");
    server.memory.keys.is_paused = false;
    server.pass_ms(10);
    let (turns, most) = count_turns(&mut server);
    assert!(turns >= 5 && most <= 1000, "each holder costs units: {turns} turns, {most} jobs");
    assert_eq!((holders(&mut server), server.node().stats().ended_by_deadline), (1, 5000));
}

#[test]
fn release_grants_the_first_readers_and_later_turns_the_others() {
    let mut server = Server::with_max_waiters(1000);
    server.acquire(b"k", b"writer", 60_000).unwrap();
    let readers: Vec<_> =
        (0..450_u32).map(|n| server.wait_for_shared(b"k", &n.to_le_bytes(), 50_000)).collect();
    let second_writer = server.wait_for_all(&[b"k"], b"second writer", 50_000);
    assert!(server.release(b"k", b"writer"));
    assert_eq!(server.granted(), readers[..8]);
    // No newcomer overtakes the remaining waiters.
    assert_eq!(server.acquire(b"k", b"newcomer", 1000), None);
    assert_eq!(server.acquire_shared(b"k", b"newcomer", 1000), None);
    let jobs = server.memory.one_turn(server.now());
    assert!((1..10).contains(&jobs), "{jobs}");
    server.run_turns();
    assert_eq!(server.granted(), readers);
    for n in 0..450_u32 {
        assert!(server.release(b"k", &n.to_le_bytes()));
    }
    assert_eq!(server.granted().last(), Some(&second_writer));
}

#[test]
fn handover_to_one_of_many_waiters_for_many_keys_costs_few_jobs() {
    let mut server = Server::with_max_waiters(20_000);
    let keys: Vec<_> = (0..64_u8).map(|n| [n]).collect();
    let all: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    for key in &all {
        server.acquire(key, b"x", 60_000).unwrap();
    }
    let blocked_ids: Vec<_> =
        (0..1000_u32).map(|n| server.wait_for_any(&all, &n.to_le_bytes(), 50_000)).collect();
    server.run_turns();
    for (n, blocked_id) in blocked_ids[..64].iter().enumerate() {
        assert!(server.release(all[63 - n], b"x"));
        assert_eq!(server.granted().last(), Some(blocked_id));
        let jobs = server.memory.one_turn(server.now());
        assert!(jobs <= 2, "{jobs}");
    }
}
