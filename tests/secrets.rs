//! MONITOR and SLOWLOG show no token: with it, another client could release and extend the lock.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::common::{RedisCli, Waiter, command, server_and_cli};
use quorlock_testkit::Server;
use redis::Value;

/// Every token in [`LINES`] contains this, and no other argument does.
const SECRET: &str = "s3cret";

/// Commands with tokens: some are granted, some refused, and some are invalid.
const LINES: [&str; 28] = [
    "LOCK.ACQUIRE k s3cret-1 60000",
    "LOCK.ACQUIRE k s3cret-2 60000 OWNER me FENCE 7",
    "lock.acquire k s3cret-3 60000 WAIT 0",
    "LOCK.EXTEND k s3cret-1 60000 TOKEN s3cret-4",
    "LOCK.EXTEND k s3cret-4 60000 FENCE 1 token s3cret-5",
    "LOCK.EXTEND k s3cret-1 60000 TOKEN s3cret-4 TOKEN s3cret-5",
    "LOCK.EXTEND k s3cret-1 60000 NONSENSE x TOKEN s3cret-4",
    "LOCK.YIELD k s3cret-4",
    "LOCK.RELEASE k s3cret-4",
    "LOCK.ACQUIRE k s3cret-2 60000 SHARED FENCE 7 OWNER me",
    "LOCK.EXTEND k s3cret-4 60000 shared shared TOKEN s3cret-5",
    "LOCK.ACQUIREANY 2 k l s3cret-1 60000 WAIT 0 OWNER me",
    "LOCK.MACQUIRE 2 k l s3cret-1 60000",
    "LOCK.MEXTEND 2 k l s3cret-1 60000 TOKEN s3cret-3",
    "LOCK.MYIELD 2 k l s3cret-3",
    "LOCK.MRELEASE 2 k l s3cret-3",
    "LOCK.ACQUIRE k s3cret-1 60000 UNKNOWN x",
    // The arguments are refused: none is shown, because any may be the token.
    "LOCK.MACQUIRE x k l s3cret-1 60000",
    "LOCK.MACQUIRE 0 s3cret-1 60000 TOKEN s3cret-2",
    "LOCK.MEXTEND 1 k l s3cret-1 60000 TOKEN s3cret-2",
    "LOCK.MRELEASE 3 k l s3cret-1",
    "LOCK.MEXTEND 2 k l TOKEN s3cret-1 60000",
    "LOCK.MEXTEND 2 k l s3cret-1 60000 SHARED x s3cret-2",
    "LOCK.MRELEASE s3cret-1 k l",
    "LOCK.EXTEND k TOKEN s3cret-1 60000",
    "LOCK.EXTEND k 60000 s3cret-1",
    "LOCK.EXTEND k s3cret-1 60000 s3cret-2 TOKEN",
    "LOCK.ACQUIRE s3cret-1 60000 WAIT 0",
];

/// Sends the lines one by one, and once more within a transaction. The replies do not matter.
fn send_all(cli: &mut RedisCli) {
    for line in LINES {
        let _ = command(line).query::<Value>(&mut cli.0);
    }
    cli.reply("MULTI");
    for line in LINES {
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
    assert!(shown.to_lowercase().matches("\"lock.").count() >= 2 * LINES.len(), "{shown}");
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
    assert!(shown.to_lowercase().matches("lock.").count() >= 2 * LINES.len(), "{shown}");
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
