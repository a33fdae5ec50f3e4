use std::time::Duration;

use quorlock_core::Fence;
use quorlock_core::quorum::{
    Acquisition, Ended, Extension, FenceAnswer, Heard, Hints, Lifetime, Majority, Moment, Move, Pursuit,
    Step, Vote, order,
};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::server::{Answer, Caller, KEY, Reply, Request, TTL, wall_us};
use super::{Rule, Scene};

/// How long a node may take.
const NODE_LIMIT_US: u64 = 50_000;
/// What a client has measured a round trip to be.
const ROUND_TRIP: Duration = Duration::from_micros(450);
/// Longer than any scene lasts.
const WAIT_MS: u64 = 3_600_000;
/// How long one who does not stay queued waits at once.
const SHORT_WAIT_MS: u64 = 1000;

/// One client: it goes after the lock, holds it, gives it back, and wants it again. It does as the client library does, except
/// that it never looks whether the node that it waits on is still there: here, none goes away.
#[derive(Debug)]
pub(super) struct Client {
    number: u32,
    scene: Scene,
    majority: Majority,
    /// Which nodes it can reach, by index.
    reaches: Vec<bool>,
    /// Of the nodes, those that it cannot reach last.
    order: Vec<usize>,
    /// Until when each node is one that was late.
    late_until_us: Vec<u64>,
    /// To which nodes it has sent an ACQUIRE in this move.
    asked: Vec<bool>,
    contended: bool,
    /// Whether it still knows at the next lock that the key was contended.
    remembers: bool,
    hints: Hints,
    pursuit: Pursuit,
    /// Names its moves: what belongs to an earlier one comes too late.
    a_move: u32,
    phase: Phase,
    rng: StdRng,
}

/// What a client is at.
#[derive(Debug)]
enum Phase {
    /// Does not want the lock.
    Resting,
    Attempting(Box<Attempt>),
    /// Stands in the queue of a node.
    Waiting {
        node: usize,
        sent_us: u64,
    },
    Pausing,
    /// Hears what a node says to an attempt that was lost.
    Hearing {
        node: usize,
        heard: Vec<Heard>,
        waited_on: Option<usize>,
        until_us: u64,
    },
    Holding(Box<Hold>),
}

/// An attempt on its way.
#[derive(Debug)]
struct Attempt {
    core: Acquisition,
    proposed: Fence,
    limit_us: u64,
    tells: bool,
    /// The node on which it was waited for.
    waited_on: Option<usize>,
}

/// A lock that a client has.
#[derive(Debug)]
struct Hold {
    fence: Fence,
    /// Which nodes have granted it.
    granted: Vec<usize>,
    /// Nodes that were not asked so far.
    reserve: Vec<usize>,
    /// What takes it there.
    extension: Option<Extension>,
}

/// What a client does, for the scene to carry out.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effect {
    /// It begins to want the lock.
    Wants,
    /// It sends a command to a node.
    Ask { node: usize, from: Caller, request: Request },
    /// It wants to be called then.
    Call { at_us: u64, alarm: Alarm },
    /// It has the lock.
    Has,
    /// It has it no more.
    Gives,
}

/// Why a client is called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alarm {
    a_move: u32,
    cause: Cause,
}

#[derive(Clone, Copy, Debug)]
enum Cause {
    /// It has rested, paused, or held the lock for long enough.
    Enough,
    /// This node is to be asked again.
    AskAgain(usize),
    /// Those that were asked first take long.
    Late,
    /// The lock has been held for a while.
    Widen,
    /// The nodes' time is up.
    Limit,
}

impl Client {
    pub(super) fn new(number: u32, scene: &Scene, identities: &[String], cut_from: Option<usize>) -> Self {
        let reaches: Vec<_> = (0..scene.nodes).map(|node| Some(node) != cut_from).collect();
        let mut order = order(KEY, identities.iter().map(String::as_bytes));
        order.sort_by_key(|&node| !reaches[node]);
        Self {
            number,
            scene: scene.clone(),
            majority: Majority::of(scene.nodes).expect("a scene has nodes"),
            reaches,
            pursuit: Pursuit::new(order.clone(), ROUND_TRIP),
            order,
            late_until_us: vec![0; scene.nodes],
            asked: vec![false; scene.nodes],
            contended: false,
            remembers: number as usize >= scene.newcomers,
            hints: Hints::default(),
            a_move: 0,
            phase: Phase::Resting,
            rng: StdRng::seed_from_u64(scene.seed ^ (u64::from(number) + 1) << 32),
        }
    }

    /// Comes at some time.
    pub(super) fn begin(&mut self) -> Effect {
        let at_us = self.rng.random_range(0..self.scene.begin_within_us);
        self.call(at_us, Cause::Enough)
    }

