//! Tickets and `LOCK.YIELD` on a real server: which client comes first, and who gives way to whom.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::thread;
use std::time::Duration;

use common::{PATIENCE, RedisCli, Waiter, append_only, appended, info, server_and_cli};
use quorlock_testkit::{Server, eventually};
use redis::Value::{Int, Nil};

/// A server on which `a` holds `k` with the ticket that is returned.
fn held() -> (Server, RedisCli, i64) {
    let (server, mut cli) = server_and_cli();
    let ticket = now_us(&mut cli);
    cli.ask::<i64>(&format!("LOCK.ACQUIRE k a 60000 FENCE {ticket}"));
    (server, cli, ticket)
}

fn now_us(cli: &mut RedisCli) -> i64 {
    cli.now_ms() * 1000
}

#[test]
fn smallest_ticket_is_served_first() {
    let (server, mut cli, ticket) = held();
    let wait = |token: &str, ticket: i64| {
        let line = format!("LOCK.ACQUIRE k {token} 60000 WAIT 60000 FENCE {ticket} OWNER {token}");
        Waiter::new(&server, &line)
    };
    let (third, second, first) =
        (wait("c", ticket + 3), wait("b", ticket + 2), wait("z", ticket + 1));
    let inspected = cli.reply("LOCK.INSPECT k");
    let shown = format!("{inspected:?}");
    let at = ["z", "b", "c"].map(|owner| shown.find(&format!("\"{owner}\"")).unwrap());
    assert!(at.is_sorted(), "INSPECT shows them in this order: {shown}");
    for (token, next) in [("a", first), ("z", second), ("b", third)] {
        assert_eq!(cli.reply(&format!("LOCK.RELEASE k {token}")), Int(1));
        next.wait_for_grant();
    }
}

