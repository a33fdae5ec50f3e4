//! Answers that arrive late: the process was paused, or the nodes are slow.

use std::sync::Arc;
use std::time::Duration;

use crate::support::client::{Client, spec};
use crate::support::world::{Path, Sent, World, sends_of};
use quorlock_core::client::{Hold, Mode, Spec, limits};
use quorlock_core::quorum::Ownership;
use quorlock_core::{ClientRule, break_rule};

const TTL_MS: u64 = 10_000;

fn spec_of_k() -> Arc<Spec> {
    Arc::new(Spec { mode: Mode::Exclusive, ..spec([b"k"].into_iter().collect(), TTL_MS) })
}

/// A lock, and the EXTENDs of a round, which the nodes have carried out. The answers have not been
/// read, and the time of the nodes is over.
fn overdue_round(paused_ms: u64) -> (World, Hold, Vec<Sent>) {
    let mut world = World::new(Client::new(3));
    let mut lock = world.acquire_preferring(spec_of_k(), 0).unwrap();
    world.pass_ms(TTL_MS / 2);
    lock.extend(&world.ctx());
    let sends = sends_of(&mut lock);
    for sent in &sends {
        world.paths = vec![Path::AnswersLost; 3];
        world.answer(sent);
    }
    world.paths = vec![Path::Fine; 3];
    world.pass_ms(paused_ms);
    lock.handle_timeout(&world.ctx());
    (world, lock, sends)
}

/// Returns what is left of the lock if a majority extends it while the process is paused, and its
/// answers are read after the time of the nodes is over.
fn left_after_a_late_majority(mutant: Option<ClientRule>) -> Ownership {
    let (mut world, mut lock, sends) = overdue_round(4000);
    // The pause for reading is over, too.
    world.pass_ms(5);
    lock.handle_timeout(&world.ctx());
    let uncertain = lock.ownership(world.now());
    assert!(matches!(uncertain, Ownership::Uncertain(left) if left < Duration::from_secs(1)));
    break_rule(mutant);
    world.deliver(&mut lock, sends);
    break_rule(None);
    lock.ownership(world.now())
}

#[test]
fn late_majority_extends_the_lock_from_the_moment_of_sending() {
    let Ownership::Held(left) = left_after_a_late_majority(None) else { panic!("not extended") };
    let since_sent_ms = 4005;
    let expected = Duration::from_millis(TTL_MS - since_sent_ms - 300)
        ..Duration::from_millis(TTL_MS - since_sent_ms);
    assert!(expected.contains(&left), "{left:?}");
    let mutant = left_after_a_late_majority(Some(ClientRule::LateMajorityForgotten));
    assert!(matches!(mutant, Ownership::Uncertain(_)), "{mutant:?}");
}

#[test]
fn late_refusals_of_a_majority_end_the_lock() {
    let (mut world, mut lock, sends) = overdue_round(100);
    world.pass_ms(5);
    lock.handle_timeout(&world.ctx());
    for node in &mut world.nodes {
        assert_eq!(node.revoke_now(b"k"), Ok(true));
    }
    world.deliver(&mut lock, sends);
    assert!(matches!(lock.ownership(world.now()), Ownership::Lost(_)));
}

#[test]
fn timer_that_fires_late_leaves_time_to_read_the_answers() {
    let (mut world, mut lock, sends) = overdue_round(4000);
    assert!(matches!(lock.ownership(world.now()), Ownership::Held(_)), "no answer was read yet");
    let next = lock.poll_timeout().unwrap();
    assert_eq!(world.now().until(next), limits::LATE_READ_PAUSE);
    world.deliver(&mut lock, sends);
    let Ownership::Held(left) = lock.ownership(world.now()) else { panic!("not extended") };
    assert!(left > Duration::from_secs(5), "{left:?}");
}

#[test]
fn holder_of_a_revoked_lock_notices_that_the_lock_is_ended_early() {
    let mut world = World::new(Client::new(3));
    let mut lock = world.acquire_preferring(spec_of_k(), 0).unwrap();
    for node in &mut world.nodes {
        assert_eq!(node.revoke(b"k"), Ok(true));
    }
    world.extend(&mut lock);
    assert!(lock.is_revoked() && !lock.is_extensible(world.now()));
    let again = lock.renew_in(world.now()).expect("the holder asks again");
    assert!(again <= Duration::from_millis(TTL_MS / 10), "{again:?}");
    for node in &mut world.nodes {
        assert_eq!(node.revoke_now(b"k"), Ok(true));
    }
    world.extend(&mut lock);
    assert!(matches!(lock.ownership(world.now()), Ownership::Lost(_)));
}
