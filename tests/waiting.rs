//! `LOCK.ACQUIRE … WAIT` on a real server: every waiter is answered, whatever ends the lock or the
//! wait.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::time::{Duration, Instant};

use common::{PATIENCE, RedisCli, Waiter, append_only, appended, info, server};
use quorlock_testkit::{Server, eventually};
use redis::{Value, cmd};

fn acquire(server: &Server, key: &str, token: &str, ttl_ms: u64) -> Option<i64> {
    cmd("LOCK.ACQUIRE").arg(key).arg(token).arg(ttl_ms).query(&mut server.connection()).unwrap()
}

/// A server on which `a` holds `k`.
fn server_with_holder() -> Server {
    let server = server();
    acquire(&server, "k", "a", 60_000).unwrap();
    server
}

fn release(server: &Server, key: &str, token: &str) -> bool {
    cmd("LOCK.RELEASE").arg(key).arg(token).query(&mut server.connection()).unwrap()
}

fn run(server: &Server, line: &str) -> Value {
    RedisCli::new(server).reply(line)
}

fn get(server: &Server, key: &str) -> Option<String> {
    cmd("GET").arg(key).query(&mut server.connection()).unwrap()
}

#[test]
fn release_hands_over_in_order() {
    let server = server();
    let fence = acquire(&server, "k", "a", 60_000).unwrap();
    let first = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000");
    let second = Waiter::new(&server, "LOCK.ACQUIRE k c 60000 WAIT 60000");
    assert!(release(&server, "k", "a"));
    let next = first.wait_for_grant();
    assert!(next > fence);
    assert_eq!(get(&server, "k").as_deref(), Some("b"));
    assert!(release(&server, "k", "b"));
    assert!(second.wait_for_grant() > next);
    assert!(release(&server, "k", "c"));
    assert_eq!(get(&server, "k"), None);
    assert_eq!(info(&server, "lock_handovers"), 2);
}

#[test]
fn unneeded_or_forbidden_wait_is_answered_at_once_in_the_same_form() {
    let server = server();
    let connection = &mut server.connection();
    let ask = |key: &str, token: &str| {
        let mut command = cmd("LOCK.ACQUIRE");
        command.arg(key).arg(token).arg(60_000).arg("WAIT");
        command
    };
    let (_, waited_us): (i64, i64) = ask("k", "a").arg(1000).query(connection).unwrap();
    assert_eq!(waited_us, 0);
    assert_eq!(ask("k", "b").arg(0).query::<Value>(connection).unwrap(), Value::Nil);
    let (_, _): (i64, i64) = ask("l", "a").arg(0).query(connection).unwrap();
    let (in_multi, free): (Value, (i64, i64)) = redis::pipe()
        .atomic()
        .add_command(ask("k", "c").arg(60_000).clone())
        .add_command(ask("m", "c").arg(60_000).clone())
        .query(connection)
        .unwrap();
    assert_eq!((in_multi, free.1), (Value::Nil, 0));
    let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'd', 60000, 'WAIT', 60000)";
    let in_script: Value = cmd("EVAL").arg(script).arg(1).arg("k").query(connection).unwrap();
    assert_eq!(in_script, Value::Nil);
    for (wait, error) in
        [("-1", "WAIT must be"), ("x", "not an integer"), ("604800001", "WAIT must be")]
    {
        let refused = ask("k", "e").arg(wait).query::<Value>(connection).unwrap_err().to_string();
        assert!(refused.contains(error), "{refused}");
    }
}

#[test]
fn client_without_wait_does_not_overtake_waiters() {
    let server = server_with_holder();
    let waiter = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000");
    // Both commands run in one turn: the newcomer must not overtake the waiter.
    let replies = RedisCli::new(&server).in_one_turn(&["DEL k", "LOCK.ACQUIRE k newcomer 60000"]);
    assert_eq!(replies[1], Value::Nil);
    waiter.wait_for_grant();
}

#[test]
fn every_explicit_end_serves_the_queue() {
    for end in [
        "DEL k",
        "UNLINK k",
        "GETDEL k",
        "RENAME k l",
        "FLUSHALL",
        "FLUSHDB",
        "EXPIRE k 0",
        "MOVE k 1",
    ] {
        let server = server_with_holder();
        let waiter = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000");
        run(&server, end);
        // Valkey reports an EXPIRE into the past as an expiry, which ends no lease.
        let ends = end != "EXPIRE k 0" || !is_valkey(&server);
        assert_eq!(run(&server, "LOCK.EXTEND k a 1") == Value::Nil, ends, "{end}");
        assert_eq!(release(&server, "k", "a"), !ends, "{end}");
        waiter.wait_for_grant();
        assert_eq!(get(&server, "k").as_deref(), Some("b"), "{end}");
    }
}

fn is_valkey(server: &Server) -> bool {
    RedisCli::new(server).ask::<String>("INFO server").contains("valkey_version:")
}

