//! The effects of the commands, as a user of redis-cli sees them.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::collections::HashMap;

use common::{PATIENCE, RedisCli, command, server, server_and_cli};
use quorlock_testkit::{Server, eventually};
use redis::FromRedisValue as _;
use redis::Value::{self, Array, BulkString, Int, Map, Nil};

fn text(text: &str) -> Value {
    BulkString(text.into())
}

#[test]
fn mirror_is_the_token_as_a_string_that_expires_with_the_lock() {
    let (_server, mut cli) = server_and_cli();
    let before = cli.now_ms();
    let Int(fence) = cli.reply("LOCK.ACQUIRE k a 30000") else { panic!("an integer") };
    let after = cli.now_ms();
    assert!(fence > 0);
    assert_eq!(cli.reply("GET k"), text("a"));
    let expires_at = cli.expires_at_ms("k");
    assert!(
        (before + 30_000..=after + 30_000).contains(&expires_at),
        "{before} {expires_at} {after}"
    );
    assert!((1..=30_000).contains(&cli.ask::<i64>("PTTL k")));
}

#[test]
fn held_lock_is_refused_even_to_its_own_token() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 30000");
    let expires_at = cli.expires_at_ms("k");
    assert_eq!(cli.reply("LOCK.ACQUIRE k b 60000"), Nil);
    assert_eq!(cli.reply("LOCK.ACQUIRE k a 60000"), Nil);
    assert_eq!(cli.reply("GET k"), text("a"));
    assert_eq!(cli.expires_at_ms("k"), expires_at);
}

#[test]
fn only_the_right_token_releases_and_only_once() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000");
    assert_eq!(cli.reply("LOCK.RELEASE k b"), Int(0));
    assert_eq!(cli.reply("GET k"), text("a"));
    assert_eq!(cli.reply("LOCK.RELEASE k a"), Int(1));
    assert_eq!(cli.reply("EXISTS k"), Int(0));
    assert_eq!(cli.reply("LOCK.RELEASE k a"), Int(0));
    assert_eq!(cli.reply("LOCK.RELEASE never-locked a"), Int(0));
}

#[test]
fn released_lock_goes_to_the_next_client_and_is_not_extended() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000");
    cli.ask::<i64>("LOCK.RELEASE k a");
    assert_eq!(cli.reply("LOCK.EXTEND k a 60000"), Nil);
    assert_eq!(cli.reply("EXISTS k"), Int(0));
    cli.ask::<i64>("LOCK.ACQUIRE k b 60000");
    assert_eq!(cli.reply("LOCK.RELEASE k a"), Int(0), "a late release by the previous holder");
    assert_eq!(cli.reply("GET k"), text("b"));
}

#[test]
fn lock_ends_at_its_deadline_and_is_never_revived() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 1");
    eventually(PATIENCE, "the lock has ended", || cli.reply("LOCK.INSPECT k") == Nil);
    assert_eq!(cli.reply("LOCK.EXTEND k a 60000"), Nil);
    assert_eq!(cli.reply("LOCK.RELEASE k a"), Int(0));
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000");
}

#[test]
fn extension_moves_the_deadline_forward_and_never_back() {
    let (_server, mut cli) = server_and_cli();
    let fence = cli.ask::<i64>("LOCK.ACQUIRE k a 20000");
    let before = cli.now_ms();
    assert_eq!(cli.reply("LOCK.EXTEND k a 40000"), Int(fence), "the lock is the same");
    let after = cli.now_ms();
    let expires_at = cli.expires_at_ms("k");
    assert!(
        (before + 40_000..=after + 40_000).contains(&expires_at),
        "{before} {expires_at} {after}"
    );

    assert_eq!(cli.reply("LOCK.EXTEND k a 1"), Int(fence));
    assert_eq!(cli.expires_at_ms("k"), expires_at);
}

#[test]
fn extension_needs_the_token_and_a_lock() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 30000");
    let expires_at = cli.expires_at_ms("k");
    assert_eq!(cli.reply("LOCK.EXTEND k b 60000"), Nil);
    assert_eq!(cli.expires_at_ms("k"), expires_at);
    assert_eq!(cli.reply("LOCK.EXTEND free a 60000"), Nil);
    assert_eq!(cli.reply("EXISTS free"), Int(0));
}

