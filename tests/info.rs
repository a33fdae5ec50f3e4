//! The fields of `INFO lock`, which the documentation lists.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{PATIENCE, RedisCli, command, server_and_cli};
use quorlock_testkit::{Server, eventually};
use redis::Value;

const CONFIGURATION: &str = include_str!("../docs/operations/configuration.md");

/// The fields, without the prefix `lock_`.
fn info(cli: &mut RedisCli) -> BTreeMap<String, String> {
    let text: String = cli.ask("INFO lock");
    let fields = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let fields = fields.map(|line| {
        let (name, value) = line.split_once(':').expect("a name and a value");
        (name.strip_prefix("lock_").expect("the module's prefix").to_owned(), value.to_owned())
    });
    fields.collect()
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
    let mut cli = RedisCli::new(&abstaining);
    let mut fields: BTreeSet<_> = info(&mut cli).into_keys().collect();
    cli.reply("CLIENT PAUSE 600000 WRITE");
    fields.extend(info(&mut cli).into_keys());
    assert_eq!(fields, documented());

    let (_voting, mut cli) = server_and_cli();
    let fields = info(&mut cli);
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
    let (_server, mut cli) = server_and_cli();
    assert_eq!(info(&mut cli)["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn section_is_in_info_lock_and_in_info_everything() {
    let (_server, mut cli) = server_and_cli();
    let mut has_it = |line: &str| {
        let info: String = cli.ask(line);
        info.contains("# lock\r\nlock_version:") && info.contains("\r\nlock_state:voting\r\n")
    };
    assert!(has_it("INFO lock") && has_it("INFO everything") && has_it("INFO modules"));
    assert!(!has_it("INFO"), "plain INFO has no sections of modules");
}

#[test]
fn info_shows_the_settings_in_force() {
    let server = Server::with_module()
        .arg("lock.max-ttl", 7000)
        .arg("lock.rejoin-delay", -1)
        .start()
        .unwrap();
    let mut cli = RedisCli::new(&server);
    assert_eq!(info(&mut cli)["max_ttl_ms"], "7000");
    assert_eq!(info(&mut cli)["rejoin_delay_ms"], "7000", "-1 stands for the largest ttl");
    cli.reply("CONFIG SET lock.rejoin-delay 9000");
    assert_eq!(info(&mut cli)["rejoin_delay_ms"], "9000");
}

/// The state, and why the server refuses writes.
fn state(cli: &mut RedisCli) -> (String, Option<String>) {
    let mut fields = info(cli);
    (fields["state"].clone(), fields.remove("unwritable_reason"))
}

#[test]
fn master_that_refuses_writes_does_not_say_that_it_votes() {
    let (server, mut cli) = server_and_cli();
    let unwritable = |reason: &str| ("unwritable".to_owned(), Some(reason.to_owned()));
    for (config, bad, good, reason) in [
        ("maxmemory", "1", "0", "memory-full"),
        ("min-replicas-to-write", "2", "0", "too-few-replicas"),
        // The server accepts the older name as well.
        ("min-slaves-to-write", "1", "0", "too-few-replicas"),
    ] {
        cli.reply(&format!("CONFIG SET {config} {bad}"));
        assert_eq!(state(&mut cli), unwritable(reason));
        cli.error("LOCK.ACQUIRE a t 1000");
        cli.reply(&format!("CONFIG SET {config} {good}"));
        assert_eq!(state(&mut cli).0, "voting");
    }
    cli.reply("CLIENT PAUSE 600000 WRITE");
    assert_eq!(state(&mut cli), unwritable("writes-paused"));
    cli.reply("CLIENT UNPAUSE");
    assert_eq!(state(&mut cli).0, "voting");

    std::fs::create_dir(server.dir().join("dump.rdb")).unwrap();
    cli.reply("BGSAVE");
    eventually(PATIENCE, "the save has failed", || {
        let info: String = cli.ask("INFO persistence");
        info.contains("rdb_last_bgsave_status:err")
    });
    // Without save points, the server accepts writes after a failed save.
    cli.run::<Value>(command("CONFIG SET save").arg(""));
    assert_eq!(state(&mut cli).0, "voting");
    cli.run::<Value>(command("CONFIG SET save").arg("3600 1"));
    assert_eq!(state(&mut cli), unwritable("save-failed"));
    cli.reply("CONFIG SET stop-writes-on-bgsave-error no");
    assert_eq!(state(&mut cli).0, "voting");
}

#[test]
fn abstaining_master_that_refuses_writes_says_so_and_a_replica_abstains() {
    let server = Server::with_module().tcp().arg("lock.rejoin-delay", 60_000).start().unwrap();
    let mut cli = RedisCli::new(&server);
    assert_eq!(state(&mut cli), ("abstaining".into(), None));
    cli.reply("CONFIG SET min-replicas-to-write 1");
    assert_eq!(state(&mut cli).1.as_deref(), Some("too-few-replicas"));
    cli.reply("REPLICAOF 127.0.0.1 1");
    assert_eq!(state(&mut cli), ("abstaining".into(), None));
}
