//! What a call does about a wait that was very long, was cut off, or was too short to be sent.

#![allow(clippy::unwrap_used, reason = "a test that unwraps nothing fails, as it should")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::Fence;
use quorlock_core::client::{
    Acquire, Action, Command, Context, Hold, HoldAction, Keys, Mutant, Outcome, RequestId,
    Response, Spec, break_rule, limits,
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

    fn ctx(&mut self) -> Context<'_> {
        self.client.ctx(start().plus(self.at), WALL_US)
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
    let (_, sent) = granted_after_a_long_wait(&mut world);
    let fence = Fence::new(7).unwrap();
    let is_held = is_acquired(&world.answer_all(&sent, &Response::Fence(fence)));
    break_rule(None);
    is_held
}

#[test]
fn lock_is_held_however_long_its_wait_took() {
    assert!(is_held_after_a_long_wait(None));
    assert!(!is_held_after_a_long_wait(Some(Mutant::LongWaitIsLost)));
}

/// Grants a WAIT that took 100 times the ttl. Returns its node, and the requests that follow.
fn granted_after_a_long_wait(world: &mut World) -> (usize, Vec<Action>) {
    let wait = world.wait();
    let waited = TTL * 100;
    world.at += waited;
    let fence = Fence::new(7).unwrap();
    (wait.node, world.answer(wait, &Response::FenceAfterWait { fence, waited }))
}

#[test]
fn lock_that_its_node_refuses_to_extend_is_not_acquired() {
    let mut world = World::new(1, None);
    let (granting, sent) = granted_after_a_long_wait(&mut world);
    let extends = |(id, command): &(RequestId, Command)| {
        assert_eq!(id.node == granting, matches!(command, Command::Extend { .. }), "{command:?}");
        id.node == granting
    };
    let (extend, _) = requests(&sent).into_iter().find(extends).unwrap();
    // An operator ended it. An ACQUIRE with its token would be granted a lock that the operator's
    // command does not end.
    let after = world.answer(extend, &Response::No);
    assert!(releases(&after) && requests(&after).is_empty(), "{after:?}");
}

/// Whether a node that refuses after the lock was won is asked again, once.
fn asks_again_after_a_late_refusal(mutant: Option<Mutant>, late: Duration) -> bool {
    break_rule(mutant);
    let mut world = World::new(1, None);
    let wait = world.wait();
    let fence = Fence::new(7).unwrap();
    let sent = world.answer(wait, &Response::FenceAfterWait { fence, waited: TTL / 10 });
    let [(first, _), (second, _)] = requests(&sent)[..] else { panic!("{sent:?}") };
    let mut won = world.answer(first, &Response::Fence(fence));
    won.retain(|action| matches!(action, Action::Done(_)));
    let Some(Action::Done(outcome)) = won.pop() else { panic!("it is not won") };
    let Outcome::Acquired(grant) = *outcome else { panic!("{outcome:?}") };
    let mut hold = Hold::new(Arc::clone(world.call.spec()), grant);
    let repeats = |hold: &mut Hold, world: &mut World| {
        hold.handle_response(second, &Response::No, &world.ctx());
        let repeat = |action: HoldAction| match action {
            HoldAction::Send(next) => {
                next.id == second && matches!(next.request.command, Command::Acquire { .. })
            }
            _ => false,
        };
        std::iter::from_fn(|| hold.poll()).any(repeat)
    };
    world.at += late;
    let asks = repeats(&mut hold, &mut world);
    assert!(!repeats(&mut hold, &mut world), "it is asked again once");
    break_rule(None);
    asks
}

#[test]
fn node_that_refuses_after_the_lock_was_won_is_asked_again() {
    assert!(asks_again_after_a_late_refusal(None, Duration::ZERO));
    assert!(!asks_again_after_a_late_refusal(None, TTL / 10));
    assert!(!asks_again_after_a_late_refusal(Some(Mutant::LateRefusalIsFinal), Duration::ZERO));
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
