//! The messages between `quorlock run` and its watchdog: one line of text each.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::str::SplitWhitespace;
use std::time::Duration;

use quorlock_core::quorum::Moment;
use quorlock_core::{StopSchedule, Ttl};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{Pid, Signal};
use tokio::net::unix::OwnedWriteHalf;

use crate::process_tree::Group;

/// A message from `quorlock run` to the watchdog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Instruction {
    Begin(Begin),
    /// The lock is valid until this moment.
    Extended(Moment),
    /// The nodes say that the lock has ended.
    Lost,
    PassOn(Signal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begin {
    pub(crate) ttl: Ttl,
    /// The time from SIGTERM to SIGKILL; `None` for the default.
    pub(crate) kill_after: Option<Duration>,
    pub(crate) group: Group,
    /// Whether the command counts as ended only when all that it started has ended.
    pub(crate) wait_all: bool,
    /// The end of the validity.
    pub(crate) deadline: Moment,
}

/// A message from the watchdog to `quorlock run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// With the process id of the command.
    Started(Pid),
    NotStarted(Errno),
    /// Too little of the validity was left to start the command.
    TooLate,
    /// The command was sent SIGTERM or SIGKILL, because the lock was lost or not extended.
    Stopping,
    /// The command has ended. If it was stopped, or with `wait_all`, all that it started has ended
    /// too.
    Ended(ExitStatus),
}

impl Begin {
    pub(crate) fn schedule(&self) -> Result<StopSchedule, quorlock_core::GraceTooLong> {
        StopSchedule::new(self.ttl, self.kill_after, self.deadline)
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin(Begin { ttl, kill_after, group, wait_all, deadline }) => {
                let kill_after =
                    kill_after.map_or(-1, |time| i128::try_from(time.as_nanos()).unwrap_or(0));
                let group = match group {
                    Group::Own => 0,
                    Group::Foreground(group) => group.as_raw_pid(),
                };
                let (ttl, wait_all, deadline) = (ttl.ms(), u8::from(*wait_all), OnWire(*deadline));
                write!(f, "begin {ttl} {kill_after} {group} {wait_all} {deadline}")
            }
            Self::Extended(deadline) => write!(f, "extended {}", OnWire(*deadline)),
            Self::Lost => write!(f, "lost"),
            Self::PassOn(signal) => write!(f, "pass-on {}", signal.as_raw()),
        }
    }
}

impl Instruction {
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let instruction = match words.next()? {
            "begin" => {
                let ttl = Ttl::from_ms(words.next()?.parse().ok()?).ok()?;
                let kill_after = words.next()?.parse::<i64>().ok()?;
                let group = Pid::from_raw(words.next()?.parse().ok()?);
                Self::Begin(Begin {
                    ttl,
                    kill_after: u64::try_from(kill_after).ok().map(Duration::from_nanos),
                    group: group.map_or(Group::Own, Group::Foreground),
                    wait_all: words.next()? == "1",
                    deadline: moment(&mut words)?,
                })
            }
            "extended" => Self::Extended(moment(&mut words)?),
            "lost" => Self::Lost,
            "pass-on" => Self::PassOn(Signal::from_named_raw(words.next()?.parse().ok()?)?),
            _ => return None,
        };
        words.next().is_none().then_some(instruction)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(pid) => write!(f, "started {}", pid.as_raw_pid()),
            Self::NotStarted(error) => write!(f, "not-started {}", error.raw_os_error()),
            Self::TooLate => write!(f, "too-late"),
            Self::Stopping => write!(f, "stopping"),
            Self::Ended(status) => write!(f, "ended {}", status.into_raw()),
        }
    }
}

impl Report {
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (kind, number) = line.split_once(' ').unwrap_or((line, "0"));
        let number: i32 = number.parse().ok()?;
        Some(match kind {
            "started" => Self::Started(Pid::from_raw(number)?),
            "not-started" if (1..4096).contains(&number) => {
                Self::NotStarted(Errno::from_raw_os_error(number))
            }
            "too-late" => Self::TooLate,
            "stopping" => Self::Stopping,
            "ended" => Self::Ended(ExitStatus::from_raw(number)),
            _ => return None,
        })
    }
}

/// Sends one line without waiting. Returns `false` if the reader is gone. Ignores other errors: the
/// reader's silence shows that it is stuck.
pub(super) fn send(connection: &OwnedWriteHalf, line: &impl fmt::Display) -> bool {
    let line = format!("{line}\n");
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::net::send(connection.as_ref(), line.as_bytes(), flags);
    !matches!(sent, Err(Errno::PIPE | Errno::CONNRESET))
}

/// Formats a moment as [`moment`] reads it.
struct OnWire(Moment);

impl fmt::Display for OnWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0.boot.as_nanos(), self.0.raw.as_nanos())
    }
}

fn moment(words: &mut SplitWhitespace<'_>) -> Option<Moment> {
    let mut time = || Some(Duration::from_nanos(words.next()?.parse().ok()?));
    Some(Moment { boot: time()?, raw: time()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_arrive_as_they_were_sent() {
        let deadline =
            Moment { boot: Duration::from_nanos(12_345_678_901), raw: Duration::from_nanos(1) };
        let begin = Begin {
            ttl: Ttl::from_ms(10_000).unwrap(),
            kill_after: None,
            group: Group::Own,
            wait_all: false,
            deadline,
        };
        let in_terminal = Begin {
            kill_after: Some(Duration::ZERO),
            group: Group::Foreground(Pid::INIT),
            wait_all: true,
            ..begin
        };
        for instruction in [
            Instruction::Begin(begin),
            Instruction::Begin(in_terminal),
            Instruction::Extended(deadline),
            Instruction::Lost,
            Instruction::PassOn(Signal::USR1),
        ] {
            assert_eq!(Instruction::parse(&instruction.to_string()), Some(instruction));
        }
        for malformed in ["", "begin", "extended 1", "extended 1 2 3", "pass-on x", "lose"] {
            assert_eq!(Instruction::parse(malformed), None, "{malformed}");
        }
    }

    #[test]
    fn reports_arrive_as_they_were_sent() {
        for report in [
            Report::Started(Pid::INIT),
            Report::NotStarted(Errno::NOENT),
            Report::TooLate,
            Report::Stopping,
            Report::Ended(ExitStatus::from_raw(42 << 8)),
            Report::Ended(ExitStatus::from_raw(9)),
        ] {
            assert_eq!(Report::parse(&report.to_string()), Some(report));
        }
        for malformed in
            ["", "started", "started 0", "not-started 0", "not-started 4096", "ended x", "end"]
        {
            assert_eq!(Report::parse(malformed), None, "{malformed}");
        }
    }
}
