//! The connections of a process: what is in flight, and the idle wait connections.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use quorlock_core::Ttl;
use quorlock_core::client::{Command, Keys, Request, Spec, Token};
use quorlock_core::quorum::Moment;

use super::clock::Ns;
use super::events::{Conn, Packet, Up};
use super::world::World;

pub(super) struct Connections {
    process: usize,
    open: BTreeMap<Conn, Connection>,
    /// The idle wait connections, by node.
    idle: Vec<Vec<Conn>>,
}

pub(super) struct Connection {
    pub(super) node: usize,
    pub(super) kind: ConnectionKind,
    pub(super) is_ready: bool,
    /// Whether to close the connection as soon as nothing is in flight on it.
    is_retired: bool,
    pub(super) in_flight: VecDeque<InFlight>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionKind {
    /// The number of the connection among those of its node.
    Shared(u64),
    /// A wait connection, and the WAIT that uses it, if any.
    Wait(Option<u64>),
}

/// What awaits a response, and when it was sent.
#[derive(Clone, Copy)]
pub(super) enum InFlight {
    /// The number of a request.
    Request(u64, Ns),
    /// HELLO or PING.
    Probe(Moment),
}

impl Connections {
    pub(super) fn new(process: usize, nodes: usize) -> Self {
        Self { process, open: BTreeMap::new(), idle: vec![Vec::new(); nodes] }
    }

    pub(super) fn connect(&mut self, node: usize, kind: ConnectionKind, world: &mut World) -> Conn {
        let conn = world.connect(self.process, node);
        let in_flight = VecDeque::new();
        let connection = Connection { node, kind, is_ready: false, is_retired: false, in_flight };
        self.open.insert(conn, connection);
        conn
    }

    fn find(&self, is_it: impl Fn(&Connection) -> bool) -> Option<Conn> {
        self.open.iter().find(|(_, connection)| is_it(connection)).map(|(&conn, _)| conn)
    }

    pub(super) fn shared(&self, node: usize, number: u64) -> Option<Conn> {
        let kind = ConnectionKind::Shared(number);
        self.find(|connection| (connection.node, connection.kind) == (node, kind))
    }

    pub(super) fn is_open(&self, conn: Conn) -> bool {
        self.open.contains_key(&conn)
    }

    pub(super) fn is_connecting(&self, conn: Conn) -> bool {
        self.open.get(&conn).is_some_and(|connection| !connection.is_ready)
    }

    pub(super) fn has_waits(&self) -> bool {
        self.find(|connection| matches!(connection.kind, ConnectionKind::Wait(Some(_)))).is_some()
    }

    /// Closes the connection as soon as nothing is in flight on it.
    pub(super) fn retire(&mut self, node: usize, number: u64, world: &mut World) {
        let Some(conn) = self.shared(node, number) else { return };
        let Some(connection) = self.open.get_mut(&conn) else { return };
        connection.is_retired = true;
        if !connection.is_ready || connection.in_flight.is_empty() {
            self.close(conn, world);
        }
    }

    fn close(&mut self, conn: Conn, world: &mut World) {
        if self.open.remove(&conn).is_some() {
            world.send_up(conn, Up::Close);
        }
    }

    pub(super) fn say_hello(&mut self, conn: Conn, now: Moment, world: &mut World) {
        self.send(conn, InFlight::Probe(now), Up::Hello, world);
    }

    pub(super) fn ping(&mut self, node: usize, number: u64, now: Moment, world: &mut World) {
        let Some(conn) = self.shared(node, number) else { return };
        let request = Request { token: Token::of_bits(0), command: Command::Ping };
        // A PING belongs to no lock.
        let ttl = Ttl::from_ms(1000).expect("a second is a ttl");
        let spec = Arc::new(Spec::exclusive(Keys::from_iter([""; 0]), ttl));
        let packet = Box::new(Packet { request, spec });
        self.send(conn, InFlight::Probe(now), Up::Request(packet), world);
    }

    pub(super) fn request(&mut self, conn: Conn, number: u64, packet: Packet, world: &mut World) {
        let in_flight = InFlight::Request(number, world.now);
        self.send(conn, in_flight, Up::Request(Box::new(packet)), world);
    }

    fn send(&mut self, conn: Conn, in_flight: InFlight, message: Up, world: &mut World) {
        if let Some(connection) = self.open.get_mut(&conn) {
            connection.in_flight.push_back(in_flight);
            world.send_up(conn, message);
        }
    }

    /// Takes what a response answers. Frees the connection of a WAIT, and closes a retired one.
    pub(super) fn take_answered(
        &mut self,
        conn: Conn,
        world: &mut World,
    ) -> Option<(usize, ConnectionKind, InFlight)> {
        let connection = self.open.get_mut(&conn)?;
        let (node, kind) = (connection.node, connection.kind);
        let answered = connection.in_flight.pop_front()?;
        if connection.is_retired && connection.in_flight.is_empty() {
            self.close(conn, world);
        } else if !connection.is_ready {
            connection.is_ready = true;
        } else if let ConnectionKind::Wait(Some(_)) = kind {
            self.free(conn, world);
        }
        Some((node, kind, answered))
    }

    /// Takes a connection that has ended, with what is unanswered on it.
    pub(super) fn take_lost(&mut self, conn: Conn) -> Option<Connection> {
        let lost = self.open.remove(&conn)?;
        self.idle[lost.node].retain(|&idle| idle != conn);
        Some(lost)
    }

    /// Takes an idle wait connection for a WAIT, if there is one.
    pub(super) fn take_idle(&mut self, node: usize, number: u64) -> Option<Conn> {
        let conn = self.idle[node].pop()?;
        if let Some(connection) = self.open.get_mut(&conn) {
            connection.kind = ConnectionKind::Wait(Some(number));
        }
        Some(conn)
    }

    /// Frees the connection of a WAIT, ready or not.
    pub(super) fn stop_waiting(&mut self, number: u64, world: &mut World) {
        let kind = ConnectionKind::Wait(Some(number));
        if let Some(conn) = self.find(|connection| connection.kind == kind) {
            self.free(conn, world);
        }
    }

    /// Frees the connection of a WAIT.
    pub(super) fn free(&mut self, conn: Conn, world: &mut World) {
        match self.open.get_mut(&conn) {
            Some(connection) if connection.is_ready && connection.in_flight.is_empty() => {
                connection.kind = ConnectionKind::Wait(None);
                self.idle[connection.node].push(conn);
            }
            _ => self.close(conn, world),
        }
    }
}
