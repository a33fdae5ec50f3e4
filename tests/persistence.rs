//! Files and replicas hold plain strings that expire with the lock, and need no module. The module
//! does not change what other commands write to them.

use std::collections::BTreeMap;

use crate::common::{
    PATIENCE, RedisCli, append_only, appended, command, replicate, server_and_cli,
};
use quorlock_testkit::{Server, eventually, info};
use redis::Value::{self, Int, Nil};

/// All keys with their values and expiries.
type Keys = BTreeMap<String, (String, i64)>;

fn keys(cli: &mut RedisCli) -> Keys {
    let names: Vec<String> = cli.ask("KEYS *");
    let with_value = |name: String| {
        let value = cli.ask(&format!("GET {name}"));
        let expires_at = cli.expires_at_ms(&name);
        (name, (value, expires_at))
    };
    names.into_iter().map(with_value).collect()
}

/// Creates locks in different ways, and foreign strings. `released` and `ended` leave no key.
fn make_locks(cli: &mut RedisCli) -> Keys {
    let lines = [
        "LOCK.ACQUIRE acquired a 60000 OWNER me",
        "LOCK.ACQUIRE extended a 20000",
        "LOCK.EXTEND extended a 60000",
        "LOCK.ACQUIRE new-token x 60000",
        "LOCK.EXTEND new-token x 60000 TOKEN a",
        "SET adopted a PX 20000",
        "LOCK.EXTEND adopted a 60000",
        "SET theirs a PX 60000",
        "LOCK.ACQUIRE released a 60000",
        "LOCK.RELEASE released a",
        "LOCK.ACQUIRE ended a 1",
    ];
    for line in lines {
        assert_ne!(cli.reply(line), Nil, "{line}");
    }
    eventually(PATIENCE, "the lock has ended", || cli.reply("EXISTS ended") == Int(0));
    let keys = keys(cli);
    assert!(keys.len() >= 5, "{keys:?}");
    keys
}

/// Checks that every lock is held, and released only by its token. Then acquires it for `next`.
#[track_caller]
fn assert_held_and_acquire(cli: &mut RedisCli, locks: &Keys) {
    for (key, (token, _)) in locks {
        assert_eq!(cli.reply(&format!("LOCK.ACQUIRE {key} next 60000")), Nil, "{key}");
        assert_eq!(cli.reply(&format!("LOCK.RELEASE {key} next")), Int(0), "{key}");
        assert_eq!(cli.reply(&format!("LOCK.RELEASE {key} {token}")), Int(1), "{key}");
        assert!(matches!(cli.reply(&format!("LOCK.ACQUIRE {key} next 60000")), Int(_)), "{key}");
    }
}

#[test]
fn append_only_file_is_read_without_the_module() {
    let mut with = append_only().start().unwrap();
    let locks = make_locks(&mut RedisCli::new(&with));
    with.kill();
    let without = Server::builder().dir(with.dir()).arg("appendonly", "yes").start().unwrap();
    assert_eq!(keys(&mut RedisCli::new(&without)), locks);
}

#[test]
fn locks_survive_switching_on_and_rewriting_the_append_only_file() {
    let (_server, mut cli) = server_and_cli();
    // No file and no replica receives the first writes. Then a file is switched on.
    let before = make_locks(&mut cli);
    cli.reply("CONFIG SET appendonly yes");
    cli.ask::<i64>("LOCK.ACQUIRE while-it-is-written a 60000");
    let rewriting = |cli: &mut RedisCli| {
        let info: String = cli.ask("INFO persistence");
        !info.contains("aof_rewrite_in_progress:0") || !info.contains("aof_rewrite_scheduled:0")
    };
    eventually(4 * PATIENCE, "the file is complete", || !rewriting(&mut cli));
    cli.ask::<i64>("LOCK.ACQUIRE after a 60000");
    let locks = keys(&mut cli);
    assert_eq!(locks.len(), before.len() + 2);
    cli.reply("DEBUG LOADAOF");
    assert_eq!(keys(&mut cli), locks);

    cli.reply("BGREWRITEAOF");
    eventually(4 * PATIENCE, "the file is rewritten", || !rewriting(&mut cli));
    cli.reply("DEBUG LOADAOF");
    assert_eq!(keys(&mut cli), locks);
    assert_held_and_acquire(&mut cli, &locks);
}

