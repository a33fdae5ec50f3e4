//! Keyspace events, caches and WATCH behave as with the equivalent plain commands.

use std::sync::mpsc;

use crate::common::{PATIENCE, RedisCli, info, server, server_and_cli};
use quorlock_testkit::{Server, eventually};
use redis::Value::{self, BulkString, Int, Nil};
use redis::{PubSub, PushInfo, PushKind};

const ALL_EVENTS: &str = "CONFIG SET notify-keyspace-events KEA";
/// `A`, for all events, does not include `n`: the event "new" of a key that did not exist before.
const NEW_KEYS: &str = "CONFIG SET notify-keyspace-events KEn";

/// After this command, the server removes an expired key only when a command uses the key.
const NO_ACTIVE_EXPIRY: &str = "DEBUG SET-ACTIVE-EXPIRE 0";

/// A setup, a command of the module, and the plain command that has the same events.
const EQUIVALENTS: [(&str, &str, &str); 14] = [
    ("PING", "LOCK.ACQUIRE k a 60000", "SET k a PX 60000"),
    ("LOCK.ACQUIRE k a 30000", "LOCK.EXTEND k a 60000", "PEXPIRE k 60000"),
    ("LOCK.ACQUIRE k a 30000", "LOCK.EXTEND k a 60000 TOKEN b", "SET k b PX 60000"),
    ("LOCK.ACQUIRE k a 30000", "LOCK.RELEASE k a", "DEL k"),
    ("SET k a PX 30000", "LOCK.EXTEND k a 60000", "PEXPIRE k 60000"),
    ("LOCK.ACQUIRE k a 60000", "LOCK.REVOKE k", "SET k b PX 60000"),
    ("LOCK.ACQUIRE k a 60000", "LOCK.REVOKE k NOW", "DEL k"),
    ("SET k a PX 60000", "LOCK.REVOKE k", "SET k b PX 60000"),
    ("PING", "LOCK.ACQUIRE k a 60000 SHARED", "SET k a PX 60000"),
    ("LOCK.ACQUIRE k a 30000 SHARED", "LOCK.ACQUIRE k b 60000 SHARED", "SET k b PX 60000"),
    ("LOCK.ACQUIRE k a 30000 SHARED", "LOCK.EXTEND k a 60000", "SET k b PX 60000"),
    ("LOCK.ACQUIRE k a 60000 SHARED", "LOCK.RELEASE k a", "DEL k"),
    ("LOCK.ACQUIRE k a 60000 SHARED", "LOCK.REVOKE k", "SET k b PX 60000"),
    ("PING", "LOCK.ACQUIREANY 2 k l a 60000", "SET k a PX 60000"),
];

/// Commands that change nothing while `a` holds `k` for longer than they request.
const NOTHING_CHANGES: [&str; 5] = [
    "LOCK.ACQUIRE k b 1000",
    "LOCK.EXTEND k b 1000",
    "LOCK.EXTEND k a 1",
    "LOCK.RELEASE k b",
    "LOCK.INSPECT k",
];

/// The events that a line publishes, in order, after another line has prepared the keys.
fn published(server: &Server, events: &str, before: &str, line: &str) -> Vec<(String, String)> {
    let mut cli = RedisCli::new(server);
    cli.reply(events);
    cli.reply("FLUSHALL");
    cli.reply(before);
    let mut connection = server.connection();
    let mut listener = connection.as_pubsub();
    listener.psubscribe("__key*__:*").unwrap();
    listener.subscribe("end").unwrap();
    cli.reply(line);
    cli.reply("PUBLISH end .");
    until_end(&mut listener)
}

/// The channels and the payloads of the messages before the next one on `end`.
fn until_end(listener: &mut PubSub<'_>) -> Vec<(String, String)> {
    let messages = std::iter::from_fn(|| {
        let message = listener.get_message().unwrap();
        let channel = message.get_channel_name().to_owned();
        (channel != "end").then(|| (channel, message.get_payload().unwrap()))
    });
    messages.collect()
}

