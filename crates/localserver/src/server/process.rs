use std::io;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::holds_within;

/// Time limit for a signal to take effect: microseconds on an idle machine, longer on a busy one.
const SIGNAL_LIMIT: Duration = Duration::from_secs(5);

/// A child process that is killed and reaped when it is dropped.
#[derive(Debug)]
pub(super) struct Process(Child);

impl Process {
    pub(super) fn spawn(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }

    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Returns whether the process has exited. Does not reap it, so no other process can have its
    /// id until this value is dropped.
    pub(super) fn has_exited(&self) -> bool {
        self.is_in_state(WaitIdOptions::EXITED)
    }

    /// Sends SIGSTOP, and returns when all threads of the process have stopped.
    pub(super) fn pause(&self) -> io::Result<()> {
        kill_process(self.pid(), Signal::STOP)?;
        // The system reports a child as stopped when the last of its threads has stopped.
        let has_stopped = || self.is_in_state(WaitIdOptions::STOPPED);
        holds_within(SIGNAL_LIMIT, || has_stopped() || self.has_exited());
        if has_stopped() {
            return Ok(());
        }
        let ms = SIGNAL_LIMIT.as_millis();
        Err(io::Error::other(format!("the process has ended, or did not stop within {ms} ms")))
    }

    pub(super) fn resume(&self) -> io::Result<()> {
        Ok(kill_process(self.pid(), Signal::CONT)?)
    }

    /// Sends SIGTERM, and returns whether the process has ended within `limit`.
    pub(super) fn terminate(&self, limit: Duration) -> bool {
        // A stopped process handles the signal only when it continues.
        kill_process(self.pid(), Signal::TERM).is_ok()
            && self.resume().is_ok()
            && holds_within(limit, || self.has_exited())
    }

    /// Reaps a process that has ended.
    pub(super) fn wait(mut self) -> io::Result<ExitStatus> {
        self.0.wait()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    fn is_in_state(&self, state: WaitIdOptions) -> bool {
        let without_reaping = WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(waitid(WaitId::Pid(self.pid()), state | without_reaping), Ok(Some(_)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL also ends a paused process. After `wait`, both calls do nothing. Nothing can be
        // done about any other failure.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
