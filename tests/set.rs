//! The setting `lock.set`: the set to which this node belongs.

use std::fs;

use crate::common::log_of_refusal;
use quorlock_testkit::{Server, ServerBuilder, module_path};
use redis::{Connection, cmd};

const SET: &str = "eu-locks 2 1,2,4,5,6";
const CHANGE: &str = "eu-locks 2 1,2,3>1,2,3,4";

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

fn config(connection: &mut Connection) -> String {
    let [_, value]: [String; 2] =
        cmd("CONFIG").arg("GET").arg("lock.set").query(connection).expect("the config exists");
    value
}

/// The fields of `INFO lock` that describe the set.
fn info(connection: &mut Connection) -> Vec<String> {
    let text: String = cmd("INFO").arg("lock").query(connection).expect("INFO is answered");
    text.lines().filter(|line| line.starts_with("lock_set_")).map(str::to_owned).collect()
}

#[test]
fn node_without_a_set_has_an_empty_config_and_no_fields() {
    for (arguments, lines) in [("", ""), ("", "lock.set \"\""), ("", "lock.set \"  \"")] {
        let server = RedisConf::new(arguments, lines).start();
        let connection = &mut server.connection();
        assert_eq!(config(connection), "");
        assert!(info(connection).is_empty());
        assert!(!server.log().contains("lock: this is node"), "{}", server.log());
    }
}

#[test]
fn lines_and_arguments_are_accepted_with_and_without_quotes() {
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
        let server = RedisConf::new(arguments, lines).start();
        let connection = &mut server.connection();
        assert_eq!(config(connection), SET, "{arguments} {lines}");
        let fields = ["lock_set_name:eu-locks", "lock_set_id:2", "lock_set_members:1,2,4,5,6"];
        assert_eq!(info(connection), fields);
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
fn argument_without_a_value_or_given_twice_is_refused() {
    for (arguments, says) in [
        (
            "set",
            "the module argument `set` has no value: write `set NAME ID MEMBERS`, or leave `set` out",
        ),
        ("set \"\"", "the module argument `set` has no value"),
        ("set eu-locks", "lock.set needs three words, NAME ID MEMBERS, but has 1"),
        ("set eu-locks max-ttl 5000", "ID \"max-ttl\" in lock.set is not valid"),
        ("set eu 1 1 lock.set eu 1 1", "the module argument set is given twice"),
        ("sets eu 1 1", "unknown module argument; the arguments are: max-ttl"),
    ] {
        let log = log_of_refusal(RedisConf::new(arguments, "").builder());
        assert!(log.contains(says), "{arguments}: {log}");
    }
}

#[test]
fn rewritten_redis_conf_means_the_same() {
    for (arguments, lines) in [
        ("", "lock.set eu-locks 2 6,1,2,4,5"),
        ("", "lock.set 'eu-locks 2 1,2,4,5,6'"),
        ("set eu-locks 2 1,2,4,5,6 max-ttl 5000", ""),
        // CONFIG REWRITE drops the quotes of a module's arguments.
        ("set \"eu-locks 2 1,2,4,5,6\" max-ttl 5000", ""),
        ("set us-locks 1 1", "lock.set eu-locks 2 1,2,4,5,6"),
    ] {
        let conf = RedisConf::new(arguments, lines);
        let mut server = conf.start();
        cmd("CONFIG").arg("REWRITE").exec(&mut server.connection()).expect("it is written");
        for _ in 0..2 {
            server.restart().expect("the server starts with the file that it wrote");
            assert_eq!(config(&mut server.connection()), SET, "{}", conf.text());
            cmd("CONFIG").arg("REWRITE").exec(&mut server.connection()).expect("it is written");
        }
    }
}

#[test]
fn set_is_changed_by_a_restart() {
    let conf = RedisConf::new("", "lock.set eu-locks 2 1,2,3");
    let mut server = conf.start();
    assert_eq!(info(&mut server.connection())[2], "lock_set_members:1,2,3");
    conf.write("", &format!("lock.set {CHANGE}"));
    server.restart().expect("the set is valid");
    let connection = &mut server.connection();
    assert_eq!(config(connection), CHANGE);
    assert_eq!(info(connection)[2], "lock_set_members:1,2,3>1,2,3,4");
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
        let fields = (config(connection), info(connection));
        cmd("MODULE").arg("UNLOAD").arg("lock").exec(connection).expect("it is unloaded");
        fields
    };
    assert_eq!(load(&["set", SET]).0, SET);
    assert_eq!(load(&["set", "us", "1", "1"]).1[0], "lock_set_name:us");
    assert_eq!(load(&[]), (String::new(), Vec::new()));
}
