//! `LOCK.REVOKE` on real servers: the holder cannot extend, and keeps the key until its deadline.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use common::{RedisCli, Waiter, append_only, command, info, replicate, server_and_cli};
use quorlock_testkit::Server;
use redis::Value::{self, BulkString, Int, Nil};

const NO_EXPIRY: &str = "ERR the key holds a string without an expiry, which is data and not a lock: remove it with DEL if it is not needed";

/// The milliseconds left to a revoked lock, from the error for its extension.
#[track_caller]
fn revoked_ms(cli: &mut RedisCli, line: &str) -> u64 {
    let error = cli.error(line);
    let mut words = error.split(' ');
    assert_eq!(words.next(), Some("REVOKED"), "{line}: {error}");
    words.next().and_then(|ms| ms.parse().ok()).expect(&error)
}

fn value(cli: &mut RedisCli, key: &str) -> String {
    cli.ask(&format!("GET {key}"))
}

/// Checks that a value looks like one that REVOKE writes: 32 hexadecimal digits.
#[track_caller]
fn assert_looks_random(value: &str) {
    assert!(value.len() == 32 && value.bytes().all(|digit| digit.is_ascii_hexdigit()), "{value}");
}

#[test]
fn revoked_lock_can_be_released_and_not_extended() {
    let (server, mut cli) = server_and_cli();
    let fence = cli.ask::<i64>("LOCK.ACQUIRE k a 30000");
    let expires_at = cli.expires_at_ms("k");
    assert_eq!(cli.reply("LOCK.REVOKE k"), Int(1));
    for line in [
        "LOCK.EXTEND k a 60000".to_owned(),
        "LOCK.EXTEND k a 1".to_owned(),
        "LOCK.EXTEND k a 60000 TOKEN b".to_owned(),
        format!("LOCK.EXTEND k a 60000 FENCE {}", fence + 1),
    ] {
        assert!((1..=30_000).contains(&revoked_ms(&mut cli, &line)), "{line}");
    }
    assert_eq!(cli.reply("LOCK.EXTEND k b 60000"), Nil);
    assert_eq!(cli.reply("LOCK.ACQUIRE k b 60000"), Nil);
    let unknown = value(&mut cli, "k");
    assert_looks_random(&unknown);
    assert!(cli.expires_at_ms("k").abs_diff(expires_at) <= 1, "the lock keeps its deadline");
    assert_eq!(cli.reply(&format!("LOCK.RELEASE k {unknown}")), Int(0), "the value is no token");
    assert_eq!(cli.reply("LOCK.REVOKE k"), Int(1));
    assert_eq!(value(&mut cli, "k"), unknown);
    let shown: HashMap<String, Value> = cli.ask("LOCK.INSPECT k");
    assert_eq!((&shown["revoked"], &shown["fence"]), (&Int(1), &Int(fence)));
    assert_eq!(info(&server, "lock_revoked"), 1);
    assert_eq!(cli.reply("LOCK.RELEASE k a"), Int(1));
    assert_eq!(cli.reply("LOCK.REVOKE k"), Int(0));
    assert_eq!(cli.reply("LOCK.REVOKE k NOW"), Int(0));
    cli.ask::<i64>("LOCK.ACQUIRE k b 60000");
    cli.ask::<i64>("LOCK.EXTEND k b 60000");
}

#[test]
fn revoked_lock_is_granted_to_a_waiter_only_at_its_deadline() {
    let (server, mut cli) = server_and_cli();
    let before = Instant::now();
    cli.ask::<i64>("LOCK.ACQUIRE k a 3000");
    let next = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 30000");
    assert_eq!(cli.reply("LOCK.REVOKE k"), Int(1));
    next.wait_for_grant();
    // The clocks of the test and of the server differ in rate by less than 1 %.
    assert!(before.elapsed() >= Duration::from_millis(2970));
    assert_eq!(value(&mut cli, "k"), "b");
    assert_eq!(cli.reply("LOCK.EXTEND k a 60000"), Nil);
}

