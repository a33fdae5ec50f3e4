//! A second process, which starts the command, and stops it in time even if `quorlock run` cannot.
//!
//! `quorlock run` may be stopped (SIGSTOP, Ctrl-Z) or killed (SIGKILL, out of memory) while the
//! command runs. The watchdog knows the deadline of the lock, and is the parent of the command. It
//! is in a process group of its own, where the terminal's signals do not reach it. If `quorlock
//! run` is gone, the watchdog stops the command, and then releases the lock.
//!
//! This module has its handle in `quorlock run`, and what the two tell each other: the order at the
//! start, and messages of one line of JSON each. [`process`] is the watchdog itself.

mod process;

use std::ffi::OsString;
use std::io::{self, IoSlice, stdin};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use quorlock_client::DetachedLock;
use quorlock_core::quorum::Moment;
use quorlock_core::{StopSchedule, Ttl};
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use crate::nodes::{CONNECT_LIMIT, SECRET_VARIABLES, SecretNodes};
use crate::process_tree::{Group, ProcessTree, become_subreaper, children};

pub(crate) use process::{SUBCOMMAND, main};

/// The running program, even after its file was replaced.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// How long the watchdog may take to read its order.
const ORDER_LIMIT: Duration = Duration::from_secs(5);

/// The watchdog, as `quorlock run` sees it.
pub(crate) struct WatchdogHandle {
    process: Pid,
    /// The command; `None` until the watchdog reports its start.
    leader: Option<Pid>,
    group: Group,
    /// Children that this process had before the watchdog.
    other_children: Vec<Pid>,
    connection: Connection,
}

/// The environment variable for the number of the slot, if the lock is a permit.
pub(crate) const PERMIT_VARIABLE: &str = "QUORLOCK_PERMIT";

impl WatchdogHandle {
    pub(crate) async fn start(
        order: &Order,
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, OsString)>,
    ) -> io::Result<Self> {
        // If the watchdog is killed, this process becomes the parent of its children.
        become_subreaper()?;
        let other_children = children();
        let (ours, theirs) = net::UnixStream::pair()?;
        let mut watchdog = Command::new(THIS_PROGRAM);
        watchdog.arg0("quorlock").arg(SUBCOMMAND).args(command);
        for name in SECRET_VARIABLES {
            watchdog.env_remove(name);
        }
        // An outer `quorlock run` may have set this variable, although this lock is no permit.
        watchdog.env_remove(PERMIT_VARIABLE).envs(environment);
        watchdog.stdin(OwnedFd::from(theirs)).process_group(0);
        let process = Pid::from_child(&watchdog.spawn()?);
        // Closes this process's copy of `theirs`.
        drop(watchdog);
        send_descriptor(&ours, stdin().as_fd())?;
        let (group, mut connection) = (order.begin.group, Connection::new(ours)?);
        let line = [&serde_json::to_vec(order)?[..], b"\n"].concat();
        let sent = timeout(ORDER_LIMIT, connection.writer.write_all(&line)).await;
        let late = |_| Err(io::Error::other("it did not take its order in time"));
        sent.unwrap_or_else(late)?;
        Ok(Self { process, leader: None, group, other_children, connection })
    }

    /// Sends an instruction without waiting. If the watchdog is stuck, `quorlock run` stops the
    /// command with [`take_over`](Self::take_over) once the kill is overdue.
    pub(crate) fn send_instruction(&self, instruction: &Instruction) {
        self.connection.send(instruction);
    }

    /// Waits for the next report; `None` when the watchdog is gone or sent something unexpected.
    ///
    /// # Cancel safety
    /// Dropping the future loses no report.
    pub(crate) async fn next_report(&mut self) -> Option<Report> {
        let report = self.connection.next().await?;
        if let Report::Started(leader) = report {
            self.leader = Pid::from_raw(leader);
        }
        Some(report)
    }

    /// Kills the watchdog. Then stops the command and all that it started, as `schedule` says.
    pub(crate) async fn take_over(self, schedule: &mut StopSchedule) -> io::Result<()> {
        // The watchdog is not reaped yet, so no other process has its process id.
        let _ = kill_process(self.process, Signal::KILL);
        let _ = waitpid(Some(self.process), WaitOptions::empty());
        ProcessTree::adopt(self.leader, self.group, self.other_children)?.stop(schedule).await;
        Ok(())
    }
}

