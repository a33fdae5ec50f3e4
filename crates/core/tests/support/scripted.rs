//! The environment of a client's state machines, and a call whose answers the test gives. Most
//! clients have three nodes.

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::client::{
    Acquire, Action, ClientState, Command, Context, Failure, Hold, Keys, NodeStatus,
    OutgoingRequest, Random, Reason, Release, RequestId, Response, Spec, Token, Topology, limits,
};
use quorlock_core::quorum::{Majority, Moment, Ownership};
use quorlock_core::{ClientRule, Fence, NodeError, Ttl, break_rule};

const WALL_US: u64 = 1_800_000_000_000_000;
pub(crate) const TTL: Duration = Duration::from_secs(1);
pub(crate) const ROUND_TRIP: Duration = limits::ROUND_TRIP_UNKNOWN;
pub(crate) const LONG: Option<Duration> = Some(Duration::from_secs(60));
pub(crate) const NO_WAIT: Option<Duration> = Some(Duration::ZERO);

/// Tokens that count up, and pauses that are as long as a number allows.
struct TestRandom {
    last_token: u128,
    pause: u64,
}

impl Random for TestRandom {
    fn bits(&mut self) -> Option<u128> {
        self.last_token += 1;
        Some(self.last_token)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.pause.min(end - 1)
    }
}

pub(crate) struct Client {
    pub(crate) state: ClientState,
    pub(crate) topology: Topology,
    random: TestRandom,
}

impl Client {
    /// A client that is connected to `nodes` nodes, all of which vote. Its pauses are the shortest.
    pub(crate) fn new(nodes: usize) -> Self {
        Self::with_pauses(nodes, 0)
    }

    /// A client whose random pauses are the shortest ones and this number, where they may be.
    pub(crate) fn with_pauses(nodes: usize, pause: u64) -> Self {
        let status = NodeStatus { link: Ok(0), admission: Ok(()), incarnation: 0 };
        Self {
            state: ClientState::new(Majority::of(nodes).unwrap()),
            topology: Topology { nodes: vec![status; nodes] },
            random: TestRandom { last_token: 0, pause },
        }
    }

    /// Takes away the connection to a node. Requests to the node fail with this error.
    pub(crate) fn disconnect(&mut self, node: usize, error: NodeError) {
        self.topology.nodes[node].link = Err(error);
    }

    /// Replaces the connection to a node by the one with this number.
    pub(crate) fn reconnect(&mut self, node: usize, connection: u64) {
        self.topology.nodes[node].link = Ok(connection);
    }

    pub(crate) fn ctx(&mut self, now: Moment) -> Context<'_> {
        let Self { state, topology, random } = self;
        Context { now, wall_us: WALL_US, client_state: state, topology, random }
    }
}

/// An exclusive lock on all of these keys.
pub(crate) fn spec(keys: Keys, ttl_ms: u64) -> Spec {
    Spec::exclusive(keys, Ttl::from_ms(ttl_ms).unwrap())
}

pub(crate) struct ScriptedCall {
    pub(crate) client: Client,
    pub(crate) call: Acquire,
    /// The present moment, counted from `start()`.
    pub(crate) at: Duration,
    /// What the call has sent, and the test has not answered.
    pub(crate) sent: Vec<OutgoingRequest>,
    pub(crate) releases: Vec<Release>,
    pub(crate) outcome: Option<Result<Box<Hold>, Failure>>,
}
pub(crate) fn start() -> Moment {
    Moment::default().plus(Duration::from_secs(1))
}

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn ticket(above_clock: u64) -> Fence {
    Fence::new(WALL_US + above_clock).unwrap()
}

pub(crate) fn granted() -> Response {
    granted_after(Duration::ZERO)
}

pub(crate) fn granted_after(waited: Duration) -> Response {
    Response::Granted { fence: ticket(0), waited, key: None }
}

/// A refusal with the number `above_clock`.
pub(crate) fn held(above_clock: u64, is_older: bool) -> Response {
    Response::Held { number: ticket(above_clock), is_older }
}

pub(crate) fn down() -> Response {
    Response::Failed(NodeError::connection_lost())
}

impl ScriptedCall {
    pub(crate) fn new(wait: Option<Duration>) -> Self {
        Self::begin(Client::new(3), spec(Keys::from_iter(["k0"]), 1000), wait)
    }

    /// A call for any one of so many keys.
    pub(crate) fn for_any(keys: usize, wait: Option<Duration>) -> Self {
        let names: Keys = (0..keys).map(|key| format!("k{key}")).collect();
        let spec = Spec { any: Some(names.clone()), ..spec(names, 1000) };
        Self::begin(Client::new(3), spec, wait)
    }

    pub(crate) fn begin(client: Client, spec: Spec, wait: Option<Duration>) -> Self {
        let mut this = Self::queued(client, spec, wait);
        this.drive(Acquire::begin);
        this
    }

    /// A call that waits for its turn in the local queue.
    pub(crate) fn queued(mut client: Client, spec: Spec, wait: Option<Duration>) -> Self {
        let spec = Spec { min_validity: TTL / 2, ..spec };
        let call = Acquire::new(Arc::new(spec), wait, &client.ctx(start()));
        let at = Duration::ZERO;
        let (sent, releases, outcome) = (Vec::new(), Vec::new(), None);
        Self { client, call, at, sent, releases, outcome }
    }

    /// A call that stands in line on nodes 1 and 2, after a grant by node 0.
    pub(crate) fn with_one_grant() -> Self {
        let mut this = Self::new(LONG);
        this.answer_all(&[granted(), held(500, true), held(300, true)]);
        this.answer(0, &granted());
        this
    }