/// A client with a cache that has read `k`.
struct Cache {
    cli: RedisCli,
    pushed: mpsc::Receiver<PushInfo>,
}

impl Cache {
    fn of_k(server: &Server) -> Self {
        let mut cli = RedisCli::resp3(server);
        let (sender, pushed) = mpsc::channel();
        cli.0.set_push_sender(sender);
        cli.reply("CLIENT TRACKING on");
        cli.reply("GET k");
        Self { cli, pushed }
    }

    fn invalidated(&mut self) -> Vec<Vec<Value>> {
        // Everything that was sent before the reply has arrived with it.
        self.cli.reply("PING");
        let invalidations = self.pushed.try_iter().filter(|push| push.kind == PushKind::Invalidate);
        invalidations.map(|push| push.data).collect()
    }
}

fn invalidated(server: &Server, before: &str, line: &str) -> Vec<Vec<Value>> {
    let mut cli = RedisCli::new(server);
    cli.reply("FLUSHALL");
    cli.reply(before);
    let mut cache = Cache::of_k(server);
    cli.reply(line);
    cache.invalidated()
}

fn aborts_transaction(server: &Server, before: &str, line: &str) -> bool {
    let (mut watcher, mut cli) = (RedisCli::new(server), RedisCli::new(server));
    cli.reply("FLUSHALL");
    cli.reply(before);
    watcher.reply("WATCH k");
    cli.reply(line);
    watcher.reply("MULTI");
    watcher.reply("PING");
    watcher.reply("EXEC") == Nil
}

#[test]
fn events_caches_and_watch_are_as_with_the_equivalent_command() {
    let server = server();
    for (before, ours, theirs) in EQUIVALENTS {
        let [events, expected] =
            [ours, theirs].map(|line| published(&server, ALL_EVENTS, before, line));
        assert!(!expected.is_empty(), "{theirs} is published");
        assert_eq!(events, expected, "{ours}");
        let [keys, expected] = [ours, theirs].map(|line| invalidated(&server, before, line));
        assert!(!expected.is_empty(), "{theirs} invalidates");
        assert_eq!(keys, expected, "{ours}");
        for line in [ours, theirs] {
            assert!(aborts_transaction(&server, before, line), "{line}");
        }
    }
}

#[test]
fn key_is_new_when_a_lock_is_acquired_and_not_when_it_is_extended() {
    let server = server();
    // These commands write another string, which the server reports as a new key.
    let writes_anew = |line: &str| line.contains("TOKEN") || line == "LOCK.REVOKE k";
    for (before, ours, theirs) in EQUIVALENTS.into_iter().filter(|(_, ours, _)| !writes_anew(ours))
    {
        let expected = published(&server, NEW_KEYS, before, theirs);
        assert_eq!(published(&server, NEW_KEYS, before, ours), expected, "{ours}");
    }
}

#[test]
fn only_the_configured_classes_of_events_are_published() {
    let (server, mut cli) = server_and_cli();
    let mut connection = server.connection();
    let mut listener = connection.as_pubsub();
    listener.psubscribe("__key*__:*").unwrap();
    listener.subscribe("end").unwrap();
    for (kinds, expected) in [("K$", "set"), ("Kg", "expire")] {
        cli.reply(&format!("CONFIG SET notify-keyspace-events {kinds}"));
        cli.ask::<i64>("LOCK.ACQUIRE k a 60000");
        cli.reply("CONFIG SET notify-keyspace-events Ex");
        cli.reply("LOCK.RELEASE k a");
        cli.reply("PUBLISH end .");
        let messages =
            [(); 2].map(|()| listener.get_message().unwrap().get_payload::<String>().unwrap());
        assert_eq!(messages, [expected, "."], "{kinds}");
    }
}

