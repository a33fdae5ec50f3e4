//! The steps of an episode, and the commands in them.

use std::fmt::Display;

use quorlock_core::node::Mode;

use super::wire::{Words, words};

/// The keys of all commands, in the order of their bytes. One of them is too long to be stored
/// without an allocation.
pub(super) const KEYS: [&str; 4] =
    ["alpha", "beta", "delta-is-a-key-with-a-name-of-many-bytes", "gamma"];

/// Number of databases that the commands use.
pub(super) const DBS: u32 = 2;

/// The tokens of all commands. Few, so that several locks use the same token.
pub(super) const TOKENS: [&str; 6] =
    ["a", "b", "cc", "dd", "e", "a-token-of-more-bytes-than-fit-inline"];

/// A key, by its index in [`KEYS`].
pub(super) type KeyIndex = usize;

/// A key and its database.
pub(super) type Place = (u32, KeyIndex);

/// A proposed fence. Its two values may differ, because the clocks of server and model differ.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProposedFence {
    pub(super) of_server: u64,
    pub(super) of_model: u64,
}

#[derive(Clone, Debug)]
pub(super) enum LockCommand {
    Acquire {
        keys: Keys,
        token: &'static str,
        ttl_ms: u64,
        mode: Mode,
        wait_ms: Option<u64>,
        fence: Option<ProposedFence>,
        owner: Option<&'static str>,
    },
    Extend {
        keys: Keys,
        token: &'static str,
        ttl_ms: u64,
        mode: Mode,
        fence: Option<ProposedFence>,
        new_token: Option<&'static str>,
    },
    Release {
        keys: Keys,
        token: &'static str,
    },
    Yield {
        keys: Keys,
        token: &'static str,
    },
    Inspect {
        key: KeyIndex,
    },
    Revoke {
        key: KeyIndex,
        ends_now: bool,
    },
    /// All locks of the database with matching keys, in one call.
    Scan {
        pattern: Option<&'static str>,
    },
}

pub(super) const PATTERNS: [&str; 4] = ["*a", "[b-d]*", "*-with-a-*", "gamm?"];

/// The keys of a command, in the order of the request. A key may occur twice.
#[derive(Clone, Debug)]
pub(super) enum Keys {
    One(KeyIndex),
    /// All of these keys, with `numkeys`.
    Counted(Vec<KeyIndex>),
    /// Any one of these keys, in the order that the client prefers. Only for `LOCK.ACQUIREANY`.
    Any(Vec<KeyIndex>),
}

