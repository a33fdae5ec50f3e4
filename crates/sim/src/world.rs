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
use crate::interner::{Interned, Interner};
use crate::message::{Answer, Body, Effect, Message, Request};
use crate::server::{Revocation, Server, ServerContext};
use crate::{Keys, Mutant, Property};

/// A model: a few clients and nodes, one lock or a few locks that share keys, and every event that
/// may happen to them.
///
/// A message may arrive at any later time, before or after other messages, or never. A paused
/// client is modelled as a client whose answers arrive late. An event that no field limits may
/// happen any number of times.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each switches one kind of event on, independently of the others"
)]
pub struct World {
    /// The first value of each node's fence counter.
    pub counters: Vec<u64>,
    /// Of each client: the fence that it proposes, the keys that it locks, and the mode.
    pub proposals: Vec<u64>,
    pub keys: Vec<Keys>,
    pub modes: Vec<Mode>,
    /// Largest number of attempts of each client.
    pub attempts: u8,
    pub answers: Answers,
    /// Total number of requests that may arrive twice.
    pub repeats: u8,
    /// Whether a lease may end at any moment, for any reason.
    pub sudden_ends: bool,
    /// Total number of restarts of nodes. A restarted node has its keys if [`disk`](Self::disk) is
    /// set, and empty memory otherwise.
    pub restarts: u8,
    /// Advance of the wall clocks after a restart. Without it, the fences of the restarted node are
    /// too far ahead for the other nodes to accept.
    pub wall_after_restart_us: u64,
    /// With `None`, no time passes, and a lease lasts until an event ends it.
    pub clocks: Option<Clocks>,
    /// Largest number of extensions of a held lock. With `None`, a client forgets a lock as soon as
    /// it has won the lock, and uses only the fence.
    pub rounds: Option<u8>,
    /// Whether a client releases its lock, and rolls back attempts that failed. If not, no client
    /// ends a lease.
    pub releases: bool,
    /// Whether extensions repair the lock on nodes that miss it.
    pub repair: bool,
    /// Whether an operator deletes the keys on all nodes, once.
    pub deletes: bool,
    /// Whether an operator revokes the lock on nodes, one after another, at any moment.
    pub revokes: bool,
    /// Whether a restarted node reads its keys from disk, and votes at once.
    pub disk: bool,
    /// Pairs of clients and nodes without a connection.
    pub cut: Vec<(u8, u8)>,
    pub mutant: Option<Mutant>,
    /// The servers that the states of this world share.
    pub(crate) interner: Interner,
}

/// When the answers of nodes arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// At any later time, or never, as requests do.
    Travel,
    AtOnceOrNever,
    /// When the node sends them.
    AtOnce,
}

/// Clocks that advance in steps. The clocks of nodes and of clients may have different rates.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    pub ticks: u8,
    /// The ttl of all locks, and the advance of a node's and of a client's clock in a tick.
    pub ttl_ms: u64,
    pub node_ms: u64,
    pub client_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    servers: Vec<Interned>,
    clients: Vec<Arc<Client>>,
    /// Messages in transit, sorted.
    network: Vec<Message>,
    past: Past,
    tick: u8,
    wall_us: u64,
    /// The repeats, restarts and deletions that are still possible.
    repeats: u8,
    restarts: u8,
    deletes: bool,
    /// Events have happened only to nodes with a smaller index than this.
    touched: u8,
}

/// The past events that the properties depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Past {
    /// All reported locks, ordered by fence: the fence, the keys, and whether the lock is shared.
    fences: Vec<(Fence, Keys, Mode)>,
    /// For each client: the largest fence of a lock that excludes its own and was reported before
    /// the first request of its attempt arrived. `None` until that request arrives.
    before: Vec<Option<Fence>>,
    /// For each client: the first round of extensions that began after the operator deleted the
    /// lock. `None` if the operator deleted none.
    deleted_before_round: Vec<Option<u8>>,
    /// For each client: the nodes that have revoked its lock, one bit each.
    revoked_on: Vec<u8>,
    /// For each client: the first round of extensions that began after a majority had revoked its
    /// lock. `None` if no majority has.
    revoked_before_round: Vec<Option<u8>>,
    broken: Option<Property>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Begin(u8),
    Arrive(Message),
    /// A request arrives, and a copy of it is still in transit.
    ArriveAndRepeat(Message),
    /// A request arrives, and its answer is lost.
    ArriveUnanswered(Message),
    /// A client stops waiting for answers.
    TimeIsUp(u8),
    Extend(u8),
    Release(u8),
    /// A node's lease of this key ends.
    End(u8, Keys),
    Restart(u8),
    /// An operator deletes the keys on all nodes.
    Delete,
    Revoke(u8),
    Tick,
}

