//! Shared locks: many readers, no writer beside them, and no starvation.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::collections::HashMap;

use proptest::prelude::*;
use quorlock_core::Fence;
use quorlock_core::node::{
    BlockedId, CommandError, FenceError, Holder, KeyEvent, Mode, Mutant, ServerEvent, break_rule,
};
use support::{
    AcquireCommand, AcquireReply, ExtendReply, MAX_TTL_MS, REVOKED_VALUE, Server, WaitResult,
};

const K: &[u8] = b"k";
const READER: &[u8] = b"reader";
const SECOND: &[u8] = b"second reader";
const WRITER: &[u8] = b"writer";

fn enqueue_writer(server: &mut Server, token: &[u8]) -> BlockedId {
    server.acquire_or_wait(K, token, 1000, 50_000).blocked_id()
}

fn enqueue_reader(server: &mut Server, token: &[u8]) -> BlockedId {
    server.acquire_shared_or_wait(K, token, 1000, 50_000).blocked_id()
}

/// A server on which `READER` and `SECOND` share the key, with these ttls.
fn server_with_readers(reader_ms: u64, second_ms: u64) -> Server {
    let mut server = Server::new();
    for (token, ttl_ms) in [(READER, reader_ms), (SECOND, second_ms)] {
        server.acquire_shared(K, token, ttl_ms, None).unwrap();
    }
    server
}

#[test]
fn inspect_passes_over_a_bounded_number_of_ended_holders() {
    let mut server = Server::new();
    server.memory.keys.is_paused = true;
    for n in 0..5000_u32 {
        server.acquire_shared(K, &n.to_le_bytes(), 1000, None).unwrap();
    }
    server.acquire_shared(K, READER, 60_000, None).unwrap();
    server.pass_ms(1000);
    assert_eq!(held(&mut server), Some((Mode::Shared, 4901)), "5000 have ended, 100 are counted");
    // The removal of holders writes no key, so it goes on while the server must not write.
    for _ in 0..100 {
        server.memory.one_turn(server.now());
    }
    assert_eq!(held(&mut server), Some((Mode::Shared, 1)));
    assert_eq!(server.node().stats().ended_by_deadline, 5000);
    let wake = server.node().next_wake().unwrap();
    assert!(wake > server.now().monotonic, "the node does not spin");
}

#[test]
fn shared_locks_that_end_during_a_pause_wait_for_its_end() {
    let mut server = server_with_readers(1000, 2000);
    server.memory.keys.is_paused = true;
    server.pass_ms(2000);
    server.memory.one_turn(server.now());
    server.memory.one_turn(server.now());
    assert!(server.has(K), "a paused server deletes no mirror");
    assert!(server.node().next_wake().unwrap() > server.now().monotonic, "the node does not spin");
    server.memory.keys.is_paused = false;
    server.turn_after_ms(10);
    assert!(server.is_empty());
    assert_eq!((server.node().leases(), server.node().stats().ended_by_deadline), (0, 2));
}

/// The mode, and the number of holders; `None` if no lease holds the key.
fn held(server: &mut Server) -> Option<(Mode, usize)> {
    match server.inspect_all_fields(K)?.holder {
        Holder::Lease { mode, holders, .. } => Some((mode, holders)),
        Holder::Foreign { .. } => None,
    }
}

#[test]
fn readers_share_the_key_and_exclude_writers() {
    let mut server = server_with_readers(1000, 2000);
    assert_eq!(held(&mut server), Some((Mode::Shared, 2)));
    assert_eq!(server.acquire(K, WRITER, 1000, None), None);
    assert!(server.release(K, READER));
    assert!(!server.release(K, READER), "safe to repeat");
    assert_eq!(held(&mut server), Some((Mode::Shared, 1)));
    assert_eq!(server.acquire(K, WRITER, 1000, None), None);
    assert!(server.release(K, SECOND));
    assert!(server.is_empty());
    server.acquire(K, WRITER, 1000, None).unwrap();
    assert_eq!(server.acquire_shared(K, READER, 1000, None), None);
}

#[test]
fn shared_lock_is_refused_to_a_token_that_holds_it() {
    let mut server = Server::new();
    server.acquire_shared(K, READER, 1000, None).unwrap();
    assert_eq!(server.acquire_shared(K, READER, 1000, None), None);
    let reply = server.acquire_shared_or_wait(K, READER, 1000, 5000);
    assert_eq!(reply, AcquireReply::Refused, "the client would wait for itself");
    server.acquire_shared(K, SECOND, 5000, None).unwrap();
    server.pass_ms(1000);
    // The node has not removed the ended holder yet, because no turn has passed.
    let again = server.acquire_shared(K, READER, 1000, None);
    assert!(again.is_some(), "the earlier lease of this token has ended");
}

#[test]
fn each_reader_has_its_own_lease_and_deadline() {
    let mut server = server_with_readers(1000, 3000);
    assert_eq!(server.node().leases(), 2);
    server.pass_ms(1000);
    assert_eq!(server.extend(K, READER, 1000), None);
    assert!(!server.release(K, READER));
    server.run_turns();
    assert_eq!((server.node().leases(), server.node().stats().ended_by_deadline), (1, 1));
    assert!(server.extend(K, SECOND, 4000).is_some());
    server.turn_after_ms(3999);
    assert_eq!(server.acquire(K, WRITER, 1000, None), None);
    server.turn_after_ms(1);
    assert!(server.is_empty());
    assert_eq!((server.node().leases(), server.node().next_wake()), (0, None));
}

