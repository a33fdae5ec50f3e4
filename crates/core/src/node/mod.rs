//! One node: its leases, its queues, and the order in which it does its work.
//!
//! [`Node`] is both the state machine and its driver. [`Node::execute`] carries out a command.
//! [`Node::next_job`] does the work of a turn that no command requested. Both methods act on a
//! [`Keyspace`]. The module implements this trait over the server's API; tests and simulators
//! implement it in memory. So every write, every answer and their order are decided here.
//!
//! - [`Command`], [`Reply`]: a request, and its reply. One file for each command: `acquire`,
//!   `extend`, `release`, `yielding`, `revoke`, `inspect`, `scan`.
//! - `key_state`: what is under a key, from the server's data and the leases together.
//! - `leases`, `holders`, `index`, `chunks`, `wheel`: the table of leases, and their deadlines.
//!   `shared`: several holders of one key.
//! - `fence_counters`: the next fence of a key.
//! - `queues`: the waiters in order. `ticket`: the order. `hand_over`: which waiter is granted a
//!   free key. `refusal`: what a refused client is told.
//! - [`BlockedId`], [`WaitReply`], `answers`: a client that waits, and its answer.
//! - [`ServerEvent`]: what the server reports about its keys, its role and its data as a whole.
//! - [`Job`], [`Budget`]: the work of a turn.
//! - [`Change`], `propagation`: what replicas and the append-only file receive.
//! - `abstention`, [`Reason`]: why a node abstains, and for how long.
//! - [`Unwritable`]: why the server refuses the requests for locks itself.
//! - [`Keyspace`]: what a node needs of its server.
//! - [`Stats`]: what a node has done so far.
//! - `memory_server`: a server in memory, for tests and simulators.
//! - `mutants`: rules that tests break on purpose.

mod abstention;
mod acquire;
mod answers;
mod chunks;
mod clock;
mod command;
mod extend;
mod fence_counters;
mod glob;
mod hand_over;
mod holders;
mod index;
mod inspect;
mod key_state;
mod keyspace;
mod leases;
#[cfg(feature = "memory")]
pub mod memory_server;
#[cfg_attr(
    not(feature = "mutants"),
    expect(dead_code, unreachable_pub, reason = "only tests break rules")
)]
pub(crate) mod mutants;
#[expect(clippy::module_inception, reason = "a file is named after its type")]
mod node;
mod propagation;
mod queues;
mod refusal;
mod release;
mod revoke;
mod scan;
mod server_events;
mod shared;
mod ticket;
mod turn;
mod unwritable;
mod wheel;
mod yielding;

pub use abstention::Reason;
pub use answers::WaitExit;
pub use clock::{Monotonic, Now};
pub use command::{
    Acquire, Command, CommandError, Extend, FenceError, Holder, Inspect, Inspected, KEY_BYTES_MAX,
    KEYS_MAX, Listed, Release, Reply, Revoke, Scan, Scanned, Settings, ShownWaiter, WaitReply,
    Wants,
};
pub use glob::{PATTERN_BYTES_MAX, Pattern};
pub use keyspace::{Access, Keyspace, Kind, WriteRefused};
pub use leases::Mode;
#[cfg(feature = "mutants")]
pub use mutants::{NodeRule, break_rule};
pub use node::{Node, Stats};
pub use propagation::{Change, Listeners};
pub use queues::BlockedId;
pub use scan::COUNT_MAX as SCAN_COUNT_MAX;
pub use server_events::{KeyBytes, KeyEvent, ServerEvent};
pub use turn::{Budget, Job, TURN_LIMIT_US};
pub use unwritable::{ServerHealth, Unwritable, WriteConditions};

/// A key as a node stores it. A key of 24 bytes or fewer needs no allocation.
type Key = smallvec::SmallVec<[u8; 24]>;

/// A token as a node stores it. A token of 32 bytes or fewer needs no allocation.
type Token = smallvec::SmallVec<[u8; 32]>;
