//! Nodes are added, removed and replaced under load: no two holders, and a majority at every step.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::PATIENCE;
use quorlock_client::{Lock, LockWatch, Quorum};
use quorlock_testkit::{Server, eventually_async};
use tokio::task::JoinSet;

/// The largest ttl, and so the time for which a restarted node abstains.
const MAX_TTL: Duration = Duration::from_millis(400);
const WORKERS: usize = 4;

fn set(id: usize, members: &str) -> String {
    format!("eu {id} {members}")
}

fn start(id: usize, members: &str) -> Server {
    let ms = MAX_TTL.as_millis();
    let server = Server::with_module().tcp().arg("lock.max-ttl", ms).arg("lock.rejoin-delay", ms);
    server.arg("lock.set", set(id, members)).start().unwrap()
}

async fn until_voting(node: &Server) {
    eventually_async(PATIENCE, "the node votes", async || {
        let info: String = redis::cmd("INFO").arg("lock").query(&mut node.connection()).unwrap();
        info.contains("lock_state:voting\r\n")
    })
    .await;
}

/// Restarts these nodes one at a time with another list of members. Waits until each one votes. The
/// ID of a node is its place in the list, from 1.
async fn restart(nodes: &mut [Server], ids: impl IntoIterator<Item = usize>, members: &str) {
    for id in ids {
        let node = &mut nodes[id - 1];
        node.set_arg("lock.set", set(id, members));
        node.restart().unwrap();
        until_voting(node).await;
    }
}

/// The lock that a worker of any client acquired last, how often a worker acquired the lock beside
/// another holder, and how often a worker held it.
#[derive(Default)]
struct Load {
    last: Mutex<Option<LockWatch>>,
    overlaps: AtomicUsize,
    granted: AtomicUsize,
}

impl Load {
    /// Starts workers with one list of nodes, which acquire the same lock again and again.
    async fn start(self: &Arc<Self>, nodes: &[Server]) -> JoinSet<()> {
        let urls = nodes.iter().map(Server::url);
        let quorum = Quorum::builder().nodes(urls).set("eu").connect().await.unwrap();
        (0..WORKERS).map(|_| Arc::clone(self).work(quorum.clone())).collect()
    }

    async fn work(self: Arc<Self>, quorum: Quorum) {
        loop {
            let lock = quorum.lock("k").ttl(MAX_TTL).wait(Duration::from_secs(1));
            let Ok(lock) = lock.acquire().await else { continue };
            self.count_overlap(&lock);
            tokio::time::sleep(Duration::from_millis(3)).await;
            self.granted.fetch_add(1, Ordering::SeqCst);
            let _ = lock.release().await;
        }
    }

    /// Counts an overlap if this lock and the one before are held at the same time. On a busy
    /// machine a worker may stall for longer than its lock lasts.
    fn count_overlap(&self, lock: &Lock) {
        let before = self.last.lock().unwrap().replace(lock.watch());
        let is_held = before.is_some_and(|before| !before.remaining().is_zero());
        if is_held && !lock.remaining().is_zero() {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Waits for further locks, and asserts that no lock has had two holders.
    async fn assert_goes_on(&self, step: &str) {
        let before = self.granted.load(Ordering::SeqCst);
        eventually_async(PATIENCE * 2, step, async || {
            self.granted.load(Ordering::SeqCst) > before + 5
        })
        .await;
        assert_eq!(self.overlaps.load(Ordering::SeqCst), 0, "{step}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_added_removed_and_replaced_under_load() {
    let load = Arc::new(Load::default());
    let mut nodes: Vec<_> = (1..=3).map(|id| start(id, "1,2,3")).collect();
    for node in &nodes {
        until_voting(node).await;
    }
    let mut old = load.start(&nodes).await;
    load.assert_goes_on("three nodes").await;

    // Add node 4.
    nodes.push(start(4, "1,2,3>1,2,3,4"));
    until_voting(&nodes[3]).await;
    restart(&mut nodes, [1, 2, 3], "1,2,3>1,2,3,4").await;
    load.assert_goes_on("node 4 is being added, old clients").await;
    let mut new = load.start(&nodes).await;
    load.assert_goes_on("node 4 is being added, old and new clients").await;
    old.shutdown().await;
    tokio::time::sleep(MAX_TTL).await;
    restart(&mut nodes, [1, 2, 3, 4], "1,2,3,4").await;
    load.assert_goes_on("four nodes").await;

    // Remove node 1. Together with the addition of node 4, this replaces node 1.
    restart(&mut nodes, [1, 2, 3, 4], "1,2,3,4>2,3,4").await;
    load.assert_goes_on("node 1 is being removed, old clients").await;
    let mut newest = load.start(&nodes[1..]).await;
    load.assert_goes_on("node 1 is being removed, old and new clients").await;
    new.shutdown().await;
    tokio::time::sleep(MAX_TTL).await;
    restart(&mut nodes, [2, 3, 4], "2,3,4").await;
    nodes[0].kill();
    load.assert_goes_on("three other nodes").await;
    newest.shutdown().await;
    assert_eq!(load.overlaps.load(Ordering::SeqCst), 0);
}
