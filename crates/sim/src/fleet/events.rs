//! The queue of future events of a run, ordered by time, and the messages between processes and
//! nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use quorlock_core::client::{Request, Response, Spec};

use super::clock::Ns;

/// The index of a connection. No index is used twice.
pub(super) type Conn = usize;

/// A message from a process to a node, or to the host of the node.
#[derive(Debug)]
pub(super) enum Up {
    Connect,
    Hello,
    Request(Box<Packet>),
    Close,
}

/// A request, and the description of its lock.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) request: Request,
    pub(super) spec: Arc<Spec>,
}

/// A message to a process from a node, or from the host of the node.
#[derive(Debug)]
pub(super) enum Down {
    Connected,
    Refused,
    Hello { run_id: Arc<str> },
    Response(Response),
    Closed,
}

#[derive(Debug)]
pub(super) enum Message {
    Up(Up),
    Down(Down),
}

/// Identifies a timer of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    Links,
    /// By the number of the state machine.
    Machine(u64),
    /// Ends an attempt to get a wait connection.
    Connection(Conn),
}

#[derive(Debug)]
pub(super) enum Event {
    Arrives {
        conn: Conn,
        number: u64,
        message: Message,
    },
    /// The node learns that the connection has ended.
    NodeLosesConnection {
        conn: Conn,
    },
    /// The process learns that the connection has ended.
    ProcessLosesConnection {
        conn: Conn,
    },
    /// The node has work that no command requested.
    NodeWakes {
        node: usize,
    },
    /// The node has finished a command, and can read the next one.
    NodeIsFree {
        node: usize,
    },
    /// A timer of a process fires.
    Timer {
        process: usize,
        timer: Timer,
    },
    /// A process that was paused has read its sockets.
    Reads {
        process: usize,
    },
    /// A caller does its next step.
    Caller {
        process: usize,
        caller: usize,
        number: u64,
    },
    /// The fault `index / 2` of the plan begins if `index` is even, and ends if it is odd.
    Fault {
        index: usize,
    },
    /// The whole fleet is checked.
    Sample,
}

/// Future events, in order. Events of the same time keep the order in which they were added.
#[derive(Default)]
pub(super) struct Events {
    /// By time and number.
    queue: BTreeMap<(Ns, u64), Event>,
    next: u64,
}

impl Events {
    pub(super) fn add(&mut self, at: Ns, event: Event) {
        self.next += 1;
        self.queue.insert((at, self.next), event);
    }

    pub(super) fn pop(&mut self) -> Option<(Ns, Event)> {
        self.queue.pop_first().map(|((at, _), event)| (at, event))
    }
}
