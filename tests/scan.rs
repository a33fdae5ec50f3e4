//! `LOCK.SCAN` on real servers: every lock of the database, a bounded slice in each call.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use common::{RedisCli, command, server, server_and_cli};
use redis::FromRedisValue as _;
use redis::Value::{self, Array, BulkString, Int, Map, Nil};

type Lock = HashMap<String, Value>;

/// Returns the next cursor, and the locks.
#[track_caller]
fn call(cli: &mut RedisCli, cursor: u64, options: &str) -> (u64, Vec<Lock>) {
    let (cursor, locks): (String, Vec<Lock>) = cli.ask(&format!("LOCK.SCAN {cursor}{options}"));
    (cursor.parse().expect("digits"), locks)
}

fn text(value: &Value) -> String {
    String::from_redis_value(value.clone()).unwrap()
}

#[track_caller]
fn all(cli: &mut RedisCli, options: &str) -> BTreeMap<String, Lock> {
    let (mut all, mut cursor) = (BTreeMap::new(), 0);
    loop {
        let (next, locks) = call(cli, cursor, options);
        all.extend(locks.into_iter().map(|lock| (text(&lock["key"]), lock)));
        if next == 0 {
            return all;
        }
        cursor = next;
    }
}

fn names(cli: &mut RedisCli, options: &str) -> BTreeSet<String> {
    all(cli, options).into_keys().collect()
}

fn acquire_many(cli: &mut RedisCli, count: usize) {
    let mut pipeline = redis::pipe();
    for number in 0..count {
        pipeline.add_command(command(&format!("LOCK.ACQUIRE key/{number} a 60000"))).ignore();
    }
    pipeline.exec(&mut cli.0).unwrap();
}

#[test]
fn scan_lists_every_lock_with_the_fields_of_inspect() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE one a 60000 OWNER me");
    cli.ask::<i64>("LOCK.MACQUIRE 2 two three a 60000");
    cli.reply("LOCK.REVOKE three");
    cli.reply("SET theirs a PX 60000");
    cli.reply("SET data x");
    let listed = all(&mut cli, "");
    assert_eq!(listed.keys().collect::<Vec<_>>(), ["one", "three", "two"]);
    for (key, mut lock) in listed {
        let mut shown: Lock = cli.ask(&format!("LOCK.INSPECT {key}"));
        lock.remove("key");
        for changing in ["ttl", "held"] {
            let (Some(Int(then)), Some(Int(now))) = (lock.remove(changing), shown.remove(changing))
            else {
                panic!("{changing}")
            };
            assert!(then.abs_diff(now) < 5000);
        }
        assert_eq!(lock, shown, "{key}");
    }
    let reply = format!("{:?}", cli.reply("LOCK.SCAN 0"));
    assert!(!reply.contains(&format!("{:?}", BulkString(b"a".to_vec()))), "no token: {reply}");
}

#[test]
fn scan_replies_with_maps_in_resp3_and_flat_arrays_in_resp2() {
    let server = server();
    let (mut resp2, mut resp3) = (RedisCli::new(&server), RedisCli::resp3(&server));
    assert_eq!(
        resp2.reply("LOCK.SCAN 0"),
        Array(vec![BulkString(b"0".to_vec()), Array(Vec::new())])
    );
    resp2.ask::<i64>("LOCK.ACQUIRE k a 60000");
    let Array(reply) = resp3.reply("LOCK.SCAN 0") else { panic!("an array") };
    let [BulkString(cursor), Array(locks)] = &reply[..] else { panic!("{reply:?}") };
    assert_eq!(cursor, b"0");
    assert!(matches!(&locks[..], [Map(fields)] if fields.len() == 12), "{locks:?}");
    let Array(reply) = resp2.reply("LOCK.SCAN 0") else { panic!("an array") };
    let [_, Array(locks)] = &reply[..] else { panic!("{reply:?}") };
    assert!(matches!(&locks[..], [Array(fields)] if fields.len() == 24), "{locks:?}");
}

#[test]
fn scan_lists_the_selected_database_alone() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE zero a 60000");
    cli.reply("SELECT 1");
    cli.ask::<i64>("LOCK.ACQUIRE one a 60000");
    assert_eq!(names(&mut cli, ""), BTreeSet::from(["one".into()]));
    cli.reply("SELECT 0");
    assert_eq!(names(&mut cli, ""), BTreeSet::from(["zero".into()]));
    cli.reply("FLUSHALL");
    assert_eq!(names(&mut cli, ""), BTreeSet::new());
}

