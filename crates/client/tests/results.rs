//! The results of calls are true, since programs branch on them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use common::{
    PATIENCE, assert_times_out, connect, first_failure, locker_rules, net, quorum, set_user,
    spawn_acquire, until_in_line, wait_until_all_hold, wait_until_free,
};
use quorlock_client::{AcquireError, LostError, NodeError, Quorum};
use quorlock_testkit::{Direction, Masters, Server};
use tokio::time::Instant;

#[tokio::test]
async fn call_without_wait_asks_the_nodes_on_a_contended_key() {
    let (masters, quorum) = quorum(3).await;
    let held = quorum.lock("k").acquire().await.unwrap();
    wait_until_all_hold(&masters, "k").await;
    assert_times_out(quorum.lock("k"), Duration::from_millis(300)).await;
    let at_once = quorum.lock("k").wait(Duration::ZERO).acquire().await.unwrap_err();
    let AcquireError::Held { nodes, .. } = &at_once else { panic!("{at_once}") };
    assert_eq!(nodes.0.len(), 3);
    held.release().await.unwrap();
    wait_until_free(&masters, "k").await;
    for _ in 0..3 {
        let free = quorum.lock("k").wait(Duration::ZERO).acquire().await;
        free.expect("the lock is free").release().await.unwrap();
    }
}

#[tokio::test]
async fn no_caller_of_a_key_reports_held_when_no_node_answers() {
    let net = net(3).await;
    net.hold(Direction::ToClient);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let lock = net.quorum.lock("k").node_timeout(Duration::from_millis(100));
        let lock = lock.wait(Duration::from_millis(300));
        calls.spawn(async move { lock.acquire().await.unwrap_err() });
    }
    for error in calls.join_all().await {
        let AcquireError::NoQuorum { nodes } = &error else { panic!("{error}") };
        assert_eq!(nodes.0.len(), 3, "{error}");
    }
}

/// Asserts that a call with a long wait fails at once. Returns its first failure.
async fn error_at_once(urls: impl IntoIterator<Item = String>) -> NodeError {
    let quorum = Quorum::connect(urls).await.unwrap();
    let started = Instant::now();
    let error = quorum.lock("k").wait(Duration::from_secs(60)).acquire().await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let AcquireError::NoQuorum { nodes } = &error else { panic!("{error}") };
    assert!(nodes.is_permanent(), "{error}");
    first_failure(&error).clone()
}

#[tokio::test]
async fn wrong_password_fails_at_once() {
    let start =
        |_, builder: quorlock_testkit::ServerBuilder| builder.tcp().arg("requirepass", "right");
    let masters = Masters::start_with(3, start).unwrap();
    let urls = masters.urls().into_iter().map(|url| url.replace("redis://", "redis://:wrong@"));
    let error = error_at_once(urls).await;
    assert!(matches!(error, NodeError::Denied { .. }), "{error}");
    assert!(!error.to_string().contains("wrong@"), "{error}");
}

#[tokio::test]
async fn database_that_does_not_exist_fails_at_once() {
    let masters = Masters::start(3);
    let error = error_at_once(masters.urls().into_iter().map(|url| format!("{url}?db=999"))).await;
    assert!(matches!(error, NodeError::Misconfigured { .. }), "{error}");
}

#[tokio::test]
async fn majority_without_the_module_fails_at_once() {
    let plain: Vec<_> = (0..2).map(|_| Server::builder().start().unwrap()).collect();
    let with_module = Server::with_module().start().unwrap();
    let urls = plain.iter().map(Server::url).chain([with_module.url()]);
    assert_eq!(error_at_once(urls).await, NodeError::NoModule);
}

#[tokio::test]
async fn majority_of_replicas_fails_at_once_and_is_named() {
    let masters: Vec<_> = (0..3).map(|_| Server::with_module().tcp().start().unwrap()).collect();
    let port = |server: &Server| {
        let port = redis::cmd("CONFIG").arg("GET").arg("port").query(&mut server.connection());
        let (_, port): (String, String) = port.unwrap();
        port
    };
    for replica in &masters[1..] {
        let of = port(&masters[0]);
        redis::cmd("REPLICAOF").arg("127.0.0.1").arg(of).exec(&mut replica.connection()).unwrap();
    }
    let urls = [&masters[1], &masters[2], &masters[0]].map(Server::url);
    let error = error_at_once(urls).await;
    assert_eq!(error, NodeError::Replica);
    assert!(error.to_string().contains("replica"), "{error}");
}

#[tokio::test]
async fn dropped_lock_is_free_for_the_next_call_of_the_program() {
    let (_masters, quorum) = quorum(3).await;
    for _ in 0..50 {
        drop(quorum.lock("k").try_acquire().await.unwrap());
        drop(quorum.lock("k").try_acquire().await.expect("the lock was dropped"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_several_simultaneous_calls_wins_a_free_lock() {
    const CLIENTS: usize = 3;
    let masters = Masters::start(5);
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(connect(masters.urls()).await);
    }
    for round in 0..100 {
        let key = format!("k{round}");
        let mut calls = tokio::task::JoinSet::new();
        for client in &clients {
            let lock = client.lock(&key);
            calls.spawn(async move { lock.try_acquire().await });
        }
        let results = calls.join_all().await;
        let winners = results.iter().filter(|result| result.is_ok()).count();
        assert_eq!(winners, 1, "{key}: {results:?}");
    }
}

#[tokio::test]
async fn loss_without_extension_is_not_reported_as_an_answer_of_the_nodes() {
    let (_masters, quorum) = quorum(3).await;
    let lock = quorum.lock("k").ttl(Duration::from_millis(200)).acquire().await.unwrap();
    let lost = lock.lost().await;
    assert!(matches!(lost, LostError::Expired { .. }), "{lost}");
    let text = lost.to_string();
    assert!(text.contains("expired before it was extended"), "{text}");
    let (reason, _) = text.split_once("Before that").unwrap();
    assert!(!reason.contains("granted"), "{text}");
}

#[tokio::test]
async fn two_names_of_a_server_are_noticed_with_the_documented_user() {
    let master = Server::with_module().tcp().start().unwrap();
    set_user(&master, "locker", locker_rules());
    let url = master.url().replace("redis://", "redis://locker:a-long-password@");
    let urls = [url.clone(), url.replace("127.0.0.1", "localhost")];
    let error = Quorum::connect(urls).await.unwrap_err();
    assert!(matches!(error, quorlock_client::ConnectError::SameServer { .. }), "{error}");
}

#[tokio::test]
async fn missing_right_to_info_fails_at_once_and_is_named() {
    let master = Server::with_module().tcp().start().unwrap();
    set_user(&master, "locker", "on >pw ~* +lock.acquire +lock.extend +lock.release");
    let error = error_at_once([master.url().replace("redis://", "redis://locker:pw@")]).await;
    assert!(error.to_string().contains("+info"), "{error}");
}

#[tokio::test]
async fn quorum_from_clients_of_redis_rs_waits_in_the_queue() {
    let (masters, holder) = quorum(3).await;
    let held = holder.lock("k").acquire().await.unwrap();
    wait_until_all_hold(&masters, "k").await;
    let clients = masters.iter().map(|master| redis::Client::open(master.url()).unwrap());
    let builder = clients.fold(Quorum::builder(), quorlock_client::QuorumBuilder::redis_client);
    let other = builder.node_timeout(PATIENCE).connect().await.unwrap();
    let call = spawn_acquire(other.lock("k"));
    until_in_line(&masters, 1).await;
    held.release().await.unwrap();
    call.await.unwrap().release().await.unwrap();
}
