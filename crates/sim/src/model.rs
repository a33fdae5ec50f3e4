use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::node::memory_server::{Name, Server, Value};
use quorlock_core::node::{
    Acquire, Command, CommandError, Extend, Holder, Inspect, KeyEvent, Mode, Monotonic, Now, Reply,
    Settings, Wants,
};
use quorlock_core::quorum::{Acquisition, FenceAnswer, Majority, Moment, Step, Validity};
use quorlock_core::{Fence, Ttl};
use stateright::Property;

use crate::fleet::{Broken, Mutant};

/// A model of the agreement on fences: a few calls for one lock, a few nodes, and every event that
/// may happen to them.
///
/// A message may arrive at any later time, before or after other messages, or never. A lease may
/// end at any moment, for any reason, so no time passes. A call ends when it has agreed on a fence.
#[derive(Clone, Debug)]
pub struct Model {
    /// The first value of each node's fence counter.
    pub counters: Vec<u64>,
    pub calls: u8,
    /// Whether answers arrive when the nodes send them. Otherwise they arrive at any later time, or
    /// never, as requests do.
    pub answers_at_once: bool,
    /// Total number of requests that may arrive twice.
    pub repeats: u8,
    /// Total number of restarts of nodes, with empty memory.
    pub restarts: u8,
    /// Advance of the wall clocks after a restart. Without it, the fences of the restarted node are
    /// too far ahead for the other nodes to accept.
    pub wall_after_restart_us: u64,
    /// Whether the wall clock of a restarted node reads zero again, which must not happen.
    pub clock_goes_back: bool,
    pub mutant: Option<Mutant>,
}

/// No two locks have the same fence.
pub(crate) const FENCE_ONCE: &str = "no fence is given twice";
/// If the first request for a lock arrives after another lock was reported, the later lock has the
/// larger fence.
pub(crate) const FENCES_GROW: &str = "fences grow in the order of grants";

#[derive(Clone, Debug, PartialEq, Hash)]
pub struct State {
    nodes: Vec<Node>,
    calls: Vec<Call>,
    /// Messages in transit.
    network: BTreeSet<Message>,
    /// The fences of all reported locks.
    reported: BTreeSet<Fence>,
    wall_us: u64,
    /// The repeats and restarts that are still possible.
    repeats: u8,
    restarts: u8,
    /// Events have happened only to nodes with a smaller index than this.
    touched: u8,
    /// The property that the last event broke.
    broken: Option<&'static str>,
}

/// A real node. States share it, and its hash is computed once.
#[derive(Clone, Debug)]
struct Node {
    server: Arc<Server>,
    hash: u64,
}

#[derive(Clone, Debug, PartialEq, Hash)]
struct Call {
    /// The agreement of the nodes; `None` after its end.
    agreement: Option<Acquisition>,
    /// The requests whose answers the call expects, in any order.
    unanswered: Vec<(u8, Request)>,
    /// The largest fence that was reported before the first request of the call arrived.
    before: Option<Fence>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    pub call: u8,
    pub node: u8,
    pub request: Request,
    /// The answer to the request. Without it, the request itself is in transit.
    pub answer: Option<Answer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    Acquire,
    /// EXTEND … FENCE, with the fence on which the call wants the nodes to agree.
    StoreFence(Fence),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// The call holds the key, with this fence.
    Held(Fence),
    /// The call holds the key, but the node does not accept the requested fence.
    BadFence,
    NotHeld,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Arrive(Message),
    /// A request arrives, and a copy of it is still in transit.
    ArriveAndRepeat(Message),
    /// The lease of a node ends.
    End(u8),
    Restart(u8),
}

const KEY: &[u8] = b"key";
/// The fence that every call proposes.
const PROPOSAL: u64 = 1;
/// Advance of the wall clocks at a restart: more than the number of grants in any model.
const RESTART_US: u64 = 100;

impl Model {
    pub fn new(nodes: usize, calls: u8) -> Self {
        Self {
            counters: vec![0; nodes],
            calls,
            answers_at_once: false,
            repeats: 0,
            restarts: 0,
            wall_after_restart_us: 0,
            clock_goes_back: false,
            mutant: None,
        }
    }

    /// Returns whether an event may happen to this node. If all nodes are alike, the order in which
    /// they have their first events makes no difference. So only the order of their indexes is
    /// tried.
    fn may_touch(&self, state: &State, node: u8) -> bool {
        let are_alike = self.counters.iter().all(|counter| *counter == self.counters[0]);
        !are_alike || node <= state.touched
    }

    /// All calls are alike, too, so only the order of their indexes is tried for their first
    /// requests to arrive.
    fn may_arrive(&self, state: &State, message: &Message) -> bool {
        let is_in_turn = || {
            let earlier = &state.calls[..message.call.into()];
            earlier.iter().all(|call| call.before.is_some())
        };
        message.answer.is_some() || self.may_touch(state, message.node) && is_in_turn()
    }

