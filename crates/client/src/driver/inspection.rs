//! LOCK.INSPECT and LOCK.SCAN on every node.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use quorlock_core::Ttl;
use quorlock_core::client::{Keys, LeaseInfo, Listing, NodeError, inspection_routes, limits};
use tokio::time::{Instant, timeout};

use super::shared::Shared;
use crate::api::DEFAULT_TTL;
use crate::transport::Connection;

/// An inspection has the time limits of a lock with this ttl.
const LIMITS_TTL: Ttl = DEFAULT_TTL;

/// Returns the answer of each node, in the order in which the nodes were named.
pub(crate) async fn inspect(
    shared: &Shared,
    key: &[u8],
) -> Vec<Result<Option<LeaseInfo>, NodeError>> {
    let routes = inspection_routes(&shared.view.load().topology);
    let asking = routes.into_iter().enumerate().map(async |(node, route)| {
        let ask = async |connection: &Connection| connection.inspect(key).await;
        ask_in_time(shared, (node, route?), Duration::ZERO, ask).await
    });
    join_all(asking).await
}

/// The lease to name as the reason why a lock of these keys is refused; `None` if these nodes do
/// not know one within `limit`.
///
/// Unlike the other inspections, changes nothing that the client knows about a slow node: the limit
/// may be shorter than the time that a node may take.
pub(crate) async fn main_lease(shared: &Shared, keys: &Keys, limit: Duration) -> Option<LeaseInfo> {
    let routes = inspection_routes(&shared.view.load().topology).into_iter().enumerate();
    let mut asking: FuturesUnordered<_> = routes
        .filter_map(|(node, route)| shared.connection(node, route.ok()?))
        .map(async |connection| connection.leases(keys.iter().take(limits::NAMING_KEYS_MAX)).await)
        .collect();
    let mut answers = Vec::new();
    let majority = shared.client_state.majority.size();
    let asked = timeout(limit, async {
        while let Some(answer) = asking.next().await {
            answers.extend(answer.map(|leases| leases.into_iter().flatten().collect()));
            if answers.len() >= majority {
                return;
            }
        }
    });
    // The nodes that have answered by then decide.
    let _ = asked.await;
    quorlock_core::client::main_lease(&answers)
}

/// The index of the last of these keys that any node reports as taken.
pub(crate) async fn last_taken(shared: &Shared, keys: &Keys) -> Option<usize> {
    let routes = inspection_routes(&shared.view.load().topology);
    let asking = routes.into_iter().enumerate().map(async |(node, route)| {
        let ask = async |connection: &Connection| connection.leases(keys.iter()).await;
        let leases = ask_in_time(shared, (node, route.ok()?), Duration::ZERO, ask).await.ok()?;
        leases.iter().rposition(Option::is_some)
    });
    join_all(asking).await.into_iter().flatten().max()
}

/// Asks a node within its time limit, or within `at_least` if that is longer.
pub(super) async fn ask_in_time<T>(
    shared: &Shared,
    (node, number): (usize, u64),
    at_least: Duration,
    ask: impl AsyncFnOnce(&Connection) -> Result<T, NodeError>,
) -> Result<T, NodeError> {
    let Some(connection) = shared.connection(node, number) else {
        return Err(NodeError::connection_lost());
    };
    let derived = || limits::node_timeout(shared.client_state.round_trips.of(node), LIMITS_TTL);
    let bounded = |limit| limits::bounded_node_timeout(limit, LIMITS_TTL);
    let limit = shared.node_timeout.map_or_else(derived, bounded);
    let limit = limit.max(at_least);
    let asked = Instant::now();
    let mut asking = pin!(ask(&connection));
    let mut answer = timeout(limit, &mut asking).await;
    if answer.is_err() && asked.elapsed() > limit + limits::LATE_TIMER {
        // The process did not run, so the answer may be in the socket.
        answer = timeout(limits::LATE_READ_PAUSE, asking).await;
    }
    let Ok(answer) = answer else {
        shared.client_state.round_trips.timed_out(node);
        shared.suspect(node, number);
        return Err(NodeError::timed_out(limit));
    };
    if !matches!(answer, Err(NodeError::Down { .. })) {
        shared.client_state.round_trips.sample(node, asked.elapsed());
    }
    answer
}

/// Lists the first `limit` locks whose keys match, in the order of their keys.
pub(crate) async fn scan(shared: &Shared, pattern: &[u8], limit: usize) -> Listing {
    let routes = inspection_routes(&shared.view.load().topology);
    let listing = Mutex::new(Listing::new(routes.len(), limit));
    let scanning = routes.into_iter().enumerate().map(async |(node, route)| {
        let scanned = scan_node(shared, (node, route), pattern, &listing).await;
        lock(&listing).finish(node, scanned);
    });
    join_all(scanning).await;
    listing.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn lock(listing: &Mutex<Listing>) -> MutexGuard<'_, Listing> {
    listing.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns why the node abstains; `None` if it votes.
async fn scan_node(
    shared: &Shared,
    (node, route): (usize, Result<u64, NodeError>),
    pattern: &[u8],
    listing: &Mutex<Listing>,
) -> Result<Option<String>, NodeError> {
    let number = route?;
    let (mut cursor, mut abstains) = (0, None);
    loop {
        let ask = async |connection: &Connection| connection.scan(cursor, pattern).await;
        let slice = ask_in_time(shared, (node, number), limits::OPERATOR_TIMEOUT, ask).await?;
        for (key, lease) in slice.locks {
            lock(listing).add(node, key, lease);
        }
        abstains = abstains.or(slice.abstains);
        cursor = slice.cursor;
        if cursor == 0 {
            return Ok(abstains);
        }
    }
}
