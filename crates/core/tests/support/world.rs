//! A client and its nodes in memory, which answer at once.

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::client::{
    Acquire, Action, Command, Context, Hold, HoldAction, NodeError, Outcome, Release, Request,
    RequestId, Response, Spec,
};
use quorlock_core::node::{BlockedId, CommandError, Reply};
use quorlock_core::quorum::Moment;

use super::client::Client;
use super::{AcquireCommand, ExtendReply, Server, WaitResult};

/// What the network does to the requests to a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    Fine,
    /// Requests arrive, and their answers do not.
    AnswersLost,
    /// No request arrives.
    Down,
}

pub(crate) struct World {
    /// The nodes share one clock.
    pub(crate) nodes: Vec<Server>,
    /// The client's path to each node.
    pub(crate) paths: Vec<Path>,
    /// Whether an operator reaches each node.
    pub(crate) operator_reaches: Vec<bool>,
    /// The node that answers first. With `None`, the nodes answer in the order of the requests.
    pub(crate) first: Option<usize>,
    pub(crate) client: Client,
    now_ms: u64,
}

/// A request on its way to a node, and the lock that it is about.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) id: RequestId,
    pub(crate) request: Request,
    pub(crate) spec: Arc<Spec>,
}

/// A call, and what is unanswered.
pub(crate) struct Call {
    pub(crate) acquire: Acquire,
    pub(crate) sends: Vec<Sent>,
    waits: Vec<Waiting>,
}

/// A WAIT that a node has queued.
struct Waiting {
    id: RequestId,
    blocked_id: BlockedId,
    spec: Arc<Spec>,
}

impl World {
    pub(crate) fn new(client: Client) -> Self {
        let nodes = client.topology.nodes().len();
        Self {
            nodes: (0..nodes).map(|_| Server::new()).collect(),
            paths: vec![Path::Fine; nodes],
            operator_reaches: vec![true; nodes],
            first: None,
            client,
            now_ms: 1000,
        }
    }

    pub(crate) fn now(&self) -> Moment {
        Moment::default().plus(Duration::from_millis(self.now_ms))
    }

