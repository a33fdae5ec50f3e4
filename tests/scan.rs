//! `LOCK.SCAN` on real servers: every lock of the database, a bounded slice in each call.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use crate::common::{RedisCli, command, server, server_and_cli};
use redis::FromRedisValue as _;
use redis::Value::{self, Array, BulkString, Int, Map};

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