#[test]
fn mirror_expires_with_the_last_reader() {
    let mut server = Server::new();
    server.acquire_shared(K, READER, 1000, None).unwrap();
    let value = server.text(K).to_vec();
    assert!(value != READER);
    let expires_in = |server: &Server| server.expires_at_ms(K).unwrap() - server.wall_ms;
    server.acquire_shared(K, SECOND, 5000, None).unwrap();
    assert_eq!(expires_in(&server), 5000);
    server.extend(K, READER, 7000).unwrap();
    assert_eq!(expires_in(&server), 7000);
    assert!(server.release(K, READER));
    assert_eq!(expires_in(&server), 5000, "the reader with the last deadline has left");
    assert_eq!(server.text(K), value, "the value stays while there are readers");
}

#[test]
fn shared_lock_is_propagated_as_one_key_with_an_expiry() {
    let mut server = Server::new();
    server.memory.keys.has_replica = true;
    server.acquire_shared(K, READER, 1000, None).unwrap();
    server.acquire_shared(K, SECOND, 500, None).unwrap();
    assert_eq!(server.memory.keys.propagated.len(), 1, "the last deadline has not moved");
    server.acquire_shared(K, b"third", 2000, None).unwrap();
    for token in [READER, SECOND, b"third"] {
        assert!(server.release(K, token));
    }
    let writes = &server.memory.keys.propagated;
    let expiries = writes.iter().map(|write| write.expires_at_ms.map(|at| at - server.wall_ms));
    assert_eq!(expiries.collect::<Vec<_>>(), [Some(1000), Some(2000), None]);
    let values = writes.iter().filter_map(|write| write.value.as_ref()?.as_deref());
    assert!(values.clone().all(|value| value == values.clone().next().unwrap() && value != READER));
}

#[test]
fn value_of_a_shared_mirror_is_no_token() {
    let mut server = Server::new();
    server.acquire_shared(K, READER, 1000, None).unwrap();
    let value = server.text(K).to_vec();
    assert!(!server.release(K, &value));
    assert_eq!(server.extend(K, &value, 1000), None);
    assert_eq!(held(&mut server), Some((Mode::Shared, 1)));
}

#[test]
fn mirror_blocks_the_key_after_a_crash_until_it_expires() {
    let mut server = server_with_readers(1000, 2000);
    server.crash();
    for token in [READER, SECOND] {
        assert!(!server.release(K, token));
        assert_eq!(server.extend(K, token, 1000), None);
    }
    let blocked_id = enqueue_writer(&mut server, WRITER);
    server.turn_after_ms(1999);
    assert_eq!(server.granted(), []);
    server.turn_after_ms(3);
    assert_eq!(server.granted(), [blocked_id]);
}

#[test]
fn mirror_with_a_token_of_a_reader_admits_a_writer_after_a_crash() {
    let admits_a_writer_after_a_crash = |mutant| {
        break_rule(mutant);
        let mut server = server_with_readers(1000, 2000);
        server.crash();
        server.release(K, READER);
        let writes_beside_a_reader = server.acquire(K, WRITER, 1000, None).is_some();
        break_rule(None);
        writes_beside_a_reader
    };
    assert!(!admits_a_writer_after_a_crash(None));
    assert!(admits_a_writer_after_a_crash(Some(Mutant::MirrorNamesHolder)));
}

#[test]
fn readers_behind_a_writer_wait_and_a_newcomer_is_refused() {
    let mut server = Server::new();
    server.acquire_shared(K, READER, 1000, None).unwrap();
    let writer = enqueue_writer(&mut server, WRITER);
    assert_eq!(server.acquire_shared(K, SECOND, 1000, None), None);
    let second = enqueue_reader(&mut server, SECOND);
    let third = enqueue_reader(&mut server, b"third");
    server.run_turns();
    assert_eq!(server.granted(), []);
    assert!(server.release(K, READER));
    assert_eq!(server.granted(), [writer]);
    assert!(server.release(K, WRITER));
    assert_eq!(server.granted(), [writer, second, third], "both readers together");
    assert_eq!(held(&mut server), Some((Mode::Shared, 2)));
}

#[test]
fn writer_starves_when_readers_pass_the_queue() {
    let writer_is_granted = |mutant| {
        break_rule(mutant);
        let mut server = Server::new();
        server.acquire_shared(K, READER, 1000, None).unwrap();
        let writer = enqueue_writer(&mut server, WRITER);
        for n in 0..40_u8 {
            server.pass_ms(500);
            server.acquire_shared(K, &[n], 1000, None);
            server.run_turns();
        }
        break_rule(None);
        server.granted() == [writer]
    };
    assert!(writer_is_granted(None));
    assert!(!writer_is_granted(Some(Mutant::SharedPassesQueue)));
}

