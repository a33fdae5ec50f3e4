//! docs/commands.md contains every error reply that this test provokes, word for word.

use quorlock_testkit::Server;

const DOCUMENTED: &str = include_str!("../docs/commands.md");

#[test]
fn provoked_errors_are_documented_word_for_word() {
    let server = Server::with_module().start().expect("a server");
    let connection = &mut server.connection();
    let (long, empty) = ("x".repeat(257), "");
    redis::cmd("LPUSH").arg("list").arg("x").exec(connection).expect("a list");
    redis::cmd("LOCK.ACQUIRE").arg("held").arg("token").arg(9000).exec(connection).expect("a lock");
    let mut two = redis::cmd("LOCK.MACQUIRE");
    two.arg(2)
        .arg("one")
        .arg("two")
        .arg("token")
        .arg(9000)
        .exec(connection)
        .expect("a lock of two keys");

    redis::cmd("LOCK.ACQUIRE")
        .arg("revoked")
        .arg("token")
        .arg(9000)
        .exec(connection)
        .expect("a lock");
    redis::cmd("LOCK.REVOKE").arg("revoked").exec(connection).expect("it is revoked");
    redis::cmd("SET").arg("data").arg("x").exec(connection).expect("a string");

    redis::cmd("LOCK.ACQUIRE")
        .arg("shared")
        .arg("one")
        .arg(9000)
        .arg("SHARED")
        .exec(connection)
        .expect("a reader");
    redis::cmd("LOCK.ACQUIRE")
        .arg("shared")
        .arg("two")
        .arg(9000)
        .arg("SHARED")
        .exec(connection)
        .expect("a reader");

    let provoked: [&[&str]; 38] = [
        &["LOCK.ACQUIRE", "k"],
        &["LOCK.ACQUIRE", "k", "token", "1000", "FENCE"],
        &["LOCK.ACQUIRE", "k", "token", "soon"],
        &["LOCK.ACQUIRE", "k", "token", "0"],
        &["LOCK.ACQUIRE", "k", empty, "1000"],
        &["LOCK.ACQUIRE", "k", &long, "1000"],
        &["LOCK.ACQUIRE", "k", "token", "1000", "OWNER", &long],
        &["LOCK.ACQUIRE", "k", "token", "1000", "FENCE", "0"],
        &["LOCK.ACQUIRE", "k", "token", "1000", "WAIT", "-1"],
        &["LOCK.ACQUIRE", "k", "token", "1000", "COLOUR", "blue"],
        &["LOCK.EXTEND", "k", "token", "1000", "COLOUR", "blue"],
        &["LOCK.ACQUIRE", "k", "token", "1000", "FENCE", "5", "FENCE", "6"],
        &["LOCK.EXTEND", "held", "token", "1000", "FENCE", "1"],
        &["LOCK.EXTEND", "held", "token", "1000", "FENCE", "9007199254740991"],
        &["LOCK.ACQUIRE", "list", "token", "1000"],
        &["LOCK.RELEASE", "list", "token"],
        &["LOCK.INSPECT", "list"],
        &["LOCK.MACQUIRE", "0", "k", "token", "1000"],
        &["LOCK.MACQUIRE", "many", "k", "token", "1000"],
        &["LOCK.EXTEND", "one", "token", "1000"],
        &["LOCK.MACQUIRE", "1", "k", "token", "1000", "SHARED"],
        &["LOCK.ACQUIREANY", "1", "k", "token", "1000", "shared"],
        &["LOCK.MEXTEND", "1", "k", "token", "1000", "SHARED"],
        &["LOCK.ACQUIREANY", "1", "k", "token", "1000", "COLOUR", "blue"],
        &["LOCK.MEXTEND", "1", "k", "token", "1000", "COLOUR", "blue"],
        &["LOCK.EXTEND", "shared", "one", "1000", "TOKEN", "two"],
        &["LOCK.SCAN", "x"],
        &["LOCK.SCAN", "-1"],
        &["LOCK.SCAN", "0", "COUNT", "0"],
        &["LOCK.SCAN", "0", "COUNT", "1001"],
        &["LOCK.SCAN", "0", "MATCH", &long],
        &["LOCK.SCAN", "0", "TYPE", "string"],
        &["LOCK.REVOKE", "list"],
        &["LOCK.REVOKE", "k", "SOON"],
        &["LOCK.REVOKE", "k", "NOW", "NOW"],
        &["LOCK.REVOKE", "data"],
        &["LOCK.EXTEND", "revoked", "token", "1000"],
        &["LOCK.EXTEND", "revoked", "token", "1000", "TOKEN", "new"],
    ];
    for command in provoked {
        let mut ask = redis::Cmd::new();
        for argument in command {
            ask.arg(argument);
        }
        assert_documented(&ask, connection);
    }
    redis::cmd("CONFIG")
        .arg("SET")
        .arg("lock.max-waiters")
        .arg(0)
        .exec(connection)
        .expect("it can be set");
    assert_documented(
        redis::cmd("LOCK.ACQUIRE").arg("held").arg("other").arg(1000).arg("WAIT").arg(1000),
        connection,
    );
    let started = Server::with_module().arg("lock.rejoin-delay", -1).start().expect("a server");
    assert_documented(
        redis::cmd("LOCK.ACQUIRE").arg("k").arg("token").arg(1000),
        &mut started.connection(),
    );

    let mut not_text = redis::cmd("LOCK.ACQUIRE");
    not_text.arg("k").arg("token").arg(1000).arg("OWNER").arg(b"\xff".as_slice());
    assert_documented(&not_text, connection);
}

fn assert_documented(command: &redis::Cmd, connection: &mut redis::Connection) {
    let error = command.query::<redis::Value>(connection).expect_err("the command fails");
    let text = format!("{} {}", code(&error), error.detail().unwrap_or_default());
    let mut words: Vec<_> = text.split(' ').map(generic).collect();
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

fn code(error: &redis::RedisError) -> &str {
    error.code().unwrap_or("ERR")
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