    pub(crate) fn ctx(&mut self) -> Context<'_> {
        self.client.ctx(self.now(), self.nodes[0].now().wall_us)
    }

    pub(crate) fn pass_ms(&mut self, ms: u64) {
        self.now_ms += ms;
        for node in &mut self.nodes {
            node.turn_after_ms(ms);
        }
    }

    /// A node's response to a request of the client.
    pub(crate) fn answer(&mut self, sent: &Sent) -> Response {
        let lost = Response::Failed(NodeError::timed_out(Duration::from_millis(50)));
        match self.paths[sent.id.node] {
            Path::Fine => self.execute(sent),
            Path::AnswersLost => {
                self.execute(sent);
                lost
            }
            Path::Down => lost,
        }
    }

    fn execute(&mut self, Sent { id, request, spec }: &Sent) -> Response {
        let node = &mut self.nodes[id.node];
        let token = request.token.as_str().as_bytes();
        let keys: Vec<&[u8]> = spec.keys.iter().collect();
        match request.command {
            Command::Acquire { .. } | Command::AcquireAny { .. } => {
                self.acquire_or_wait(id.node, request, spec).expect("a request without WAIT")
            }
            Command::Extend { fence } => {
                match node.extend_as(spec.mode, &keys, token, spec.ttl.ms(), fence, None) {
                    ExtendReply::Held { fence } => Response::Fence(fence),
                    ExtendReply::NotHeld => Response::No,
                    ExtendReply::Revoked { left_ms } => {
                        Response::Failed(NodeError::Revoked { left_ms })
                    }
                    other => panic!("{other:?}"),
                }
            }
            Command::Yield => match node.yields(&keys, token) {
                Some(true) => Response::Yes,
                Some(false) => Response::Kept,
                None => Response::No,
            },
            Command::Release if node.release_all(&keys, token) => Response::Yes,
            Command::Release => Response::No,
            other => panic!("{other:?}"),
        }
    }

    /// ACQUIRE or ACQUIREANY. A client that waits is answered later, under its id.
    fn acquire_or_wait(
        &mut self,
        node: usize,
        request: &Request,
        spec: &Spec,
    ) -> Result<Response, BlockedId> {
        let keys: Vec<&[u8]> = spec.keys.iter().collect();
        let (fence, wait_ms, command) = match request.command {
            Command::Acquire { fence } => (fence, 0, AcquireCommand::Acquire),
            Command::AcquireAny { fence } => (fence, 0, AcquireCommand::AcquireAny),
            Command::Wait { fence, wait } => {
                let is_any = spec.any.is_some();
                let ms = u64::try_from(wait.as_millis()).unwrap().max(1);
                let any = AcquireCommand::AcquireAny;
                (fence, ms, if is_any { any } else { AcquireCommand::Acquire })
            }
            other => panic!("{other:?}"),
        };
        let (terms, token) = ((spec.mode, Some(fence), wait_ms), request.token.as_str().as_bytes());
        let node = &mut self.nodes[node];
        match node.execute_acquire(&keys, token, spec.ttl.ms(), terms, command) {
            Ok(Reply::Granted(fence)) => Ok(Response::Fence(fence)),
            Ok(Reply::GrantedOne { fence, key }) => {
                Ok(Response::FenceAndKey { fence, waited: Duration::ZERO, key })
            }
            Ok(Reply::Waits) => Err(node.last_blocked_id()),
            Err(CommandError::Held { number, is_older }) => Ok(Response::Held { number, is_older }),
            other => panic!("{other:?}"),
        }
    }

    /// The answer to a client that waited on a node; `None` while it waits.
    fn wait_answer(&self, node: usize, blocked_id: BlockedId, spec: &Spec) -> Option<Response> {
        let node = &self.nodes[node];
        let result = node.wait_results.iter().find(|(id, _)| *id == blocked_id)?.1;
        Some(match result {
            WaitResult::Granted { fence, waited_us } => {
                let waited = Duration::from_micros(waited_us);
                let granted = node.granted_keys.iter().find(|(id, _)| *id == blocked_id);
                let place = |(_, granted): &(_, Vec<u8>)| {
                    spec.keys.iter().position(|key| key == granted.as_slice())
                };
                match granted.and_then(place) {
                    Some(key) => Response::FenceAndKey { fence, waited, key },
                    None => Response::FenceAfterWait { fence, waited },
                }
            }
            WaitResult::Refused => match node.refusals.iter().find(|(id, ..)| *id == blocked_id) {
                Some(&(_, number, is_older)) => Response::Held { number, is_older },
                None => Response::No,
            },
            WaitResult::Failed(error) => panic!("{error:?}"),
        })
    }

    /// Makes a call that does not wait, and asks for `slot` first. Returns `None` unless it
    /// acquires the lock.
    pub(crate) fn acquire_preferring(&mut self, spec: Arc<Spec>, slot: usize) -> Option<Hold> {
        let mut call = self.begin(spec, Some(Duration::ZERO), slot);
        let outcome = self.run_for_ms(&mut call, 1000).expect("a call that does not wait ends");
        self.hold_of(call, outcome)
    }

    /// Delivers the requests of a call, and the answers, for this long. Returns its outcome.
    pub(crate) fn run_for_ms(&mut self, call: &mut Call, ms: u64) -> Option<Outcome> {
        let end = self.now().plus(Duration::from_millis(ms));
        loop {
            if let Some(outcome) = self.step(call) {
                return Some(outcome);
            }
            if call.sends.is_empty() {
                if self.now().has_reached(end) {
                    return None;
                }
                self.pass_ms(1);
                call.acquire.handle_timeout(&mut self.ctx());
            }
        }
    }

    /// Begins a call for a lock, which asks for `slot` first.
    pub(crate) fn begin(&mut self, spec: Arc<Spec>, wait: Option<Duration>, slot: usize) -> Call {
        let mut acquire = Acquire::new(spec, wait, &self.ctx());
        acquire.prefer_slot(slot);
        acquire.begin(&mut self.ctx());
        Call { acquire, sends: Vec::new(), waits: Vec::new() }
    }

    /// Carries out the actions of a call, and delivers one answer, if there is one. Returns the
    /// outcome, once.
    pub(crate) fn step(&mut self, call: &mut Call) -> Option<Outcome> {
        while let Some(action) = call.acquire.poll() {
            match action {
                Action::Send { id, request, spec, .. } => {
                    call.sends.push(Sent { id, request, spec });
                }
                Action::Wait { id } => self.stand_in_line(id, call),
                Action::Release(release) => drop(self.deliver_release(*release)),
                Action::Suspect { .. } => {}
                Action::Done(outcome) => return Some(outcome),
            }
        }
        let is_first = |sent: &Sent| Some(sent.id.node) == self.first;
        let answered = |wait: &Waiting| self.wait_answer(wait.id.node, wait.blocked_id, &wait.spec);
        let (id, response) =
            if let Some(at) = call.waits.iter().position(|it| answered(it).is_some()) {
                let wait = call.waits.remove(at);
                (wait.id, answered(&wait).unwrap())
            } else if call.sends.is_empty() {
                return None;
            } else {
                let sent = call.sends.remove(call.sends.iter().position(is_first).unwrap_or(0));
                (sent.id, self.answer(&sent))
            };
        call.acquire.handle_response(id, &response, &mut self.ctx());
        None
    }

    fn stand_in_line(&mut self, id: RequestId, call: &mut Call) {
        let request = call.acquire.handle_wait_connection(id, &mut self.ctx());
        let Some((request, spec)) = request.filter(|_| self.paths[id.node] != Path::Down) else {
            return;
        };
        match self.acquire_or_wait(id.node, &request, &spec) {
            Ok(response) => call.acquire.handle_response(id, &response, &mut self.ctx()),
            Err(blocked_id) => call.waits.push(Waiting { id, blocked_id, spec }),
        }
    }

    /// The lock that a call has acquired, after all answers to the call; `None` if it has failed.
    pub(crate) fn hold_of(&mut self, mut call: Call, outcome: Outcome) -> Option<Hold> {
        while let Some(action) = call.acquire.poll() {
            if let Action::Release(release) = action {
                self.deliver_release(*release);
            }
        }
        let Outcome::Acquired(mut hold) = outcome else { return None };
        self.deliver(&mut hold, call.sends);
        for Waiting { id, blocked_id, spec } in call.waits {
            let response = self.wait_answer(id.node, blocked_id, &spec).unwrap_or_else(|| {
                self.nodes[id.node].disconnect(blocked_id);
                Response::Failed(NodeError::connection_lost())
            });
            hold.handle_response(id, &response, &self.ctx());
        }
        Some(*hold)
    }

    /// Delivers a release. Returns the responses of the nodes.
    pub(crate) fn deliver_release(&mut self, mut release: Release) -> Vec<Response> {
        let mut responses = Vec::new();
        while let Some(send) = release.poll() {
            let (id, request, spec) = (send.id, send.request, Arc::clone(release.spec()));
            let response = self.answer(&Sent { id, request, spec });
            release.handle_response(id, &response, &self.ctx());
            responses.push(response);
        }
        responses
    }

    /// Delivers a holder's requests, and the requests that follow from the responses.
    pub(crate) fn deliver(&mut self, hold: &mut Hold, mut sends: Vec<Sent>) {
        loop {
            for sent in sends {
                let response = self.answer(&sent);
                hold.handle_response(sent.id, &response, &self.ctx());
            }
            sends = sends_of(hold);
            if sends.is_empty() {
                return;
            }
        }
    }

    /// Runs a whole round of extensions.
    pub(crate) fn extend(&mut self, hold: &mut Hold) {
        hold.extend(&self.ctx());
        let sends = sends_of(hold);
        self.deliver(hold, sends);
    }
}

/// The requests that a holder sends now. Drops its other actions.
pub(crate) fn sends_of(hold: &mut Hold) -> Vec<Sent> {
    let mut sends = Vec::new();
    while let Some(action) = hold.poll() {
        if let HoldAction::Send(send) = action {
            sends.push(Sent { id: send.id, request: send.request, spec: Arc::clone(hold.spec()) });
        }
    }
    sends
}
