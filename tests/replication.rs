//! A master propagates every lock to its replicas, whatever happened to the master before.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::common::{RedisCli, is_replica_of, replicate, replication_field};
use quorlock_testkit::{Server, eventually};
use redis::Value::{Int, Nil};

/// How long a promoted replica abstains. A lock with this ttl outlasts the checks of a test.
const MAX_TTL_MS: u64 = 4000;

/// Longer than an abstention, and than a replica needs to reconnect.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that can be a master and a replica, without persistence.
fn node() -> Server {
    let builder = Server::with_module()
        .tcp()
        .arg("lock.max-ttl", MAX_TTL_MS)
        .arg("repl-diskless-sync-delay", 0)
        .arg("repl-backlog-size", "1mb");
    builder.start().unwrap()
}

/// Returns when the replica has received every write of this connection.
#[track_caller]
fn await_replica(master: &mut RedisCli) {
    // This write gives WAIT something to wait for.
    master.reply("SET written-last x");
    assert_eq!(master.reply("WAIT 1 4000"), Int(1));
}

fn votes(cli: &mut RedisCli) -> bool {
    cli.ask::<String>("INFO lock").contains("lock_state:voting")
}

/// Checks that every change of a lock on `master` arrives at `replica`, which follows it.
#[track_caller]
fn assert_propagates(master: &mut RedisCli, replica: &mut RedisCli) {
    // Two foreign strings: one to release, one to adopt.
    for key in ["inherited", "adopted"] {
        master.reply(&format!("SET {key} a PX 600000"));
    }
    await_replica(master);
    assert_eq!(master.reply("LOCK.RELEASE inherited a"), Int(1));
    assert_ne!(master.reply(&format!("LOCK.EXTEND adopted a {MAX_TTL_MS}")), Nil);
    let expires_at = master.expires_at_ms("adopted");
    await_replica(master);
    assert_eq!(replica.reply("EXISTS inherited"), Int(0), "the release arrives");
    assert_eq!(replica.expires_at_ms("adopted"), expires_at, "the extension arrives");

    eventually(PATIENCE, "the master votes", || votes(master));
    for line in ["LOCK.ACQUIRE one a 4000", "LOCK.MACQUIRE 2 two three a 4000"] {
        assert_ne!(master.reply(line), Nil, "{line}");
    }
    await_replica(master);
    for key in ["one", "two", "three"] {
        assert_eq!(
            replica.ask::<Option<String>>(&format!("GET {key}")).as_deref(),
            Some("a"),
            "{key}"
        );
    }
}

#[test]
fn promoted_replica_propagates_locks_to_its_former_master() {
    let (former, promoted) = (node(), node());
    let (mut on_former, mut on_promoted) = (RedisCli::new(&former), RedisCli::new(&promoted));
    replicate(&mut on_promoted, &former);
    on_former.reply("FAILOVER");
    eventually(PATIENCE, "the roles are exchanged", || {
        replication_field(&mut on_promoted, "role") == "master"
            && is_replica_of(&mut on_former, &promoted)
    });
    let syncs: String = on_promoted.ask("INFO stats");
    assert!(syncs.contains("sync_full:0"), "the former master resynchronises partially");
    assert_propagates(&mut on_promoted, &mut on_former);
}

#[test]
fn locks_granted_during_a_full_synchronisation_arrive() {
    let (master, replica) = (node(), node());
    let (mut on_master, mut on_replica) = (RedisCli::new(&master), RedisCli::new(&replica));
    on_replica.reply(&format!("REPLICAOF {} {}", Ipv4Addr::LOCALHOST, master.port()));
    let mut keys = 0;
    eventually(PATIENCE, "the replica follows the master", || {
        assert_ne!(on_master.reply(&format!("LOCK.ACQUIRE k{keys} a 4000")), Nil);
        keys += 1;
        is_replica_of(&mut on_replica, &master)
    });
    await_replica(&mut on_master);
    // The last ten locks are so young that none has ended.
    for key in keys.max(10) - 10..keys {
        assert_eq!(
            on_replica.ask::<Option<String>>(&format!("GET k{key}")).as_deref(),
            Some("a"),
            "k{key}"
        );
    }
}
