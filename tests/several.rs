//! Several keys as one lock, on a real server: all or none, and the end of one ends all.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use common::{
    PATIENCE, RedisCli, Waiter, append_only, command, info, replicate, server, server_and_cli,
};
use quorlock_testkit::{Server, eventually};
use redis::Value::{self, Array, Int, Nil};
use redis::cmd;

/// The fence, the ttl and the number of keys that `LOCK.INSPECT` shows for a key.
fn inspect(cli: &mut RedisCli, key: &str) -> Option<(i64, i64, i64)> {
    let shown: Option<HashMap<String, Value>> = cli.ask(&format!("LOCK.INSPECT {key}"));
    let shown = shown?;
    let field = |name: &str| match shown[name] {
        Int(value) => value,
        ref other => panic!("{name}: {other:?}"),
    };
    Some((field("fence"), field("ttl"), field("keys")))
}

fn count_existing(cli: &mut RedisCli, keys: &str) -> Value {
    cli.reply(&format!("EXISTS {keys}"))
}

#[test]
fn all_keys_are_granted_or_none() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE b other 60000");
    assert_eq!(cli.reply("LOCK.MACQUIRE 3 a b c t 60000"), Nil);
    assert_eq!(count_existing(&mut cli, "a c"), Int(0));
    cli.ask::<i64>("LOCK.RELEASE b other");
    let fence: i64 = cli.ask("LOCK.MACQUIRE 3 c a b t 60000 OWNER me");
    for key in ["a", "b", "c"] {
        assert_eq!(cli.ask::<String>(&format!("GET {key}")), "t");
        assert!((1..=60_000).contains(&cli.ask::<i64>(&format!("PTTL {key}"))));
        assert_eq!(inspect(&mut cli, key).map(|(fence, _, keys)| (fence, keys)), Some((fence, 3)));
        assert_eq!(cli.reply(&format!("LOCK.ACQUIRE {key} other 1000")), Nil);
    }
    assert_eq!(cli.reply("LOCK.MACQUIRE 2 c d other 1000"), Nil);
    assert_eq!(count_existing(&mut cli, "d"), Int(0));
    assert_eq!((info(&server, "lock_leases"), info(&server, "lock_grants")), (3, 4));
    assert_eq!(cli.reply("LOCK.MRELEASE 3 a b c t"), Int(1));
    assert_eq!(cli.reply("LOCK.MRELEASE 3 a b c t"), Int(0));
    assert_eq!(count_existing(&mut cli, "a b c"), Int(0));
    assert_eq!(info(&server, "lock_leases"), 0);
}

#[test]
fn fence_exceeds_and_raises_the_fences_of_all_keys() {
    let (_server, mut cli) = server_and_cli();
    let mut highest = 0;
    for _ in 0..5 {
        highest = cli.ask("LOCK.ACQUIRE b x 60000");
        cli.ask::<i64>("LOCK.RELEASE b x");
    }
    let fence: i64 = cli.ask("LOCK.MACQUIRE 3 a b c t 60000");
    assert!(fence > highest);
    cli.ask::<i64>("LOCK.MRELEASE 3 a b c t");
    for key in ["a", "b", "c"] {
        assert!(cli.ask::<i64>(&format!("LOCK.ACQUIRE {key} y 60000")) > fence, "{key}");
    }
}

#[test]
fn extension_names_all_keys_of_the_lock_and_no_other() {
    let (_server, mut cli) = server_and_cli();
    let fence: i64 = cli.ask("LOCK.MACQUIRE 2 a b t 20000");
    let not_one_lock = "ERR the token holds these keys, but they are not all the keys of one lock";
    assert!(cli.error("LOCK.EXTEND a t 60000").starts_with(not_one_lock));
    assert!(cli.error("LOCK.MEXTEND 1 b t 60000").starts_with(not_one_lock));
    assert_eq!(cli.reply("LOCK.MEXTEND 3 a b c t 60000"), Nil);
    assert_eq!(cli.reply("LOCK.MEXTEND 2 a b x 60000"), Nil);
    for key in ["a", "b"] {
        assert!(cli.ask::<i64>(&format!("PTTL {key}")) <= 20_000, "{key}");
    }
    assert_eq!(cli.reply("LOCK.MEXTEND 2 b a t 60000"), Int(fence));
    for key in ["a", "b"] {
        assert!(cli.ask::<i64>(&format!("PTTL {key}")) > 20_000, "{key}");
    }
    let higher: i64 = cli.ask("LOCK.MEXTEND 2 a b t 60000 TOKEN u");
    assert!(higher > fence);
    assert_eq!(cli.reply("LOCK.MRELEASE 2 a b t"), Int(0));
    assert_eq!(cli.ask::<Vec<String>>("MGET a b"), ["u", "u"]);
    assert_eq!(cli.reply("LOCK.MRELEASE 2 a b u"), Int(1));
}