    pub(super) fn called(&mut self, now_us: u64, alarm: Alarm) -> Vec<Effect> {
        let mut effects = Vec::new();
        if alarm.a_move != self.a_move {
            return effects;
        }
        match (&mut self.phase, alarm.cause) {
            (Phase::Resting, _) => {
                effects.push(Effect::Wants);
                self.pursuit = Pursuit::new(self.order.clone(), ROUND_TRIP);
                let first = self.pursuit.first(self.contended && self.remembers);
                self.go(first, now_us, &mut effects);
            }
            (Phase::Pausing, _) => {
                let next = self.pursuit.resume();
                self.go(next, now_us, &mut effects);
            }
            (Phase::Holding(_), Cause::Enough) => {
                effects.push(Effect::Gives);
                self.release(&mut effects);
                self.rest(now_us, &mut effects);
            }
            (Phase::Holding(hold), Cause::Widen) if !hold.reserve.is_empty() => {
                let from = Caller { client: self.number, a_move: self.a_move };
                let mut extension = Extension::new(self.majority, moment(now_us), TTL)
                    .known_to_hold(hold.granted.iter().copied());
                for &node in &hold.reserve {
                    extension.answer(node, Some(false), moment(now_us));
                }
                for node in (0..self.scene.nodes).filter(|&node| self.asked[node]) {
                    effects.push(Effect::Ask { node, from, request: Request::Tell(hold.fence) });
                }
                hold.extension = Some(extension);
            }
            (Phase::Attempting(attempt), Cause::AskAgain(node)) => {
                let request = Request::Acquire(attempt.proposed);
                self.ask(node, request, &mut effects);
            }
            (Phase::Attempting(attempt), Cause::Late) if !attempt.core.reserve().is_empty() => {
                let core = &mut attempt.core;
                for node in (0..self.scene.nodes).filter(|node| !core.reserve().contains(node)) {
                    if core.heard_of(node) == Heard::Nothing {
                        self.late_until_us[node] = now_us + us(Pursuit::LATE_FOR);
                    }
                }
                core.hurry();
                self.proceed(now_us, &mut effects);
            }
            (Phase::Attempting(attempt), Cause::Limit) if now_us >= attempt.limit_us => {
                attempt.core.time_is_up(moment(now_us));
                self.proceed(now_us, &mut effects);
            }
            (&mut Phase::Hearing { until_us, .. }, Cause::Limit) if now_us >= until_us => {
                self.hear_at_last(Heard::Silence, now_us, &mut effects);
            }
            (Phase::Holding(_) | Phase::Attempting(_) | Phase::Waiting { .. } | Phase::Hearing { .. }, _) => {
            }
        }
        effects
    }

    pub(super) fn hear(&mut self, now_us: u64, node: usize, reply: Reply) -> Vec<Effect> {
        let mut effects = Vec::new();
        if reply.to != self.caller() {
            return effects;
        }
        match &mut self.phase {
            Phase::Waiting { node, sent_us } => {
                let (node, sent_us) = (*node, *sent_us);
                self.waited(node, sent_us, reply.is, now_us, &mut effects);
            }
            Phase::Attempting(attempt) if reply.told => {
                let answer = match reply.is {
                    Answer::Held { fence, .. } => FenceAnswer::Stored(fence),
                    Answer::BadFence => FenceAnswer::Unacceptable,
                    Answer::NotHeld => FenceAnswer::Failed,
                };
                attempt.core.fence_answer(node, answer, moment(now_us));
                self.proceed(now_us, &mut effects);
            }
            Phase::Attempting(attempt) => {
                let vote = match reply.is {
                    Answer::Held { fence, .. } => Vote::Granted(fence),
                    Answer::NotHeld => Vote::Refused,
                    Answer::BadFence => Vote::Silent,
                };
                attempt.core.vote(node, vote, moment(now_us));
                self.proceed(now_us, &mut effects);
            }
            Phase::Hearing { node: wanted, .. } if *wanted == node && !reply.told => {
                let held = matches!(reply.is, Answer::Held { .. });
                let heard = if held { Heard::Grant } else { Heard::Refusal };
                self.hear_at_last(heard, now_us, &mut effects);
            }
            Phase::Holding(hold) if reply.told => {
                let (extends, fence) = (matches!(reply.is, Answer::Held { .. }), hold.fence);
                let Some(extension) = &mut hold.extension else { return effects };
                extension.answer(node, Some(extends), moment(now_us));
                let missed: Vec<_> = std::iter::from_fn(|| extension.next_repair()).collect();
                for node in missed {
                    if self.reaches[node] {
                        self.ask(node, Request::Acquire(fence), &mut effects);
                    }
                }
            }
            // It got past those who wait there.
            Phase::Holding(_) if node == self.order[0] && matches!(reply.is, Answer::NotHeld) => {
                self.contended = true;
            }
            // A straggler.
            Phase::Resting | Phase::Pausing | Phase::Holding(_) | Phase::Hearing { .. } => {}
        }
        effects
    }

