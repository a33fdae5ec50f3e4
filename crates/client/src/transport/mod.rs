//! Sends and receives bytes with redis-rs. The state machines decide when and to which node.

mod batches;
mod command;
mod connection;
mod in_flight;
mod inspection;
mod port_protocol;
#[cfg(test)]
mod protocol_vectors;
mod revocation;
mod wait_connection_pool;
mod waits;

pub(crate) use command::{Outgoing, read_fence};
pub use connection::connect_or_explain;
pub(crate) use connection::{Connection, Endpoint, open};
pub(crate) use in_flight::{Answered, InFlight};
pub(crate) use wait_connection_pool::{WaitConnection, WaitConnectionPool};
pub(crate) use waits::Waits;
