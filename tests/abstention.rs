//! A node that may have forgotten locks grants none until they have ended, and reports that.

use std::time::{Duration, Instant};

use crate::common::{PATIENCE, RedisCli, command};
use quorlock_testkit::{Server, ServerBuilder, eventually};
use redis::Value;

/// The abstention in most tests: long enough to send several commands.
const DELAY: Duration = Duration::from_secs(2);
/// Longer than any test takes.
const LONG_MS: u64 = 100_000;

/// A server that abstains for `delay_ms` after its start, because that is its `lock.max-ttl`.
fn abstaining(delay_ms: u64) -> ServerBuilder {
    Server::with_module().arg("lock.max-ttl", delay_ms).arg("lock.rejoin-delay", -1)
}

const ACQUIRE: &str = "LOCK.ACQUIRE k token 1000";

/// The time for which the node reports that it abstains, in milliseconds, and the reason.
#[track_caller]
fn abstention(cli: &mut RedisCli) -> (u64, String) {
    let error = cli.error(ACQUIRE);
    let words = error.strip_prefix("ABSTAIN ").expect("the node abstains");
    let (ms, rest) = words.split_once(' ').expect("a number and words");
    let (reason, sentence) = rest.split_once(": ").expect("a reason and a sentence");
    let for_ms = |why: &str| {
        format!("this node {why}; it grants locks again in {ms} ms; ask the other nodes")
    };
    let expected = match reason {
        "start" => for_ms("started recently"),
        "promotion" => for_ms("was a replica until recently"),
        "swapdb" => for_ms("swapped two databases recently"),
        "replica" => "this node is a replica and grants no locks; ask its master".to_owned(),
        other => panic!("{other}: {sentence}"),
    };
    assert_eq!(sentence, expected);
    (ms.parse().expect("a number"), reason.to_owned())
}

/// Checks that the log reports an abstention for this reason, for 1000 to 2000 ms.
#[track_caller]
fn assert_logs_abstention(server: &Server, reason: &str) {
    let log = server.log();
    let for_ms = log.lines().find_map(|line| {
        let (_, line) = line.split_once("<lock> lock: abstaining for ")?;
        let (ms, rest) = line.split_once(" ms ")?;
        rest.starts_with(&format!("({reason}): ")).then(|| ms.parse::<u64>().expect("a number"))
    });
    assert!(for_ms.is_some_and(|ms| (1000..=2000).contains(&ms)), "{log}");
}

/// Waits until the node votes, and checks that this took at least `delay` since `since`.
#[track_caller]
fn assert_votes_again_after(cli: &mut RedisCli, since: Instant, delay: Duration) {
    let mut acquires = || command(ACQUIRE).query::<Value>(&mut cli.0).is_ok();
    eventually(delay + PATIENCE, "it votes again", &mut acquires);
    assert!(since.elapsed() >= delay, "after {:?}", since.elapsed());
}

/// The lines of `INFO lock` about the abstention, without the number of milliseconds.
fn state(cli: &mut RedisCli) -> Vec<String> {
    let info: String = cli.ask("INFO lock");
    let lines = info
        .lines()
        .filter(|line| line.starts_with("lock_state") || line.starts_with("lock_abstain_"));
    lines.map(|line| line.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned()).collect()
}

#[test]
fn node_abstains_after_its_start_and_logs_begin_and_end() {
    let begun = Instant::now();
    let server = abstaining(2000).start().unwrap();
    let mut cli = RedisCli::new(&server);
    let (first_ms, reason) = abstention(&mut cli);
    assert_eq!(reason, "start");
    assert!(first_ms <= 2000, "{first_ms}");
    eventually(PATIENCE, "the remaining time decreases", || abstention(&mut cli).0 < first_ms);
    assert_eq!(
        state(&mut cli),
        ["lock_state:abstaining", "lock_abstain_reason:start", "lock_abstain_left_ms:"]
    );
    assert_logs_abstention(&server, "start");
    assert!(!server.log().contains("voting again"));

    assert_votes_again_after(&mut cli, begun, DELAY);
    assert!(
        server.log().contains("lock: voting again; the abstention (start) is over"),
        "{}",
        server.log()
    );
    assert_eq!(state(&mut cli), ["lock_state:voting"]);
}

