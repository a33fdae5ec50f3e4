//! The effects of the commands, as a user of redis-cli sees them.

use std::collections::HashMap;

use crate::common::{PATIENCE, RedisCli, Waiter, command, server, server_and_cli};
use quorlock_testkit::{Server, eventually};
use redis::FromRedisValue as _;
use redis::Value::{self, Array, BulkString, Int, Map, Nil};

fn text(text: &str) -> Value {
    BulkString(text.into())
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
fn options_are_accepted_in_any_order_and_case() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("lock.acquire k a 60000 fence 7 owner me");
    let lock: HashMap<String, Value> = cli.ask("Lock.Inspect k");
    assert_eq!(lock["owner"], text("me"));
    cli.ask::<i64>("LOCK.EXTEND k a 60000 Token b");
    assert_eq!(cli.reply("LOCK.RELEASE k b"), Int(1));
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

#[test]
fn refusal_is_an_error_that_tells_which_client_is_older() {
    let (server, mut cli) = server_and_cli();
    let ticket = cli.now_ms() * 1000;
    cli.ask::<i64>(&format!("LOCK.ACQUIRE k a 60000 FENCE {ticket}"));
    let fence = cli.fence("k").unwrap();
    let error = cli.error(&format!("LOCK.ACQUIRE k b 60000 FENCE {}", ticket + 1));
    assert!(error.starts_with(&format!("HELD {fence} older: ")), "{error}");
    let error = cli.error(&format!("LOCK.ACQUIRE k b 60000 FENCE {}", ticket - 1));
    assert!(error.starts_with(&format!("HELD {fence} younger: ")), "{error}");
    // At the end of a wait, and after a wait that another command ends.
    let late = Waiter::briefly(&server, &format!("LOCK.ACQUIRE k b 1 WAIT 1 FENCE {}", ticket + 1));
    assert!(late.error().starts_with(&format!("HELD {fence} older: ")));
    let left = Waiter::new(&server, "LOCK.ACQUIRE k b 1 WAIT 60000 FENCE 1");
    assert_eq!(cli.reply("LOCK.RELEASE k b"), Int(0));
    assert_eq!(left.answer(), Nil);
    // Without a ticket nothing has changed.
    assert_eq!(cli.reply("LOCK.ACQUIRE k b 60000"), Nil);
    assert_eq!(cli.reply("LOCK.ACQUIRE k a 60000"), Nil);
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
    // On a busy machine, one turn does not delete all keys.
    eventually(PATIENCE, "the keys are deleted", || cli.reply("EXISTS k0 k40 k63") == Int(0));
}

#[test]
fn too_many_keys_a_full_queue_full_memory_and_abstention_are_errors() {
    let (_server, mut cli) = server_and_cli();
    let keys: Vec<_> = (0..64).map(|n| format!("k{n}")).collect();
    let all = keys.join(" ");
    for key in &keys {
        assert_eq!(cli.ask::<(i64, String)>(&format!("LOCK.ACQUIREANY 64 {all} t 60000")).1, *key);
    }
    assert_eq!(cli.reply(&format!("LOCK.ACQUIREANY 64 {all} t 60000")), Nil);
    assert!(
        cli.error(&format!("LOCK.ACQUIREANY 65 {all} l t 60000"))
            .starts_with("ERR numkeys must be")
    );
    cli.reply("CONFIG SET lock.max-waiters 0");
    assert!(
        cli.error(&format!("LOCK.ACQUIREANY 64 {all} t 60000 WAIT 1000")).starts_with("QUEUEFULL ")
    );
    cli.reply("CONFIG SET maxmemory 1");
    assert!(cli.error("LOCK.ACQUIREANY 1 free t 60000").starts_with("OOM "));
    let abstaining = Server::with_module().arg("lock.rejoin-delay", -1).start().unwrap();
    assert!(
        RedisCli::new(&abstaining).error("LOCK.ACQUIREANY 1 a t 60000").starts_with("ABSTAIN ")
    );
}

#[test]
fn locks_are_revoked_when_memory_is_short() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000");
    cli.reply("CONFIG SET maxmemory 1");
    assert_eq!(cli.reply("LOCK.REVOKE k"), Int(1));
    assert!(cli.error("LOCK.EXTEND k a 60000").starts_with("REVOKED "));
}

#[test]
fn each_revocation_writes_a_different_value() {
    let (_server, mut cli) = server_and_cli();
    let mut values = std::collections::BTreeSet::new();
    for index in 0..20 {
        cli.ask::<i64>(&format!("LOCK.ACQUIRE k{index} a 60000"));
        cli.reply(&format!("LOCK.REVOKE k{index}"));
        values.insert(cli.ask::<String>(&format!("GET k{index}")));
    }
    assert_eq!(values.len(), 20);
}