#[test]
fn replica_without_the_module_has_the_same_keys() {
    let master = Server::with_module().tcp().arg("repl-diskless-sync-delay", 0).start().unwrap();
    let replica = Server::builder().start().unwrap();
    let (mut cli, mut on_replica) = (RedisCli::new(&master), RedisCli::new(&replica));
    cli.ask::<i64>("LOCK.ACQUIRE before-it-came a 60000");
    replicate(&mut on_replica, &master);
    make_locks(&mut cli);
    let await_replica =
        |cli: &mut RedisCli| assert_eq!(cli.reply("WAIT 1 4000"), Int(1), "the replica is in step");
    await_replica(&mut cli);
    let locks = keys(&mut cli);
    assert!(locks.contains_key("before-it-came"));
    assert_eq!(keys(&mut on_replica), locks);

    for key in locks.keys() {
        cli.reply(&format!("LOCK.RELEASE {key} a"));
    }
    await_replica(&mut cli);
    assert_eq!(on_replica.reply("DBSIZE"), Int(0));
}

/// Has commands change keys of database 3 on behalf of a client in database 0: directly, in a
/// transaction and in a script. Afterwards the client writes to its own database.
fn copy_and_move_to_another_database(server: &Server) {
    let mut cli = RedisCli::new(server);
    // An expired target is removed only by the command that uses it.
    cli.reply("DEBUG SET-ACTIVE-EXPIRE 0");
    for target in ["missing", "expired"] {
        for way in ["direct", "multi", "script"] {
            let name = format!("{target}-{way}");
            if target == "expired" {
                let (copy, moved) =
                    (format!("SET copy-{name} x PX 1"), format!("SET {name} x PX 1"));
                cli.in_one_turn(&["SELECT 3", &copy, &moved, "SELECT 0", "DEBUG SLEEP 0.01"]);
            }
            let lines = [
                format!("SET {name} x"),
                format!("COPY {name} copy-{name} DB 3"),
                format!("SET after-copy-{name} x"),
                format!("MOVE {name} 3"),
                format!("SET after-move-{name} x"),
            ];
            match way {
                "direct" => lines.iter().for_each(|line| drop(cli.reply(line))),
                "multi" => drop(cli.transaction(&lines.each_ref().map(String::as_str))),
                _ => {
                    let calls =
                        lines.map(|line| format!("redis.call('{}')\n", line.replace(' ', "', '")));
                    cli.run::<Value>(command("EVAL").arg(calls.concat()).arg(0));
                }
            }
        }
    }
    assert_ne!(cli.reply("LOCK.ACQUIRE locked a 60000"), Nil);
}

/// The keys of the databases 0 and 3, in order.
fn keys_of_both(cli: &mut RedisCli) -> [Vec<String>; 2] {
    let keys = [3, 0].map(|database| {
        cli.reply(&format!("SELECT {database}"));
        let mut keys: Vec<String> = cli.ask("KEYS *");
        keys.sort();
        keys
    });
    let [theirs, own] = keys;
    [own, theirs]
}

#[test]
fn commands_on_two_databases_arrive_in_files_and_replicas() {
    let mut server = append_only().tcp().arg("repl-diskless-sync-delay", 0).start().unwrap();
    let replica = Server::with_module().tcp().start().unwrap();
    let (mut cli, mut on_replica) = (RedisCli::new(&server), RedisCli::new(&replica));
    // The replica has granted a lock before it became one.
    assert_ne!(on_replica.reply("LOCK.ACQUIRE locked a 60000"), Nil);
    replicate(&mut on_replica, &server);
    copy_and_move_to_another_database(&server);
    // Each command has left its client in its own database.
    assert_eq!(cli.reply("LOCK.ACQUIRE locked b 60000"), Nil, "another client in database 0");
    let keys = keys_of_both(&mut cli);
    let [own, theirs] = &keys;
    assert_eq!((own.len(), theirs.len()), (13, 12), "{own:?} {theirs:?}");
    assert!(own.iter().all(|key| key.starts_with("after") || key == "locked"), "{own:?}");
    cli.reply("SET last x");
    assert_eq!(cli.reply("WAIT 1 4000"), Int(1));
    cli.reply("DEL last");
    eventually(PATIENCE, "the replica has the same keys", || keys_of_both(&mut on_replica) == keys);

    cli.reply("DEBUG LOADAOF");
    assert_eq!(keys_of_both(&mut cli), keys, "after loading the append-only file");
    server.kill();
    server.restart().unwrap();
    assert_eq!(keys_of_both(&mut RedisCli::new(&server)), keys, "after a restart");
}

