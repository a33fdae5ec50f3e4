//! The command that runs under the lock.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpgrp, kill_process, kill_process_group, test_kill_process_group};
use rustix::termios::tcgetpgrp;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use crate::nodes::SECRET_VARIABLES;

/// How often it is looked whether those whom the command left behind are gone.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A command that runs. It is killed when it is dropped.
pub(crate) struct Child {
    process: tokio::process::Child,
    pid: Pid,
    group: Group,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    /// The command leads a process group: what it is sent reaches all whom it started.
    Own,
    /// The command is in the group that the terminal listens to: it can read from it and hears its Ctrl-C, Ctrl-\ and
    /// hang-up, and nobody else of that group is ours to send anything to.
    Terminals,
}

impl Child {
    pub(crate) fn spawn(
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, OsString)>,
    ) -> io::Result<Self> {
        let group = if is_in_foreground() { Group::Terminals } else { Group::Own };
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).envs(environment).kill_on_drop(true);
        for name in SECRET_VARIABLES {
            command.env_remove(name);
        }
        if group == Group::Own {
            command.process_group(0);
        }
        let process = command.spawn()?;
        let pid = process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("it has no process id"))?;
        Ok(Self { process, pid, group })
    }

    /// Waits for the command's end. Nothing is lost when this is not awaited to its end.
    pub(crate) async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.process.wait().await
    }

    /// Passes on a signal that this program was sent, unless the terminal sent it to both.
    pub(crate) fn pass_on(&self, signal: Signal) {
        let from_terminal = [Signal::INT, Signal::QUIT, Signal::HUP].contains(&signal);
        if self.group == Group::Own || !from_terminal {
            self.send(signal);
        }
    }

    /// Asks the command to end, and kills it, with all that it started, if it has not after `grace`.
    pub(crate) async fn stop(&mut self, grace: Duration) -> io::Result<()> {
        self.send(Signal::TERM);
        let leads = self.group == Group::Own;
        let pid = self.pid;
        let gone = async {
            let ended = self.process.wait().await;
            while leads && test_kill_process_group(pid) != Err(Errno::SRCH) {
                sleep(POLL_INTERVAL).await;
            }
            ended
        };
        if timeout(grace, gone).await.is_err() {
            self.send(Signal::KILL);
            self.process.wait().await?;
        }
        Ok(())
    }

    /// To a command that has ended just now it does nothing, which its exit status will tell.
    fn send(&self, signal: Signal) {
        let _ = match self.group {
            Group::Own => kill_process_group(self.pid, signal),
            // Its process id is its own until it was waited for.
            Group::Terminals if self.process.id().is_some() => kill_process(self.pid, signal),
            Group::Terminals => Ok(()),
        };
    }
}

fn is_in_foreground() -> bool {
    File::open("/dev/tty").is_ok_and(|tty| tcgetpgrp(tty).is_ok_and(|group| group == getpgrp()))
}
