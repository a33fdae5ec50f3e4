use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::node::memory::Name;
use quorlock_core::node::{Mode, Monotonic, Now};
use quorlock_core::quorum::{Majority, Moment};
use quorlock_core::{Fence, Ttl};
use stateright::Model;

use crate::agreement::Rules;
use crate::client::Client;
use crate::message::{Answer, Body, Effect, Message, Request};
use crate::pool::{Pool, Pooled};
use crate::server::{At, Revocation, Server};
use crate::{Keys, Mutant, Property};

/// A few clients and nodes, one lock or a few that share keys, and every event that may happen.
///
/// A message may arrive at any later time, in any order with others, or never. A paused client is
/// one whose answers arrive late. An event without a limit here happens as often as it can.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each says whether one thing happens, whatever the others do"
)]
pub struct World {
    /// The first value of each node's fence counter.
    pub counters: Vec<u64>,
    /// The fence that each client proposes.
    pub proposals: Vec<u64>,
    /// The keys that each client locks.
    pub keys: Vec<Keys>,
    /// Whether each client shares the lock with others.
    pub modes: Vec<Mode>,
    /// Number of attempts of each client.
    pub attempts: u8,
    /// When answers arrive.
    pub answers: Answers,
    /// Number of requests that may arrive twice, in all.
    pub repeats: u8,
    /// Whether a lease may end at any moment, for any reason.
    pub sudden_ends: bool,
    /// Number of restarts of nodes with empty memory, in all.
    pub restarts: u8,
    /// Advance of the wall clocks when a restarted node votes again (in µs). The fences of the
    /// others may lie below what their own clocks allow.
    pub wall_after_restart_us: u64,
    /// Clocks, if time passes. Otherwise a lease lasts until an event ends it.
    pub clocks: Option<Clocks>,
    /// Whether clients hold a lock that they have won, and how often they extend it. Otherwise they
    /// only use its fence.
    pub rounds: Option<u8>,
    /// Whether clients release what they hold, and what a failed attempt may hold. Otherwise only
    /// deadlines end it.
    pub releases: bool,
    /// Whether extensions repair the lock on nodes that miss it.
    pub repair: bool,
    /// Whether an operator deletes the key on all nodes, once.
    pub operator: bool,
    /// Whether an operator revokes the lock, on one node after the other, at any moment.
    pub revokes: bool,
    /// Whether a node that restarts reads its keys again, and votes at once.
    pub disk: bool,
    /// Pairs of clients and nodes without a connection.
    pub cut: Vec<(u8, u8)>,
    /// The broken rule.
    pub mutant: Option<Mutant>,
    /// The servers that the states share.
    pub(crate) pool: Pool,
}

/// When the answers of nodes arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// At any later time, or never, as requests do.
    Travel,
    /// At the moment of the answer, or never.
    AtOnceOrNever,
    /// At the moment of the answer.
    AtOnce,
}

/// Time, in steps that each clock sees at its own rate.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// Number of steps.
    pub ticks: u8,
    /// The ttl of the lock, in milliseconds.
    pub ttl_ms: u64,
    /// Milliseconds of a step by a node's clock.
    pub node_ms: u64,
    /// Milliseconds of a step by a client's clock.
    pub client_ms: u64,
}

/// The state of a world at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    servers: Vec<Pooled>,
    clients: Vec<Arc<Client>>,
    /// Messages in transit, sorted.
    network: Vec<Message>,
    history: History,
    tick: u8,
    wall_us: u64,
    repeats: u8,
    restarts: u8,
    operator: bool,
    /// Number of nodes to which anything has happened.
    touched: u8,
}

/// The reports so far, as far as later ones are judged by them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct History {
    /// The fences of all locks, their keys, and whether they are shared, in order.
    fences: Vec<(Fence, Keys, Mode)>,
    /// For each client whose first request has arrived: the largest fence that was reported before.
    before: Vec<Option<Fence>>,
    /// For each client: the first round of extensions that began after the operator deleted the
    /// lock.
    deleted_before_round: Vec<Option<u8>>,
    /// For each client: the nodes that have revoked its lock, one bit each.
    revoked_on: Vec<u8>,
    /// For each client: the first round of extensions that began after a majority had.
    revoked_before_round: Vec<Option<u8>>,
    /// The broken property.
    broken: Option<Property>,
}

