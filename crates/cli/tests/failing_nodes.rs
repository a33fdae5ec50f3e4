//! Nodes that hang, and nodes with hostile error texts: the subcommands end in time, name the
//! silent nodes, and escape what they print.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
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

#[track_caller]
fn output_in_time(command: &mut Command) -> Output {
    let started = Instant::now();
    let output = command.output().unwrap();
    let took = started.elapsed();
    assert!(took < AT_MOST, "{took:?}: {}{}", stdout(&output), stderr(&output));
    output
}

#[test]
fn run_that_does_not_wait_fails_soon_and_names_the_silent_nodes() {
    let nodes = two_hung_nodes();
    for options in [&["-n"][..], &["--wait", "1s"], &["-n", "--node-timeout", "500ms"]] {
        let output = output_in_time(&mut run_script(&nodes, options, "echo ran"));
        assert_eq!((code(output.status), stdout(&output)), (122, ""), "{options:?}");
        let said = stderr(&output);
        let [first, second, healthy] = [0, 1, 2].map(|node| address(&nodes[node]));
        for reason in [
            format!("{first}, {second}: not connected (no answer yet)"),
            format!("{healthy}: connected, and votes once enough of the other nodes are connected"),
        ] {
            assert!(said.contains(&reason), "{options:?}: {said}");
        }
    }
    let output = output_in_time(on(&nodes, "acquire").args(["k", "-n"]));
    assert_eq!(code(output.status), 122, "{}", stderr(&output));
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

#[test]
fn inspect_and_list_end_in_time_without_a_majority() {
    let nodes = two_hung_nodes();
    let free = format!("{}  free", address(&nodes[2]));
    eventually(PATIENCE, "the healthy node is shown", || {
        let output = output_in_time(on(&nodes, "inspect").arg("k"));
        assert_eq!(code(output.status), 122);
        stdout(&output).contains(&free)
    });
    assert_eq!(code(output_in_time(&mut on(&nodes, "list")).status), 122);
}

#[test]
fn status_and_doctor_show_the_healthy_node_and_end_within_two_time_limits() {
    let nodes = two_hung_nodes();
    let limited = |subcommand: &str| {
        let started = Instant::now();
        let output = on(&nodes, subcommand).args(["--node-timeout", "2s"]).output().unwrap();
        assert!(started.elapsed() < 2 * Duration::from_secs(2), "{:?}", started.elapsed());
        output
    };
    let output = limited("status");
    assert_eq!(code(output.status), 122);
    let text = stdout(&output);
    let state = |index: usize| {
        let line = text.lines().find(|line| line.contains(&address(&nodes[index]))).unwrap();
        line.split_whitespace().nth(1).unwrap()
    };
    assert_eq!([state(0), state(1), state(2)], ["down", "down", "voting"], "{text}");
    assert!(text.contains("1 of 3 nodes vote; a majority is 2"), "{text}");
    let output = limited("doctor");
    assert_eq!(code(output.status), 2, "{}", stdout(&output));
    assert_contains(stdout(&output), "no answer within 2000 ms");
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
}

/// The baseline: without escaping, the terminal receives the text as the node sent it.
#[test]
fn error_text_of_a_node_has_control_characters_before_it_is_escaped() {
    let client = redis::Client::open(format!("redis://{}", node(CONTROL_CODES))).unwrap();
    let result =
        client.get_connection().and_then(|mut connection| redis::cmd("PING").exec(&mut connection));
    assert!(result.unwrap_err().to_string().contains("\u{1b}[2J\u{9b}31m\u{202e}"));
}
