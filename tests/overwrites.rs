//! An operator's overwrite of a lock's key ends the lock, even if the overwrite expires, or the
//! server reloads its data, before a LOCK command uses the key. The only exception is a value as
//! long as the token that expires within the turn in which it is written: it looks like a lock's
//! own mirror that expired early.

mod common;

use common::{PATIENCE, RedisCli, Waiter, info, server_and_cli};
use quorlock_testkit::{Server, eventually};
use redis::Value::{Int, Nil, Okay};

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
fn overwrite_that_expires_ends_a_lock_of_several_keys() {
    let (_server, mut cli) = server_and_cli();
    assert_ne!(cli.reply("LOCK.MACQUIRE 3 k l m token 60000"), Nil);
    cli.reply("SET l stop PX 20");
    eventually(PATIENCE, "all keys are free", || cli.reply("EXISTS k l m") == Int(0));
    assert_eq!(cli.reply("LOCK.MEXTEND 3 k l m token 60000"), Nil);
    assert_ne!(cli.reply("LOCK.MACQUIRE 3 k l m next 60000"), Nil);
}

#[test]
fn waiter_is_granted_when_an_overwrite_expires() {
    let (server, mut cli) = server_and_cli();
    assert_ne!(cli.reply(ACQUIRE), Nil);
    let waiter = Waiter::new(&server, "LOCK.ACQUIRE k next 60000 WAIT 4000");
    cli.reply("SET k stop PX 20");
    waiter.wait_for_grant();
    assert_eq!(cli.ask::<String>("GET k"), "next");
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