/// The next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A client starts an attempt.
    Begin(u8),
    /// A message arrives.
    Arrive(Message),
    /// A request arrives, and a copy of it is still in transit.
    ArriveAndRepeat(Message),
    /// A request arrives, and its answer is lost.
    ArriveUnanswered(Message),
    /// A client stops waiting for answers.
    TimeIsUp(u8),
    /// A client starts a round of extensions.
    Extend(u8),
    /// A client releases the lock.
    Release(u8),
    /// A node's lease of this key ends.
    End(u8, Keys),
    /// A node restarts with empty memory.
    Restart(u8),
    /// An operator deletes the key on all nodes.
    Delete,
    /// An operator revokes the lock on a node.
    Revoke(u8),
    /// Time passes.
    Tick,
}

impl World {
    /// Creates a world of nodes without data, and of clients that only use fences.
    pub fn new(nodes: usize, clients: usize) -> Self {
        Self {
            counters: vec![0; nodes],
            proposals: vec![1; clients],
            keys: vec![Keys::A; clients],
            modes: vec![Mode::Exclusive; clients],
            attempts: 1,
            answers: Answers::Travel,
            repeats: 0,
            sudden_ends: true,
            restarts: 0,
            wall_after_restart_us: 0,
            clocks: None,
            rounds: None,
            releases: true,
            repair: false,
            operator: false,
            revokes: false,
            disk: false,
            cut: Vec::new(),
            mutant: None,
            pool: Pool::default(),
        }
    }

    fn rules(&self) -> Rules {
        let majority = Majority::of(self.counters.len()).expect("a world has nodes");
        Rules { majority, ttl: self.ttl(), repair: self.repair, mutant: self.mutant }
    }

    /// The fence counters, one for each key.
    fn fence_stripes(&self) -> usize {
        if self.keys.iter().all(|keys| *keys == self.keys[0]) { 1 } else { STRIPES_APART }
    }

    fn ttl(&self) -> Ttl {
        let ms = self.clocks.map_or(Ttl::MAX_MS, |clocks| clocks.ttl_ms);
        Ttl::from_ms(ms).expect("a world has a ttl")
    }

    /// The clocks of a node.
    fn at(&self, state: &State) -> At {
        let passed_ms = self.clocks.map_or(0, |clocks| clocks.node_ms * u64::from(state.tick));
        let now = Now { monotonic: Monotonic::from_us(passed_ms * 1000), wall_us: state.wall_us };
        At { now, ttl: self.ttl() }
    }

    /// The clocks of a client.
    fn moment(&self, state: &State) -> Moment {
        let passed_ms = self.clocks.map_or(0, |clocks| clocks.client_ms * u64::from(state.tick));
        Moment::default().plus(Duration::from_millis(passed_ms))
    }

    fn alike_nodes(&self) -> bool {
        self.cut.is_empty() && self.counters.iter().all(|counter| *counter == self.counters[0])
    }

    fn alike_clients(&self) -> bool {
        self.cut.is_empty()
            && self.proposals.iter().all(|proposal| *proposal == self.proposals[0])
            && self.keys.iter().all(|keys| *keys == self.keys[0])
            && self.modes.iter().all(|mode| *mode == self.modes[0])
    }

    /// Where all nodes are alike, it does not matter to which one something happens first.
    fn may_touch(&self, state: &State, node: u8) -> bool {
        !self.alike_nodes() || node <= state.touched
    }

    /// Likewise for clients, and which of them starts first.
    fn may_begin(&self, state: &State, client: u8) -> bool {
        !self.alike_clients()
            || state.clients[..client.into()].iter().all(|client| client.attempts() > 0)
    }

