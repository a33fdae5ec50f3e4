//! Error texts of a hostile node, as the program prints them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use common::{code, quorlock, stderr, stdout};

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
fn error_text_of_a_node_cannot_control_the_terminal() {
    for words in COMMAND_LINES {
        let text = printed(CONTROL_CODES, words);
        assert!(text.contains("owned"), "{words:?} does not show the error: {text:?}");
        let is_plain = |c: char| c == '\n' || !(c.is_control() || c == '\u{202e}');
        assert!(text.chars().all(is_plain), "{words:?}: {text:?}");
    }
}

#[test]
fn error_text_of_a_node_cannot_imitate_a_message() {
    for words in COMMAND_LINES {
        let text = printed(FAKE_MESSAGE, words);
        assert!(text.contains("acquired after"), "{words:?} does not show the error: {text:?}");
        assert!(
            text.lines().all(|line| !line.starts_with("quorlock: acquired")),
            "{words:?}: {text}"
        );
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
