//! Refused commands: the right error, no trace, and no harm to the server.

use crate::common::{RedisCli, command, info, server_and_cli};
#[cfg(target_os = "linux")]
use quorlock_testkit::Server;
use redis::Cmd;
use redis::Value::{self, BulkString, Int, Nil};

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const TTL_RANGE: &str = "ERR ttl must be between 1 and 60000 milliseconds (lock.max-ttl)";
const TOKEN_LENGTH: &str =
    "ERR token must be 1 to 256 bytes: use at least 16 random bytes, new for every attempt";
const OWNER_LENGTH: &str = "ERR OWNER must be at most 256 bytes: it is a label for people to read";
const OWNER_NOT_TEXT: &str = "ERR OWNER must be UTF-8: it is a label for people to read";
const FENCE_RANGE: &str = "ERR FENCE must be between 1 and 9007199254740991";
const TICKET_RANGE: &str = "ERR FENCE must be between 0 and 9007199254740991";
const UNKNOWN_TO_ACQUIRE: &str =
    "ERR syntax error: only SHARED, WAIT ms, FENCE n and OWNER label may follow the ttl";
const UNKNOWN_TO_EXTEND: &str =
    "ERR syntax error: only SHARED, FENCE n and TOKEN new may follow the ttl";
const REPEATED: &str = "ERR syntax error: an option is repeated; name each once";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// Bytes that break code which takes them for text, for one line, or for a format string.
const ODD_BYTES: [&[u8]; 6] =
    [b"a\0b", b"\0", b"a\r\nDEL k\r\n", b"%s%n%s%n", b"\xff\xfe\xc3\x28", b" "];

/// Returns the error. Checks that `k` is free, the digest of all data has not changed, and the
/// server still replies.
#[track_caller]
fn refused(cli: &mut RedisCli, command: &Cmd) -> String {
    let before: String = cli.ask("DEBUG DIGEST");
    let error = cli.error_of(command);
    assert_eq!(cli.ask::<String>("DEBUG DIGEST"), before, "{error}: something was written");
    assert_eq!(cli.reply("LOCK.INSPECT k"), Nil, "{error}: something was locked");
    assert!(!error.contains("s3cret"), "a token was shown: {error}");
    error
}

#[track_caller]
fn assert_all_refused(lines: &[impl AsRef<str>], expected: &str) {
    let (_server, mut cli) = server_and_cli();
    for line in lines.iter().map(AsRef::as_ref) {
        assert_eq!(refused(&mut cli, &command(line)), expected, "{line}");
    }
}

#[test]
fn wrong_number_of_arguments_is_refused_in_the_servers_words() {
    for (name, arguments) in [
        (
            "acquire",
            &["", " k", " k s3cret", " k s3cret 1000 OWNER", " k s3cret 1000 OWNER me FENCE"][..],
        ),
        ("extend", &["", " k", " k s3cret", " k s3cret 1000 TOKEN"]),
        ("release", &["", " k", " k s3cret 1000"]),
        ("inspect", &["", " k s3cret"]),
        ("revoke", &["", " k NOW NOW"]),
        ("scan", &["", " 0 MATCH", " 0 COUNT 1 MATCH"]),
        ("help", &[" me"]),
    ] {
        let lines: Vec<_> = arguments.iter().map(|rest| format!("LOCK.{name}{rest}")).collect();
        let expected = format!("ERR wrong number of arguments for 'lock.{name}' command");
        assert_all_refused(&lines, &expected);
    }
}

#[test]
fn ttl_out_of_range_is_refused() {
    let ttls = ["0", "-1", "60001", "9223372036854775807", "-9223372036854775808"];
    let lines: Vec<_> = ttls
        .iter()
        .flat_map(|ttl| ["ACQUIRE", "EXTEND"].map(|name| format!("LOCK.{name} k s3cret {ttl}")))
        .collect();
    assert_all_refused(&lines, TTL_RANGE);
}

#[test]
fn invalid_number_is_refused() {
    let (_server, mut cli) = server_and_cli();
    let not_integers = [
        "ten",
        "",
        "1.5",
        "1e3",
        "0x10",
        "+1000",
        "01000",
        " 1000",
        "1000\n",
        "1000\0",
        "9223372036854775808",
    ];
    for number in not_integers {
        for name in ["LOCK.ACQUIRE", "LOCK.EXTEND"] {
            let error = refused(&mut cli, command(name).arg("k").arg("s3cret").arg(number));
            assert_eq!(error, NOT_AN_INTEGER, "{name} {number:?}");
            let with_fence =
                command(name).arg("k").arg("s3cret").arg(1000).arg("FENCE").arg(number).clone();
            assert_eq!(refused(&mut cli, &with_fence), NOT_AN_INTEGER, "{name} FENCE {number:?}");
        }
    }
}

