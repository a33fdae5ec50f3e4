//! Calls that wait: very long, too briefly for a WAIT, or on slow, silent or restarted nodes. And
//! what the holder does about refusals after a wait.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::client::{
    Acquire, Action, Command, Context, Hold, HoldAction, Keys, Mode, Mutant, NodeError, Outcome,
    Reason, RequestId, Response, Spec, break_rule, limits,
};
use quorlock_core::quorum::Moment;
use quorlock_core::{Fence, Ttl};
use support::client::{Client, nodes_after_restarts, spec};

const WALL_US: u64 = 1_800_000_000_000_000;
const TTL: Duration = Duration::from_secs(1);

/// A call, and three nodes whose answers the test gives.
struct World {
    client: Client,
    call: Acquire,
    /// The present moment, counted from `start()`.
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

    /// Passes an event to the call. Returns its result, and the actions that follow.
    fn drive<T>(
        &mut self,
        event: impl FnOnce(&mut Acquire, &mut Context<'_>) -> T,
    ) -> (T, Vec<Action>) {
        let mut ctx = self.client.ctx(start().plus(self.at), WALL_US);
        let result = event(&mut self.call, &mut ctx);
        (result, std::iter::from_fn(|| self.call.poll()).collect())
    }

    fn ctx(&mut self) -> Context<'_> {
        self.client.ctx(start().plus(self.at), WALL_US)
    }

    fn begin(&mut self, contended: bool) -> Vec<Action> {
        self.drive(|call, ctx| call.begin(contended, ctx)).1
    }

    fn fire_timer(&mut self) -> Vec<Action> {
        let due = self.call.poll_timeout().unwrap();
        self.at = self.at.max(start().until(due));
        self.drive(Acquire::handle_timeout).1
    }

    fn answer(&mut self, id: RequestId, response: &Response) -> Vec<Action> {
        self.drive(|call, ctx| call.handle_response(id, response, ctx)).1
    }

    /// Answers each of these requests as `response_of` says for its node. Returns what follows.
    fn answer_each(
        &mut self,
        sent: &[Action],
        response_of: impl Fn(usize) -> Response,
    ) -> Vec<Action> {
        let answer = |(id, _): (RequestId, Command)| self.answer(id, &response_of(id.node));
        requests(sent).into_iter().flat_map(answer).collect()
    }

    /// Fires the timers of the call, one after the other, until it waits on a node. Returns the ID
    /// of its WAIT.
    fn fire_timers_until_wait(&mut self, mut actions: Vec<Action>) -> RequestId {
        loop {
            match wait_of(&actions) {
                Some(wait) => return wait,
                None => actions = self.fire_timer(),
            }
        }
    }

    /// Starts the call as contended, so that it waits at once. Returns the ID of its WAIT.
    fn wait(&mut self) -> RequestId {
        let id = wait_of(&self.begin(true)).unwrap();
        assert!(self.drive(|call, ctx| call.handle_wait_connection(id, ctx)).0.is_some());
        id
    }
}

fn fence() -> Fence {
    Fence::new(7).unwrap()
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

fn granted() -> Response {
    Response::Fence(fence())
}

fn granted_after(waited: Duration) -> Response {
    Response::FenceAfterWait { fence: fence(), waited }
}

fn down() -> Response {
    Response::Failed(NodeError::Down { reason: "connection refused".into() })
}

fn releases(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Release(_)))
}

/// Whether a lock is held after a wait of 100 times its ttl.
fn is_held_after_a_long_wait(mutant: Option<Mutant>) -> bool {
    break_rule(mutant);
    let mut world = World::new(1, None);
    let (_, sent) = granted_after_a_long_wait(&mut world);
    let is_held = is_acquired(&world.answer_each(&sent, |_| granted()));
    break_rule(None);
    is_held
}

#[test]
fn lock_is_held_however_long_its_wait_took() {
    assert!(is_held_after_a_long_wait(None));
    assert!(!is_held_after_a_long_wait(Some(Mutant::LongWaitIsLost)));
}

/// Grants a WAIT that took 100 times the ttl. Returns its node, and the actions that follow.
fn granted_after_a_long_wait(world: &mut World) -> (usize, Vec<Action>) {
    let wait = world.wait();
    world.at += TTL * 100;
    (wait.node, world.answer(wait, &granted_after(TTL * 100)))
}

