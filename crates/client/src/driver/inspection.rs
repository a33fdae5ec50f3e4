//! LOCK.INSPECT on every node.

use futures_util::future::join_all;
use quorlock_core::Ttl;
use quorlock_core::client::{LeaseInfo, NodeError, inspection_routes, limits};
use tokio::time::{Instant, timeout};

use super::shared::Shared;

/// An inspection has no ttl; each node has as much time as for a lock of the default ttl.
const TTL: Ttl = match Ttl::from_ms(10_000) {
    Ok(ttl) => ttl,
    Err(_) => panic!("10 s is a ttl"),
};

/// What each node says about a key, in the order in which the nodes were named.
pub(crate) async fn inspect(shared: &Shared, key: &[u8]) -> Vec<Result<Option<LeaseInfo>, NodeError>> {
    let routes = inspection_routes(&shared.view.load().topology);
    let asking = routes.into_iter().enumerate().map(async |(node, route)| {
        let number = route?;
        let Some(connection) = shared.connection(node, number) else {
            return Err(NodeError::connection_lost());
        };
        let derived = || limits::node_timeout(shared.fleet.round_trips.of(node), TTL);
        let limit = shared.node_timeout.map_or_else(derived, |limit| limit.min(TTL.duration() / 4));
        let asked = Instant::now();
        let Ok(answer) = timeout(limit, connection.inspect(key)).await else {
            shared.fleet.round_trips.timed_out(node);
            shared.suspect(node, number);
            return Err(NodeError::timed_out(limit));
        };
        if !matches!(answer, Err(NodeError::Down { .. })) {
            shared.fleet.round_trips.sample(node, asked.elapsed());
        }
        answer
    });
    join_all(asking).await
}
