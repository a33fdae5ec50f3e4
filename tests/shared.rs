//! Shared locks on real servers: many readers, no writer beside them, and no starvation.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::collections::HashMap;

use common::{PATIENCE, RedisCli, Waiter, append_only, command, info, replicate, server_and_cli};
use quorlock_testkit::{Inject as _, Server, WallClock, eventually};
use redis::Value::{self, Array, BulkString, Int, Nil};

const HOUR_MS: i64 = 3_600_000;

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
fn readers_share_the_key_and_exclude_writers() {
    let (server, mut cli) = server_and_cli();
    let first: i64 = cli.ask("LOCK.ACQUIRE k a 60000 SHARED");
    let second: i64 = cli.ask("LOCK.ACQUIRE k b 60000 shared OWNER me");
    assert!(second >= first, "two readers may have the same fence");
    assert_eq!(mode_and_holders(&mut cli), shared_by(2));
    assert_eq!(info(&server, "lock_leases"), 2);
    assert_eq!(cli.reply("LOCK.ACQUIRE k w 60000"), Nil);
    assert_eq!(cli.reply("LOCK.ACQUIRE k a 60000 SHARED"), Nil, "the token already holds it");
    assert_eq!(cli.reply("LOCK.MACQUIRE 2 k l w 60000"), Nil);
    assert_eq!([cli.reply("LOCK.RELEASE k a"), cli.reply("LOCK.RELEASE k a")], [Int(1), Int(0)]);
    assert_eq!(cli.reply("LOCK.ACQUIRE k w 60000"), Nil);
    assert_eq!(cli.reply("LOCK.RELEASE k b"), Int(1));
    assert_eq!(cli.reply("EXISTS k"), Int(0));
    let writer: i64 = cli.ask("LOCK.ACQUIRE k w 60000");
    assert!(writer > second);
    assert_eq!(cli.reply("LOCK.ACQUIRE k a 60000 SHARED"), Nil);
    cli.reply("LOCK.RELEASE k w");
    assert!(cli.ask::<i64>("LOCK.ACQUIRE k a 60000 SHARED") > writer);
}

#[test]
fn each_reader_ends_at_its_own_deadline() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k long 60000 SHARED");
    cli.ask::<i64>("LOCK.ACQUIRE k short 30 SHARED");
    eventually(PATIENCE, "the short one has ended", || info(&server, "lock_leases") == 1);
    assert_eq!(cli.reply("LOCK.EXTEND k short 60000"), Nil);
    assert_eq!(mode_and_holders(&mut cli), shared_by(1));
    assert!(cli.expires_at_ms("k") > cli.now_ms() + 50_000);
    cli.reply("LOCK.RELEASE k long");
    cli.ask::<i64>("LOCK.ACQUIRE k last 30 SHARED");
    let waiter = Waiter::briefly(&server, "LOCK.ACQUIRE k w 60000 WAIT 30000");
    waiter.wait_for_grant();
    assert_eq!(value(&mut cli, "k"), "w");
}

#[test]
fn key_holds_an_unknown_value_and_expires_with_the_last_reader() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 20000 SHARED");
    let unknown = value(&mut cli, "k");
    assert!(
        unknown.len() == 32 && unknown.bytes().all(|digit| digit.is_ascii_hexdigit()),
        "{unknown}"
    );
    let first = cli.expires_at_ms("k");
    cli.ask::<i64>("LOCK.ACQUIRE k b 60000 SHARED");
    assert!(cli.expires_at_ms("k") >= first + 39_000);
    assert_eq!(value(&mut cli, "k"), unknown);
    assert_eq!(cli.reply(&format!("LOCK.RELEASE k {unknown}")), Int(0));
    assert_eq!(cli.reply(&format!("LOCK.EXTEND k {unknown} 60000")), Nil);
    cli.reply("LOCK.RELEASE k b");
    assert!(cli.expires_at_ms("k").abs_diff(first) <= 1);
    assert_eq!(mode_and_holders(&mut cli), shared_by(1));
}

#[test]
fn waiting_writer_is_not_overtaken_and_later_readers_enter_together() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000 SHARED");
    let writer = Waiter::new(&server, "LOCK.ACQUIRE k w 60000 WAIT 30000");
    assert_eq!(cli.reply("LOCK.ACQUIRE k b 60000 SHARED"), Nil);
    let readers = ["b", "c"].map(|token| {
        Waiter::new(&server, &format!("LOCK.ACQUIRE k {token} 60000 SHARED WAIT 30000"))
    });
    let second_writer = Waiter::new(&server, "LOCK.ACQUIRE k v 60000 WAIT 30000");
    assert_eq!(info(&server, "lock_waiters"), 4);
    cli.reply("LOCK.RELEASE k a");
    let written = writer.wait_for_grant();
    assert_eq!(info(&server, "lock_waiters"), 3);
    cli.reply("LOCK.RELEASE k w");
    assert!(readers.into_iter().all(|reader| reader.wait_for_grant() > written));
    assert_eq!(mode_and_holders(&mut cli), shared_by(2));
    assert!(second_writer.waits());
    cli.reply("LOCK.RELEASE k b");
    cli.reply("LOCK.RELEASE k c");
    assert!(second_writer.wait_for_grant() > written);
}

