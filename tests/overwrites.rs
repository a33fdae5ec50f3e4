//! An operator's overwrite of a lock's key ends the lock, even if the overwrite expires, or the
//! server reloads its data, before a LOCK command uses the key. The only exception is a value as
//! long as the token that expires within the turn in which it is written: it looks like a lock's
//! own mirror that expired early. The mirror expires no earlier than the lock, however old the
//! server's cached time is.

use crate::common::{PATIENCE, RedisCli, command, info, server_and_cli};
use quorlock_testkit::{Server, eventually};
use redis::Value::{self, Int, Nil, Okay};

const ACQUIRE: &str = "LOCK.ACQUIRE k token 60000";

// Expiries here are at least 20 ms: Redis 7.0 reads its clock twice during PEXPIRE, and deletes the
// key if the expiry has passed meanwhile.

/// Transactions that overwrite the key with a string that expires soon.
const EXPIRING_OVERWRITES: [&[&str]; 8] = [
    &["SET k stop PX 20"],
    &["PSETEX k 20 stop"],
    &["SET k stop", "PEXPIRE k 20"],
    &["SET k stop EX 60", "GETEX k PX 20"],
    &["GETSET k stop", "PEXPIRE k 20"],
    // A value as long as the token.
    &["SET k other PX 20"],
    // The overwrite expires within the transaction.
    &["SET k stop PX 20", "DEBUG SLEEP 0.05"],
    &["SET k stop PX 60000", "PEXPIRE k 20"],
];

/// Transactions that make the mirror expire early, or look as if they did.
const EXPIRING_MIRRORS: [&[&str]; 5] = [
    &["PEXPIRE k 20"],
    &["GETEX k PX 20"],
    &["PERSIST k", "PEXPIRE k 20"],
    &["SET k token PX 20"],
    // Another value, but the server reports the same events, and the length is the same.
    &["SET k other PX 20", "DEBUG SLEEP 0.05"],
];

/// Checks that an operator's command has ended the lock of `token`, and that the key is free.
#[track_caller]
fn assert_ended_and_acquire(server: &Server, cli: &mut RedisCli, what: &str) {
    assert_eq!(cli.reply("LOCK.EXTEND k token 60000"), Nil, "{what}");
    assert_eq!(cli.reply("EXISTS k"), Int(0), "{what}");
    assert_eq!(info(server, "lock_saved_from_clock_step"), 0, "{what}");
    assert_eq!(info(server, "lock_ended_by_operator"), 1, "{what}");
    assert_ne!(cli.reply("LOCK.ACQUIRE k next 60000"), Nil, "{what}");
}

#[test]
fn overwrite_that_expires_ends_the_lock() {
    for overwrite in EXPIRING_OVERWRITES {
        let (server, mut cli) = server_and_cli();
        assert_ne!(cli.reply(ACQUIRE), Nil);
        cli.transaction(overwrite);
        eventually(PATIENCE, "the overwrite has expired", || {
            !matches!(cli.ask::<Option<String>>("GET k").as_deref(), Some("stop" | "other"))
        });
        assert_ended_and_acquire(&server, &mut cli, &format!("{overwrite:?}"));
    }
}

#[test]
fn expiry_of_the_mirror_alone_does_not_end_the_lock() {
    for expiry in EXPIRING_MIRRORS {
        let (server, mut cli) = server_and_cli();
        let fence: i64 = cli.ask(ACQUIRE);
        cli.transaction(expiry);
        eventually(PATIENCE, "the mirror has expired and is written again", || {
            cli.ask::<i64>("PTTL k") > 20
        });
        assert_eq!(info(&server, "lock_saved_from_clock_step"), 1, "{expiry:?}");
        assert_eq!(cli.reply("LOCK.ACQUIRE k next 60000"), Nil, "{expiry:?}");
        assert_eq!(cli.ask::<String>("GET k"), "token", "{expiry:?}");
        assert_eq!(cli.fence("k"), Some(fence), "{expiry:?}");
        assert_eq!(cli.reply("LOCK.EXTEND k token 60000"), Int(fence), "{expiry:?}");
        assert_eq!(cli.reply("LOCK.RELEASE k token"), Int(1), "{expiry:?}");
        assert_eq!(cli.reply("EXISTS k"), Int(0), "{expiry:?}");
    }
}

