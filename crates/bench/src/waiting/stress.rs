//! Clients that wait, and are disconnected, killed, unblocked, or run out of time at random.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quorlock_testkit::{Server, Stress};
use tokio::task::spawn_blocking;

use super::effort::Effort;
use crate::limits::Row;
use crate::progress::Progress;
use crate::table::readable;

/// How often somebody asks for a lock and waits.
const ROUNDS: u64 = 100_000;
/// How many clients do.
const CLIENTS: usize = 64;
/// How many locks there are.
const KEYS: usize = 4;
/// How long a free key may have somebody who waits for it.
const LONGEST_FREE: Duration = Duration::from_millis(50);

pub(crate) async fn measure(effort: Effort, progress: &Progress) -> anyhow::Result<Vec<Row>> {
    progress.begin("waiters that are killed, cut off and out of time");
    let stress = Stress { rounds: effort.count(ROUNDS), clients: CLIENTS, keys: KEYS, seed: 42 };
    let stop = StopOnDrop(Arc::default());
    let stopped = Arc::clone(&stop.0);
    let started = Instant::now();
    let outcome = spawn_blocking(move || -> anyhow::Result<_> {
        let server = Server::with_module().start()?;
        Ok(stress.run(&server, &stopped))
    });
    let outcome = outcome.await??;
    let took = started.elapsed();
    Ok(vec![Row {
        case: format!("{} waits: {outcome}", outcome.rounds),
        measured: format!(
            "a free key had a waiter for {} at most; {} waiters, {} blocked clients and {} locks left, {} not \
             answered; in {}",
            readable(outcome.longest_free),
            outcome.waiters_left,
            outcome.blocked_left,
            outcome.leases_left,
            outcome.unanswered,
            readable(took),
        ),
        target: "≤ 50 ms; nobody left",
        met: outcome.longest_free <= LONGEST_FREE && outcome.leaves_nothing(),
    }])
}

/// Ends the clients when whoever waits for the outcome is gone.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