    fn arrive(&self, state: &mut State, message: Message) {
        if let Some(answer) = message.answer {
            return state.handle_answer(message, answer);
        }
        let largest = state.reported.last().copied().unwrap_or_default();
        state.calls[usize::from(message.call)].before.get_or_insert(largest);
        let answer = state.execute(message);
        if self.answers_at_once {
            state.handle_answer(message, answer);
        } else if state.expects(message) {
            // An answer that the call does not expect makes no difference.
            state.network.insert(Message { answer: Some(answer), ..message });
        }
    }
}

impl stateright::Model for Model {
    type State = State;
    type Action = Action;

    /// The state in which all requests of all calls are in transit.
    fn init_states(&self) -> Vec<State> {
        let majority = Majority::of(self.counters.len()).expect("a model has nodes");
        let validity = Validity::new(Moment::default(), ttl());
        let call = Call {
            agreement: Some(Acquisition::lasting(majority, validity, Duration::ZERO)),
            unanswered: Vec::new(),
            before: None,
        };
        let mut state = State {
            nodes: self.counters.iter().map(|&counter| Node::start(counter, RESTART_US)).collect(),
            calls: vec![call; self.calls.into()],
            network: BTreeSet::new(),
            reported: BTreeSet::new(),
            wall_us: RESTART_US,
            repeats: self.repeats,
            restarts: self.restarts,
            touched: 0,
            broken: None,
        };
        for call in 0..self.calls {
            for (node, _) in (0..).zip(&self.counters) {
                state.ask(call, node, Request::Acquire);
            }
        }
        vec![state]
    }

    /// Lists every event that may happen next.
    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() || state.calls.iter().all(|call| call.agreement.is_none()) {
            return;
        }
        for &message in state.network.iter().filter(|message| self.may_arrive(state, message)) {
            actions.push(Action::Arrive(message));
            if message.answer.is_none() && state.repeats > 0 {
                actions.push(Action::ArriveAndRepeat(message));
            }
        }
        for (index, node) in (0..).zip(&state.nodes) {
            if node.server.get(0, KEY).is_some() {
                actions.push(Action::End(index));
            }
            if state.restarts > 0 && self.may_touch(state, index) {
                actions.push(Action::Restart(index));
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let _broken = Broken::new(self.mutant);
        let mut state = state.clone();
        match action {
            Action::Arrive(message) => {
                state.network.remove(&message);
                self.arrive(&mut state, message);
            }
            Action::ArriveAndRepeat(message) => {
                state.repeats -= 1;
                self.arrive(&mut state, message);
            }
            Action::End(node) => state.change(node, |server, now| {
                server.remove(now, 0, KEY, KeyEvent::Removed);
            }),
            Action::Restart(node) => {
                state.restarts -= 1;
                // The counter of the restarted node starts at its wall clock: above all earlier
                // fences.
                state.wall_us += RESTART_US;
                let starts_at = if self.clock_goes_back { 0 } else { state.wall_us };
                state.nodes[usize::from(node)] = Node::start(starts_at, state.wall_us);
                state.touched = state.touched.max(node + 1);
                state.wall_us += self.wall_after_restart_us;
            }
        }
        Some(state)
    }

    /// The properties, and the events without which a search proves nothing.
    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(FENCE_ONCE, |_, state: &State| state.broken != Some(FENCE_ONCE)),
            Property::always(FENCES_GROW, |_, state: &State| state.broken != Some(FENCES_GROW)),
            Property::sometimes("each call agrees on a fence", |_, state: &State| {
                state.reported.len() == state.calls.len()
            }),
            Property::sometimes("a node is asked to store a fence", |_, state: &State| {
                let mut requests = state.network.iter().map(|message| message.request);
                requests.any(|request| matches!(request, Request::StoreFence(_)))
            }),
        ]
    }
}

impl State {
    /// Sends a request of a call.
    fn ask(&mut self, call: u8, node: u8, request: Request) {
        self.calls[usize::from(call)].unanswered.push((node, request));
        self.network.insert(Message { call, node, request, answer: None });
    }

    /// Returns whether the call expects an answer to this request.
    fn expects(&self, Message { call, node, request, .. }: Message) -> bool {
        self.calls[usize::from(call)].unanswered.contains(&(node, request))
    }

    fn execute(&mut self, message: Message) -> Answer {
        let (keys, token) = (&[Name::from_slice(KEY)], &Name::from_slice(&[message.call]));
        let command = match message.request {
            Request::Acquire => Command::Acquire(acquire(keys, token)),
            Request::StoreFence(fence) => {
                let (ttl, mode, fence) = (ttl(), Mode::Exclusive, Some(fence));
                let new_token = None;
                Command::Extend(Extend { db: 0, keys, token, ttl, mode, fence, new_token })
            }
        };
        match self.change(message.node, |server, now| server.execute(now, &command)) {
            Ok(Reply::Granted(fence) | Reply::Extended(fence)) => Answer::Held(fence),
            Err(CommandError::BadFence(_)) => Answer::BadFence,
            Ok(Reply::NotHeld) | Err(CommandError::Held { .. }) => Answer::NotHeld,
            other => unreachable!("no node abstains, and no call waits: {other:?}"),
        }
    }

