//! Helpers for the tests of the client: quorums of real masters, with and without proxies
//! that inject faults.

#![allow(dead_code, reason = "each test file uses its part")]

use std::time::Duration;

use quorlock_client::Quorum;
use quorlock_testkit::{Masters, Proxy, eventually_async};

/// The time limit of every wait. Each step of a test takes less time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Masters behind proxies, and a client that connects through the proxies.
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

/// Returns a client that is connected to all of these nodes. `QuorumBuilder::connect` alone would
/// need only a majority.
pub(crate) async fn connect(urls: impl IntoIterator<Item = String>) -> Quorum {
    // On a busy machine, a healthy node may answer late.
    let quorum = Quorum::builder().nodes(urls).node_timeout(Duration::from_secs(1)).connect();
    let quorum = quorum.await.expect("the URLs are valid");
    eventually_async(PATIENCE, "all nodes are connected", async || {
        let (nodes, connected) = nodes_and_voters(&quorum);
        connected == nodes
    })
    .await;
    quorum
}

/// Returns the number of nodes, and how many of them can vote, as far as the client knows.
pub(crate) fn nodes_and_voters(quorum: &Quorum) -> (usize, usize) {
    let health = quorum.health();
    (health.len(), health.iter().filter(|node| node.error.is_none()).count())
}

/// The number of running masters that have the key.
pub(crate) fn masters_holding(masters: &Masters, key: &str) -> usize {
    masters.iter().filter(|master| master.is_running()).filter(|master| exists(master, key)).count()
}

/// Adds a user with these rules, separated by spaces.
pub(crate) fn set_user(master: &quorlock_testkit::Server, user: &str, rules: &str) {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg(user).arg(rules.split(' ').collect::<Vec<_>>());
    command.exec(&mut master.connection()).unwrap();
}

/// Whether the master has the key.
pub(crate) fn exists(master: &quorlock_testkit::Server, key: &str) -> bool {
    redis::cmd("EXISTS")
        .arg(key)
        .query::<bool>(&mut master.connection())
        .expect("a running master answers")
}

/// Waits until no running master has the key.
pub(crate) async fn wait_until_free(masters: &Masters, key: &str) {
    eventually_async(PATIENCE, "no running master has the key", async || {
        masters_holding(masters, key) == 0
    })
    .await;
}

/// Waits until every running master has the key.
pub(crate) async fn wait_until_all_hold(masters: &Masters, key: &str) {
    eventually_async(PATIENCE, "every running master has the key", async || {
        masters_holding(masters, key) == masters.iter().filter(|master| master.is_running()).count()
    })
    .await;
}
