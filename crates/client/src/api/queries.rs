//! LOCK.INSPECT and LOCK.SCAN on every node, and the slots of a semaphore.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use quorlock_core::NodeError;
use quorlock_core::client::{Keys, limits};
use quorlock_core::operator::{LeaseInfo, Listing, inspection_routes};
use tokio::time::timeout;

use crate::driver::Network;
use crate::transport::Connection;

/// The maximum number of keys of `LOCK.ACQUIREANY`.
pub(crate) const PERMITS_MAX: usize = 64;

pub(crate) fn slot_key(name: &[u8], slot: usize) -> Vec<u8> {
    [name, format!(":{slot:02}").as_bytes()].concat()
}

/// The name of the semaphore whose first slot has this key.
pub(crate) fn name_of(first: &[u8]) -> Option<&[u8]> {
    first.strip_suffix(b":00")
}

/// Returns the answer of each node, in the order in which the nodes were named.
pub(crate) async fn inspect(
    network: &Network,
    key: &[u8],
) -> Vec<Result<Option<LeaseInfo>, NodeError>> {
    let routes = inspection_routes(&network.view.load().topology);
    let asking = routes.into_iter().enumerate().map(async |(node, route)| {
        let ask = async |connection: &Connection| connection.inspect(key).await;
        network.ask_in_time((node, route?), Duration::ZERO, ask).await
    });
    join_all(asking).await
}

/// The lease to name as the reason why a lock of these keys is refused; `None` if these nodes do
/// not know one within `limit`.
///
/// Unlike the other inspections, changes nothing that the client knows about a slow node: the limit
/// may be shorter than the time that a node may take.
pub(crate) async fn main_lease(
    network: &Network,
    keys: &Keys,
    limit: Duration,
) -> Option<LeaseInfo> {
    let routes = inspection_routes(&network.view.load().topology).into_iter().enumerate();
    let mut asking: FuturesUnordered<_> = routes
        .filter_map(|(node, route)| network.connection(node, route.ok()?))
        .map(async |connection| connection.leases(keys.iter().take(limits::NAMING_KEYS_MAX)).await)
        .collect();
    let mut answers = Vec::new();
    let majority = network.client_state.majority.size();
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
    quorlock_core::operator::main_lease(&answers)
}

/// See [`crate::Quorum::larger_permits`].
pub(crate) async fn larger_permits(
    network: &Network,
    name: &[u8],
    permits: usize,
) -> Option<usize> {
    let further: Keys = (permits..PERMITS_MAX).map(|slot| slot_key(name, slot)).collect();
    if further.is_empty() {
        return None;
    }
    let routes = inspection_routes(&network.view.load().topology);
    let asking = routes.into_iter().enumerate().map(async |(node, route)| {
        let ask = async |connection: &Connection| connection.leases(further.iter()).await;
        let leases = network.ask_in_time((node, route.ok()?), Duration::ZERO, ask).await.ok()?;
        leases.iter().rposition(Option::is_some)
    });
    // The index of the last further slot that any node reports as taken.
    let last = join_all(asking).await.into_iter().flatten().max()?;
    Some(permits + last + 1)
}

/// Lists the first `limit` locks whose keys match, in the order of their keys.
pub(crate) async fn scan(network: &Network, pattern: &[u8], limit: usize) -> Listing {
    let routes = inspection_routes(&network.view.load().topology);
    let listing = Mutex::new(Listing::new(routes.len(), limit));
    let scanning = routes.into_iter().enumerate().map(async |(node, route)| {
        let scanned = scan_node(network, (node, route), pattern, &listing).await;
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
    network: &Network,
    (node, route): (usize, Result<u64, NodeError>),
    pattern: &[u8],
    listing: &Mutex<Listing>,
) -> Result<Option<String>, NodeError> {
    let number = route?;
    let (mut cursor, mut abstains) = (0, None);
    loop {
        let ask = async |connection: &Connection| connection.scan(cursor, pattern).await;
        let slice = network.ask_in_time((node, number), limits::OPERATOR_TIMEOUT, ask).await?;
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
