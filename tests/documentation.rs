//! The server's descriptions of the commands are true, and the shipped configuration works.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::common::{RedisCli, server_and_cli};
use quorlock_testkit::{Server, module_path};
use redis::Value::{self, Int};
use redis::from_redis_value;

const COMMANDS: &str = include_str!("../docs/commands.md");

/// The syntax of each command on its page, sorted.
fn documented_syntax() -> Vec<String> {
    let is_command = |row: &&str| row.starts_with("| `LOCK.") || row.starts_with("| [`LOCK.");
    let rows = COMMANDS.lines().filter(is_command);
    let mut syntax: Vec<_> = rows
        .map(|row| {
            let code: Vec<_> = row.split('`').skip(1).step_by(2).collect();
            code.join(" ")
        })
        .collect();
    syntax.sort();
    syntax
}

type Fields = HashMap<String, Value>;

/// The reply of `COMMAND DOCS` about a command.
fn docs(cli: &mut RedisCli, name: &str) -> Fields {
    let mut docs: Fields = cli.ask(&format!("COMMAND DOCS {name}"));
    from_redis_value(docs.remove(name).unwrap()).unwrap()
}

fn text(fields: &Fields, name: &str) -> Option<String> {
    fields.get(name).map(|value| from_redis_value(value.clone()).unwrap())
}

#[test]
fn page_help_and_docs_describe_each_command_alike() {
    let (_server, mut cli) = server_and_cli();
    let lines: Vec<String> = cli.ask("LOCK.HELP");
    let (title, lines) = lines.split_first().unwrap();
    assert!(title.starts_with("LOCK.<command> "), "{title}");
    let mut described = Vec::new();
    for help in lines.chunks(2) {
        let syntax = help[0].replace(['<', '>'], "");
        let name = syntax.split(' ').next().unwrap();
        let docs = docs(&mut cli, &name.to_lowercase());
        let [summary, complexity, since] =
            ["summary", "complexity", "since"].map(|field| text(&docs, field).unwrap());
        assert!(summary.len() > 20, "{name}: {summary}");
        assert_eq!(help[1], format!("    {summary}."), "{name}");
        assert!(complexity.starts_with("O("), "{name}: {complexity}");
        assert_eq!(since, "0.1.0", "{name}");
        // A command without arguments has no such field.
        let arguments: Vec<Fields> =
            docs.get("arguments").map_or(Vec::new(), |all| from_redis_value(all.clone()).unwrap());
        let written: String = arguments.iter().map(argument_syntax).collect();
        assert_eq!(format!("{name}{written}"), syntax);
        let units = [("ttl-ms", "ttl"), ("wait-ms", "ms"), ("COUNT count", "COUNT n")];
        described.push(units.iter().fold(syntax, |line, (ours, page)| line.replace(ours, page)));
    }
    described.sort();
    assert_eq!(described, documented_syntax());
    assert!(cli.error("LOCK.HELP me").starts_with("ERR wrong number of arguments"));
}

/// The syntax of an argument of `COMMAND DOCS`, with a space before it.
fn argument_syntax(argument: &Fields) -> String {
    let [name, kind] = ["name", "type"].map(|field| text(argument, field).unwrap());
    let flags: Vec<String> =
        argument.get("flags").map_or(Vec::new(), |flags| from_redis_value(flags.clone()).unwrap());
    let has = |flag: &str| flags.iter().any(|other| other == flag);
    let option = text(argument, "token");
    assert_eq!(option.is_some(), has("optional"), "{name}");
    assert!(text(argument, "summary").is_some_and(|summary| !summary.is_empty()), "{name}");
    match option {
        Some(option) if kind == "pure-token" => format!(" [{option}]"),
        Some(option) => format!(" [{option} {name}]"),
        None if has("multiple") => format!(" {name} [{name} ...]"),
        None => format!(" {name}"),
    }
}

#[test]
fn module_list_has_the_version_of_the_package() {
    let (_server, mut cli) = server_and_cli();
    // Some servers include modules of their own.
    let modules: Vec<HashMap<String, Value>> = cli.ask("MODULE LIST");
    let is_ours =
        |module: &&HashMap<String, Value>| module["name"] == Value::BulkString("lock".into());
    let module = modules.iter().find(is_ours).expect("the module is loaded");
    let mut version = env!("CARGO_PKG_VERSION").split('.').map(|part| part.parse::<i64>().unwrap());
    let [major, minor, patch] = std::array::from_fn(|_| version.next().unwrap());
    assert_eq!(module["ver"], Int(major * 10_000 + minor * 100 + patch));
}

