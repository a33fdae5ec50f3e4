//! MONITOR and SLOWLOG show no token: with it, another client could release and extend the lock.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::common::{RedisCli, Waiter, command, server_and_cli};
use quorlock_testkit::Server;
use redis::Value;

/// Every token in secrets.txt contains this, and no other argument does.
const SECRET: &str = "s3cret";

/// Commands with tokens.
fn lines() -> impl Iterator<Item = &'static str> {
    include_str!("secrets.txt").lines().filter(|line| !line.starts_with('#'))
}

/// Sends the lines one by one, and once more within a transaction. The replies do not matter.
fn send_all(cli: &mut RedisCli) {
    for line in lines() {
        let _ = command(line).query::<Value>(&mut cli.0);
    }
    cli.reply("MULTI");
    for line in lines() {
        cli.reply(line);
    }
    let _ = command("EXEC").query::<Value>(&mut cli.0);
}

/// Sends two commands that block: one is granted, and the other times out.
fn wait_and_release(server: &Server, cli: &mut RedisCli) {
    cli.reply("LOCK.ACQUIRE waited s3cret-1 60000");
    let waiter = Waiter::new(server, "LOCK.ACQUIRE waited s3cret-2 60000 WAIT 60000");
    cli.reply("LOCK.RELEASE waited s3cret-1");
    waiter.wait_for_grant();
    let _ = command("LOCK.ACQUIRE waited s3cret-3 60000 WAIT 20").query::<Value>(&mut cli.0);
    cli.reply("LOCK.RELEASE waited s3cret-2");
}

fn monitored(server: &Server, work: impl FnOnce()) -> String {
    let path = server.url();
    let mut socket = UnixStream::connect(path.strip_prefix("redis+unix://").unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket.write_all(b"MONITOR\r\n").unwrap();
    let mut lines = BufReader::new(socket).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "+OK");
    work();
    RedisCli::new(server).reply("ECHO the-end");
    lines.take_while(|line| !line.contains("the-end")).map(|line| line + "\n").collect()
}

#[test]
fn monitor_shows_no_token() {
    let (server, mut cli) = server_and_cli();
    let shown = monitored(&server, || {
        send_all(&mut cli);
        wait_and_release(&server, &mut cli);
    });
    assert!(shown.to_lowercase().matches("\"lock.").count() >= 2 * lines().count(), "{shown}");
    assert!(!shown.contains(SECRET), "{shown}");
    assert!(shown.contains("\"(redacted)\""), "{shown}");
}

#[test]
fn slow_log_shows_no_token() {
    let (server, mut cli) = server_and_cli();
    cli.reply("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 10000");
    send_all(&mut cli);
    wait_and_release(&server, &mut cli);
    let shown = format!("{:?}", cli.reply("SLOWLOG GET -1"));
    assert!(shown.to_lowercase().matches("lock.").count() >= 2 * lines().count(), "{shown}");
    assert!(!shown.contains(SECRET), "{shown}");
}

#[test]
fn monitor_shows_all_arguments_except_tokens() {
    let (server, mut cli) = server_and_cli();
    let shown = monitored(&server, || {
        cli.reply("LOCK.ACQUIRE key-1 s3cret 60000 OWNER label");
        cli.reply("LOCK.EXTEND key-1 s3cret 50000 TOKEN other");
        cli.reply("LOCK.MRELEASE 2 key-2 key-3 s3cret");
        cli.reply("LOCK.INSPECT key-1");
    });
    for line in [
        r#""LOCK.ACQUIRE" "key-1" "(redacted)" "60000" "OWNER" "label""#,
        r#""LOCK.EXTEND" "key-1" "(redacted)" "50000" "TOKEN" "(redacted)""#,
        r#""LOCK.MRELEASE" "2" "key-2" "key-3" "(redacted)""#,
        r#""LOCK.INSPECT" "key-1""#,
    ] {
        assert!(shown.contains(line), "{line} in {shown}");
    }
}
