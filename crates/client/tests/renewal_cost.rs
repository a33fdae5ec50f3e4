//! The cost of renewing many locks. A measurement, which does not run by default:
//! `cargo test --release -p quorlock-client --test renewal_cost -- --ignored --nocapture`

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use quorlock_client::{Ownership, Quorum};
use quorlock_testkit::Masters;
use rustix::time::{ClockId, clock_gettime};

const LOCKS: usize = 10_000;
const NODES: usize = 5;
const TTL: Duration = Duration::from_secs(10);
const MEASURED: Duration = Duration::from_secs(30);

/// The processor time of all threads of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

#[tokio::test]
#[ignore = "a measurement, which needs a machine to itself"]
async fn ten_thousand_renewed_locks_cost_less_than_a_tenth_of_a_core() {
    let masters = Masters::start_with(NODES, |_, builder| builder.tcp()).unwrap();
    let quorum = Quorum::builder()
        .nodes(masters.urls())
        .node_timeout(Duration::from_secs(1))
        .connect()
        .await
        .unwrap();
    let acquired = stream::iter(0..LOCKS).map(|n| {
        let builder = quorum.lock(format!("k{n}")).ttl(TTL);
        async move {
            let mut lock = builder.acquire().await.unwrap();
            lock.renew();
            lock
        }
    });
    let locks: Vec<_> = acquired.buffer_unordered(16).collect().await;
    // After half a ttl, each lock has been extended at least once.
    tokio::time::sleep(TTL / 2).await;
    let (began, cpu_time_before) = (Instant::now(), cpu_time());
    tokio::time::sleep(MEASURED).await;
    let share =
        cpu_time().saturating_sub(cpu_time_before).as_secs_f64() / began.elapsed().as_secs_f64();
    let held = locks.iter().filter(|lock| matches!(lock.ownership(), Ownership::Held(_))).count();
    println!(
        "{LOCKS} renewed locks with a ttl of {TTL:?} on {NODES} nodes: {:.1} % of one core, \
         {held} held",
        share * 100.0
    );
    assert_eq!(held, LOCKS);
    assert!(share < 0.10, "{share}");
}