#[test]
fn append_only_file_has_plain_commands_with_absolute_expiries() {
    let server = append_only().start().unwrap();
    let mut cli = RedisCli::new(&server);
    cli.ask::<i64>("LOCK.ACQUIRE k a 20000 OWNER me FENCE 7");
    let acquired = cli.expires_at_ms("k").to_string();
    // Commands that change nothing are not in the file.
    for line in ["ACQUIRE k b 60000", "EXTEND k a 1", "RELEASE k b", "RELEASE x a", "INSPECT k"] {
        cli.reply(&format!("LOCK.{line}"));
    }
    cli.ask::<i64>("LOCK.EXTEND k a 40000");
    let extended = cli.expires_at_ms("k").to_string();
    cli.ask::<i64>("LOCK.EXTEND k a 60000 TOKEN b");
    let replaced = cli.expires_at_ms("k").to_string();
    cli.ask::<i64>("LOCK.RELEASE k b");
    assert_eq!(
        appended(&server),
        [
            vec!["SET", "k", "a", "PXAT", &acquired],
            vec!["PEXPIREAT", "k", &extended],
            vec!["SET", "k", "b", "PXAT", &replaced],
            vec!["DEL", "k"],
        ]
    );
}

#[test]
fn end_by_deadline_is_in_the_append_only_file_and_counts_towards_save_points() {
    let server = append_only().start().unwrap();
    let mut cli = RedisCli::new(&server);
    // From now on, the server removes an expired key only when a command uses the key.
    cli.reply("DEBUG SET-ACTIVE-EXPIRE 0");
    // Only the module removes a key without an expiry. The server does not count its own expiries.
    for (line, counted) in [("PING", None), ("PERSIST k", Some(3))] {
        let before = changes(&mut cli);
        cli.transaction(&["LOCK.ACQUIRE k a 20", line]);
        eventually(PATIENCE, "the lock has ended", || cli.reply("DBSIZE") == Int(0));
        // Valkey writes UNLINK for a key that it expires itself.
        let last = appended(&server).pop().unwrap();
        assert!(matches!(&last.join(" ")[..], "DEL k" | "UNLINK k"), "{line}: {last:?}");
        let counts = changes(&mut cli) - before;
        assert!(
            counted.is_none_or(|counted| counted == counts),
            "{counts}: the grant, {line}, end"
        );
    }
}

#[test]
fn transactions_and_scripts_append_the_same() {
    let server = append_only().start().unwrap();
    let mut cli = RedisCli::new(&server);
    let lines = ["LOCK.ACQUIRE k a 20000", "LOCK.EXTEND k a 60000", "LOCK.RELEASE k a"];
    cli.transaction(&lines);
    let script: String =
        lines.map(|line| format!("redis.call('{}')\n", line.replace(' ', "', '"))).concat();
    cli.run::<Value>(command("EVAL").arg(script).arg(1).arg("k"));
    let appended = appended(&server);
    let names: Vec<_> = appended.iter().map(|words| &words[0][..]).collect();
    assert_eq!(names, ["SET", "PEXPIREAT", "DEL", "SET", "PEXPIREAT", "DEL"]);
    assert!(appended.iter().all(|words| words[1] == "k"), "{appended:?}");
}

fn changes(cli: &mut RedisCli) -> u64 {
    info(&mut cli.0, "persistence", "rdb_changes_since_last_save").unwrap()
}

/// The changes counted for 100 copies of `line`, each with its own number in the place of `@`.
fn changes_by(cli: &mut RedisCli, line: &str) -> u64 {
    let before = changes(cli);
    let mut pipeline = redis::pipe();
    for n in 0..100 {
        pipeline.add_command(command(&line.replace('@', &n.to_string())));
    }
    let replies: Vec<Value> = pipeline.query(&mut cli.0).unwrap();
    assert!(replies.iter().all(|reply| *reply != Nil && *reply != Int(0)), "{line}: {replies:?}");
    changes(cli) - before
}

#[test]
fn every_change_counts_towards_save_points() {
    for appendonly in ["no", "yes"] {
        let server = Server::with_module().arg("appendonly", appendonly).start().unwrap();
        let mut cli = RedisCli::new(&server);
        // At the end of a turn, the node learns whether a replica or a file receives its writes.
        cli.reply("PING");
        for (line, expected) in [
            ("LOCK.ACQUIRE k@ a 50000", 100),
            ("LOCK.EXTEND k@ a 60000", 100),
            ("LOCK.EXTEND k@ a 60000 TOKEN b", 100),
            ("LOCK.REVOKE k@", 100),
            ("LOCK.RELEASE k@ b", 100),
            ("LOCK.MACQUIRE 2 k@ l@ a 50000", 200),
            ("LOCK.MEXTEND 2 k@ l@ a 60000", 200),
            ("LOCK.MRELEASE 2 k@ l@ a", 200),
        ] {
            assert_eq!(changes_by(&mut cli, line), expected, "{line}, appendonly {appendonly}");
        }
    }
}