#[test]
fn server_knows_arity_flags_and_key_of_each_command() {
    let (_server, mut cli) = server_and_cli();
    let expected = [
        ("lock.acquire", -4, vec!["blocking", "denyoom", "fast", "module", "write"]),
        ("lock.extend", -4, vec!["fast", "module", "write"]),
        ("lock.release", 3, vec!["fast", "module", "write"]),
        ("lock.yield", 3, vec!["fast", "module", "write"]),
        ("lock.inspect", 2, vec!["fast", "module", "readonly"]),
        ("lock.macquire", -5, vec!["blocking", "denyoom", "module", "movablekeys", "write"]),
        ("lock.mextend", -5, vec!["module", "movablekeys", "write"]),
        ("lock.mrelease", -4, vec!["module", "movablekeys", "write"]),
        ("lock.myield", -4, vec!["module", "movablekeys", "write"]),
        ("lock.acquireany", -5, vec!["blocking", "denyoom", "module", "movablekeys", "write"]),
        ("lock.revoke", -2, vec!["admin", "module", "write"]),
        ("lock.scan", -2, vec!["admin", "module", "readonly"]),
        ("lock.help", 1, vec!["fast", "loading", "module", "stale"]),
    ];
    for (name, arity, flags) in expected {
        let [info]: [Vec<Value>; 1] = cli.ask(&format!("COMMAND INFO {name}"));
        assert_eq!(info[1], Int(arity), "{name}");
        let mut known: Vec<String> = from_redis_value(info[2].clone()).unwrap();
        known.sort();
        assert_eq!(known, flags, "{name}");
        let keyless = ["lock.scan", "lock.help"].contains(&name);
        let index = i64::from(!keyless && !flags.contains(&"movablekeys"));
        assert_eq!(
            info[3..6],
            [Int(index), Int(index), Int(index)],
            "{name}: first key, last key, step"
        );
    }
}

#[test]
fn server_finds_the_keys_of_each_command() {
    let (_server, mut cli) = server_and_cli();
    let (one, three) = (&["k1"][..], &["k1", "k2", "k3"][..]);
    for (line, keys, flags) in [
        ("LOCK.ACQUIRE k1 a 1000 OWNER me FENCE 7", one, &["RW", "access", "insert"][..]),
        ("LOCK.ACQUIRE k1 a 1000 SHARED", one, &["RW", "access", "insert"]),
        ("LOCK.EXTEND k1 a 1000 TOKEN b", one, &["RW", "access", "update"]),
        ("LOCK.RELEASE k1 a", one, &["RW", "access", "delete"]),
        ("LOCK.YIELD k1 a", one, &["RW", "access", "delete"]),
        ("LOCK.INSPECT k1", one, &["RO", "access"]),
        ("LOCK.REVOKE k1 NOW", one, &["RW", "access", "update"]),
        ("LOCK.MACQUIRE 3 k1 k2 k3 a 9 FENCE 7", three, &["RW", "access", "insert"]),
        ("LOCK.ACQUIREANY 3 k1 k2 k3 a 9 FENCE 7", three, &["RW", "access", "insert"]),
        ("LOCK.MEXTEND 3 k1 k2 k3 a 1000 TOKEN b", three, &["RW", "access", "update"]),
        ("LOCK.MRELEASE 3 k1 k2 k3 a", three, &["RW", "access", "delete"]),
        ("LOCK.MYIELD 3 k1 k2 k3 a", three, &["RW", "access", "delete"]),
    ] {
        assert_eq!(cli.ask::<Vec<String>>(&format!("COMMAND GETKEYS {line}")), keys, "{line}");
        let known: Vec<(String, Vec<String>)> = cli.ask(&format!("COMMAND GETKEYSANDFLAGS {line}"));
        assert!(known.iter().map(|(key, _)| key).eq(keys), "{line}: {known:?}");
        assert!(known.iter().all(|(_, known)| known == flags), "{line}: {known:?}");
    }
}

#[test]
fn shipped_configuration_starts_a_lock_master() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("redis.conf.example");
    let shipped = fs::read_to_string(shipped).unwrap();
    let module = module_path().unwrap();
    let installed =
        shipped.replace("./target/release/libquorlock.so", &module.display().to_string());
    assert_ne!(installed, shipped, "the path of the module is replaced");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redis.conf.example");
    fs::write(&path, &installed).unwrap();
    // The include is the last directive, so the file overrides the settings of the test kit.
    let server = Server::builder().arg("include", path.display()).start().unwrap();
    let mut cli = RedisCli::new(&server);
    let directives = installed.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut settings = 0;
    for (name, value) in directives.filter_map(|line| line.split_once(' ')) {
        if name == "loadmodule" {
            continue;
        }
        let (_, actual): (String, String) = cli.ask(&format!("CONFIG GET {name}"));
        let expected = if name == "maxmemory" { "268435456" } else { value.trim_matches('"') };
        assert_eq!(actual, expected, "{name}");
        settings += 1;
    }
    assert!(settings > 3, "the file has settings");

    assert!(cli.error("LOCK.ACQUIRE k a 60000").starts_with("ABSTAIN "), "it has just started");
    cli.reply("SET k a PX 60000");
    cli.ask::<i64>("LOCK.EXTEND k a 60000");
    assert_eq!(cli.reply("LOCK.RELEASE k a"), Int(1));
}
