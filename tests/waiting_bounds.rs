//! Waiters that cannot be served delay no other client, however many there are.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use common::{Cli, command, info, server_and_cli};
use quorlock_testkit::{Server, eventually};
use redis::Value::{self, Int, Nil};

/// Longer than a thousand clients need to connect on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// One blocking command on a separate connection. Dropping it ends the wait.
struct Waiter(UnixStream);

impl Waiter {
    fn new(server: &Server, line: &str) -> Self {
        let path = server.url();
        let path = path.strip_prefix("redis+unix://").expect("it listens on a unix socket");
        let mut socket = UnixStream::connect(path).unwrap();
        writeln!(socket, "{line}").unwrap();
        Self(socket)
    }

    /// The first bytes of the answer.
    fn answer(&mut self) -> String {
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = [0; 64];
        let len = self.0.read(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[..len]).into_owned()
    }
}

/// Starts `count` waiters. Each sends `line` with its own token in the place of `@`.
fn wait(server: &Server, count: usize, line: &str) -> Vec<Waiter> {
    let before = info(server, "lock_waiters");
    let waiters: Vec<_> = (0..count)
        .map(|n| Waiter::new(server, &line.replace('@', &format!("waiter-{n}"))))
        .collect();
    eventually(PATIENCE, "all of them wait", || {
        info(server, "lock_waiters") == before + count as u64
    });
    waiters
}

/// The replies to lines that the server executes in one turn of its loop, one after the other.
fn in_one_turn(cli: &mut Cli, lines: &[&str]) -> Vec<Value> {
    cli.0.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut pipeline = redis::pipe();
    for line in lines {
        pipeline.add_command(command(line));
    }
    pipeline.query(&mut cli.0).unwrap()
}

#[test]
fn timed_out_waiters_do_not_keep_a_free_lock_from_newcomers() {
    for newcomer in ["LOCK.ACQUIRE k next 60000", "LOCK.MACQUIRE 2 k l next 60000"] {
        let (server, mut cli) = server_and_cli();
        assert_ne!(cli.reply("LOCK.ACQUIRE k holder 60000"), Nil);
        let _waiters = wait(&server, 3, "LOCK.ACQUIRE k @ 60000 WAIT 2000");
        // The waits end before the release, but the server answers the waiters only after the turn.
        let replies =
            in_one_turn(&mut cli, &["DEBUG SLEEP 2.1", "LOCK.RELEASE k holder", newcomer]);
        assert_eq!(replies[1], Int(1));
        assert!(matches!(replies[2], Int(_)), "{newcomer}: {:?}", replies[2]);
    }
}

#[test]
fn waiter_behind_timed_out_waiters_is_granted_at_once() {
    let (server, mut cli) = server_and_cli();
    assert_ne!(cli.reply("LOCK.ACQUIRE k holder 60000"), Nil);
    let _waiters = wait(&server, 3, "LOCK.ACQUIRE k @ 60000 WAIT 2000");
    let replies = in_one_turn(
        &mut cli,
        &["DEBUG SLEEP 2.1", "LOCK.RELEASE k holder", "LOCK.ACQUIRE k next 60000 WAIT 60000"],
    );
    let Value::Array(granted) = &replies[2] else { panic!("granted: {:?}", replies[2]) };
    assert_eq!(granted[1], Int(0), "not queued at all");
}

#[test]
fn waiter_with_time_left_keeps_a_free_lock_from_newcomers() {
    let (server, mut cli) = server_and_cli();
    assert_ne!(cli.reply("LOCK.ACQUIRE k holder 60000"), Nil);
    let _late = wait(&server, 3, "LOCK.ACQUIRE k @ 60000 WAIT 2000");
    let mut in_time = wait(&server, 1, "LOCK.ACQUIRE k in-time 60000 WAIT 60000");
    let replies =
        in_one_turn(&mut cli, &["DEBUG SLEEP 2.1", "DEL k", "LOCK.ACQUIRE k newcomer 60000"]);
    assert_eq!(replies[2], Nil);
    assert!(in_time[0].answer().starts_with("*2\r\n"));
    assert_eq!(cli.ask::<String>("GET k"), "in-time");
}

#[test]
fn thousand_waiters_that_time_out_together_leave_the_lock_free() {
    let (server, mut cli) = server_and_cli();
    assert_ne!(cli.reply("LOCK.ACQUIRE k holder 60000"), Nil);
    let _waiters = wait(&server, 1000, "LOCK.ACQUIRE k @ 60000 WAIT 6000");
    // The work of one turn answers far fewer waiters.
    let replies = in_one_turn(
        &mut cli,
        &["DEBUG SLEEP 6.1", "LOCK.RELEASE k holder", "LOCK.ACQUIRE k next 60000 WAIT 60000"],
    );
    let Value::Array(granted) = &replies[2] else { panic!("granted: {:?}", replies[2]) };
    assert_eq!(granted[1], Int(0), "not queued at all");
    eventually(PATIENCE, "all are answered", || info(&server, "lock_waiters") == 0);
}

#[test]
fn single_key_waiter_is_granted_beside_many_waiters_for_many_keys() {
    const FOREIGN_KEYS: usize = 63;
    let (server, mut cli) = server_and_cli();
    let mut several = format!("LOCK.MACQUIRE {} k", FOREIGN_KEYS + 1);
    for n in 0..FOREIGN_KEYS {
        cli.reply(&format!("SET foreign-{n} theirs"));
        write!(several, " foreign-{n}").unwrap();
    }
    several.push_str(" @ 60000 WAIT 60000");
    assert_ne!(cli.reply("LOCK.ACQUIRE k holder 60000"), Nil);
    let _several = wait(&server, 900, &several);
    let mut single = wait(&server, 100, "LOCK.ACQUIRE k @ 60000 WAIT 60000");

    let replies = in_one_turn(&mut cli, &["LOCK.RELEASE k holder", "GET k"]);
    assert_eq!(replies[0], Int(1));
    assert_eq!(replies[1], Value::BulkString("waiter-0".into()), "granted within the release");
    assert!(single[0].answer().starts_with("*2\r\n"));
    assert_eq!(info(&server, "lock_waiters"), 999);

    // Each release grants the next waiter in the order of arrival.
    for n in 1..100 {
        let release = format!("LOCK.RELEASE k waiter-{}", n - 1);
        let replies = in_one_turn(&mut cli, &[&release, "GET k"]);
        assert_eq!(replies[1], Value::BulkString(format!("waiter-{n}").into()));
    }
    assert_eq!(info(&server, "lock_waiters"), 900);
}