#[test]
fn inspect_shows_everything_but_the_token() {
    let server = server();
    let (mut resp2, mut resp3) = (RedisCli::new(&server), RedisCli::resp3(&server));
    assert_eq!(resp2.reply("LOCK.INSPECT k"), Nil);
    assert_eq!(resp3.reply("LOCK.INSPECT k"), Nil);

    let fence = resp2.ask::<i64>("LOCK.ACQUIRE k a 60000 OWNER worker-7");
    let Map(lock) = resp3.reply("LOCK.INSPECT k") else { panic!("a map in RESP3") };
    let names: Vec<_> = lock.iter().map(|(name, _)| name.clone()).collect();
    let fields =
        ["owner", "fence", "ttl", "held", "mode", "holders", "waiters", "queue", "clients", "keys"];
    assert_eq!(
        names,
        [&fields[..], &["revoked"]].concat().into_iter().map(text).collect::<Vec<_>>()
    );
    let [(_, owner), (_, shown), (_, Int(ttl)), (_, Int(held)), rest @ ..] = &lock[..] else {
        panic!("{lock:?}")
    };
    assert_eq!((owner, shown), (&text("worker-7"), &Int(fence)));
    assert!((1..=60_000).contains(ttl) && (0..5000).contains(held));
    let rest: Vec<_> = rest.iter().map(|(_, value)| value.clone()).collect();
    let none = Array(Vec::new());
    assert_eq!(rest, [text("exclusive"), Int(1), Int(0), none.clone(), none, Int(1), Int(0)]);

    let Array(flat) = resp2.reply("LOCK.INSPECT k") else { panic!("an array in RESP2") };
    assert_eq!(flat.len(), 22, "{flat:?}");
    let same_names = flat.iter().step_by(2).eq(lock.iter().map(|(name, _)| name));
    assert!(same_names && flat[1] == text("worker-7") && flat[3] == Int(fence), "{flat:?}");
}

#[test]
fn inspect_names_the_first_ten_waiters_in_order() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000");
    let mut waiters = Vec::new();
    for index in 0..12 {
        let mut waiter = RedisCli::new(&server);
        waiter.reply(&format!("CLIENT SETNAME app-{index}"));
        let label = if index == 1 { String::new() } else { format!(" OWNER worker-{index}") };
        waiter.send(&format!("LOCK.ACQUIRE k w{index} 60000 WAIT 60000{label}"));
        waiters.push(waiter);
        eventually(PATIENCE, "the client waits", || {
            cli.ask::<HashMap<String, Value>>("LOCK.INSPECT k")["waiters"] == Int(index + 1)
        });
    }
    let Map(shown) = RedisCli::resp3(&server).reply("LOCK.INSPECT k") else {
        panic!("a map in RESP3")
    };
    let field = |name| shown.iter().find(|(field, _)| *field == text(name)).unwrap().1.clone();
    let owners =
        (0..10).map(|index| if index == 1 { Nil } else { text(&format!("worker-{index}")) });
    assert_eq!(field("queue"), Array(owners.collect()));
    let client = |index| {
        Map(vec![
            (text("client"), text(&format!("app-{index}"))),
            (text("user"), text("default")),
            (text("address"), text("unix")),
        ])
    };
    assert_eq!(field("clients"), Array((0..10).map(client).collect()));
    drop(waiters);
    eventually(PATIENCE, "no client waits", || {
        let shown: HashMap<String, Value> = cli.ask("LOCK.INSPECT k");
        shown["waiters"] == Int(0) && shown["queue"] == Array(Vec::new())
    });
}

#[test]
fn inspect_names_the_address_of_a_waiter() {
    let server = Server::with_module().tcp().start().unwrap();
    let (mut cli, mut waiter) = (RedisCli::new(&server), RedisCli::new(&server));
    let address: String = waiter.ask("CLIENT INFO");
    let address =
        address.split(' ').find_map(|field| field.strip_prefix("addr=")).unwrap().to_owned();
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000");
    waiter.send("LOCK.ACQUIRE k b 60000 WAIT 60000");
    eventually(PATIENCE, "the client waits", || {
        let shown: HashMap<String, Value> = cli.ask("LOCK.INSPECT k");
        let clients =
            Vec::<HashMap<String, Value>>::from_redis_value(shown["clients"].clone()).unwrap();
        clients.first().is_some_and(|client| {
            assert_eq!((&client["address"], &client["client"]), (&text(&address), &Nil));
            true
        })
    });
}

#[test]
fn lock_without_a_label_has_no_owner() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000");
    let lock: HashMap<String, Value> = cli.ask("LOCK.INSPECT k");
    assert_eq!(lock["owner"], Nil);
}

