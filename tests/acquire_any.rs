//! `LOCK.ACQUIREANY` on real servers: the first free key, and a place in the queue of each key.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use common::{PATIENCE, RedisCli, Waiter, append_only, command, info, server_and_cli};
use quorlock_testkit::{Server, eventually};
use redis::Value::{self, Array, BulkString, Int, Nil};

#[track_caller]
fn granted(reply: Value) -> (i64, String) {
    let Array(fields) = reply else { panic!("{reply:?}") };
    match &fields[..] {
        [Int(fence), BulkString(key)] | [Int(fence), Int(_), BulkString(key)] => {
            (*fence, String::from_utf8(key.clone()).unwrap())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn first_free_key_in_the_order_of_the_arguments_is_granted() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE c x 60000");
    let reply = cli.reply("LOCK.ACQUIREANY 4 c b c a t 60000 OWNER me");
    assert!(matches!(&reply, Array(fields) if fields.len() == 2));
    let (fence, key) = granted(reply);
    assert_eq!(key, "b");
    assert_eq!(cli.fence("b"), Some(fence));
    assert_eq!((cli.reply("GET b"), cli.reply("EXISTS a")), (BulkString("t".into()), Int(0)));
    assert_eq!(granted(cli.reply("LOCK.ACQUIREANY 3 c b a u 60000")).1, "a");
    assert_eq!(cli.reply("LOCK.ACQUIREANY 3 c b a v 60000"), Nil);
    assert_eq!(info(&server, "lock_leases"), 3);
    cli.ask::<i64>("LOCK.EXTEND b t 60000");
    assert_eq!(cli.reply("LOCK.RELEASE b t"), Int(1));
}

#[test]
fn reply_to_a_grant_with_wait_includes_the_time_waited() {
    let (_server, mut cli) = server_and_cli();
    let reply = cli.reply("LOCK.ACQUIREANY 2 a b t 60000 WAIT 1000");
    let Array(fields) = &reply else { panic!("{reply:?}") };
    assert!(matches!(&fields[..], [Int(_), Int(0), BulkString(key)] if key == b"a"), "{reply:?}");
}

#[test]
fn fence_does_not_exceed_the_proposed_one() {
    let (_server, mut cli) = server_and_cli();
    let first = granted(cli.reply("LOCK.ACQUIREANY 1 a t 60000")).0;
    cli.reply("LOCK.RELEASE a t");
    let proposed = first + 1_000_000;
    let fence = granted(cli.reply(&format!("LOCK.ACQUIREANY 2 a b u 60000 FENCE {proposed}"))).0;
    assert!(fence > first && fence <= proposed, "{first}, {proposed}: {fence}");
}

#[test]
fn waiter_is_granted_the_first_key_that_becomes_free_and_no_other() {
    for (end, key) in [
        ("LOCK.RELEASE a x", "a"),
        ("LOCK.RELEASE c x", "c"),
        ("DEL b", "b"),
        ("PEXPIRE theirs 1", "theirs"),
    ] {
        let (server, mut cli) = server_and_cli();
        for key in ["a", "b", "c"] {
            cli.ask::<i64>(&format!("LOCK.ACQUIRE {key} x 60000"));
        }
        cli.reply("SET theirs x PX 60000");
        let waiter = Waiter::new(&server, "LOCK.ACQUIREANY 4 c a b theirs t 60000 WAIT 30000");
        for key in ["a", "b", "c", "theirs"] {
            let shown: std::collections::HashMap<String, Value> =
                cli.ask(&format!("LOCK.INSPECT {key}"));
            assert_eq!(shown["waiters"], Int(1), "{key}");
        }
        assert_eq!(cli.reply(end), Int(1));
        assert_eq!(granted(waiter.answer()).1, key);
        for other in ["a", "b", "c"].into_iter().filter(|other| *other != key) {
            assert_eq!(cli.reply(&format!("LOCK.RELEASE {other} x")), Int(1));
            assert_eq!(
                cli.reply(&format!("EXISTS {other}")),
                Int(0),
                "the waiter was granted one key only"
            );
        }
        assert_eq!((info(&server, "lock_waiters"), info(&server, "lock_leases")), (0, 1));
    }
}

#[test]
fn waiters_for_any_and_for_one_key_are_served_in_the_order_of_arrival() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE a x 60000");
    cli.ask::<i64>("LOCK.ACQUIRE b x 60000");
    let any = Waiter::new(&server, "LOCK.ACQUIREANY 2 a b any 60000 WAIT 30000");
    let single = Waiter::new(&server, "LOCK.ACQUIRE b single 60000 WAIT 30000");
    let later = Waiter::new(&server, "LOCK.ACQUIREANY 2 b a later 60000 WAIT 30000");
    assert_eq!(cli.reply("LOCK.ACQUIREANY 2 a b newcomer 60000"), Nil);
    cli.reply("LOCK.RELEASE b x");
    assert_eq!(granted(any.answer()).1, "b");
    cli.reply("LOCK.RELEASE b any");
    single.wait_for_grant();
    assert_eq!(info(&server, "lock_waiters"), 1);
    cli.reply("LOCK.RELEASE a x");
    assert_eq!(granted(later.answer()).1, "a");
}

#[test]
fn waiter_that_stops_waiting_leaves_all_queues() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE a x 60000");
    cli.ask::<i64>("LOCK.ACQUIRE b x 60000");
    assert_eq!(cli.reply("LOCK.ACQUIREANY 2 a b t 60000 WAIT 20"), Nil, "its time is over");
    let released = Waiter::new(&server, "LOCK.ACQUIREANY 2 a b t 60000 WAIT 30000");
    assert_eq!(cli.reply("LOCK.RELEASE b t"), Int(0));
    assert_eq!(released.answer(), Nil);
    {
        let mut gone = RedisCli::new(&server);
        gone.send("LOCK.ACQUIREANY 2 a b t 60000 WAIT 30000");
        eventually(PATIENCE, "the client waits", || info(&server, "lock_waiters") == 1);
    }
    eventually(PATIENCE, "no client waits", || info(&server, "lock_waiters") == 0);
    for key in ["a", "b"] {
        cli.reply(&format!("LOCK.RELEASE {key} x"));
    }
    assert_eq!(cli.reply("EXISTS a b"), Int(0));
}

