//! Helpers for the tests: quorums of real nodes, with and without proxies that inject faults.

#![allow(dead_code, reason = "each test file uses its part")]

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorlock_client::{AcquireError, Lock, LockBuilder, NodeError, Quorum, blocking};
use quorlock_testkit::{Direction, Nodes, Proxy, Server, eventually, eventually_async, info};
use tokio::task::JoinHandle;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// The usual time limit of a wait: longer than most steps of a test take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Nodes behind proxies, and a client that connects through the proxies.
pub(crate) struct Net {
    pub(crate) nodes: Nodes,
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) quorum: Quorum,
}

impl Net {
    pub(crate) fn hold(&self, direction: Direction) {
        self.proxies.iter().for_each(|proxy| proxy.hold(direction));
    }

    pub(crate) fn delay(&self, direction: Direction, delay: Duration) {
        self.proxies.iter().for_each(|proxy| proxy.delay(direction, delay));
    }

    pub(crate) fn heal(&self) {
        self.proxies.iter().for_each(Proxy::heal);
    }
}

pub(crate) async fn quorum(n: usize) -> (Nodes, Quorum) {
    let nodes = Nodes::start(n);
    let quorum = connect(nodes.urls()).await;
    (nodes, quorum)
}

pub(crate) async fn net(n: usize) -> Net {
    net_of(Nodes::start(n)).await
}

pub(crate) async fn net_of(nodes: Nodes) -> Net {
    let proxies: Vec<_> = nodes.iter().map(|node| Proxy::start(node.url())).collect();
    let quorum = connect(proxies.iter().map(Proxy::url)).await;
    Net { nodes, proxies, quorum }
}

/// Three nodes that store the same fence for a lock. The fences of a server begin
/// `lock.max-clock-skew` above its clock. With 1 ms, the fence that the client proposes is larger.
pub(crate) fn nodes_with_equal_fences() -> Nodes {
    Nodes::start_with(3, |_, builder| builder.arg("lock.max-clock-skew", 1)).unwrap()
}

/// Connects to all of these nodes. `QuorumBuilder::connect` alone needs only a majority.
pub(crate) async fn connect(urls: impl IntoIterator<Item = String>) -> Quorum {
    // On a busy machine, a healthy node may answer late.
    let quorum = Quorum::builder().nodes(urls).node_timeout(Duration::from_secs(1)).connect();
    let quorum = quorum.await.expect("the URLs are valid");
    until_voting(&quorum, quorum.health().len()).await;
    quorum
}

/// [`connect`] for a program that does not use tokio.
pub(crate) fn connect_blocking(urls: Vec<String>) -> blocking::Quorum {
    let quorum = blocking::Quorum::builder().nodes(urls).node_timeout(PATIENCE).connect().unwrap();
    eventually(PATIENCE, "all nodes can vote", || {
        quorum.health().iter().all(|node| node.error.is_none())
    });
    quorum
}

/// Waits until exactly `n` nodes can vote, as far as the client knows.
pub(crate) async fn until_voting(quorum: &Quorum, n: usize) {
    eventually_async(PATIENCE, &format!("{n} nodes can vote"), async || {
        quorum.health().iter().filter(|node| node.error.is_none()).count() == n
    })
    .await;
}

/// A lock with time limits that are long enough for a busy machine.
pub(crate) fn patiently(quorum: &Quorum, key: &str) -> LockBuilder {
    quorum.lock(key).ttl(Duration::from_secs(30)).node_timeout(Duration::from_secs(10))
}

/// Starts a call that must acquire the lock.
pub(crate) fn spawn_acquire(builder: LockBuilder) -> JoinHandle<Lock> {
    tokio::spawn(async move { builder.acquire().await.unwrap() })
}

/// Asserts that a call failed because another client holds the lock or waits for it.
#[track_caller]
pub(crate) fn assert_refused(result: &Result<Lock, AcquireError>) {
    assert!(matches!(result, Err(AcquireError::Held { .. })), "{result:?}");
}

/// Returns the error of the first node that did not vote.
#[track_caller]
pub(crate) fn first_failure(error: &AcquireError) -> &NodeError {
    let AcquireError::NoQuorum { nodes } = error else { panic!("{error}") };
    nodes.failed().next().unwrap().1
}

/// Waits until the client knows that exactly `n` nodes hold the lock.
pub(crate) async fn until_held_on(lock: &Lock, n: usize) {
    eventually_async(PATIENCE, &format!("{n} nodes hold the lock"), async || {
        lock.coverage().held == n
    })
    .await;
}

/// Waits until `n` calls stand in line on each running node.
pub(crate) async fn until_in_line(nodes: &Nodes, n: u64) {
    eventually_async(PATIENCE, &format!("{n} calls stand in line on each node"), async || {
        running(nodes)
            .all(|node| info(&mut node.connection(), "lock", "lock_waiters").unwrap() == n)
    })
    .await;
}

/// Deletes the key on all nodes at nearly the same time, so that no repair comes in between.
pub(crate) fn delete(nodes: &Nodes, key: &str) {
    let connections: Vec<_> = nodes.iter().map(Server::connection).collect();
    for mut connection in connections {
        redis::cmd("DEL").arg(key).exec(&mut connection).unwrap();
    }
}

/// The rules of the documented user for programs that lock.
pub(crate) fn locker_rules() -> &'static str {
    let page = include_str!("../../../../docs/operations/security.md");
    page.lines().find_map(|line| line.strip_prefix("user locker ")).unwrap()
}

fn running(nodes: &Nodes) -> impl Iterator<Item = &Server> {
    nodes.iter().filter(|node| node.is_running())
}

/// The number of running nodes that have the key.
pub(crate) fn nodes_holding(nodes: &Nodes, key: &str) -> usize {
    running(nodes).filter(|node| exists(node, key)).count()
}

/// Adds a user with these rules, separated by spaces.
pub(crate) fn set_user(node: &Server, user: &str, rules: &str) {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg(user).arg(rules.split(' ').collect::<Vec<_>>());
    command.exec(&mut node.connection()).unwrap();
}

pub(crate) fn exists(node: &Server, key: &str) -> bool {
    let answer = redis::cmd("EXISTS").arg(key).query(&mut node.connection());
    answer.expect("a running node answers")
}

pub(crate) async fn wait_until_free(nodes: &Nodes, key: &str) {
    eventually_async(PATIENCE, "no running node has the key", async || {
        nodes_holding(nodes, key) == 0
    })
    .await;
}

pub(crate) async fn wait_until_all_hold(nodes: &Nodes, key: &str) {
    eventually_async(PATIENCE, "every running node has the key", async || {
        running(nodes).all(|node| exists(node, key))
    })
    .await;
}

/// Records as one text the events and spans of every crate that are at least as severe as `level`.
#[derive(Clone)]
pub(crate) struct Recorder {
    level: Level,
    text: Arc<Mutex<String>>,
}

impl Recorder {
    pub(crate) fn new(level: Level) -> Self {
        Self { level, text: Arc::default() }
    }

    /// Records what this thread does until the result is dropped.
    ///
    /// A second subscriber exists for as long. With one alone, tracing asks only the subscriber of
    /// the first thread that meets an event whether to record it, and here most threads have none.
    pub(crate) fn listen(&self) -> (DefaultGuard, Dispatch) {
        let second = Dispatch::new(Self::new(Level::ERROR));
        (tracing::subscriber::set_default(self.clone()), second)
    }

    pub(crate) fn text(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    fn add(&self, what: &impl Debug) {
        writeln!(self.text.lock().unwrap(), "{what:?}").unwrap();
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.add(span);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        self.add(values);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.add(event);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
