//! One server.
//!
//! - `builder`: the settings that a caller chooses, and the command line that a restart repeats
//! - `address`: where the server listens, the same for all restarts
//! - `directory`: the server's files and log
//! - `process`: the child process and its signals

mod address;
mod builder;
mod directory;
mod process;

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use std::{io, thread};

use self::address::Address;
pub use self::address::ReservedPort;
pub use self::builder::{ServerBuilder, StartHook};
use self::directory::Directory;
use self::process::Process;
use crate::error::tail;
use crate::{POLL_INTERVAL, StartError};

/// Time limit of one attempt to start, loading the data included.
const START_LIMIT: Duration = Duration::from_secs(10);

const LOG_TAIL_LINES: usize = 20;

/// Time limit for a server to end: more than the ten seconds that it waits for its replicas.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(15);

/// Time limit of each operation on a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// A Redis or Valkey server that runs until it is killed, shut down or dropped.
///
/// The server keeps its address and its directory over [`Server::kill`] and [`Server::restart`]. A
/// server that is dropped is killed and reaped, and its temporary directory is removed.
#[derive(Debug)]
pub struct Server {
    // This field precedes the directory: fields are dropped in order, and the process writes to the
    // directory until it ends.
    process: Option<Process>,
    settings: ServerBuilder,
    address: Address,
    directory: Directory,
}

impl Server {
    /// Name of the log in the directory of a server.
    pub const LOG_NAME: &str = "server.log";

    /// Returns the builder of a server without modules, on a unix socket, without data on disk.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Returns the builder of a server with the Quorlock module of
    /// [`module_path()`](crate::module_path()). The server votes at once, which is right only for a
    /// new server. Before a restart, set `lock.rejoin-delay` with [`Server::set_arg`].
    pub fn with_module() -> ServerBuilder {
        ServerBuilder::default().quorlock_module().arg("lock.rejoin-delay", 0)
    }

    /// Returns the address of the server, running or not: `redis://127.0.0.1:port/` or
    /// `redis+unix:///path`.
    pub fn url(&self) -> String {
        self.address.url()
    }

    /// Returns the port of the server, running or not.
    ///
    /// # Panics
    ///
    /// When the server listens on a unix socket.
    #[track_caller]
    pub fn port(&self) -> u16 {
        match self.address {
            Address::Tcp(ref port) => port.number(),
            Address::Unix(_) => panic!("the server at {} listens on no port", self.url()),
        }
    }

    /// Returns the id of the server's process.
    ///
    /// # Panics
    ///
    /// When the server was killed or shut down.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.process().id()
    }

    /// Returns the directory of the server's files.
    pub fn dir(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the last 4 MiB of the log. It contains earlier runs of this server, too, and of
    /// earlier servers in the same [directory](ServerBuilder::dir).
    pub fn log(&self) -> String {
        self.directory.log_after(0)
    }

    /// Returns a new connection, as [`Server::try_connection`] does.
    ///
    /// # Panics
    ///
    /// When the server cannot be reached.
    #[track_caller]
    pub fn connection(&self) -> redis::Connection {
        match self.try_connection() {
            Ok(connection) => connection,
            Err(error) => panic!("no connection to {}: {error}", self.url()),
        }
    }

    /// Returns a new connection, with a limit of 5 s for connecting, and for each read and write.
    pub fn try_connection(&self) -> redis::RedisResult<redis::Connection> {
        self.address.connect(CONNECTION_TIMEOUT)
    }

    /// Returns whether the process of the server runs. A paused process counts as running.
    pub fn is_running(&self) -> bool {
        self.process.as_ref().is_some_and(|process| !process.has_exited())
    }

    /// Sends SIGKILL, and returns when the process is reaped. A paused process ends without
    /// running on.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Sends SIGSTOP, and returns when all threads have stopped.
    ///
    /// # Panics
    ///
    /// When the server is not running.
    #[track_caller]
    pub fn pause(&self) {
        if let Err(error) = self.process().pause() {
            panic!("the server at {} cannot be paused: {error}", self.url());
        }
    }

    /// Sends SIGCONT. The server then answers the requests that it received while it was paused.
    ///
    /// # Panics
    ///
    /// When the server was killed or shut down.
    #[track_caller]
    pub fn resume(&self) {
        if let Err(error) = self.process().resume() {
            panic!("the server at {} cannot be resumed: {error}", self.url());
        }
    }

    /// Sends SIGTERM, as an operator would, and returns when the process is reaped. A paused
    /// process is continued, so that it handles the signal.
    ///
    /// Returns whether the process has ended within 15 s, and otherwise kills it. Returns `false`
    /// also after [`kill`](Self::kill) or an earlier call.
    pub fn shutdown(&mut self) -> bool {
        self.process.take().is_some_and(|process| process.terminate(SHUTDOWN_LIMIT))
    }

    /// Starts the server again with the same directory and address. Kills it first if it runs.
    pub fn restart(&mut self) -> Result<(), StartError> {
        self.kill();
        self.process = Some(self.launch()?);
        Ok(())
    }

    /// Sets a directive of redis.conf from the next [`Server::restart`] on.
    #[expect(clippy::needless_pass_by_value, reason = "callers pass numbers by value")]
    pub fn set_arg(&mut self, name: impl Into<String>, value: impl ToString) {
        self.settings.set(name.into(), value.to_string());
    }

    #[track_caller]
    fn process(&self) -> &Process {
        match &self.process {
            Some(process) => process,
            None => panic!("the server at {} is not running", self.url()),
        }
    }

    fn launch(&self) -> Result<Process, StartError> {
        let log = self.directory.log_for_appending()?;
        let log_again = self.directory.log_for_appending()?;
        let skipped_bytes = log.metadata().map_or(0, |metadata| metadata.len());
        let mut command = self.settings.command(&self.address);
        command.current_dir(self.dir()).stdin(Stdio::null()).stdout(log).stderr(log_again);
        let process = Process::spawn(&mut command).map_err(|source| self.spawn_error(source))?;
        self.wait_for_answer(process, skipped_bytes)
    }

    fn spawn_error(&self, source: io::Error) -> StartError {
        StartError::Spawn { binary: self.settings.binary.clone(), source }
    }

    /// Waits until the process answers. An error quotes the log after its first `skipped_bytes`.
    fn wait_for_answer(&self, process: Process, skipped_bytes: u64) -> Result<Process, StartError> {
        let started = Instant::now();
        let log_tail = || tail(&self.directory.log_after(skipped_bytes), LOG_TAIL_LINES);
        loop {
            let time_is_up = started.elapsed() >= START_LIMIT;
            if process.has_exited() {
                let status = process.wait().map_err(|source| self.spawn_error(source))?;
                return Err(StartError::Exited { status, log_tail: log_tail() });
            }
            if self.address.answers_ping() {
                return Ok(process);
            }
            if time_is_up {
                return Err(StartError::Silent { limit: START_LIMIT, log_tail: log_tail() });
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}
