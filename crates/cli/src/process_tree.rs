//! The command and everything that it started.

use std::ffi::OsString;
use std::fs::{self, File};
use std::future::pending;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use quorlock_core::{StopAction, StopSchedule};
use rustix::process::{
    Pid, Signal, WaitOptions, getpgid, getpgrp, getpid, kill_process, kill_process_group,
    set_child_subreaper, wait,
};
use rustix::termios::tcgetpgrp;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{self, SignalKind};
use tokio::time::sleep;

use crate::system;

/// How often the remaining processes are killed again, until none is left.
const KILL_AGAIN_EVERY: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum Group {
    /// The command leads its own process group. A signal to the group reaches the command and its
    /// descendants, but for a descendant that has left the group.
    Own,
    /// The command is in the group with this id, the foreground group of the terminal. It can read
    /// from the terminal, and receives Ctrl-C, Ctrl-\, Ctrl-Z and a hang-up. This program signals
    /// only the command, not other members of the group, such as the rest of a pipeline.
    Foreground(i32),
}

impl Group {
    /// Returns [`Group::Foreground`] if this process is in the foreground of a terminal.
    pub(crate) fn choose() -> Self {
        let own = getpgrp();
        let is_foreground =
            File::open("/dev/tty").is_ok_and(|tty| tcgetpgrp(tty).is_ok_and(|group| group == own));
        if is_foreground { Self::Foreground(own.as_raw_pid()) } else { Self::Own }
    }
}

/// The command and its descendants, of which this process is the parent or the subreaper. Only
/// [`reap`](Self::reap) reaps them. Until then, the system does not reuse their process ids.
pub(crate) struct ProcessTree {
    /// The command; `None` before it is started, or if it is unknown whether it was started.
    pub(crate) leader: Option<Pid>,
    /// `None` until [`reap`](Self::reap) has seen the end of the command.
    pub(crate) leader_status: Option<ExitStatus>,
    group: Group,
    /// Children that this process had before the command. They are not part of the tree.
    other_children: Vec<Pid>,
    /// Whether a process of the tree was left at the last [`reap`](Self::reap).
    has_children: bool,
    /// The last action of the schedule.
    action: Option<StopAction>,
    /// Adopted processes that were sent SIGTERM individually.
    sent_term: Vec<Pid>,
    child_signal: unix::Signal,
}

