//! The permissions of programs that lock, and of operators.

use std::collections::BTreeSet;

use crate::common::{RedisCli, server_and_cli, worker_on_k};
use quorlock_testkit::Server;
use redis::Value::{self, Int, Nil, Okay};
use redis::{cmd, from_redis_value};

const SECURITY: &str = include_str!("../docs/operations/security.md");

const PROGRAM_COMMANDS: [&str; 11] = [
    "lock.acquire",
    "lock.acquireany",
    "lock.extend",
    "lock.help",
    "lock.inspect",
    "lock.macquire",
    "lock.mextend",
    "lock.mrelease",
    "lock.myield",
    "lock.release",
    "lock.yield",
];

const OPERATOR_COMMANDS: [&str; 2] = ["lock.revoke", "lock.scan"];

/// A documented user, as the words after `ACL SETUSER`.
fn documented_user(name: &str) -> &'static str {
    let mut users = SECURITY.lines().filter_map(|line| line.strip_prefix("user "));
    users.find(|user| user.split(' ').next() == Some(name)).expect("the page has this user")
}

fn lowercase(value: Vec<String>) -> BTreeSet<String> {
    value.into_iter().map(|name| name.to_lowercase()).collect()
}

/// Whether modules can add ACL categories. Redis 7.0 and 7.2 do not let them.
fn has_module_categories(cli: &mut RedisCli) -> bool {
    let version: String = cli.ask("INFO server");
    version.contains("valkey_version:")
        || !(version.contains("redis_version:7.0") || version.contains("redis_version:7.2"))
}

/// The commands that a user may run on this key, as the server reports.
fn allowed_commands(cli: &mut RedisCli, user: &str, key: &str) -> BTreeSet<String> {
    let commands: Vec<Vec<Value>> = cli.ask("COMMAND");
    let mut allowed = BTreeSet::new();
    for fields in commands {
        let name: String = from_redis_value(fields[0].clone()).expect("a name");
        let arity: i64 = from_redis_value(fields[1].clone()).expect("a number");
        let mut run = cmd("ACL");
        run.arg("DRYRUN").arg(user).arg(&name);
        let name = name.to_lowercase();
        let counts_keys = name.starts_with("lock.m") || name == "lock.acquireany";
        if counts_keys {
            run.arg(1);
        }
        for _ in 1 + u64::from(counts_keys)..arity.unsigned_abs() {
            run.arg(key);
        }
        match run.query::<String>(&mut cli.0).as_deref() {
            Ok("OK") => drop(allowed.insert(name)),
            Ok(refused) => assert!(refused.contains("no permissions"), "{name}: {refused}"),
            // The server refuses some calls for another reason: for example, CONFIG with a key in
            // place of a subcommand.
            Err(error) => assert!(error.code() == Some("ERR"), "{name}: {error}"),
        }
    }
    allowed
}

#[test]
fn documented_user_can_only_lock_its_keys() {
    let (_server, mut cli) = server_and_cli();
    cli.reply(&format!("ACL SETUSER {}", documented_user("locker")));
    // Every user may run a few commands, such as AUTH and HELLO.
    cli.reply("ACL SETUSER nobody on nopass");
    let for_all = allowed_commands(&mut cli, "nobody", "orders/1");
    let mut allowed = |key| -> Vec<_> {
        allowed_commands(&mut cli, "locker", key).difference(&for_all).cloned().collect()
    };
    // The client identifies the server with INFO, and checks its liveness with PING.
    assert_eq!(allowed("orders/1"), [&["info"], &PROGRAM_COMMANDS[..], &["ping"]].concat());
    assert_eq!(allowed("other/1"), ["info", "lock.help", "ping"]);
    for command in &for_all {
        assert!(["auth", "hello", "quit", "reset"].contains(&command.as_str()), "{command}");
    }
}

#[test]
fn other_documented_users_have_only_the_lock_commands_of_their_kind() {
    let (_server, mut cli) = server_and_cli();
    for (name, lock_commands) in [
        ("operator", &["lock.help", "lock.inspect", "lock.revoke", "lock.scan"][..]),
        ("monitoring", &[]),
        ("legacy", &[]),
    ] {
        cli.reply(&format!("ACL SETUSER {}", documented_user(name)));
        let allowed = allowed_commands(&mut cli, name, "orders/1");
        let of_locks: Vec<_> =
            allowed.iter().filter(|command| command.starts_with("lock.")).collect();
        assert_eq!(of_locks, lock_commands, "{name}");
        assert!(allowed.contains("info") && allowed.contains("ping"), "{name}: {allowed:?}");
        assert_eq!(allowed.contains("set"), name == "legacy", "{name}: {allowed:?}");
    }
    assert!(!allowed_commands(&mut cli, "legacy", "other/1").contains("set"));
}