#[test]
fn raised_fence_invalidates_what_inspect_showed() {
    let (server, mut cli) = server_and_cli();
    for (acquire, extend) in [
        ("LOCK.ACQUIRE k a 60000", "LOCK.EXTEND k a 1 FENCE"),
        ("LOCK.MACQUIRE 2 k l a 60000", "LOCK.MEXTEND 2 k l a 1 FENCE"),
    ] {
        for (by, expected) in [(1, 1), (0, 0)] {
            cli.reply("FLUSHALL");
            let fence: i64 = cli.ask(acquire);
            let line = format!("{extend} {}", fence + by);
            let mut cache = Cache::of_k(&server);
            cache.cli.reply("LOCK.INSPECT k");
            let mut watcher = RedisCli::new(&server);
            watcher.reply("WATCH k");
            assert_ne!(cli.reply(&line), Nil, "{line}");
            assert_eq!(cache.invalidated().len(), expected, "{line}");
            watcher.reply("MULTI");
            assert_eq!(watcher.reply("EXEC") == Nil, expected == 1, "{line}");
        }
    }
}

#[test]
fn handover_aborts_transactions_at_once() {
    let (server, mut cli) = server_and_cli();
    for database in [0, 1] {
        cli.reply(&format!("SELECT {database}"));
        assert_ne!(cli.reply("LOCK.ACQUIRE k a 60000"), Nil);
        let mut waiter = RedisCli::new(&server);
        waiter.reply(&format!("SELECT {database}"));
        let waiter = std::thread::spawn(move || waiter.reply("LOCK.ACQUIRE k b 60000 WAIT 4000"));
        eventually(PATIENCE, "the client waits", || {
            cli.ask::<String>("INFO lock").contains("lock_waiters:1")
        });
        // The lines run in one turn. WATCH also covers changes by the client that sent it.
        let replies = cli.in_one_turn(&["WATCH k", "LOCK.RELEASE k a", "MULTI", "GET k", "EXEC"]);
        assert_eq!(replies[1], Int(1), "database {database}");
        assert_eq!(replies[4], Nil, "database {database}");
        assert!(matches!(waiter.join().unwrap(), Value::Array(_)));
    }
}

#[test]
fn command_that_changes_nothing_sends_no_event() {
    let server = server();
    let held = "LOCK.ACQUIRE k a 60000";
    for line in NOTHING_CHANGES {
        assert_eq!(published(&server, ALL_EVENTS, held, line), [], "{line}");
        assert!(invalidated(&server, held, line).is_empty(), "{line}");
        assert!(!aborts_transaction(&server, held, line), "{line}");
    }
}

/// Acquires `k`, and removes the expiry of the mirror unless `key_expires`.
fn acquire_for(cli: &mut RedisCli, ttl_ms: u32, key_expires: bool) {
    let acquire = format!("LOCK.ACQUIRE k a {ttl_ms}");
    cli.transaction(&[&acquire, if key_expires { "PING" } else { "PERSIST k" }]);
}

#[test]
fn unused_lock_is_removed_at_its_deadline_with_an_expired_event() {
    let (server, mut cli) = server_and_cli();
    cli.reply("CONFIG SET notify-keyspace-events KEx");
    cli.reply(NO_ACTIVE_EXPIRY);
    let mut connection = server.connection();
    let mut listener = connection.as_pubsub();
    listener.psubscribe("__key*__:*").unwrap();
    cli.reply("SET plain x PX 20");
    for key_expires in [true, false] {
        acquire_for(&mut cli, 20, key_expires);
        let messages = [(); 2].map(|()| {
            let message = listener.get_message().unwrap();
            (message.get_channel_name().to_owned(), message.get_payload::<String>().unwrap())
        });
        let expected = [("__keyspace@0__:k", "expired"), ("__keyevent@0__:expired", "k")];
        assert_eq!(
            messages,
            expected.map(|(channel, payload)| (channel.to_owned(), payload.to_owned()))
        );
        assert_eq!(
            cli.reply("DBSIZE"),
            Int(1),
            "the server left the plain key, so the module removed the lock's key"
        );
    }
}