    /// A call that stands in line on all nodes.
    pub(crate) fn in_line(wait: Option<Duration>) -> Self {
        let mut this = Self::new(wait);
        this.answer_all(&[held(1, true), held(1, true), held(1, true)]);
        this
    }

    pub(crate) fn ctx(&mut self) -> Context<'_> {
        self.client.ctx(start().plus(self.at))
    }

    /// Passes an event to the call, and carries out the actions that follow.
    pub(crate) fn drive(&mut self, event: impl FnOnce(&mut Acquire, &mut Context<'_>)) {
        event(&mut self.call, &mut self.client.ctx(start().plus(self.at)));
        while let Some(action) = self.call.poll() {
            match action {
                Action::Send(send) => self.sent.push(send),
                Action::Wait { id } => {
                    let ctx = &mut self.client.ctx(start().plus(self.at));
                    let wait = self.call.handle_wait_connection(id, ctx);
                    self.sent.extend(wait.map(|(request, spec)| OutgoingRequest {
                        id,
                        connection: 0,
                        request,
                        spec,
                    }));
                }
                Action::Release(release) => self.releases.push(*release),
                Action::Done(outcome) => self.outcome = Some(outcome),
                _ => {}
            }
        }
    }

    /// Takes the last unanswered request to a node.
    pub(crate) fn take_sent(&mut self, node: usize) -> OutgoingRequest {
        let last = self.sent.iter().rposition(|sent| sent.id.node == node);
        self.sent.remove(last.unwrap())
    }

    /// Answers the last request to a node.
    pub(crate) fn answer(&mut self, node: usize, response: &Response) {
        let id = self.take_sent(node).id;
        self.answer_to(id, response);
    }

    pub(crate) fn answer_to(&mut self, id: RequestId, response: &Response) {
        self.drive(|call, ctx| call.handle_response(id, response, ctx));
    }

    pub(crate) fn answer_all(&mut self, responses: &[Response; 3]) {
        (0..3).for_each(|node| self.answer(node, &responses[node]));
    }

    pub(crate) fn fire_timer(&mut self) {
        let due = start().until(self.call.poll_timeout().unwrap());
        self.at = self.at.max(due);
        self.drive(Acquire::handle_timeout);
    }

    /// Fires timers until the call ends. The nodes answer nothing but that it may keep its grants.
    pub(crate) fn fire_timers_until_the_end(&mut self) {
        while self.outcome.is_none() {
            self.fire_timer();
            for (node, _) in self.yields() {
                self.answer(node, &Response::Kept);
            }
        }
    }

    /// Fires timers until the call sends YIELD, which is left unanswered.
    pub(crate) fn fire_until_yield(&mut self) {
        while self.yields().is_empty() {
            self.fire_timer();
        }
    }

    /// The nodes and the tokens of the unanswered YIELDs.
    pub(crate) fn yields(&self) -> Vec<(usize, Token)> {
        let yields = self.sent.iter().filter(|sent| sent.request.command == Command::Yield);
        yields.map(|sent| (sent.id.node, sent.request.token)).collect()
    }

    /// The node, the token and the ticket of each unanswered ACQUIRE without WAIT.
    pub(crate) fn asked(&self) -> Vec<(usize, Token, Fence)> {
        let ticket = |command| match command {
            Command::Acquire { fence } | Command::AcquireAny { fence } => Some(fence),
            _ => None,
        };
        self.with_ticket(ticket)
    }

    /// The node, the token and the ticket of each unanswered WAIT.
    pub(crate) fn in_line_on(&self) -> Vec<(usize, Token, Fence)> {
        let ticket = |command| match command {
            Command::Wait { fence, .. } => Some(fence),
            _ => None,
        };
        self.with_ticket(ticket)
    }

    fn with_ticket(&self, ticket: impl Fn(Command) -> Option<Fence>) -> Vec<(usize, Token, Fence)> {
        // Only requests with the present token count.
        let token = self.sent.last().map(|sent| sent.request.token);
        let present = self.sent.iter().filter(|sent| Some(sent.request.token) == token);
        let with_ticket = |OutgoingRequest { id, request, .. }: &OutgoingRequest| {
            Some((id.node, request.token, ticket(request.command)?))
        };
        present.filter_map(with_ticket).collect()
    }

    pub(crate) fn is_acquired(&self) -> bool {
        matches!(self.outcome, Some(Ok(_)))
    }

    pub(crate) fn failed(&self) -> Option<Reason> {
        match &self.outcome {
            Some(Err(failure)) => Some(failure.reason),
            _ => None,
        }
    }

    /// The acquired lock.
    pub(crate) fn hold(&mut self) -> Hold {
        match self.outcome.take() {
            Some(Ok(hold)) => *hold,
            other => panic!("{other:?}"),
        }
    }

    /// What is left of the validity of the acquired lock.
    pub(crate) fn left(&self) -> Duration {
        match &self.outcome {
            Some(Ok(hold)) => match hold.ownership(start().plus(self.at)) {
                Ownership::Held(left) => left,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
}

/// Runs a claim with the rule broken. The claim must then be false, and true without.
pub(crate) fn shows(mutant: ClientRule, claim: impl Fn() -> bool) {
    assert!(claim(), "{mutant:?} is not broken");
    break_rule(Some(mutant));
    let holds = claim();
    break_rule(None);
    assert!(!holds, "{mutant:?}");
}
