//! Sends and receives bytes with redis-rs. The state machines decide when and to which node.

mod batches;
mod blocking_pool;
mod command;
mod connection;
mod in_flight;
mod inspection;
#[cfg(test)]
mod protocol_vectors;
mod revocation;

pub(crate) use blocking_pool::{BlockingPool, PooledConnection};
pub(crate) use command::{Outgoing, read_fence};
pub(crate) use connection::{Connection, Endpoint, open};
pub(crate) use in_flight::{Answered, InFlight};