#[test]
fn end_by_deadline_invalidates_caches_and_aborts_transactions() {
    let (server, mut cli) = server_and_cli();
    cli.reply(NO_ACTIVE_EXPIRY);
    let (mut watcher, mut cache) = (RedisCli::new(&server), Cache::of_k(&server));
    for key_expires in [true, false] {
        eventually(PATIENCE, "all clients have read the key while it was held", || {
            cli.reply("FLUSHALL");
            watcher.reply("UNWATCH");
            acquire_for(&mut cli, 50, key_expires);
            watcher.reply("WATCH k");
            cache.invalidated();
            cache.cli.reply("GET k");
            cli.reply("EXISTS k") == Int(1)
        });
        eventually(PATIENCE, "the lock has ended", || cli.reply("DBSIZE") == Int(0));
        assert_eq!(cache.invalidated(), [[Value::Array(vec![BulkString("k".into())])]]);
        watcher.reply("MULTI");
        assert_eq!(watcher.reply("EXEC"), Nil);
    }
}

#[test]
fn keyspace_events_and_watch_cover_each_key() {
    let server = server();
    let (held, sets) = ("LOCK.MACQUIRE 2 k l a 30000", ["set k", "expire k", "set l", "expire l"]);
    for (before, line, expected) in [
        ("PING", held, &sets[..]),
        (held, "LOCK.MEXTEND 2 k l a 60000", &["expire k", "expire l"]),
        (held, "LOCK.MEXTEND 2 k l a 60000 TOKEN b", &sets),
        (held, "LOCK.MRELEASE 2 k l a", &["del k", "del l"]),
        (held, "LOCK.RELEASE l a", &["del k", "del l"]),
    ] {
        let mut events = Vec::new();
        for (channel, key) in published(&server, ALL_EVENTS, before, line) {
            let event = channel.strip_prefix("__keyevent@0__:");
            events.extend(event.map(|event| format!("{event} {key}")));
        }
        events.sort_by_key(|event| !event.contains(" k"));
        assert_eq!(events, expected, "{line}");
        assert!(aborts_transaction(&server, before, line), "{line}");
    }
}

#[test]
fn readers_that_come_and_go_abort_watching_transactions() {
    let (server, mut cli) = server_and_cli();
    let mut watcher = RedisCli::new(&server);
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000 SHARED");
    for line in [
        "LOCK.ACQUIRE k b 20000 SHARED",
        "LOCK.EXTEND k b 40000",
        "LOCK.RELEASE k b",
        "LOCK.RELEASE k a",
    ] {
        watcher.reply("WATCH k");
        cli.reply(line);
        watcher.reply("MULTI");
        assert_eq!(watcher.reply("EXEC"), Nil, "{line}: the reply of INSPECT has changed");
    }
}

#[test]
fn inspect_reply_can_be_cached() {
    let (server, mut cli) = server_and_cli();
    let mut cache = Cache::of_k(&server);
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000");
    assert_eq!(cache.invalidated().len(), 1, "what GET showed");
    cache.cli.reply("LOCK.INSPECT k");
    cli.reply("LOCK.RELEASE k a");
    assert_eq!(cache.invalidated().len(), 1, "what INSPECT showed");
}

#[test]
fn every_end_by_deadline_is_counted_and_sends_one_event() {
    let (server, mut cli) = server_and_cli();
    cli.reply("CONFIG SET notify-keyspace-events Ex");
    let mut connection = server.connection();
    let mut listener = connection.as_pubsub();
    listener.subscribe(&["__keyevent@0__:expired", "end"]).unwrap();
    let locks: Vec<_> = (10..40).map(|n| format!("k{n}")).collect();
    for (ttl_ms, lock) in (1..).zip(&locks) {
        cli.ask::<i64>(&format!("LOCK.ACQUIRE {lock} a {ttl_ms}"));
    }
    // The server finds the keys that expire meanwhile before the module does.
    cli.reply("DEBUG SLEEP 0.2");
    eventually(PATIENCE, "all have ended", || info(&server, "lock_ended_by_deadline") == 30);
    cli.reply("PUBLISH end .");
    let mut expired: Vec<_> = until_end(&mut listener).into_iter().map(|(_, key)| key).collect();
    expired.sort();
    assert_eq!(expired, locks);
}
