use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::context::{NodeStatus, Topology};
use super::late_timer::LateTimer;
use super::{ClientState, Hello, Random, limits};
use crate::NodeError;
use crate::node_set::{Admission, AgreedSet, SetReport, agree};
use crate::quorum::Moment;

/// The connections of one client to all of its nodes: back-off, liveness, admission.
///
/// After [`new`](Self::new) and each `handle_…`, carry out what [`poll`](Self::poll) returns, and
/// publish [`topology`](Self::topology) when it says [`LinkAction::Changed`].
#[derive(Debug)]
pub struct Links {
    nodes: Vec<Link>,
    expected_set: Option<String>,
    /// `None` while no majority reports the same set.
    agreed: Option<AgreedSet>,
    late: LateTimer,
    actions: VecDeque<LinkAction>,
}

/// Identifies one of a client's shared connections, or an attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    /// The index of the node.
    pub node: usize,
    /// The number of the connection among those of the node.
    pub number: u64,
}

/// An instruction to the driver of the links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkAction {
    /// Connect to a node and request its [`Hello`].
    Connect(ConnectionId),
    /// Stop connecting, or give up a connection. Its requests in flight may still be answered, for
    /// [`RELEASE_OVERTAKES`](limits::RELEASE_OVERTAKES).
    Close(ConnectionId),
    /// Send PING through this connection.
    Ping(ConnectionId),
    /// The topology has changed.
    Changed,
    /// Report an event to the operator.
    Notice(Notice),
}

/// An event for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The server of this node was restarted.
    Restarted {
        /// The index of the node.
        node: usize,
    },
    /// A majority reports no set. Clients with different lists of nodes could both win a lock.
    NoSet,
    /// A node does not vote, for this reason.
    NotAdmitted {
        /// The index of the node.
        node: usize,
        /// Why.
        error: NodeError,
    },
}

/// The state of a node's connection, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkHealth {
    /// Why the node cannot vote; `None` if it can.
    pub error: Option<NodeError>,
    /// Since when the connection has been in this state.
    pub since: Moment,
    /// The server's report about itself, while it is connected.
    pub hello: Option<Hello>,
}

#[derive(Debug)]
struct Link {
    name: Arc<str>,
    state: State,
    admission: Result<(), NodeError>,
    /// Whether an attempt to connect has succeeded or failed.
    was_tried: bool,
    /// Since when the connection has been in this state.
    since: Moment,
    /// The number of each unfinished attempt to connect, and when the attempt times out.
    connecting: SmallVec<[(u64, Moment); 2]>,
    /// When the next attempt begins, while there is no working connection.
    connect_at: Option<Moment>,
    pause: Duration,
    /// The number of the last attempt.
    last: u64,
    /// The run id of the server's last known start.
    run_id: Option<Arc<str>>,
    incarnation: u64,
    /// The set that the node belonged to when it was last connected.
    set: SetReport,
}

#[derive(Debug)]
enum State {
    Down(NodeError),
    Up(Box<Up>),
}

#[derive(Debug)]
struct Up {
    /// The number of the connection.
    number: u64,
    hello: Hello,
    liveness: Liveness,
}

#[derive(Debug)]
enum Liveness {
    /// The connection answers. The next PING is due at this moment.
    Answers(Moment),
    /// A PING is unanswered. At `due`, when `limit` has passed, the connection counts as silent.
    Asked { due: Moment, limit: Duration },
    /// The connection counts as silent, for this reason.
    Silent(NodeError),
}

impl Links {
    /// Starts to connect to nodes of these names. The program may name the set that it expects.
    pub fn new(
        names: impl IntoIterator<Item = Arc<str>>,
        expected_set: Option<String>,
        now: Moment,
    ) -> Self {
        let error = NodeError::Down { reason: "no answer yet".into() };
        let link = |name| Link {
            name,
            state: State::Down(error.clone()),
            admission: Ok(()),
            was_tried: false,
            since: now,
            connecting: SmallVec::new(),
            connect_at: Some(now),
            pause: limits::PAUSE_MIN,
            last: 0,
            run_id: None,
            incarnation: 0,
            set: SetReport::Unheard,
        };
        Self {
            nodes: names.into_iter().map(link).collect(),
            expected_set,
            agreed: None,
            late: LateTimer::default(),
            actions: VecDeque::new(),
        }
    }