#[test]
fn nothing_blocks_in_transactions_and_scripts() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE a x 60000");
    let replies = cli.transaction(&[
        "LOCK.ACQUIREANY 2 a b t 60000 WAIT 5000",
        "LOCK.ACQUIREANY 2 a b u 60000 WAIT 5000",
    ]);
    assert!(matches!(&replies[..], [Array(fields), Nil] if fields.len() == 3), "{replies:?}");
    let script =
        "return redis.call('LOCK.ACQUIREANY', 2, KEYS[1], KEYS[2], 'v', 60000, 'WAIT', 5000)";
    let reply: Value = cli.run(command("EVAL").arg(script).arg(2).arg("a").arg("c"));
    assert_eq!(granted(reply).1, "c");
    assert_eq!(cli.run::<Value>(command("EVAL").arg(script).arg(2).arg("a").arg("c")), Nil);
}

#[test]
fn key_of_another_type_is_an_error_unless_a_free_one_comes_first() {
    let (_server, mut cli) = server_and_cli();
    cli.reply("LPUSH list x");
    assert!(cli.error("LOCK.ACQUIREANY 2 list a t 60000").starts_with("WRONGTYPE "));
    assert_eq!(granted(cli.reply("LOCK.ACQUIREANY 2 a list t 60000")).1, "a");
}

#[test]
fn too_many_keys_a_full_queue_full_memory_and_abstention_are_errors() {
    let (_server, mut cli) = server_and_cli();
    let keys: Vec<_> = (0..64).map(|n| format!("k{n}")).collect();
    let all = keys.join(" ");
    for key in &keys {
        assert_eq!(granted(cli.reply(&format!("LOCK.ACQUIREANY 64 {all} t 60000"))).1, *key);
    }
    assert_eq!(cli.reply(&format!("LOCK.ACQUIREANY 64 {all} t 60000")), Nil);
    assert!(
        cli.error(&format!("LOCK.ACQUIREANY 65 {all} l t 60000"))
            .starts_with("ERR numkeys must be")
    );
    cli.reply("CONFIG SET lock.max-waiters 0");
    assert!(
        cli.error(&format!("LOCK.ACQUIREANY 64 {all} t 60000 WAIT 1000")).starts_with("QUEUEFULL ")
    );
    cli.reply("CONFIG SET maxmemory 1");
    assert!(cli.error("LOCK.ACQUIREANY 1 free t 60000").starts_with("OOM "));
    let abstaining = Server::with_module().arg("lock.rejoin-delay", -1).start().unwrap();
    assert!(
        RedisCli::new(&abstaining).error("LOCK.ACQUIREANY 1 a t 60000").starts_with("ABSTAIN ")
    );
}

#[test]
fn granted_key_alone_is_propagated() {
    let mut server = append_only().start().unwrap();
    let mut cli = RedisCli::new(&server);
    cli.ask::<i64>("LOCK.ACQUIRE a x 60000");
    assert_eq!(granted(cli.reply("LOCK.ACQUIREANY 2 a b t 60000")).1, "b");
    server.kill();
    server.restart().unwrap();
    let mut cli = RedisCli::new(&server);
    assert_eq!([cli.reply("LOCK.RELEASE a t"), cli.reply("LOCK.RELEASE b t")], [Int(0), Int(1)]);
}
