//! A second process, which starts the command, and stops it in time even if `quorlock run` cannot.
//!
//! `quorlock run` may be stopped (SIGSTOP, Ctrl-Z) or killed (SIGKILL, out of memory) while the
//! command runs. The watchdog knows the deadline of the lock, and is the parent of the command. It
//! is in a process group of its own, where the terminal's signals do not reach it. If `quorlock
//! run` is gone, the watchdog stops the command, and then releases the lock.
//!
//! - [`process`]: the watchdog itself.
//! - [`wire`]: what `quorlock run` and the watchdog tell each other.

mod process;
mod wire;

use std::ffi::OsString;
use std::io::{self, IoSlice, stdin};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use quorlock_core::StopSchedule;
use rustix::cmsg_space;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::nodes::SECRET_VARIABLES;
use crate::process_tree::{Group, ProcessTree, become_subreaper, children};

pub(crate) use process::{SUBCOMMAND, main};
pub(crate) use wire::{Begin, Instruction, ReleaseOrder, Report};

/// The running program, even after its file was replaced.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// How many descriptors the watchdog receives at its start.
const DESCRIPTORS: usize = 2;

/// The watchdog, as `quorlock run` sees it.
pub(crate) struct WatchdogHandle {
    process: Pid,
    /// The command; `None` until the watchdog reports its start.
    leader: Option<Pid>,
    group: Group,
    /// Children that this process had before the watchdog.
    other_children: Vec<Pid>,
    reports: Lines<BufReader<OwnedReadHalf>>,
    instructions: OwnedWriteHalf,
}

/// The environment variable for the number of the slot, if the lock is a permit.
pub(crate) const PERMIT_VARIABLE: &str = "QUORLOCK_PERMIT";

impl WatchdogHandle {
    pub(crate) fn start(
        begin: Begin,
        release_order: &ReleaseOrder,
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, OsString)>,
    ) -> io::Result<Self> {
        // If the watchdog is killed, this process becomes the parent of its children.
        become_subreaper()?;
        let other_children = children();
        let release_order = release_order.write()?;
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
        send_descriptors(&ours, [stdin().as_fd(), release_order.as_fd()])?;
        ours.set_nonblocking(true)?;
        let (reports, instructions) = UnixStream::from_std(ours)?.into_split();
        let reports = BufReader::new(reports).lines();
        let watchdog = Self {
            process,
            leader: None,
            group: begin.group,
            other_children,
            reports,
            instructions,
        };
        watchdog.send_instruction(&Instruction::Begin(begin));
        Ok(watchdog)
    }

    /// Sends an instruction without waiting. If the watchdog is stuck, `quorlock run` stops the
    /// command with [`take_over`](Self::take_over) once the kill is overdue.
    pub(crate) fn send_instruction(&self, instruction: &Instruction) {
        wire::send(&self.instructions, instruction);
    }

    /// Waits for the next report; `None` when the watchdog is gone or sent something unexpected.
    ///
    /// # Cancel safety
    /// Dropping the future loses no report.
    pub(crate) async fn next_report(&mut self) -> Option<Report> {
        let line = self.reports.next_line().await.ok()??;
        let report = serde_json::from_str(&line).ok()?;
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

/// Sends the watchdog its standard input, which until then is its end of the connection, and the
/// [`ReleaseOrder`]. Descriptors show the token neither in arguments nor in the environment.
fn send_descriptors(
    connection: &net::UnixStream,
    descriptors: [BorrowedFd<'_>; DESCRIPTORS],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(connection, &[IoSlice::new(b"\n")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}
