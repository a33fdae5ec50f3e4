//! The commands of an episode, and the steps in which they are sent.

use std::fmt;
use std::str::FromStr;

use quorlock_core::Fence;
use quorlock_core::node::Mode;

/// The keys of all commands, in the order of their bytes. One of them is too long to be stored
/// without an allocation.
pub(super) const KEYS: [&str; 4] =
    ["alpha", "beta", "delta-is-a-key-with-a-name-of-many-bytes", "gamma"];

/// Number of databases that the commands use.
pub(super) const DBS: u32 = 2;

/// The tokens of all drawn commands. Few, so that several locks use the same token.
pub(super) const TOKENS: [&str; 6] =
    ["a", "b", "cc", "dd", "e", "a-token-of-more-bytes-than-fit-inline"];

/// One of [`KEYS`], and its database.
pub(super) type Place = (u32, &'static str);

pub(super) fn places() -> impl Iterator<Item = Place> {
    (0..DBS).flat_map(|db| KEYS.into_iter().map(move |key| (db, key)))
}

/// A command as text: its words in the order in which a client sends them.
///
/// A client sends two words in another form: its id for a client's number in `CLIENT UNBLOCK` and
/// `CLIENT KILL`, and the result of `DUMP` for the value in `RESTORE`.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) db: u32,
    pub(super) text: String,
    /// The proposed fence in the model. It may differ from that of the server, which is in the
    /// text, because their clocks differ.
    model_fence: Option<u64>,
}

/// The parts of a `LOCK` command.
pub(super) struct LockCommand<'a> {
    /// Such as `ACQUIRE`, also if the command is for several keys.
    pub(super) name: &'a str,
    /// Each key once, in the order of the node: sorted, or if `is_any` as given.
    pub(super) keys: Vec<&'static str>,
    /// Whether any one of the keys is enough.
    pub(super) is_any: bool,
    pub(super) token: &'a str,
    pub(super) ttl_ms: u64,
    pub(super) mode: Mode,
    pub(super) wait_ms: Option<u64>,
    pub(super) fence: Option<Fence>,
    pub(super) owner: Option<&'a str>,
    pub(super) new_token: Option<&'a str>,
    pub(super) ends_now: bool,
    pub(super) pattern: Option<&'a str>,
}

pub(super) fn number<T: FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is no number"))
}

pub(super) fn key(name: &str) -> &'static str {
    known_key(name.as_bytes()).unwrap_or_else(|| panic!("{name:?} names no key"))
}

pub(super) fn known_key(name: &[u8]) -> Option<&'static str> {
    KEYS.into_iter().find(|key| key.as_bytes() == name)
}

/// The number of a client in a text, as the index of its connection.
pub(super) fn client(text: &str) -> usize {
    number::<usize>(text) - 1
}

/// Returns the word after the name of an option.
pub(super) fn option<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().skip_while(|word| **word != name).nth(1).copied()
}

impl Command {
    pub(super) fn new(db: u32, text: impl Into<String>) -> Self {
        Self { db, text: text.into(), model_fence: None }
    }

    pub(super) fn words(&self) -> Vec<&str> {
        self.text.split_whitespace().collect()
    }

    /// Replaces a proposed fence such as `last+5` by a number: `last` is the last fence of the
    /// first key, in the model and on the server, and `now` the wall clock.
    pub(super) fn propose(&mut self, wall_us: u64, last: impl Fn(Place) -> Option<(u64, u64)>) {
        let Some((before, rest)) = self.text.split_once(" FENCE ") else { return };
        let (proposed, after) = rest.split_once(' ').unwrap_or((rest, ""));
        let (of_model, of_server) = if let Some(ahead_ms) = proposed.strip_prefix("now") {
            let fence = wall_us.saturating_add_signed(number::<i64>(ahead_ms) * 1000);
            (fence, fence)
        } else if let Some(by) = proposed.strip_prefix("last") {
            let place = self.lock().map(|lock| (self.db, lock.keys[0]));
            let last = place.and_then(last);
            let (model, server) = last.unwrap_or_else(|| panic!("no fence before {self}"));
            let by: i64 = number(by);
            (model.saturating_add_signed(by), server.saturating_add_signed(by))
        } else {
            (number(proposed), number(proposed))
        };
        self.text = format!("{before} FENCE {of_server} {after}");
        self.model_fence = Some(of_model);
    }

