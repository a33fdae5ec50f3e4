//! Connections between processes and nodes: ordered streams that faults delay, block and break.

use std::collections::VecDeque;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::clock::{MS, Ns};
use super::events::{Conn, Down, Event, Events, Up};

pub(super) struct Network {
    nodes: usize,
    /// By process, then by node.
    paths: Vec<Path>,
    /// All connections of the run, also the ended ones.
    connections: Vec<Connection>,
    rng: StdRng,
}

/// The path between a process and a node.
#[derive(Clone, Debug)]
pub(super) struct Path {
    /// Shortest latency of a message.
    pub(super) base: Ns,
    /// Largest random addition to it.
    pub(super) jitter: Ns,
    /// Addition while a fault slows the path down.
    pub(super) spike: Ns,
    /// Number of faults that block each direction.
    pub(super) blocked: [u32; 2],
    /// Connections that may still carry messages, even if the process has closed them.
    open: Vec<Conn>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// To a node.
    Up = 0,
    /// To a process.
    Down = 1,
}

pub(super) struct Connection {
    pub(super) process: usize,
    pub(super) node: usize,
    /// Whether the process has neither closed the connection nor learned of its end.
    pub(super) is_open: bool,
    /// The number of restarts of the node when it accepted the connection; `None` before that, and
    /// once the connection has ended for the node.
    pub(super) accepted_in_run: Option<u32>,
    up: Stream<Up>,
    down: Stream<Down>,
}

/// One direction of a connection.
struct Stream<M> {
    last_arrival: Ns,
    sent: u64,
    arrived: u64,
    /// The number of the first message that is lost.
    lost_from: u64,
    /// Messages that wait while the path is blocked.
    held: VecDeque<M>,
}

impl<M> Default for Stream<M> {
    fn default() -> Self {
        Self { last_arrival: 0, sent: 0, arrived: 0, lost_from: u64::MAX, held: VecDeque::new() }
    }
}

impl Path {
    pub(super) fn new(base: Ns, jitter: Ns) -> Self {
        Self { base, jitter, spike: 0, blocked: [0; 2], open: Vec::new() }
    }

    fn latency(&self, rng: &mut StdRng) -> Ns {
        self.base + self.spike + rng.random_range(0..=self.jitter)
    }
}

impl Network {
    pub(super) fn new(nodes: usize, paths: Vec<Path>, seed: u64) -> Self {
        Self { nodes, paths, connections: Vec::new(), rng: StdRng::seed_from_u64(seed) }
    }

    pub(super) fn path(&mut self, process: usize, node: usize) -> &mut Path {
        &mut self.paths[process * self.nodes + node]
    }

    pub(super) fn connection(&mut self, conn: Conn) -> &mut Connection {
        &mut self.connections[conn]
    }

    /// Returns the connections of a node that may still carry messages.
    pub(super) fn of_node(&self, node: usize) -> Vec<Conn> {
        let paths = self.paths.iter().skip(node).step_by(self.nodes);
        paths.flat_map(|path| path.open.iter().copied()).collect()
    }

    /// Returns the connections of a path that may still carry messages.
    pub(super) fn of_path(&self, process: usize, node: usize) -> Vec<Conn> {
        self.paths[process * self.nodes + node].open.clone()
    }

    pub(super) fn connect(
        &mut self,
        process: usize,
        node: usize,
        now: Ns,
        events: &mut Events,
    ) -> Conn {
        let conn = self.connections.len();
        self.connections.push(Connection {
            process,
            node,
            is_open: true,
            accepted_in_run: None,
            up: Stream::default(),
            down: Stream::default(),
        });
        self.path(process, node).open.push(conn);
        self.send_up(conn, Up::Connect, now, events);
        conn
    }

    pub(super) fn send_up(&mut self, conn: Conn, message: Up, now: Ns, events: &mut Events) {
        let connection = &mut self.connections[conn];
        let path = &self.paths[connection.process * self.nodes + connection.node];
        if path.blocked[Direction::Up as usize] > 0 || !connection.up.held.is_empty() {
            connection.up.held.push_back(message);
            return;
        }
        let (at, number) = connection.up.next(now + path.latency(&mut self.rng));
        events.add(at, Event::Up { conn, number, message });
    }

