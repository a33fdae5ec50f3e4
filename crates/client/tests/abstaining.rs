//! Masters that abstain, because they may have forgotten locks.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use common::{PATIENCE, connect, patiently, wait_until_all_hold, wait_until_free};
use quorlock_client::{AcquireError, NodeError, Quorum, Released};
use quorlock_testkit::{Masters, eventually_async};

/// Longer than any test takes.
const LONG_MS: u64 = 100_000;

/// Five masters, of which the first `n` abstain.
async fn five_masters_with_abstaining(n: usize) -> (Masters, Quorum) {
    let masters = Masters::start_with(5, |index, builder| {
        if index < n { builder.arg("lock.rejoin-delay", LONG_MS) } else { builder }
    });
    let masters = masters.unwrap();
    let quorum = connect(masters.urls()).await;
    (masters, quorum)
}

#[tokio::test]
async fn abstaining_minority_does_not_block_a_lock() {
    let (_masters, quorum) = five_masters_with_abstaining(2).await;
    let mut lock = patiently(&quorum, "k").try_acquire().await.unwrap();
    assert_eq!(lock.coverage().held, 3);
    lock.extend().await.unwrap();
    assert_eq!(lock.release().await.unwrap(), Released::Released);
}

#[tokio::test]
async fn abstaining_majority_is_named_with_the_answer_of_each_node() {
    let (masters, quorum) = five_masters_with_abstaining(3).await;
    let error = patiently(&quorum, "k").try_acquire().await.unwrap_err();
    let said = error.to_string();
    let AcquireError::NoQuorum { nodes } = error else { panic!("{error}") };
    let failed: Vec<_> = nodes.failed().collect();
    assert_eq!(failed.len(), 3, "{nodes}");
    for ((node, error), url) in failed.into_iter().zip(masters.urls()) {
        assert!(url.contains(node), "{url} is not {node}");
        let NodeError::Abstains { reason } = error else { panic!("{node}: {error}") };
        let (ms, why) = reason.split_once(' ').unwrap();
        assert!((1..=LONG_MS).contains(&ms.parse::<u64>().unwrap()), "{reason}");
        assert!(why.starts_with("start: "), "{reason}");
        assert!(said.contains(&format!("{node}: abstains: {reason}")), "{said}");
    }
}

#[tokio::test]
async fn held_lock_is_extended_on_masters_that_abstain_after_a_restart() {
    let masters = Masters::start_with(3, |_, builder| {
        builder.arg("appendonly", "yes").arg("appendfsync", "always")
    });
    let mut masters = masters.unwrap();
    let quorum = connect(masters.urls()).await;
    let mut lock = patiently(&quorum, "k").acquire().await.unwrap();
    wait_until_all_hold(&masters, "k").await;
    for master in &mut masters {
        master.set_arg("lock.rejoin-delay", LONG_MS);
        master.restart().unwrap();
    }
    eventually_async(PATIENCE, "a majority extends the lock", async || lock.extend().await.is_ok())
        .await;
    let another = patiently(&quorum, "k").try_acquire().await;
    assert!(matches!(another, Err(AcquireError::NoQuorum { .. })), "{another:?}");
    drop(lock);
    wait_until_free(&masters, "k").await;
}
