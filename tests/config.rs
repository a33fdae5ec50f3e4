//! The settings `lock.*`, and the errors for wrong ones.

use std::fs;

use crate::common::{PATIENCE, command, log_of_refusal};
use quorlock_testkit::{Server, ServerBuilder, eventually, module_path};
use redis::{Connection, RedisResult, cmd};

const CONFIGURATION: &str = include_str!("../docs/operations/configuration.md");

/// A server with the module, and only the given settings.
fn module_with_defaults() -> ServerBuilder {
    Server::builder().quorlock_module()
}

fn with_arguments(words: &[&str]) -> ServerBuilder {
    words.iter().fold(module_with_defaults(), |builder, word| builder.module_arg(*word))
}

fn get(connection: &mut Connection, name: &str) -> String {
    let [found, value]: [String; 2] =
        cmd("CONFIG").arg("GET").arg(name).query(connection).expect("the config exists");
    assert_eq!(found, name);
    value
}

fn set(connection: &mut Connection, name: &str, value: &str) -> RedisResult<()> {
    cmd("CONFIG").arg("SET").arg(name).arg(value).exec(connection)
}

#[test]
fn documented_defaults_and_limits_are_those_of_the_server() {
    let server = module_with_defaults().start().unwrap();
    let connection = &mut server.connection();
    let mut names = Vec::new();
    for line in CONFIGURATION.lines().filter(|line| line.starts_with("| `lock.")) {
        let cells: Vec<_> =
            line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let [name, default, smallest, largest, settable] = cells[..] else { continue };
        if default == "(empty)" {
            // tests/set.rs tests the values of `lock.set`.
            assert_eq!(get(connection, name), "", "{name}");
            assert_eq!(set(connection, name, "eu 1 1").is_ok(), settable == "yes", "{name}");
            names.push(name.to_owned());
            continue;
        }
        assert_eq!(get(connection, name), default, "{name}");
        let beyond = |limit: &str, by: i64| (limit.parse::<i64>().unwrap() + by).to_string();
        for (value, allowed) in [
            (smallest, true),
            (largest, true),
            (&beyond(smallest, -1), false),
            (&beyond(largest, 1), false),
            ("soon", false),
            ("", false),
            ("1.5", false),
        ] {
            let started = module_with_defaults().arg(name, value).start();
            assert_eq!(started.is_ok(), allowed, "redis.conf: {name} {value}");
            let started = with_arguments(&[name, value]).start();
            assert_eq!(started.is_ok(), allowed, "argument: {name} {value}");
            let is_set = set(connection, name, value).is_ok();
            assert_eq!(is_set, allowed && settable == "yes", "CONFIG SET {name} {value}");
            if is_set {
                assert_eq!(get(connection, name), value);
            }
        }
        names.push(name.to_owned());
    }
    let all: Vec<String> = cmd("CONFIG").arg("GET").arg("lock.*").query(connection).unwrap();
    let mut all: Vec<_> = all.into_iter().step_by(2).collect();
    all.sort();
    names.sort();
    assert_eq!(all, names, "the documentation lists all settings");
}

#[test]
fn redis_conf_overrides_module_arguments() {
    for builder in [
        with_arguments(&["max-ttl", "2000", "rejoin-delay", "7"]),
        with_arguments(&["lock.max-ttl", "2000", "LOCK.REJOIN-DELAY", "7"]),
        with_arguments(&["REJOIN-DELAY", "7", "Max-Ttl", "2000"]),
        module_with_defaults().arg("lock.max-ttl", 2000).arg("lock.rejoin-delay", 7),
        with_arguments(&["max-ttl", "1000", "rejoin-delay", "7"]).arg("lock.max-ttl", 2000),
    ] {
        let server = builder.start().unwrap();
        let connection = &mut server.connection();
        assert_eq!(get(connection, "lock.max-ttl"), "2000");
        assert_eq!(get(connection, "lock.rejoin-delay"), "7");
        assert_eq!(get(connection, "lock.max-clock-skew"), "60000");
        eventually(PATIENCE, "it votes", || {
            command("LOCK.ACQUIRE k token 2000").exec(connection).is_ok()
        });
        let error = command("LOCK.ACQUIRE j token 2001").exec(connection).unwrap_err();
        assert!(error.to_string().contains("between 1 and 2000"), "{error}");
    }
}

