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

/// A redis.conf that loads the module.
struct RedisConf {
    directory: tempfile::TempDir,
}

impl RedisConf {
    fn new(arguments: &str, lines: &str) -> Self {
        let conf = Self { directory: tempfile::tempdir().expect("a directory can be made") };
        conf.write(arguments, lines);
        conf
    }

    fn write(&self, arguments: &str, lines: &str) {
        let module = module_path().expect("the module is built");
        let text = format!("loadmodule {} {arguments}\n{lines}\n", module.display());
        fs::write(self.directory.path().join("redis.conf"), text).expect("a file can be written");
    }

    fn builder(&self) -> ServerBuilder {
        Server::builder().config_file(self.directory.path().join("redis.conf"))
    }

    #[track_caller]
    fn start(&self) -> Server {
        match self.builder().start() {
            Ok(server) => server,
            Err(error) => panic!("{error}: {}", self.text()),
        }
    }

    fn text(&self) -> String {
        fs::read_to_string(self.directory.path().join("redis.conf")).expect("the file is there")
    }
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
            // The tests of `lock.set` follow below.
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
    for (arguments, says) in [
        (
            "colour blue",
            "unknown module argument; the arguments are: max-ttl rejoin-delay max-clock-skew",
        ),
        ("max-ttl", "the module argument max-ttl must be a whole number between 1 and 604800000"),
        (
            "max-clock-skew 99999999999999999999",
            "the module argument max-clock-skew must be a whole number",
        ),
        ("max-ttl 1000 lock.max-ttl 1000", "the module argument max-ttl is given twice"),
        ("max-ttl 1000 rejoin", "unknown module argument"),
        (
            "set",
            "the module argument `set` has no value: write `set NAME ID MEMBERS`, or leave `set` out",
        ),
        ("set \"\"", "the module argument `set` has no value"),
        ("set eu-locks", "lock.set needs three words, NAME ID MEMBERS, but has 1"),
        ("set eu-locks max-ttl 5000", "ID \"max-ttl\" in lock.set is not valid"),
        ("set eu 1 1 lock.set eu 1 1", "the module argument set is given twice"),
    ] {
        let log = log_of_refusal(RedisConf::new(arguments, "").builder());
        assert!(log.contains(says), "{arguments}: {log}");
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

const SET: &str = "eu-locks 2 1,2,4,5,6";
const CHANGE: &str = "eu-locks 2 1,2,3>1,2,3,4";

/// The fields of `INFO lock` that describe the set.
fn set_fields(connection: &mut Connection) -> Vec<String> {
    let text: String = cmd("INFO").arg("lock").query(connection).expect("INFO is answered");
    text.lines().filter(|line| line.starts_with("lock_set_")).map(str::to_owned).collect()
}

#[test]
fn node_without_a_set_has_an_empty_config_and_no_fields() {
    for (arguments, lines) in [("", ""), ("", "lock.set \"\""), ("", "lock.set \"  \"")] {
        let server = RedisConf::new(arguments, lines).start();
        let connection = &mut server.connection();
        assert_eq!(get(connection, "lock.set"), "");
        assert!(set_fields(connection).is_empty());
        assert!(!server.log().contains("lock: this is node"), "{}", server.log());
    }
}

#[test]
fn set_with_and_without_quotes_means_the_same_after_a_rewrite() {
    for (arguments, lines) in [
        ("", "lock.set eu-locks 2 1,2,4,5,6"),
        ("", "lock.set \"eu-locks 2 1,2,4,5,6\""),
        ("", "lock.set 'eu-locks 2 1,2,4,5,6'"),
        ("", "LOCK.SET   eu-locks  2   6,5,4,2,1"),
        ("set eu-locks 2 1,2,4,5,6", ""),
        ("set \"eu-locks 2 1,2,4,5,6\"", ""),
        ("max-ttl 5000 lock.set eu-locks 2 1,2,4,5,6 rejoin-delay 0", ""),
        ("max-ttl 5000 SET \"eu-locks 2 4,5,6,1,2\" rejoin-delay 0", ""),
        ("set us-locks 1 1", "lock.set eu-locks 2 1,2,4,5,6"),
    ] {
        let conf = RedisConf::new(arguments, lines);
        let mut server = conf.start();
        for _ in 0..3 {
            let connection = &mut server.connection();
            assert_eq!(get(connection, "lock.set"), SET, "{arguments} {lines}: {}", conf.text());
            let fields = ["lock_set_name:eu-locks", "lock_set_id:2", "lock_set_members:1,2,4,5,6"];
            assert_eq!(set_fields(connection), fields);
            let max_ttl = if arguments.contains("max-ttl") { "5000" } else { "60000" };
            assert_eq!(get(connection, "lock.max-ttl"), max_ttl, "{}", conf.text());
            // CONFIG REWRITE drops the quotes of a module's arguments.
            cmd("CONFIG").arg("REWRITE").exec(connection).expect("it is written");
            server.restart().expect("the server starts with the file that it wrote");
        }
    }
}

// The core tests all errors of a set.
#[test]
fn invalid_set_stops_the_start_and_the_log_says_what_to_write() {
    for (value, says) in [
        ("eu-locks 2", "needs three words, NAME ID MEMBERS, but has 2; write, for example, "),
        ("eu-locks 2 1,2>1,2,3,4", "adds 2 and removes 0 members; write a change that adds one"),
    ] {
        let log = log_of_refusal(RedisConf::new("", &format!("lock.set {value}")).builder());
        assert!(log.contains(says), "line {value}: {log}");
        assert!(log.contains("lock.set must be NAME ID MEMBERS"), "line {value}: {log}");
        let log = log_of_refusal(RedisConf::new(&format!("set \"{value}\""), "").builder());
        assert!(log.contains("lock: not loaded: ") && log.contains(says), "{value}: {log}");
    }
}

#[test]
fn bytes_that_are_not_text_are_refused_and_logged_escaped() {
    let conf = RedisConf::new("", "lock.set \"e\\xff\\x00\\x1b 2 1,2\"");
    let log = log_of_refusal(conf.builder());
    assert!(log.contains("NAME \"e\\u{fffd}\\u{0}\\u{1b}\" in lock.set is not valid"), "{log}");
    assert!(!log.contains('\u{1b}'), "{log:?}");
}

#[test]
fn set_is_changed_by_a_restart() {
    let conf = RedisConf::new("", "lock.set eu-locks 2 1,2,3");
    let mut server = conf.start();
    assert_eq!(set_fields(&mut server.connection())[2], "lock_set_members:1,2,3");
    conf.write("", &format!("lock.set {CHANGE}"));
    server.restart().expect("the set is valid");
    let connection = &mut server.connection();
    assert_eq!(get(connection, "lock.set"), CHANGE);
    assert_eq!(set_fields(connection)[2], "lock_set_members:1,2,3>1,2,3,4");
    let log = server.log();
    assert!(log.contains("lock: this is node 2 of the set eu-locks: 1,2,3>1,2,3,4"), "{log}");
}

#[test]
fn module_that_is_loaded_again_has_its_new_set() {
    let server = Server::builder().start().expect("a server starts");
    let connection = &mut server.connection();
    let module = module_path().expect("the module is built").display().to_string();
    let mut load = |words: &[&str]| {
        cmd("MODULE").arg("LOAD").arg(&module).arg(words).exec(connection).expect("it is loaded");
        let fields = (get(connection, "lock.set"), set_fields(connection));
        cmd("MODULE").arg("UNLOAD").arg("lock").exec(connection).expect("it is unloaded");
        fields
    };
    assert_eq!(load(&["set", SET]).0, SET);
    assert_eq!(load(&["set", "us", "1", "1"]).1[0], "lock_set_name:us");
    assert_eq!(load(&[]), (String::new(), Vec::new()));
}

#[test]
fn numbers_that_were_set_survive_a_rewrite_and_win_over_an_argument() {
    let conf = RedisConf::new("max-clock-skew 1 rejoin-delay 1", "");
    let mut server = conf.start();
    for name in ["lock.max-clock-skew", "lock.rejoin-delay"] {
        set(&mut server.connection(), name, "7").unwrap();
    }
    cmd("CONFIG").arg("REWRITE").exec(&mut server.connection()).expect("it is written");
    server.restart().expect("the server starts with the file that it wrote");
    for name in ["lock.max-clock-skew", "lock.rejoin-delay"] {
        assert_eq!(get(&mut server.connection(), name), "7", "{}", conf.text());
    }
}