#[test]
fn revoke_now_ends_the_lock_at_once_and_serves_the_queue() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000");
    let next = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 30000");
    assert_eq!(cli.reply("lock.revoke k now"), Int(1));
    next.wait_for_grant();
    assert_eq!(value(&mut cli, "k"), "b");
    assert_eq!(cli.reply("LOCK.EXTEND k a 60000"), Nil);
    assert_eq!(
        ["revoked", "ended_by_operator", "handovers"]
            .map(|name| info(&server, &format!("lock_{name}"))),
        [1, 1, 1]
    );
}

#[test]
fn early_release_of_a_revoked_lock_serves_the_queue() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000");
    cli.reply("LOCK.REVOKE k");
    let next = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 30000");
    assert_eq!(cli.reply("LOCK.RELEASE k a"), Int(1));
    next.wait_for_grant();
    cli.ask::<i64>("LOCK.EXTEND k b 60000");
}

#[test]
fn lock_of_several_keys_is_revoked_on_all() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.MACQUIRE 3 k l m a 60000");
    let next = Waiter::new(&server, "LOCK.ACQUIRE m b 60000 WAIT 30000");
    assert_eq!(cli.reply("LOCK.REVOKE l"), Int(1));
    for key in ["k", "l", "m"] {
        assert_looks_random(&value(&mut cli, key));
        let shown: HashMap<String, Value> = cli.ask(&format!("LOCK.INSPECT {key}"));
        assert_eq!((&shown["revoked"], &shown["keys"]), (&Int(1), &Int(3)));
    }
    revoked_ms(&mut cli, "LOCK.MEXTEND 3 k l m a 60000");
    assert_eq!(cli.reply("LOCK.REVOKE l NOW"), Int(1));
    next.wait_for_grant();
    assert_eq!([cli.reply("EXISTS k l"), cli.reply("GET m")], [Int(0), BulkString("b".into())]);
    cli.ask::<i64>("LOCK.MACQUIRE 2 k l c 60000");
}

#[test]
fn crash_does_not_undo_a_revocation() {
    let mut server = append_only().start().unwrap();
    let mut cli = RedisCli::new(&server);
    for line in [
        "LOCK.ACQUIRE revoked a 60000",
        "LOCK.ACQUIRE kept a 60000",
        "LOCK.MACQUIRE 2 one two a 60000",
        "SET theirs a PX 60000",
        "LOCK.ACQUIRE ended a 60000",
    ] {
        cli.reply(line);
    }
    for line in ["revoked", "one", "theirs", "ended NOW"] {
        assert_eq!(cli.reply(&format!("LOCK.REVOKE {line}")), Int(1));
    }
    let expires_at = cli.expires_at_ms("revoked");
    server.kill();
    server.restart().unwrap();
    let mut cli = RedisCli::new(&server);
    cli.ask::<i64>("LOCK.EXTEND kept a 60000");
    for key in ["revoked", "one", "two", "theirs"] {
        assert_eq!(cli.reply(&format!("LOCK.EXTEND {key} a 60000")), Nil, "{key}");
        assert_eq!(
            cli.reply(&format!("LOCK.ACQUIRE {key} b 60000")),
            Nil,
            "{key}: the holder still relies on the lock"
        );
    }
    assert_eq!(cli.reply("LOCK.MEXTEND 2 one two a 60000"), Nil);
    assert_eq!(cli.expires_at_ms("revoked"), expires_at);
    cli.ask::<i64>("LOCK.ACQUIRE ended b 60000");
}