#[test]
fn repair_overtakes_waiters_and_a_newcomer_does_not() {
    let mut server = Server::new();
    server.pass_ms(100_000);
    let fence_now = |server: &Server| Some(Fence::of_wall_us(server.wall_ms * 1000));
    server.acquire_shared(K, READER, 10_000, None).unwrap();
    let older_fence = fence_now(&server);
    server.pass_ms(10);
    let writer = enqueue_writer(&mut server, WRITER);
    for fence in [older_fence, fence_now(&server), None] {
        assert_eq!(server.acquire_shared(K, b"newcomer", 1000, fence), None);
    }
    assert!(server.acquire_shared(K, SECOND, 10_000, Some(Fence::ZERO)).is_some());
    let other = server.acquire(K, b"other", 1000, Some(Fence::ZERO));
    assert_eq!(other, None, "a repair takes no key from a holder");
    assert!(server.release(K, READER) && server.release(K, SECOND));
    assert_eq!(server.granted(), [writer]);
}

#[test]
fn repair_overtakes_waiters_for_a_free_key() {
    let mut server = Server::new();
    server.acquire(K, b"holder", 1000, None).unwrap();
    server.pass_ms(10);
    let writer = enqueue_writer(&mut server, WRITER);
    // The key is free, and not handed over yet.
    server.remove_key(K, KeyEvent::Removed);
    assert_eq!(server.acquire_shared(K, SECOND, 1000, None), None);
    assert!(server.acquire_shared(K, SECOND, 1000, Some(Fence::ZERO)).is_some());
    server.run_turns();
    assert_eq!(server.granted(), []);
    assert!(server.release(K, SECOND));
    assert_eq!(server.granted(), [writer]);
}

#[test]
fn release_grants_the_first_readers_and_later_turns_the_others() {
    let mut server = Server::with_max_waiters(1000);
    server.acquire(K, WRITER, 60_000, None).unwrap();
    let readers: Vec<_> =
        (0..450_u32).map(|n| enqueue_reader(&mut server, &n.to_le_bytes())).collect();
    let second_writer = enqueue_writer(&mut server, b"second writer");
    assert!(server.release(K, WRITER));
    assert_eq!(server.granted(), readers[..10]);
    // No newcomer overtakes the remaining waiters.
    assert_eq!(server.acquire(K, b"newcomer", 1000, None), None);
    assert_eq!(server.acquire_shared(K, b"newcomer", 1000, None), None);
    let jobs = server.memory.one_turn(server.now());
    assert!((1..10).contains(&jobs), "{jobs}");
    server.run_turns();
    assert_eq!(server.granted(), readers);
    for n in 0..450_u32 {
        assert!(server.release(K, &n.to_le_bytes()));
    }
    assert_eq!(server.granted().last(), Some(&second_writer));
}

#[test]
fn readers_join_once_the_writer_before_them_leaves_the_queue() {
    let leave: [fn(&mut Server, BlockedId); 3] = [
        |server, blocked_id| {
            server.disconnect(blocked_id);
        },
        |server, _| {
            server.release(K, WRITER);
        },
        |server, _| server.pass_ms(1500),
    ];
    for leave in leave {
        let mut server = Server::new();
        server.acquire_shared(K, READER, 10_000, None).unwrap();
        let writer = server.acquire_or_wait(K, WRITER, 1000, 1500).blocked_id();
        let second = enqueue_reader(&mut server, SECOND);
        leave(&mut server, writer);
        server.run_turns();
        assert_eq!(server.granted(), [second]);
    }
}

#[test]
fn every_end_of_the_last_reader_serves_the_writer() {
    let ends: [fn(&mut Server); 6] = [
        |server| {
            server.release(K, SECOND);
        },
        |server| server.pass_ms(2000),
        |server| server.remove_key(K, KeyEvent::Removed),
        |server| server.set(K, b"data", None),
        Server::flush,
        |server| {
            server.remove_key(K, KeyEvent::Evicted);
            server.pass_ms(2000);
        },
    ];
    for (n, end) in ends.into_iter().enumerate() {
        let mut server = server_with_readers(1000, 2000);
        let writer = enqueue_writer(&mut server, WRITER);
        assert!(server.release(K, READER));
        server.run_turns();
        assert_eq!(server.granted(), [], "not before");
        end(&mut server);
        if n == 3 {
            assert_eq!(server.extend(K, SECOND, 1000), None, "an overwrite ends the lock");
            server.remove_key(K, KeyEvent::Removed);
        }
        server.run_turns();
        assert_eq!(server.granted(), [writer], "{n}");
    }
}

#[test]
fn accidents_take_no_lock_from_readers() {
    let accidents: [fn(&mut Server); 3] = [
        |server| server.wall_ms += 3_600_000,
        |server| server.wall_ms -= 3_600_000,
        |server| server.remove_key(K, KeyEvent::Evicted),
    ];
    for accident in accidents {
        let mut server = server_with_readers(10_000, 5000);
        let value = server.text(K).to_vec();
        accident(&mut server);
        server.run_turns();
        server.turn_after_ms(200);
        assert_eq!(server.text(K), value, "written again");
        assert_eq!(server.acquire(K, WRITER, 1000, None), None);
        assert!(server.extend(K, SECOND, 5000).is_some() && server.release(K, SECOND));
        server.turn_after_ms(9799);
        assert_eq!(server.acquire(K, WRITER, 1000, None), None);
        server.turn_after_ms(1);
        assert!(server.acquire(K, WRITER, 1000, None).is_some());
    }
}