impl World {
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
            deletes: false,
            revokes: false,
            disk: false,
            cut: Vec::new(),
            mutant: None,
            interner: Interner::default(),
        }
    }

    fn rules(&self) -> Rules {
        let majority = Majority::of(self.counters.len()).expect("a world has nodes");
        Rules { majority, ttl: self.ttl(), repair: self.repair, mutant: self.mutant }
    }

    /// Returns the number of fence counters: several if clients lock different keys.
    fn fence_stripes(&self) -> usize {
        if self.keys.iter().all(|keys| *keys == self.keys[0]) { 1 } else { STRIPES_APART }
    }

    fn ttl(&self) -> Ttl {
        let ms = self.clocks.map_or(Ttl::MAX_MS, |clocks| clocks.ttl_ms);
        Ttl::from_ms(ms).expect("a world has a ttl")
    }

    fn server_context(&self, state: &State) -> ServerContext {
        let passed_ms = self.clocks.map_or(0, |clocks| clocks.node_ms * u64::from(state.tick));
        let now = Now { monotonic: Monotonic::from_us(passed_ms * 1000), wall_us: state.wall_us };
        ServerContext { now, ttl: self.ttl() }
    }

    /// Returns the reading of the clocks of all clients.
    fn moment(&self, state: &State) -> Moment {
        let passed_ms = self.clocks.map_or(0, |clocks| clocks.client_ms * u64::from(state.tick));
        Moment::default().plus(Duration::from_millis(passed_ms))
    }

    fn nodes_are_alike(&self) -> bool {
        self.cut.is_empty() && self.counters.iter().all(|counter| *counter == self.counters[0])
    }

    fn clients_are_alike(&self) -> bool {
        self.cut.is_empty()
            && self.proposals.iter().all(|proposal| *proposal == self.proposals[0])
            && self.keys.iter().all(|keys| *keys == self.keys[0])
            && self.modes.iter().all(|mode| *mode == self.modes[0])
    }

    /// Returns whether an event may happen to this node. If all nodes are alike, the order in which
    /// they have their first events makes no difference. So only the order of their indexes is
    /// tried.
    fn may_touch(&self, state: &State, node: u8) -> bool {
        !self.nodes_are_alike() || node <= state.touched
    }

    /// Returns whether this client may start. If all clients are alike, only the order of their
    /// indexes is tried.
    fn may_begin(&self, state: &State, client: u8) -> bool {
        !self.clients_are_alike()
            || state.clients[..client.into()].iter().all(|client| client.attempts() > 0)
    }

    fn may_arrive(&self, state: &State, message: &Message) -> bool {
        if !message.is_request() {
            return true;
        }
        // Clients that begin at once are ordered by the arrival of their first requests. If they
        // are alike, only the order of their indexes is tried.
        let others = &state.past.before[..message.client.into()];
        let in_turn = !self.all_begin_at_once()
            || !self.clients_are_alike()
            || others.iter().all(Option::is_some);
        in_turn && self.may_touch(state, message.node)
    }

    /// Returns whether all clients begin in the initial state. Without clocks, the time at which an
    /// attempt begins makes no difference. Only the arrival of its requests does.
    fn all_begin_at_once(&self) -> bool {
        self.clocks.is_none() && self.attempts == 1
    }

    fn arrive(&self, state: &mut State, message: Message, answered: bool) {
        match message.body {
            Body::Request(request) => {
                let client = usize::from(message.client);
                let before = state.past.largest(self.keys[client], self.modes[client]);
                if state.clients[client].attempt(self.rules()) == message.attempt {
                    state.past.before[client].get_or_insert(before);
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

    /// Executes a request on a server. A mutant may execute another step, or change the answer.
    fn execute(&self, state: &mut State, message: Message, request: Request) -> Answer {
        let (ctx, client) = (self.server_context(state), usize::from(message.client));
        let (token, keys, mode) = (&message.token(), self.keys[client], self.modes[client]);
        self.change(state, message.node, |server| {
            match (self.mutant, request) {
                (Some(Mutant::FenceStoredWithoutToken), Request::StoreFence(fence)) => {
                    return server.store_from_any_token(ctx, fence);
                }
                (Some(Mutant::SomeOfTheKeys), Request::Acquire(fence)) => {
                    server.run_turns(ctx);
                    return server.take_some(ctx, keys, token, fence);
                }
                (Some(Mutant::FenceOfTheFirstKey), Request::Acquire(fence)) => {
                    server.run_turns(ctx);
                    return server.take_with_fence_of_first(ctx, keys, token, fence);
                }
                _ => {}
            }
            let answer = server.execute(ctx, (keys, mode), token, request);
            match (self.mutant, request, answer) {
                (
                    Some(Mutant::StoredFenceDecreases),
                    Request::StoreFence(fence),
                    Answer::BadFence,
                ) => server.store_downwards(ctx, token, fence),
                (Some(Mutant::ExtendRevives), Request::Extend(_), Answer::NotHeld) => {
                    server.revive(ctx, token)
                }
                (Some(Mutant::ExtendOfRevoked), Request::Extend(_), Answer::Revoked) => {
                    Answer::Held(Fence::ZERO)
                }
                (Some(Mutant::ReaderBesideWriter), Request::Acquire(fence), Answer::NotHeld)
                | (Some(Mutant::ReaderChoosesFence), Request::Acquire(fence), Answer::Held(_))
                    if mode == Mode::Shared =>
                {
                    Answer::Held(fence)
                }
                _ => answer,
            }
        })
    }

    /// Every event of a single server goes through this function.
    fn change<T>(&self, state: &mut State, node: u8, change: impl FnOnce(&mut Server) -> T) -> T {
        state.touched = state.touched.max(node + 1);
        self.change_interned(&mut state.servers[usize::from(node)], change)
    }

    fn change_all(&self, state: &mut State, change: impl Fn(&mut Server)) {
        for server in &mut state.servers {
            self.change_interned(server, &change);
        }
    }

    fn change_interned<T>(
        &self,
        interned: &mut Interned,
        change: impl FnOnce(&mut Server) -> T,
    ) -> T {
        let mut server = Server::clone(interned);
        let result = change(&mut server);
        *interned = self.interner.intern(server);
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
                // A world without releases sends none. Neither does a world without holders: there,
                // a lease may end at any moment anyway.
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
                    state.past.report(index, (fence, self.keys[index], self.modes[index]));
                    if self.rounds.is_none() {
                        Arc::make_mut(&mut state.clients[index]).forget();
                    }
                }
                Effect::Extended(round) => {
                    let lost = state.past.deleted_before_round[index];
                    if lost.is_some_and(|first| first <= round) {
                        state.past.broken = Some(Property::LostStaysLost);
                    }
                    let revoked = state.past.revoked_before_round[index];
                    if revoked.is_some_and(|first| first <= round) {
                        state.past.broken = Some(Property::RevokedStaysRevoked);
                    }
                }
            }
        }
        if state.clients[index].is_idle() {
            state.past.before[index] = Some(Fence::ZERO);
        }
        state.drop_unexpected_answers(rules);
    }

    fn restart(&self, state: &mut State, node: u8) {
        state.restarts -= 1;
        // The counter of the restarted node starts at its wall clock: above all earlier fences.
        state.wall_us += RESTART_US;
        let mut ctx = self.server_context(state);
        if self.mutant == Some(Mutant::ClockBackAtRestart) {
            ctx.now.wall_us = 0;
        }
        if self.disk {
            let stripes = self.fence_stripes();
            let reader = self.modes.iter().position(|mode| *mode == Mode::Shared);
            let named = reader.filter(|_| self.mutant == Some(Mutant::MirrorNamesHolder));
            let named = named.map(|client| {
                let attempt = state.clients[client].attempt(self.rules());
                Name::from_slice(&[u8::try_from(client).expect("a world has few clients"), attempt])
            });
            self.change(state, node, |server| {
                *server = match &named {
                    Some(reader) => server.restart_naming(ctx, stripes, reader),
                    None => server.restart_from_disk(ctx, stripes),
                };
            });
            return;
        }
        let abstains = self.clocks.is_some() && self.mutant != Some(Mutant::NoAbstention);
        let rejoin_delay_ms = if abstains { ctx.ttl.ms() } else { 0 };
        let restarted = Server::start(ctx, rejoin_delay_ms, self.fence_stripes());
        self.change(state, node, |server| *server = restarted);
        state.wall_us += self.wall_after_restart_us;
    }

    fn revoke(&self, state: &mut State, node: u8) {
        let ctx = self.server_context(state);
        let revocation = match self.mutant {
            Some(Mutant::RevokeFreesAtOnce) => Revocation::Ends,
            Some(Mutant::RevokeKeepsToken) => Revocation::KeepsToken,
            _ => Revocation::Marks,
        };
        let Some(client) = self.change(state, node, |server| server.revoke(ctx, revocation)) else {
            return;
        };
        let index = usize::from(client);
        let (rounds, past) = (state.clients[index].rounds(), &mut state.past);
        past.revoked_on[index] |= 1 << node;
        if past.revoked_on[index].count_ones() as usize >= self.rules().majority.size() {
            past.revoked_before_round[index].get_or_insert(rounds);
        }
    }

    fn tick(&self, state: &mut State) {
        state.tick += 1;
        let (ctx, moment, rules) = (self.server_context(state), self.moment(state), self.rules());
        self.change_all(state, |server| server.run_turns(ctx));
        for client in &mut state.clients {
            Arc::make_mut(client).check_validity(rules, moment);
        }
        state.drop_unexpected_answers(rules);
    }
}