#[test]
fn lock_that_the_granting_node_refuses_to_extend_is_not_acquired() {
    let mut world = World::new(1, None);
    let (granting, sent) = granted_after_a_long_wait(&mut world);
    let requests_after = requests(&sent);
    for (id, command) in &requests_after {
        assert_eq!(id.node == granting, matches!(command, Command::Extend { .. }), "{command:?}");
    }
    let (extend, _) = requests_after.into_iter().find(|(id, _)| id.node == granting).unwrap();
    // An operator ended the lock there. An ACQUIRE with the same token would be granted, against
    // the operator's command.
    let after = world.answer(extend, &Response::No);
    assert!(releases(&after) && requests(&after).is_empty(), "{after:?}");
}

/// Waits on one node, wins the lock with the grants of that node and of a second one, and holds it.
/// Returns the ID of the ACQUIRE to the third node, which has not answered.
fn granted_by_two(world: &mut World) -> (Hold, RequestId) {
    let wait = world.wait();
    let sent = world.answer(wait, &granted_after(TTL / 10));
    let [(second, _), (third, _)] = requests(&sent)[..] else { panic!("{sent:?}") };
    let mut won = world.answer(second, &granted());
    won.retain(|action| matches!(action, Action::Done(_)));
    let Some(Action::Done(outcome)) = won.pop() else { panic!("the lock is not won") };
    let Outcome::Acquired(grant) = *outcome else { panic!("{outcome:?}") };
    (Hold::new(Arc::clone(world.call.spec()), grant), third)
}

fn granted_by_two_and_renewed(world: &mut World) -> (Hold, RequestId) {
    let (mut hold, third) = granted_by_two(world);
    hold.renew();
    (hold, third)
}

/// Like `granted_by_two`. The third node then refuses twice.
fn refused_twice(world: &mut World, is_renewed: bool) -> (Hold, RequestId) {
    let (mut hold, third) =
        if is_renewed { granted_by_two_and_renewed(world) } else { granted_by_two(world) };
    for _ in 0..2 {
        hold.handle_response(third, &Response::No, &world.ctx());
    }
    (hold, third)
}

fn repeats(hold: &mut Hold, acquire: RequestId) -> bool {
    let is_repeat = |action: HoldAction| match action {
        HoldAction::Send(next) => {
            next.id == acquire && matches!(next.request.command, Command::Acquire { .. })
        }
        _ => false,
    };
    std::iter::from_fn(|| hold.poll()).any(is_repeat)
}

/// How long after the grant each repeat of a refused ACQUIRE is sent. `late` delays the first
/// refusal.
fn repeated_after(mutant: Option<Mutant>, late: Duration) -> Vec<Duration> {
    break_rule(mutant);
    let mut world = World::new(1, None);
    let (mut hold, third) = granted_by_two_and_renewed(&mut world);
    let granted_at = world.at;
    world.at += late;
    let mut sent = Vec::new();
    hold.handle_response(third, &Response::No, &world.ctx());
    loop {
        if repeats(&mut hold, third) {
            sent.push(world.at.saturating_sub(granted_at));
            hold.handle_response(third, &Response::No, &world.ctx());
        }
        let Some(at) = hold.repeat_at() else { break };
        world.at = world.at.max(start().until(at));
        hold.repeat_refused(&world.ctx());
    }
    break_rule(None);
    sent
}

#[test]
fn holder_repeats_a_refused_acquire_while_other_waiters_may_give_way() {
    let node_timeout = limits::node_timeout(Duration::ZERO, Ttl::from_ms(1000).unwrap());
    let sent = repeated_after(None, Duration::ZERO);
    assert_eq!(sent[0], Duration::ZERO, "at once: the previous holder's release may be in flight");
    let last = *sent.last().unwrap();
    assert!(last >= limits::patience(TTL, node_timeout), "{sent:?}");
    assert!(last < limits::outlast(node_timeout) && sent.len() < 20, "{sent:?}");
    assert!(repeated_after(None, TTL / 5).is_empty(), "only a repair may follow so late");
    assert!(repeated_after(Some(Mutant::LateRefusalIsFinal), Duration::ZERO).is_empty());
}

