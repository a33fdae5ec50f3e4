use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use quorlock_testkit::Direction;

/// What goes wrong with one master, or with one network in front of it, until recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accident {
    /// SIGKILL; recovery starts the server on what is left of its disk.
    Kill(Disk),
    /// SIGTERM; recovery starts the server.
    Shutdown,
    /// SIGSTOP: connections stay open, and no request is answered.
    Pause,
    /// The wall clock is stepped; recovery sets it right.
    ClockStep {
        /// Negative for a step back.
        by_s: i64,
    },
    /// Memory runs short, so that the server evicts keys.
    Eviction,
    Reload,
    /// Open connections are reset, and so are new connections as soon as they open.
    Cut,
    /// Traffic stops, and arrives all at once at recovery.
    Hold(Direction),
    /// Traffic is lost.
    Drop(Direction),
    /// Traffic arrives late.
    Delay(Direction, Duration),
}

/// What a server finds on its disk after it was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    Kept,
    /// What the process had synced, as after a power cut.
    Synced,
    Emptied,
}

impl Accident {
    /// Returns the accident's name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill(Disk::Kept) => "kill -9, restart with the disk",
            Self::Kill(Disk::Synced) => "power cut, restart",
            Self::Kill(Disk::Emptied) => "kill -9, restart on an empty disk",
            Self::Shutdown => "shutdown, restart",
            Self::Pause => "SIGSTOP, SIGCONT",
            Self::ClockStep { by_s: 1.. } => "wall clock stepped ahead",
            Self::ClockStep { .. } => "wall clock stepped back",
            Self::Eviction => "eviction",
            Self::Reload => "DEBUG RELOAD",
            Self::Cut => "reset connections",
            Self::Hold(_) => "stalled packets",
            Self::Drop(_) => "lost packets",
            Self::Delay(..) => "late packets",
        }
    }
}

/// How often each accident happened. `Display` writes a Markdown table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccidentCounts(BTreeMap<&'static str, usize>);

impl AccidentCounts {
    pub fn count(&mut self, accident: Accident, masters: usize) {
        if masters > 0 {
            *self.0.entry(accident.name()).or_default() += masters;
        }
    }

    pub fn add(&mut self, other: &Self) {
        for (name, times) in &other.0 {
            *self.0.entry(name).or_default() += times;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for AccidentCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| accident | times |\n|---|---|")?;
        self.0.iter().try_for_each(|(name, times)| writeln!(f, "| {name} | {times} |"))
    }
}
