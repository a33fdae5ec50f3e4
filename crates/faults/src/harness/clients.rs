use std::time::Duration;

use anyhow::Result;
use quorlock_client::{Lock, Quorum};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::task::JoinSet;

use super::now;

/// Returns the random number generator of a client. Each client has a different sequence.
pub(crate) fn random_of(seed: u64, client: u32) -> StdRng {
    StdRng::seed_from_u64(seed ^ (u64::from(client) + 1) << 32)
}

/// Waits until all clients have ended, then up to `limit` per quorum for background releases.
pub(crate) async fn finish(
    mut clients: JoinSet<()>,
    quorums: Vec<Quorum>,
    limit: Duration,
) -> Result<()> {
    while let Some(ended) = clients.join_next().await {
        ended?;
    }
    for quorum in quorums {
        let _ = quorum.flush(limit).await;
    }
    Ok(())
}

/// Returns the end of the lock's validity, by the clock of [`now`].
pub(crate) fn held_until(lock: &Lock) -> Duration {
    // The clock is read first, so that the result is never later than the lock says.
    let now = now();
    now + lock.remaining()
}