#[test]
fn acquire_is_not_repeated_on_a_node_that_granted_it_or_after_the_release() {
    let mut world = World::new(1, None);
    let (mut hold, third) = granted_by_two_and_renewed(&mut world);
    hold.handle_response(third, &Response::No, &world.ctx());
    assert!(repeats(&mut hold, third));
    hold.handle_response(third, &granted(), &world.ctx());
    assert_eq!(hold.repeat_at(), None);
    assert_eq!(hold.coverage(&world.client.topology), 3);

    let mut world = World::new(1, None);
    let (mut hold, third) = refused_twice(&mut world, true);
    let at = hold.repeat_at().unwrap();
    hold.release(&world.ctx());
    world.at = start().until(at);
    while hold.poll().is_some() {}
    hold.repeat_refused(&world.ctx());
    assert!(!repeats(&mut hold, third));
    assert_eq!(hold.repeat_at(), None);
}

#[test]
fn acquire_is_repeated_once_the_node_has_a_connection_again() {
    let mut world = World::new(1, None);
    let (mut hold, third) = refused_twice(&mut world, true);
    while hold.poll().is_some() {}
    let connected = world.client.topology.clone();
    world.client.disconnect(third.node, NodeError::connection_lost());
    let mut repeat = |world: &mut World| {
        world.at = start().until(hold.repeat_at().unwrap());
        hold.repeat_refused(&world.ctx());
        repeats(&mut hold, third)
    };
    assert!(!repeat(&mut world));
    world.client.topology = connected;
    assert!(repeat(&mut world));
}

#[test]
fn acquire_is_repeated_more_than_once_for_a_renewed_lock_only() {
    let mut world = World::new(1, None);
    let (mut hold, _) = refused_twice(&mut world, false);
    assert_eq!(hold.repeat_at(), None);
    hold.renew();
    assert!(hold.repeat_at().is_some());
}

/// Whether a waiter wins before the first node in the order has answered or timed out. A later node
/// granted the WAIT.
fn wins_beside_a_slow_node(mutant: Option<Mutant>, mode: Mode) -> bool {
    break_rule(mutant);
    let mut world = World::new(1, None);
    world.call = {
        let spec = Spec { mode, ..(**world.call.spec()).clone() };
        Acquire::new(Arc::new(spec), None, &world.ctx())
    };
    let first = World::new(1, None).wait().node;
    // Another client holds the lock on the later nodes.
    let sent = world.begin(false);
    world.answer_each(&sent, |node| if node == first { granted() } else { Response::No });
    let wait = world.fire_timers_until_wait(Vec::new());
    assert_ne!(wait.node, first);
    world.drive(|call, ctx| call.handle_wait_connection(wait, ctx)).0.unwrap();
    let sent = world.answer(wait, &granted_after(TTL / 10));
    let last = requests(&sent).into_iter().find(|(id, _)| id.node != first).unwrap().0;
    assert!(!is_acquired(&world.answer(last, &granted())), "the win awaits the slow node");
    let granted_at = world.at;
    let wins = is_acquired(&world.fire_timer());
    let node_timeout = limits::node_timeout(Duration::ZERO, world.call.spec().ttl);
    break_rule(None);
    wins && world.at.saturating_sub(granted_at) < node_timeout
}

#[test]
fn win_after_a_wait_awaits_a_slow_earlier_node_only_briefly() {
    assert!(wins_beside_a_slow_node(None, Mode::Exclusive));
    assert!(!wins_beside_a_slow_node(Some(Mutant::AwaitsSlowNode), Mode::Exclusive));
    // A reader awaits the slow node, because a writer may wait there.
    assert!(!wins_beside_a_slow_node(None, Mode::Shared));
}

/// The node on which a call waits because other clients hold its keys. The first `down_count`
/// nodes are down.
fn wait_node(keys: &str, down_count: usize, mutant: Option<Mutant>) -> usize {
    break_rule(mutant);
    let mut world = World::new(1, None);
    let keys = keys.split(' ').collect();
    world.call = Acquire::new(Arc::new(spec(keys, 1000)), None, &world.ctx());
    let sent = world.begin(false);
    let next =
        world.answer_each(&sent, |node| if node < down_count { down() } else { Response::No });
    let wait = world.fire_timers_until_wait(next);
    break_rule(None);
    wait.node
}

/// The number of nodes on which calls wait, for one key and for several.
fn count_wait_nodes(down_count: usize, mutant: Option<Mutant>) -> usize {
    let sets = ["a", "b", "c", "a b", "b c", "c d", "d e", "a b c"];
    sets.into_iter().map(|keys| wait_node(keys, down_count, mutant)).collect::<BTreeSet<_>>().len()
}

