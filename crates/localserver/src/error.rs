use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use crate::{BINARY_VARIABLE, MODULE_VARIABLE};

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The environment names a program that does not exist.
    #[error("{BINARY_VARIABLE} names {}, which is not a file: set it to the path of a redis-server or \
             valkey-server, or unset it to take the one on PATH", path.display())]
    NoSuchBinary {
        /// The value of the variable.
        path: PathBuf,
    },
    /// Neither `redis-server` nor `valkey-server` is on `PATH`.
    #[error(
        "neither redis-server nor valkey-server is on PATH: install Redis 7 or Valkey 8, or newer \
         (the packages are called redis-server and valkey-server), or set {BINARY_VARIABLE} to the \
         path of one"
    )]
    NoBinary,
    /// The environment names a file that does not exist.
    #[error(
        "{MODULE_VARIABLE} names {}, which is not a file: set it to the path of the built module, \
         or unset it to let the program search for the module",
        path.display()
    )]
    NoSuchModule {
        /// The value of the variable.
        path: PathBuf,
    },
    /// The module is at none of the expected paths.
    #[error(
        "the module is not at {}: install the package quorlock-module, or build it with \
         `cargo build -p quorlock`, for a release build with --release, or set {MODULE_VARIABLE} \
         to its path",
        display_paths(searched)
    )]
    NoModule {
        /// The paths that were tried.
        searched: Vec<PathBuf>,
    },
    /// The directory or the log of the server cannot be created.
    #[error("{} cannot be prepared for a server: {source}", path.display())]
    Directory {
        /// The directory or file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The port is in use, or no port is free.
    #[error("{}: {source}", display_unavailable(*port))]
    Port {
        /// The requested port; `None` for any free port.
        port: Option<u16>,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The program cannot be run.
    #[error("{} cannot be run: {source}", binary.display())]
    Spawn {
        /// The program.
        binary: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The server ended before it answered a PING.
    #[error(
        "the server ended before it answered a PING ({status}); the end of its log:\n{log_tail}"
    )]
    Exited {
        /// Its exit status.
        status: ExitStatus,
        /// The last lines of its log.
        log_tail: String,
    },
    /// The server runs, but does not answer a PING with PONG.
    #[error("the server did not answer a PING within {} ms; the end of its log:\n{log_tail}", limit.as_millis())]
    Silent {
        /// How long the start waited for an answer.
        limit: Duration,
        /// The last lines of its log.
        log_tail: String,
    },
}

/// Returns the last lines of a log or an output.
pub(crate) fn tail(text: &str, max_lines: usize) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(max_lines)..].join("\n")
}

fn display_unavailable(port: Option<u16>) -> String {
    match port {
        Some(port) => format!("port {port} of 127.0.0.1 is not available"),
        None => "no port of 127.0.0.1 is available".into(),
    }
}

fn display_paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" or at ")
}