#[test]
fn fences_grow_with_every_grant_however_the_last_lock_ended() {
    let (_server, mut cli) = server_and_cli();
    let mut last = 0;
    // The lock with a ttl of 1 ms ends by its deadline. PING ends nothing.
    let ends = [(60_000, "LOCK.RELEASE k a"), (60_000, "DEL k"), (60_000, "FLUSHALL"), (1, "PING")];
    for (ttl_ms, end) in ends.iter().cycle().take(20) {
        let fence = cli.ask::<i64>(&format!("LOCK.ACQUIRE k a {ttl_ms}"));
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        cli.reply(end);
        eventually(PATIENCE, "the lock has ended", || cli.reply("LOCK.INSPECT k") == Nil);
    }
}

#[test]
fn proposed_fence_is_taken() {
    let (_server, mut cli) = server_and_cli();
    // The first fence lies lock.max-clock-skew ahead of the clock already, so the server accepts a
    // larger one only after the clock has advanced.
    let proposed = cli.ask::<i64>("LOCK.ACQUIRE k a 60000") + 20_000;
    cli.ask::<i64>("LOCK.RELEASE k a");
    eventually(PATIENCE, "the proposal is accepted", || {
        let fence: i64 = cli.ask(&format!("LOCK.ACQUIRE k a 60000 FENCE {proposed}"));
        assert_eq!(cli.fence("k"), Some(fence));
        cli.ask::<i64>("LOCK.RELEASE k a");
        fence == proposed
    });
    assert!(cli.ask::<i64>("LOCK.ACQUIRE k a 60000") > proposed);
}

#[test]
fn proposal_below_the_last_fence_is_not_taken() {
    let (_server, mut cli) = server_and_cli();
    let mut last = cli.ask::<i64>("LOCK.ACQUIRE k a 60000");
    for proposed in [0, 1, last - 1, last] {
        cli.ask::<i64>("LOCK.RELEASE k a");
        let fence = cli.ask::<i64>(&format!("LOCK.ACQUIRE k a 60000 FENCE {proposed}"));
        assert!(fence > last && fence != proposed, "{proposed}: {fence} after {last}");
        last = fence;
    }
}

#[test]
fn extend_raises_the_fence_of_the_lock_and_of_later_locks() {
    let (_server, mut cli) = server_and_cli();
    let raised = cli.ask::<i64>("LOCK.ACQUIRE k a 60000") + 20_000;
    eventually(PATIENCE, "the clock is near enough to the fence", || {
        let answer =
            command(&format!("LOCK.EXTEND k a 60000 FENCE {raised}")).query::<i64>(&mut cli.0);
        answer.is_ok_and(|fence| fence == raised)
    });
    assert_eq!(cli.fence("k"), Some(raised));
    assert_eq!(
        cli.reply(&format!("LOCK.EXTEND k a 60000 FENCE {raised}")),
        Int(raised),
        "the EXTEND may be repeated"
    );
    assert_eq!(
        cli.reply(&format!("LOCK.EXTEND k b 60000 FENCE {raised}")),
        Nil,
        "only the holder can raise the fence"
    );
    cli.ask::<i64>("LOCK.RELEASE k a");
    assert!(cli.ask::<i64>("LOCK.ACQUIRE k a 60000") > raised);
}

#[test]
fn fence_never_goes_down_nor_far_ahead_of_the_clock() {
    let (_server, mut cli) = server_and_cli();
    let fence = cli.ask::<i64>("LOCK.ACQUIRE k a 30000");
    let expires_at = cli.expires_at_ms("k");
    assert_eq!(
        cli.error(&format!("LOCK.EXTEND k a 60000 FENCE {}", fence - 1)),
        format!("BADFENCE FENCE is below the lock's fence {fence}: propose {fence} or more")
    );
    let error = cli.error("LOCK.EXTEND k a 60000 FENCE 9007199254740991");
    let largest = error.strip_prefix(
        "BADFENCE FENCE is more than lock.max-clock-skew ahead of this server's clock: the largest fence that it accepts now is ",
    );
    let largest: i64 = largest.and_then(|largest| largest.parse().ok()).expect(&error);
    assert!(largest <= (cli.now_ms() + 60_001) * 1000, "{largest}");
    assert_eq!(
        (cli.fence("k"), cli.expires_at_ms("k")),
        (Some(fence), expires_at),
        "nothing was changed"
    );
}