#[test]
fn calls_wait_on_one_node_when_no_node_is_to_spare() {
    assert_eq!(count_wait_nodes(1, None), 1);
    assert_eq!(count_wait_nodes(1, Some(Mutant::KeysWaitApart)), 2);
    assert!(count_wait_nodes(0, None) > 1, "with a spare node, the first key of each call decides");
}

/// The number of nodes on which calls wait, if two nodes refuse them and node 0 does not answer.
/// `has_abstained` says whether node 0 answered an earlier call of the client with ABSTAIN.
fn count_wait_nodes_without_an_answer_of_node_0(has_abstained: bool) -> usize {
    let abstains = || Response::Failed(NodeError::Abstains { reason: "start".into() });
    let wait_node_of = |key: usize| {
        let mut world = World::new(1, None);
        if has_abstained {
            let sent = world.begin(false);
            world.answer_each(&sent, |node| if node == 0 { abstains() } else { Response::No });
        }
        let keys = Keys::from_iter([format!("k {key}")]);
        world.call = Acquire::new(Arc::new(spec(keys, 1000)), None, &world.ctx());
        let mut sent = world.begin(false);
        let refused = requests(&sent).into_iter().filter(|(id, _)| id.node != 0);
        for (id, _) in refused.collect::<Vec<_>>() {
            sent.extend(world.answer(id, &Response::No));
        }
        world.fire_timers_until_wait(sent).node
    };
    (0..20).map(wait_node_of).collect::<BTreeSet<_>>().len()
}

#[test]
fn calls_remember_which_nodes_abstain() {
    assert_eq!(count_wait_nodes_without_an_answer_of_node_0(true), 1);
    assert_eq!(count_wait_nodes_without_an_answer_of_node_0(false), 2);
}

/// Whether a call waits on the deciding node although that node granted and the others refused.
fn waits_on_a_node_that_granted(mutant: Option<Mutant>) -> bool {
    let first = World::new(1, None).wait().node;
    break_rule(mutant);
    let mut world = World::new(1, None);
    let mut sent = world.begin(false);
    while wait_of(&sent).is_none() {
        let next =
            world.answer_each(&sent, |node| if node == first { granted() } else { Response::No });
        sent = if next.is_empty() { world.fire_timer() } else { next };
    }
    break_rule(None);
    wait_of(&sent).unwrap().node == first
}

#[test]
fn call_waits_on_a_node_that_refused() {
    assert!(!waits_on_a_node_that_granted(None));
    assert!(waits_on_a_node_that_granted(Some(Mutant::WaitsWhereNotRefused)));
}

/// How many other nodes a waiter inspects in turn.
fn count_inspected(mutant: Option<Mutant>) -> usize {
    break_rule(mutant);
    let mut world = World::new(1, None);
    world.wait();
    let mut inspected = BTreeSet::new();
    for _ in 0..8 {
        for (id, command) in requests(&world.fire_timer()) {
            if command == Command::Inspect {
                inspected.insert(id.node);
            }
            world.answer(id, &Response::Yes);
        }
    }
    break_rule(None);
    inspected.len()
}

#[test]
fn waiter_inspects_the_other_nodes_in_turn() {
    assert_eq!(count_inspected(None), 2);
    assert_eq!(count_inspected(Some(Mutant::InspectsOneNode)), 1);
}

/// Whether a call acquires the lock although the first node in the order refuses it, because of a
/// lease that no client releases. That node was down at first, so the call waits for a wait
/// connection on another node.
fn bypasses_the_first_node(mutant: Option<Mutant>) -> bool {
    break_rule(mutant);
    let first = World::new(1, None).wait().node;
    let mut world = World::new(1, None);
    let answer = |world: &mut World, sent: &[Action], of_first: &Response, other: &Response| {
        let answers = requests(sent).into_iter().flat_map(|(id, command)| match command {
            Command::Inspect => world.answer(id, &Response::No),
            _ => world.answer(id, if id.node == first { of_first } else { other }),
        });
        answers.collect::<Vec<_>>()
    };
    // The first node is down, and another client holds the lock on the other nodes.
    let sent = world.begin(false);
    let next = answer(&mut world, &sent, &down(), &Response::No);
    assert_ne!(world.fire_timers_until_wait(next).node, first);
    // No wait connection becomes available. The first node is up again and refuses. On the others
    // the lock has ended.
    let acquired = (0..8).any(|_| {
        let mut sent = world.fire_timer();
        while !sent.is_empty() && !is_acquired(&sent) {
            sent = answer(&mut world, &sent, &Response::No, &granted());
        }
        is_acquired(&sent)
    });
    break_rule(None);
    acquired
}

