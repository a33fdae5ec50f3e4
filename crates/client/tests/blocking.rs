//! The blocking API, without tokio, and inside a program that uses tokio.

use std::thread;
use std::time::Duration;

use crate::common::{PATIENCE, connect_blocking, delete, nodes_holding};
use quorlock_client::blocking::{Quorum, QuorumBuilder};
use quorlock_client::{AcquireError, LostError, NodeError, Ownership, Released, RunError};
use quorlock_testkit::{Nodes, eventually};

fn quorum() -> (Nodes, Quorum) {
    let nodes = Nodes::start(3);
    let quorum = connect_blocking(nodes.urls());
    (nodes, quorum)
}

fn life_of_a_lock() {
    let (nodes, quorum) = quorum();
    let mut lock = quorum.lock("k").ttl(Duration::from_secs(5)).acquire().unwrap();
    assert!(matches!(lock.ownership(), Ownership::Held(_)));
    let held = quorum.lock("k").try_acquire();
    assert!(matches!(held, Err(AcquireError::Held { .. })), "{held:?}");
    lock.extend().unwrap();
    lock.renew();
    let text = lock.detach().to_secret_text();
    let lock = quorum.attach(text.parse().unwrap()).unwrap();
    assert_eq!(lock.release().unwrap(), Released::Released);
    drop(quorum.lock("k").acquire().unwrap());
    eventually(PATIENCE, "a dropped lock is released", || nodes_holding(&nodes, "k") == 0);
    quorum.flush(PATIENCE).unwrap();
}

#[test]
fn blocking_api_works_without_tokio_and_in_a_program_that_uses_tokio() {
    life_of_a_lock();
    let flavors = [
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap(),
    ];
    for runtime in flavors {
        runtime.block_on(async { life_of_a_lock() });
    }
}

#[test]
fn blocking_run_returns_the_result_and_reports_a_lost_lock() {
    let (nodes, quorum) = quorum();
    let ttl = Duration::from_secs(3);
    let builder = quorum.lock("k").ttl(ttl);
    let kept = builder.run(|lock| {
        thread::sleep(ttl * 3 / 2);
        lock.ownership()
    });
    assert!(matches!(kept, Ok(Ownership::Held(_))), "{kept:?}");

    let mut told = None;
    let lost = builder.run(|lock| {
        delete(&nodes, "k");
        told = lock.ended().map(|lost| lost.to_string());
    });
    let Err(RunError::Lost { lost: LostError::Ended { .. }, finished: true }) = lost else {
        panic!("{lost:?}")
    };
    let told = told.unwrap();
    assert!(told.contains("no majority of the nodes holds the lock any more"), "{told}");
}

#[test]
fn clients_of_redis_rs_make_a_quorum_that_checks_the_named_set() {
    let nodes = Nodes::start(3);
    let builder = || {
        let clients = nodes.iter().map(|node| redis::Client::open(node.url()).unwrap());
        clients.fold(Quorum::builder().node_timeout(PATIENCE), QuorumBuilder::redis_client)
    };
    let quorum = builder().connect().unwrap();
    assert_eq!(quorum.lock("k").acquire().unwrap().release().unwrap(), Released::Released);
    let of_another_set = builder().set("us").connect().unwrap();
    let error = of_another_set.lock("k").try_acquire().unwrap_err();
    let AcquireError::NoQuorum { nodes } = &error else { panic!("{error}") };
    assert!(nodes.failed().all(|(_, why)| matches!(why, NodeError::NotAdmitted { .. })), "{error}");
    assert_eq!(nodes.failed().count(), 3, "{error}");
}

#[test]
fn lock_dropped_after_its_quorum_is_still_released() {
    let (nodes, quorum) = quorum();
    let lock = quorum.lock("k").ttl(Duration::from_secs(30)).acquire().unwrap();
    drop(quorum);
    assert!(nodes_holding(&nodes, "k") >= 2);
    drop(lock);
    eventually(PATIENCE, "the lock is released", || nodes_holding(&nodes, "k") == 0);
}