/// With this number of fence counters, the two keys have different counters.
const STRIPES_APART: usize = 16;

/// Advance of the wall clocks at a restart: more than the number of grants in any world.
const RESTART_US: u64 = 100;

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let ttl = self.ttl();
        let clients = self.proposals.len();
        let start = |counter: &u64| {
            let now = Now { monotonic: Monotonic::default(), wall_us: *counter };
            self.interner.intern(Server::start(ServerContext { now, ttl }, 0, self.fence_stripes()))
        };
        let mut state = State {
            servers: self.counters.iter().map(start).collect(),
            clients: (0..clients).map(|_| Arc::new(Client::new())).collect(),
            network: Vec::new(),
            past: Past {
                before: vec![None; clients],
                deleted_before_round: vec![None; clients],
                revoked_on: vec![0; clients],
                revoked_before_round: vec![None; clients],
                ..Past::default()
            },
            tick: 0,
            wall_us: RESTART_US,
            repeats: self.repeats,
            restarts: self.restarts,
            deletes: self.deletes,
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
        if state.past.broken.is_some() || self.is_over(state) {
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
        if state.deletes {
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
                let effects = state.client(client).expire(self.rules(), moment);
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
                let ctx = self.server_context(&state);
                self.change(&mut state, node, |server| server.end(ctx, key));
            }
            Action::Restart(node) => self.restart(&mut state, node),
            Action::Delete => {
                state.deletes = false;
                let ctx = self.server_context(&state);
                self.change_all(&mut state, |server| server.end(ctx, Keys::Both));
                for (index, client) in
                    state.clients.iter().enumerate().filter(|(_, client)| client.is_holding())
                {
                    state.past.deleted_before_round[index] = Some(client.rounds());
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
                A_FENCE_IS_REQUESTED => State::a_fence_is_requested,
                A_HOLDER_IS_REVOKED => State::a_holder_is_revoked,
                _ => State::a_repair_is_requested,
            };
            stateright::Property::sometimes(name, condition)
        });
        always.chain(sometimes).collect()
    }
}

