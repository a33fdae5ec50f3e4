//! Programs that lock the same keys with plain commands, and operators who change the keys.

use std::collections::HashMap;

use crate::common::{PATIENCE, RedisCli, command, server, server_and_cli};
use quorlock_testkit::eventually;
use redis::Value::{self, Int, Nil, Okay};

/// Sets an expiry in the near future. On Redis, PEXPIRE with an expiry in the past is a DEL.
const EXPIRE_SOON: &str = "PEXPIRE k 20";

/// The script in the Redis documentation that releases a lock made with SET NX PX.
const THEIR_RELEASE: &str = r#"
if redis.call("get",KEYS[1]) == ARGV[1] then
    return redis.call("del",KEYS[1])
else
    return 0
end"#;

#[track_caller]
fn their_release(cli: &mut RedisCli, token: &str) -> Value {
    cli.run(command("EVAL").arg(THEIR_RELEASE).arg(1).arg("k").arg(token))
}

#[test]
fn their_lock_excludes_ours() {
    let (_server, mut cli) = server_and_cli();
    assert_eq!(cli.reply("SET k theirs NX PX 60000"), Okay);
    assert_eq!(cli.reply("LOCK.ACQUIRE k ours 60000"), Nil);
    assert_eq!(cli.reply("LOCK.ACQUIRE k theirs 60000"), Nil);
    assert_eq!(their_release(&mut cli, "theirs"), Int(1));
    cli.ask::<i64>("LOCK.ACQUIRE k ours 60000");
}

#[test]
fn our_lock_excludes_theirs() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k ours 60000");
    assert_eq!(cli.reply("SET k theirs NX PX 60000"), Nil);
    assert_eq!(their_release(&mut cli, "theirs"), Int(0));
    assert_eq!(cli.reply("LOCK.RELEASE k ours"), Int(1));
    assert_eq!(cli.reply("SET k theirs NX PX 60000"), Okay);
}

#[test]
fn their_script_releases_our_lock_and_the_lease_ends_with_it() {
    let (_server, mut cli) = server_and_cli();
    let first = cli.ask::<i64>("LOCK.ACQUIRE k ours 60000");
    assert_eq!(their_release(&mut cli, "ours"), Int(1));
    assert_eq!(cli.reply("LOCK.EXTEND k ours 60000"), Nil);
    assert_eq!(cli.reply("LOCK.RELEASE k ours"), Int(0));
    assert!(cli.ask::<i64>("LOCK.ACQUIRE k next 60000") > first);
}

#[test]
fn operator_that_removes_the_key_ends_the_lock() {
    let server = server();
    let (mut operator, mut cli) = (RedisCli::new(&server), RedisCli::new(&server));
    let commands = [
        "DEL k",
        "UNLINK k",
        "GETDEL k",
        "RENAME k elsewhere",
        "RENAMENX k elsewhere",
        "MOVE k 1",
        "FLUSHDB",
        "FLUSHDB ASYNC",
        "FLUSHALL",
        "FLUSHALL ASYNC",
    ];
    for line in commands {
        operator.reply("FLUSHALL");
        let first = cli.ask::<i64>("LOCK.ACQUIRE k ours 60000");
        operator.reply(line);
        assert_eq!(cli.reply("LOCK.INSPECT k"), Nil, "{line}");
        assert_eq!(cli.reply("LOCK.EXTEND k ours 60000"), Nil, "{line}");
        assert_eq!(cli.reply("LOCK.RELEASE k ours"), Int(0), "{line}");
        assert!(cli.ask::<i64>("LOCK.ACQUIRE k next 60000") > first, "{line}");
    }
}

#[test]
fn operator_that_overwrites_the_key_ends_the_lock() {
    let server = server();
    let (mut operator, mut cli) = (RedisCli::new(&server), RedisCli::new(&server));
    operator.reply("SET other theirs");
    let dump: Vec<u8> = operator.ask("DUMP other");
    let commands = [
        command("SET k theirs"),
        command("SET k theirs XX KEEPTTL"),
        command("GETSET k theirs"),
        command("MSET k theirs x y"),
        command("SETRANGE k 0 theirs"),
        command("APPEND k theirs"),
        command("SETBIT k 0 1"),
        command("COPY other k REPLACE"),
        command("RENAME other k"),
        command("RESTORE k 0").arg(dump).arg("REPLACE").clone(),
    ];
    for write in commands {
        for ask in ["LOCK.EXTEND k ours 60000", "LOCK.RELEASE k ours"] {
            operator.reply("FLUSHALL");
            operator.reply("SET other theirs");
            cli.ask::<i64>("LOCK.ACQUIRE k ours 60000");
            operator.run::<Value>(&write);
            let written = cli.reply("GET k");
            assert_eq!(cli.fence("k"), None, "a foreign string now");
            assert!(matches!(cli.reply(ask), Nil | Int(0)), "{ask}");
            assert_eq!(cli.reply("GET k"), written, "the node leaves the foreign string unchanged");
            assert_eq!(cli.reply("LOCK.ACQUIRE k next 60000"), Nil);
            operator.reply("DEL k");
            cli.ask::<i64>("LOCK.ACQUIRE k next 60000");
        }
    }
}

