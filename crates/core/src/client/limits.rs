//! Every limit of a client's state machines, in one table. Times that depend on the network are
//! multiples of a node's smoothed round trip, so that the same rules hold in one rack and across
//! continents. The options of a lock have their defaults where they are set. A driver says how
//! often it reads its clocks. [`quorum`](crate::quorum) has the drift of clocks and the intervals
//! between extensions.
//!
//! | limit | value |
//! |---|---|
//! | [`ROUND_TRIP_UNKNOWN`], [`ROUND_TRIP_MAX`], [`ROUND_TRIP_GROWTH_PART`] | 1 ms, before a node has answered; at most 10 s; a longer sample raises the estimate by an eighth of the difference |
//! | [`node_timeout`] | 4 round trips, at least 50 ms; at most ttl/10 ([`NODE_TIMEOUT_PER_TTL`]) or 2 round trips ([`ROUND_TRIPS_FOR_AN_ANSWER`]), whichever is longer; never above ttl/4 ([`bounded_node_timeout`], [`ttl_needed`]) |
//! | [`silence`] | 8 round trips, at least 400 ms |
//! | [`extra_answers`] | 4 round trips, at least 50 ms and at most 500 ms, for answers that decide nothing: who holds a lock that is refused, and the nodes beyond a majority when a client connects |
//! | [`NAMING_KEYS_MAX`] | 8 keys of a refused lock, under which a client looks for the holder |
//! | [`HANDSHAKE`] | 5 s for an attempt to connect, and by default for a majority to connect |
//! | [`LATE_TIMER`], [`LATE_READ_PAUSE`] | a timer that fires more than 10 ms late expires requests 3 ms later, after answers are read |
//! | [`PORT_PROBE_AFTER`], [`PORT_PROBE`] | 200 ms until a silent port is asked whether it speaks TLS; 1 s for its answer |
//! | [`CALL_GRACE`] | 40 ms: how far a call may exceed its `wait` |
//! | [`WAIT_SLICE`], [`WAIT_MIN`], [`WAIT_GRACE`] | 2.5 s less a random part, at most half: the time of one WAIT, and for a new holder at most ttl/4 ([`FRONT_WAITS_PER_TTL`]); at least 1 ms; a node may end it 20 ms late |
//! | [`patience`] | 2 round trips, at least 2 ms: how long a call with some nodes waits for others before it offers to yield, doubling |
//! | [`partial`] | 8 round trips, at least 500 ms, in which a call may hold some nodes and no majority |
//! | [`rejoin_pause`] | 2 round trips, at least 20 ms, less a random part, at most half, before a call that released its part of a lock asks again |
//! | [`tie`] | 16 round trips, at least 20 ms, in line for a call that does not wait, while too few of the refusals are older |
//! | [`PAUSE_MIN`], [`PAUSE_MAX`], [`PAUSE_PERMANENT`] | 10 to 250 ms, doubling, before anything that failed is repeated; 2 s before a client connects again after a permanent error |
//! | [`RELEASE_OVERTAKES`], [`RELEASE_PAUSE_MAX`] | 30 s, at most the ttl: how long a RELEASE that may have overtaken its ACQUIRE or WAIT is repeated, after pauses that double up to 1 s |
//! | [`RELEASE_RESEND`] | 500 ms before an unanswered RELEASE is also sent through a newer connection |
//! | [`renewal_window`] | renewals due within 20 ms, at most ttl/50, share a batch |
//! | [`LISTED_MAX`], [`SCAN_COUNT`], [`OPERATOR_TIMEOUT`] | 100,000 locks in a list; 200 entries for one LOCK.SCAN; 1 s for its answer, and for that to a revocation |
//! | [`PING_EVERY`] | 30 s between checks of a connection, even if it is in use |
//! | [`WAIT_CONNECTIONS_MAX`] | 256 calls in line, each with a blocking connection to every node |
//! | [`LEARNED_AHEAD_MAX_US`] | 90 s: how far ahead of its wall clock a client believes the number in a refusal |
//! | [`COMPARE_PERMITS_AFTER`], [`COMPARE_PERMITS_EVERY`] | after 1.2 s of a wait, and every 60 s at most, a client checks whether other clients give a full semaphore more permits |
//! | [`LOCAL_QUEUES_MAX`] | 1024 idle keys whose contention is remembered |

use std::time::Duration;

use crate::Ttl;

