//! The key of a lock expires no earlier than the lock, however old the server's cached time is.

mod common;

use common::{command, server_and_cli};
use redis::Value::{self, Int, Nil};

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