#[test]
fn operator_that_replaces_the_key_with_an_equal_one_ends_the_lock() {
    let (_server, mut cli) = server_and_cli();
    cli.reply("SET other ours PX 60000");
    let dump: Vec<u8> = cli.ask("DUMP other");
    let restore = command("RESTORE k 60000").arg(dump).arg("REPLACE").clone();
    for replace in [restore, command("COPY other k REPLACE"), command("RENAME other k")] {
        cli.ask::<i64>("LOCK.ACQUIRE k ours 60000");
        cli.run::<Value>(&replace);
        assert_eq!(cli.fence("k"), None, "a foreign string now");
        assert_eq!(
            cli.reply("LOCK.RELEASE k ours"),
            Int(1),
            "the foreign string has the same token"
        );
    }
}

#[test]
fn operator_that_writes_another_type_ends_the_lock() {
    let (_server, mut cli) = server_and_cli();
    cli.reply("SADD set member");
    for line in ["ACQUIRE k next 60000", "EXTEND k ours 60000", "RELEASE k ours", "INSPECT k"] {
        cli.ask::<i64>("LOCK.ACQUIRE k ours 60000");
        cli.reply("SUNIONSTORE k set");
        let error = cli.error(&format!("LOCK.{line}"));
        assert!(error.starts_with("WRONGTYPE "), "{line}: {error}");
        assert_eq!(cli.reply("SMEMBERS k"), cli.reply("SMEMBERS set"));
        cli.reply("DEL k");
        assert_eq!(cli.reply("LOCK.INSPECT k"), Nil, "{line}");
    }
}

#[test]
fn lock_keeps_its_deadline_when_the_expiry_of_its_key_changes() {
    let (_server, mut cli) = server_and_cli();
    let changes = ["PERSIST @", "EXPIRE @ 3600", "PEXPIREAT @ 9999999999999", "GETEX @ PERSIST"];
    for (n, line) in changes.into_iter().enumerate() {
        let (long, short) = (format!("long{n}"), format!("short{n}"));
        let fence = cli.ask::<i64>(&format!("LOCK.ACQUIRE {long} ours 60000"));
        cli.ask::<i64>(&format!("LOCK.ACQUIRE {short} ours 50"));
        for key in [&long, &short] {
            cli.reply(&line.replace('@', key));
        }
        let shown: HashMap<String, Value> = cli.ask(&format!("LOCK.INSPECT {long}"));
        assert_eq!(shown["fence"], Int(fence), "{line}");
        assert!(matches!(shown["ttl"], Int(1..=60_000)), "{line}: {shown:?}");
        // Without its lease, the key would exist for at least an hour.
        eventually(PATIENCE, "the short lock has ended at its own deadline", || {
            cli.reply(&format!("EXISTS {short}")) == Int(0)
        });
        assert_eq!(cli.reply(&format!("LOCK.RELEASE {long} ours")), Int(1), "{line}");
        assert_eq!(cli.reply(&format!("EXISTS {long}")), Int(0), "{line}");
    }
}

#[test]
fn plain_client_is_refused_a_lock_whose_key_expired_early() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k ours 60000");
    cli.reply(EXPIRE_SOON);
    // The module counts the early expiry as a step of the clock.
    eventually(PATIENCE, "the key has expired", || {
        cli.ask::<String>("INFO lock").contains("lock_saved_from_clock_step:1")
    });
    assert_eq!(cli.reply("SET k theirs NX PX 60000"), Nil);
    assert_eq!(cli.reply("LOCK.RELEASE k ours"), Int(1), "the lock was held all the time");
    assert_eq!(cli.reply("EXISTS k"), Int(0));
}
