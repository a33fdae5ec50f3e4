//! A client and its nodes in memory, which answer at once.

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::client::{
    Acquire, Action, Command, Context, Hold, HoldAction, NodeError, Outcome, Request, RequestId,
    Response, Spec,
};
use quorlock_core::node::{CommandError, Reply};
use quorlock_core::quorum::Moment;

use super::client::Client;
use super::{AcquireCommand, ExtendReply, Server};

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
    /// The node that answers last. With `None`, the nodes answer in the order of the requests.
    pub(crate) slowest: Option<usize>,
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

impl World {
    pub(crate) fn new(client: Client) -> Self {
        let nodes = client.topology.nodes().len();
        Self {
            nodes: (0..nodes).map(|_| Server::new()).collect(),
            paths: vec![Path::Fine; nodes],
            operator_reaches: vec![true; nodes],
            slowest: None,
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
            Command::Acquire { fence } | Command::AcquireAny { fence } => {
                let command = match request.command {
                    Command::AcquireAny { .. } => AcquireCommand::AcquireAny,
                    _ => AcquireCommand::Acquire,
                };
                let terms = (spec.mode, Some(fence), 0);
                match node.execute_acquire(&keys, token, spec.ttl.ms(), terms, command) {
                    Ok(Reply::Granted(fence)) => Response::Fence(fence),
                    Ok(Reply::GrantedOne { fence, key }) => {
                        Response::FenceAndKey { fence, waited: Duration::ZERO, key }
                    }
                    Err(CommandError::Held { number, is_older }) => {
                        Response::Held { number, is_older }
                    }
                    other => panic!("{other:?}"),
                }
            }
            Command::Inspect => match node.inspect_all_fields(keys[0]) {
                Some(_) => Response::Yes,
                None => Response::No,
            },
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
            Command::Release if node.release_all(&keys, token) => Response::Yes,
            Command::Release => Response::No,
            other => panic!("{other:?}"),
        }
    }

    /// Makes a call that does not wait, and asks for `slot` first. Returns `None` unless it
    /// acquires the lock.
    pub(crate) fn acquire_preferring(&mut self, spec: Arc<Spec>, slot: usize) -> Option<Hold> {
        let mut acquire = Acquire::new(spec, Some(Duration::ZERO), &self.ctx());
        acquire.prefer_slot(slot);
        acquire.begin(false, &mut self.ctx());
        let mut sends: Vec<Sent> = Vec::new();
        loop {
            while let Some(action) = acquire.poll() {
                match action {
                    Action::Send { id, request, .. } => {
                        sends.push(Sent { id, request, spec: Arc::clone(acquire.spec()) });
                    }
                    Action::Done(outcome) => {
                        let Outcome::Acquired(grant) = *outcome else { return None };
                        let mut hold = Hold::new(Arc::clone(acquire.spec()), grant);
                        self.deliver(&mut hold, sends);
                        return Some(hold);
                    }
                    Action::Release(mut release) => {
                        while let Some(send) = release.poll() {
                            let (id, request) = (send.id, send.request);
                            let spec = Arc::clone(release.spec());
                            let response = self.answer(&Sent { id, request, spec });
                            release.handle_response(id, &response, &self.ctx());
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
            if sends.is_empty() {
                self.pass_ms(10);
                acquire.handle_timeout(&mut self.ctx());
                continue;
            }
            let is_quick = |sent: &Sent| Some(sent.id.node) != self.slowest;
            let sent = sends.remove(sends.iter().position(is_quick).unwrap_or(0));
            let response = self.answer(&sent);
            acquire.handle_response(sent.id, &response, &mut self.ctx());
        }
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
