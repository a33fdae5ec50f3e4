//! What a call does about a wait that was very long, was cut off, or was too short to be sent.

#![allow(clippy::unwrap_used, reason = "a test that unwraps nothing fails, as it should")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::Fence;
use quorlock_core::client::{
    Acquire, Action, Command, Context, Keys, Mutant, Outcome, RequestId, Response, Spec,
    break_rule, limits,
};
use quorlock_core::quorum::Moment;
use support::client::{Client, nodes_after_restarts, spec};

const WALL_US: u64 = 1_800_000_000_000_000;
const TTL: Duration = Duration::from_secs(1);

/// Three nodes that a test plays, and a call.
struct World {
    client: Client,
    call: Acquire,
    at: Duration,
}

impl World {
    fn new(slots: usize, wait: Option<Duration>) -> Self {
        let mut client = Client::new(3);
        let keys: Keys = (0..slots).map(|slot| format!("k:{slot}")).collect();
        let spec = Spec {
            any: (slots > 1).then(|| keys.clone()),
            min_validity: TTL / 2,
            ..spec(keys, 1000)
        };
        let at = Duration::ZERO;
        let call = Acquire::new(Arc::new(spec), wait, &client.ctx(start(), WALL_US));
        Self { client, call, at }
    }

    fn then<T>(
        &mut self,
        does: impl FnOnce(&mut Acquire, &mut Context<'_>) -> T,
    ) -> (T, Vec<Action>) {
        let mut ctx = self.client.ctx(start().plus(self.at), WALL_US);
        let result = does(&mut self.call, &mut ctx);
        (result, std::iter::from_fn(|| self.call.poll()).collect())
    }

    fn turn(&mut self, contended: bool) -> Vec<Action> {
        self.then(|call, ctx| call.handle_turn(contended, ctx)).1
    }

    fn time_out(&mut self) -> Vec<Action> {
        let due = self.call.poll_timeout().unwrap();
        self.at = self.at.max(start().until(due));
        self.then(Acquire::handle_timeout).1
    }

    fn answer(&mut self, id: RequestId, response: &Response) -> Vec<Action> {
        self.then(|call, ctx| call.handle_response(id, response, ctx)).1
    }

    /// The same answer of each node that was sent a request. Returns what follows.
    fn answer_all(&mut self, sent: &[Action], response: &Response) -> Vec<Action> {
        let mut actions = Vec::new();
        for (id, _) in requests(sent) {
            actions.extend(self.answer(id, response));
        }
        actions
    }

    /// Waits on the first node from now on.
    fn wait(&mut self) -> RequestId {
        let id = wait_of(&self.turn(true)).unwrap();
        assert!(self.then(|call, ctx| call.handle_wait_sent(id, ctx)).0.is_some());
        id
    }
}

fn start() -> Moment {
    Moment::default().plus(Duration::from_secs(1))
}

fn requests(actions: &[Action]) -> Vec<(RequestId, Command)> {
    let request = |action: &Action| match action {
        Action::Send { id, request, .. } => Some((*id, request.command)),
        _ => None,
    };
    actions.iter().filter_map(request).collect()
}

fn wait_of(actions: &[Action]) -> Option<RequestId> {
    actions.iter().find_map(|action| match action {
        Action::Wait { id } => Some(*id),
        _ => None,
    })
}

fn is_acquired(actions: &[Action]) -> bool {
    let acquired = |action: &Action| match action {
        Action::Done(outcome) => matches!(**outcome, Outcome::Acquired(_)),
        _ => false,
    };
    actions.iter().any(acquired)
}

fn releases(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Release(_)))
}

/// Whether a lock is held whose wait took 100 times its ttl.
fn is_held_after_a_long_wait(mutant: Option<Mutant>) -> bool {
    break_rule(mutant);
    let mut world = World::new(1, None);
    let wait = world.wait();
    let waited = TTL * 100;
    world.at += waited;
    let fence = Fence::new(7).unwrap();
    let sent = world.answer(wait, &Response::FenceAfterWait { fence, waited });
    let is_held = is_acquired(&world.answer_all(&sent, &Response::Fence(fence)));
    break_rule(None);
    is_held
}

#[test]
fn lock_is_held_however_long_its_wait_took() {
    assert!(is_held_after_a_long_wait(None));
    assert!(!is_held_after_a_long_wait(Some(Mutant::LongWaitIsLost)));
}

/// Whether a waiter leaves a node that has restarted, while the connection of the WAIT seems to be
/// there.
fn leaves_after_a_restart(mutant: Option<Mutant>) -> bool {
    break_rule(mutant);
    let mut world = World::new(1, None);
    world.wait();
    world.client.topology = nodes_after_restarts(3, 1);
    let leaves = releases(&world.time_out());
    break_rule(None);
    leaves
}

#[test]
fn waiter_leaves_a_node_that_has_restarted() {
    assert!(leaves_after_a_restart(None));
    assert!(!leaves_after_a_restart(Some(Mutant::WaitsPastRestart)));
}

#[test]
fn call_whose_wait_was_too_short_to_be_sent_asks_for_the_other_slots() {
    let mut world = World::new(4, Some(Duration::from_millis(1)));
    let sent = world.turn(false);
    let actions = world.answer_all(&sent, &Response::No);
    let wait = wait_of(&actions).unwrap();
    let (request, _) = world.then(|call, ctx| call.handle_wait_sent(wait, ctx));
    assert_eq!(request, None, "there is no time for it");
    let mut probes = false;
    for _ in 0..10 {
        let sent = world.time_out();
        let next = world.answer_all(&sent, &Response::No);
        let is_probe = |(_, command): &(_, Command)| matches!(command, Command::AcquireAny { .. });
        probes |= requests(&sent).iter().chain(&requests(&next)).any(is_probe);
        if probes {
            return;
        }
    }
    panic!("it knows nothing of the other slots");
}

#[test]
fn nodes_time_is_over_while_another_is_asked_for_the_other_slots() {
    let mut world = World::new(4, Some(Duration::ZERO));
    let sent = requests(&world.turn(false));
    let due = world.call.poll_timeout().unwrap();
    let mut probe = Vec::new();
    world.at += Duration::from_millis(10);
    // Whichever decides: two refusals leave no majority.
    for (id, _) in &sent[..2] {
        probe.extend(requests(&world.answer(*id, &Response::No)));
    }
    let is_probe = |(_, command): &(_, Command)| matches!(command, Command::AcquireAny { .. });
    if !probe.iter().any(is_probe) {
        world.at += limits::settle(Duration::from_millis(1));
        probe.extend(requests(&world.time_out()));
    }
    assert!(probe.iter().any(is_probe), "{probe:?}");
    assert_eq!(world.call.poll_timeout(), Some(due), "the third node's time is not extended");
}
