//! Everything that can happen to one who waits for a lock, at random and all at once.
//!
//! - `client`: waits, and hangs up, runs out of time, or dies as a holder
//! - `chaos`: kills clients, ends their waits, takes them out of the queue, deletes locks
//! - `observer`: looks for a free lock that somebody waits for
//! - `outcome`: what came of it

mod chaos;
mod client;
mod observer;
mod outcome;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use self::client::Client;
pub use self::outcome::StressOutcome;
use self::outcome::Tally;
use crate::Server;

/// Clients that wait for locks on one server, and to which everything happens that can happen to one who waits.
#[derive(Clone, Copy, Debug)]
pub struct Stress {
    /// How often somebody asks for a lock and waits.
    pub rounds: u64,
    /// How many clients do, each in a thread of its own.
    pub clients: usize,
    /// How many locks there are.
    pub keys: usize,
    /// What the dice are thrown from. Threads still interleave as they like.
    pub seed: u64,
}

/// What the threads share.
struct Shared<'a> {
    stress: &'a Stress,
    server: &'a Server,
    /// Rounds that have begun.
    begun: AtomicU64,
    /// Whether no more rounds are to begin.
    stop: &'a AtomicBool,
    /// Whether all clients have ended.
    over: AtomicBool,
    /// What each client does now.
    doing: Vec<Mutex<Option<Doing>>>,
    tally: Tally,
}

/// What a client does.
#[derive(Clone)]
struct Doing {
    /// By which the server knows it.
    client_id: u64,
    key: String,
    token: String,
}

impl Stress {
    /// Runs until all rounds are over, or `stop` is set.
    ///
    /// # Panics
    ///
    /// When the server does not answer any more.
    pub fn run(&self, server: &Server, stop: &AtomicBool) -> StressOutcome {
        let shared = Shared {
            stress: self,
            server,
            begun: AtomicU64::new(0),
            stop,
            over: AtomicBool::new(false),
            doing: (0..self.clients).map(|_| Mutex::default()).collect(),
            tally: Tally::default(),
        };
        let longest_free = thread::scope(|scope| {
            let shared = &shared;
            let observer = scope.spawn(|| observer::observe(shared));
            scope.spawn(|| chaos::reign(shared));
            let clients: Vec<_> = (0..self.clients)
                .map(|index| scope.spawn(move || Client::new(shared, index).run()))
                .collect();
            let ended: Vec<_> = clients.into_iter().map(thread::ScopedJoinHandle::join).collect();
            shared.over.store(true, Ordering::Relaxed);
            let longest_free = observer.join();
            for client in ended {
                client.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
            longest_free.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        StressOutcome::of(&shared, longest_free)
    }

    fn key(index: usize) -> String {
        format!("lock:{index}")
    }
}

impl Shared<'_> {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Whether there is another round to begin.
    fn begin_round(&self) -> bool {
        !self.stop.load(Ordering::Relaxed) && self.begun.fetch_add(1, Ordering::Relaxed) < self.stress.rounds
    }

    fn set_doing(&self, client: usize, doing: Option<Doing>) {
        *self.doing[client].lock().unwrap_or_else(PoisonError::into_inner) = doing;
    }

    fn doing(&self, client: usize) -> Option<Doing> {
        self.doing[client].lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