    fn may_arrive(&self, state: &State, message: &Message) -> bool {
        if !message.is_request() {
            return true;
        }
        // Where all start at once, it is the client whose first request arrives first.
        let others = &state.history.before[..message.client.into()];
        let in_turn = !self.all_begin_at_once()
            || !self.alike_clients()
            || others.iter().all(Option::is_some);
        in_turn && self.may_touch(state, message.node)
    }

    /// Without clocks, an attempt whose requests have not arrived might as well not have begun.
    fn all_begin_at_once(&self) -> bool {
        self.clocks.is_none() && self.attempts == 1
    }

    fn arrive(&self, state: &mut State, message: Message, answered: bool) {
        match message.body {
            Body::Request(request) => {
                let client = usize::from(message.client);
                let before = state.history.largest(self.keys[client], self.modes[client]);
                if state.clients[usize::from(message.client)].attempt(self.rules())
                    == message.attempt
                {
                    state.history.before[usize::from(message.client)].get_or_insert(before);
                }
                let answer = self.execute(state, message, request);
                let reply = Message { body: Body::Reply(request, answer), ..message };
                if !answered || !state.is_expected(self.rules(), &reply) {
                    return;
                }
                if self.answers == Answers::Travel {
                    state.send(reply);
                } else {
                    self.handle_response(state, reply, request, answer);
                }
            }
            Body::Reply(request, answer) => self.handle_response(state, message, request, answer),
        }
    }

    /// Executes a request on a server, or the step of a mutant in its place.
    fn execute(&self, state: &mut State, message: Message, request: Request) -> Answer {
        let at = self.at(state);
        let (token, keys) = (&message.token(), self.keys[usize::from(message.client)]);
        let mode = self.modes[usize::from(message.client)];
        let locks = (keys, mode);
        self.change(state, message.node, |server| match (self.mutant, request) {
            (Some(Mutant::WriteBackFromAnybody), Request::Tell(fence)) => {
                server.store_from_anybody(at, fence)
            }
            (Some(Mutant::WriteBackDownwards), Request::Tell(fence)) => {
                match server.execute(at, locks, token, request) {
                    Answer::BadFence => server.store_downwards(at, token, fence),
                    answer => answer,
                }
            }
            (Some(Mutant::ExtendRevives), Request::Extend(_)) => {
                match server.execute(at, locks, token, request) {
                    Answer::NotHeld => server.revive(at, token),
                    answer => answer,
                }
            }
            (Some(Mutant::ExtendOfRevoked), Request::Extend(_)) => {
                match server.execute(at, locks, token, request) {
                    Answer::Revoked => Answer::Held(Fence::ZERO),
                    answer => answer,
                }
            }
            (Some(Mutant::ReaderBesideWriter), Request::Acquire(fence)) if mode == Mode::Shared => {
                server.join_writer(at, keys, token, fence)
            }
            (Some(Mutant::ReaderChoosesFence), Request::Acquire(fence)) if mode == Mode::Shared => {
                server.share_with_fence(at, keys, token, fence)
            }
            (Some(Mutant::SomeOfTheKeys), Request::Acquire(fence)) => {
                server.turn(at);
                server.take_some(at, keys, token, fence)
            }
            (Some(Mutant::FenceOfTheFirstKey), Request::Acquire(fence)) => {
                server.turn(at);
                server.take_with_fence_of_first(at, keys, token, fence)
            }
            _ => server.execute(at, locks, token, request),
        })
    }

    /// Changes one server. Every event of a single server uses this.
    fn change<T>(&self, state: &mut State, node: u8, change: impl FnOnce(&mut Server) -> T) -> T {
        state.touched = state.touched.max(node + 1);
        self.change_pooled(&mut state.servers[usize::from(node)], change)
    }

    /// Changes all servers in the same way.
    fn change_all(&self, state: &mut State, change: impl Fn(&mut Server)) {
        for server in &mut state.servers {
            self.change_pooled(server, &change);
        }
    }

    fn change_pooled<T>(&self, pooled: &mut Pooled, change: impl FnOnce(&mut Server) -> T) -> T {
        let mut server = Server::clone(pooled);
        let result = change(&mut server);
        *pooled = self.pool.share(server);
        result
    }

