//! Sends and receives bytes with redis-rs. The state machines decide when and to which node.

mod batches;
mod command;
mod connection;
mod operator;
mod port_protocol;
#[cfg(test)]
mod protocol_vectors;

pub(crate) use batches::{Inbox, Ticket};
pub(crate) use command::Outgoing;
pub use command::read_error;
pub use connection::connect_or_explain;
pub(crate) use connection::{Connection, Endpoint, WaitConnectionPool, open};