    /// Returns the next action.
    pub fn poll(&mut self) -> Option<LinkAction> {
        self.actions.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout), unless an event comes first.
    pub fn poll_timeout(&self) -> Option<Moment> {
        self.late.next(self.next_due())
    }

    fn next_due(&self) -> Option<Moment> {
        self.nodes.iter().filter_map(Link::poll_timeout).reduce(Moment::earlier)
    }

    /// The nodes as they are now.
    pub fn topology(&self) -> Topology {
        Topology { nodes: self.nodes.iter().map(Link::status).collect() }
    }

    /// The state of each node's connection, by index.
    pub fn health(&self) -> Vec<LinkHealth> {
        self.nodes.iter().map(Link::health).collect()
    }

    /// Whether every node has been reached or has failed once.
    pub fn has_tried_all(&self) -> bool {
        self.nodes.iter().all(|link| link.was_tried)
    }

    /// Carries out what is due.
    pub fn handle_timeout(
        &mut self,
        now: Moment,
        client_state: &ClientState,
        random: &mut dyn Random,
    ) {
        if self.late.postpones(self.next_due(), now) {
            return;
        }
        for node in 0..self.nodes.len() {
            self.give_up_connecting(node, now);
            self.check(node, now, client_state);
            self.connect(node, now, random);
        }
    }

    fn give_up_connecting(&mut self, node: usize, now: Moment) {
        let link = &self.nodes[node];
        let late: SmallVec<[u64; 2]> = (link.connecting.iter())
            .filter_map(|&(number, due)| now.has_reached(due).then_some(number))
            .collect();
        for number in late {
            let id = ConnectionId { node, number };
            self.actions.push_back(LinkAction::Close(id));
            let ms = limits::HANDSHAKE.as_millis();
            let reason = format!("connecting took longer than {ms} ms");
            self.handle_connect_failed(id, NodeError::Down { reason }, now);
        }
    }

    /// Marks a connection with an overdue PING as silent, or sends the regular PING when it is due.
    fn check(&mut self, node: usize, now: Moment, client_state: &ClientState) {
        let link = &mut self.nodes[node];
        let State::Up(up) = &mut link.state else { return };
        match up.liveness {
            Liveness::Answers(check_at) if now.has_reached(check_at) => {
                self.ping(node, now, client_state);
            }
            Liveness::Asked { due, limit } if now.has_reached(due) => {
                up.liveness = Liveness::Silent(NodeError::timed_out(limit));
                link.connect_at = Some(now);
                link.pause = limits::PAUSE_MIN;
                link.since = now;
                self.actions.push_back(LinkAction::Changed);
            }
            Liveness::Answers(_) | Liveness::Asked { .. } | Liveness::Silent(_) => {}
        }
    }

    fn ping(&mut self, node: usize, now: Moment, client_state: &ClientState) {
        let State::Up(up) = &mut self.nodes[node].state else { return };
        let limit = limits::silence(client_state.round_trips.of(node));
        up.liveness = Liveness::Asked { due: now.plus(limit), limit };
        self.actions.push_back(LinkAction::Ping(ConnectionId { node, number: up.number }));
    }