#[test]
fn lock_of_one_key_is_the_same_for_both_kinds_of_command() {
    let (_server, mut cli) = server_and_cli();
    let fence: i64 = cli.ask("LOCK.MACQUIRE 2 a a t 20000");
    assert_eq!(
        inspect(&mut cli, "a").map(|(_, _, keys)| keys),
        Some(1),
        "a key that is named twice counts once"
    );
    assert_eq!(cli.reply("LOCK.EXTEND a t 60000"), Int(fence));
    assert_eq!(cli.reply("LOCK.MEXTEND 1 a t 60000"), Int(fence));
    assert_eq!(cli.reply("LOCK.RELEASE a t"), Int(1));
    cli.ask::<i64>("LOCK.ACQUIRE a t 20000");
    assert_eq!(cli.reply("LOCK.MRELEASE 1 a t"), Int(1));
}

#[test]
fn end_of_one_key_ends_all_and_serves_all_queues() {
    for end in [
        "LOCK.RELEASE b t",
        "LOCK.MRELEASE 1 b t",
        "DEL b",
        "UNLINK b",
        "RENAME b d",
        "GETDEL b",
        "FLUSHALL",
    ] {
        let (server, mut cli) = server_and_cli();
        cli.ask::<i64>("LOCK.MACQUIRE 3 a b c t 60000");
        let waiters = ["a", "c"]
            .map(|key| Waiter::new(&server, &format!("LOCK.ACQUIRE {key} u 60000 WAIT 60000")));
        assert_ne!(cli.reply(end), Int(0), "{end}");
        assert_eq!(cli.reply("LOCK.MEXTEND 3 a b c t 60000"), Nil, "{end}");
        for waiter in waiters {
            assert!(waiter.wait_for_grant() > 0);
        }
        assert_eq!(cli.ask::<Vec<String>>("MGET a c"), ["u", "u"], "{end}");
        assert_eq!(inspect(&mut cli, "b"), None, "{end}");
        assert_eq!(info(&server, "lock_leases"), 2, "{end}");
    }
}

#[test]
fn other_keys_are_gone_before_the_next_turn() {
    let (server, mut cli) = server_and_cli();
    for end in ["LOCK.RELEASE b t", "DEL b"] {
        cli.ask::<i64>("LOCK.MACQUIRE 3 a b c t 60000");
        cli.reply(end);
        assert_eq!(count_existing(&mut cli, "a b c"), Int(0), "{end}");
        assert_eq!(info(&server, "lock_leases"), 0, "{end}");
    }
    // The node notices a plain SET when a LOCK command next uses the key.
    cli.ask::<i64>("LOCK.MACQUIRE 2 a b t 60000");
    cli.reply("SET b other");
    assert_eq!(cli.reply("LOCK.MEXTEND 2 a b t 60000"), Nil);
    assert_eq!(count_existing(&mut cli, "a"), Int(0));
    assert_eq!(cli.ask::<String>("GET b"), "other");
}

#[test]
fn ended_lock_is_free_within_the_same_turn() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.MACQUIRE 2 a b t 60000");
    let replies = cli.in_one_turn(&["DEL a", "LOCK.EXTEND b t 60000", "LOCK.ACQUIRE b u 60000"]);
    assert!(matches!(replies[1..], [Nil, Int(_)]), "{replies:?}");
    assert_eq!(cli.ask::<String>("GET b"), "u");
    assert_eq!(count_existing(&mut cli, "a"), Int(0));
}

#[test]
fn all_keys_end_at_the_deadline() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.MACQUIRE 3 a b c t 5");
    eventually(PATIENCE, "the lock has ended", || info(&server, "lock_leases") == 0);
    assert_eq!(count_existing(&mut cli, "a b c"), Int(0));
    assert_eq!(info(&server, "lock_ended_by_deadline"), 3);
}

#[test]
fn key_of_another_type_leaves_the_other_keys_alone() {
    let (_server, mut cli) = server_and_cli();
    cli.reply("LPUSH list x");
    assert!(cli.error("LOCK.MACQUIRE 2 a list t 1000").starts_with("WRONGTYPE"));
    assert!(cli.error("LOCK.MEXTEND 1 list t 1000").starts_with("WRONGTYPE"));
    assert!(cli.error("LOCK.MRELEASE 2 a list t").starts_with("WRONGTYPE"));
    assert_eq!(count_existing(&mut cli, "a"), Int(0));
}