#[test]
fn deadline_serves_the_queue_at_once() {
    // Without the module's timer, the server's cron would serve the queue, here once a second.
    let server = Server::with_module().arg("hz", 1).start().unwrap();
    let mut took = [Duration::MAX; 5];
    for took in &mut took {
        let started = Instant::now();
        acquire(&server, "k", "a", 300).unwrap();
        let waiter = Waiter::briefly(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000");
        waiter.wait_for_grant();
        // The clocks of the test and of the server differ in rate by less than 1 %.
        *took = started.elapsed();
        assert!(*took >= Duration::from_millis(297), "not before the deadline");
        assert!(release(&server, "k", "b"));
    }
    // On a busy machine a grant may be late, but not every time. The cron may be in time once.
    took.sort();
    assert!(took[1] < Duration::from_millis(350), "{took:?}");
}

#[test]
fn waiter_is_granted_a_key_after_a_plain_clients_lock() {
    let server = server();
    run(&server, "SET k old NX PX 200");
    let waiter = Waiter::briefly(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000");
    waiter.wait_for_grant();
    run(&server, "SET l old NX PX 60000");
    let waiter = Waiter::new(&server, "LOCK.ACQUIRE l b 60000 WAIT 60000");
    run(&server, "DEL l");
    waiter.wait_for_grant();
}

#[test]
fn wait_that_runs_out_is_refused_and_leaves_the_queue() {
    let server = server_with_holder();
    let started = Instant::now();
    let waiter = Waiter::briefly(&server, "LOCK.ACQUIRE k b 60000 WAIT 200");
    assert_eq!(waiter.answer(), Value::Nil);
    assert!(started.elapsed() >= Duration::from_millis(200));
    assert_eq!(info(&server, "lock_waiters"), 0);
}

#[test]
fn client_that_is_gone_is_skipped() {
    let server = server_with_holder();
    let gone = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000");
    let next = Waiter::new(&server, "LOCK.ACQUIRE k c 60000 WAIT 60000");
    run(&server, &format!("CLIENT KILL ID {}", gone.client_id));
    assert!(gone.result().is_err());
    eventually(PATIENCE, "the client has left the queue", || info(&server, "lock_waiters") == 1);
    release(&server, "k", "a");
    next.wait_for_grant();
}

#[test]
fn lock_granted_to_a_killed_client_is_released() {
    let server = server_with_holder();
    let gone = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000");
    let next = Waiter::new(&server, "LOCK.ACQUIRE k c 60000 WAIT 60000");
    // Both commands run in one turn, before the client receives its grant.
    let kill = format!("CLIENT KILL ID {}", gone.client_id);
    let replies = RedisCli::new(&server).in_one_turn(&["LOCK.RELEASE k a", &kill]);
    assert_eq!(replies[0], Value::Int(1));
    next.wait_for_grant();
    assert_eq!(get(&server, "k").as_deref(), Some("c"));
}

#[test]
fn client_unblock_ends_a_wait() {
    let server = server_with_holder();
    let first = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000");
    run(&server, &format!("CLIENT UNBLOCK {} TIMEOUT", first.client_id));
    assert_eq!(first.answer(), Value::Nil);
    let second = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000");
    run(&server, &format!("CLIENT UNBLOCK {} ERROR", second.client_id));
    assert!(second.error().starts_with("UNBLOCKED"));
    assert_eq!(info(&server, "lock_waiters"), 0);
    assert!(release(&server, "k", "a"));
    assert_eq!(get(&server, "k"), None);
}

#[test]
fn client_unblocked_as_it_is_granted_leaves_no_lock_behind() {
    for how in ["TIMEOUT", "ERROR"] {
        let server = server_with_holder();
        let waiter = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000");
        let unblock = format!("CLIENT UNBLOCK {} {how}", waiter.client_id);
        RedisCli::new(&server).in_one_turn(&["LOCK.RELEASE k a", &unblock]);
        match waiter.result() {
            Ok(Value::Array(_)) => assert!(release(&server, "k", "b"), "{how}"),
            Ok(Value::Nil) | Err(_) => {
                eventually(PATIENCE, "the lock is released", || get(&server, "k").is_none());
            }
            Ok(other) => panic!("{how}: {other:?}"),
        }
        assert!(acquire(&server, "k", "c", 60_000).is_some(), "{how}");
    }
}

#[test]
fn release_withdraws_a_waiter_with_that_token() {
    let server = server_with_holder();
    let waiter = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000");
    assert!(!release(&server, "k", "b"));
    assert_eq!(waiter.answer(), Value::Nil);
}

#[test]
fn token_waits_once_on_a_key_and_repeats_its_wait_with_a_fence() {
    let server = server_with_holder();
    let mut cli = RedisCli::new(&server);
    let older = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000 FENCE 5");
    let second = Waiter::new(&server, "LOCK.ACQUIRE k c 60000 WAIT 60000");
    for line in [
        "LOCK.ACQUIRE k b 60000 WAIT 60000",
        "LOCK.ACQUIRE k b 60000 SHARED WAIT 60000",
        "LOCK.MACQUIRE 2 free k b 60000 WAIT 60000",
        "LOCK.ACQUIREANY 2 k k b 60000 WAIT 60000",
    ] {
        let error = cli.error(line);
        assert!(error.starts_with("ERR the token already waits"), "{line}: {error}");
    }
    assert_eq!(cli.reply("LOCK.ACQUIRE k b 60000 WAIT 0"), Value::Nil, "it does not wait");
    let mut newer = RedisCli::new(&server);
    newer.send("LOCK.ACQUIRE k b 60000 WAIT 60000 FENCE 5");
    assert_eq!(older.answer(), Value::Nil);
    assert_eq!(info(&server, "lock_waiters"), 2);
    assert!(release(&server, "k", "a"));
    eventually(PATIENCE, "the repeated wait keeps its place", || {
        cli.reply("GET k") == Value::BulkString(b"b".to_vec())
    });
    assert!(second.waits());
}

#[test]
fn nothing_is_granted_while_writes_are_paused_but_waits_end() {
    let server = server();
    acquire(&server, "k", "a", 3000).unwrap();
    let short = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 4000");
    let long = Waiter::new(&server, "LOCK.ACQUIRE k c 60000 WAIT 60000");
    run(&server, "CLIENT PAUSE 60000 WRITE");
    assert_eq!(short.answer(), Value::Nil);
    assert_eq!(info(&server, "lock_handovers"), 0);
    run(&server, "CLIENT UNPAUSE");
    long.wait_for_grant();
}

#[test]
fn demotion_and_abstention_answer_the_waiters() {
    let server = server_with_holder();
    let waiter = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000");
    run(&server, "SWAPDB 0 1");
    assert!(waiter.error().starts_with("ABSTAIN"));

    let server = server_with_holder();
    let waiter = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000");
    run(&server, "REPLICAOF 127.0.0.1 1");
    assert!(waiter.result().is_err());
    run(&server, "REPLICAOF NO ONE");
    assert_eq!(info(&server, "lock_waiters"), 0);
}

#[test]
fn waiters_are_limited_by_max_waiters() {
    let server = Server::with_module().arg("lock.max-waiters", 1).start().unwrap();
    acquire(&server, "k", "a", 60_000).unwrap();
    let waiter = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000");
    let mut full = cmd("LOCK.ACQUIRE");
    full.arg("k").arg("c").arg(60_000).arg("WAIT").arg(1000);
    let error = full.query::<Value>(&mut server.connection()).unwrap_err();
    assert!(error.to_string().contains("lock.max-waiters"), "{error}");
    run(&server, "CONFIG SET lock.max-waiters 2");
    let second = Waiter::new(&server, "LOCK.ACQUIRE k c 60000 WAIT 60000");
    release(&server, "k", "a");
    waiter.wait_for_grant();
    release(&server, "k", "b");
    second.wait_for_grant();
}

#[test]
fn handover_is_propagated_as_one_set() {
    let server = append_only().start().unwrap();
    let names = || appended(&server).iter().map(|words| words[0].clone()).collect::<Vec<_>>();
    acquire(&server, "k", "aaa", 60_000).unwrap();
    let waiter = Waiter::new(&server, "LOCK.ACQUIRE k bbb 60000 WAIT 60000");
    release(&server, "k", "aaa");
    waiter.wait_for_grant();
    assert_eq!(names(), ["SET", "SET"]);
    release(&server, "k", "bbb");
    assert_eq!(names(), ["SET", "SET", "DEL"]);
}

#[test]
fn unload_is_refused_while_a_client_waits() {
    let server = server_with_holder();
    let waiter = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000");
    let unload =
        || cmd("MODULE").arg("UNLOAD").arg("lock").query::<Value>(&mut server.connection());
    assert!(unload().is_err());
    run(&server, &format!("CLIENT UNBLOCK {}", waiter.client_id));
    assert_eq!(waiter.answer(), Value::Nil);
    eventually(PATIENCE, "it is unloaded", || unload().is_ok());
    assert_eq!(get(&server, "k").as_deref(), Some("a"), "an ordinary string");
}

#[test]
fn waiter_for_a_foreign_key_is_served_when_its_expiry_is_shortened() {
    let server = server();
    // From now on, the server removes an expired key only when a command uses the key.
    run(&server, "DEBUG SET-ACTIVE-EXPIRE 0");
    run(&server, "SET k theirs PX 600000");
    let waiter = Waiter::new(&server, "LOCK.ACQUIRE k ours 60000 WAIT 60000");
    run(&server, "PEXPIRE k 50");
    waiter.wait_for_grant();
    assert_eq!(get(&server, "k").as_deref(), Some("ours"));
}