#[test]
fn end_of_a_reader_while_the_mirror_is_lost_changes_nothing_for_others() {
    let mut server = server_with_readers(50, 10_000);
    let value = server.text(K).to_vec();
    server.remove_key(K, KeyEvent::Evicted);
    server.memory.keys.memory_is_short = true;
    server.turn_after_ms(60);
    assert_eq!((server.node().leases(), server.has(K)), (1, false));
    server.memory.keys.memory_is_short = false;
    server.turn_after_ms(1000);
    assert_eq!(server.text(K), value);
    assert_eq!(server.expires_at_ms(K), Some(server.wall_ms + 10_000 - 1060));
}

#[test]
fn first_reader_needs_the_mirror_and_later_readers_do_not() {
    let mut server = Server::new();
    server.memory.keys.writes_left = Some(0);
    let shared = (Mode::Shared, None, 0);
    assert_eq!(
        server.execute_acquire(&[K], READER, 1000, shared, AcquireCommand::Acquire),
        Err(CommandError::NotWritten)
    );
    assert_eq!(server.node().leases(), 0);
    server.memory.keys.writes_left = Some(1);
    server.acquire_shared(K, READER, 1000, None).unwrap();
    assert!(server.acquire_shared(K, SECOND, 2000, None).is_some(), "the lease decides");
    assert!(server.node().lacks_mirrors());
    server.memory.keys.writes_left = None;
    server.turn_after_ms(1500);
    assert_eq!(server.expires_at_ms(K), Some(server.wall_ms + 500));
}

#[test]
fn exclusive_lock_becomes_shared_and_serves_the_readers_in_the_same_step() {
    let mut server = Server::new();
    let fence = server.acquire(K, WRITER, 10_000, None).unwrap();
    let reader = enqueue_reader(&mut server, READER);
    let next_writer = enqueue_writer(&mut server, b"next writer");
    enqueue_reader(&mut server, SECOND);
    let extended = server.extend_shared(K, WRITER, 10_000);
    assert_eq!(extended, ExtendReply::Held { fence }, "the writer keeps its fence");
    assert!(
        matches!(server.wait_results[..], [(blocked_id, WaitResult::Granted { fence: joined, .. })]
        if blocked_id == reader && joined > fence)
    );
    assert_eq!(held(&mut server), Some((Mode::Shared, 2)));
    assert!(server.text(K) != WRITER);
    assert!(server.release(K, WRITER) && server.release(K, READER));
    assert_eq!(server.granted(), [reader, next_writer]);
}

#[test]
fn downgrade_that_forgets_the_queue_leaves_a_reader_waiting() {
    let grants_the_reader = |mutant| {
        break_rule(mutant);
        let mut server = Server::with_lock(&[K], WRITER, 60_000);
        let reader = enqueue_reader(&mut server, READER);
        server.extend_shared(K, WRITER, 60_000).fence();
        server.turn_after_ms(10_000);
        break_rule(None);
        server.granted() == [reader]
    };
    assert!(grants_the_reader(None));
    assert!(!grants_the_reader(Some(Mutant::ShareForgetsQueue)));
}

#[test]
fn downgrade_keeps_writers_out_and_release_then_acquire_does_not() {
    for downgrades in [true, false] {
        let mut server = Server::with_lock(&[K], WRITER, 10_000);
        let next_writer = enqueue_writer(&mut server, b"next writer");
        if downgrades {
            server.extend_shared(K, WRITER, 10_000).fence();
        } else {
            server.release(K, WRITER);
            assert_eq!(server.acquire_shared(K, WRITER, 10_000, None), None);
        }
        assert_eq!(server.granted().contains(&next_writer), !downgrades);
    }
}

#[test]
fn shared_lock_never_becomes_exclusive() {
    let mut server = Server::new();
    server.acquire_shared(K, READER, 1000, None).unwrap();
    server.extend(K, READER, 2000).unwrap();
    assert_eq!(held(&mut server), Some((Mode::Shared, 1)));
    server.extend_shared(K, READER, 3000).fence();
    assert!(server.acquire_shared(K, SECOND, 1000, None).is_some());
}

#[test]
fn downgrade_is_for_the_holder_of_one_key_only() {
    let mut server = Server::new();
    assert_eq!(server.extend_shared(K, WRITER, 1000), ExtendReply::NotHeld);
    server.acquire_all(&[b"a", b"b"], WRITER, 1000, None).unwrap();
    assert_eq!(server.extend_shared(b"a", WRITER, 1000), ExtendReply::OtherKeys);
    let both = server.extend_as(Mode::Shared, &[b"a", b"b"], WRITER, 1000, None, None);
    assert_eq!(both, ExtendReply::SeveralShared);
    let shared = (Mode::Shared, None, 0);
    let result =
        server.execute_acquire(&[b"c", b"d"], READER, 1000, shared, AcquireCommand::Acquire);
    assert_eq!(result, Err(CommandError::SeveralShared));
    server.acquire_shared(K, READER, 1000, None).unwrap();
    assert_eq!(server.extend_all(&[b"a", K], READER, 1000), ExtendReply::NotHeld);
    assert_eq!(server.acquire_all(&[b"c", K], WRITER, 1000, None), None);
    assert!(server.release_all(&[b"c", K], READER));
}

