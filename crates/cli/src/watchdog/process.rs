use std::ffi::{CStr, OsString};
use std::fs::File;
use std::io::{self, IoSliceMut, stdin};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitCode;

use anyhow::Context as _;
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::Signal;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use super::{Begin, Connection, Instruction, Order, Report};
use crate::process_tree::ProcessTree;
use crate::system;
use crate::system::Signals;

/// The first argument of a watchdog; the others are the command.
pub(crate) const SUBCOMMAND: &str = "__watchdog";

/// The name that `ps` shows. The program was started through `/proc/self/exe`, whose name is `exe`.
const NAME: &CStr = c"quorlock-watch";

/// Runs the command for `quorlock run`, which is at the other end of standard input.
pub(crate) async fn main(command: Vec<OsString>) -> anyhow::Result<ExitCode> {
    // Ignores a signal that a service manager or `killall` sends to all processes: `quorlock run`
    // passes it on.
    let _signals = Signals::listen()?;
    let _ = rustix::thread::set_name(NAME);
    let connection = stdin().as_fd().try_clone_to_owned()?;
    let stdin =
        receive_descriptor(connection.as_fd()).context("only `quorlock run` starts a watchdog")?;
    dup2_stdin(stdin)?;
    let mut connection = Connection::new(connection.into())?;
    let order: Option<Order> = connection.next().await;
    let order = order.context("the order to the watchdog is incomplete")?;
    if run(&mut connection, order.begin, &command).await? {
        order.release().await;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the command to its end. Returns whether the watchdog must release the lock: `quorlock
/// run` is gone, and no process of the command is left.
async fn run(
    connection: &mut Connection,
    begin: Begin,
    command: &[OsString],
) -> anyhow::Result<bool> {
    let mut schedule = begin.schedule()?;
    if schedule.poll(system::now()).is_some() {
        return Ok(!connection.send(&Report::TooLate));
    }
    let mut tree = match ProcessTree::spawn(command, begin.group) {
        Ok(tree) => tree,
        Err(error) => {
            let error = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
            return Ok(!connection.send(&Report::NotStarted(error)));
        }
    };
    // A reader of the command's output sees the end of the output only when no other process
    // keeps it open.
    let _ = close_stdio();
    if let Some(leader) = tree.leader {
        connection.send(&Report::Started(leader.as_raw_pid()));
    }
    let mut has_reported_stopping = false;
    let mut is_abandoned = false;
    loop {
        tree.reap();
        let waits_for_all = begin.wait_all || is_abandoned || schedule.has_acted();
        if let Some(status) = tree.leader_status
            && (!waits_for_all || tree.is_gone())
        {
            let is_reported = connection.send(&Report::Ended(status.into_raw()));
            return Ok(tree.is_gone() && (is_abandoned || !is_reported));
        }
        tree.follow(&mut schedule);
        if schedule.has_acted() && !has_reported_stopping {
            has_reported_stopping = true;
            connection.send(&Report::Stopping);
        }
        tokio::select! {
            biased;
            instruction = connection.next(), if !is_abandoned => match instruction {
                Some(Instruction::Extended(deadline)) => schedule.handle_extended(deadline),
                Some(Instruction::Lost) => schedule.handle_lost(system::now()),
                Some(Instruction::PassOn(signal)) => {
                    if let Some(signal) = Signal::from_named_raw(signal) {
                        tree.pass_on(signal);
                    }
                }
                None => {
                    is_abandoned = true;
                    schedule.handle_abandoned(system::now());
                }
            },
            () = tree.changed(&schedule) => {}
        }
    }
}

fn receive_descriptor(connection: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    // Reads one byte: the bytes after it are the order and instructions.
    recvmsg(connection, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

fn close_stdio() -> io::Result<()> {
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&nothing)?;
    dup2_stdout(&nothing)?;
    dup2_stderr(&nothing)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net;
    use std::time::Duration;

    use super::*;
    use crate::process_tree::Group;

    #[tokio::test]
    async fn command_is_not_started_with_too_little_validity_left() {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace");
        let (ours, theirs) = net::UnixStream::pair().unwrap();
        let mut connections = [ours, theirs].map(|end| Connection::new(end).unwrap());
        let deadline = system::now().plus(Duration::from_secs(1));
        let group = Group::Own;
        let begin = Begin { ttl_ms: 10_000, kill_after: None, group, wait_all: false, deadline };
        let command = ["touch".into(), trace.clone().into()];
        run(&mut connections[1], begin, &command).await.unwrap();
        assert_eq!(connections[0].next().await, Some(Report::TooLate));
        assert!(!trace.exists());
    }
}
