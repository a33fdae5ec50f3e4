//! Waiters that cannot be served delay no other client, however many there are.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::common::{RedisCli, info, server_and_cli};
use quorlock_testkit::{Server, eventually};
use redis::Value::{self, Int, Nil};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Longer than a thousand clients need to connect on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client on its own connection that has sent a command to wait, and may not be queued yet.
/// Dropping this value ends the wait.
struct Waiter(UnixStream);

impl Waiter {
    fn new(server: &Server, line: &str) -> Self {
        let path = server.url();
        let path = path.strip_prefix("redis+unix://").expect("it listens on a unix socket");
        let mut socket = UnixStream::connect(path).unwrap();
        writeln!(socket, "{line}").unwrap();
        Self(socket)
    }

    fn answer(&mut self) -> String {
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = [0; 64];
        let len = self.0.read(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[..len]).into_owned()
    }
}

/// Raises the limit of open files, which is often 1024. Two tests have a thousand sockets each.
fn raise_file_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

/// Starts `count` waiters. Each sends `line` with its own token in the place of `@`.
fn start_waiters(server: &Server, count: usize, line: &str) -> Vec<Waiter> {
    raise_file_limit();
    let before = info(server, "lock_waiters");
    let waiters: Vec<_> = (0..count)
        .map(|n| Waiter::new(server, &line.replace('@', &format!("waiter-{n}"))))
        .collect();
    eventually(PATIENCE, "all of them wait", || {
        info(server, "lock_waiters") == before + count as u64
    });
    waiters
}

/// A server on which `holder` holds `k`, and a connection to it.
fn server_with_holder() -> (Server, RedisCli) {
    let (server, mut cli) = server_and_cli();
    cli.0.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_ne!(cli.reply("LOCK.ACQUIRE k holder 60000"), Nil);
    (server, cli)
}

/// Checks that a client is granted the lock at once when the waiters before it have timed out.
///
/// Returns the server and these waiters, which may still wait for their replies.
#[track_caller]
fn assert_granted_behind(count: usize, wait_seconds: u32) -> (Server, Vec<Waiter>) {
    let (server, mut cli) = server_with_holder();
    let line = format!("LOCK.ACQUIRE k @ 60000 WAIT {wait_seconds}000");
    let waiters = start_waiters(&server, count, &line);
    let replies = cli.in_one_turn(&[
        &format!("DEBUG SLEEP {wait_seconds}.1"),
        "LOCK.RELEASE k holder",
        "LOCK.ACQUIRE k next 60000 WAIT 60000",
    ]);
    let Value::Array(granted) = &replies[2] else { panic!("granted: {:?}", replies[2]) };
    assert_eq!(granted[1], Int(0), "not queued at all");
    (server, waiters)
}

#[test]
fn waiter_with_time_left_keeps_a_free_lock_from_newcomers() {
    let (server, mut cli) = server_with_holder();
    let _late = start_waiters(&server, 3, "LOCK.ACQUIRE k @ 60000 WAIT 2000");
    let mut in_time = start_waiters(&server, 1, "LOCK.ACQUIRE k in-time 60000 WAIT 60000");
    let replies = cli.in_one_turn(&["DEBUG SLEEP 2.1", "DEL k", "LOCK.ACQUIRE k newcomer 60000"]);
    assert_eq!(replies[2], Nil);
    assert!(in_time[0].answer().starts_with("*2\r\n"));
    assert_eq!(cli.ask::<String>("GET k"), "in-time");
}

#[test]
fn thousand_waiters_that_time_out_together_leave_the_lock_free() {
    // The node refuses about 300 waiters in one turn, so most are still queued in later turns.
    let (server, _waiters) = assert_granted_behind(1000, 6);
    eventually(PATIENCE, "all are answered", || info(&server, "lock_waiters") == 0);
}

#[test]
fn single_key_waiter_is_granted_beside_many_waiters_for_many_keys() {
    const FOREIGN_KEYS: usize = 63;
    let (server, mut cli) = server_with_holder();
    let mut several = format!("LOCK.MACQUIRE {} k", FOREIGN_KEYS + 1);
    for n in 0..FOREIGN_KEYS {
        cli.reply(&format!("SET foreign-{n} theirs"));
        write!(several, " foreign-{n}").unwrap();
    }
    several.push_str(" several-@ 60000 WAIT 60000");
    let _several = start_waiters(&server, 900, &several);
    // Without older tickets, these waiters would come after the others, for which `k` is kept.
    let mut single = start_waiters(&server, 100, "LOCK.ACQUIRE k @ 60000 WAIT 60000 FENCE 1");

    let replies = cli.in_one_turn(&["LOCK.RELEASE k holder", "GET k"]);
    assert_eq!(replies[0], Int(1));
    assert_eq!(replies[1], Value::BulkString("waiter-0".into()), "granted within the release");
    assert!(single[0].answer().starts_with("*2\r\n"));
    assert_eq!(info(&server, "lock_waiters"), 999);

    // Each release hands the key over to the next waiter for `k` alone, in the order of the tokens.
    let mut tokens: Vec<_> = (0..100).map(|n| format!("waiter-{n}")).collect();
    tokens.sort_unstable();
    for pair in tokens.windows(2) {
        let replies = cli.in_one_turn(&[&format!("LOCK.RELEASE k {}", pair[0]), "GET k"]);
        assert_eq!(replies[1], Value::BulkString(pair[1].clone().into()));
    }
    assert_eq!(info(&server, "lock_waiters"), 900);
}
