//! The limits of a client's state machines. The table in ARCHITECTURE.md has their values and the
//! first sentences of their documentation: `make limits` writes it.
//!
//! Times that depend on the network are multiples of a node's smoothed round trip, so that the same
//! rules hold in one rack and across continents. The options of a lock have their defaults where
//! they are set. A driver says how often it reads its clocks. [`quorum`](crate::quorum) has the
//! drift of clocks and the intervals between extensions.

use std::time::Duration;

use crate::Ttl;

/// An attempt to connect, and by default connecting to a majority. Ends with the server's
/// [`Hello`](super::Hello).
pub const HANDSHAKE: Duration = Duration::from_secs(5);
/// A later timer shows that the process did not run. For as long, answers are read first.
pub const LATE_TIMER: Duration = Duration::from_millis(5);
/// Silence of a port with TLS, until another connection probes it.
pub const PORT_PROBE_AFTER: Duration = Duration::from_millis(200);
/// How late a node may end a WAIT, and how far a call may exceed its `wait`, or one
/// [`node_timeout`]. Users are promised 50 ms, which leaves 10 ms for a late timer and for reading
/// after it.
pub const WAIT_GRACE: Duration = Duration::from_millis(40);
/// One WAIT, less a random part of at most half. So the waits of one call end at different times on
/// different nodes. A new holder's WAIT in front lasts at most ttl/4.
pub const WAIT_SLICE: Duration = Duration::from_millis(2500);
/// The first pause before anything that failed is repeated. It doubles. Covers attempts to acquire,
/// to connect and to repair, and RELEASEs. A machine may subtract a random part.
pub const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause before anything that failed is repeated. The pause before a repair grows up to
/// the interval between extensions. A revocation asks each node again at this interval; a shorter
/// lock may go unnoticed.
pub const PAUSE_MAX: Duration = Duration::from_millis(250);
/// The longest pause before a RELEASE is repeated, and that before connecting again after a
/// permanent error.
pub const PAUSE_LONG: Duration = Duration::from_secs(1);
/// How long a RELEASE that may have overtaken its ACQUIRE is repeated, at most the ttl. For this
/// long, a network may still deliver a request of a lost connection.
pub const RELEASE_OVERTAKES: Duration = Duration::from_secs(30);
/// The most locks in a list.
pub const LISTED_MAX: usize = 100_000;
/// The answer to a LOCK.SCAN or a revocation, or [`node_timeout`] if that is longer, and to a probe
/// of a port. Only operators wait for these answers.
pub const OPERATOR_TIMEOUT: Duration = Duration::from_secs(1);
/// Between checks of a connection, even if it is in use.
pub const PING_EVERY: Duration = Duration::from_secs(30);
/// Keys under which a refused client looks for a holder to name.
pub const NAMING_KEYS_MAX: usize = 8;
/// Calls of one client in line, each with a wait connection to every node.
pub const WAIT_CONNECTIONS_MAX: usize = 256;
/// How far ahead of its clock a client believes a refusal.
///
/// Nodes report fences up to `lock.max-clock-skew` ahead of their clocks, and accept tickets up to
/// twice as far ahead. With the default of a minute, this lies in the middle.
pub const LEARNED_AHEAD_MAX_US: u64 = 90_000_000;
/// Between two checks of one client whether others use a larger number of permits.
pub const COMPARE_PERMITS_EVERY: Duration = Duration::from_secs(60);
/// Renewals that are due within this time share a batch, unless they are due soon.
pub const RENEWAL_WINDOW: Duration = Duration::from_millis(20);

/// The estimated round trip (rt) before a node has answered.
pub const ROUND_TRIP_UNKNOWN: Duration = Duration::from_millis(1);

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

/// The unit in which a node is told how long a client waits.
const MILLISECOND: Duration = Duration::from_millis(1);
/// One answer may take twice as long as most.
const SLOW_ANSWER: ByRoundTrip = ByRoundTrip::new(2, 0);
const NODE_TIMEOUT: ByRoundTrip = ByRoundTrip::new(4, 50);
const SILENCE: ByRoundTrip = ByRoundTrip::new(8, 500);
const PATIENCE: ByRoundTrip = ByRoundTrip::new(2, 2);
const REJOIN_PAUSE: ByRoundTrip = ByRoundTrip::new(2, 20);
const TIE: ByRoundTrip = ByRoundTrip::new(16, 20);

/// A node must answer within the ttl divided by this.
pub const NODE_TIMEOUT_PER_TTL: u32 = 4;

/// The time of one request about a lock, at most ttl/4.
pub fn node_timeout(round_trip: Duration, ttl: Ttl) -> Duration {
    bounded_node_timeout(NODE_TIMEOUT.of(round_trip), ttl)
}

/// The part of a time limit that is allowed for a lock of `ttl`.
pub fn bounded_node_timeout(limit: Duration, ttl: Ttl) -> Duration {
    limit.min(ttl.duration() / NODE_TIMEOUT_PER_TTL)
}

/// The time of a WAIT if this much is left. A node does not queue a client that waits for no time.
pub fn wait_of(left: Duration) -> Duration {
    left.max(MILLISECOND)
}

/// The smallest ttl that leaves a node with this round trip enough time; `None` if `ttl` does.
pub fn ttl_needed(round_trip: Duration, ttl: Ttl) -> Option<Duration> {
    let enough = SLOW_ANSWER.of(round_trip) * NODE_TIMEOUT_PER_TTL;
    (enough > ttl.duration()).then_some(enough)
}

/// How long an answer may be missing, until another way is tried.
///
/// After an unanswered PING, a new connection is opened. An unanswered RELEASE is sent through a
/// newer connection too. A call with some nodes and no majority releases them, and starts over.
pub fn silence(round_trip: Duration) -> Duration {
    SILENCE.of(round_trip)
}

/// How long a call with some nodes waits before it yields, doubling.
pub fn patience(round_trip: Duration) -> Duration {
    PATIENCE.of(round_trip)
}

/// The pause before a call starts over, less a random part of at most half.
pub fn rejoin_pause(round_trip: Duration) -> Duration {
    REJOIN_PAUSE.of(round_trip)
}

/// How long a call that does not wait stands in line.
pub fn tie(round_trip: Duration) -> Duration {
    TIE.of(round_trip)
}