#[test]
fn keys_without_a_token_and_a_ttl_are_refused() {
    let (_server, mut cli) = server_and_cli();
    for line in ["LOCK.MACQUIRE 4 a b t 1000", "LOCK.MACQUIRE 2 a b t"] {
        assert!(cli.error(line).starts_with("ERR wrong number of arguments"), "{line}");
    }
}

#[test]
fn lock_of_64_keys_ends_on_all() {
    let (_server, mut cli) = server_and_cli();
    let keys: Vec<_> = (0..64).map(|n| format!("k{n}")).collect();
    cli.ask::<i64>(&format!("LOCK.MACQUIRE 64 {} t 60000", keys.join(" ")));
    assert_eq!(cli.reply("LOCK.RELEASE k40 t"), Int(1));
    assert_eq!(count_existing(&mut cli, "k0 k40 k63"), Int(0));
}

#[test]
fn keyspace_events_and_watch_cover_each_key() {
    let (server, mut cli) = server_and_cli();
    cli.reply("CONFIG SET notify-keyspace-events KEA");
    let mut connection = server.connection();
    let mut listener = connection.as_pubsub();
    listener.psubscribe("__keyevent*__:*").unwrap();
    let mut events_of = |line: &str| {
        let mut watcher = RedisCli::new(&server);
        watcher.reply("WATCH b");
        cli.reply(line);
        watcher.reply("MULTI");
        assert_eq!(watcher.reply("EXEC"), Nil, "{line}: WATCH of the other key");
        cli.reply("PUBLISH __keyevent@0__:end .");
        let messages = std::iter::from_fn(|| {
            let message = listener.get_message().unwrap();
            let event = message.get_channel_name().rsplit(':').next().unwrap().to_owned();
            (event != "end")
                .then(|| format!("{event} {}", message.get_payload::<String>().unwrap()))
        });
        messages.collect::<Vec<_>>()
    };
    let sets = ["set a", "expire a", "set b", "expire b"];
    assert_eq!(events_of("LOCK.MACQUIRE 2 a b t 30000"), sets);
    assert_eq!(events_of("LOCK.MEXTEND 2 a b t 60000"), ["expire a", "expire b"]);
    assert_eq!(events_of("LOCK.MEXTEND 2 a b t 60000 TOKEN u"), sets);
    assert_eq!(events_of("LOCK.MRELEASE 2 a b u"), ["del a", "del b"]);
    assert_eq!(events_of("LOCK.MACQUIRE 2 a b t 30000"), sets);
    assert_eq!(events_of("LOCK.RELEASE a t"), ["del a", "del b"]);
}

#[test]
fn replica_receives_and_loses_all_keys() {
    let master = Server::with_module().tcp().arg("repl-diskless-sync-delay", 0).start().unwrap();
    let replica = Server::builder().start().unwrap();
    let (mut cli, mut copy) = (RedisCli::new(&master), RedisCli::new(&replica));
    replicate(&mut copy, &master);
    cli.ask::<i64>("LOCK.MACQUIRE 2 a b t 60000");
    eventually(PATIENCE, "both are there", || copy.reply("MGET a b") == cli.reply("MGET a b"));
    cli.ask::<i64>("LOCK.MEXTEND 2 a b t 59000 TOKEN u");
    eventually(PATIENCE, "the new token is there", || {
        copy.reply("MGET a b") == cli.reply("MGET a b")
    });
    for key in ["a", "b"] {
        assert_eq!(copy.expires_at_ms(key), cli.expires_at_ms(key));
    }
    cli.reply("DEL a");
    eventually(PATIENCE, "both are gone", || count_existing(&mut copy, "a b") == Int(0));
}

#[test]
fn token_makes_the_keys_one_lock_again_after_a_restart() {
    let mut server = append_only().start().unwrap();
    let mut cli = RedisCli::new(&server);
    let fence: i64 = cli.ask("LOCK.MACQUIRE 2 a b t 60000");
    server.restart().unwrap();
    let mut cli = RedisCli::new(&server);
    assert_ne!(cli.reply("LOCK.INSPECT a"), Nil, "the key exists");
    assert_eq!(cli.fence("a"), None);
    assert_eq!(cli.reply("LOCK.MEXTEND 2 a b x 60000"), Nil);
    assert!(cli.ask::<i64>("LOCK.MEXTEND 2 a b t 60000") > fence);
    assert_eq!(inspect(&mut cli, "b").map(|(_, _, keys)| keys), Some(2));
    assert_eq!(cli.reply("LOCK.RELEASE a t"), Int(1));
    assert_eq!(count_existing(&mut cli, "a b"), Int(0));
}

