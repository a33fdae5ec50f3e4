//! What the machines of a client share: local queues, requests by number, and WAITs that outlive
//! their calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::scripted::{Client, LONG, granted, held, spec, start};
use quorlock_core::NodeError;
use quorlock_core::client::{
    Command, Context, Failure, Keys, LocalQueue, Mode, Request, Response, Shard, ShardAction, Spec,
};
use quorlock_core::quorum::Moment;

/// A shard whose requests the test answers.
struct Driven {
    client: Client,
    shard: Shard,
    now: Moment,
    /// By the number of the request: the machine, the node and the command.
    sent: BTreeMap<u64, (u64, usize, Request)>,
    opening: Vec<u64>,
    timers: BTreeMap<u64, Moment>,
    acquired: Vec<u64>,
    failed: Vec<(u64, Failure)>,
    over: Vec<u64>,
}

impl Driven {
    fn new() -> Self {
        Self {
            client: Client::new(3),
            shard: Shard::default(),
            now: start(),
            sent: BTreeMap::new(),
            opening: Vec::new(),
            timers: BTreeMap::new(),
            acquired: Vec::new(),
            failed: Vec::new(),
            over: Vec::new(),
        }
    }

    fn call(&mut self) -> u64 {
        self.call_within(Mode::Exclusive, LONG)
    }

    fn call_within(&mut self, mode: Mode, wait: Option<Duration>) -> u64 {
        let spec = spec(Keys::from_iter(["k"]), 1000);
        let spec = Spec { mode, min_validity: Duration::ZERO, ..spec };
        let ctx = &mut self.client.ctx(self.now);
        let call = self.shard.call(Arc::new(spec), wait, ctx);
        self.act();
        call
    }

