//! Helpers for the tests of the client: quorums of real masters, with and without proxies
//! that inject faults.

#![allow(dead_code, reason = "each test file uses its part")]

use std::fmt::{Debug, Write as _};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorlock_client::{LockBuilder, Quorum};
use quorlock_testkit::{Masters, Proxy, Server, eventually_async};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The usual time limit of a wait: longer than most steps of a test take.
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

/// A lock with time limits that are long enough for a busy machine.
pub(crate) fn patiently(quorum: &Quorum, key: &str) -> LockBuilder {
    quorum.lock(key).ttl(Duration::from_secs(30)).node_timeout(Duration::from_secs(4))
}

/// The value of a field of `INFO lock`.
pub(crate) fn info<T: FromStr<Err: Debug>>(server: &Server, field: &str) -> T {
    let text: String = redis::cmd("INFO").arg("lock").query(&mut server.connection()).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("{field}: {text}")).parse().unwrap()
}

/// How often a server has carried out a command. `lock.*` stands for all commands of the module.
pub(crate) fn calls(server: &Server, command: &str) -> u64 {
    let text: String =
        redis::cmd("INFO").arg("commandstats").query(&mut server.connection()).unwrap();
    let counts = text.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let is_counted = match command.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == command,
        };
        is_counted.then(|| rest.split(',').next().unwrap().parse::<u64>().unwrap())
    });
    counts.sum()
}

/// How many clients wait on a server.
pub(crate) fn waiters(server: &Server) -> u64 {
    info(server, "lock_waiters")
}

/// Waits until `n` clients wait on the running masters, in total.
pub(crate) async fn until_waiting(masters: &Masters, n: u64) {
    eventually_async(PATIENCE, &format!("{n} clients wait"), async || {
        let running = masters.iter().filter(|master| master.is_running());
        running.map(waiters).sum::<u64>() == n
    })
    .await;
}

/// Deletes the key on all masters.
pub(crate) fn delete(masters: &Masters, key: &str) {
    for master in masters {
        redis::cmd("DEL").arg(key).exec(&mut master.connection()).unwrap();
    }
}

/// The rules of the documented user for programs that lock.
pub(crate) fn locker_rules() -> &'static str {
    let page = include_str!("../../../../docs/operations/security.md");
    page.lines().find_map(|line| line.strip_prefix("user locker ")).unwrap()
}

/// The number of running masters that have the key.
pub(crate) fn masters_holding(masters: &Masters, key: &str) -> usize {
    masters.iter().filter(|master| master.is_running()).filter(|master| exists(master, key)).count()
}

/// Adds a user with these rules, separated by spaces.
pub(crate) fn set_user(master: &Server, user: &str, rules: &str) {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg(user).arg(rules.split(' ').collect::<Vec<_>>());
    command.exec(&mut master.connection()).unwrap();
}

/// Whether the master has the key.
pub(crate) fn exists(master: &Server, key: &str) -> bool {
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

/// Records the events and spans of `tracing` as one text: those of every crate, up to a level.
#[derive(Clone)]
pub(crate) struct Recorder {
    level: Level,
    text: Arc<Mutex<String>>,
}

impl Recorder {
    /// A recorder of this level and all more severe levels.
    pub(crate) fn new(level: Level) -> Self {
        Self { level, text: Arc::default() }
    }

    /// Returns what was recorded so far.
    pub(crate) fn text(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    fn add(&self, what: &str, record: impl FnOnce(&mut dyn Visit)) {
        let mut text = self.text.lock().unwrap();
        write!(text, "\n{what}").unwrap();
        record(&mut Fields(&mut text));
    }
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.add(span.metadata().name(), |fields| span.record(fields));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        self.add("", |fields| values.record(fields));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.add(event.metadata().target(), |fields| event.record(fields));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
