//! The tests of the client, on real nodes. One program, so that they run beside each other.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod blocking;
mod common;
mod detach;
mod errors;
mod examples;
mod fences;
mod inspect;
mod kinds;
mod limits;
mod membership;
mod nodes;
mod one_failing_node;
mod pauses;
mod renewal;
mod results;
mod revoke;
mod secrets;
mod waiting;
