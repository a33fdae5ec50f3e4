//! docs/commands.md contains every error reply that this test provokes, word for word.

use crate::common::{Waiter, command};
use quorlock_testkit::Server;

const DOCUMENTED: &str = include_str!("../docs/commands.md");

#[test]
fn provoked_errors_are_documented_word_for_word() {
    let server = Server::with_module().start().expect("a server");
    let connection = &mut server.connection();
    for line in [
        "LPUSH list x",
        "SET data x",
        "LOCK.ACQUIRE held token 9000",
        "LOCK.MACQUIRE 2 one two token 9000",
        "LOCK.ACQUIRE revoked token 9000",
        "LOCK.REVOKE revoked",
        "LOCK.ACQUIRE ticket token 9000 FENCE 2",
        "LOCK.ACQUIRE shared one 9000 SHARED",
        "LOCK.ACQUIRE shared two 9000 SHARED",
    ] {
        command(line).exec(connection).expect(line);
    }

    let _waiter = Waiter::new(&server, "LOCK.ACQUIRE held waiting 1000 WAIT 60000");

    let (long, empty, long_key) = ("x".repeat(257), "", "k".repeat(65_537));
    let provoked: [&[&str]; 44] = [
        &["LOCK.ACQUIRE", &long_key, "token", "1000"],
        &["LOCK.ACQUIRE", "k"],
        &["LOCK.ACQUIRE", "k", "token", "1000", "FENCE"],
        &["LOCK.ACQUIRE", "k", "token", "soon"],
        &["LOCK.ACQUIRE", "k", "token", "0"],
        &["LOCK.ACQUIRE", "k", empty, "1000"],
        &["LOCK.ACQUIRE", "k", &long, "1000"],
        &["LOCK.ACQUIRE", "k", "token", "1000", "OWNER", &long],
        &["LOCK.ACQUIRE", "k", "token", "1000", "FENCE", "-1"],
        &["LOCK.EXTEND", "k", "token", "1000", "FENCE", "0"],
        &["LOCK.ACQUIRE", "k", "token", "1000", "FENCE", "9007199254740991"],
        &["LOCK.ACQUIRE", "held", "other", "1000", "FENCE", "5"],
        &["LOCK.ACQUIRE", "ticket", "other", "1000", "FENCE", "1"],
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
        &["LOCK.ACQUIRE", "held", "waiting", "1000", "WAIT", "9000"],
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
    for words in provoked {
        assert_documented(redis::Cmd::new().arg(words), connection);
    }
    command("CONFIG SET lock.max-waiters 0").exec(connection).expect("it can be set");
    assert_documented(&command("LOCK.ACQUIRE held other 1000 WAIT 1000"), connection);
    let abstaining = Server::with_module().arg("lock.rejoin-delay", -1).start().expect("a server");
    assert_documented(&command("LOCK.ACQUIRE k token 1000"), &mut abstaining.connection());

    let mut not_text = command("LOCK.ACQUIRE k token 1000 OWNER");
    assert_documented(not_text.arg(b"\xff".as_slice()), connection);
}

fn assert_documented(command: &redis::Cmd, connection: &mut redis::Connection) {
    let error = command.query::<redis::Value>(connection).expect_err("the command fails");
    let code = error.code().unwrap_or("ERR");
    let text = format!("{code} {}", error.detail().unwrap_or_default());
    let mut words: Vec<_> = text.split(' ').map(generic).collect();
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