#[test]
fn fence_out_of_range_is_refused() {
    assert_all_refused(
        &[
            "LOCK.EXTEND k s3cret 1000 FENCE 0",
            "LOCK.EXTEND k s3cret 1000 FENCE 9223372036854775807",
        ],
        FENCE_RANGE,
    );
    assert_all_refused(
        &[
            "LOCK.ACQUIRE k s3cret 1000 FENCE -1",
            "LOCK.ACQUIRE k s3cret 1000 FENCE 9007199254740992",
            "LOCK.ACQUIREANY 1 k s3cret 1000 FENCE -1",
        ],
        TICKET_RANGE,
    );
}

#[test]
fn token_is_1_to_256_bytes() {
    let (_server, mut cli) = server_and_cli();
    for token in [String::new(), "s3cret".repeat(43)[..257].to_owned()] {
        let commands = [
            command("LOCK.ACQUIRE k").arg(&token).arg(1000).clone(),
            command("LOCK.EXTEND k").arg(&token).arg(1000).clone(),
            command("LOCK.EXTEND k s3cret 1000 TOKEN").arg(&token).clone(),
            command("LOCK.RELEASE k").arg(&token).clone(),
        ];
        for command in commands {
            assert_eq!(refused(&mut cli, &command), TOKEN_LENGTH);
        }
    }
    for token in ["x".to_owned(), "x".repeat(256)] {
        cli.ask::<i64>(&format!("LOCK.ACQUIRE k {token} 60000"));
        assert_eq!(cli.reply(&format!("LOCK.RELEASE k {token}")), Int(1));
    }
}

#[test]
fn key_of_a_lock_is_at_most_64_kib() {
    const KEY_LENGTH: &str = "ERR a key of a lock must be at most 65536 bytes";
    let (server, mut cli) = server_and_cli();
    let (longest, long) = ("k".repeat(65_536), "k".repeat(65_537));
    for key in [&longest, &long] {
        // A string whose holder knows its value.
        cli.run::<()>(
            command("SET").arg(key).arg("s3cret PX 60000".split(' ').collect::<Vec<_>>()),
        );
    }
    for line in [
        "LOCK.ACQUIRE @ other 1000",
        "LOCK.ACQUIRE @ other 1000 WAIT 1000",
        "LOCK.ACQUIRE @ other 1000 SHARED",
        "LOCK.MACQUIRE 2 k @ other 1000",
        "LOCK.MACQUIRE 2 k @ other 1000 WAIT 1000",
        "LOCK.ACQUIREANY 2 k @ other 1000",
        "LOCK.ACQUIREANY 2 @ k other 1000 WAIT 1000",
    ] {
        assert_eq!(refused(&mut cli, &command(&line.replace('@', &long))), KEY_LENGTH, "{line}");
        assert_eq!(info(&server, "lock_leases") + info(&server, "lock_waiters"), 0, "{line}");
    }
    let mut of = |line: &str, key: &str| cli.reply(&line.replace('@', key));
    // An EXTEND would make a lock of such a string.
    assert_eq!(of("LOCK.EXTEND @ s3cret 1000", &long), Nil);
    assert_eq!(of("LOCK.MEXTEND 2 k @ s3cret 1000", &long), Nil);
    assert_ne!(of("LOCK.INSPECT @", &long), Nil);
    assert_eq!(of("LOCK.RELEASE @ s3cret", &long), Int(1));
    assert_eq!(of("LOCK.INSPECT @", &long), Nil);
    assert_ne!(of("LOCK.EXTEND @ s3cret 1000", &longest), Nil);
    assert_eq!(of("LOCK.RELEASE @ s3cret", &longest), Int(1));
    assert_ne!(of("LOCK.MACQUIRE 2 k @ s3cret 1000", &longest), Nil);
}

#[test]
fn owner_is_at_most_256_bytes_of_text() {
    let (_server, mut cli) = server_and_cli();
    let long = "x".repeat(257);
    for (label, expected) in [(long.as_bytes(), OWNER_LENGTH), (b"\xff\xfe", OWNER_NOT_TEXT)] {
        let error = refused(&mut cli, command("LOCK.ACQUIRE k s3cret 1000 OWNER").arg(label));
        assert_eq!(error, expected);
    }
    for label in ["", "Zoë's ✂", &"x".repeat(256)] {
        cli.run::<i64>(command("LOCK.ACQUIRE k a 60000 OWNER").arg(label));
        assert_eq!(cli.ask::<Vec<Value>>("LOCK.INSPECT k")[1], BulkString(label.into()));
        cli.reply("LOCK.RELEASE k a");
    }
}