const ALL_HAVE_WON: &str = "each client wins a lock";
const A_FENCE_IS_REQUESTED: &str = "a node is asked to store a fence";
const A_HOLDER_IS_REVOKED: &str = "a majority has revoked a held lock";
const A_REPAIR_IS_REQUESTED: &str = "a node is asked to repair a lock";

impl World {
    pub(crate) fn must_hold(&self) -> Vec<Property> {
        let mut properties = vec![Property::FenceOnce, Property::FencesGrow];
        if self.clocks.is_some() {
            properties.push(Property::OneHolder);
        }
        if self.deletes {
            properties.push(Property::LostStaysLost);
        }
        if self.revokes {
            properties.push(Property::RevokedStaysRevoked);
        }
        properties
    }

    /// Returns the events without which a check proves nothing: each must happen in some state.
    pub(crate) fn must_happen(&self) -> impl Iterator<Item = &'static str> + use<> {
        let stored = (self.proposals.len() > 1).then_some(A_FENCE_IS_REQUESTED);
        let revoked = self.revokes.then_some(A_HOLDER_IS_REVOKED);
        let repaired = self.repair.then_some(A_REPAIR_IS_REQUESTED);
        [ALL_HAVE_WON].into_iter().chain(stored).chain(repaired).chain(revoked)
    }
}

