use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use crate::{BINARY_VARIABLE, MODULE_VARIABLE};

/// Why there is no server program to start.
#[derive(Debug, thiserror::Error)]
pub enum BinaryError {
    /// The environment names a program that does not exist.
    #[error("{BINARY_VARIABLE} names {}, which is not a file: set it to the path of a redis-server or \
             valkey-server, or unset it to take the one on PATH", path.display())]
    NoSuchFile {
        /// What the environment says.
        path: PathBuf,
    },
    /// Neither program is installed.
    #[error(
        "neither redis-server nor valkey-server is on PATH: install Redis 7 or Valkey 7.2 or newer (the packages \
             are called redis-server and valkey-server), or set {BINARY_VARIABLE} to the path of one"
    )]
    NotInstalled,
}

/// Why there is no module to load.
// Clone, because the one attempt of a process to build it is remembered for all who ask.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ModuleError {
    /// The environment names a file that does not exist.
    #[error("{MODULE_VARIABLE} names {}, which is not a file: set it to the path of the built module, or unset it \
             to take the one of this workspace", path.display())]
    NoSuchFile {
        /// What the environment says.
        path: PathBuf,
    },
    /// It is in none of the places where a build leaves it, and this program does not run where it could be built.
    #[error(
        "the module is neither at {}: install the package quorlock-module, or build it with \
             `cargo build --release -p quorlock`, or set {MODULE_VARIABLE} to its path",
        display_paths(looked_at)
    )]
    NotFound {
        /// Where it was looked for.
        looked_at: Vec<PathBuf>,
    },
    /// Cargo could not be run to build it.
    #[error(
        "cargo could not be run to build the module: {source}; build it with `cargo build -p quorlock`, or set \
             {MODULE_VARIABLE} to its path"
    )]
    NoCargo {
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// Cargo ran, and left no module where it was expected.
    #[error("`cargo build -p quorlock` did not make {} ({status}): run it by hand and repair what it reports, or set \
             {MODULE_VARIABLE} to the path of a built module\n{output_tail}", path.display())]
    NotBuilt {
        /// Where the module should now be.
        path: PathBuf,
        /// How cargo ended.
        status: ExitStatus,
        /// The last lines of what cargo said.
        output_tail: String,
    },
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no server program.
    #[error(transparent)]
    Binary(#[from] BinaryError),
    /// There is no module to load into it.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// Its directory or its log cannot be made.
    #[error("{} cannot be prepared for a server: {source}", path.display())]
    Directory {
        /// Which directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system would cut off the path of its socket.
    #[error("{} is {length_bytes} bytes long, and the path of a unix socket may have {limit_bytes}: choose a shorter \
             directory, or let the server listen on TCP", path.display())]
    SocketPathTooLong {
        /// The path that is too long.
        path: PathBuf,
        /// Its length in bytes.
        length_bytes: usize,
        /// The limit in bytes.
        limit_bytes: usize,
    },
    /// The port is taken, or there is none left.
    #[error("port {port} of 127.0.0.1 cannot be had: {source}", port = port.map_or("any".into(), |port| port.to_string()))]
    Port {
        /// The port that was asked for; none when any would have done.
        port: Option<u16>,
        /// What the system said.
        source: io::Error,
    },
    /// The program cannot be run at all.
    #[error("{} cannot be run: {source}", binary.display())]
    Spawn {
        /// Which program.
        binary: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The server ended before it answered a PING.
    #[error("the server ended before it answered a PING ({status}); the end of its log:\n{log_tail}")]
    Exited {
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its log.
        log_tail: String,
    },
    /// The server runs and does not answer a PING with PONG.
    #[error("the server did not answer a PING within {} ms; the end of its log:\n{log_tail}", limit.as_millis())]
    Silent {
        /// How long it was waited for.
        limit: Duration,
        /// The last lines of its log.
        log_tail: String,
    },
}

fn display_paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" nor at ")
}
