//! The server knows the keys of every command: for permissions, for redirection and for tools.

use crate::common::{RedisCli, command, server_and_cli};
use redis::Value::{Int, Nil, Okay};

const OUT_OF_RANGE: &str = "ERR numkeys must be between 1 and 64";
const NOT_AN_INTEGER: &str = "ERR value is not an integer";

/// Wrong values of `numkeys` for two keys, with the beginning of the error.
const WRONG_NUMBERS: [(&str, &str); 6] = [
    ("x", NOT_AN_INTEGER),
    ("0", OUT_OF_RANGE),
    ("-1", OUT_OF_RANGE),
    ("65", OUT_OF_RANGE),
    ("9223372036854775807", OUT_OF_RANGE),
    ("9223372036854775808", NOT_AN_INTEGER),
];

#[test]
fn wrong_number_of_keys_is_refused_by_the_command() {
    let (server, mut admin) = server_and_cli();
    admin.reply("ACL SETUSER worker on nopass ~k* +@all");
    let mut worker = RedisCli::new(&server);
    worker.reply("AUTH worker any");
    for (number, expected) in WRONG_NUMBERS {
        for line in [
            format!("LOCK.MACQUIRE {number} k1 k2 a 1000"),
            format!("LOCK.ACQUIREANY {number} k1 k2 a 1000"),
            format!("LOCK.MEXTEND {number} k1 k2 a 1000"),
            format!("LOCK.MRELEASE {number} k1 k2 a"),
            format!("LOCK.MYIELD {number} k1 k2 a"),
        ] {
            for cli in [&mut admin, &mut worker] {
                let error = cli.error(&line);
                assert!(error.starts_with(expected), "{line}: {error}");
                cli.reply("MULTI");
                cli.reply(&line);
                assert!(cli.error("EXEC").starts_with(expected), "{line}");
            }
            let keys =
                command(&format!("COMMAND GETKEYS {line}")).query::<Vec<String>>(&mut admin.0);
            assert!(keys.is_err(), "{line}: {keys:?}");
        }
    }
    assert_eq!(admin.reply("DBSIZE"), Int(0));
}

#[test]
fn permission_is_needed_for_each_of_several_keys() {
    let (server, mut admin) = server_and_cli();
    admin.reply("ACL SETUSER worker on nopass ~k* +@all");
    let mut worker = RedisCli::new(&server);
    worker.reply("AUTH worker any");
    assert_ne!(worker.reply("LOCK.MACQUIRE 2 k1 k2 a 60000"), Nil);
    for line in [
        "LOCK.MACQUIRE 2 k3 other a 60000",
        "LOCK.MACQUIRE 2 other k3 a 60000",
        "LOCK.ACQUIREANY 2 k3 other a 60000",
        "LOCK.ACQUIREANY 2 other k3 a 60000 WAIT 1000",
        "LOCK.MEXTEND 3 k1 k2 other a 60000",
        "LOCK.MRELEASE 3 k1 other k2 a",
        "LOCK.MYIELD 3 k1 other k2 a",
    ] {
        assert!(worker.error(line).starts_with("NOPERM"), "{line}");
        worker.reply("MULTI");
        assert!(worker.error(line).starts_with("NOPERM"), "{line}");
        assert_eq!(worker.reply("DISCARD"), Okay);
    }
    assert_eq!(worker.reply("LOCK.MRELEASE 2 k1 k2 a"), Int(1));
}
