//! Wrong command lines: each exits with 125, and says what to write.

use crate::common::*;

/// What a user forgot who wrote the command of `quorlock run` directly after the key.
const SEPARATOR: &str = "write `--` before the command";

/// A line for the shell, in which no node can be reached, and a part of standard error.
const WRONG: [(&str, &str); 51] = [
    ("quorlock run k echo hi", SEPARATOR),
    ("quorlock run -n k echo -n", SEPARATOR),
    ("quorlock run k --ttl 5s true", SEPARATOR),
    ("quorlock run k --nonsense -- true", "--help"),
    ("quorlock run k l -- true", "--help"),
    ("quorlock run --ttl 10 k", "--help"),
    ("quorlock run --permits 0 k -- true", "--help"),
    ("quorlock run --permits 65 k -- true", "--help"),
    ("quorlock run --permits 2 --shared k -- true", "--help"),
    ("quorlock run k -c true -- true", "--help"),
    ("quorlock run k", "--help"),
    ("quorlock run", "--help"),
    ("quorlock release x y", "--help"),
    ("quorlock walk", "--help"),
    ("quorlock run '' -c true", "needs a name"),
    ("quorlock run k -c true --ttl 0", "ttl"),
    ("quorlock run k -c true --ttl 1ms", "at least 100ms"),
    ("quorlock run k -c true --node-timeout 2s", "--node-timeout must be"),
    ("quorlock run k -c true --kill-after 5s", "at most 4s, two fifths of the ttl"),
    ("quorlock run k -c true --owner $(printf %0257d 0)", "256 bytes"),
    ("quorlock run k -c true --cert node.pem", "--key"),
    ("quorlock run k -c true --nodes ''", "--nodes is empty"),
    ("quorlock run k -c true --nodes redis://h:1,redis://h:1", "listed twice"),
    ("quorlock run k -c true --nodes a:6379 --cacert ca.pem", "write rediss://a:6379"),
    ("quorlock run k -c true --nodes redis://a:6379 --cacert ca.pem", "rediss://"),
    ("unset QUORLOCK_NODES; quorlock run k -c true", "--nodes"),
    ("QUORLOCK_NODES= quorlock run k -c true", "QUORLOCK_NODES"),
    ("QUORLOCK_NODES=' , ' quorlock run k -c true", "redis://"),
    ("QUORLOCK_NODES= quorlock inspect k", "quorlock up"),
    ("quorlock list --limit=0", "1..=100000"),
    ("quorlock list --limit=100001", "1..=100000"),
    ("quorlock list '[bad'", "a [ has no ]"),
    (
        "quorlock revoke k",
        "nothing was revoked, because there is no terminal to ask on: add --yes after reading",
    ),
    ("quorlock status --node-timeout 0", "longer than 0"),
    ("quorlock top", "quorlock list --json"),
    ("quorlock exporter --listen 192.0.2.1:1", "choose another --listen"),
    ("quorlock restart-nodes elsewhere -- true", "elsewhere is not in the list"),
    ("quorlock restart-nodes -- echo restarted", "no majority while a node restarts"),
    ("quorlock up --server /no/such/file", "/no/such/file"),
    ("quorlock up --server /no/such/file", "--server"),
    ("quorlock up --module /no/such/file", "--module names /no/such/file"),
    ("quorlock up --module /no/such/file", "cargo build"),
    ("quorlock up --module /bin/sh -n 1", "/bin/sh"),
    ("QUORLOCK_SERVER=/no/such/file quorlock up", "QUORLOCK_SERVER names /no/such/file"),
    ("QUORLOCK_MODULE=/no/such/file quorlock up", "QUORLOCK_MODULE names /no/such/file"),
    ("QUORLOCK_MODULE=/no/such/file quorlock up", "name one with --module"),
    ("unset QUORLOCK_SERVER; Q=$(which quorlock); PATH=/nowhere $Q up", "install"),
    ("quorlock up -n 3 --port 65534", "choose a smaller --port"),
    ("quorlock __watchdog true", "only `quorlock run` starts a watchdog"),
    ("quorlock __manual", "name the folder"),
    ("quorlock __manual /dev/null/here", "/dev/null/here"),
];

#[test]
fn wrong_command_line_exits_with_125_and_says_what_to_write() {
    for (line, hint) in WRONG {
        let output = shell(line, "redis+unix:///nowhere").output().unwrap();
        assert_error(&output, 125, hint);
        let said = stderr(&output);
        assert!(hint == SEPARATOR || !said.contains(SEPARATOR), "{line}: {said}");
        assert_eq!(stdout(&output), "", "{line}");
    }
}
