//! Refused commands: the right error, no trace, and no harm to the server.
//!
//! docs/commands.md contains every error reply that the last test provokes, word for word.

use crate::common::{RedisCli, Waiter, command, info, server_and_cli, worker_on_k};
use quorlock_testkit::Server;
use redis::Cmd;
use redis::Value::{self, BulkString, Int, Nil};

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const TTL_RANGE: &str = "ERR ttl must be between 1 and 60000 milliseconds (lock.max-ttl)";
const TOKEN_LENGTH: &str =
    "ERR token must be 1 to 256 bytes: use at least 16 random bytes, new for every attempt";
const OWNER_LENGTH: &str = "ERR OWNER must be at most 256 bytes: it is a label for people to read";
const OWNER_NOT_TEXT: &str = "ERR OWNER must be UTF-8: it is a label for people to read";
const UNKNOWN_TO_ACQUIRE: &str =
    "ERR syntax error: only SHARED, WAIT ms, FENCE n and OWNER label may follow the ttl";

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
    assert_documented(&error);
    error
}

#[test]
fn invalid_arguments_are_refused() {
    let (_server, mut cli) = server_and_cli();
    let mut expected = "";
    for line in include_str!("refused.txt").lines().skip(1) {
        let Some(line) = line.strip_prefix("    ") else {
            expected = line;
            continue;
        };
        let error = refused(&mut cli, &command(&format!("LOCK.{line}")));
        assert!(error.starts_with(expected), "{line}: {error}");
    }
}

#[test]
fn number_in_another_form_is_refused() {
    let (_server, mut cli) = server_and_cli();
    for number in ["", "1.5", "0x10", "+1000", "01000", " 1000", "1000\0", "9223372036854775808"] {
        for line in ["LOCK.ACQUIRE k s3cret", "LOCK.EXTEND k s3cret 1000 FENCE"] {
            let error = refused(&mut cli, command(line).arg(number));
            assert_eq!(error, NOT_AN_INTEGER, "{line} {number:?}");
        }
    }
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
        "LOCK.ACQUIRE @ other 1000 WAIT 1000",
        "LOCK.ACQUIRE @ other 1000 SHARED",
        "LOCK.MACQUIRE 2 k @ other 1000",
        "LOCK.ACQUIREANY 2 k @ other 1000",
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
    let longest = "x".repeat(256);
    let odd = ODD_BYTES.into_iter().filter_map(|label| str::from_utf8(label).ok());
    for label in odd.chain(["", "Zoë's ✂", &longest]) {
        cli.run::<i64>(command("LOCK.ACQUIRE k a 60000 OWNER").arg(label));
        assert_eq!(cli.ask::<Vec<Value>>("LOCK.INSPECT k")[1], BulkString(label.into()));
        cli.reply("LOCK.RELEASE k a");
    }
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
fn huge_arguments_are_not_copied() {
    // The words before and after the argument.
    let refusals = [
        ("LOCK.ACQUIRE k", "1000", TOKEN_LENGTH),
        ("LOCK.ACQUIRE", "s3cret 0", TTL_RANGE),
        ("LOCK.ACQUIRE k s3cret 1000 OWNER", "", OWNER_LENGTH),
        ("LOCK.ACQUIRE k s3cret 1000", "1", UNKNOWN_TO_ACQUIRE),
        ("LOCK.EXTEND k s3cret 1000 TOKEN", "", TOKEN_LENGTH),
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

const HUGE_BYTES: u64 = 16 << 20;

/// By how many bytes `ask` raises the peak memory of a server that has received huge arguments.
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
fn peak_memory(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

const OUT_OF_RANGE: &str = "ERR numkeys must be between 1 and 64";

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
    let mut worker = worker_on_k(&server, &mut admin);
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
                assert_documented(&error);
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

const DOCUMENTED: &str = include_str!("../docs/commands.md");

#[test]
fn provoked_errors_are_documented_word_for_word() {
    let (server, mut cli) = server_and_cli();
    let (done, provoked) = include_str!("provoked.txt").split_once("\n\n").unwrap();
    for line in done.lines().skip(1) {
        cli.reply(line);
    }
    let _waiter = Waiter::new(&server, "LOCK.ACQUIRE held waiting 1000 WAIT 60000");
    for line in provoked.lines() {
        assert_documented(&cli.error(line));
    }
    let pattern = "x".repeat(257);
    assert_documented(&cli.error(&format!("LOCK.SCAN 0 MATCH {pattern}")));
    cli.reply("CONFIG SET lock.max-waiters 0");
    assert_documented(&cli.error("LOCK.ACQUIRE held other 1000 WAIT 1000"));
    let abstaining = Server::with_module().arg("lock.rejoin-delay", -1).start().expect("a server");
    assert_documented(&RedisCli::new(&abstaining).error("LOCK.ACQUIRE k token 1000"));
}

fn assert_documented(error: &str) {
    let mut words: Vec<_> = error.split(' ').map(generic).collect();
    // In these errors, the documentation writes 7 for a number that varies.
    if words[0] == "ABSTAIN" || words[2] == "clients" {
        "7".clone_into(&mut words[1]);
    }
    if words[0] == "ABSTAIN" || words[0] == "REVOKED" {
        for word in &mut words[1..] {
            if word.parse::<u64>().is_ok() {
                "7".clone_into(word);
            }
        }
    }
    let text = words.join(" ");
    assert!(DOCUMENTED.contains(&format!("`{text}`")), "docs/commands.md lacks: {text}");
}

/// Replaces a word that varies from error to error by its placeholder in the documentation.
fn generic(word: &str) -> String {
    let number = word.trim_end_matches(':');
    let is_fence =
        number.len() > 10 && number != "9007199254740991" && number.parse::<u64>().is_ok();
    if is_fence {
        word.replace(number, "7")
    } else if word.starts_with("'lock.") {
        "'…'".to_owned()
    } else {
        word.to_owned()
    }
}