#[test]
fn each_call_examines_no_more_locks_than_count_says() {
    let (_server, mut cli) = server_and_cli();
    acquire_many(&mut cli, 3000);
    let (cursor, locks) = call(&mut cli, 0, "");
    assert!(cursor != 0 && locks.len() == 10, "ten by default: {}", locks.len());
    let listed = call(&mut cli, 0, " COUNT 1000").1.len();
    assert!((100..1000).contains(&listed), "a slice ends after its share of work: {listed}");
    assert_eq!(call(&mut cli, 0, " COUNT 100 MATCH none").1.len(), 0);
    for options in [" COUNT 1", " count 999", ""] {
        assert_eq!(names(&mut cli, options).len(), 3000, "{options}");
    }
    assert_eq!(names(&mut cli, " MATCH key/29?? COUNT 100").len(), 100);
    assert_eq!(names(&mut cli, " match *[^0-8]/299[5-9]").len(), 5);
}

#[test]
fn locks_that_stay_are_listed_while_others_come_and_go() {
    let (_server, mut cli) = server_and_cli();
    acquire_many(&mut cli, 500);
    let (mut listed, mut cursor, mut round) = (BTreeSet::new(), 0, 0);
    loop {
        let (next, locks) = call(&mut cli, cursor, " COUNT 20");
        listed.extend(locks.iter().map(|lock| text(&lock["key"])));
        if next == 0 {
            break;
        }
        cursor = next;
        // The locks with an odd number stay.
        for number in (0..500).step_by(2).skip(round * 10).take(10) {
            cli.reply(&format!("LOCK.RELEASE key/{number} a"));
            cli.ask::<i64>(&format!("LOCK.ACQUIRE other/{round}/{number} a 60000"));
        }
        round += 1;
    }
    assert!(round > 10);
    let missed: Vec<_> =
        (1..500).step_by(2).filter(|n| !listed.contains(&format!("key/{n}"))).collect();
    assert!(missed.is_empty(), "{missed:?}");
}

#[test]
fn patterns_that_defeat_backtracking_are_matched_at_once() {
    /// A backtracking matcher needs hours for each of these patterns.
    const AT_ONCE: Duration = Duration::from_secs(5);
    let (_server, mut cli) = server_and_cli();
    for number in 0..100 {
        let key = format!("{number}{}", "a".repeat(5000));
        cli.run::<i64>(command("LOCK.ACQUIRE").arg(key).arg("token").arg(60_000));
    }
    let before = Instant::now();
    for pattern in ["*a".repeat(127), "*?a".repeat(84), "*[a-z]".repeat(42)] {
        let pattern = pattern + "b";
        let reply: (String, Vec<Lock>) =
            cli.run(command("LOCK.SCAN 0 COUNT 1000 MATCH").arg(&pattern));
        assert_eq!(reply.1.len(), 0, "{pattern}");
    }
    assert!(before.elapsed() < AT_ONCE, "{:?}", before.elapsed());
}

#[test]
fn transactions_and_scripts_scan() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000");
    let replies = cli.transaction(&["LOCK.SCAN 0"]);
    assert!(matches!(&replies[..], [Array(reply)] if reply.len() == 2), "{replies:?}");
    let script = "return redis.call('LOCK.SCAN', 0)[2][1][2]";
    assert_eq!(cli.run::<Value>(command("EVAL").arg(script).arg(0)), BulkString(b"k".to_vec()));
    let read_only = "return redis.call('LOCK.SCAN', 0)[1]";
    assert_eq!(
        cli.run::<Value>(command("EVAL_RO").arg(read_only).arg(0)),
        BulkString(b"0".to_vec())
    );
}

#[test]
fn scan_sees_that_a_lock_was_overwritten() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000");
    cli.reply("SET k data");
    assert_eq!(names(&mut cli, ""), BTreeSet::new());
    cli.reply("DEL k");
    assert_ne!(cli.reply("LOCK.ACQUIRE k b 60000"), Nil);
    assert_eq!(names(&mut cli, ""), BTreeSet::from(["k".into()]));
}
