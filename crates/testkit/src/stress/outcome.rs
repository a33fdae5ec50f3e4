use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorlock_localserver::holds_within;
use redis::{Connection, cmd};

use super::Shared;

/// How long the last locks may take to end, and the last clients to be let go.
const SETTLE_LIMIT: Duration = Duration::from_secs(1);

/// What a wait came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Granted,
    /// Its time was over, or somebody said so.
    OutOfTime,
    /// Somebody ended its wait with an error.
    Unblocked,
    /// The server closed its connection.
    CutOff,
    /// The client closed its connection.
    HungUp,
    /// Neither of them, long after its time was over.
    Unanswered,
}

/// What was done to a client, or to a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Kill,
    Unblock,
    Withdraw,
    Delete,
}

/// Counts what happens.
#[derive(Debug, Default)]
pub(super) struct Tally {
    events: [AtomicU64; 6],
    deeds: [AtomicU64; 4],
    looks: AtomicU64,
}

/// What came of a [`Stress`](super::Stress).
#[derive(Clone, Copy, Debug)]
pub struct StressOutcome {
    /// How often somebody asked for a lock and waited.
    pub rounds: u64,
    /// How many of them were granted the lock.
    pub granted: u64,
    /// How many ran out of time, or had their wait ended by an operator, or by a release with their token.
    pub out_of_time: u64,
    /// How many lost their connection.
    pub cut_off: u64,
    /// How many closed it.
    pub hung_up: u64,
    /// How many heard nothing long after their time was over.
    pub unanswered: u64,
    /// How many clients were killed.
    pub kills: u64,
    /// How often somebody was taken out of a queue, or unblocked with nil or an error.
    pub ended_waits: u64,
    /// How often a lock was deleted under its holder.
    pub deleted: u64,
    /// How often it was looked for a free lock that somebody waits for.
    pub looks: u64,
    /// The longest time for which there was one.
    pub longest_free: Duration,
    /// How many waited at the end, by the module's account.
    pub waiters_left: u64,
    /// How many were blocked at the end, by the server's account.
    pub blocked_left: u64,
    /// How many locks were held at the end.
    pub leases_left: u64,
}

impl Tally {
    pub(super) fn count(&self, event: Event) {
        self.events[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn did(&self, deed: Deed) {
        self.deeds[deed as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn looked(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
    }

    fn events(&self, event: Event) -> u64 {
        self.events[event as usize].load(Ordering::Relaxed)
    }

    fn deeds(&self, deed: Deed) -> u64 {
        self.deeds[deed as usize].load(Ordering::Relaxed)
    }
}

impl StressOutcome {
    /// After all clients have ended.
    pub(super) fn of(shared: &Shared<'_>, longest_free: Duration) -> Self {
        let mut connection = shared.server.connection();
        let mut left = || {
            let mut number = |section, field| number(&mut connection, section, field);
            [
                number("lock", "lock_waiters"),
                number("clients", "blocked_clients"),
                number("lock", "lock_leases"),
            ]
        };
        holds_within(SETTLE_LIMIT, || left() == [0; 3]);
        let [waiters_left, blocked_left, leases_left] = left();
        let tally = &shared.tally;
        Self {
            rounds: shared.begun.load(Ordering::Relaxed).min(shared.stress.rounds),
            granted: tally.events(Event::Granted),
            out_of_time: tally.events(Event::OutOfTime) + tally.events(Event::Unblocked),
            cut_off: tally.events(Event::CutOff),
            hung_up: tally.events(Event::HungUp),
            unanswered: tally.events(Event::Unanswered),
            kills: tally.deeds(Deed::Kill),
            ended_waits: tally.deeds(Deed::Unblock) + tally.deeds(Deed::Withdraw),
            deleted: tally.deeds(Deed::Delete),
            looks: tally.looks.load(Ordering::Relaxed),
            longest_free,
            waiters_left,
            blocked_left,
            leases_left,
        }
    }

    /// Whether everybody was answered, and nobody and nothing is left on the server.
    pub fn leaves_nothing(&self) -> bool {
        [self.unanswered, self.waiters_left, self.blocked_left, self.leases_left] == [0; 4]
    }
}

impl fmt::Display for StressOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { granted, out_of_time, cut_off, hung_up, .. } = self;
        write!(f, "{granted} granted, {out_of_time} ended without, {cut_off} cut off, {hung_up} hung up")
    }
}

fn number(connection: &mut Connection, section: &str, field: &str) -> u64 {
    let info: String = cmd("INFO").arg(section).query(connection).expect("a server that runs answers");
    let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.and_then(|value| value.trim().parse().ok()).expect("the server says so")
}
