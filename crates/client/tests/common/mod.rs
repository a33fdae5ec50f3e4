//! Shared by the tests of the client: a quorum of real masters, some of them behind a network with
//! faults.

#![allow(dead_code, reason = "each test file uses its part")]

use std::time::Duration;

use quorlock_client::Quorum;
use quorlock_testkit::{Masters, Proxy, eventually_async};

/// A limit for every wait: longer than any step of a test takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct Net {
    pub(crate) masters: Masters,
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) quorum: Quorum,
}

/// A quorum of `n` masters.
pub(crate) async fn quorum(n: usize) -> (Masters, Quorum) {
    let masters = Masters::start(n);
    let quorum = connect(masters.urls()).await;
    (masters, quorum)
}

/// A quorum of `n` masters, each behind a proxy.
pub(crate) async fn net(n: usize) -> Net {
    let masters = Masters::start(n);
    let proxies: Vec<_> = masters.iter().map(|master| Proxy::start(master.url())).collect();
    let quorum = connect(proxies.iter().map(Proxy::url)).await;
    Net { masters, proxies, quorum }
}

/// A client that is connected to all of these nodes. A new client needs only a majority, and the
/// tests need all.
pub(crate) async fn connect(urls: impl IntoIterator<Item = String>) -> Quorum {
    // The machine may be busy with other tests, so that a slow answer is not the node's fault.
    let quorum = Quorum::builder().nodes(urls).node_timeout(Duration::from_secs(1)).connect();
    let quorum = quorum.await.expect("real URLs");
    eventually_async(PATIENCE, "all nodes are connected", async || {
        let (nodes, connected) = connected(&quorum);
        connected == nodes
    })
    .await;
    quorum
}

/// The number of nodes, and of nodes that can vote.
pub(crate) fn connected(quorum: &Quorum) -> (usize, usize) {
    let health = quorum.health();
    (health.len(), health.iter().filter(|node| node.error.is_none()).count())
}

/// The number of running masters that hold the key.
pub(crate) fn holding(masters: &Masters, key: &str) -> usize {
    masters.iter().filter(|master| master.is_running()).filter(|master| exists(master, key)).count()
}

/// Adds a user with these rules, separated by spaces.
pub(crate) fn set_user(master: &quorlock_testkit::Server, user: &str, rules: &str) {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg(user).arg(rules.split(' ').collect::<Vec<_>>());
    command.exec(&mut master.connection()).unwrap();
}

pub(crate) fn exists(master: &quorlock_testkit::Server, key: &str) -> bool {
    redis::cmd("EXISTS")
        .arg(key)
        .query::<bool>(&mut master.connection())
        .expect("a living master answers")
}

pub(crate) async fn nothing_is_left(masters: &Masters, key: &str) {
    eventually_async(PATIENCE, "the key is gone from every living master", async || {
        holding(masters, key) == 0
    })
    .await;
}

pub(crate) async fn all_hold(masters: &Masters, key: &str) {
    eventually_async(PATIENCE, "every living master holds the key", async || {
        holding(masters, key) == masters.iter().filter(|master| master.is_running()).count()
    })
    .await;
}
