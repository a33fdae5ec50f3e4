//! Connections between processes and nodes: ordered streams that faults delay, block and break.

use std::collections::VecDeque;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::clock::{MS, Ns};
use super::events::{Conn, Down, Event, Message, Up};
use super::world::World;

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
    /// The number of restarts of the node when it accepted the connection; `None` before that, and
    /// once the connection has ended for the node.
    pub(super) accepted_in_run: Option<u32>,
    /// By direction.
    streams: [Stream; 2],
}

/// One direction of a connection.
struct Stream {
    last_arrival: Ns,
    sent: u64,
    arrived: u64,
    /// The number of the first message that is lost.
    lost_from: u64,
    /// Messages that wait while the path is blocked.
    held: VecDeque<Message>,
}

impl Default for Stream {
    fn default() -> Self {
        Self { last_arrival: 0, sent: 0, arrived: 0, lost_from: u64::MAX, held: VecDeque::new() }
    }
}

impl Message {
    fn direction(&self) -> Direction {
        match self {
            Self::Up(_) => Direction::Up,
            Self::Down(_) => Direction::Down,
        }
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

    /// Records the arrival of a message. Returns `false` if it was lost with its connection.
    pub(super) fn arrives(&mut self, conn: Conn, number: u64, message: &Message) -> bool {
        let stream = &mut self.connections[conn].streams[message.direction() as usize];
        stream.arrived = stream.arrived.max(number + 1);
        number < stream.lost_from
    }

    /// Records that the process has learned of the end of a connection.
    pub(super) fn forget(&mut self, conn: Conn) {
        let Connection { process, node, .. } = self.connections[conn];
        self.path(process, node).open.retain(|&open| open != conn);
    }

    /// Blocks a direction of a path for a fault. Several faults may block it at the same time.
    pub(super) fn block(&mut self, process: usize, node: usize, direction: Direction) {
        self.path(process, node).blocked[direction as usize] += 1;
    }
}

impl World {
    pub(super) fn connect(&mut self, process: usize, node: usize) -> Conn {
        let conn = self.network.connections.len();
        self.network.connections.push(Connection {
            process,
            node,
            accepted_in_run: None,
            streams: [Stream::default(), Stream::default()],
        });
        self.network.path(process, node).open.push(conn);
        self.send_up(conn, Up::Connect);
        conn
    }

    pub(super) fn send_up(&mut self, conn: Conn, message: Up) {
        self.send(conn, Message::Up(message), self.now);
    }

    pub(super) fn send_down(&mut self, conn: Conn, message: Down) {
        self.send(conn, Message::Down(message), self.now);
    }

    fn send(&mut self, conn: Conn, message: Message, at: Ns) {
        let Network { nodes, paths, connections, rng } = &mut self.network;
        let connection = &mut connections[conn];
        let path = &paths[connection.process * *nodes + connection.node];
        let direction = message.direction() as usize;
        let stream = &mut connection.streams[direction];
        if path.blocked[direction] > 0 || !stream.held.is_empty() {
            stream.held.push_back(message);
            return;
        }
        // A message overtakes no earlier one.
        stream.last_arrival = stream.last_arrival.max(at + path.latency(rng));
        let number = stream.sent;
        stream.sent += 1;
        self.events.add(stream.last_arrival, Event::Arrives { conn, number, message });
    }

    /// Breaks a connection, as a router or a firewall does. Some of the messages to the node may
    /// still arrive, and the node may learn of the end much later.
    pub(super) fn reset(&mut self, conn: Conn, node_learns_after: Ns) {
        let Network { nodes, paths, connections, rng } = &mut self.network;
        let connection = &mut connections[conn];
        let [up, down] = &mut connection.streams;
        let in_flight = up.sent - up.arrived;
        up.lost_from = up.lost_from.min(up.arrived + rng.random_range(0..=in_flight));
        up.held.clear();
        down.held.clear();
        let path = &paths[connection.process * *nodes + connection.node];
        let process_learns = self.now + rng.random_range(0..=path.base);
        down.lost_from = down.sent;
        let node_learns = up.last_arrival.max(self.now) + path.latency(rng) + node_learns_after;
        self.events.add(process_learns, Event::ProcessLosesConnection { conn });
        self.events.add(node_learns, Event::NodeLosesConnection { conn });
    }

    /// Ends a fault that blocks a direction of a path. Once no fault blocks the direction, the held
    /// messages are sent with a random delay.
    pub(super) fn unblock(&mut self, process: usize, node: usize, direction: Direction) {
        let path = self.network.path(process, node);
        path.blocked[direction as usize] -= 1;
        if path.blocked[direction as usize] > 0 {
            return;
        }
        for conn in path.open.clone() {
            let sent_again = self.now + self.network.rng.random_range(0..=200 * MS);
            let stream = &mut self.network.connections[conn].streams[direction as usize];
            for message in std::mem::take(&mut stream.held) {
                self.send(conn, message, sent_again);
            }
        }
    }
}