#[test]
fn key_that_expired_early_is_written_again() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.MACQUIRE 2 a b t 60000");
    // The server removes the key before the deadline, as after a step of the wall clock.
    cli.reply("PEXPIRE a 20");
    eventually(PATIENCE, "it is written again", || cli.ask::<i64>("PTTL a") > 1000);
    assert_eq!(inspect(&mut cli, "a").map(|(_, _, keys)| keys), Some(2));
    assert_eq!(info(&server, "lock_saved_from_clock_step"), 1);
    assert_eq!(cli.reply("LOCK.MRELEASE 2 a b t"), Int(1));
}

#[test]
fn waiter_for_several_keys_is_granted_all_at_once_or_holds_none() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE a x 60000");
    let before: i64 = cli.ask("LOCK.ACQUIRE b y 60000");
    let both = Waiter::new(&server, "LOCK.MACQUIRE 2 b a t 60000 WAIT 60000");
    let one = Waiter::new(&server, "LOCK.ACQUIRE a u 60000 WAIT 60000 FENCE 1");
    cli.reply("LOCK.RELEASE a x");
    one.wait_for_grant();
    cli.reply("LOCK.RELEASE b y");
    assert!(
        matches!(cli.reply("LOCK.ACQUIRE b newcomer 60000 FENCE 1"), Int(_)),
        "a waiter reserves no key against an older client"
    );
    cli.reply("LOCK.RELEASE a u");
    assert_eq!(info(&server, "lock_waiters"), 1);
    assert_eq!(cli.reply("DEL b"), Int(1));
    assert!(both.wait_for_grant() > before);
    assert_eq!(cli.ask::<Vec<String>>("MGET a b"), ["t", "t"]);
    assert_eq!((info(&server, "lock_waiters"), info(&server, "lock_handovers")), (0, 2));
}

#[test]
fn wait_for_several_keys_ends_like_any_other() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE b x 60000");
    let start_waiter = || Waiter::new(&server, "LOCK.MACQUIRE 2 a b t 60000 WAIT 60000");
    let brief = Waiter::briefly(&server, "LOCK.MACQUIRE 2 a b t 60000 WAIT 30");
    assert_eq!(brief.answer(), Nil);
    let unblocked = start_waiter();
    assert_eq!(cli.reply(&format!("CLIENT UNBLOCK {}", unblocked.client_id)), Int(1));
    assert_eq!(unblocked.answer(), Nil);
    let withdrawn = start_waiter();
    assert_eq!(cli.reply("LOCK.MRELEASE 2 a b t"), Int(0));
    assert_eq!(withdrawn.answer(), Nil);
    let killed = start_waiter();
    assert_eq!(cli.reply(&format!("CLIENT KILL ID {}", killed.client_id)), Int(1));
    assert!(killed.result().is_err());
    eventually(PATIENCE, "no client waits", || info(&server, "lock_waiters") == 0);
    let sent_away = start_waiter();
    cli.reply("SWAPDB 0 1");
    assert!(sent_away.error().starts_with("ABSTAIN "));
}

#[test]
fn withdrawn_waiter_is_not_granted_a_lock_that_ends_in_the_same_turn() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.MACQUIRE 2 a b x 60000");
    let both = Waiter::new(&server, "LOCK.MACQUIRE 2 a b t 60000 WAIT 60000");
    assert_eq!(cli.transaction(&["DEL b", "LOCK.MRELEASE 2 a b t"]), [Int(1), Int(0)]);
    assert_eq!(both.answer(), Nil);
    assert_eq!(count_existing(&mut cli, "a b"), Int(0));
}

#[test]
fn grant_to_a_client_that_is_gone_is_released_on_all_keys() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE b x 60000");
    let both = Waiter::new(&server, "LOCK.MACQUIRE 2 a b t 60000 WAIT 60000");
    // In one turn, the client is granted the lock, and disconnected before it receives the answer.
    cli.in_one_turn(&["LOCK.RELEASE b x", &format!("CLIENT KILL ID {}", both.client_id)]);
    drop(both.result());
    eventually(PATIENCE, "the lock granted to the killed client is released", || {
        count_existing(&mut cli, "a b") == Int(0)
    });
    assert_eq!(info(&server, "lock_leases"), 0);
}