    /// Makes another attempt to connect, if one is due. An unfinished attempt does not prevent the
    /// next one, which may succeed long before an attempt whose first packet was lost times out. It
    /// delays the next one, so that about six attempts are unfinished at most.
    fn connect(&mut self, node: usize, now: Moment, random: &mut dyn Random) {
        let link = &mut self.nodes[node];
        let due = link.connect_at.is_some_and(|at| now.has_reached(at));
        if !due {
            return;
        }
        let unfinished = u32::try_from(link.connecting.len()).unwrap_or(u32::MAX);
        link.last += 1;
        link.connecting.push((link.last, now.plus(limits::HANDSHAKE)));
        self.actions.push_back(LinkAction::Connect(ConnectionId { node, number: link.last }));
        // Without a random part, all clients of a node that recovers would connect at once.
        let pause = link.pause.max(limits::PAUSE_MAX.saturating_mul(unfinished));
        let part = Duration::from_micros(
            random.below(u64::try_from(pause.as_micros()).unwrap_or(u64::MAX) / 4 + 1),
        );
        link.connect_at = Some(now.plus(pause.saturating_sub(part)));
        link.pause = (link.pause * 2).min(limits::PAUSE_MAX);
    }

    /// Records that a node is connected. Returns whether the connection is used.
    pub fn handle_connected(&mut self, id: ConnectionId, hello: Hello, now: Moment) -> bool {
        let ConnectionId { node, number } = id;
        if !self.end_attempt(id) {
            return false;
        }
        self.stop_connecting(node);
        let link = &mut self.nodes[node];
        if let State::Up(old) = &link.state {
            self.actions.push_back(LinkAction::Close(ConnectionId { node, number: old.number }));
        }
        if let Some(run_id) = &hello.run_id {
            let before = link.run_id.replace(Arc::clone(run_id));
            if before.is_some_and(|before| before != *run_id) {
                link.incarnation += 1;
                self.actions.push_back(LinkAction::Notice(Notice::Restarted { node }));
            }
        }
        link.set = hello.set.clone();
        link.state = State::Up(Box::new(Up {
            number,
            hello,
            liveness: Liveness::Answers(now.plus(limits::PING_EVERY)),
        }));
        link.connect_at = None;
        link.pause = limits::PAUSE_MIN;
        link.since = now;
        self.admit();
        self.actions.push_back(LinkAction::Changed);
        true
    }

    /// Records that an attempt to connect has failed.
    pub fn handle_connect_failed(&mut self, id: ConnectionId, error: NodeError, now: Moment) {
        if !self.end_attempt(id) {
            return;
        }
        let link = &mut self.nodes[id.node];
        if error.is_permanent() {
            link.connect_at = Some(now.plus(limits::PAUSE_LONG));
        }
        if let State::Down(last) = &mut link.state
            && *last != error
        {
            *last = error;
            self.actions.push_back(LinkAction::Changed);
        }
    }

    /// Records that an attempt to connect has ended. Returns whether it was unfinished.
    fn end_attempt(&mut self, id: ConnectionId) -> bool {
        let link = &mut self.nodes[id.node];
        let index = link.connecting.iter().position(|(number, _)| *number == id.number);
        let Some(index) = index else { return false };
        link.connecting.remove(index);
        link.was_tried = true;
        true
    }

    fn stop_connecting(&mut self, node: usize) {
        for (number, _) in std::mem::take(&mut self.nodes[node].connecting) {
            self.actions.push_back(LinkAction::Close(ConnectionId { node, number }));
        }
    }

    /// Records that a connection has ended.
    pub fn handle_closed(&mut self, id: ConnectionId, now: Moment) {
        let link = &mut self.nodes[id.node];
        if !matches!(&link.state, State::Up(up) if up.number == id.number) {
            return;
        }
        link.state = State::Down(NodeError::connection_lost());
        link.since = now;
        link.connect_at = Some(now);
        self.actions.push_back(LinkAction::Close(id));
        self.admit();
        self.actions.push_back(LinkAction::Changed);
    }

    /// Records that a connection has answered PING.
    pub fn handle_pong(&mut self, id: ConnectionId, now: Moment) {
        let link = &mut self.nodes[id.node];
        let State::Up(up) = &mut link.state else { return };
        if up.number != id.number {
            return;
        }
        let answers = Liveness::Answers(now.plus(limits::PING_EVERY));
        if let Liveness::Silent(_) = std::mem::replace(&mut up.liveness, answers) {
            link.since = now;
            link.connect_at = None;
            self.stop_connecting(id.node);
            self.actions.push_back(LinkAction::Changed);
        }
    }