/// Sends the watchdog its standard input, which until then is its end of the connection.
fn send_descriptor(connection: &net::UnixStream, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(connection, &[IoSlice::new(b"\n")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// A message from `quorlock run` to the watchdog.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) enum Instruction {
    /// The lock is valid until this moment.
    Extended(#[serde(with = "MomentFields")] Moment),
    /// The nodes say that the lock has ended.
    Lost,
    /// The number of a signal to pass on to the command.
    PassOn(i32),
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Begin {
    pub(crate) ttl_ms: u64,
    /// The time from SIGTERM to SIGKILL; `None` for the default.
    pub(crate) kill_after: Option<Duration>,
    pub(crate) group: Group,
    /// Whether the command counts as ended only when all that it started has ended.
    pub(crate) wait_all: bool,
    /// The end of the validity.
    #[serde(with = "MomentFields")]
    pub(crate) deadline: Moment,
}

/// A message from the watchdog to `quorlock run`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) enum Report {
    /// With the process id of the command.
    Started(i32),
    /// With the number of the system's error.
    NotStarted(i32),
    /// Too little of the validity was left to start the command.
    TooLate,
    /// The command was sent SIGTERM or SIGKILL, because the lock was lost or not extended.
    Stopping,
    /// The command has ended, with this wait status. If it was stopped, or with `wait_all`, all
    /// that it started has ended too.
    Ended(i32),
}

#[derive(Deserialize, Serialize)]
#[serde(remote = "Moment")]
struct MomentFields {
    boot: Duration,
    raw: Duration,
}

impl Begin {
    pub(crate) fn schedule(&self) -> anyhow::Result<StopSchedule> {
        Ok(StopSchedule::new(Ttl::from_ms(self.ttl_ms)?, self.kill_after, self.deadline)?)
    }
}

/// One end of the connection between the two, whose messages are lines of JSON.
struct Connection {
    lines: Lines<BufReader<OwnedReadHalf>>,
    writer: OwnedWriteHalf,
}

impl Connection {
    fn new(stream: net::UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (reader, writer) = UnixStream::from_std(stream)?.into_split();
        Ok(Self { lines: BufReader::new(reader).lines(), writer })
    }

    /// Sends one message without waiting. Returns `false` if the reader is gone. Ignores other
    /// errors: the reader's silence shows that it is stuck.
    fn send(&self, message: &impl Serialize) -> bool {
        let Ok(line) = serde_json::to_string(message) else { return true };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = rustix::net::send(self.writer.as_ref(), (line + "\n").as_bytes(), flags);
        !matches!(sent, Err(Errno::PIPE | Errno::CONNRESET))
    }

    /// Waits for the next message; `None` when the other process is gone or sent something else.
    ///
    /// # Cancel safety
    /// Dropping the future loses no message.
    async fn next<T: DeserializeOwned>(&mut self) -> Option<T> {
        serde_json::from_str(&self.lines.next_line().await.ok()??).ok()
    }
}

/// How long the watchdog tries to release the lock. A lease that remains on a node ends by its ttl.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// The first line to the watchdog: what it does, and what it needs to release the lock if `quorlock
/// run` is gone. It contains the token and passwords, and so is neither an argument nor in the
/// environment: never print it.
#[derive(Deserialize, Serialize)]
pub(crate) struct Order {
    pub(crate) begin: Begin,
    /// The text of a [`DetachedLock`].
    pub(crate) handle: String,
    pub(crate) nodes: SecretNodes,
}

impl Order {
    /// Releases the lock on all nodes, unless it has ended or has another token. Ignores errors: no
    /// process is left to report them to.
    async fn release(self) {
        let release = async {
            let handle: DetachedLock = self.handle.parse()?;
            let nodes = self.nodes.builder().connect_timeout(CONNECT_LIMIT);
            let quorum = nodes.connect().await?;
            let _ = quorum.release_detached(handle).await;
            // Waits for the nodes beyond the majority, and repeats failed requests.
            quorum.flush(RELEASE_LIMIT).await?;
            anyhow::Ok(())
        };
        let _ = timeout(RELEASE_LIMIT, release).await;
    }
}
