//! `LOCK.ACQUIRE … WAIT` on a real server: every waiter is answered, whatever ends the lock or the
//! wait.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, RedisCli, Waiter, append_only, appended, command, info, server};
use quorlock_testkit::{Server, eventually};
use redis::Value::{self, Int};
use redis::cmd;

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

#[test]
fn handover_of_a_yielded_lock_is_appended_as_one_set() {
    let server = append_only().start().unwrap();
    let mut cli = RedisCli::new(&server);
    let ticket = cli.now_ms() * 1000;
    cli.ask::<i64>(&format!("LOCK.ACQUIRE k a 60000 FENCE {ticket}"));
    let older = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000 FENCE 1");
    assert_eq!(cli.reply("LOCK.YIELD k a"), Int(1));
    older.wait_for_grant();
    let written = || {
        let on_key = |command: &Vec<String>| command.get(1).is_some_and(|key| key == "k");
        let commands = appended(&server).into_iter().filter(on_key);
        commands
            .map(|words| format!("{} {}", words[0].to_lowercase(), words[2]))
            .collect::<Vec<_>>()
    };
    eventually(PATIENCE, "the commands are in the file", || written() == ["set a", "set b"]);
}

#[test]
fn clients_with_overlapping_keys_in_any_order_are_all_granted() {
    const LOCKS_PER_CLIENT: usize = 40;
    let server = server();
    let orders = ["2 a b", "2 b a", "2 b c", "2 c a", "3 c b a", "1 b"];
    let clients = orders.into_iter().enumerate().map(|(client, keys)| {
        let mut connection = server.connection();
        connection.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        thread::spawn(move || {
            for number in 0..LOCKS_PER_CLIENT {
                let token = format!("{client}-{number}");
                let acquire = format!("LOCK.MACQUIRE {keys} {token} 60000 WAIT 60000");
                let (fence, _): (i64, i64) = command(&acquire).query(&mut connection).unwrap();
                for key in keys.split(' ').skip(1) {
                    // Otherwise two clients held the key at the same time, or fences do not grow.
                    let before: Option<i64> = cmd("GETSET")
                        .arg(format!("seen:{key}"))
                        .arg(fence)
                        .query(&mut connection)
                        .unwrap();
                    assert!(
                        before.is_none_or(|before| before < fence),
                        "{key}: {before:?} {fence}"
                    );
                }
                let released: i64 = command(&format!("LOCK.MRELEASE {keys} {token}"))
                    .query(&mut connection)
                    .unwrap();
                assert_eq!(released, 1);
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.join().unwrap();
    }
    assert_eq!((info(&server, "lock_leases"), info(&server, "lock_waiters")), (0, 0));
}