#[test]
fn unknown_option_is_refused() {
    assert_all_refused(
        &["LOCK.ACQUIRE k s3cret 1000 NX 1", "LOCK.ACQUIRE k s3cret 1000 TOKEN s3cret2"],
        UNKNOWN_TO_ACQUIRE,
    );
    assert_all_refused(
        &["LOCK.EXTEND k s3cret 1000 XX 1", "LOCK.EXTEND k s3cret 1000 OWNER me"],
        UNKNOWN_TO_EXTEND,
    );
}

#[test]
fn repeated_option_is_refused() {
    assert_all_refused(
        &[
            "LOCK.ACQUIRE k s3cret 1000 OWNER me OWNER you",
            "LOCK.ACQUIRE k s3cret 1000 FENCE 5 OWNER me fence 6",
            "LOCK.EXTEND k s3cret 1000 FENCE 5 FENCE 5",
            "LOCK.EXTEND k s3cret 1000 TOKEN s3cret2 token s3cret3",
        ],
        REPEATED,
    );
}

#[test]
fn refused_extension_leaves_the_lock_as_it_was() {
    let (_server, mut cli) = server_and_cli();
    let fence = cli.ask::<i64>("LOCK.ACQUIRE held a 30000");
    let expires_at = cli.expires_at_ms("held");
    for line in [
        "held a 60001",
        "held a 60000 FENCE 0",
        "held a 60000 TOKEN b TOKEN c",
        "held a 60000 TOKEN b X 1",
    ] {
        refused(&mut cli, &command(&format!("LOCK.EXTEND {line}")));
        assert_eq!(
            (cli.fence("held"), cli.expires_at_ms("held")),
            (Some(fence), expires_at),
            "{line}"
        );
    }
    assert_eq!(cli.reply("LOCK.RELEASE held a"), Int(1));
}

#[test]
fn any_bytes_are_valid_as_key_and_token() {
    let (_server, mut cli) = server_and_cli();
    for key in ODD_BYTES.into_iter().chain([&b""[..]]) {
        for token in ODD_BYTES {
            cli.run::<i64>(command("LOCK.ACQUIRE").arg(key).arg(token).arg(60_000));
            assert_eq!(cli.run::<Value>(command("GET").arg(key)), BulkString(token.into()));
            let prefix = &token[..token.len() - 1];
            for other in [prefix, &[token, b"\0"].concat()] {
                if !other.is_empty() {
                    assert_eq!(
                        cli.run::<Value>(command("LOCK.RELEASE").arg(key).arg(other)),
                        Int(0)
                    );
                }
            }
            cli.run::<i64>(command("LOCK.EXTEND").arg(key).arg(token).arg(60_000));
            assert_eq!(cli.run::<Value>(command("LOCK.RELEASE").arg(key).arg(token)), Int(1));
        }
    }
    assert_eq!(cli.reply("DBSIZE"), Int(0));
}

#[test]
fn label_of_any_text_is_shown_unchanged() {
    let (_server, mut cli) = server_and_cli();
    for label in ODD_BYTES.into_iter().filter(|label| str::from_utf8(label).is_ok()) {
        cli.run::<i64>(command("LOCK.ACQUIRE k a 60000 OWNER").arg(label));
        assert_eq!(cli.ask::<Vec<Value>>("LOCK.INSPECT k")[1], BulkString(label.into()));
        cli.reply("LOCK.RELEASE k a");
    }
}

#[test]
fn key_of_another_type_is_refused_and_not_touched() {
    let (_server, mut cli) = server_and_cli();
    let others = [
        "RPUSH list s3cret",
        "SADD set s3cret",
        "HSET hash s3cret 1",
        "ZADD zset 1 s3cret",
        "XADD stream * s3cret 1",
    ];
    for line in others {
        cli.reply(line);
        let key = line.split(' ').nth(1).unwrap();
        cli.reply(&format!("PEXPIRE {key} 60000"));
        let expires_at = cli.expires_at_ms(key);
        for line in [
            "ACQUIRE {} s3cret 1000",
            "EXTEND {} s3cret 1000",
            "RELEASE {} s3cret",
            "INSPECT {}",
            "REVOKE {}",
        ] {
            let line = format!("LOCK.{}", line.replace("{}", key));
            assert_eq!(refused(&mut cli, &command(&line)), WRONG_TYPE, "{line}");
        }
        assert_eq!(cli.expires_at_ms(key), expires_at);
    }
}