#[test]
fn refusal_is_an_error_that_tells_which_client_is_older() {
    let (server, mut cli, ticket) = held();
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
fn repeated_request_of_a_holder_is_granted_and_extends_the_lock() {
    let (_server, mut cli, ticket) = held();
    let fence = cli.fence("k").unwrap();
    let before = cli.expires_at_ms("k");
    assert_eq!(cli.reply(&format!("LOCK.ACQUIRE k a 1 FENCE {ticket}")), Int(fence));
    assert_eq!(cli.expires_at_ms("k"), before, "a late request shortens no lock");
    eventually(PATIENCE, "the repeated request moves the deadline", || {
        let line = format!("LOCK.ACQUIRE k a 60000 WAIT 5000 FENCE {}", ticket + 5);
        assert_eq!(cli.ask::<(i64, i64)>(&line), (fence, 0));
        cli.expires_at_ms("k") > before
    });
    cli.reply("LOCK.REVOKE k");
    let error = cli.error(&format!("LOCK.ACQUIRE k a 60000 FENCE {ticket}"));
    assert!(error.starts_with("REVOKED "), "{error}");
}

#[test]
fn front_of_the_queue_precedes_every_ticket() {
    let (server, mut cli, _) = held();
    let older = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000 FENCE 1");
    let front = Waiter::new(&server, "LOCK.ACQUIRE k repair 60000 WAIT 60000 FENCE 0");
    assert_eq!(cli.reply("LOCK.YIELD k a"), Int(1));
    front.wait_for_grant();
    assert_eq!(cli.reply("LOCK.YIELD k repair"), Int(0), "no client is older");
    assert!(older.waits());
    assert_eq!(cli.reply("LOCK.RELEASE k repair"), Int(1));
    older.wait_for_grant();
}

#[test]
fn yield_hands_the_lock_to_an_older_waiter_in_the_same_step() {
    let (server, mut cli, ticket) = held();
    assert_eq!(cli.reply("LOCK.YIELD k b"), Nil);
    assert_eq!(cli.reply("LOCK.YIELD k a"), Int(0));
    let line = |token, ticket| format!("LOCK.ACQUIRE k {token} 60000 WAIT 60000 FENCE {ticket}");
    let younger = Waiter::new(&server, &line("y", ticket + 1));
    assert_eq!(cli.reply("LOCK.YIELD k a"), Int(0));
    let older = Waiter::new(&server, &line("o", ticket - 1));
    let replies = cli.transaction(&["LOCK.YIELD k y", "LOCK.YIELD k a", "GET k", "LOCK.YIELD k a"]);
    assert_eq!(replies[..2], [Nil, Int(1)]);
    assert_eq!(replies[3], Nil);
    assert_eq!(cli.ask::<String>("GET k"), "o");
    older.wait_for_grant();
    assert!(younger.waits());
    assert_eq!(info(&server, "lock_handovers"), 1);
}

#[test]
fn lock_of_several_keys_is_yielded_on_all_of_them() {
    let (server, mut cli) = server_and_cli();
    let ticket = now_us(&mut cli);
    cli.ask::<i64>(&format!("LOCK.MACQUIRE 2 k l a 60000 FENCE {ticket}"));
    assert_eq!(cli.reply("LOCK.MYIELD 2 k l a"), Int(0));
    let line = format!("LOCK.ACQUIRE l b 60000 WAIT 60000 FENCE {}", ticket - 1);
    let older = Waiter::new(&server, &line);
    assert_eq!(cli.reply("LOCK.MYIELD 2 k l a"), Int(1));
    older.wait_for_grant();
    assert_eq!(cli.reply("GET k"), Nil);
    assert_eq!(cli.reply("LOCK.MYIELD 2 k l a"), Nil);
}

#[test]
fn readers_yield_to_a_writer() {
    let (server, mut cli) = server_and_cli();
    let ticket = now_us(&mut cli);
    for reader in ["a", "b"] {
        cli.ask::<i64>(&format!("LOCK.ACQUIRE k {reader} 60000 SHARED FENCE {ticket}"));
    }
    let line = format!("LOCK.ACQUIRE k w 60000 WAIT 60000 FENCE {}", ticket - 1);
    let writer = Waiter::new(&server, &line);
    assert_eq!(cli.reply("LOCK.YIELD k a"), Int(1));
    let error = cli.error(&format!("LOCK.ACQUIRE k a 60000 SHARED FENCE {ticket}"));
    assert!(error.starts_with("HELD "), "the key is reserved for the writer: {error}");
    assert!(writer.waits());
    assert_eq!(cli.reply("LOCK.YIELD k b"), Int(1));
    writer.wait_for_grant();
}

#[test]
fn handover_of_a_yielded_lock_is_appended_as_one_set() {
    let server = append_only().start().unwrap();
    let mut cli = RedisCli::new(&server);
    let ticket = now_us(&mut cli);
    cli.ask::<i64>(&format!("LOCK.ACQUIRE k a 60000 FENCE {ticket}"));
    let older = Waiter::new(&server, "LOCK.ACQUIRE k b 60000 WAIT 60000 FENCE 1");
    assert_eq!(cli.reply("LOCK.YIELD k a"), Int(1));
    older.wait_for_grant();
    let written = || {
        let on_key = |command: &Vec<String>| command.get(1).is_some_and(|key| key == "k");
        let commands = appended(&server).into_iter().filter(on_key);
        commands
            .map(|words| format!("{} {}", words[0].to_lowercase(), words[2]))
            .collect::<Vec<_>>()
    };
    eventually(PATIENCE, "the commands are in the file", || written() == ["set a", "set b"]);
}

#[test]
fn keys_are_kept_for_a_client_that_waits_for_several() {
    let (server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE l a 60000");
    let several = Waiter::new(&server, "LOCK.MACQUIRE 2 k l b 60000 WAIT 60000");
    eventually(PATIENCE, "newcomers are refused the free key", || {
        let granted = cli.reply("LOCK.ACQUIRE k c 60000") != Nil;
        if granted {
            assert_eq!(cli.reply("LOCK.RELEASE k c"), Int(1));
            thread::sleep(Duration::from_millis(5));
        }
        !granted
    });
    assert_eq!(cli.reply("GET k"), Nil);
    let younger = Waiter::new(&server, "LOCK.ACQUIRE k c 60000 WAIT 60000");
    assert_eq!(cli.reply("LOCK.RELEASE l a"), Int(1));
    several.wait_for_grant();
    assert!(younger.waits());
    assert_eq!(cli.reply("LOCK.MRELEASE 2 k l b"), Int(1));
    younger.wait_for_grant();
}