#[test]
fn error_for_a_wrong_argument_names_the_valid_ones() {
    const MAX_TTL: &str =
        "the module argument max-ttl must be a whole number between 1 and 604800000";
    const TWICE: &str = "the module argument max-ttl is given twice";
    for (words, says) in [
        (
            &["colour", "blue"][..],
            "unknown module argument; the arguments are: max-ttl rejoin-delay max-clock-skew",
        ),
        (&["max-ttl"], MAX_TTL),
        (&["max-ttl", "0"], MAX_TTL),
        (&["max-ttl", "604800001"], MAX_TTL),
        (&["max-ttl", "60s"], MAX_TTL),
        (
            &["rejoin-delay", "-2"],
            "the module argument rejoin-delay must be a whole number between -1 and 604800000",
        ),
        (
            &["max-clock-skew", "99999999999999999999"],
            "the module argument max-clock-skew must be a whole number",
        ),
        (&["max-ttl", "1000", "max-ttl", "1000"], TWICE),
        (&["max-ttl", "1000", "lock.max-ttl", "1000"], TWICE),
        (&["max-ttl", "1000", "rejoin"], "unknown module argument"),
    ] {
        let log = log_of_refusal(with_arguments(words));
        assert!(log.contains(says), "{words:?}: {log}");
    }
}

#[test]
fn error_for_a_wrong_line_names_the_valid_ones() {
    for (name, value, says) in [
        ("lock.max-ttl", "0", "lock.max-ttl 1 to 604800000"),
        ("lock.max-ttl", "soon", "lock.max-ttl 1 to 604800000"),
        ("lock.rejoin-delay", "-2", "lock.rejoin-delay -1 to 604800000"),
        ("lock.max-clock-skew", "86400001", "lock.max-clock-skew 0 to 86400000"),
        // The server itself writes this error.
        ("lock.colour", "blue", "Module Configuration"),
    ] {
        let log = log_of_refusal(module_with_defaults().arg(name, value));
        assert!(log.contains(says), "{name} {value}: {log}");
    }
}

#[test]
fn rewritten_settings_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("redis.conf");
    let module = module_path().unwrap();
    let lines = format!("loadmodule {} max-clock-skew 9\nlock.max-ttl 5000\n", module.display());
    fs::write(&file, lines).unwrap();
    let mut server = Server::builder().config_file(&file).start().unwrap();
    let connection = &mut server.connection();
    set(connection, "lock.rejoin-delay", "1500").unwrap();
    set(connection, "lock.max-clock-skew", "7").unwrap();
    command("CONFIG REWRITE").exec(connection).unwrap();

    server.restart().unwrap();
    let connection = &mut server.connection();
    for (name, value) in [("max-ttl", "5000"), ("rejoin-delay", "1500"), ("max-clock-skew", "7")] {
        let written = fs::read_to_string(&file).unwrap();
        assert_eq!(get(connection, &format!("lock.{name}")), value, "{written}");
    }
}

#[test]
fn config_set_of_max_clock_skew_applies_to_the_next_fence() {
    let server = Server::with_module().start().unwrap();
    let connection = &mut server.connection();
    command("LOCK.ACQUIRE k token 60000").exec(connection).unwrap();
    let extend_with_fence_ahead = |connection: &mut Connection, seconds: u64| {
        let [now_s, _]: [u64; 2] = cmd("TIME").query(connection).expect("it tells the time");
        let fence = (now_s + seconds) * 1_000_000;
        command(&format!("LOCK.EXTEND k token 60000 FENCE {fence}")).exec(connection)
    };
    extend_with_fence_ahead(connection, 600).unwrap_err();
    set(connection, "lock.max-clock-skew", "1200000").unwrap();
    extend_with_fence_ahead(connection, 600).unwrap();
    set(connection, "lock.max-clock-skew", "0").unwrap();
    extend_with_fence_ahead(connection, 1100).unwrap_err();
}

#[test]
fn module_refuses_cluster_mode_and_logs_why() {
    let log = log_of_refusal(Server::with_module().arg("cluster-enabled", "yes"));
    assert!(log.contains("lock: not loaded: this server is in cluster mode"), "{log}");
    assert!(log.contains("Use independent masters"), "{log}");
}

const EVICTS: &str = "maxmemory-policy lets this server evict the keys of locks";

#[test]
fn log_warns_when_an_evicting_policy_is_set() {
    let server = Server::with_module().arg("maxmemory-policy", "allkeys-lfu").start().unwrap();
    let connection = &mut server.connection();
    let warnings = || server.log().matches(EVICTS).count();
    eventually(PATIENCE, "the log warns at the start", || warnings() == 1);
    set(connection, "maxmemory", "100mb").unwrap();
    set(connection, "maxmemory-policy", "noeviction").unwrap();
    // A warning is logged at the end of the turn of CONFIG SET. The PINGs end after that turn.
    cmd("PING").exec(connection).unwrap();
    cmd("PING").exec(connection).unwrap();
    assert_eq!(warnings(), 1, "{}", server.log());
    set(connection, "maxmemory-policy", "allkeys-lru").unwrap();
    eventually(PATIENCE, "the log warns", || warnings() == 2);
    set(connection, "maxmemory-policy", "volatile-ttl").unwrap();
    eventually(PATIENCE, "the log warns again", || warnings() == 3);
}