    /// Records that a request through this connection was not answered in time.
    pub fn handle_suspicion(&mut self, id: ConnectionId, now: Moment, client_state: &ClientState) {
        if let State::Up(up) = &self.nodes[id.node].state
            && up.number == id.number
            && matches!(up.liveness, Liveness::Answers(_))
        {
            self.ping(id.node, now, client_state);
        }
    }

    /// Decides which nodes may vote.
    fn admit(&mut self) {
        let reports: Vec<_> = self.nodes.iter().map(|link| link.set.clone()).collect();
        let agreement = agree(self.expected_set.as_deref(), &reports);
        if self.agreed != agreement.agreed {
            self.agreed = agreement.agreed;
            if self.agreed == Some(AgreedSet::Unset) {
                self.actions.push_back(LinkAction::Notice(Notice::NoSet));
            }
        }
        for (node, by_set) in agreement.nodes.into_iter().enumerate() {
            let admission = self.admission(node).and(match by_set {
                Admission::Admitted => Ok(()),
                Admission::Refused(reason) => {
                    Err(NodeError::NotAdmitted { reason: reason.to_string() })
                }
                Admission::Unknown => Err(NodeError::AwaitsMajority),
            });
            let link = &mut self.nodes[node];
            if link.admission == admission {
                continue;
            }
            link.admission.clone_from(&admission);
            if let Err(error) = admission
                && error.is_permanent()
            {
                self.actions.push_back(LinkAction::Notice(Notice::NotAdmitted { node, error }));
            }
        }
    }

    /// Whether the node may vote as far as its server is concerned, whatever its set.
    fn admission(&self, node: usize) -> Result<(), NodeError> {
        let Some(hello) = self.nodes[node].hello() else { return Ok(()) };
        if let Some(mode) = hello.mode.clone().filter(|mode| mode != "standalone") {
            return Err(NodeError::WrongMode { mode });
        }
        if hello.is_replica {
            return Err(NodeError::Replica);
        }
        if hello.module_version.is_none() {
            return Err(NodeError::NoModule);
        }
        let same = |other: &&Link| {
            hello.run_id.is_some()
                && other.hello().is_some_and(|other| other.run_id == hello.run_id)
        };
        if let Some(other) = self.nodes[..node].iter().find(same) {
            return Err(NodeError::SameServer { node: other.name.to_string() });
        }
        Ok(())
    }
}

impl Link {
    fn hello(&self) -> Option<&Hello> {
        match &self.state {
            State::Up(up) => Some(&up.hello),
            State::Down(_) => None,
        }
    }

    fn poll_timeout(&self) -> Option<Moment> {
        let connecting = self.connecting.iter().map(|(_, due)| *due);
        let up = match &self.state {
            State::Up(up) => match up.liveness {
                Liveness::Answers(due) | Liveness::Asked { due, .. } => Some(due),
                Liveness::Silent(_) => None,
            },
            State::Down(_) => None,
        };
        connecting.chain(self.connect_at).chain(up).reduce(Moment::earlier)
    }

    fn status(&self) -> NodeStatus {
        let link = match &self.state {
            State::Down(error) => Err(error.clone()),
            State::Up(up) => match &up.liveness {
                Liveness::Silent(error) => Err(error.clone()),
                Liveness::Answers(_) | Liveness::Asked { .. } => Ok(up.number),
            },
        };
        let (admission, incarnation) = (self.admission.clone(), self.incarnation);
        NodeStatus { link, admission, incarnation }
    }

    fn health(&self) -> LinkHealth {
        let NodeStatus { link, admission, .. } = self.status();
        let error = link.map(|_| ()).and(admission).err();
        LinkHealth { error, since: self.since, hello: self.hello().cloned() }
    }
}
