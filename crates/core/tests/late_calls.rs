//! A call that the driver runs late still asks the nodes, and reports what they answered.

use std::sync::Arc;
use std::time::Duration;

use crate::support::client::{Client, spec};
use quorlock_core::Fence;
use quorlock_core::client::{Acquire, Action, Outcome, RequestId, Response, limits};
use quorlock_core::quorum::Moment;

const WALL_US: u64 = 1_800_000_000_000_000;
const WAIT: Duration = Duration::from_millis(500);

/// Three nodes, and a call that queues behind another call of its program.
struct World {
    client: Client,
    call: Acquire,
}

impl World {
    fn new() -> Self {
        let mut client = Client::new(3);
        let spec = Arc::new(spec([b"k"].into_iter().collect(), 10_000));
        let call = Acquire::new(spec, Some(WAIT), &client.ctx(after(Duration::ZERO), WALL_US));
        Self { client, call }
    }

    /// Runs the call when `elapsed` has passed since it was made, after the pause in which a late
    /// call reads answers. Returns the actions that follow.
    fn run_at(&mut self, elapsed: Duration) -> Vec<Action> {
        for at in [elapsed.saturating_sub(limits::LATE_READ_PAUSE), elapsed] {
            let mut ctx = self.client.ctx(after(at), WALL_US);
            self.call.handle_timeout(&mut ctx);
        }
        self.actions()
    }

    fn answer_at(&mut self, elapsed: Duration, id: RequestId, response: &Response) -> Vec<Action> {
        let mut ctx = self.client.ctx(after(elapsed), WALL_US);
        self.call.handle_response(id, response, &mut ctx);
        self.actions()
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.call.poll()).collect()
    }
}

fn after(elapsed: Duration) -> Moment {
    Moment::default().plus(Duration::from_secs(1) + elapsed)
}

fn requests(actions: &[Action]) -> Vec<RequestId> {
    let id = |action: &Action| match action {
        Action::Send { id, .. } => Some(*id),
        _ => None,
    };
    actions.iter().filter_map(id).collect()
}

#[test]
fn call_that_is_run_late_leaves_the_nodes_time_to_answer() {
    let mut world = World::new();
    let late = (WAIT + limits::CALL_GRACE).checked_sub(Duration::from_millis(1)).unwrap();
    let asked = requests(&world.run_at(late));
    assert_eq!(asked.len(), 3);
    // The call should have ended by now, but the nodes have had only 2 ms.
    assert!(world.run_at(late + Duration::from_millis(2)).is_empty());
    let granted = Response::Fence(Fence::new(7).unwrap());
    let answered = late + Duration::from_millis(3);
    assert!(world.answer_at(answered, asked[0], &granted).is_empty());
    let actions = world.answer_at(answered, asked[1], &granted);
    let outcome = actions.into_iter().find_map(|action| match action {
        Action::Done(outcome) => Some(outcome),
        _ => None,
    });
    assert!(matches!(outcome, Some(Outcome::Acquired(_))), "{outcome:?}");
}

/// Checks that a call that first runs at `late` asks the nodes, and ends within `CALL_GRACE` of it.
#[track_caller]
fn assert_asks_and_ends(late: Duration) {
    let mut world = World::new();
    assert_eq!(requests(&world.run_at(late)).len(), 3);
    let actions = world.run_at(late + limits::CALL_GRACE);
    assert!(actions.iter().any(|action| matches!(action, Action::Done(_))), "{actions:?}");
}

#[test]
fn call_that_is_run_after_its_end_asks_the_nodes_first() {
    assert_asks_and_ends(WAIT + limits::CALL_GRACE * 10);
}

#[test]
fn late_call_ends_within_its_grace_when_the_nodes_are_silent() {
    assert_asks_and_ends(WAIT + Duration::from_millis(30));
}

#[test]
fn call_that_is_run_in_time_ends_in_time() {
    assert_asks_and_ends(WAIT);
}

#[test]
fn last_attempt_that_was_paused_reads_the_grants() {
    let mut world = World::new();
    let asked = requests(&world.run_at(WAIT));
    assert_eq!(asked.len(), 3);
    // The call should have ended 100 ms ago.
    let late = WAIT + limits::CALL_GRACE + Duration::from_millis(100);
    for _ in 0..3 {
        world.call.handle_timeout(&mut world.client.ctx(after(late), WALL_US));
    }
    assert!(world.actions().is_empty(), "the answers have not been read");
    assert_eq!(
        after(late).until(world.call.poll_timeout().unwrap()),
        limits::LATE_READ_PAUSE,
        "the call neither spins nor gives up"
    );
    let granted = Response::Fence(Fence::new(7).unwrap());
    let answered = late + Duration::from_millis(1);
    assert!(world.answer_at(answered, asked[0], &granted).is_empty());
    let actions = world.answer_at(answered, asked[1], &granted);
    let is_acquired = |action: &Action| matches!(action, Action::Done(outcome) if matches!(outcome, Outcome::Acquired(_)));
    assert!(actions.iter().any(is_acquired), "{actions:?}");
}
