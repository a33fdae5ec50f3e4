//! A second process, which starts the command and stops it in time when `quorlock run` cannot.
//!
//! `quorlock run` may be stopped (SIGSTOP, Ctrl-Z) or killed (SIGKILL, out of memory) while the command runs. The
//! watchdog knows the deadline of the lock, and is the parent of the command. It is in a process group of its own,
//! where the terminal's signals do not reach it.
//!
//! - [`process`]: the watchdog itself.
//! - [`wire`]: what the two tell each other.

mod process;
mod wire;

use std::ffi::OsString;
use std::io::{self, IoSlice, stdin};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
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

pub(crate) use process::{VERB, main};
pub(crate) use wire::{Begin, Order, Report};

/// This program, also after its file was replaced.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// The watchdog, as `quorlock run` sees it.
pub(crate) struct Watchdog {
    process: Pid,
    /// The command, once it was started.
    leader: Option<Pid>,
    group: Group,
    /// Children that this process had before.
    other_children: Vec<Pid>,
    reports: Lines<BufReader<OwnedReadHalf>>,
    orders: OwnedWriteHalf,
}

impl Watchdog {
    /// Starts the watchdog, which starts the command.
    pub(crate) fn start(
        begin: Begin,
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, OsString)>,
    ) -> io::Result<Self> {
        // If the watchdog is killed, this process is the parent of what it leaves behind.
        become_subreaper()?;
        let other_children = children();
        let (ours, theirs) = net::UnixStream::pair()?;
        let mut watchdog = Command::new(THIS_PROGRAM);
        watchdog.arg0("quorlock").arg(VERB).args(command).envs(environment);
        for name in SECRET_VARIABLES {
            watchdog.env_remove(name);
        }
        watchdog.stdin(OwnedFd::from(theirs)).process_group(0);
        let process = Pid::from_child(&watchdog.spawn()?);
        // Its copy of the other end is closed with it.
        drop(watchdog);
        send_stdin(&ours)?;
        ours.set_nonblocking(true)?;
        let (reports, orders) = UnixStream::from_std(ours)?.into_split();
        let reports = BufReader::new(reports).lines();
        let watchdog = Self { process, leader: None, group: begin.group, other_children, reports, orders };
        watchdog.order(&Order::Begin(begin));
        Ok(watchdog)
    }

    /// A watchdog that does not read its orders is overdue in the end, and is replaced.
    pub(crate) fn order(&self, order: &Order) {
        wire::send(&self.orders, order);
    }

    /// The next report; `None` when the watchdog has gone. Nothing is lost when this is not awaited to its end.
    pub(crate) async fn report(&mut self) -> Option<Report> {
        let line = self.reports.next_line().await.ok()??;
        let report = Report::parse(&line);
        if let Some(Report::Started(leader)) = report {
            self.leader = Some(leader);
        }
        report
    }

    /// Ends the watchdog, and does its work: stops the command and all that it started by the schedule.
    pub(crate) async fn replace(self, schedule: &mut StopSchedule) -> io::Result<()> {
        // It was not waited for, so that its process id is its own.
        let _ = kill_process(self.process, Signal::KILL);
        let _ = waitpid(Some(self.process), WaitOptions::empty());
        ProcessTree::adopt(self.leader, self.group, self.other_children)?.end(schedule).await;
        Ok(())
    }
}

/// Passes this process's standard input on, in whose place the watchdog has its end of the connection.
fn send_stdin(connection: &net::UnixStream) -> io::Result<()> {
    let stdin = stdin();
    let descriptors = [stdin.as_fd()];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(connection, &[IoSlice::new(b"\n")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}