    fn event<T>(&mut self, event: impl FnOnce(&mut Shard, &mut Context<'_>) -> T) -> T {
        let result = event(&mut self.shard, &mut self.client.ctx(self.now));
        self.act();
        result
    }

    fn act(&mut self) {
        while let Some(action) = self.shard.poll() {
            match action {
                ShardAction::Send { number, request: outgoing } => {
                    let (machine, id) = self.shard.asked(number).unwrap();
                    self.sent.insert(number, (machine, id.node, outgoing.request));
                }
                ShardAction::Wait { number, .. } => self.opening.push(number),
                ShardAction::StopWaiting(number) => self.opening.retain(|other| *other != number),
                ShardAction::Timer(machine, Some(at)) => drop(self.timers.insert(machine, at)),
                ShardAction::Timer(machine, None) => drop(self.timers.remove(&machine)),
                ShardAction::Ended { call, result: Ok(_) } => self.acquired.push(call),
                ShardAction::Ended { call, result: Err(failure) } => {
                    self.failed.push((call, failure));
                }
                ShardAction::ReleaseOver(release) => {
                    self.shard.take_release(release).unwrap();
                    self.over.push(release);
                }
                ShardAction::Suspect(_)
                | ShardAction::Extended { .. }
                | ShardAction::Repaired(_)
                | ShardAction::Releases { .. }
                | ShardAction::Released(_) => {}
            }
        }
    }

    /// Fires all timers that are due now.
    fn fire(&mut self) {
        let now = self.now;
        let due = self.timers.iter().filter(|(_, at)| now.has_reached(**at));
        let due: Vec<u64> = due.map(|(machine, _)| *machine).collect();
        for machine in due {
            self.timers.remove(&machine);
            self.event(|shard, ctx| shard.handle_timeout(machine, ctx));
        }
    }

    /// Answers all requests that were sent so far.
    fn answer_all(&mut self, answer: impl Fn(&Request) -> Response) {
        for (number, (_, _, request)) in std::mem::take(&mut self.sent) {
            let response = answer(&request);
            self.event(|shard, ctx| shard.handle_response(number, &response, ctx));
        }
    }

    fn wait_connections(&mut self) {
        for number in std::mem::take(&mut self.opening) {
            let wait = self.event(|shard, ctx| shard.handle_wait_connection(number, ctx));
            if let Some((request, _)) = wait {
                self.sent.insert(number, (0, 0, request));
            }
        }
    }
}

fn grants(request: &Request) -> Response {
    match request.command {
        Command::Release => Response::Yes,
        _ => granted(),
    }
}

#[test]
fn next_call_of_the_queue_begins_with_its_own_event() {
    let mut driven = Driven::new();
    let (first, second) = (driven.call(), driven.call());
    driven.answer_all(grants);
    assert_eq!(driven.acquired, [first]);
    assert!(driven.sent.is_empty(), "the second call waits for an event");
    driven.fire();
    assert!(driven.sent.values().all(|(machine, ..)| *machine == second));
    assert_eq!(driven.sent.len(), 3);
}

#[test]
fn calls_that_are_dropped_together_ask_no_node() {
    let mut driven = Driven::new();
    let calls: Vec<u64> = (0..100).map(|_| driven.call()).collect();
    driven.answer_all(|_| held(500, true));
    driven.opening.clear();
    for call in calls {
        driven.event(|shard, ctx| shard.cancel(call, ctx));
    }
    // Only the call at the head had asked, and is released.
    assert_eq!(driven.sent.len(), 3);
    assert!(driven.sent.values().all(|(_, _, request)| request.command == Command::Release));
    driven.answer_all(|_| Response::No);
    assert_eq!(driven.over.len(), 1);
    assert!(driven.shard.is_idle(), "{:?}", driven.shard);
}

#[test]
fn many_queued_calls_end_one_after_another_when_all_nodes_are_refused() {
    let mut driven = Driven::new();
    let calls: Vec<u64> = (0..5000).map(|_| driven.call()).collect();
    let denied = NodeError::Denied { reason: "no permissions".into() };
    driven.answer_all(|_| Response::Failed(denied.clone()));
    (0..3).for_each(|node| driven.client.disconnect(node, denied.clone()));
    while driven.failed.len() < calls.len() {
        let failed = driven.failed.len();
        driven.fire();
        assert!(driven.failed.len() > failed);
    }
    assert!(driven.failed.iter().map(|(call, _)| call).eq(&calls));
}

#[test]
fn call_whose_turn_does_not_come_asks_and_lets_the_calls_behind_it_move_up() {
    let mut driven = Driven::new();
    driven.call_within(Mode::Shared, LONG);
    let writer = driven.call_within(Mode::Exclusive, Some(Duration::from_secs(1)));
    let reader = driven.call_within(Mode::Shared, LONG);
    driven.answer_all(|_| held(500, true));
    driven.now = driven.timers[&writer];
    driven.sent.clear();
    driven.event(|shard, ctx| shard.handle_timeout(writer, ctx));
    assert!(driven.sent.values().all(|(machine, ..)| *machine == writer));
    assert_eq!(driven.sent.len(), 3);
    driven.sent.clear();
    driven.event(|shard, ctx| shard.handle_timeout(reader, ctx));
    assert_eq!(driven.sent.len(), 3, "the reader shares the turn of the first one");
}

#[test]
fn release_takes_over_the_wait_of_a_cancelled_call() {
    let mut driven = Driven::new();
    let call = driven.call();
    driven.answer_all(|_| held(500, true));
    driven.wait_connections();
    let waits: Vec<u64> = driven.sent.keys().copied().collect();
    assert_eq!(waits.len(), 3);
    driven.event(|shard, ctx| shard.cancel(call, ctx));
    let releases = driven.sent.split_off(&(waits[2] + 1));
    assert_eq!(releases.len(), 3);
    for number in releases.into_keys() {
        driven.event(|shard, ctx| shard.handle_response(number, &Response::No, ctx));
    }
    assert!(driven.over.is_empty(), "the WAITs may still be granted");
    // One of them is: it is released once more.
    let granted = granted();
    driven.event(|shard, ctx| shard.handle_response(waits[0], &granted, ctx));
    for &number in &waits[1..] {
        driven.event(|shard, ctx| shard.handle_response(number, &Response::No, ctx));
    }
    let (number, (.., request)) = driven.sent.pop_last().unwrap();
    assert_eq!(request.command, Command::Release);
    driven.event(|shard, ctx| shard.handle_response(number, &Response::Yes, ctx));
    assert_eq!(driven.over.len(), 1);
    assert!(driven.shard.is_idle(), "{:?}", driven.shard);
}

#[test]
fn sharers_at_the_head_of_a_queue_have_their_turn_together() {
    let mut queue = LocalQueue::default();
    assert!(queue.enter(1, Mode::Shared));
    assert!(queue.enter(2, Mode::Shared));
    assert!(!queue.enter(3, Mode::Exclusive));
    assert!(!queue.enter(4, Mode::Shared));
    assert!(!queue.enter(5, Mode::Shared));
    assert!(!queue.enter(6, Mode::Exclusive));
    assert!(queue.leave(1).is_empty(), "another caller still shares the turn");
    assert_eq!(queue.leave(2)[..], [3], "readers that arrived later wait");
    assert_eq!(queue.leave(3)[..], [4, 5]);
    assert!(queue.leave(4).is_empty());
    assert_eq!(queue.leave(5)[..], [6]);
    assert!(queue.leave(6).is_empty());
    assert!(queue.is_idle());
}

#[test]
fn sharers_join_once_the_writer_before_them_gave_up() {
    let mut queue = LocalQueue::default();
    assert!(queue.enter(1, Mode::Shared));
    assert!(!queue.enter(2, Mode::Exclusive));
    assert!(!queue.enter(3, Mode::Shared));
    assert_eq!(queue.leave(2)[..], [3]);
    assert!(queue.leave(1).is_empty());
    assert!(queue.leave(3).is_empty());
    assert!(queue.is_idle());
}

#[test]
fn numbers_of_permits_are_compared_once_a_minute() {
    let (mut shard, keys) = (Shard::default(), Keys::from_iter(["k"]));
    let mut begins = |s| shard.begins_permit_check(&keys, start().plus(Duration::from_secs(s)));
    assert!(begins(0));
    assert!(!begins(59));
    assert!(begins(60));
}