#[test]
fn foreign_string_is_adopted_and_shared_at_once() {
    let mut server = Server::new();
    server.set(K, WRITER, Some(5000));
    let reader = enqueue_reader(&mut server, READER);
    server.extend_shared(K, WRITER, 1000).fence();
    assert_eq!(server.granted(), [reader]);
    assert!(server.text(K) != WRITER);
}

#[test]
fn revoked_shared_lock_ends_with_its_present_holders() {
    let mut server = server_with_readers(1000, 2000);
    assert_eq!(server.revoke(K), Ok(true));
    assert_eq!((server.text(K), server.node().stats().revoked), (REVOKED_VALUE, 2));
    for (token, left_ms) in [(READER, 1000), (SECOND, 2000)] {
        assert_eq!(server.extend_all(&[K], token, 5000), ExtendReply::Revoked { left_ms });
    }
    assert_eq!(server.acquire_shared(K, b"third", 1000, None), None);
    let third = enqueue_reader(&mut server, b"third");
    assert!(server.release(K, READER));
    server.run_turns();
    assert_eq!(server.granted(), []);
    let holder = server.inspect_all_fields(K).unwrap().holder;
    assert!(matches!(holder, Holder::Lease { revoked: true, holders: 1, .. }));
    server.turn_after_ms(2000);
    assert_eq!(server.granted(), [third]);
    assert_eq!(server.revoke_now(K), Ok(true));
    assert!(server.is_empty());
}

#[test]
fn revoked_shared_lock_that_admits_readers_never_ends() {
    let revoked_lock_ends = |mutant| {
        break_rule(mutant);
        let mut server = Server::new();
        server.acquire_shared(K, READER, 1000, None).unwrap();
        assert_eq!(server.revoke(K), Ok(true));
        for n in 0..20_u8 {
            server.pass_ms(500);
            server.acquire_shared(K, &[n], 1000, None);
            server.run_turns();
        }
        break_rule(None);
        let holder = server.inspect_all_fields(K).unwrap().holder;
        !matches!(holder, Holder::Lease { revoked: true, .. })
    };
    assert!(revoked_lock_ends(None), "the later holders share a new lock");
    assert!(!revoked_lock_ends(Some(Mutant::RevokedAdmitsHolders)));
}

#[test]
fn reader_swaps_only_its_own_token() {
    let mut server = Server::new();
    let first = server.acquire_shared(K, READER, 1000, None).unwrap();
    server.acquire_shared(K, SECOND, 1000, None).unwrap();
    assert_eq!(server.extend_with(K, READER, 1000, None, Some(SECOND)), ExtendReply::TokenInUse);
    let fence = server.extend_with(K, READER, 1000, None, Some(b"new")).fence();
    assert!(fence > first);
    assert!(!server.release(K, READER));
    assert!(server.release(K, b"new") && server.release(K, SECOND));
    assert!(server.is_empty());
}

#[test]
fn reader_raises_only_its_own_fence() {
    let mut server = Server::new();
    server.pass_ms(100_000);
    let fence = server.acquire_shared(K, READER, 1000, None).unwrap();
    let higher = fence.saturating_add(1_000_000);
    assert_eq!(server.extend_with(K, READER, 1000, Some(higher), None).fence(), higher);
    let below = ExtendReply::BadFence(FenceError::Below { current: higher });
    assert_eq!(server.extend_with(K, READER, 1000, Some(fence), None), below);
    let beside = server.acquire_shared(K, SECOND, 1000, Some(fence)).unwrap();
    assert_eq!(beside, fence, "the fence of another reader may be lower");
    assert!(server.release(K, READER) && server.release(K, SECOND));
    assert!(server.acquire(K, WRITER, 1000, None).unwrap() > higher);
}

#[test]
fn inspect_shows_the_number_of_readers_and_the_first_ten() {
    let mut server = Server::new();
    for n in 0..12_u64 {
        server.owner = (n != 3).then(|| format!("host:{n}").into_bytes());
        server.acquire_shared(K, &n.to_le_bytes(), 1000 + n, None).unwrap();
        server.pass_ms(10);
    }
    let Holder::Lease { owners, holders, ttl_ms, held_ms, mode, keys, .. } =
        server.inspect_all_fields(K).unwrap().holder
    else {
        panic!("the key is not held")
    };
    assert_eq!((holders, mode, keys, held_ms, ttl_ms), (12, Mode::Shared, 1, 120, 1001));
    let shown: Vec<_> =
        owners.iter().map(|owner| owner.as_deref().map(String::from_utf8_lossy)).collect();
    let expected: Vec<_> = (0..10).map(|n| (n != 3).then(|| format!("host:{n}").into())).collect();
    assert_eq!(shown, expected);
}