#[test]
fn rejoin_delay_of_zero_votes_at_once_and_logs_a_warning() {
    let server = Server::with_module().start().unwrap();
    RedisCli::new(&server).ask::<i64>(ACQUIRE);
    let log = server.log();
    assert!(log.contains("lock: lock.rejoin-delay is below lock.max-ttl: "), "{log}");
    assert!(!log.contains("abstaining"), "{log}");
    assert!(!abstaining(LONG_MS).start().unwrap().log().contains("is below lock.max-ttl"));
    let shortened = abstaining(LONG_MS).arg("lock.rejoin-delay", LONG_MS / 2).start().unwrap();
    assert!(abstention(&mut RedisCli::new(&shortened)).0 <= LONG_MS / 2);
}

#[test]
fn mistake_in_a_command_is_reported_before_an_abstention() {
    let server = abstaining(LONG_MS).start().unwrap();
    let error = RedisCli::new(&server).error("LOCK.ACQUIRE k token 0");
    assert!(error.contains("ttl must be"), "{error}");
}

#[test]
fn node_abstains_as_a_replica_after_its_promotion_and_after_swapdb() {
    let master = Server::with_module().tcp().start().unwrap();
    // The rejoin delay, here 0, applies to starts and not to promotions.
    let server = Server::with_module()
        .arg("lock.max-ttl", 2000)
        .arg("replica-read-only", "no")
        .start()
        .unwrap();
    let mut cli = RedisCli::new(&server);
    cli.ask::<i64>(ACQUIRE);
    cli.reply(&format!("REPLICAOF 127.0.0.1 {}", master.port()));
    assert_eq!(abstention(&mut cli), (2000, "replica".into()));
    assert_eq!(state(&mut cli), ["lock_state:abstaining", "lock_abstain_reason:replica"]);

    let begun = Instant::now();
    cli.reply("REPLICAOF NO ONE");
    assert_eq!(abstention(&mut cli).1, "promotion");
    assert_logs_abstention(&server, "promotion");
    assert_votes_again_after(&mut cli, begun, DELAY);
    assert!(server.log().contains("lock: voting again; the abstention (promotion) is over"));

    cli.reply("SWAPDB 0 1");
    assert_eq!(abstention(&mut cli).1, "swapdb");
    assert_logs_abstention(&server, "swapdb");
}

#[test]
fn server_that_starts_as_a_replica_abstains_and_leaves_locks_alone() {
    let builder =
        Server::with_module().arg("replicaof", "127.0.0.1 1").arg("replica-read-only", "no");
    let server = builder.start().unwrap();
    let mut cli = RedisCli::new(&server);
    assert_eq!(abstention(&mut cli).1, "replica");
    assert!(
        server.log().contains("lock: abstaining while this server is a replica: "),
        "{}",
        server.log()
    );
    cli.reply("SET k token PX 30000");
    let expires_at_ms = cli.expires_at_ms("k");
    for line in [
        "LOCK.EXTEND k token 60000",
        "LOCK.MEXTEND 1 k token 60000",
        "LOCK.RELEASE k token",
        "LOCK.MRELEASE 1 k token",
        "LOCK.YIELD k token",
        "LOCK.MYIELD 1 k token",
        "LOCK.REVOKE k",
    ] {
        assert!(cli.error(line).starts_with("ABSTAIN 60000 replica: "), "{line}");
    }
    assert_eq!(cli.ask::<String>("GET k"), "token");
    assert_eq!(cli.expires_at_ms("k"), expires_at_ms);
}
