//! What `quorlock run` and its watchdog tell each other: messages of one line of JSON each, and the
//! order to release the lock.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Context as _;
use quorlock_client::DetachedLock;
use quorlock_core::quorum::Moment;
use quorlock_core::{StopSchedule, Ttl};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::SendFlags;
use serde::{Deserialize, Serialize};
use tokio::net::unix::OwnedWriteHalf;
use tokio::time::timeout;

use crate::nodes::SecretNodes;
use crate::process_tree::Group;

/// A message from `quorlock run` to the watchdog.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) enum Instruction {
    Begin(Begin),
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

/// Sends one message without waiting. Returns `false` if the reader is gone. Ignores other errors:
/// the reader's silence shows that it is stuck.
pub(super) fn send(connection: &OwnedWriteHalf, message: &impl Serialize) -> bool {
    let Ok(line) = serde_json::to_string(message) else { return true };
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::net::send(connection.as_ref(), (line + "\n").as_bytes(), flags);
    !matches!(sent, Err(Errno::PIPE | Errno::CONNRESET))
}

/// How long the watchdog tries to release the lock. A lease that remains on a node ends by its ttl.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// What the watchdog needs to release the lock if `quorlock run` is gone. It contains the token and
/// passwords: never print it.
#[derive(Deserialize, Serialize)]
pub(crate) struct ReleaseOrder {
    /// The text of a [`DetachedLock`].
    pub(crate) handle: String,
    pub(crate) nodes: SecretNodes,
}

impl ReleaseOrder {
    /// Writes the order to a file in memory, from which [`read`](Self::read) reads it. Certificates
    /// may need more space than a socket has.
    pub(super) fn write(&self) -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create("quorlock", MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        file.rewind()?;
        Ok(file.into())
    }

    /// Reads and closes the file.
    pub(super) fn read(file: OwnedFd) -> anyhow::Result<Self> {
        let mut text = String::new();
        File::from(file).read_to_string(&mut text)?;
        // The error of serde would quote the text.
        serde_json::from_str(&text).ok().context("the order to release the lock is incomplete")
    }

    /// Releases the lock on all nodes, unless it has ended or has another token. Ignores errors: no
    /// process is left to report them to.
    pub(super) async fn carry_out(self) {
        let release = async {
            let handle: DetachedLock = self.handle.parse()?;
            let quorum = self.nodes.connect().await?;
            let _ = quorum.release_detached(handle).await;
            // Waits for the nodes beyond the majority, and repeats failed requests.
            quorum.flush(RELEASE_LIMIT).await?;
            anyhow::Ok(())
        };
        let _ = timeout(RELEASE_LIMIT, release).await;
    }
}