    fn caller(&self) -> Caller {
        Caller { client: self.number, a_move: self.a_move }
    }

    fn call(&self, at_us: u64, cause: Cause) -> Effect {
        Effect::Call { at_us, alarm: Alarm { a_move: self.a_move, cause } }
    }

    fn rest(&mut self, now_us: u64, effects: &mut Vec<Effect>) {
        self.begin_move();
        self.phase = Phase::Resting;
        let until_us = now_us + self.rng.random_range(self.scene.rest_us.clone());
        effects.push(self.call(until_us, Cause::Enough));
    }

    fn begin_move(&mut self) {
        self.a_move += 1;
        self.asked.fill(false);
    }

    /// Sends an ACQUIRE, with or without WAIT.
    fn ask(&mut self, node: usize, request: Request, effects: &mut Vec<Effect>) {
        self.asked[node] = true;
        effects.push(Effect::Ask { node, from: self.caller(), request });
    }

    fn release(&self, effects: &mut Vec<Effect>) {
        let from = self.caller();
        let nodes = (0..self.scene.nodes).filter(|&node| self.asked[node]);
        effects.extend(nodes.map(|node| Effect::Ask { node, from, request: Request::Release }));
    }

    /// Makes the next move.
    fn go(&mut self, next: Move, now_us: u64, effects: &mut Vec<Effect>) {
        self.begin_move();
        match next {
            Move::AskAll => {
                // Who yields to nobody wins with any majority.
                let core = Acquisition::new(self.majority, moment(now_us), TTL, TTL.duration() / 2);
                let core = if self.scene.leaves_out(Rule::NewcomersYield) {
                    core
                } else {
                    core.that_yields_to(self.pursuit.yields_to(next))
                };
                let proposed = self.hints.propose(wall_us(now_us));
                self.attempt(core, proposed, None, now_us, effects);
            }
            Move::WaitOn { node } => {
                // The first of the order lets in whoever comes, if the holder never reached it.
                let node = if self.scene.leaves_out(Rule::WaitWhereRefused) { self.order[0] } else { node };
                self.wait(node, now_us, effects);
            }
            Move::Pause { at_most } => {
                self.phase = Phase::Pausing;
                let at_most_us = us(at_most);
                let pause_us = self.rng.random_range(at_most_us / 2..=at_most_us);
                effects.push(self.call(now_us + pause_us, Cause::Enough));
            }
        }
    }

    fn wait(&mut self, node: usize, now_us: u64, effects: &mut Vec<Effect>) {
        self.contended = true;
        if !self.reaches[node] {
            let next = self.pursuit.next(Ended::NodeGone);
            return self.go(next, now_us, effects);
        }
        let wait_ms = if self.scene.leaves_out(Rule::StayQueued) { SHORT_WAIT_MS } else { WAIT_MS };
        let request = Request::Wait { fence: self.hints.propose(wall_us(now_us)), wait_ms };
        self.phase = Phase::Waiting { node, sent_us: now_us };
        self.ask(node, request, effects);
    }

    /// What the wait came to.
    fn waited(&mut self, node: usize, sent_us: u64, answer: Answer, now_us: u64, effects: &mut Vec<Effect>) {
        let Answer::Held { fence, waited_us } = answer else {
            // Who enters again comes last.
            let next = if self.scene.leaves_out(Rule::StayQueued) {
                Move::WaitOn { node }
            } else {
                self.pursuit.next(Ended::NotWaited)
            };
            return self.go(next, now_us, effects);
        };
        self.contended = waited_us > 0;
        let lifetime = Lifetime::after_wait(moment(sent_us), Duration::from_micros(waited_us), TTL);
        let core = Acquisition::after_wait(self.majority, node, fence, lifetime, TTL.duration() / 2);
        let core = core.that_yields_to(self.pursuit.yields_to(Move::WaitOn { node }));
        let core = if self.scene.leaves_out(Rule::EarlierNodesFirst) {
            core
        } else {
            core.that_awaits(&self.pursuit.awaits(node))
        };
        let others = if self.scene.leaves_out(Rule::AskNoMoreThanItTakes) {
            (0..self.scene.nodes).filter(|&other| other != node).collect()
        } else {
            let node_limit = Duration::from_micros(NODE_LIMIT_US);
            self.pursuit.asks(node, self.majority, node_limit, |other| now_us < self.late_until_us[other])
        };
        effects.push(self.call(now_us + us(self.pursuit.late_after()), Cause::Late));
        self.attempt(core.that_asks(&others), fence, Some(node), now_us, effects);
    }

