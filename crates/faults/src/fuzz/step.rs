use super::command::Command;

/// Time from the first command of a [`Step::Late`] to its deadline, in milliseconds.
pub(super) const LATE_MS: u64 = 30;

/// How the commands of a packet are sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wrap {
    /// One command.
    None,
    /// Several commands in one turn. Before them, the server sleeps.
    Batch { sleep_ms: u64 },
    /// Several commands in one transaction. At its start, the server sleeps.
    Multi { sleep_ms: u64 },
    /// Several commands in one script. Before them, the script keeps the server busy.
    Script { busy_ms: u64 },
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Commands, each with its database.
    Packet {
        client: usize,
        commands: Vec<(u32, Command)>,
        wrap: Wrap,
    },
    /// A command, and a packet in which the server sleeps until the command's deadline has passed.
    Late {
        client: usize,
        before: (u32, Command),
        after: Vec<(u32, Command)>,
        wrap: Wrap,
    },
    Disconnect {
        client: usize,
    },
    /// Only tables have this step: the fuzzer lets time pass before each step.
    Pass {
        ms: u64,
    },
    /// Writes are paused. These events happen meanwhile.
    Pause {
        meanwhile: Vec<Meanwhile>,
    },
    Reload,
    LoadAppendOnlyFile,
    RewriteAppendOnlyFile,
    Restart,
    Evict,
    MoveClock {
        ms: i64,
    },
    AttachPeer,
    DetachPeer,
    /// The link to the peer is cut, and these commands are sent before it is back.
    CutLink {
        client: usize,
        commands: Vec<(u32, Command)>,
    },
    /// The server becomes a replica of its peer, then a master again, and executes these commands.
    ChangeRoles {
        /// Whether the server first becomes a replica of an unreachable master.
        unreachable_first: bool,
        /// Whether the peer becomes a replica of the server at the end.
        attach_at_once: bool,
        commands: Vec<(u32, Command)>,
    },
}

#[derive(Clone, Debug)]
pub(super) enum Meanwhile {
    /// An operator ends the wait of a client.
    EndWait(Command),
    Disconnect(usize),
    /// A client sends a command, which the server executes when the pause is over.
    Postponed {
        client: usize,
        db: u32,
        command: Command,
    },
    /// A command is sent before the pause, and its deadline passes during the pause.
    TimePasses {
        client: usize,
        db: u32,
        before: Command,
    },
}

impl Wrap {
    /// Returns the time for which the server is busy before the first command.
    pub(super) fn sleep_ms(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Batch { sleep_ms } | Self::Multi { sleep_ms } => sleep_ms,
            Self::Script { busy_ms } => busy_ms,
        }
    }
}

impl Step {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Packet { wrap: Wrap::None, .. } => "command",
            Self::Packet { wrap: Wrap::Batch { .. }, .. } => "batch",
            Self::Packet { wrap: Wrap::Multi { .. }, .. } => "multi",
            Self::Packet { wrap: Wrap::Script { .. }, .. } => "script",
            Self::Late { .. } => "late",
            Self::Disconnect { .. } => "disconnect",
            Self::Pass { .. } => "pass",
            Self::Pause { .. } => "pause",
            Self::Reload => "reload",
            Self::LoadAppendOnlyFile => "loadaof",
            Self::RewriteAppendOnlyFile => "rewriteaof",
            Self::Restart => "restart",
            Self::Evict => "evict",
            Self::MoveClock { .. } => "clock",
            Self::AttachPeer => "attach",
            Self::DetachPeer => "detach",
            Self::CutLink { .. } => "cut",
            Self::ChangeRoles { .. } => "roles",
        }
    }
}
