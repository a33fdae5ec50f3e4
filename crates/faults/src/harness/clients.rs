use std::time::Duration;

use anyhow::Result;
use quorlock_client::{Lock, Quorum};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::runtime;
use tokio::task::JoinSet;

use super::now;

/// Each client has a different sequence of random numbers.
pub(crate) fn random_of(seed: u64, client: u32) -> StdRng {
    StdRng::seed_from_u64(seed ^ (u64::from(client) + 1) << 32)
}

/// Runs clients in tasks until all of them have ended, then waits up to `max_ttl` per group for
/// background releases: after that time, a lock whose release is unconfirmed has ended. Does not
/// wait for locks that a client forgot.
///
/// The clients of a group share their connections. `client` receives an ID, the role and the
/// connections of each client.
pub(crate) fn run_clients<'a, R, C: Future<Output = ()> + Send + 'static>(
    groups: impl Iterator<Item = (&'a Vec<String>, Vec<R>)>,
    max_ttl: Duration,
    client: impl Fn(u32, R, Quorum) -> C,
) -> Result<()> {
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut quorums = Vec::new();
        let mut clients = JoinSet::new();
        let mut id = 0;
        for (urls, roles) in groups {
            let quorum = Quorum::connect(urls).await?;
            for role in roles {
                clients.spawn(client(id, role, quorum.clone()));
                id += 1;
            }
            quorums.push(quorum);
        }
        while let Some(ended) = clients.join_next().await {
            ended?;
        }
        for quorum in quorums {
            let _ = quorum.flush(max_ttl).await;
        }
        Ok(())
    })
}

/// Returns the end of the lock's validity, by the clock of [`now`].
pub(crate) fn held_until(lock: &Lock) -> Duration {
    // The clock is read first, so that the result is not after the end of the validity.
    let now = now();
    now + lock.remaining()
}

/// Returns the present time and the end of the lock's validity, by the clock of [`now`]; `None` if
/// the lock may have ended.
pub(crate) fn held_span(lock: &Lock) -> Option<(Duration, Duration)> {
    // `until` is read before `from`. A lost lock has no time left, so its `until` is not after
    // `from`.
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