    /// Asks all nodes, or, if one has granted already, those that the core wants to be asked.
    fn attempt(
        &mut self,
        mut core: Acquisition,
        proposed: Fence,
        granted: Option<usize>,
        now_us: u64,
        effects: &mut Vec<Effect>,
    ) {
        core.review(moment(now_us));
        if granted.is_none() {
            for node in 0..self.scene.nodes {
                if self.reaches[node] {
                    self.ask(node, Request::Acquire(proposed), effects);
                } else {
                    core.vote(node, Vote::Silent, moment(now_us));
                }
            }
        }
        let limit_us = now_us + NODE_LIMIT_US;
        effects.push(self.call(limit_us, Cause::Limit));
        let attempt = Attempt { core, proposed, limit_us, tells: false, waited_on: granted };
        self.phase = Phase::Attempting(Box::new(attempt));
        self.proceed(now_us, effects);
    }

    /// Carries out what the attempt has come to.
    fn proceed(&mut self, now_us: u64, effects: &mut Vec<Effect>) {
        let from = self.caller();
        while let Phase::Attempting(attempt) = &mut self.phase {
            let Some(step) = attempt.core.poll() else { return };
            match step {
                Step::Ask { node } if self.reaches[node] => {
                    let request = Request::Acquire(attempt.proposed);
                    self.ask(node, request, effects);
                }
                Step::Ask { node } => attempt.core.vote(node, Vote::Silent, moment(now_us)),
                Step::TellFence { node, fence } => {
                    effects.push(Effect::Ask { node, from, request: Request::Tell(fence) });
                    if !std::mem::replace(&mut attempt.tells, true) {
                        attempt.limit_us = now_us + NODE_LIMIT_US;
                        let limit_us = attempt.limit_us;
                        effects.push(self.call(limit_us, Cause::Limit));
                    }
                }
                Step::AskAgain { node, pause } => {
                    effects.push(self.call(now_us + us(pause), Cause::AskAgain(node)));
                }
                Step::Won(win) => {
                    self.hints.learn(attempt.proposed, win.fence);
                    let core = &attempt.core;
                    let nodes = 0..self.scene.nodes;
                    self.phase = Phase::Holding(Box::new(Hold {
                        fence: win.fence,
                        granted: nodes.filter(|&node| core.heard_of(node) == Heard::Grant).collect(),
                        reserve: core.reserve().to_vec(),
                        extension: None,
                    }));
                    effects.push(Effect::Has);
                    effects.push(self.call(now_us + us(Acquisition::WIDEN_AFTER), Cause::Widen));
                    let hold_us = self.rng.random_range(self.scene.hold_us.clone());
                    effects.push(self.call(now_us + hold_us, Cause::Enough));
                }
                Step::Lost(_) => {
                    let core = &attempt.core;
                    let heard = (0..self.scene.nodes).map(|node| core.heard_of(node)).collect();
                    let (waited_on, until_us) = (attempt.waited_on, attempt.limit_us);
                    self.release(effects);
                    self.lost(heard, waited_on, until_us, now_us, effects);
                    return;
                }
            }
        }
    }

    /// Goes on from an attempt in which so much was heard, and until when more can be.
    fn lost(
        &mut self,
        mut heard: Vec<Heard>,
        waited_on: Option<usize>,
        until_us: u64,
        now_us: u64,
        effects: &mut Vec<Effect>,
    ) {
        let to_hear = self.pursuit.to_hear(&heard).filter(|_| !self.scene.leaves_out(Rule::HearTheQueueNode));
        if let Some(node) = to_hear {
            if now_us < until_us {
                effects.push(self.call(until_us, Cause::Limit));
                self.phase = Phase::Hearing { node, heard, waited_on, until_us };
                return;
            }
            heard[node] = Heard::Silence;
            return self.lost(heard, waited_on, until_us, now_us, effects);
        }
        let next = self.pursuit.next(match waited_on {
            None => Ended::Lost { heard: &heard },
            Some(node) => Ended::LostAfterWait { node, heard: &heard },
        });
        self.go(next, now_us, effects);
    }

    fn hear_at_last(&mut self, what: Heard, now_us: u64, effects: &mut Vec<Effect>) {
        if let Phase::Hearing { node, heard, waited_on, until_us } = &mut self.phase {
            let (mut heard, waited_on, until_us) = (std::mem::take(heard), *waited_on, *until_us);
            heard[*node] = what;
            self.lost(heard, waited_on, until_us, now_us, effects);
        }
    }
}

fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// All clocks of a client say the same.
fn moment(now_us: u64) -> Moment {
    let now = Duration::from_micros(now_us);
    Moment { boot: now, raw: now }
}