impl World {
    fn begin(&self, state: &mut State, client: u8) {
        let moment = self.moment(state);
        state.past.before[usize::from(client)] = None;
        let proposal =
            Fence::new(self.proposals[usize::from(client)]).expect("a proposal is a fence");
        let effects = state.client(client).begin(self.rules(), proposal, moment);
        self.carry_out(state, client, effects);
    }

    /// Returns whether no client will report anything more: each is idle after its last attempt.
    fn is_over(&self, state: &State) -> bool {
        state.clients.iter().all(|client| client.is_idle() && client.attempts() >= self.attempts)
    }
}

impl State {
    fn breaks(&self, property: Property) -> bool {
        self.past.broken == Some(property)
    }

    fn has_two_holders(&self, world: &World) -> bool {
        let locks = world.keys.iter().zip(&world.modes);
        let holders =
            || self.clients.iter().zip(locks.clone()).filter(|(client, _)| client.is_holding());
        holders().enumerate().any(|(index, (_, (keys, mode)))| {
            holders().skip(index + 1).any(|(_, (others, other_mode))| {
                exclude_each_other((*keys, *mode), (*others, *other_mode))
            })
        })
    }

    fn all_have_won(world: &World, state: &Self) -> bool {
        state.past.fences.len() >= world.proposals.len()
    }

    fn a_fence_is_requested(_: &World, state: &Self) -> bool {
        state.asks(|request| matches!(request, Request::StoreFence(_)))
    }

    fn a_holder_is_revoked(_: &World, state: &Self) -> bool {
        let revoked = state.clients.iter().zip(&state.past.revoked_before_round);
        revoked.into_iter().any(|(client, revoked)| client.is_holding() && revoked.is_some())
    }

    fn a_repair_is_requested(_: &World, state: &Self) -> bool {
        state.asks(|request| matches!(request, Request::Repair(_)))
    }

    fn asks(&self, is_wanted: impl Fn(Request) -> bool) -> bool {
        self.network
            .iter()
            .any(|message| matches!(message.body, Body::Request(request) if is_wanted(request)))
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

    /// Returns whether the receiver of a message would use it.
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

    fn drop_unexpected_answers(&mut self, rules: Rules) {
        let mut network = std::mem::take(&mut self.network);
        network.retain(|message| self.is_expected(rules, message));
        self.network = network;
    }
}

impl Past {
    /// Returns the largest fence of the reported locks that exclude a lock of these keys and this
    /// mode.
    fn largest(&self, keys: Keys, mode: Mode) -> Fence {
        let excluded = |&&(_, others, other_mode): &&(Fence, Keys, Mode)| {
            exclude_each_other((keys, mode), (others, other_mode))
        };
        self.fences.iter().rev().find(excluded).map(|(fence, ..)| *fence).unwrap_or_default()
    }

    fn report(&mut self, client: usize, (fence, keys, mode): (Fence, Keys, Mode)) {
        let before = self.before[client].unwrap_or_default();
        // Clients that share a lock may have the same fence.
        let is_given = |&(other, others, other_mode): &(Fence, Keys, Mode)| {
            other == fence && exclude_each_other((keys, mode), (others, other_mode))
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

fn exclude_each_other(one: (Keys, Mode), other: (Keys, Mode)) -> bool {
    one.0.overlap(other.0) && (one.1 == Mode::Exclusive || other.1 == Mode::Exclusive)
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self {
            servers,
            clients,
            network,
            past,
            tick,
            wall_us,
            repeats,
            restarts,
            deletes,
            touched,
        } = self;
        (servers, clients, network, past).hash(state);
        (tick, wall_us, repeats, restarts, deletes, touched).hash(state);
    }
}
