//! The effects of the commands, as a user of redis-cli sees them.

use std::collections::HashMap;

use crate::common::{PATIENCE, RedisCli, command, info, server, server_and_cli};
use quorlock_testkit::{Server, eventually};
use redis::Value::{self, Array, BulkString, Int, Map, Nil};

type Lock = HashMap<String, Value>;

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
    let server = Server::with_module().tcp().start().unwrap();
    let mut cli = RedisCli::new(&server);
    cli.ask::<i64>("LOCK.ACQUIRE k a 60000");
    let (mut waiters, mut addresses) = (Vec::new(), Vec::new());
    for index in 0..12 {
        let mut waiter = RedisCli::new(&server);
        let client: String = waiter.ask("CLIENT INFO");
        let address = client.split(' ').find_map(|field| field.strip_prefix("addr=")).unwrap();
        addresses.push(text(address));
        let mut label = String::new();
        if index != 1 {
            waiter.reply(&format!("CLIENT SETNAME app-{index}"));
            label = format!(" OWNER worker-{index}");
        }
        waiter.send(&format!("LOCK.ACQUIRE k w{index} 60000 WAIT 60000{label}"));
        waiters.push(waiter);
        eventually(PATIENCE, "the client waits", || {
            cli.ask::<Lock>("LOCK.INSPECT k")["waiters"] == Int(index + 1)
        });
    }
    let Map(shown) = RedisCli::resp3(&server).reply("LOCK.INSPECT k") else {
        panic!("a map in RESP3")
    };
    let field = |name| shown.iter().find(|(field, _)| *field == text(name)).unwrap().1.clone();
    let labelled = |kind, index| if index == 1 { Nil } else { text(&format!("{kind}-{index}")) };
    assert_eq!(field("queue"), Array((0..10).map(|index| labelled("worker", index)).collect()));
    let client = |index: usize| {
        Map(vec![
            (text("client"), labelled("app", index)),
            (text("user"), text("default")),
            (text("address"), addresses[index].clone()),
        ])
    };
    assert_eq!(field("clients"), Array((0..10).map(client).collect()));
    drop(waiters);
    eventually(PATIENCE, "no client waits", || {
        let shown: Lock = cli.ask("LOCK.INSPECT k");
        shown["waiters"] == Int(0) && shown["queue"] == Array(Vec::new())
    });
}

#[test]
fn options_are_accepted_in_any_order_and_case() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("lock.acquire k a 60000 fence 7 owner me");
    let lock: Lock = cli.ask("Lock.Inspect k");
    assert_eq!(lock["owner"], text("me"));
    cli.ask::<i64>("LOCK.EXTEND k a 60000 Token b");
    assert_eq!(cli.reply("LOCK.RELEASE k b"), Int(1));
    cli.ask::<i64>("LOCK.ACQUIRE k SHARED 60000 OWNER SHARED");
    let lock: Lock = cli.ask("LOCK.INSPECT k");
    assert_eq!(lock["mode"], text("exclusive"), "a value is no option");
}