    pub(super) fn send_down(&mut self, conn: Conn, message: Down, now: Ns, events: &mut Events) {
        let connection = &mut self.connections[conn];
        let path = &self.paths[connection.process * self.nodes + connection.node];
        if path.blocked[Direction::Down as usize] > 0 || !connection.down.held.is_empty() {
            connection.down.held.push_back(message);
            return;
        }
        let (at, number) = connection.down.next(now + path.latency(&mut self.rng));
        events.add(at, Event::Down { conn, number, message });
    }

    /// Records the arrival of a message. Returns `false` if it was lost with its connection.
    pub(super) fn arrives(&mut self, conn: Conn, number: u64, direction: Direction) -> bool {
        let connection = &mut self.connections[conn];
        match direction {
            Direction::Up => connection.up.arrives(number),
            Direction::Down => connection.down.arrives(number) && connection.is_open,
        }
    }

    /// Closes a connection on the side of the process, and tells the node.
    pub(super) fn close(&mut self, conn: Conn, now: Ns, events: &mut Events) {
        if std::mem::replace(&mut self.connections[conn].is_open, false) {
            self.send_up(conn, Up::Close, now, events);
        }
    }

    /// Records that the process has learned of the end of a connection.
    pub(super) fn forget(&mut self, conn: Conn) {
        let connection = &mut self.connections[conn];
        connection.is_open = false;
        let (process, node) = (connection.process, connection.node);
        self.path(process, node).open.retain(|&open| open != conn);
    }

    /// Breaks a connection, as a router or a firewall does. Some of the messages to the node may
    /// still arrive, and the node may learn of the end much later.
    pub(super) fn reset(
        &mut self,
        conn: Conn,
        node_learns_after: Ns,
        now: Ns,
        events: &mut Events,
    ) {
        let connection = &mut self.connections[conn];
        let up = &mut connection.up;
        let in_flight = up.sent - up.arrived;
        up.lost_from = up.lost_from.min(up.arrived + self.rng.random_range(0..=in_flight));
        up.held.clear();
        connection.down.held.clear();
        let path = &self.paths[connection.process * self.nodes + connection.node];
        let process_learns = now + self.rng.random_range(0..=path.base);
        connection.down.lost_from = connection.down.sent;
        let node_learns =
            up.last_arrival.max(now) + path.latency(&mut self.rng) + node_learns_after;
        events.add(process_learns, Event::ProcessLosesConnection { conn });
        events.add(node_learns, Event::NodeLosesConnection { conn });
    }

    /// Blocks a direction of a path for a fault. Several faults may block it at the same time.
    pub(super) fn block(&mut self, process: usize, node: usize, direction: Direction) {
        self.path(process, node).blocked[direction as usize] += 1;
    }

    /// Ends a fault that blocks a direction of a path. Once no fault blocks the direction, the held
    /// messages are sent with a random delay.
    pub(super) fn unblock(
        &mut self,
        process: usize,
        node: usize,
        direction: Direction,
        now: Ns,
        events: &mut Events,
    ) {
        let path = self.path(process, node);
        path.blocked[direction as usize] -= 1;
        if path.blocked[direction as usize] > 0 {
            return;
        }
        for conn in path.open.clone() {
            let sent_again = now + self.rng.random_range(0..=200 * MS);
            match direction {
                Direction::Up => {
                    for message in std::mem::take(&mut self.connections[conn].up.held) {
                        self.send_up(conn, message, sent_again, events);
                    }
                }
                Direction::Down => {
                    for message in std::mem::take(&mut self.connections[conn].down.held) {
                        self.send_down(conn, message, sent_again, events);
                    }
                }
            }
        }
    }
}

impl<M> Stream<M> {
    /// Returns the arrival time and the number of the next message, which overtakes no earlier one.
    fn next(&mut self, arrival: Ns) -> (Ns, u64) {
        self.last_arrival = self.last_arrival.max(arrival);
        self.sent += 1;
        (self.last_arrival, self.sent - 1)
    }

    fn arrives(&mut self, number: u64) -> bool {
        self.arrived = self.arrived.max(number + 1);
        number < self.lost_from
    }
}