#[test]
fn wait_without_need_is_granted_at_once() {
    let (_server, mut cli) = server_and_cli();
    for line in ["LOCK.ACQUIRE k a 60000 SHARED WAIT 1000", "LOCK.ACQUIRE k b 60000 WAIT 0 SHARED"]
    {
        assert!(
            matches!(&cli.reply(line), Array(granted) if matches!(granted[..], [Int(_), Int(0)]))
        );
    }
}

#[test]
fn exclusive_lock_becomes_shared_and_never_the_reverse() {
    let (server, mut cli) = server_and_cli();
    let fence: i64 = cli.ask("LOCK.ACQUIRE k w 60000");
    let reader = Waiter::new(&server, "LOCK.ACQUIRE k a 60000 SHARED WAIT 30000");
    let next = Waiter::new(&server, "LOCK.ACQUIRE k v 60000 WAIT 30000");
    assert_eq!(cli.reply("LOCK.EXTEND k other 60000 SHARED"), Nil);
    assert_eq!(cli.reply("LOCK.EXTEND k w 60000 SHARED"), Int(fence));
    assert!(reader.wait_for_grant() > fence);
    assert_eq!(cli.reply("LOCK.EXTEND k w 60000"), Int(fence), "it stays shared");
    assert_eq!(mode_and_holders(&mut cli), shared_by(2));
    assert!(value(&mut cli, "k") != "w");
    assert_eq!(info(&server, "lock_waiters"), 1);
    cli.reply("LOCK.RELEASE k w");
    cli.reply("LOCK.RELEASE k a");
    next.wait_for_grant();
}

#[test]
fn foreign_string_is_adopted_as_shared() {
    let (_server, mut cli) = server_and_cli();
    cli.reply("SET k theirs PX 60000");
    cli.ask::<i64>("LOCK.EXTEND k theirs 60000 SHARED");
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000 SHARED");
    assert_eq!(mode_and_holders(&mut cli), shared_by(2));
}

#[test]
fn many_readers_are_granted_together_and_writers_after_them() {
    const READERS: u32 = 150;
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k w 60000");
    let mut readers: Vec<_> = (0..READERS).map(|_| server.connection()).collect();
    for (n, connection) in readers.iter_mut().enumerate() {
        let line = format!("LOCK.ACQUIRE k r{n} 60000 SHARED WAIT 30000");
        connection.send_packed_command(&command(&line).get_packed_command()).unwrap();
    }
    eventually(PATIENCE, "all wait", || info(&server, "lock_waiters") == u64::from(READERS));
    let writer = Waiter::new(&server, "LOCK.ACQUIRE k v 60000 WAIT 30000");
    assert_eq!(cli.reply("LOCK.RELEASE k w"), Int(1));
    for connection in &mut readers {
        assert!(matches!(connection.recv_response().unwrap(), Array(_)));
    }
    assert_eq!(mode_and_holders(&mut cli), shared_by(READERS.into()));
    let shown = inspect(&mut cli, "k");
    assert!(matches!(&shown["owner"], Array(owners) if owners.len() == 10));
    assert!(writer.waits());
    for n in 0..READERS {
        assert_eq!(cli.reply(&format!("LOCK.RELEASE k r{n}")), Int(1));
    }
    writer.wait_for_grant();
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
fn revoked_shared_lock_ends_with_its_present_holders() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000 SHARED");
    cli.ask::<i64>("LOCK.ACQUIRE k b 5000 SHARED");
    assert_eq!(cli.reply("LOCK.REVOKE k"), Int(1));
    assert_eq!(info(&server, "lock_revoked"), 2);
    for token in ["a", "b"] {
        assert!(cli.error(&format!("LOCK.EXTEND k {token} 60000")).starts_with("REVOKED "));
    }
    assert_eq!(cli.reply("LOCK.ACQUIRE k c 60000 SHARED"), Nil, "no newcomer");
    let newcomer = Waiter::new(&server, "LOCK.ACQUIRE k c 60000 SHARED WAIT 30000");
    assert_eq!(cli.reply("LOCK.RELEASE k a"), Int(1));
    assert!(newcomer.waits(), "a reader still holds the lock");
    newcomer.wait_for_grant();
    assert_eq!(cli.reply("LOCK.EXTEND k b 60000"), Nil, "its deadline has come");
    assert_eq!(cli.reply("LOCK.REVOKE k NOW"), Int(1));
    assert_eq!(cli.reply("EXISTS k"), Int(0));
}