#[test]
fn full_server_refuses_new_locks_and_serves_held_ones() {
    let (_server, mut cli) = server_and_cli();
    cli.ask::<i64>("LOCK.ACQUIRE held a 30000");
    let expires_at = cli.expires_at_ms("held");
    cli.reply("CONFIG SET maxmemory 1");
    assert_eq!(
        refused(&mut cli, &command("LOCK.ACQUIRE k s3cret 1000")),
        "OOM command not allowed when used memory > 'maxmemory'."
    );
    cli.ask::<i64>("LOCK.EXTEND held a 60000");
    assert!(cli.expires_at_ms("held") > expires_at);
    cli.ask::<i64>("LOCK.EXTEND held a 60000 TOKEN b");
    assert_eq!(cli.reply("LOCK.RELEASE held b"), Int(1));
    cli.reply("CONFIG SET maxmemory 0");
    cli.ask::<i64>("LOCK.ACQUIRE k s3cret 1000");
}

#[test]
fn replica_refuses_commands_that_write() {
    let (_server, mut cli) = server_and_cli();
    cli.reply("SET foreign s3cret PX 60000");
    // No master answers at this port, so the server keeps its keys.
    cli.reply("REPLICAOF 127.0.0.1 1");
    for line in [
        "ACQUIRE k s3cret 1000",
        "EXTEND foreign s3cret 1000",
        "RELEASE foreign s3cret",
        "REVOKE foreign",
    ] {
        assert_eq!(
            refused(&mut cli, &command(&format!("LOCK.{line}"))),
            "READONLY You can't write against a read only replica."
        );
    }
    let shown: Vec<Value> = cli.ask("LOCK.INSPECT foreign");
    assert_eq!(shown[..4], [BulkString("owner".into()), Nil, BulkString("fence".into()), Nil]);
}

#[cfg(target_os = "linux")]
#[test]
fn huge_arguments_are_not_copied() {
    // The words before and after the argument.
    let refusals = [
        ("LOCK.ACQUIRE k", "1000", TOKEN_LENGTH),
        ("LOCK.ACQUIRE", "s3cret 0", TTL_RANGE),
        ("LOCK.ACQUIRE k s3cret", "", NOT_AN_INTEGER),
        ("LOCK.ACQUIRE k s3cret 1000 OWNER", "", OWNER_LENGTH),
        ("LOCK.ACQUIRE k s3cret 1000 FENCE", "", NOT_AN_INTEGER),
        ("LOCK.ACQUIRE k s3cret 1000", "1", UNKNOWN_TO_ACQUIRE),
        ("LOCK.EXTEND k", "1000", TOKEN_LENGTH),
        ("LOCK.EXTEND k s3cret 1000 TOKEN", "", TOKEN_LENGTH),
        ("LOCK.RELEASE k", "", TOKEN_LENGTH),
        ("LOCK.SCAN 0 MATCH", "", "ERR MATCH must be at most 255 bytes"),
    ];
    let names = [
        ("LOCK.RELEASE", "s3cret", Int(0)),
        ("LOCK.INSPECT", "", Nil),
        ("LOCK.REVOKE", "", Int(0)),
    ];
    let with = |before: &str, huge: &str, after: &str| {
        let mut command = command(before);
        command.arg(huge).arg(after.split_whitespace().collect::<Vec<_>>()).clone()
    };
    let copies = |ask: &dyn Fn(&mut RedisCli, &str)| {
        // Now and then, a server reads an argument into new memory. A copy comes on top, each time.
        (0..5).all(|_| memory_for(ask) > HUGE_BYTES / 2)
    };
    for (before, after, expected) in refusals {
        let ask = |cli: &mut RedisCli, huge: &str| {
            assert_eq!(refused(cli, &with(before, huge, after)), expected);
        };
        assert!(!copies(&ask), "{before} copies");
    }
    for (before, after, expected) in names {
        let ask = |cli: &mut RedisCli, huge: &str| {
            assert_eq!(cli.run::<Value>(&with(before, huge, after)), expected);
        };
        assert!(!copies(&ask), "{before} copies");
    }

    let appends = |cli: &mut RedisCli, huge: &str| {
        cli.reply("SET string 1");
        cli.run::<u64>(command("APPEND string").arg(huge));
    };
    assert!(copies(&appends), "the measurement detects a copy");
}

#[cfg(target_os = "linux")]
const HUGE_BYTES: u64 = 16 << 20;

/// By how many bytes `ask` raises the peak memory of a server that has received huge arguments.
#[cfg(target_os = "linux")]
fn memory_for(ask: &dyn Fn(&mut RedisCli, &str)) -> u64 {
    let (server, mut cli) = server_and_cli();
    let huge = "9".repeat(usize::try_from(HUGE_BYTES).unwrap());
    // EXISTS does not copy the name of the key. After three, the server has all its buffers.
    for _ in 0..3 {
        assert_eq!(cli.run::<Value>(command("EXISTS").arg(&huge)), Int(0));
    }
    let received = peak_memory(&server);
    assert!(received > HUGE_BYTES);
    ask(&mut cli, &huge);
    peak_memory(&server) - received
}

/// In bytes, including memory that was freed again.
#[cfg(target_os = "linux")]
fn peak_memory(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