#[test]
fn overwrite_before_a_reload_ends_the_lock() {
    for overwrite in ["SET k stop", "SET k stop PX 60000", "SET k other", "APPEND k x"] {
        let (server, mut cli) = server_and_cli();
        assert_ne!(cli.reply(ACQUIRE), Nil);
        cli.reply(overwrite);
        assert_eq!(cli.reply("DEBUG RELOAD"), Okay);
        assert_eq!(cli.fence("k"), None, "{overwrite}: a foreign string");
        assert_eq!(cli.reply("LOCK.EXTEND k token 60000"), Nil, "{overwrite}");
        assert_eq!(cli.reply("DEL k"), Int(1), "{overwrite}");
        assert_ended_and_acquire(&server, &mut cli, overwrite);
    }
}

#[test]
fn overwrite_before_a_reload_ends_the_lock_if_del_is_the_next_command() {
    let (server, mut cli) = server_and_cli();
    assert_ne!(cli.reply(ACQUIRE), Nil);
    cli.reply("SET k stop");
    cli.reply("DEBUG RELOAD");
    // DEL is the first command that uses the key after the overwrite.
    assert_eq!(cli.reply("DEL k"), Int(1));
    assert_ended_and_acquire(&server, &mut cli, "DEL after a reload");
}

#[test]
fn flush_before_a_reload_in_the_same_turn_ends_the_lock() {
    for flush in ["FLUSHALL", "FLUSHDB", "FLUSHALL ASYNC"] {
        for reload in ["DEBUG RELOAD", "DEBUG RELOAD NOFLUSH"] {
            let what = format!("{flush}, {reload}");
            let (server, mut cli) = server_and_cli();
            assert_ne!(cli.reply(ACQUIRE), Nil, "{what}");
            assert_eq!(cli.in_one_turn(&[flush, reload])[1], Okay, "{what}");
            assert_ended_and_acquire(&server, &mut cli, &what);
        }
    }
}

#[test]
fn string_in_the_place_of_a_lost_mirror_survives_a_reload() {
    let (_server, mut cli) = server_and_cli();
    assert_ne!(cli.reply(ACQUIRE), Nil);
    // These commands run in one turn: the node cannot write the mirror again between them.
    let replies = cli.in_one_turn(&["PEXPIRE k 20", "DEBUG SLEEP 0.05", "SET k theirs NX"]);
    assert_eq!(replies[2], Okay, "the mirror had expired");
    cli.reply("DEBUG RELOAD");
    assert_eq!(cli.ask::<String>("GET k"), "theirs");
    assert_ne!(
        cli.reply("LOCK.EXTEND k token 60000"),
        Nil,
        "a string in the place of an expired mirror does not end the lease"
    );
    assert_eq!(cli.ask::<String>("GET k"), "theirs");
}

#[test]
fn reload_without_the_mirror_does_not_end_the_lock() {
    let (_server, mut cli) = server_and_cli();
    assert_ne!(cli.reply(ACQUIRE), Nil);
    // These commands run in one turn: the node cannot write the mirror again before the reload.
    let replies =
        cli.in_one_turn(&["PEXPIRE k 20", "DEBUG SLEEP 0.05", "DEBUG RELOAD", "EXISTS k"]);
    assert_eq!(replies[2..], [Okay, Int(0)], "the server reloads without the mirror");
    assert_eq!(cli.reply("LOCK.ACQUIRE k next 60000"), Nil);
    assert_ne!(cli.reply("LOCK.EXTEND k token 60000"), Nil);
    assert_eq!(cli.ask::<String>("GET k"), "token");
}