    /// Every event of a running node goes through this function.
    fn change<T>(&mut self, node: u8, change: impl FnOnce(&mut Server, Now) -> T) -> T {
        self.touched = self.touched.max(node + 1);
        let now = at(self.wall_us);
        let mut server = Server::clone(&self.nodes[usize::from(node)].server);
        server.run_turns(now);
        let result = change(&mut server, now);
        self.nodes[usize::from(node)] = Node::of(server, now);
        result
    }

    /// Passes an answer to the agreement of its call, and sends the requests that follow.
    fn handle_answer(&mut self, message: Message, answer: Answer) {
        if !self.expects(message) {
            return;
        }
        let Message { call: index, node, request, .. } = message;
        let call = &mut self.calls[usize::from(index)];
        call.unanswered.retain(|expected| *expected != (node, request));
        let Some(agreement) = &mut call.agreement else { return };
        let (of_node, now) = (usize::from(node), Moment::default());
        match (request, answer) {
            (Request::Acquire, Answer::Held(fence)) => agreement.vote(of_node, Some(fence), now),
            (Request::Acquire, _) => agreement.vote(of_node, None, now),
            (Request::StoreFence(_), answer) => {
                let answer = match answer {
                    Answer::Held(fence) => FenceAnswer::Stored(fence),
                    Answer::BadFence => FenceAnswer::Unacceptable,
                    Answer::NotHeld => FenceAnswer::Failed,
                };
                agreement.fence_answer(of_node, answer, now);
            }
        }
        let steps: Vec<_> = std::iter::from_fn(|| agreement.poll()).collect();
        for step in steps {
            match step {
                Step::StoreFence { node, fence } => {
                    let node = u8::try_from(node).expect("a model has few nodes");
                    self.ask(index, node, Request::StoreFence(fence));
                }
                Step::Won(win) => self.end(index, Some(win.fence)),
                Step::Lost(_) => self.end(index, None),
            }
        }
    }

    /// Ends a call, and reports its fence if it has agreed on one.
    fn end(&mut self, index: u8, fence: Option<Fence>) {
        let call = &mut self.calls[usize::from(index)];
        (call.agreement, call.unanswered) = (None, Vec::new());
        self.network.retain(|message| message.call != index || message.answer.is_none());
        let Some(fence) = fence else { return };
        if !self.reported.insert(fence) {
            self.broken = Some(FENCE_ONCE);
        } else if Some(fence) <= call.before {
            self.broken = Some(FENCES_GROW);
        }
    }
}

impl Node {
    /// Starts a node with empty memory, whose fence counter starts at `counter`.
    fn start(counter: u64, wall_us: u64) -> Self {
        let settings = Settings {
            max_ttl: ttl(),
            rejoin_delay_ms: 0,
            max_clock_skew_ms: 0,
            max_waiters: 0,
            fence_stripes: 1,
            table_shards: 1,
            hash_seed: 0,
            defer_wakes: false,
        };
        Self::of(Server::new(settings, at(counter)), at(wall_us))
    }

    fn of(mut server: Server, now: Now) -> Self {
        server.run_turns(now);
        let mut hasher = DefaultHasher::new();
        decisive(server.clone(), now).hash(&mut hasher);
        Self { server: Arc::new(server), hash: hasher.finish() }
    }
}

/// What a node decides by: the token and the fence of the key, and the next fence. No time passes,
/// and no call waits.
fn decisive(mut server: Server, now: Now) -> (Option<Value>, Option<Fence>, Fence) {
    let (key, keys) = (Name::from_slice(KEY), [Name::from_slice(KEY)]);
    let value = server.get(0, KEY).cloned();
    let fence = match server.execute(now, &Command::Inspect(Inspect { db: 0, key: &key })) {
        Ok(Reply::Inspected(inspected)) => inspected.and_then(|inspected| match inspected.holder {
            Holder::Lease { fence, .. } => Some(fence),
            Holder::Foreign { .. } => None,
        }),
        other => unreachable!("the key is free or holds a string: {other:?}"),
    };
    server.remove(now, 0, KEY, KeyEvent::Removed);
    let acquire = acquire(&keys, &key);
    match server.execute(now, &Command::Acquire(acquire)) {
        Ok(Reply::Granted(next)) => (value, fence, next),
        other => unreachable!("the key is free: {other:?}"),
    }
}

/// The ACQUIRE of every call.
fn acquire<'a>(keys: &'a [Name], token: &'a Name) -> Acquire<'a, Name> {
    let (wants, mode, fence) = (Wants::All, Mode::Exclusive, Fence::new(PROPOSAL));
    Acquire { db: 0, keys, wants, token, ttl: ttl(), mode, owner: None, fence, wait_ms: 0 }
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Hash for Node {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

fn ttl() -> Ttl {
    Ttl::from_ms(Ttl::MAX_MS).expect("the largest ttl is valid")
}

fn at(wall_us: u64) -> Now {
    Now { monotonic: Monotonic::default(), wall_us }
}