    fn handle_response(&self, state: &mut State, reply: Message, request: Request, answer: Answer) {
        let moment = self.moment(state);
        let client = Arc::make_mut(&mut state.clients[usize::from(reply.client)]);
        let effects =
            client.handle_response(self.rules(), reply.node.into(), request, answer, moment);
        self.carry_out(state, reply.client, effects);
    }

    fn carry_out(&self, state: &mut State, client: u8, effects: Vec<Effect>) {
        let rules = self.rules();
        let index = usize::from(client);
        let attempt = state.clients[index].attempt(rules);
        let nodes = u8::try_from(self.counters.len()).expect("a world has few nodes");
        let ask = |node, request| Message { client, attempt, node, body: Body::Request(request) };
        for effect in effects {
            match effect {
                // Without holders it makes no difference why a lease ends.
                Effect::AskAll(Request::Release) if self.rounds.is_none() || !self.releases => {}
                Effect::AskAll(request) => {
                    for node in (0..nodes).filter(|&node| !self.cut.contains(&(client, node))) {
                        state.send(ask(node, request));
                    }
                }
                Effect::Ask(node, request) => {
                    state.send(ask(u8::try_from(node).expect("a node of this world"), request));
                }
                Effect::Won(fence) => {
                    state.history.report(index, (fence, self.keys[index], self.modes[index]));
                    if self.rounds.is_none() {
                        Arc::make_mut(&mut state.clients[index]).forget();
                    }
                }
                Effect::Extended(round) => {
                    let lost = state.history.deleted_before_round[index];
                    if lost.is_some_and(|first| first <= round) {
                        state.history.broken = Some(Property::LostStaysLost);
                    }
                    let revoked = state.history.revoked_before_round[index];
                    if revoked.is_some_and(|first| first <= round) {
                        state.history.broken = Some(Property::RevokedStaysRevoked);
                    }
                }
            }
        }
        if state.clients[index].is_idle() {
            state.history.before[index] = Some(Fence::ZERO);
        }
        state.drop_what_nobody_expects(rules);
    }

    fn restart(&self, state: &mut State, node: u8) {
        state.restarts -= 1;
        // One second in µs, more than any counter has advanced, so no clock reads less.
        state.wall_us += RESTART_US;
        let mut at = self.at(state);
        if self.mutant == Some(Mutant::ClockBackAtRestart) {
            at.now.wall_us = 0;
        }
        if self.disk {
            let stripes = self.fence_stripes();
            let reader = self.modes.iter().position(|mode| *mode == Mode::Shared);
            let named = reader.filter(|_| self.mutant == Some(Mutant::MirrorNamesReader));
            let named = named.map(|client| {
                let attempt = state.clients[client].attempt(self.rules());
                Name::from_slice(&[u8::try_from(client).expect("a world has few clients"), attempt])
            });
            self.change(state, node, |server| {
                *server = match &named {
                    Some(reader) => server.restart_naming(at, stripes, reader),
                    None => server.restart_from_disk(at, stripes),
                };
            });
            return;
        }
        let abstains = self.clocks.is_some() && self.mutant != Some(Mutant::NoAbstention);
        let rejoin_delay_ms = if abstains { at.ttl.ms() } else { 0 };
        let restarted = Server::with_counters(at, rejoin_delay_ms, self.fence_stripes());
        self.change(state, node, |server| *server = restarted);
        state.wall_us += self.wall_after_restart_us;
    }

    /// Revokes the lock on a node.
    fn revoke(&self, state: &mut State, node: u8) {
        let at = self.at(state);
        let revocation = match self.mutant {
            Some(Mutant::RevokeFreesAtOnce) => Revocation::Ends,
            Some(Mutant::RevokeKeepsToken) => Revocation::KeepsToken,
            _ => Revocation::Marks,
        };
        let Some(client) = self.change(state, node, |server| server.revoke(at, revocation)) else {
            return;
        };
        let index = usize::from(client);
        let (rounds, history) = (state.clients[index].rounds(), &mut state.history);
        history.revoked_on[index] |= 1 << node;
        if history.revoked_on[index].count_ones() as usize >= self.rules().majority.size() {
            history.revoked_before_round[index].get_or_insert(rounds);
        }
    }

