//! `LOCK.ACQUIRE … WAIT` on a real server: its timer, its files, and the module's unload.
//! [crates/faults/steps](../crates/faults/steps) says which waiter is granted, and when.

use std::time::{Duration, Instant};

use crate::common::{PATIENCE, RedisCli, Waiter, append_only, appended, server_and_cli};
use quorlock_testkit::{Server, eventually};
use redis::Value::{self, Int};
use redis::cmd;

#[test]
fn deadline_serves_the_queue_at_once() {
    // Without the module's timer, the server's cron would serve the queue, here once a second.
    let server = Server::with_module().arg("hz", 1).start().unwrap();
    let (mut cli, mut waiter) = (RedisCli::new(&server), RedisCli::new(&server));
    let mut took = [Duration::MAX; 5];
    for took in &mut took {
        let started = Instant::now();
        cli.ask::<i64>("LOCK.ACQUIRE k a 300");
        waiter.ask::<(i64, i64)>("LOCK.ACQUIRE k b 60000 WAIT 60000");
        // The clocks of the test and of the server differ in rate by less than 1 %.
        *took = started.elapsed();
        assert!(*took >= Duration::from_millis(297), "not before the deadline");
        assert_eq!(cli.reply("LOCK.RELEASE k b"), Int(1));
    }
    // On a busy machine a grant may be late, but not every time. The cron may be in time once.
    took.sort();
    assert!(took[1] < Duration::from_millis(350), "{took:?}");
}

#[test]
fn unload_is_refused_while_a_client_waits() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000");
    let waiter = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000");
    let shown = format!("{:?}", cli.reply("LOCK.INSPECT k"));
    assert!(shown.contains("unix"), "the address of the waiter: {shown}");
    let unload =
        || cmd("MODULE").arg("UNLOAD").arg("lock").query::<Value>(&mut server.connection());
    assert!(unload().is_err());
    cli.reply(&format!("CLIENT UNBLOCK {}", waiter.client_id));
    assert_eq!(waiter.answer(), Value::Nil);
    eventually(PATIENCE, "it is unloaded", || unload().is_ok());
    assert_eq!(cli.ask::<String>("GET k"), "a", "an ordinary string");
}

#[test]
fn handover_by_release_and_by_yield_is_propagated_as_one_set() {
    let server = append_only().start().unwrap();
    let mut cli = RedisCli::new(&server);
    cli.ask::<i64>("LOCK.ACQUIRE k aaa 60000 FENCE 2");
    for (line, next) in [("LOCK.YIELD k aaa", "bbb"), ("LOCK.RELEASE k bbb", "ccc")] {
        let acquire = format!("LOCK.ACQUIRE k {next} 60000 WAIT 60000 FENCE 1");
        let waiter = Waiter::new(&server, &acquire);
        assert_eq!(cli.reply(line), Int(1));
        waiter.wait_for_grant();
    }
    cli.reply("LOCK.RELEASE k ccc");
    let written: Vec<_> = appended(&server).iter().map(|words| words[..].join(" ")).collect();
    let [first, second, third, last] = &written[..] else { panic!("{written:?}") };
    for (set, token) in [(first, "aaa"), (second, "bbb"), (third, "ccc")] {
        assert!(set.starts_with(&format!("SET k {token} PXAT ")), "{set}");
    }
    assert_eq!(last, "DEL k");
}