#[test]
fn refusal_of_a_ticket_has_the_number_of_the_lock() {
    let (_server, mut cli) = server_and_cli();
    let ticket = cli.now_ms() * 1000;
    cli.ask::<i64>(&format!("LOCK.ACQUIRE k a 60000 FENCE {ticket}"));
    let fence = cli.fence("k").unwrap();
    for (other, is) in [(ticket + 1, "older"), (ticket - 1, "younger")] {
        let error = cli.error(&format!("LOCK.ACQUIRE k b 60000 FENCE {other}"));
        assert!(error.starts_with(&format!("HELD {fence} {is}: ")), "{error}");
    }
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
fn further_reader_costs_at_most_250_bytes() {
    const READERS: u64 = 100_000;
    const BYTES_MAX: u64 = 250;
    let (server, mut cli) = server_and_cli();
    let used =
        |cli: &mut RedisCli| quorlock_testkit::info(&mut cli.0, "memory", "used_memory").unwrap();
    cli.ask::<i64>("LOCK.ACQUIRE k first 60000 SHARED");
    let before = used(&mut cli);
    for first in (0..READERS).step_by(1000) {
        let mut batch = redis::pipe();
        for n in first..first + 1000 {
            batch.add_command(command(&format!("LOCK.ACQUIRE k {n:032x} 60000 SHARED")));
        }
        batch.query::<Vec<i64>>(&mut cli.0).unwrap();
    }
    let bytes = (used(&mut cli) - before) / READERS;
    println!("{bytes} bytes for a further reader");
    assert!(bytes <= BYTES_MAX, "{bytes} bytes");
    assert_eq!(info(&server, "lock_leases"), READERS + 1);
    cli.reply("DEL k");
    eventually(PATIENCE, "the memory is freed", || used(&mut cli) < before + 20 * READERS);
}

#[test]
fn scan_replies_with_maps_in_resp3_and_flat_arrays_in_resp2() {
    let server = server();
    let (mut resp2, mut resp3) = (RedisCli::new(&server), RedisCli::resp3(&server));
    assert_eq!(
        resp2.reply("LOCK.SCAN 0"),
        Array(vec![BulkString(b"0".to_vec()), Array(Vec::new())])
    );
    resp2.ask::<i64>("LOCK.ACQUIRE k a 60000");
    let Array(reply) = resp3.reply("LOCK.SCAN 0") else { panic!("an array") };
    let [BulkString(cursor), Array(locks)] = &reply[..] else { panic!("{reply:?}") };
    assert_eq!(cursor, b"0");
    assert!(matches!(&locks[..], [Map(fields)] if fields.len() == 12), "{locks:?}");
    let Array(reply) = resp2.reply("LOCK.SCAN 0") else { panic!("an array") };
    let [_, Array(locks)] = &reply[..] else { panic!("{reply:?}") };
    assert!(matches!(&locks[..], [Array(fields)] if fields.len() == 24), "{locks:?}");
    assert!(!format!("{reply:?}").contains(&format!("{:?}", text("a"))), "no token: {reply:?}");
}

#[test]
fn held_lock_is_extended_revoked_and_released_at_maxmemory() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE k a 30000");
    cli.ask::<i64>("LOCK.MACQUIRE 2 l m a 30000");
    cli.reply("CONFIG SET maxmemory 1");
    assert!(cli.error("LOCK.ACQUIRE n a 30000").starts_with("OOM "));
    for line in [
        "LOCK.EXTEND k a 60000",
        "LOCK.EXTEND k a 60000 TOKEN b",
        "LOCK.REVOKE k",
        "LOCK.RELEASE k b",
        "LOCK.MEXTEND 2 l m a 60000",
        "LOCK.MRELEASE 2 l m a",
    ] {
        assert!(matches!(cli.reply(line), Int(1..)), "{line}");
    }
}

#[test]
fn exclusive_lease_costs_at_most_220_bytes_beside_its_key() {
    // Nearly a power of two: tables, which grow by doubling, are nearly full.
    const LEASES: u64 = 16_000;
    let (_server, mut cli) = server_and_cli();
    let mut bytes_after = |command_of: fn(u64) -> String| {
        cli.reply("FLUSHALL");
        let mut batch = redis::pipe();
        for n in 0..LEASES {
            batch.add_command(command(&command_of(n)));
        }
        batch.query::<Vec<Value>>(&mut cli.0).unwrap();
        quorlock_testkit::info(&mut cli.0, "memory", "used_memory").unwrap()
    };
    let keys = bytes_after(|n| format!("SET k{n} {n:032x} PX 60000"));
    let leases = bytes_after(|n| format!("LOCK.ACQUIRE k{n} {n:032x} 60000"));
    let bytes = (leases - keys) / LEASES;
    assert!(bytes <= 220, "{bytes} bytes");
}