/// How long an attempt to connect may take, up to the server's [`Hello`](super::Hello). By default,
/// connecting waits as long for a majority.
pub const HANDSHAKE: Duration = Duration::from_secs(5);
/// A timer that fires later than this shows that the process did not run.
pub const LATE_TIMER: Duration = Duration::from_millis(10);
/// The pause after such a timer, in which the driver reads the answers that have arrived.
pub const LATE_READ_PAUSE: Duration = Duration::from_millis(3);
/// How long a connection with TLS may be silent before a second connection asks without TLS.
pub const PORT_PROBE_AFTER: Duration = Duration::from_millis(200);
/// How long that second connection may take.
pub const PORT_PROBE: Duration = Duration::from_secs(1);
/// How far a call may exceed the longer of its `wait` and one [`node_timeout`]. Users are promised
/// 50 ms, which leaves 10 ms for timers and the scheduler.
pub const CALL_GRACE: Duration = Duration::from_millis(40);
/// The longest time of one WAIT, before a random part, at most half, is subtracted. So the waits of
/// one call end at different times on different nodes.
pub const WAIT_SLICE: Duration = Duration::from_millis(2500);
/// A new holder waits in front for at most the ttl divided by this.
pub const FRONT_WAITS_PER_TTL: u32 = 4;
/// How long after the end of a WAIT the client still awaits the node's answer.
pub const WAIT_GRACE: Duration = Duration::from_millis(20);
/// The shortest WAIT. A node does not queue a client that waits for no time.
pub const WAIT_MIN: Duration = Duration::from_millis(1);
/// The first pause before anything that failed is repeated: an attempt to acquire, to connect or to
/// repair, or a RELEASE. It doubles. A machine may subtract a random part.
pub const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause before anything that failed is repeated, unless a lock is repaired: that pause
/// grows up to the interval between extensions. Also the interval at which a revocation asks each
/// node again; a shorter lock may go unnoticed.
pub const PAUSE_MAX: Duration = Duration::from_millis(250);
/// The pause between two attempts to connect after a permanent error.
pub const PAUSE_PERMANENT: Duration = Duration::from_secs(2);
/// How long to repeat a RELEASE that may have overtaken its ACQUIRE or WAIT on another connection.
/// For this long, a network may still deliver a request of a lost connection.
pub const RELEASE_OVERTAKES: Duration = Duration::from_secs(30);
/// The longest pause before a RELEASE is repeated.
pub const RELEASE_PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long a RELEASE stays unanswered before it is also sent through a newer connection.
pub const RELEASE_RESEND: Duration = Duration::from_millis(500);
/// How many locks a list has at most.
pub const LISTED_MAX: usize = 100_000;
/// How many entries of the node's table one LOCK.SCAN reads.
pub const SCAN_COUNT: u32 = 200;
/// How long a node may take to answer one LOCK.SCAN or a revocation, unless [`node_timeout`] is
/// longer. Only operators wait for these answers.
pub const OPERATOR_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval at which a connection is checked, even if it is in use.
pub const PING_EVERY: Duration = Duration::from_secs(30);
/// Under how many of a lock's keys a refused client looks for a holder to name.
pub const NAMING_KEYS_MAX: usize = 8;
/// How many calls of one client stand in line, each with a blocking connection to every node.
pub const WAIT_CONNECTIONS_MAX: usize = 256;
/// How far ahead of its wall clock a client believes the number in a refusal, in microseconds.
///
/// Nodes report fences up to `lock.max-clock-skew` ahead of their clocks, and accept tickets up to
/// twice as far ahead. With the default of a minute, this lies in the middle.
pub const LEARNED_AHEAD_MAX_US: u64 = 90_000_000;
/// How long a call waits for a permit before it checks whether others use a larger number of
/// permits.
pub const COMPARE_PERMITS_AFTER: Duration = Duration::from_millis(1200);
/// How often a waiter for a permit checks whether others use a larger number of permits.
pub const COMPARE_PERMITS_EVERY: Duration = Duration::from_secs(60);
/// For how many idle keys a client remembers whether they were contended.
pub const LOCAL_QUEUES_MAX: usize = 1024;
const RENEWAL_WINDOW: Duration = Duration::from_millis(20);
const RENEWAL_WINDOWS_PER_TTL: u32 = 50;

