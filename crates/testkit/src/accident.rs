use std::time::Duration;

use crate::Direction;

/// What goes wrong with one node, or with one network in front of it, until recovery.
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
