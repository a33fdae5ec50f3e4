//! Nodes that hang, and nodes with hostile error texts: the subcommands end in time, name the
//! silent nodes, and escape what they print.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use quorlock_testkit::{Nodes, Server, eventually};

/// More than each of these subcommands takes, and less than the client's default limit to connect.
const AT_MOST: Duration = Duration::from_secs(4);

/// Three nodes, of which only the last one answers.
fn two_hung_nodes() -> Nodes {
    let nodes = Nodes::start_with(3, |_, node| node.tcp()).unwrap();
    nodes.iter().take(2).for_each(Server::pause);
    nodes
}

#[test]
fn subcommands_end_in_time_and_name_the_nodes_that_hang() {
    let nodes = two_hung_nodes();
    let [first, second, healthy] = [0, 1, 2].map(|node| address(&nodes[node]));
    let silent = &format!("{first}, {second}: not connected (no answer yet)");
    let healthy_awaits =
        &format!("{healthy}: connected, and votes once enough of the other nodes are connected");
    for (words, expected, shown) in [
        (&["run", "k", "-n", "-c", "echo ran"][..], 122, [silent, healthy_awaits]),
        (
            &["run", "k", "--wait", "1s", "-E", "99", "-c", "echo ran"],
            122,
            [silent, healthy_awaits],
        ),
        (
            &["run", "k", "-n", "--node-timeout", "500ms", "-c", "echo ran"],
            122,
            [silent, healthy_awaits],
        ),
        (&["acquire", "k", "-n"], 122, [silent, healthy_awaits]),
        (&["inspect", "k"], 122, [&first, &format!("{healthy}  free")]),
        (&["list"], 122, [&first, &second]),
        (&["status"], 122, [&format!("{first}  down"), &format!("{healthy}  voting")]),
        (&["doctor"], 2, [&first, &"1 of 3 nodes vote".to_owned()]),
    ] {
        let mut command = on(&nodes, words[0]);
        command.args(&words[1..]);
        eventually(PATIENCE, "each node is named", || {
            let started = Instant::now();
            let output = command.output().unwrap();
            let took = started.elapsed();
            let text = [stdout(&output), stderr(&output)].concat();
            assert!(took < AT_MOST, "{took:?}: {text}");
            assert_eq!(code(output.status), expected, "{words:?}: {text}");
            assert!(!text.contains("ran\n"), "{words:?}: {text}");
            shown.iter().all(|part| text.contains(*part))
        });
    }
}

#[test]
fn node_timeout_bounds_the_time_to_connect() {
    let nodes = two_hung_nodes();
    eventually(PATIENCE, "a run takes less than the second that it takes by default", || {
        let started = Instant::now();
        let output = run_script(&nodes, &["-n", "--node-timeout", "10ms"], ":").output().unwrap();
        assert_eq!(code(output.status), 122);
        started.elapsed() < Duration::from_secs(1)
    });
}

/// An error that sets the title of the terminal, clears the screen, changes the colour with a C1
/// code, and reverses the order of the text that follows.
const CONTROL_CODES: &str = "-ERR \u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{202e}no\r\n";
/// A RESP3 bulk error whose second line looks like a message of the program.
const FAKE_MESSAGE: &str = "!37\r\nERR no\nquorlock: acquired after 1.0ms\r\n";

/// Starts a node that answers each command with this error, and returns its address.
fn node(error: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(&stream, error));
        }
    });
    address
}

fn answer(mut stream: &TcpStream, error: &str) {
    for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
        let is_command = line.starts_with(b"*");
        if is_command && stream.write_all(error.as_bytes()).is_err() {
            return;
        }
    }
}

/// What the program prints on both outputs with a node that answers this error.
fn printed(error: &'static str, words: &[&str]) -> String {
    let nodes = format!("redis://{}", node(error));
    let output = quorlock().args(words).env("QUORLOCK_NODES", nodes).output().unwrap();
    assert_ne!(code(output.status), 0, "{words:?}");
    format!("{}{}", stdout(&output), stderr(&output))
}

const COMMAND_LINES: [&[&str]; 8] = [
    &["run", "k", "--wait", "50ms", "--", "true"],
    &["acquire", "k", "--no-wait"],
    &["inspect", "k"],
    &["list"],
    &["revoke", "k", "--yes"],
    &["status"],
    &["status", "--json"],
    &["doctor"],
];

#[test]
fn error_of_a_node_neither_controls_the_terminal_nor_imitates_messages() {
    for words in COMMAND_LINES {
        let text = printed(CONTROL_CODES, words);
        assert!(text.contains("owned"), "{words:?} does not show the error: {text:?}");
        let is_plain = |c: char| c == '\n' || !(c.is_control() || c == '\u{202e}');
        assert!(text.chars().all(is_plain), "{words:?}: {text:?}");
        let text = printed(FAKE_MESSAGE, words);
        assert!(text.contains("acquired after"), "{words:?} does not show the error: {text:?}");
        assert!(!text.contains("\nquorlock: acquired"), "{words:?}: {text}");
    }
    // The baseline: without escaping, the terminal receives the text as the node sent it.
    let client = redis::Client::open(format!("redis://{}", node(CONTROL_CODES))).unwrap();
    let result =
        client.get_connection().and_then(|mut connection| redis::cmd("PING").exec(&mut connection));
    assert_contains(&result.unwrap_err().to_string(), "\u{1b}[2J\u{9b}31m\u{202e}");
}