#[test]
fn reader_that_disconnects_before_its_answer_leaves_no_lease() {
    let mut server = Server::that_defers_wakes();
    server.acquire(K, WRITER, 60_000, None).unwrap();
    let gone = enqueue_reader(&mut server, READER);
    let stays = enqueue_reader(&mut server, SECOND);
    assert!(server.release(K, WRITER));
    assert!(server.disconnect(gone));
    server.run_turns();
    assert_eq!(held(&mut server), Some((Mode::Shared, 1)));
    assert_eq!(server.granted(), [stays]);
}

#[test]
fn shared_lock_survives_a_reload_and_prevents_an_unload() {
    let mut server = Server::new();
    server.acquire_shared(K, READER, 10_000, None).unwrap();
    assert!(!server.node().can_unload(server.now().monotonic), "only the node knows its holders");
    server.handle_event(&ServerEvent::LoadingBegins);
    server.handle_event(&ServerEvent::LoadingEnds);
    server.run_turns();
    assert!(server.extend(K, READER, 10_000).is_some());
    server.handle_event(&ServerEvent::Demoted);
    server.run_turns();
    assert_eq!(server.node().leases(), 0);
    server.handle_event(&ServerEvent::Promoted);
    assert_eq!(server.extend(K, READER, 10_000), None);
    server.turn_after_ms(MAX_TTL_MS);
    assert!(server.acquire(K, WRITER, 1000, None).is_some());
}

#[test]
fn many_readers_that_end_at_once_are_removed_in_steps() {
    let mut server = Server::new();
    for n in 0..20_000_u32 {
        server.acquire_shared(K, &n.to_le_bytes(), 1000, None).unwrap();
    }
    server.remove_key(K, KeyEvent::Removed);
    assert_eq!((server.node().leases(), server.node().stats().ended_by_operator), (0, 20_000));
    assert!(server.memory.one_turn(server.now()) > 100, "the holders are removed later");
    assert!(server.acquire(K, WRITER, 1000, None).is_some());
    server.run_turns();
    assert!(server.release(K, WRITER));
    assert_eq!(server.node().next_wake(), None);
}

#[test]
fn nodes_with_different_readers_are_not_equal() {
    let (mut one, mut other) = (Server::new(), Server::new());
    let fence = Some(Fence::of_wall_us(one.now().wall_us));
    one.acquire_shared(K, READER, 1000, fence).unwrap();
    other.acquire_shared(K, READER, 1000, fence).unwrap();
    assert!(one.node() == other.node());
    one.acquire_shared(K, SECOND, 500, fence).unwrap();
    other.acquire_shared(K, b"third", 500, fence).unwrap();
    assert!(one.node() != other.node());
}

#[derive(Clone, Debug)]
enum Step {
    Acquire { mode: Mode, ttl_ms: u64 },
    Wait { mode: Mode, ttl_ms: u64, wait_ms: u64 },
    WaitForBoth { wait_ms: u64 },
    Extend { nth: usize, mode: Mode, ttl_ms: u64 },
    SwapToken { nth: usize },
    Release { nth: usize },
    Cancel { nth: usize },
    Revoke { ends_now: bool },
    RemoveKey { event: KeyEvent },
    Foreign { expires_in_ms: u64 },
    Flush,
    MoveWallClock { ms: i64 },
    Pass { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let (nth, ttl) = (0..8_usize, 1..3000_u64);
    let mode = prop_oneof![2 => Just(Mode::Shared), 1 => Just(Mode::Exclusive)];
    let event = support::key_events();
    prop_oneof![
        4 => (mode.clone(), ttl.clone()).prop_map(|(mode, ttl_ms)| Step::Acquire { mode, ttl_ms }),
        8 => (mode.clone(), ttl.clone(), 1..4000_u64)
            .prop_map(|(mode, ttl_ms, wait_ms)| Step::Wait { mode, ttl_ms, wait_ms }),
        1 => (1..4000_u64).prop_map(|wait_ms| Step::WaitForBoth { wait_ms }),
        4 => (nth.clone(), mode, ttl).prop_map(|(nth, mode, ttl_ms)| Step::Extend { nth, mode, ttl_ms }),
        1 => nth.clone().prop_map(|nth| Step::SwapToken { nth }),
        6 => nth.clone().prop_map(|nth| Step::Release { nth }),
        1 => nth.prop_map(|nth| Step::Cancel { nth }),
        1 => prop::bool::weighted(0.2).prop_map(|ends_now| Step::Revoke { ends_now }),
        1 => event.prop_map(|event| Step::RemoveKey { event }),
        1 => (1..2000_u64).prop_map(|expires_in_ms| Step::Foreign { expires_in_ms }),
        1 => Just(Step::Flush),
        1 => (-5000..5000_i64).prop_map(|ms| Step::MoveWallClock { ms }),
        4 => (0..1500_u64).prop_map(|ms| Step::Pass { ms }),
    ]
}

#[derive(Clone, Debug)]
struct Belief {
    token: Vec<u8>,
    mode: Mode,
    fence: Fence,
    until_us: u64,
    revoked: bool,
}

struct Waiting {
    token: Vec<u8>,
    mode: Mode,
    is_for_both: bool,
    ttl_ms: u64,
    since_us: u64,
    until_us: u64,
}

#[derive(Default)]
struct Beliefs {
    held: Vec<Belief>,
    /// The largest fence of a writer.
    largest_exclusive: Fence,
    largest: Fence,
}

impl Beliefs {
    fn expire(&mut self, now_us: u64) {
        self.held.retain(|held| now_us < held.until_us);
    }