#[test]
fn no_client_waits_in_a_transaction() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE b x 60000");
    let replies = cli.transaction(&[
        "LOCK.MACQUIRE 2 a b t 60000 WAIT 60000",
        "LOCK.MACQUIRE 2 a c t 60000 WAIT 60000",
    ]);
    let [Nil, Array(granted)] = &replies[..] else { panic!("{replies:?}") };
    assert!(matches!(granted[..], [Int(_), Int(0)]), "{granted:?}");
}

#[test]
fn clients_with_overlapping_keys_in_any_order_are_all_granted() {
    const LOCKS_PER_CLIENT: usize = 40;
    let server = server();
    let orders = ["2 a b", "2 b a", "2 b c", "2 c a", "3 c b a", "1 b"];
    let clients = orders.into_iter().enumerate().map(|(client, keys)| {
        let mut connection = server.connection();
        connection.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        thread::spawn(move || {
            for number in 0..LOCKS_PER_CLIENT {
                let token = format!("{client}-{number}");
                let acquire = format!("LOCK.MACQUIRE {keys} {token} 60000 WAIT 60000");
                let (fence, _): (i64, i64) = command(&acquire).query(&mut connection).unwrap();
                for key in keys.split(' ').skip(1) {
                    // Otherwise two clients held the key at the same time, or fences do not grow.
                    let before: Option<i64> = cmd("GETSET")
                        .arg(format!("seen:{key}"))
                        .arg(fence)
                        .query(&mut connection)
                        .unwrap();
                    assert!(
                        before.is_none_or(|before| before < fence),
                        "{key}: {before:?} {fence}"
                    );
                }
                let released: i64 = command(&format!("LOCK.MRELEASE {keys} {token}"))
                    .query(&mut connection)
                    .unwrap();
                assert_eq!(released, 1);
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.join().unwrap();
    }
    assert_eq!((info(&server, "lock_leases"), info(&server, "lock_waiters")), (0, 0));
}

#[test]
fn keys_freed_together_go_to_the_first_waiter() {
    for free in ["DEL delta alpha", "DEL alpha delta", "FLUSHDB", "FLUSHALL"] {
        let (server, mut cli) = server_and_cli();
        for key in ["alpha", "delta"] {
            cli.reply(&format!("SET {key} theirs PX 600000"));
        }
        // Opens the queue of `delta` first: served in this order, `second` would be granted.
        let leaving = Waiter::new(&server, "LOCK.ACQUIRE delta leaves 60000 WAIT 60000");
        let first = Waiter::new(&server, "LOCK.MACQUIRE 2 alpha beta first 60000 WAIT 60000");
        let second = Waiter::new(&server, "LOCK.MACQUIRE 2 beta delta second 60000 WAIT 60000");
        cli.reply("LOCK.RELEASE delta leaves");
        assert_eq!(leaving.answer(), Nil);
        cli.reply(free);
        first.wait_for_grant();
        assert!(second.waits(), "{free}");
        cli.reply(&format!("CLIENT UNBLOCK {}", second.client_id));
        assert_eq!(second.answer(), Nil);
    }
}

#[test]
fn single_key_waiter_does_not_overtake_one_for_several_in_one_turn() {
    let (server, mut cli) = server_and_cli();
    for key in ["alpha", "delta"] {
        cli.reply(&format!("SET {key} theirs PX 600000"));
    }
    let first = Waiter::new(&server, "LOCK.MACQUIRE 2 alpha delta first 60000 WAIT 60000");
    let second = Waiter::new(&server, "LOCK.ACQUIRE delta second 60000 WAIT 60000");
    let freed = cli.transaction(&["DEL delta", "EXISTS alpha delta", "DEL alpha"]);
    assert_eq!(freed, [Int(1), Int(1), Int(1)]);
    first.wait_for_grant();
    assert!(second.waits());
    cli.ask::<i64>("LOCK.MRELEASE 2 alpha delta first");
    second.wait_for_grant();
}

/// Shows the purpose of `LOCK.MACQUIRE`.
#[test]
fn clients_that_lock_two_keys_one_by_one_deadlock() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE a first 60000");
    cli.ask::<i64>("LOCK.ACQUIRE b second 60000");
    let first = Waiter::new(&server, "LOCK.ACQUIRE b first 60000 WAIT 2000");
    let second = Waiter::new(&server, "LOCK.ACQUIRE a second 60000 WAIT 2000");
    assert_eq!(first.answer(), Nil);
    assert_eq!(second.answer(), Nil);
}