impl ProcessTree {
    /// Starts the command, and makes this process the subreaper of what it starts.
    pub(crate) fn spawn(command: &[OsString], group: Group) -> io::Result<Self> {
        let mut tree = Self::adopt(None, group, Vec::new())?;
        become_subreaper()?;
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).process_group(match group {
            Group::Own => 0,
            Group::Foreground(group) => group,
        });
        tree.leader = Some(Pid::from_child(&command.spawn()?));
        Ok(tree)
    }

    /// Makes a tree of all children of this process except `other_children`. After a watchdog was
    /// killed, the tree is the command and its descendants.
    pub(crate) fn adopt(
        leader: Option<Pid>,
        group: Group,
        other_children: Vec<Pid>,
    ) -> io::Result<Self> {
        let child_signal = unix::signal(SignalKind::child())?;
        Ok(Self {
            leader,
            leader_status: None,
            group,
            other_children,
            has_children: true,
            action: None,
            sent_term: Vec::new(),
            child_signal,
        })
    }

    pub(crate) fn is_gone(&self) -> bool {
        !self.has_children
    }

    /// Reaps processes that have ended, and records the status of the command.
    pub(crate) fn reap(&mut self) {
        let has_any = loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    self.sent_term.retain(|child| *child != pid);
                    self.other_children.retain(|child| *child != pid);
                    if self.leader == Some(pid) {
                        self.leader_status = Some(ExitStatus::from_raw(status.as_raw()));
                    }
                }
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        // `wait` reports whether any child is left. The list of the children, which is less
        // reliable, is used only if there are other children.
        self.has_children =
            has_any && (self.other_children.is_empty() || !self.children().is_empty());
    }

    /// Passes on a signal that `quorlock` received, unless the terminal also sends it to the
    /// command.
    pub(crate) fn pass_on(&self, signal: Signal) {
        let from_terminal = [Signal::INT, Signal::QUIT, Signal::HUP].contains(&signal);
        if self.group == Group::Own || !from_terminal {
            self.signal(signal);
        }
    }

    /// Carries out the schedule, also on processes that were adopted after an action was due.
    pub(crate) fn follow(&mut self, schedule: &mut StopSchedule) {
        let action = schedule.poll(system::now());
        if action == Some(StopAction::Terminate) {
            self.signal(Signal::TERM);
            // A stopped process handles SIGTERM only after SIGCONT.
            self.signal(Signal::CONT);
        }
        self.action = action.or(self.action);
        match self.action {
            Some(StopAction::Terminate) => self.terminate_adopted(),
            Some(StopAction::Kill) => self.kill(),
            None => {}
        }
    }

    /// Waits until a process has ended, or until the schedule's next action is due. After the last
    /// action, waits until [`follow`](Self::follow) must kill the remaining processes again.
    pub(crate) async fn changed(&mut self, schedule: &StopSchedule) {
        let due = async {
            match schedule.poll_timeout() {
                Some(due) => system::reach(due).await,
                None if self.has_children => sleep(KILL_AGAIN_EVERY).await,
                None => pending().await,
            }
        };
        tokio::select! {
            _ = self.child_signal.recv() => {}
            () = due => {}
        }
    }

    /// Stops all processes by the schedule, and waits until none is left.
    pub(crate) async fn stop(&mut self, schedule: &mut StopSchedule) {
        loop {
            self.reap();
            if self.is_gone() {
                return;
            }
            self.follow(schedule);
            self.changed(schedule).await;
        }
    }

    fn terminate_adopted(&mut self) {
        for child in self.children() {
            let has_sigterm = Some(child) == self.leader || self.sent_term.contains(&child);
            if !has_sigterm && !self.is_in_own_group(child) {
                let _ = kill_process(child, Signal::TERM);
                let _ = kill_process(child, Signal::CONT);
                self.sent_term.push(child);
            }
        }
    }

    /// Kills the command and all children. The children of a killed process become children of this
    /// process: the next call kills them.
    fn kill(&self) {
        self.signal(Signal::KILL);
        for child in self.children() {
            let _ = kill_process(child, Signal::KILL);
        }
    }

    /// Sends a signal to the command, and with [`Group::Own`] to its group. Does nothing if the
    /// process id could belong to another process.
    fn signal(&self, signal: Signal) {
        let Some(leader) = self.leader else { return };
        let is_unreaped = self.leader_status.is_none();
        let _ = match self.group {
            // The id of the group is not reused while a member is unreaped.
            Group::Own
                if is_unreaped
                    || self.children().iter().any(|child| self.is_in_own_group(*child)) =>
            {
                kill_process_group(leader, signal)
            }
            Group::Foreground(_) if is_unreaped => kill_process(leader, signal),
            Group::Own | Group::Foreground(_) => Ok(()),
        };
    }

    fn is_in_own_group(&self, process: Pid) -> bool {
        self.group == Group::Own && getpgid(Some(process)).ok() == self.leader
    }

    fn children(&self) -> Vec<Pid> {
        let mut children = children();
        children.retain(|child| !self.other_children.contains(child));
        children
    }
}

/// Makes orphaned descendants children of this process.
pub(crate) fn become_subreaper() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Returns the children of this process, or nothing if the system does not list them.
pub(crate) fn children() -> Vec<Pid> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let lists = threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let pids = |list: String| {
        let pids = list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
        pids.collect::<Vec<_>>()
    };
    lists.flat_map(pids).collect()
}