    fn tick(&self, state: &mut State) {
        state.tick += 1;
        let (at, moment, rules) = (self.at(state), self.moment(state), self.rules());
        self.change_all(state, |server| server.turn(at));
        for client in &mut state.clients {
            Arc::make_mut(client).look_at_the_clock(rules, moment);
        }
        state.drop_what_nobody_expects(rules);
    }
}

/// A number at which the hashes of the two keys fall on different counters.
const STRIPES_APART: usize = 16;

/// More µs than there are grants in any of these worlds.
const RESTART_US: u64 = 100;

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let ttl = self.ttl();
        let clients = self.proposals.len();
        let start = |counter: &u64| {
            let now = Now { monotonic: Monotonic::default(), wall_us: *counter };
            self.pool.share(Server::with_counters(At { now, ttl }, 0, self.fence_stripes()))
        };
        let mut state = State {
            servers: self.counters.iter().map(start).collect(),
            clients: (0..clients).map(|_| Arc::new(Client::new())).collect(),
            network: Vec::new(),
            history: History {
                before: vec![None; clients],
                deleted_before_round: vec![None; clients],
                revoked_on: vec![0; clients],
                revoked_before_round: vec![None; clients],
                ..History::default()
            },
            tick: 0,
            wall_us: RESTART_US,
            repeats: self.repeats,
            restarts: self.restarts,
            operator: self.operator,
            touched: 0,
        };
        if self.all_begin_at_once() {
            for client in 0..clients {
                self.begin(&mut state, u8::try_from(client).expect("a world has few clients"));
            }
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.history.broken.is_some() || self.is_over(state) {
            return;
        }
        for &message in state.network.iter().filter(|message| self.may_arrive(state, message)) {
            actions.push(Action::Arrive(message));
            if message.is_request() && state.repeats > 0 {
                actions.push(Action::ArriveAndRepeat(message));
            }
            if message.is_request() && self.answers == Answers::AtOnceOrNever {
                actions.push(Action::ArriveUnanswered(message));
            }
        }
        for (index, client) in (0..).zip(&state.clients) {
            if client.is_idle() && client.attempts() < self.attempts && self.may_begin(state, index)
            {
                actions.push(Action::Begin(index));
            }
            if client.is_acquiring() && self.rounds.is_some() {
                actions.push(Action::TimeIsUp(index));
            }
            if client.is_holding() {
                if self.rounds.is_some_and(|rounds| client.rounds() < rounds) {
                    actions.push(Action::Extend(index));
                }
                if self.releases {
                    actions.push(Action::Release(index));
                }
            }
        }
        for (node, server) in (0..).zip(&state.servers) {
            if self.sudden_ends {
                actions.extend(server.held().map(|key| Action::End(node, key)));
            }
            if self.revokes && server.holder_to_revoke().is_some() {
                actions.push(Action::Revoke(node));
            }
            if state.restarts > 0 && self.may_touch(state, node) {
                actions.push(Action::Restart(node));
            }
        }
        if state.operator {
            actions.push(Action::Delete);
        }
        if self.clocks.is_some_and(|clocks| state.tick < clocks.ticks) {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let moment = self.moment(last);
        match action {
            Action::Begin(client) => self.begin(&mut state, client),
            Action::Arrive(message) => {
                state.take(message);
                self.arrive(&mut state, message, true);
            }
            Action::ArriveAndRepeat(message) => {
                state.repeats -= 1;
                self.arrive(&mut state, message, true);
            }
            Action::ArriveUnanswered(message) => {
                state.take(message);
                self.arrive(&mut state, message, false);
            }
            Action::TimeIsUp(client) => {
                let effects = state.client(client).time_is_up(self.rules(), moment);
                self.carry_out(&mut state, client, effects);
            }
            Action::Extend(client) => {
                let effects = state.client(client).extend(self.rules(), moment);
                self.carry_out(&mut state, client, effects);
            }
            Action::Release(client) => {
                let effects = state.client(client).release(self.rules());
                self.carry_out(&mut state, client, effects);
            }
            Action::End(node, key) => {
                let at = self.at(&state);
                self.change(&mut state, node, |server| server.end(at, key));
            }
            Action::Restart(node) => self.restart(&mut state, node),
            Action::Delete => {
                state.operator = false;
                let at = self.at(&state);
                self.change_all(&mut state, |server| server.end(at, Keys::Both));
                for (index, client) in
                    state.clients.iter().enumerate().filter(|(_, client)| client.is_holding())
                {
                    state.history.deleted_before_round[index] = Some(client.rounds());
                }
            }
            Action::Revoke(node) => self.revoke(&mut state, node),
            Action::Tick => self.tick(&mut state),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<stateright::Property<Self>> {
        let always = self.must_hold().into_iter().map(|property| {
            let condition = match property {
                Property::FenceOnce => |_: &Self, state: &State| !state.breaks(Property::FenceOnce),
                Property::FencesGrow => {
                    |_: &Self, state: &State| !state.breaks(Property::FencesGrow)
                }
                Property::OneHolder => |world: &Self, state: &State| !state.has_two_holders(world),
                Property::LostStaysLost => {
                    |_: &Self, state: &State| !state.breaks(Property::LostStaysLost)
                }
                Property::RevokedStaysRevoked => {
                    |_: &Self, state: &State| !state.breaks(Property::RevokedStaysRevoked)
                }
            };
            stateright::Property::always(property.name(), condition)
        });
        let sometimes = self.must_happen().map(|name| {
            let condition = match name {
                ALL_HAVE_WON => State::all_have_won,
                SOMEBODY_IS_TOLD => State::somebody_is_told,
                A_HOLDER_IS_REVOKED => State::a_holder_is_revoked,
                _ => State::somebody_repairs,
            };
            stateright::Property::sometimes(name, condition)
        });
        always.chain(sometimes).collect()
    }
}

const ALL_HAVE_WON: &str = "each client wins a lock";
const SOMEBODY_IS_TOLD: &str = "a node is told a fence";
const A_HOLDER_IS_REVOKED: &str = "a lock that is held is revoked by a majority";
const SOMEBODY_REPAIRS: &str = "a node is asked to repair a lock";

impl World {
    /// Returns the properties that must hold in every state.
    pub(crate) fn must_hold(&self) -> Vec<Property> {
        let mut properties = vec![Property::FenceOnce, Property::FencesGrow];
        if self.clocks.is_some() {
            properties.push(Property::OneHolder);
        }
        if self.operator {
            properties.push(Property::LostStaysLost);
        }
        if self.revokes {
            properties.push(Property::RevokedStaysRevoked);
        }
        properties
    }

    /// Returns the events that must happen in some state, or nothing was checked.
    pub(crate) fn must_happen(&self) -> impl Iterator<Item = &'static str> + use<> {
        let told = (self.proposals.len() > 1).then_some(SOMEBODY_IS_TOLD);
        let revoked = self.revokes.then_some(A_HOLDER_IS_REVOKED);
        let repaired = self.repair.then_some(SOMEBODY_REPAIRS);
        [ALL_HAVE_WON].into_iter().chain(told).chain(repaired).chain(revoked)
    }
}

impl World {
    fn begin(&self, state: &mut State, client: u8) {
        let moment = self.moment(state);
        state.history.before[usize::from(client)] = None;
        let hint = Fence::new(self.proposals[usize::from(client)]).expect("a proposal is a fence");
        let effects = state.client(client).begin(self.rules(), hint, moment);
        self.carry_out(state, client, effects);
    }

    /// Returns whether no client can report anything any more.
    fn is_over(&self, state: &State) -> bool {
        state.clients.iter().all(|client| client.is_idle() && client.attempts() >= self.attempts)
    }
}

impl State {
    fn breaks(&self, property: Property) -> bool {
        self.history.broken == Some(property)
    }

    fn has_two_holders(&self, world: &World) -> bool {
        let locks = world.keys.iter().zip(&world.modes);
        let holders =
            || self.clients.iter().zip(locks.clone()).filter(|(client, _)| client.is_holding());
        holders().enumerate().any(|(index, (_, (keys, mode)))| {
            holders().skip(index + 1).any(|(_, (others, other_mode))| {
                keys.overlap(*others)
                    && (*mode == Mode::Exclusive || *other_mode == Mode::Exclusive)
            })
        })
    }

    fn all_have_won(world: &World, state: &Self) -> bool {
        state.history.fences.len() >= world.proposals.len()
    }

    fn somebody_is_told(_: &World, state: &Self) -> bool {
        state.asks(|request| matches!(request, Request::Tell(_)))
    }

    fn a_holder_is_revoked(_: &World, state: &Self) -> bool {
        let revoked = state.clients.iter().zip(&state.history.revoked_before_round);
        revoked.into_iter().any(|(client, revoked)| client.is_holding() && revoked.is_some())
    }

    fn somebody_repairs(_: &World, state: &Self) -> bool {
        state.asks(|request| matches!(request, Request::Repair(_)))
    }

    fn asks(&self, this: impl Fn(Request) -> bool) -> bool {
        self.network
            .iter()
            .any(|message| matches!(message.body, Body::Request(request) if this(request)))
    }

    fn client(&mut self, client: u8) -> &mut Client {
        Arc::make_mut(&mut self.clients[usize::from(client)])
    }

    fn send(&mut self, message: Message) {
        if let Err(place) = self.network.binary_search(&message) {
            self.network.insert(place, message);
        }
    }

    fn take(&mut self, message: Message) {
        if let Ok(place) = self.network.binary_search(&message) {
            self.network.remove(place);
        }
    }

    /// Returns whether an answer would be used.
    fn is_expected(&self, rules: Rules, message: &Message) -> bool {
        let client = &self.clients[usize::from(message.client)];
        match message.body {
            Body::Request(_) => true,
            Body::Reply(request, _) => {
                client.attempt(rules) == message.attempt
                    && client.expects(rules, message.node.into(), request)
            }
        }
    }

    fn drop_what_nobody_expects(&mut self, rules: Rules) {
        let mut network = std::mem::take(&mut self.network);
        network.retain(|message| self.is_expected(rules, message));
        self.network = network;
    }
}

impl History {
    /// The largest fence of all locks so far that have one of these keys, and that a lock of this
    /// mode excludes.
    fn largest(&self, keys: Keys, mode: Mode) -> Fence {
        let excluded = |&&(_, others, other_mode): &&(Fence, Keys, Mode)| {
            keys.overlap(others) && (mode == Mode::Exclusive || other_mode == Mode::Exclusive)
        };
        self.fences.iter().rev().find(excluded).map(|(fence, ..)| *fence).unwrap_or_default()
    }

    fn report(&mut self, client: usize, (fence, keys, mode): (Fence, Keys, Mode)) {
        let before = self.before[client].unwrap_or_default();
        // Clients that share a lock may have the same.
        let is_given = |&(other, others, other_mode): &(Fence, Keys, Mode)| {
            let are_shared = mode == Mode::Shared && other_mode == Mode::Shared;
            other == fence && keys.overlap(others) && !are_shared
        };
        if self.fences.iter().any(is_given) {
            self.broken = Some(Property::FenceOnce);
            return;
        }
        let place = self.fences.partition_point(|lock| *lock < (fence, keys, mode));
        self.fences.insert(place, (fence, keys, mode));
        if fence <= before {
            self.broken = Some(Property::FencesGrow);
        }
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self {
            servers,
            clients,
            network,
            history,
            tick,
            wall_us,
            repeats,
            restarts,
            operator,
            touched,
        } = self;
        (servers, clients, network, history).hash(state);
        (tick, wall_us, repeats, restarts, operator, touched).hash(state);
    }
}
