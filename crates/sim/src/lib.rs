//! Two proofs that run the real state machines of `quorlock-core`, with a network and clocks of
//! their own.
//!
//! - [`fleet`] simulates whole fleets of clients and nodes. A seed draws the events.
//! - [`Model`] is a model of the agreement on fences, so small that [`run`] tries every event in
//!   every order. [`models`] and [`mutants`] are the models to check, with their expected verdicts.

#![allow(
    missing_docs,
    reason = "this crate is internal: an item has a doc where its name and type say too little"
)]

use std::sync::Mutex;
use std::thread;

mod catalogue;
pub mod fleet;
mod model;

pub use catalogue::{Check, Outcome, SMALL_MODELS, models, mutants, run};
pub use model::{Action, Message, Model};

/// Runs `work` for each item, on all processors.
///
/// # Panics
/// When the work on an item panics.
pub fn in_parallel<T>(items: impl IntoIterator<Item = T, IntoIter: Send>, work: impl Fn(T) + Sync) {
    let items = Mutex::new(items.into_iter());
    let next = || items.lock().expect("an iterator does not panic").next();
    let work_on_all = || {
        while let Some(item) = next() {
            work(item);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work_on_all);
        }
    });
}