/// The round trip of a node that has not answered yet.
pub const ROUND_TRIP_UNKNOWN: Duration = Duration::from_millis(1);
/// The longest estimate of a round trip.
pub const ROUND_TRIP_MAX: Duration = Duration::from_secs(10);
/// A longer sample raises the estimate by the difference divided by this.
pub const ROUND_TRIP_GROWTH_PART: u32 = 8;

/// A time limit that follows the round trip.
struct ByRoundTrip {
    round_trips: u32,
    at_least: Duration,
}

impl ByRoundTrip {
    const fn new(round_trips: u32, at_least_ms: u64) -> Self {
        Self { round_trips, at_least: Duration::from_millis(at_least_ms) }
    }

    fn of(&self, round_trip: Duration) -> Duration {
        (round_trip * self.round_trips).max(self.at_least)
    }
}

const NODE_TIMEOUT: ByRoundTrip = ByRoundTrip::new(4, 50);
const SILENCE: ByRoundTrip = ByRoundTrip::new(8, 400);
const PATIENCE: ByRoundTrip = ByRoundTrip::new(2, 2);
const PARTIAL: ByRoundTrip = ByRoundTrip::new(8, 500);
const REJOIN: ByRoundTrip = ByRoundTrip::new(2, 20);
const TIE: ByRoundTrip = ByRoundTrip::new(16, 20);
const EXTRA_ANSWERS: ByRoundTrip = ByRoundTrip::new(4, 50);
const EXTRA_ANSWERS_MAX: Duration = Duration::from_millis(500);

/// The least time for an answer, in round trips: one answer may take twice as long as most.
pub const ROUND_TRIPS_FOR_AN_ANSWER: u32 = 2;
/// A node that is not far away must answer within the ttl divided by this.
pub const NODE_TIMEOUT_PER_TTL: u32 = 10;
/// Every node must answer within the ttl divided by this.
const NODE_TIMEOUT_PER_TTL_MAX: u32 = 4;

/// How long a node may take to answer a request about a lock of `ttl`.
pub fn node_timeout(round_trip: Duration, ttl: Ttl) -> Duration {
    let far_away = round_trip * ROUND_TRIPS_FOR_AN_ANSWER;
    let at_most = (ttl.duration() / NODE_TIMEOUT_PER_TTL).max(far_away);
    bounded_node_timeout(NODE_TIMEOUT.of(round_trip).min(at_most), ttl)
}

/// The part of a time limit that is allowed for a lock of `ttl`.
pub fn bounded_node_timeout(limit: Duration, ttl: Ttl) -> Duration {
    limit.min(ttl.duration() / NODE_TIMEOUT_PER_TTL_MAX)
}

/// The smallest ttl that leaves a node with this round trip enough time; `None` if `ttl` does.
pub fn ttl_needed(round_trip: Duration, ttl: Ttl) -> Option<Duration> {
    let enough = round_trip * ROUND_TRIPS_FOR_AN_ANSWER * NODE_TIMEOUT_PER_TTL_MAX;
    (enough > ttl.duration()).then_some(enough)
}

/// How long a connection may leave a PING unanswered before the client opens another one.
pub fn silence(round_trip: Duration) -> Duration {
    SILENCE.of(round_trip)
}

/// How long a client waits for answers that decide nothing.
///
/// Nodes may take this long to say who holds a lock, and a call asks that long before its wait
/// ends. Connecting waits this long for the other nodes, once a majority is connected.
pub fn extra_answers(round_trip: Duration) -> Duration {
    EXTRA_ANSWERS.of(round_trip).min(EXTRA_ANSWERS_MAX)
}

/// How long a call that some nodes have granted waits for the others before it offers to give way
/// to older calls.
pub fn patience(round_trip: Duration) -> Duration {
    PATIENCE.of(round_trip)
}

/// How long a call may hold some nodes without a majority.
pub fn partial(round_trip: Duration) -> Duration {
    PARTIAL.of(round_trip)
}

/// The longest pause before a call that released its part of a lock asks again.
pub fn rejoin_pause(round_trip: Duration) -> Duration {
    REJOIN.of(round_trip)
}

/// How long a call that does not wait stands in line to end a tie.
pub fn tie(round_trip: Duration) -> Duration {
    TIE.of(round_trip)
}

/// Renewals that are due within this time share a batch, if their locks have this ttl.
pub fn renewal_window(ttl: Ttl) -> Duration {
    RENEWAL_WINDOW.min(ttl.duration() / RENEWAL_WINDOWS_PER_TTL)
}
