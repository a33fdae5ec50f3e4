//! Shared locks on real servers: many readers, no writer beside them, and no starvation.

use std::collections::HashMap;

use crate::common::{
    PATIENCE, RedisCli, Waiter, append_only, command, info, replicate, server_and_cli,
};
use quorlock_testkit::{Server, eventually};
use redis::Value::{self, Array, BulkString, Int, Nil};

fn inspect(cli: &mut RedisCli, key: &str) -> HashMap<String, Value> {
    cli.ask(&format!("LOCK.INSPECT {key}"))
}

fn mode_and_holders(cli: &mut RedisCli) -> (Value, Value) {
    let mut shown = inspect(cli, "k");
    (shown.remove("mode").unwrap(), shown.remove("holders").unwrap())
}

fn shared_by(holders: i64) -> (Value, Value) {
    (BulkString("shared".into()), Int(holders))
}

fn value(cli: &mut RedisCli, key: &str) -> String {
    cli.ask(&format!("GET {key}"))
}

#[test]
fn inspect_and_scan_show_the_holders() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000 SHARED OWNER one");
    let shown = inspect(&mut cli, "k");
    assert_eq!(shown["owner"], BulkString("one".into()), "one label while there is one holder");
    let fence: i64 = cli.ask("LOCK.ACQUIRE k b 60000 SHARED");
    cli.ask::<i64>("LOCK.ACQUIRE l w 60000");
    let shown = inspect(&mut cli, "k");
    assert_eq!(shown["owner"], Array(vec![BulkString("one".into()), Nil]));
    assert_eq!(
        (&shown["fence"], &shown["keys"], &shown["revoked"]),
        (&Int(fence), &Int(1), &Int(0))
    );
    assert!(!format!("{shown:?}").contains(&value(&mut cli, "k")), "not even the value of the key");
    let (_, locks): (String, Vec<HashMap<String, Value>>) = cli.ask("LOCK.SCAN 0 COUNT 1000");
    let mut listed: Vec<_> = locks
        .iter()
        .map(|lock| {
            (String::from_utf8_lossy(bytes(&lock["key"])).into_owned(), lock["holders"].clone())
        })
        .collect();
    listed.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(listed, [("k".to_owned(), Int(2)), ("l".to_owned(), Int(1))]);
}