    fn nth(&self, nth: usize) -> Option<Belief> {
        self.held.get(nth % self.held.len().max(1)).cloned()
    }

    fn admits_readers(&self) -> bool {
        self.held.iter().all(|held| held.mode == Mode::Shared && !held.revoked)
    }

    /// Records a grant. Fails if another holder excludes it, or if its fence is too small.
    fn record_grant(&mut self, held: Belief) -> Result<(), TestCaseError> {
        let may_join = held.mode == Mode::Shared && self.admits_readers();
        prop_assert!(self.held.is_empty() || may_join, "another holder excludes it");
        let is_above = held.fence > self.largest_exclusive;
        prop_assert!(is_above, "not above the fence of an earlier writer");
        if held.mode == Mode::Exclusive {
            prop_assert!(held.fence > self.largest, "not above all earlier fences");
            self.largest_exclusive = held.fence;
        }
        self.largest = self.largest.max(held.fence);
        self.held.push(held);
        Ok(())
    }

    /// Whether a key may have this value: that of the mirror, or of a foreign string of this test.
    fn explains(&self, text: &[u8]) -> bool {
        match self.held.first() {
            _ if text == b"old client" || text == b"data" => true,
            Some(held) if !held.revoked && held.mode == Mode::Exclusive => text == held.token,
            Some(held) if !held.revoked => text.starts_with(b"unknown-"),
            // A foreign string may have been revoked while no lock was held.
            _ => text == REVOKED_VALUE,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Random readers and writers, with operators, clocks and memory that interfere.
    ///
    /// No reader holds the key beside a writer. Fences lie above those of earlier writers. Waiters
    /// are served first in, first out, and none is forgotten. An ended lock leaves nothing behind.
    #[test]
    fn readers_and_writers_exclude_each_other_and_no_waiter_is_forgotten(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut server = Server::new();
        let mut beliefs = Beliefs::default();
        let mut waiting: HashMap<BlockedId, Waiting> = HashMap::new();
        let mut tokens = 0_u32;
        for step in steps {
            let now_us = server.mono_us;
            beliefs.expire(now_us);
            tokens += 1;
            let token = tokens.to_le_bytes().to_vec();
            match step {
                Step::Acquire { mode, ttl_ms } => {
                    if let Some(fence) = server.acquire_as(mode, &[K], &token, ttl_ms, None) {
                        prop_assert!(waiting.values().all(|other| other.is_for_both), "overtook a waiter");
                        let until_us = now_us + ttl_ms * 1000;
                        beliefs.record_grant(Belief { token, mode, fence, until_us, revoked: false })?;
                    }
                }
                Step::Wait { mode, ttl_ms, wait_ms } => {
                    let reply = match mode {
                        Mode::Exclusive => server.acquire_or_wait(K, &token, ttl_ms, wait_ms),
                        Mode::Shared => server.acquire_shared_or_wait(K, &token, ttl_ms, wait_ms),
                    };
                    match reply {
                        AcquireReply::Granted(fence) => {
                            let until_us = now_us + ttl_ms * 1000;
                            beliefs.record_grant(Belief { token, mode, fence, until_us, revoked: false })?;
                        }
                        AcquireReply::Waits(blocked_id) => {
                            let until_us = now_us + wait_ms * 1000;
                            waiting.insert(blocked_id, Waiting { token, mode, is_for_both: false, ttl_ms, since_us: now_us, until_us });
                        }
                        other => prop_assert_eq!(other, AcquireReply::QueueFull),
                    }
                }
                Step::WaitForBoth { wait_ms } => {
                    // One of the keys is never free, so these clients wait until they time out.
                    server.set(b"other", b"data", None);
                    if let AcquireReply::Waits(blocked_id) = server.acquire_all_or_wait(&[K, b"other"], &token, 1000, wait_ms) {
                        let until_us = now_us + wait_ms * 1000;
                        let mode = Mode::Exclusive;
                        waiting.insert(blocked_id, Waiting { token, mode, is_for_both: true, ttl_ms: 1000, since_us: now_us, until_us });
                    }
                }
                Step::Extend { nth, mode, ttl_ms } => {
                    if let Some(held) = beliefs.nth(nth) {
                        let extended = server.extend_as(mode, &[K], &held.token, ttl_ms, None, None);
                        let belief = beliefs.held.iter_mut().find(|other| other.token == held.token).unwrap();
                        if held.revoked {
                            let left_ms = (held.until_us - now_us).div_ceil(1000);
                            prop_assert_eq!(extended, ExtendReply::Revoked { left_ms });
                        } else {
                            prop_assert_eq!(extended, ExtendReply::Held { fence: held.fence });
                            belief.until_us = belief.until_us.max(now_us + ttl_ms * 1000);
                            belief.mode = belief.mode.max(mode);
                        }
                    } else {
                        prop_assert_eq!(server.extend_as(mode, &[K], &token, ttl_ms, None, None), ExtendReply::NotHeld);
                    }
                }
                Step::SwapToken { nth } => {
                    if let Some(held) = beliefs.nth(nth).filter(|held| !held.revoked) {
                        let fence = server.extend_with(K, &held.token, 1, None, Some(&token)).fence();
                        prop_assert!(fence > beliefs.largest);
                        beliefs.held.retain(|other| other.token != held.token);
                        let until_us = held.until_us.max(now_us + 1000);
                        beliefs.record_grant(Belief { token, fence, until_us, ..held })?;
                    }
                }
                Step::Release { nth } => {
                    if let Some(held) = beliefs.nth(nth) {
                        prop_assert!(server.release(K, &held.token));
                        prop_assert!(!server.release(K, &held.token));
                        beliefs.held.retain(|other| other.token != held.token);
                    }
                }
                Step::Cancel { nth } => server.disconnect_nth(&mut waiting, nth),
                Step::Revoke { ends_now } => {
                    // A foreign string is revoked like any lock.
                    let revoked = if ends_now { server.revoke_now(K) } else { server.revoke(K) };
                    prop_assert!(revoked == Ok(true) || beliefs.held.is_empty());
                    if ends_now {
                        beliefs.held.clear();
                    }
                    beliefs.held.iter_mut().for_each(|held| held.revoked = true);
                }
                Step::RemoveKey { event } => {
                    let is_mirror = server.has(K) && server.text(K) != b"old client" && !beliefs.held.is_empty();
                    server.remove_key(K, event);
                    if is_mirror && event == KeyEvent::Removed {
                        beliefs.held.clear();
                    }
                }
                Step::Foreign { expires_in_ms } => server.set_foreign(K, expires_in_ms),
                Step::Flush => {
                    server.flush();
                    server.set(b"other", b"data", None);
                    beliefs.held.clear();
                }
                Step::MoveWallClock { ms } => server.wall_ms = server.wall_ms.saturating_add_signed(ms),
                Step::Pass { ms } => server.pass_ms(ms),
            }
            server.run_turns();
            let now_us = server.mono_us;
            beliefs.expire(now_us);
            for (blocked_id, result) in std::mem::take(&mut server.wait_results) {
                let Some(waiter) = waiting.remove(&blocked_id) else { panic!("answered twice, or after it was cancelled") };
                let Some(fence) = result.granted(now_us < waiter.until_us) else { continue };
                let overtakes = waiting.iter().any(|(&other, waits)| {
                    other < blocked_id && now_us < waits.until_us && !waits.is_for_both
                });
                prop_assert!(!overtakes, "overtook a waiter that came first");
                let Waiting { token, mode, ttl_ms, .. } = waiter;
                let until_us = now_us + ttl_ms * 1000;
                beliefs.record_grant(Belief { token, mode, fence, until_us, revoked: false })?;
            }
            // The node has exactly the leases in which holders believe.
            prop_assert_eq!(server.node().leases(), beliefs.held.len());
            if let Some(first) = beliefs.held.first() {
                let Holder::Lease { holders, ttl_ms, mode, revoked, .. } = server.inspect_all_fields(K).unwrap().holder
                else { panic!("the key is not held") };
                let last_us = beliefs.held.iter().map(|held| held.until_us).max().unwrap();
                prop_assert_eq!((holders, mode, revoked), (beliefs.held.len(), first.mode, first.revoked));
                prop_assert_eq!(ttl_ms, (last_us - now_us).div_ceil(1000));
            }
            let is_explained = server.texts().all(|text| beliefs.explains(text));
            prop_assert!(is_explained, "a mirror outlives its lock");
            // No waiter is forgotten: no client waits while the key is free, and no reader is first
            // in the queue while it could join other readers.
            prop_assert!(waiting.values().all(|waiter| now_us < waiter.until_us));
            prop_assert_eq!(server.node().waiters(), waiting.len());
            let mut queue: Vec<_> = waiting.iter().filter(|(_, waiter)| !waiter.is_for_both).collect();
            queue.sort_unstable_by_key(|(blocked_id, _)| **blocked_id);
            let is_kept = |first: BlockedId| waiting.iter().any(|(&other, waits)| {
                waits.is_for_both && other < first && now_us >= waits.since_us + 50_000
            });
            if let Some((_, first)) = queue.first().filter(|(first, _)| !is_kept(**first)) {
                prop_assert!(server.inspect_all_fields(K).is_some(), "a client waits for a free key");
                let is_shared = !beliefs.held.is_empty() && beliefs.admits_readers();
                let could_join = first.mode == Mode::Shared && is_shared;
                prop_assert!(!could_join, "a reader that could join other readers waits");
                prop_assert!(server.node().next_wake().is_some());
            }
        }
        server.turn_after_ms(10_000);
        prop_assert_eq!((server.node().waiters(), server.node().leases()), (0, 0));
        beliefs.expire(server.mono_us);
        let is_explained = server.texts().all(|text| beliefs.explains(text));
        prop_assert!(is_explained, "a mirror outlives its lock");
        let stats = server.node().stats();
        let ended = stats.releases + stats.ended_by_deadline + stats.ended_by_operator;
        prop_assert_eq!(stats.grants, ended, "each holder's lease ends once");
    }
}
