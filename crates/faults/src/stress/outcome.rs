use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorlock_testkit::{Server, holds_within};

use crate::harness::info;

/// Time in which the last locks must end, and the last clients must be unblocked.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitEnd {
    Granted,
    /// The time was over, or an intervention ended the wait early with nil.
    Nil,
    /// An intervention ended the wait with an error.
    Unblocked,
    /// The server closed the connection.
    CutOff,
    /// The client closed the connection.
    HungUp,
    /// The server did not answer, long after the time was over.
    Unanswered,
}

/// What was done to a client or to a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intervention {
    Kill,
    Unblock,
    Withdraw,
    Delete,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    ends: [AtomicU64; 6],
    interventions: [AtomicU64; 4],
    observations: AtomicU64,
}

/// The result of a [`Stress`](super::Stress).
#[derive(Clone, Copy, Debug)]
pub struct StressOutcome {
    /// Number of requests of all clients together. Each request waited for a lock.
    pub rounds: u64,
    pub granted: u64,
    /// Waits that ran out of time, or that an operator or a RELEASE with their token ended.
    pub without_lock: u64,
    /// Waits whose connection the server closed.
    pub cut_off: u64,
    /// Waits whose connection the client closed.
    pub hung_up: u64,
    /// Waits that had no answer long after their time was over.
    pub unanswered: u64,
    pub kills: u64,
    /// Waits that were unblocked with nil or an error, and RELEASEs sent to withdraw a waiter.
    pub ended_waits: u64,
    /// Locks that were deleted while they were held.
    pub deleted: u64,
    pub observations: u64,
    /// The longest time for which a free lock had a waiter.
    pub longest_free: Duration,
    /// Waiters at the end, as the module counts them.
    pub waiters_left: u64,
    /// Blocked clients at the end, as the server counts them.
    pub blocked_left: u64,
    pub leases_left: u64,
}

impl Counters {
    pub(super) fn count_end(&self, end: WaitEnd) {
        self.ends[end as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_intervention(&self, intervention: Intervention) {
        self.interventions[intervention as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_observation(&self) {
        self.observations.fetch_add(1, Ordering::Relaxed);
    }

    fn ends(&self, end: WaitEnd) -> u64 {
        self.ends[end as usize].load(Ordering::Relaxed)
    }

    fn interventions(&self, intervention: Intervention) -> u64 {
        self.interventions[intervention as usize].load(Ordering::Relaxed)
    }
}

impl StressOutcome {
    /// Reads what is left on the server, after all clients have ended.
    pub(super) fn new(
        rounds: u64,
        counters: &Counters,
        longest_free: Duration,
        server: &Server,
    ) -> Self {
        let mut connection = server.connection();
        let fields =
            [("lock", "lock_waiters"), ("clients", "blocked_clients"), ("lock", "lock_leases")];
        let mut left = || {
            fields.map(|(section, field)| {
                info(&mut connection, section, field).expect("a running server answers")
            })
        };
        holds_within(SETTLE_LIMIT, || left() == [0; 3]);
        let [waiters_left, blocked_left, leases_left] = left();
        Self {
            rounds,
            granted: counters.ends(WaitEnd::Granted),
            without_lock: counters.ends(WaitEnd::Nil) + counters.ends(WaitEnd::Unblocked),
            cut_off: counters.ends(WaitEnd::CutOff),
            hung_up: counters.ends(WaitEnd::HungUp),
            unanswered: counters.ends(WaitEnd::Unanswered),
            kills: counters.interventions(Intervention::Kill),
            ended_waits: counters.interventions(Intervention::Unblock)
                + counters.interventions(Intervention::Withdraw),
            deleted: counters.interventions(Intervention::Delete),
            observations: counters.observations.load(Ordering::Relaxed),
            longest_free,
            waiters_left,
            blocked_left,
            leases_left,
        }
    }

    /// Returns whether no unanswered wait, waiter, blocked client or lock is left.
    pub fn leaves_nothing(&self) -> bool {
        [self.unanswered, self.waiters_left, self.blocked_left, self.leases_left] == [0; 4]
    }
}

impl fmt::Display for StressOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { granted, without_lock, cut_off, hung_up, .. } = self;
        write!(
            f,
            "{granted} granted, {without_lock} ended without the lock, {cut_off} cut off, \
             {hung_up} hung up"
        )
    }
}