fn bytes(value: &Value) -> &[u8] {
    match value {
        BulkString(bytes) => bytes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn reload_leaves_readers_their_lock_and_a_crash_leaves_a_string() {
    let mut server = append_only().start().unwrap();
    let mut cli = RedisCli::new(&server);
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000 SHARED");
    cli.ask::<i64>("LOCK.ACQUIRE k b 60000 SHARED");
    cli.ask::<i64>("LOCK.ACQUIRE short s 3000 SHARED");
    cli.ask::<i64>("LOCK.ACQUIRE short t 2000 SHARED");
    let (unknown, expires_at) = (value(&mut cli, "k"), cli.expires_at_ms("k"));
    for line in ["DEBUG RELOAD", "DEBUG LOADAOF"] {
        cli.reply(line);
        assert_eq!(
            (value(&mut cli, "k"), cli.expires_at_ms("k")),
            (unknown.clone(), expires_at),
            "{line}"
        );
        assert_eq!(mode_and_holders(&mut cli), shared_by(2), "{line}");
        for token in ["a", "b"] {
            cli.ask::<i64>(&format!("LOCK.EXTEND k {token} 1"));
        }
    }
    server.kill();
    server.restart().unwrap();
    let mut cli = RedisCli::new(&server);
    assert_eq!((value(&mut cli, "k"), cli.expires_at_ms("k")), (unknown, expires_at));
    for token in ["a", "b"] {
        assert_eq!(cli.reply(&format!("LOCK.EXTEND k {token} 60000")), Nil);
        assert_eq!(cli.reply(&format!("LOCK.RELEASE k {token}")), Int(0));
    }
    assert_eq!(inspect(&mut cli, "k")["mode"], BulkString("foreign".into()));
    assert_eq!(cli.reply("LOCK.ACQUIRE k w 60000"), Nil, "the string blocks the key");
    let waiter = Waiter::briefly(&server, "LOCK.ACQUIRE short w 60000 WAIT 30000");
    waiter.wait_for_grant();
}

#[test]
fn replica_has_one_string_that_ends_with_the_last_reader() {
    let master = Server::with_module().tcp().arg("repl-diskless-sync-delay", 0).start().unwrap();
    let replica = Server::builder().start().unwrap();
    let (mut cli, mut on_replica) = (RedisCli::new(&master), RedisCli::new(&replica));
    replicate(&mut on_replica, &master);
    let mut assert_replicates = |cli: &mut RedisCli, line: &str| {
        assert!(matches!(cli.reply(line), Int(1..)), "{line}");
        assert_eq!(cli.reply("WAIT 1 4000"), Int(1));
        let there =
            |cli: &mut RedisCli| (cli.ask::<Option<String>>("GET k"), cli.expires_at_ms("k"));
        assert_eq!(there(&mut on_replica), there(cli), "{line}");
    };
    assert_replicates(&mut cli, "LOCK.ACQUIRE k a 20000 SHARED");
    assert_replicates(&mut cli, "LOCK.ACQUIRE k b 60000 SHARED");
    assert_replicates(&mut cli, "LOCK.RELEASE k b");
    assert_replicates(&mut cli, "LOCK.EXTEND k a 50000");
    assert_replicates(&mut cli, "LOCK.REVOKE k");
    assert_replicates(&mut cli, "LOCK.RELEASE k a");
    assert_replicates(&mut cli, "LOCK.ACQUIRE k w 60000");
    assert_replicates(&mut cli, "LOCK.EXTEND k w 60000 SHARED");
}

#[test]
fn shared_is_for_one_key() {
    let (_server, mut cli) = server_and_cli();
    let several = "ERR only LOCK.ACQUIRE and LOCK.EXTEND take SHARED: a lock of several keys, or of any of several, is exclusive";
    for line in [
        "LOCK.MACQUIRE 2 k l a 60000 SHARED",
        "LOCK.MACQUIRE 1 k a 60000 WAIT 10 shared",
        "LOCK.MEXTEND 2 k l a 60000 SHARED",
        "LOCK.ACQUIREANY 2 k l a 60000 SHARED",
    ] {
        assert_eq!(cli.error(line), several, "{line}");
    }
    let repeated = "ERR syntax error: an option is repeated; name each once";
    assert_eq!(cli.error("LOCK.ACQUIRE k a 60000 SHARED SHARED"), repeated);
    cli.ask::<i64>("LOCK.MACQUIRE 2 k l a 60000");
    assert!(
        cli.error("LOCK.EXTEND k a 60000 SHARED").starts_with("ERR the token holds these keys")
    );
    cli.reply("LOCK.MRELEASE 2 k l a");
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000 SHARED");
    assert_eq!(cli.reply("LOCK.MRELEASE 2 k l a"), Int(1), "the token holds one of the keys");
    cli.ask::<i64>("LOCK.ACQUIRE k SHARED 60000 OWNER SHARED");
    assert_eq!(
        inspect(&mut cli, "k")["mode"],
        BulkString("exclusive".into()),
        "a value is no option"
    );
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
fn module_is_not_unloaded_while_a_lock_is_shared() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000 SHARED");
    assert!(command("MODULE UNLOAD lock").query::<Value>(&mut cli.0).is_err());
    assert!(server.log().contains("only this module knows some of the locks (shared locks"));
    cli.reply("LOCK.RELEASE k a");
    cli.reply("MODULE UNLOAD lock");
}

#[test]
fn further_reader_costs_at_most_250_bytes() {
    const READERS: u64 = 100_000;
    const BYTES_MAX: u64 = 250;
    let (server, mut cli) = server_and_cli();
    let used = |cli: &mut RedisCli| {
        let info: String = cli.ask("INFO memory");
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    cli.ask::<i64>("LOCK.ACQUIRE k first 60000 SHARED");
    let before = used(&mut cli);
    for first in (0..READERS).step_by(1000) {
        let mut batch = redis::pipe();
        for n in first..first + 1000 {
            batch.add_command(command(&format!("LOCK.ACQUIRE k {n:032x} 60000 SHARED")));
        }
        batch.query::<Vec<i64>>(&mut cli.0).unwrap();
    }
    let bytes = (used(&mut cli) - before) / READERS;
    println!("{bytes} bytes for a further reader");
    assert!(bytes <= BYTES_MAX, "{bytes} bytes");
    assert_eq!(info(&server, "lock_leases"), READERS + 1);
    cli.reply("DEL k");
    eventually(PATIENCE, "the memory is freed", || used(&mut cli) < before + 20 * READERS);
}
