//! The connections of a process: handshakes, what is in flight, and the idle wait connections.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use quorlock_core::Ttl;
use quorlock_core::client::{Command, Keys, Request, Response, Spec, Token};
use quorlock_core::quorum::Moment;

use super::clock::Ns;
use super::events::{Conn, Down, Packet, Up};
use super::world::World;

pub(super) struct Connections {
    process: usize,
    open: BTreeMap<Conn, Connection>,
    /// The idle wait connections, by node.
    idle: Vec<Vec<Conn>>,
}

struct Connection {
    node: usize,
    kind: ConnectionKind,
    hello_sent_at: Option<Moment>,
    is_ready: bool,
    /// Whether to close the connection as soon as nothing is in flight on it.
    is_retired: bool,
    in_flight: VecDeque<InFlight>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionKind {
    /// The number of the connection among those of its node.
    Shared(u64),
    /// A wait connection, and the WAIT that uses it, if any.
    Wait(Option<u64>),
}

/// What a response answers, and when that was sent.
#[derive(Clone, Copy)]
enum InFlight {
    Request(u64, Ns),
    Ping(Moment),
}

/// What a process learns from a message.
pub(super) enum Received {
    /// A connection is ready. Its HELLO was sent at this time.
    Ready {
        node: usize,
        kind: ConnectionKind,
        run_id: Arc<str>,
        sent: Option<Moment>,
    },
    Answer {
        number: u64,
        sent: Ns,
        response: Response,
    },
    Pong {
        node: usize,
        connection: u64,
        sent: Moment,
    },
}

/// A connection that has ended.
pub(super) struct Lost {
    pub(super) node: usize,
    pub(super) kind: ConnectionKind,
    pub(super) was_ready: bool,
    /// The requests without a response.
    pub(super) requests: Vec<u64>,
}

impl Connections {
    pub(super) fn new(process: usize, nodes: usize) -> Self {
        Self { process, open: BTreeMap::new(), idle: vec![Vec::new(); nodes] }
    }

    pub(super) fn connect(&mut self, node: usize, kind: ConnectionKind, world: &mut World) -> Conn {
        let conn = world.connect(self.process, node);
        let connection = Connection {
            node,
            kind,
            hello_sent_at: None,
            is_ready: false,
            is_retired: false,
            in_flight: VecDeque::new(),
        };
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

    pub(super) fn is_connecting(&self, conn: Conn) -> bool {
        self.open.get(&conn).is_some_and(|connection| !connection.is_ready)
    }

    pub(super) fn has_waits(&self) -> bool {
        self.find(|connection| matches!(connection.kind, ConnectionKind::Wait(Some(_)))).is_some()
    }

    /// Closes the connection as soon as nothing is in flight on it.
    pub(super) fn retire(&mut self, conn: Conn, world: &mut World) {
        let Some(connection) = self.open.get_mut(&conn) else { return };
        connection.is_retired = true;
        if !connection.is_ready || connection.in_flight.is_empty() {
            self.close(conn, world);
        }
    }

    fn close(&mut self, conn: Conn, world: &mut World) {
        if self.open.remove(&conn).is_some() {
            world.close(conn);
        }
    }

    /// Sends a request that was made at `sent`, with its number.
    pub(super) fn send(
        &mut self,
        conn: Conn,
        (number, sent): (u64, Ns),
        request: Request,
        spec: Arc<Spec>,
        world: &mut World,
    ) {
        self.put(conn, InFlight::Request(number, sent), Packet { request, spec }, world);
    }

    pub(super) fn ping(&mut self, conn: Conn, now: Moment, world: &mut World) {
        let request = Request { token: Token::of_bits(0), command: Command::Ping };
        // A PING belongs to no lock.
        let ttl = Ttl::from_ms(1000).expect("a second is a ttl");
        let spec = Arc::new(Spec::exclusive(Keys::from_iter([""; 0]), ttl));
        self.put(conn, InFlight::Ping(now), Packet { request, spec }, world);
    }

    fn put(&mut self, conn: Conn, in_flight: InFlight, packet: Packet, world: &mut World) {
        let Some(connection) = self.open.get_mut(&conn) else { return };
        connection.in_flight.push_back(in_flight);
        world.send_up(conn, Up::Request(Box::new(packet)));
    }

    /// Takes an idle wait connection for a WAIT, if there is one.
    pub(super) fn take_idle(&mut self, node: usize, number: u64) -> Option<Conn> {
        let conn = self.idle[node].pop()?;
        if let Some(connection) = self.open.get_mut(&conn) {
            connection.kind = ConnectionKind::Wait(Some(number));
        }
        Some(conn)
    }

    /// Returns the connection of a WAIT, ready or not.
    pub(super) fn of_wait(&self, number: u64) -> Option<Conn> {
        self.find(|connection| connection.kind == ConnectionKind::Wait(Some(number)))
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

    /// Handles a message; the end of a connection is for [`lose`](Self::lose).
    pub(super) fn receive(
        &mut self,
        conn: Conn,
        message: Down,
        now: Moment,
        world: &mut World,
    ) -> Option<Received> {
        let connection = self.open.get_mut(&conn)?;
        let (node, kind) = (connection.node, connection.kind);
        match message {
            Down::Hello { run_id } => {
                connection.is_ready = true;
                if kind == ConnectionKind::Wait(None) {
                    self.idle[node].push(conn);
                }
                Some(Received::Ready { node, kind, run_id, sent: connection.hello_sent_at })
            }
            Down::Response(response) => {
                let answered = connection.in_flight.pop_front()?;
                let is_over = connection.is_retired && connection.in_flight.is_empty();
                if let ConnectionKind::Wait(Some(_)) = kind {
                    self.free(conn, world);
                }
                if is_over {
                    self.close(conn, world);
                }
                match (answered, kind) {
                    (InFlight::Request(number, sent), _) => {
                        Some(Received::Answer { number, sent, response })
                    }
                    (InFlight::Ping(sent), ConnectionKind::Shared(connection)) => {
                        Some(Received::Pong { node, connection, sent })
                    }
                    (InFlight::Ping(_), ConnectionKind::Wait(_)) => None,
                }
            }
            Down::Connected => {
                connection.hello_sent_at = Some(now);
                world.send_up(conn, Up::Hello);
                None
            }
            Down::Refused | Down::Closed => None,
        }
    }

    pub(super) fn lose(&mut self, conn: Conn, world: &mut World) -> Option<Lost> {
        world.network.forget(conn);
        let Connection { node, kind, is_ready, in_flight, .. } = self.open.remove(&conn)?;
        let requests = match kind {
            ConnectionKind::Shared(_) => {
                let requests = in_flight.into_iter().filter_map(|sent| match sent {
                    InFlight::Request(number, _) => Some(number),
                    InFlight::Ping(_) => None,
                });
                requests.collect()
            }
            ConnectionKind::Wait(user) => {
                self.idle[node].retain(|&idle| idle != conn);
                // The WAIT fails, sent or not.
                user.into_iter().collect()
            }
        };
        Some(Lost { node, kind, was_ready: is_ready, requests })
    }
}