#[test]
fn replica_has_the_value_of_a_revoked_lock() {
    let master = Server::with_module().tcp().arg("repl-diskless-sync-delay", 0).start().unwrap();
    let replica = Server::with_module().arg("lock.max-ttl", 60_000).start().unwrap();
    let (mut cli, mut on_replica) = (RedisCli::new(&master), RedisCli::new(&replica));
    replicate(&mut on_replica, &master);
    cli.ask::<i64>("LOCK.MACQUIRE 2 k l a 60000");
    cli.reply("LOCK.REVOKE k");
    cli.ask::<i64>("LOCK.ACQUIRE ended a 60000");
    cli.reply("LOCK.REVOKE ended NOW");
    assert_eq!(cli.reply("WAIT 1 4000"), Int(1));
    for key in ["k", "l"] {
        assert_eq!(value(&mut on_replica, key), value(&mut cli, key));
        assert_eq!(on_replica.expires_at_ms(key), cli.expires_at_ms(key));
    }
    assert_eq!(on_replica.reply("EXISTS ended"), Int(0));
    assert!(on_replica.error("LOCK.REVOKE k").starts_with("READONLY "));
    on_replica.reply("REPLICAOF NO ONE");
    assert_eq!(
        on_replica.reply("LOCK.EXTEND k a 60000"),
        Nil,
        "a promoted replica does not undo the revocation"
    );
    assert_eq!(on_replica.reply("LOCK.REVOKE k"), Int(1), "a node that abstains revokes");
}

#[test]
fn transactions_and_scripts_revoke() {
    let (_server, mut cli) = server_and_cli();
    let replies = cli.transaction(&[
        "LOCK.ACQUIRE k a 60000",
        "LOCK.REVOKE k",
        "LOCK.ACQUIRE k b 60000",
        "LOCK.REVOKE k NOW",
        "LOCK.ACQUIRE k b 60000",
    ]);
    assert!(matches!(replies[..], [Int(_), Int(1), Nil, Int(1), Int(_)]), "{replies:?}");
    let script =
        "redis.call('LOCK.REVOKE', KEYS[1]) return redis.pcall('LOCK.EXTEND', KEYS[1], 'b', 60000)";
    let error = cli.error_of(command("EVAL").arg(script).arg(1).arg("k"));
    assert!(error.starts_with("REVOKED "), "{error}");
}

#[test]
fn data_is_not_revoked() {
    let (server, mut cli) = server_and_cli();
    cli.reply("SET k data");
    cli.reply("LPUSH list x");
    for now in ["", " NOW"] {
        assert_eq!(cli.error(&format!("LOCK.REVOKE k{now}")), NO_EXPIRY);
        assert!(cli.error(&format!("LOCK.REVOKE list{now}")).starts_with("WRONGTYPE "));
    }
    assert_eq!((value(&mut cli, "k").as_str(), cli.reply("LLEN list")), ("data", Int(1)));
    assert_eq!(info(&server, "lock_revoked"), 0);
}

#[test]
fn foreign_string_is_revoked() {
    let (_server, mut cli) = server_and_cli();
    cli.reply("SET k theirs NX PX 60000");
    let expires_at = cli.expires_at_ms("k");
    assert_eq!(cli.reply("LOCK.REVOKE k"), Int(1));
    assert_looks_random(&value(&mut cli, "k"));
    assert_eq!(cli.expires_at_ms("k"), expires_at);
    assert_eq!(cli.reply("LOCK.EXTEND k theirs 60000"), Nil);
    assert_eq!(cli.reply("LOCK.ACQUIRE k next 60000"), Nil);
    assert_eq!(cli.reply("LOCK.REVOKE k NOW"), Int(1));
    cli.ask::<i64>("LOCK.ACQUIRE k next 60000");
}

#[test]
fn locks_are_revoked_when_memory_is_short() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000");
    cli.reply("CONFIG SET maxmemory 1");
    assert_eq!(cli.reply("LOCK.REVOKE k"), Int(1));
    revoked_ms(&mut cli, "LOCK.EXTEND k a 60000");
}

#[test]
fn each_revocation_writes_a_different_value() {
    let (_server, mut cli) = server_and_cli();
    let mut values = std::collections::BTreeSet::new();
    for index in 0..20 {
        cli.ask::<i64>(&format!("LOCK.ACQUIRE k{index} a 60000"));
        cli.reply(&format!("LOCK.REVOKE k{index}"));
        values.insert(value(&mut cli, &format!("k{index}")));
    }
    assert_eq!(values.len(), 20);
}