#[test]
fn call_that_waits_for_a_connection_to_one_node_bypasses_another_that_refuses() {
    assert!(bypasses_the_first_node(None));
    assert!(!bypasses_the_first_node(Some(Mutant::BypassesOnlyItsNode)));
}

/// Whether a waiter leaves a node that has restarted, although the connection of its WAIT still
/// seems to be open.
fn leaves_after_a_restart(mutant: Option<Mutant>) -> bool {
    break_rule(mutant);
    let mut world = World::new(1, None);
    world.wait();
    world.client.topology = nodes_after_restarts(3, 1);
    let leaves = releases(&world.fire_timer());
    break_rule(None);
    leaves
}

#[test]
fn waiter_leaves_a_node_that_has_restarted() {
    assert!(leaves_after_a_restart(None));
    assert!(!leaves_after_a_restart(Some(Mutant::WaitsPastRestart)));
}

/// The reason why a call fails after only node 0 granted its first attempt. Node 0 loses its
/// connection before the release, and is soon connected again. From then on, nodes 0 and 1 refuse,
/// and node 2 fails.
fn reason_after_a_grant_by_node_0(wait: Duration) -> Reason {
    let mut world = World::new(1, Some(wait));
    let connected = world.client.topology.clone();
    let mut actions = Vec::new();
    let mut sent = requests(&world.begin(false));
    sent.sort_unstable_by_key(|(id, _)| id.node);
    for (id, _) in sent {
        let response = if id.node == 0 { granted() } else { Response::No };
        actions.extend(world.answer(id, &response));
        world.client.disconnect(0, NodeError::Down { reason: "connection reset".into() });
    }
    assert!(releases(&actions));
    world.client.topology = connected;
    loop {
        if let Some(wait) = wait_of(&actions) {
            world.drive(|call, ctx| call.handle_wait_connection(wait, ctx)).0.unwrap();
        }
        actions = world.fire_timer();
        let next =
            world.answer_each(&actions, |node| if node == 2 { down() } else { Response::No });
        actions.extend(next);
        let failed = actions.iter().find_map(|action| match action {
            Action::Done(outcome) => match &**outcome {
                Outcome::Failed(failure) => Some(failure.reason),
                Outcome::Acquired(_) => panic!("acquired"),
            },
            _ => None,
        });
        if let Some(reason) = failed {
            return reason;
        }
    }
}

#[test]
fn own_grant_explains_a_refusal_until_its_lease_has_ended() {
    assert_eq!(reason_after_a_grant_by_node_0(TTL / 2), Reason::NoQuorum);
    assert_eq!(reason_after_a_grant_by_node_0(TTL * 3), Reason::Held);
}

fn is_probe((_, command): &(RequestId, Command)) -> bool {
    matches!(command, Command::AcquireAny { .. })
}

#[test]
fn call_without_time_for_a_wait_asks_for_the_other_slots() {
    let mut world = World::new(4, Some(Duration::from_millis(1)));
    let sent = world.begin(false);
    let actions = world.answer_each(&sent, |_| Response::No);
    let wait = wait_of(&actions).unwrap();
    let (request, _) = world.drive(|call, ctx| call.handle_wait_connection(wait, ctx));
    assert_eq!(request, None, "there is no time for a WAIT");
    for _ in 0..10 {
        let sent = world.fire_timer();
        let next = world.answer_each(&sent, |_| Response::No);
        let has_asked = requests(&sent).iter().chain(&requests(&next)).any(is_probe);
        if has_asked {
            return;
        }
    }
    panic!("the call asked for no other slot");
}

#[test]
fn request_for_the_other_slots_gives_a_silent_node_no_more_time() {
    let mut world = World::new(4, Some(Duration::ZERO));
    let sent = requests(&world.begin(false));
    let due = world.call.poll_timeout().unwrap();
    let mut probe = Vec::new();
    world.at += Duration::from_millis(10);
    // Two refusals leave no majority, whichever node decides.
    for (id, _) in &sent[..2] {
        probe.extend(requests(&world.answer(*id, &Response::No)));
    }
    if !probe.iter().any(is_probe) {
        world.at += limits::settle(Duration::from_millis(1));
        probe.extend(requests(&world.fire_timer()));
    }
    assert!(probe.iter().any(is_probe), "{probe:?}");
    assert_eq!(world.call.poll_timeout(), Some(due), "the third node's time is not extended");
}
