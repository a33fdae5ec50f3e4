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

/// Returns a time at which the lock is held, and the end of its validity, by the clock of [`now`].
///
/// Returns `None` if the lock may have ended.
pub(crate) fn held_span(lock: &Lock) -> Option<(Duration, Duration)> {
    // The end is read first: for a lost lock, it is the time at which it was read.
    let until = held_until(lock);
    let from = now();
    (from < until).then_some((from, until))
}

#[cfg(test)]
mod tests {
    use quorlock_testkit::{Server, eventually_async};

    use super::*;

    #[tokio::test]
    async fn lost_lock_has_no_span() {
        let server = Server::with_module().start().unwrap();
        let quorum = Quorum::connect([server.url()]).await.unwrap();
        let lock = quorum.lock("k").ttl(Duration::from_secs(1)).acquire().await.unwrap();
        assert!(held_span(&lock).is_some());
        let limit = Duration::from_secs(10);
        eventually_async(limit, "the lock has ended", async || lock.remaining().is_zero()).await;
        assert_eq!(held_span(&lock), None);
    }
}
