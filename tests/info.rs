//! The fields of `INFO lock`, which the documentation lists.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{PATIENCE, command, server};
use quorlock_testkit::{Server, eventually};
use redis::{Connection, cmd};

const CONFIGURATION: &str = include_str!("../docs/operations/configuration.md");

/// The fields, without the prefix `lock_`.
fn info(connection: &mut Connection) -> BTreeMap<String, String> {
    let text: String = cmd("INFO").arg("lock").query(connection).expect("it answers");
    let fields = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let fields = fields.map(|line| {
        let (name, value) = line.split_once(':').expect("a name and a value");
        (name.strip_prefix("lock_").expect("the module's prefix").to_owned(), value.to_owned())
    });
    fields.collect()
}

#[track_caller]
fn number(connection: &mut Connection, name: &str) -> u64 {
    info(connection)[name].parse().expect("a number")
}

fn send(connection: &mut Connection, line: &str) {
    let _ = command(line).exec(connection);
}

fn documented() -> BTreeSet<String> {
    let names =
        CONFIGURATION.lines().filter_map(|line| line.strip_prefix("| `lock_")?.split_once('`'));
    names.map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn every_field_is_documented_and_every_documented_field_is_there() {
    let abstaining =
        Server::with_module().arg("lock.rejoin-delay", -1).arg("lock.set", "eu 1 1,2,3");
    let abstaining = abstaining.start().unwrap();
    let connection = &mut abstaining.connection();
    let mut fields: BTreeSet<_> = info(connection).into_keys().collect();
    send(connection, "CLIENT PAUSE 600000 WRITE");
    fields.extend(info(connection).into_keys());
    assert_eq!(fields, documented());

    let voting = server();
    let fields = info(&mut voting.connection());
    let sometimes: Vec<_> =
        documented().into_iter().filter(|name| !fields.contains_key(name)).collect();
    assert_eq!(
        sometimes,
        [
            "abstain_left_ms",
            "abstain_reason",
            "set_id",
            "set_members",
            "set_name",
            "unwritable_reason"
        ]
    );
}

#[test]
fn version_is_that_of_the_package() {
    let server = server();
    assert_eq!(info(&mut server.connection())["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn section_is_in_info_lock_and_in_info_everything() {
    let server = server();
    let connection = &mut server.connection();
    let mut has_it = |section: &[&str]| {
        let info: String = cmd("INFO").arg(section).query(connection).expect("it answers");
        info.contains("# lock\r\nlock_version:") && info.contains("\r\nlock_state:voting\r\n")
    };
    assert!(has_it(&["lock"]) && has_it(&["everything"]) && has_it(&["modules"]));
    assert!(!has_it(&[]), "plain INFO has no sections of modules");
}

#[test]
fn info_shows_the_settings_in_force() {
    let server = Server::with_module()
        .arg("lock.max-ttl", 7000)
        .arg("lock.rejoin-delay", -1)
        .start()
        .unwrap();
    let connection = &mut server.connection();
    assert_eq!(number(connection, "max_ttl_ms"), 7000);
    assert_eq!(number(connection, "rejoin_delay_ms"), 7000, "-1 stands for the largest ttl");
    send(connection, "CONFIG SET lock.rejoin-delay 9000");
    assert_eq!(number(connection, "rejoin_delay_ms"), 9000);
}

/// The state, and why the server refuses writes.
fn state(connection: &mut Connection) -> (String, Option<String>) {
    let mut fields = info(connection);
    (fields["state"].clone(), fields.remove("unwritable_reason"))
}

#[test]
fn master_that_refuses_writes_does_not_say_that_it_votes() {
    let server = server();
    let connection = &mut server.connection();
    let unwritable = |reason: &str| ("unwritable".to_owned(), Some(reason.to_owned()));
    for (config, bad, good, reason) in [
        ("maxmemory", "1", "0", "memory-full"),
        ("min-replicas-to-write", "2", "0", "too-few-replicas"),
        // The server accepts the older name as well.
        ("min-slaves-to-write", "1", "0", "too-few-replicas"),
    ] {
        send(connection, &format!("CONFIG SET {config} {bad}"));
        assert_eq!(state(connection), unwritable(reason));
        let refused = command("LOCK.ACQUIRE a t 1000").exec(connection);
        assert!(refused.is_err(), "{config} {bad}");
        send(connection, &format!("CONFIG SET {config} {good}"));
        assert_eq!(state(connection).0, "voting");
    }
    send(connection, "CLIENT PAUSE 600000 WRITE");
    assert_eq!(state(connection), unwritable("writes-paused"));
    send(connection, "CLIENT UNPAUSE");
    assert_eq!(state(connection).0, "voting");

    std::fs::create_dir(server.dir().join("dump.rdb")).unwrap();
    send(connection, "BGSAVE");
    eventually(PATIENCE, "the save has failed", || {
        let info: String = cmd("INFO").arg("persistence").query(connection).unwrap();
        info.contains("rdb_last_bgsave_status:err")
    });
    // Without save points, the server accepts writes after a failed save.
    send(connection, "CONFIG SET save \"\"");
    assert_eq!(state(connection).0, "voting");
    cmd("CONFIG").arg(&["SET", "save", "3600 1"]).exec(connection).unwrap();
    assert_eq!(state(connection), unwritable("save-failed"));
    send(connection, "CONFIG SET stop-writes-on-bgsave-error no");
    assert_eq!(state(connection).0, "voting");
}

#[test]
fn abstaining_master_that_refuses_writes_says_so_and_a_replica_abstains() {
    let server = Server::with_module().tcp().arg("lock.rejoin-delay", 60_000).start().unwrap();
    let connection = &mut server.connection();
    assert_eq!(state(connection), ("abstaining".into(), None));
    send(connection, "CONFIG SET min-replicas-to-write 1");
    assert_eq!(state(connection).1.as_deref(), Some("too-few-replicas"));
    send(connection, "REPLICAOF 127.0.0.1 1");
    assert_eq!(state(connection), ("abstaining".into(), None));
}