#[test]
fn new_token_alone_holds_the_lock() {
    let (_server, mut cli) = server_and_cli();
    let first = cli.ask::<i64>("LOCK.ACQUIRE k a 60000");
    let expires_at = cli.expires_at_ms("k");
    assert_eq!(
        cli.reply("LOCK.EXTEND k x 1000 TOKEN b"),
        Nil,
        "only the holder can replace the token"
    );
    let second = cli.ask::<i64>("LOCK.EXTEND k a 1000 TOKEN b");
    assert!(second > first);
    assert_eq!(cli.reply("GET k"), text("b"));
    // The expiry is computed again from the deadline, which is on a clock with another rate.
    assert!(cli.expires_at_ms("k") >= expires_at - 1, "the deadline did not move back");

    assert_eq!(cli.reply("LOCK.EXTEND k a 60000"), Nil);
    assert_eq!(
        cli.reply("LOCK.EXTEND k a 60000 TOKEN c"),
        Nil,
        "of two clients that replace the token, one succeeds"
    );
    assert_eq!(cli.reply("LOCK.RELEASE k a"), Int(0));
    assert_eq!(cli.reply("LOCK.EXTEND k b 60000"), Int(second));
    assert_eq!(cli.reply("LOCK.RELEASE k b"), Int(1));
}

#[test]
fn options_are_accepted_in_any_order_and_case() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("lock.acquire k a 60000 fence 7 owner me");
    let lock: HashMap<String, Value> = cli.ask("Lock.Inspect k");
    assert_eq!(lock["owner"], text("me"));
    cli.ask::<i64>("LOCK.EXTEND k a 60000 Token b");
    assert_eq!(cli.reply("LOCK.RELEASE k b"), Int(1));
}

#[test]
fn each_database_has_its_own_locks() {
    let server = server();
    let (mut zero, mut one) = (RedisCli::new(&server), RedisCli::new(&server));
    one.reply("SELECT 1");
    zero.ask::<i64>("LOCK.ACQUIRE k a 60000");
    assert_eq!(one.reply("LOCK.INSPECT k"), Nil);
    one.ask::<i64>("LOCK.ACQUIRE k b 60000");
    assert_eq!(one.reply("LOCK.RELEASE k a"), Int(0));
    assert_eq!(one.reply("LOCK.RELEASE k b"), Int(1));
    assert_eq!(zero.reply("GET k"), text("a"));
    assert_eq!(zero.reply("LOCK.RELEASE k a"), Int(1));
}

#[test]
fn acquire_extend_release_and_inspect_work_in_a_transaction() {
    let (_server, mut cli) = server_and_cli();
    let replies = cli.transaction(&[
        "LOCK.ACQUIRE k a 60000",
        "LOCK.ACQUIRE k b 60000",
        "LOCK.EXTEND k b 60000",
        "LOCK.RELEASE k b",
        "GET k",
        "LOCK.RELEASE k a",
        "LOCK.INSPECT k",
    ]);
    assert!(matches!(replies[0], Int(1..)), "{replies:?}");
    assert_eq!(replies[1..], [Nil, Nil, Int(0), text("a"), Int(1), Nil]);
}

#[test]
fn acquire_extend_release_and_inspect_work_in_a_script() {
    let (_server, mut cli) = server_and_cli();
    let script = "
        local fence = redis.call('LOCK.ACQUIRE', KEYS[1], 'a', 60000, 'OWNER', 'me')
        local refused = redis.call('LOCK.ACQUIRE', KEYS[1], 'b', 60000)
        local extended = redis.call('LOCK.EXTEND', KEYS[1], 'a', 60000)
        local shown = redis.call('LOCK.INSPECT', KEYS[1])
        return {fence == extended, refused == false, fence, shown[4], redis.call('LOCK.RELEASE', KEYS[1], 'a')}";
    let Array(replies) = cli.run(command("EVAL").arg(script).arg(1).arg("k")) else {
        panic!("an array")
    };
    let [extended, refused, Int(fence), shown, released] = &replies[..] else {
        panic!("{replies:?}")
    };
    assert_eq!([extended, refused, shown, released], [&Int(1), &Int(1), &Int(*fence), &Int(1)]);
    assert_eq!(cli.reply("EXISTS k"), Int(0));

    let refused = "return redis.pcall('LOCK.ACQUIRE', KEYS[1], 'a', 0)";
    assert_eq!(
        cli.error_of(command("EVAL").arg(refused).arg(1).arg("k")),
        "ERR ttl must be between 1 and 60000 milliseconds (lock.max-ttl)"
    );
}