#[test]
fn copy_to_another_database_in_multi_does_not_end_the_lock() {
    let (server, mut cli) = server_and_cli();
    assert_ne!(cli.reply(ACQUIRE), Nil);
    cli.reply("SET other stop");
    cli.transaction(&["COPY other k DB 1"]);
    assert_eq!(info(&server, "lock_ended_by_operator"), 0);
    assert_ne!(cli.reply("LOCK.EXTEND k token 60000"), Nil);
    assert_eq!(cli.reply("LOCK.RELEASE k token"), Int(1));
}

#[test]
fn copy_in_multi_ends_the_lock_on_its_target() {
    let (server, mut cli) = server_and_cli();
    assert_ne!(cli.reply(ACQUIRE), Nil);
    cli.reply("SET other stop PX 20");
    cli.transaction(&["COPY other k REPLACE"]);
    eventually(PATIENCE, "the copy has expired", || cli.reply("EXISTS k") == Int(0));
    assert_ended_and_acquire(&server, &mut cli, "COPY in MULTI");
}

const TTL_MS: i64 = 60_000;
/// How long the slow part lasts: the age of the server's cached time when the lock changes.
const BUSY_MS: i64 = 300;

/// A line that prepares `k`, and a line that changes a lock on `k`.
const CHANGES: [(&str, &str); 5] = [
    ("PING", "LOCK.ACQUIRE k a 60000"),
    ("PING", "LOCK.MACQUIRE 2 k l a 60000"),
    ("LOCK.ACQUIRE k a 20000", "LOCK.EXTEND k a 60000"),
    ("LOCK.ACQUIRE k b 20000", "LOCK.EXTEND k b 60000 TOKEN a"),
    ("SET k a PX 20000", "LOCK.EXTEND k a 60000"),
];

#[test]
fn mirror_of_a_lock_in_a_slow_transaction_expires_with_it() {
    for (before, change) in CHANGES {
        let (_server, mut cli) = server_and_cli();
        cli.reply(before);
        let began_at_ms = cli.now_ms();
        let replies = cli.transaction(&["DEBUG SLEEP 0.3", change]);
        assert!(matches!(replies[1], Int(_)), "{change}: {replies:?}");
        let expires_at_ms = cli.expires_at_ms("k");
        assert!(
            expires_at_ms >= began_at_ms + BUSY_MS + TTL_MS,
            "{change}: {began_at_ms}, {expires_at_ms}"
        );
    }
}

#[test]
fn mirror_of_a_lock_in_a_slow_script_expires_with_it() {
    // On some servers TIME stands still in a script, and on others a script has no `os.clock`.
    // `os.clock` is processor time, which never exceeds elapsed time.
    let script = "local function seconds()
            local time = redis.call('TIME')
            return time[1] + time[2] / 1000000
        end
        local has_clock, clock = pcall(function() return os.clock end)
        if not has_clock then clock = seconds end
        local began = clock()
        while clock() - began < 0.3 do end
        return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], ARGV[2])";
    let (_server, mut cli) = server_and_cli();
    let began_at_ms = cli.now_ms();
    let granted: Value = cli.run(command("EVAL").arg(script).arg(1).arg("k").arg("a").arg(TTL_MS));
    assert!(matches!(granted, Int(_)), "{granted:?}");
    let expires_at_ms = cli.expires_at_ms("k");
    assert!(expires_at_ms >= began_at_ms + BUSY_MS + TTL_MS, "{began_at_ms}, {expires_at_ms}");
}

#[test]
fn lock_in_a_slow_transaction_excludes_plain_clients() {
    let (_server, mut cli) = server_and_cli();
    // The ttl is shorter than the sleep before the grant.
    let replies = cli.in_one_turn(&[
        "MULTI",
        "DEBUG SLEEP 1.1",
        "LOCK.ACQUIRE k a 1000",
        "EXEC",
        "SET k theirs NX",
        "LOCK.EXTEND k a 1",
    ]);
    let (set, extended) = (&replies[4], &replies[5]);
    assert!(*set == Nil || *extended == Nil, "both hold the lock: {replies:?}");
}