#[test]
fn clock_step_leaves_readers_their_lock() {
    for step_ms in [HOUR_MS, -HOUR_MS] {
        let clock = WallClock::new();
        let server = Server::with_module().wall_clock(&clock).start().unwrap();
        let mut cli = RedisCli::new(&server);
        cli.ask::<i64>("LOCK.ACQUIRE k a 60000 SHARED");
        cli.ask::<i64>("LOCK.ACQUIRE k b 30000 SHARED");
        let unknown = value(&mut cli, "k");
        let before_ms = cli.now_ms();
        clock.step_ms(step_ms);
        assert_eq!(cli.reply("LOCK.ACQUIRE k w 60000"), Nil);
        // Valkey 9 reads the wall clock about once in a millisecond, also for TIME. It may see the
        // step only after the next command.
        let stepped_ms = before_ms + step_ms;
        eventually(PATIENCE, "the key outlives the step", || cli.expires_at_ms("k") > stepped_ms);
        assert_eq!(value(&mut cli, "k"), unknown);
        for token in ["a", "b"] {
            cli.ask::<i64>(&format!("LOCK.EXTEND k {token} 60000"));
            assert_eq!(cli.reply(&format!("LOCK.RELEASE k {token}")), Int(1));
        }
        cli.ask::<i64>("LOCK.ACQUIRE k w 60000");
    }
}

#[test]
fn evicted_key_leaves_readers_their_lock() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000 SHARED");
    let unknown = value(&mut cli, "k");
    cli.reply("CONFIG SET maxmemory-policy allkeys-random maxmemory 1");
    let _ = command("SET x y").query::<Value>(&mut cli.0);
    assert_eq!(cli.reply("EXISTS k"), Int(0), "it was evicted");
    assert_eq!(mode_and_holders(&mut cli), shared_by(1));
    cli.reply("CONFIG SET maxmemory 0");
    assert_eq!(info(&server, "lock_saved_from_eviction"), 1);
    assert_eq!(cli.reply("LOCK.ACQUIRE k w 60000"), Nil);
    cli.ask::<i64>("LOCK.ACQUIRE k b 60000 SHARED");
    assert_eq!(value(&mut cli, "k"), unknown, "the mirror is written again, with the same value");
}

#[test]
fn operator_ends_the_lock_of_all_readers() {
    for line in [
        "DEL k",
        "UNLINK k",
        "SET k x",
        "SET k x PX 60000",
        "RENAME k l",
        "FLUSHALL",
        "PEXPIRE k 60000",
    ] {
        let (server, mut cli) = server_and_cli();
        cli.ask::<i64>("LOCK.ACQUIRE k a 60000 SHARED");
        cli.ask::<i64>("LOCK.ACQUIRE k b 60000 SHARED");
        cli.reply(line);
        let stays = line.starts_with("PEXPIRE");
        for token in ["a", "b"] {
            let extended = cli.reply(&format!("LOCK.EXTEND k {token} 60000"));
            assert_eq!(extended == Nil, !stays, "{line}: {extended:?}");
        }
        let ended = if stays { 0 } else { 2 };
        assert_eq!(info(&server, "lock_ended_by_operator"), ended, "{line}");
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
fn nothing_blocks_in_transactions_and_scripts() {
    let (_server, mut cli) = server_and_cli();
    let replies = cli.transaction(&[
        "LOCK.ACQUIRE k a 60000 SHARED",
        "LOCK.ACQUIRE k b 60000 SHARED WAIT 5000",
        "LOCK.ACQUIRE k w 60000 WAIT 5000",
        "LOCK.RELEASE k a",
        "LOCK.EXTEND k b 60000 SHARED",
    ]);
    assert!(matches!(replies[..], [Int(_), Array(_), Nil, Int(1), Int(_)]), "{replies:?}");
    let script = "redis.call('LOCK.RELEASE', KEYS[1], 'b')
        redis.call('LOCK.ACQUIRE', KEYS[1], 'w', 60000)
        return redis.call('LOCK.ACQUIRE', KEYS[1], 'a', 60000, 'SHARED', 'WAIT', 5000)";
    assert_eq!(cli.run::<Value>(command("EVAL").arg(script).arg(1).arg("k")), Nil);
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