/// A command of the server itself.
#[derive(Clone, Debug)]
pub(super) enum PlainCommand {
    Del(KeyIndex),
    Unlink(KeyIndex),
    GetDel(KeyIndex),
    Set { key: KeyIndex, value: &'static str, px_ms: Option<u64>, condition: Option<SetCondition> },
    PSetEx { key: KeyIndex, value: &'static str, ms: u64 },
    Append { key: KeyIndex, value: &'static str },
    PExpire { key: KeyIndex, ms: i64 },
    Persist(KeyIndex),
    Rename { from: KeyIndex, to: KeyIndex },
    Copy { from: KeyIndex, to: Place, replace: bool },
    Move { key: KeyIndex, to_db: u32 },
    Restore { key: KeyIndex, value: &'static str, dumped: Vec<u8>, ms: u64, replace: bool },
    LPush(KeyIndex),
    Flush { all: bool, lazily: bool },
    SwapDb,
}

/// The state of the key that a SET requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetCondition {
    Missing,
    Present,
}

#[derive(Clone, Debug)]
pub(super) enum Command {
    Lock(LockCommand),
    Plain(PlainCommand),
    /// `CLIENT UNBLOCK`. `client` is the index of a waiting client, `id` its ID on the server.
    Unblock {
        client: usize,
        id: i64,
        with_error: bool,
    },
    /// `CLIENT KILL` of a waiting client, with the same fields.
    Kill {
        client: usize,
        id: i64,
    },
}

pub(super) fn key_index(name: &[u8]) -> Option<KeyIndex> {
    KEYS.iter().position(|known| known.as_bytes() == name)
}

impl Keys {
    /// Returns each key once, in the order of the node: sorted, or for [`Keys::Any`] as given.
    pub(super) fn in_node_order(&self) -> Vec<KeyIndex> {
        match self {
            Self::One(key) => vec![*key],
            Self::Counted(keys) => {
                let mut keys = keys.clone();
                keys.sort_unstable();
                keys.dedup();
                keys
            }
            Self::Any(keys) => {
                let mut once = Vec::new();
                for key in keys {
                    if !once.contains(key) {
                        once.push(*key);
                    }
                }
                once
            }
        }
    }

    fn words(&self, command: &str) -> Words {
        let (name, keys) = match self {
            Self::One(key) => return words(&format!("LOCK.{command} {}", KEYS[*key])),
            Self::Counted(keys) => (format!("LOCK.M{command}"), keys),
            Self::Any(keys) => (format!("LOCK.{command}ANY"), keys),
        };
        let names: Vec<_> = keys.iter().map(|&key| KEYS[key]).collect();
        words(&format!("{name} {} {}", names.len(), names.join(" ")))
    }
}

impl Command {
    pub(super) fn words(&self) -> Words {
        match self {
            Self::Lock(command) => command.words(),
            Self::Plain(command) => command.words(),
            Self::Unblock { id, with_error, .. } => words(&format!(
                "CLIENT UNBLOCK {id} {}",
                if *with_error { "ERROR" } else { "TIMEOUT" }
            )),
            Self::Kill { id, .. } => words(&format!("CLIENT KILL ID {id}")),
        }
    }

    pub(super) fn shown(&self) -> String {
        let words: Vec<_> =
            self.words().iter().map(|word| word.escape_ascii().to_string()).collect();
        words.join(" ")
    }

    /// Returns whether the server treats the command as a read.
    pub(super) fn is_readonly(&self) -> bool {
        matches!(self, Self::Lock(LockCommand::Inspect { .. } | LockCommand::Scan { .. }))
    }

    pub(super) fn may_wait(&self) -> bool {
        matches!(self, Self::Lock(LockCommand::Acquire { wait_ms: Some(1..), .. }))
    }
}

impl LockCommand {
    fn words(&self) -> Words {
        match self {
            Self::Acquire { keys, token, ttl_ms, mode, wait_ms, fence, owner } => {
                let mut all = keys.words("ACQUIRE");
                all.extend(words(&format!("{token} {ttl_ms}{}", shared(*mode))));
                add_option(&mut all, "WAIT", *wait_ms);
                add_option(&mut all, "FENCE", fence.map(|fence| fence.of_server));
                add_option(&mut all, "OWNER", *owner);
                all
            }
            Self::Extend { keys, token, ttl_ms, mode, fence, new_token } => {
                let mut all = keys.words("EXTEND");
                all.extend(words(&format!("{token} {ttl_ms}{}", shared(*mode))));
                add_option(&mut all, "FENCE", fence.map(|fence| fence.of_server));
                add_option(&mut all, "TOKEN", *new_token);
                all
            }
            Self::Release { keys, token } => {
                let mut all = keys.words("RELEASE");
                all.extend(words(token));
                all
            }
            Self::Yield { keys, token } => {
                let mut all = keys.words("YIELD");
                all.extend(words(token));
                all
            }
            Self::Inspect { key } => words(&format!("LOCK.INSPECT {}", KEYS[*key])),
            Self::Revoke { key, ends_now } => {
                words(&format!("LOCK.REVOKE {}{}", KEYS[*key], if *ends_now { " NOW" } else { "" }))
            }
            Self::Scan { pattern: None } => words("LOCK.SCAN 0 COUNT 1000"),
            Self::Scan { pattern: Some(pattern) } => {
                words(&format!("LOCK.SCAN 0 MATCH {pattern} COUNT 1000"))
            }
        }
    }
}

fn add_option(all: &mut Words, name: &str, value: Option<impl Display>) {
    if let Some(value) = value {
        all.extend(words(&format!("{name} {value}")));
    }
}

fn shared(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "",
        Mode::Shared => " SHARED",
    }
}

impl PlainCommand {
    /// Returns the keys that the server looks up, in this order. A lookup removes an expired key.
    /// The server replaces or flushes some keys without a lookup.
    pub(super) fn keys_looked_up(&self, db: u32) -> Vec<Place> {
        match self {
            Self::Del(key)
            | Self::Unlink(key)
            | Self::GetDel(key)
            | Self::Set { key, .. }
            | Self::PSetEx { key, .. }
            | Self::Append { key, .. }
            | Self::PExpire { key, .. }
            | Self::Persist(key)
            | Self::Restore { key, replace: false, .. }
            | Self::LPush(key) => vec![(db, *key)],
            Self::Rename { from, to } => vec![(db, *from), (db, *to)],
            Self::Copy { from, to, .. } => vec![(db, *from), *to],
            Self::Move { key, to_db } => vec![(db, *key), (*to_db, *key)],
            Self::Restore { replace: true, .. } | Self::Flush { .. } | Self::SwapDb => Vec::new(),
        }
    }

    fn words(&self) -> Words {
        let line = match self {
            Self::Del(key) => format!("DEL {}", KEYS[*key]),
            Self::Unlink(key) => format!("UNLINK {}", KEYS[*key]),
            Self::GetDel(key) => format!("GETDEL {}", KEYS[*key]),
            Self::Set { key, value, px_ms, condition } => {
                let mut line = format!("SET {} {value}", KEYS[*key]);
                if let Some(condition) = condition {
                    line += if *condition == SetCondition::Missing { " NX" } else { " XX" };
                }
                if let Some(ms) = px_ms {
                    line.push_str(" PX ");
                    line.push_str(&ms.to_string());
                }
                line
            }
            Self::PSetEx { key, value, ms } => format!("PSETEX {} {ms} {value}", KEYS[*key]),
            Self::Append { key, value } => format!("APPEND {} {value}", KEYS[*key]),
            Self::PExpire { key, ms } => format!("PEXPIRE {} {ms}", KEYS[*key]),
            Self::Persist(key) => format!("PERSIST {}", KEYS[*key]),
            Self::Rename { from, to } => format!("RENAME {} {}", KEYS[*from], KEYS[*to]),
            Self::Copy { from, to: (db, to), replace } => {
                let replace = if *replace { " REPLACE" } else { "" };
                format!("COPY {} {} DB {db}{replace}", KEYS[*from], KEYS[*to])
            }
            Self::Move { key, to_db } => format!("MOVE {} {to_db}", KEYS[*key]),
            Self::Restore { key, value: _, dumped, ms, replace } => {
                let mut all = words(&format!("RESTORE {} {ms}", KEYS[*key]));
                all.push(dumped.clone());
                if *replace {
                    all.push(b"REPLACE".to_vec());
                }
                return all;
            }
            Self::LPush(key) => format!("LPUSH {} item", KEYS[*key]),
            Self::Flush { all, lazily } => {
                let how = if *lazily { "ASYNC" } else { "SYNC" };
                format!("{} {how}", if *all { "FLUSHALL" } else { "FLUSHDB" })
            }
            Self::SwapDb => "SWAPDB 0 1".into(),
        };
        words(&line)
    }
}

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