    /// Returns the parts of a `LOCK` command; `None` for another one.
    pub(super) fn lock(&self) -> Option<LockCommand<'_>> {
        let words = self.words();
        let full_name = words[0].strip_prefix("LOCK.")?;
        let (of_all, of_any) = (full_name.strip_prefix('M'), full_name.strip_suffix("ANY"));
        let name = of_all.or(of_any).unwrap_or(full_name);
        let (first, count) = match name {
            "SCAN" => (1, 0),
            _ if name == full_name => (1, 1),
            _ => (2, number(words[1])),
        };
        let (names, rest) = words[first..].split_at(count);
        let mut given: Vec<_> = names.iter().map(|name| key(name)).collect();
        if of_any.is_none() {
            given.sort_unstable();
        }
        let mut keys = Vec::new();
        for key in given {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let is_shared = rest.contains(&"SHARED");
        Some(LockCommand {
            name,
            keys,
            is_any: of_any.is_some(),
            token: rest.first().copied().unwrap_or_default(),
            ttl_ms: rest.get(1).and_then(|ms| ms.parse().ok()).unwrap_or_default(),
            mode: if is_shared { Mode::Shared } else { Mode::Exclusive },
            wait_ms: option(rest, "WAIT").map(number),
            fence: self.model_fence.map(|fence| Fence::new(fence).unwrap_or_default()),
            owner: option(rest, "OWNER"),
            new_token: option(rest, "TOKEN"),
            ends_now: rest.contains(&"NOW"),
            pattern: option(rest, "MATCH"),
        })
    }

    /// Returns the client whose wait an operator ends by this command, and how: by `TIMEOUT`,
    /// `ERROR`, or `KILL`.
    pub(super) fn ended_wait(&self) -> Option<(usize, &str)> {
        match self.words()[..] {
            ["CLIENT", "UNBLOCK", number, how] | ["CLIENT", how, "ID", number] => {
                Some((client(number), how))
            }
            _ => None,
        }
    }

    pub(super) fn may_wait(&self) -> bool {
        self.lock().and_then(|lock| lock.wait_ms).is_some_and(|wait_ms| wait_ms > 0)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}", self.db, self.text)
    }
}

/// Time from the first command of a [`Step::Late`] to its deadline, in milliseconds.
pub(super) const LATE_MS: u64 = 30;

/// How the commands of a packet are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrap {
    /// In one turn.
    Batch,
    Multi,
    Script,
}

/// Commands that a client sends together.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) client: usize,
    pub(super) commands: Vec<Command>,
    pub(super) wrap: Wrap,
    /// Before the first command, the server is busy for this time: it sleeps, or in a script it
    /// counts.
    pub(super) busy_ms: u64,
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Packet(Packet),
    /// A packet of one command, and a packet in which the server sleeps until the command's
    /// deadline has passed. Another client sends it if the first one waits.
    Late {
        before: Packet,
        after: Packet,
    },
    Disconnect {
        client: usize,
    },
    /// Only tables have this step: the fuzzer lets time pass before each step.
    Pass {
        ms: u64,
    },
    /// Writes are paused.
    Pause {
        /// Sent before the pause. Its deadline passes during the pause.
        before: Option<Packet>,
        /// An operator ends the wait of a client.
        ends_wait: Option<Command>,
        disconnects: Option<usize>,
        /// A client sends a command, which the server executes when the pause is over.
        postponed: Option<Packet>,
    },
    Reload,
    LoadAppendOnlyFile,
    RewriteAppendOnlyFile,
    /// The server is killed, and starts again.
    Restart {
        /// Only tables have a start without data, and one after which the node abstains.
        keeps_data: bool,
        abstains: bool,
    },
    Evict {
        policy: &'static str,
    },
    MoveClock {
        ms: i64,
    },
    AttachPeer,
    DetachPeer,
    /// The link to the peer is cut, and this packet is sent before it is back.
    CutLink(Packet),
    /// The server becomes a replica of its peer, then a master again, and executes this packet.
    ChangeRoles {
        /// Whether the server first becomes a replica of an unreachable master.
        unreachable_first: bool,
        /// Whether the peer becomes a replica of the server at the end.
        attach_at_once: bool,
        packet: Packet,
    },
}

impl Wrap {
    /// Returns whether the server executes the commands as one, in which none of them waits.
    pub(super) fn is_atomic(self) -> bool {
        self != Self::Batch
    }
}

impl Packet {
    pub(super) fn batch(client: usize, commands: Vec<Command>) -> Self {
        Self { client, commands, wrap: Wrap::Batch, busy_ms: 0 }
    }

    pub(super) fn one(client: usize, command: Command) -> Self {
        Self::batch(client, vec![command])
    }
}

impl Step {
    /// Returns the name of its kind, as a report counts it.
    pub(super) fn kind(&self) -> String {
        let shown = match self {
            Self::Packet(Packet { wrap: Wrap::Batch, commands, .. }) if commands.len() == 1 => {
                "Command".into()
            }
            Self::Packet(Packet { wrap, .. }) => format!("{wrap:?}"),
            other => format!("{other:?}"),
        };
        shown.split([' ', '(']).next().unwrap_or_default().to_owned()
    }
}