#[test]
fn documented_locker_can_be_written_into_redis_conf() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("redis.conf");
    std::fs::write(&file, format!("user {}\n", documented_user("locker"))).unwrap();
    let server = Server::with_module().config_file(&file).start().unwrap();
    let may = allowed_commands(&mut RedisCli::new(&server), "locker", "orders/1");
    assert!(PROGRAM_COMMANDS.iter().all(|command| may.contains(*command)), "{may:?}");
}

#[test]
fn lock_category_exists_and_has_the_commands_if_the_server_allows_it() {
    let (_server, mut cli) = server_and_cli();
    assert_eq!(lowercase(cli.ask("ACL CAT")).contains("lock"), has_module_categories(&mut cli));
    if !has_module_categories(&mut cli) {
        return;
    }
    assert_eq!(
        lowercase(cli.ask("ACL CAT lock")).into_iter().collect::<Vec<_>>(),
        PROGRAM_COMMANDS
    );

    cli.reply("ACL SETUSER nobody on nopass");
    cli.reply("ACL SETUSER by-category on nopass ~orders/* +@lock");
    let for_all = allowed_commands(&mut cli, "nobody", "orders/1");
    let allowed: Vec<_> = allowed_commands(&mut cli, "by-category", "orders/1")
        .difference(&for_all)
        .cloned()
        .collect();
    assert_eq!(allowed, PROGRAM_COMMANDS);
}

#[test]
fn operator_commands_alone_are_in_admin_and_dangerous() {
    let (_server, mut cli) = server_and_cli();
    let knows_categories = has_module_categories(&mut cli);
    for category in ["admin", "dangerous"].into_iter().filter(|_| knows_categories) {
        let commands = lowercase(cli.ask(&format!("ACL CAT {category}")));
        for command in OPERATOR_COMMANDS {
            assert!(commands.contains(command), "{category}: {command}");
        }
        assert!(PROGRAM_COMMANDS.iter().all(|command| !commands.contains(*command)), "{category}");
    }
}

#[test]
fn user_of_one_key_can_end_the_lock_of_several() {
    let (server, mut cli) = server_and_cli();
    cli.reply("ACL SETUSER limited on nopass ~a +del +lock.revoke +lock.release");
    let mut as_user = RedisCli::new(&server);
    as_user.reply("AUTH limited any");
    for line in ["DEL a", "LOCK.REVOKE a NOW", "LOCK.RELEASE a token"] {
        assert_ne!(cli.reply("LOCK.MACQUIRE 2 a b token 60000"), Nil, "{line}");
        as_user.error(&line.replace(" a", " b"));
        assert_eq!(as_user.reply(line), Int(1), "{line}");
        assert_eq!(cli.reply("EXISTS a b"), Int(0), "{line}");
    }
}

#[test]
fn permission_is_needed_for_each_of_several_keys() {
    let (server, mut admin) = server_and_cli();
    let mut worker = worker_on_k(&server, &mut admin);
    assert_ne!(worker.reply("LOCK.MACQUIRE 2 k1 k2 a 60000"), Nil);
    for line in [
        "LOCK.MACQUIRE 2 k3 other a 60000",
        "LOCK.MACQUIRE 2 other k3 a 60000",
        "LOCK.ACQUIREANY 2 k3 other a 60000",
        "LOCK.ACQUIREANY 2 other k3 a 60000 WAIT 1000",
        "LOCK.MEXTEND 3 k1 k2 other a 60000",
        "LOCK.MRELEASE 3 k1 other k2 a",
        "LOCK.MYIELD 3 k1 other k2 a",
    ] {
        assert!(worker.error(line).starts_with("NOPERM"), "{line}");
        worker.reply("MULTI");
        assert!(worker.error(line).starts_with("NOPERM"), "{line}");
        assert_eq!(worker.reply("DISCARD"), Okay);
    }
    assert_eq!(worker.reply("LOCK.MRELEASE 2 k1 k2 a"), Int(1));
}
