//! Histories: recorded exchanges of a client with its program and its nodes.
//!
//! Each `.txt` file of this folder is a history. The drivers of the client crate and of the
//! simulator must both do exactly what it says.
//!
//! | line | meaning |
//! |---|---|
//! | `# …` | a comment |
//! | `> …` | an input of the driver: see [`Input`] |
//! | `< 0/2 …` | what the driver does on the second connection to node 0: `connects`, `closes`, or a request |
//! | `= a …` | what the program learns of its lock `a` |
//!
//! The `<` lines after an event are sorted by connection. Tokens are numbered by their first
//! appearance. A fence with which no node has answered is a proposal of the client, written `new`;
//! `FENCE 0`, which repairs, is written `front`. The time of a WAIT, which may be random, is
//! written `slice`.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::path::Path;
use std::time::Duration;

/// The ttl of every lock, in milliseconds.
pub(crate) const TTL_MS: u64 = 10_000;

/// The run IDs determine the order of the nodes for each key.
pub(crate) fn run_id(node: usize) -> String {
    format!("run-{node}")
}

/// A driver of a client's state machines, whose program and nodes do only what a history says.
pub(crate) trait Driver {
    /// Creates a client that has not connected yet.
    fn new(nodes: usize) -> Self;

    /// Passes an event to the driver, and waits until the driver has handled all its consequences.
    fn apply(&mut self, input: &Input);

    /// Returns what the driver has done since the last call.
    fn take_outputs(&mut self) -> Vec<Output>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// `connect`: the client connects to all nodes.
    Connect,
    /// `acquire LOCK KEY [wait TIME|forever] [renew]`: the program calls for a lock.
    Acquire { lock: String, key: String, wait: Option<Duration>, renew: bool },
    /// `cancel LOCK`: the program drops its call.
    Cancel(String),
    /// `extend LOCK`.
    Extend(String),
    /// `release LOCK`: the program releases the lock, and waits for the answers.
    Release(String),
    /// `drop LOCK`: the program drops the lock.
    Drop(String),
    /// `detach LOCK`.
    Detach(String),
    /// `attach LOCK OTHER`: the program attaches the other lock, which was detached.
    Attach { lock: String, detached: String },
    /// `answer CONNECTION ANSWER`: the node answers its oldest request.
    Answer(Connection, Answer),
    /// `lose CONNECTION`: the connection ends.
    Lose(Connection),
    /// `refuse NODE`: the node refuses connections from now on.
    Refuse(usize),
    /// `accept NODE`: the node accepts connections again.
    Accept(usize),
    /// `pass TIME`: time passes, in whole milliseconds.
    Pass(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// `fence N`.
    Fence(u64),
    /// `fence N waited TIME`: to a WAIT.
    Waited(u64, Duration),
    /// `yes`: the lock was released, the key is taken, or the node is alive.
    Yes,
    /// `no`: the request is refused, the lock is not held, or the key is free.
    No,
    /// `abstain`: the node abstains.
    Abstain,
}

/// A connection: its node, and its number among the connections that the node has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Connection {
    pub(crate) node: usize,
    pub(crate) number: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Connects(Connection),
    Closes(Connection),
    /// The arguments of a command.
    Sends(Connection, Vec<String>),
    /// The name of a lock, and what the program learns about it.
    Learns(String, String),
}

/// Replays every history. Panics after the first event that the driver handles differently.
pub(crate) fn replay_all<D: Driver>() {
    for_each_history(|_, text| {
        replay::<D>(&text, true);
    });
}

#[allow(dead_code, reason = "only the simulator records")]
pub(crate) fn record_all<D: Driver>() {
    for_each_history(|path, text| {
        let recorded = replay::<D>(&text, false);
        std::fs::write(path, recorded).unwrap();
    });
}

fn for_each_history(mut visit: impl FnMut(&Path, String)) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/histories");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|it| it == "txt")).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{folder} has no history");
    for path in paths {
        println!("{}", path.display());
        visit(&path, std::fs::read_to_string(&path).unwrap());
    }
}

/// Replays a history. Returns its text with what the driver did in place of what it should do. If
/// `checked`, panics if these differ.
pub(crate) fn replay<D: Driver>(text: &str, checked: bool) -> String {
    let is_output = |line: &str| line.starts_with("< ") || line.starts_with("= ");
    let mut lines = text.lines().enumerate().peekable();
    let mut driver = None;
    let mut names = Names::default();
    let mut recorded = String::new();
    while let Some((number, line)) = lines.next() {
        let _ = writeln!(recorded, "{line}");
        let Some(input) = line.strip_prefix("> ") else {
            assert!(
                line.starts_with('#'),
                "line {} is neither a comment nor an input nor the output of one: {line}",
                number + 1,
            );
            continue;
        };
        let words: Vec<_> = input.split(' ').collect();
        let mut expected = String::new();
        while let Some((_, line)) = lines.next_if(|(_, line)| is_output(line)) {
            let _ = writeln!(expected, "{line}");
        }
        let driver = match words[..] {
            ["connect", nodes] => driver.insert(D::new(nodes.parse().unwrap())),
            _ => driver.as_mut().expect("a history begins with connect"),
        };
        let input = Input::parse(&words).unwrap_or_else(|| panic!("line {}: {line}", number + 1));
        names.record_fence(&input);
        driver.apply(&input);
        let done = names.describe(driver.take_outputs());
        assert!(
            !checked || done == expected,
            "after line {}, {line}\nthe history has\n{expected}\nand the driver did\n{done}",
            number + 1,
        );
        recorded += &done;
    }
    recorded
}

impl Input {
    fn parse(words: &[&str]) -> Option<Self> {
        let lock = |name: &str| name.to_owned();
        Some(match *words {
            ["connect", _] => Self::Connect,
            ["acquire", name, key, ref rest @ ..] => {
                let (rest, renew) = match rest {
                    [rest @ .., "renew"] => (rest, true),
                    rest => (rest, false),
                };
                let wait = match *rest {
                    [] => Some(Duration::ZERO),
                    ["wait", "forever"] => None,
                    ["wait", time] => Some(duration(time)?),
                    _ => return None,
                };
                Self::Acquire { lock: lock(name), key: key.to_owned(), wait, renew }
            }
            ["cancel", name] => Self::Cancel(lock(name)),
            ["extend", name] => Self::Extend(lock(name)),
            ["release", name] => Self::Release(lock(name)),
            ["drop", name] => Self::Drop(lock(name)),
            ["detach", name] => Self::Detach(lock(name)),
            ["attach", name, other] => Self::Attach { lock: lock(name), detached: lock(other) },
            ["answer", at, ref answer @ ..] => {
                Self::Answer(connection(at)?, Answer::parse(answer)?)
            }
            ["lose", at] => Self::Lose(connection(at)?),
            ["refuse", node] => Self::Refuse(node.parse().ok()?),
            ["accept", node] => Self::Accept(node.parse().ok()?),
            ["pass", time] => Self::Pass(duration(time)?),
            _ => return None,
        })
    }
}

impl Answer {
    fn parse(words: &[&str]) -> Option<Self> {
        Some(match *words {
            ["fence", fence] => Self::Fence(fence.parse().ok()?),
            ["fence", fence, "waited", time] => Self::Waited(fence.parse().ok()?, duration(time)?),
            ["yes"] => Self::Yes,
            ["no"] => Self::No,
            ["abstain"] => Self::Abstain,
            _ => return None,
        })
    }
}

fn duration(text: &str) -> Option<Duration> {
    if let Some(ms) = text.strip_suffix("ms") {
        return Some(Duration::from_millis(ms.parse().ok()?));
    }
    Some(Duration::from_secs(text.strip_suffix('s')?.parse().ok()?))
}

fn connection(text: &str) -> Option<Connection> {
    let (node, number) = text.split_once('/')?;
    Some(Connection { node: node.parse().ok()?, number: number.parse().ok()? })
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node, self.number)
    }
}

/// Stable names for values that differ between two runs of one history.
#[derive(Default)]
struct Names {
    /// In the order of their first appearance.
    tokens: Vec<String>,
    /// The fences with which nodes have answered.
    fences: BTreeSet<u64>,
}

impl Names {
    fn record_fence(&mut self, input: &Input) {
        if let Input::Answer(_, Answer::Fence(fence) | Answer::Waited(fence, _)) = input {
            self.fences.insert(*fence);
        }
    }

    fn describe(&mut self, mut outputs: Vec<Output>) -> String {
        outputs.sort_by_key(|output| match output {
            Output::Connects(at) | Output::Closes(at) | Output::Sends(at, _) => (false, Some(*at)),
            Output::Learns(..) => (true, None),
        });
        let mut lines = String::new();
        for output in outputs {
            let _ = match output {
                Output::Connects(at) => writeln!(lines, "< {at} connects"),
                Output::Closes(at) => writeln!(lines, "< {at} closes"),
                Output::Sends(at, command) => writeln!(lines, "< {at} {}", self.command(&command)),
                Output::Learns(lock, what) => writeln!(lines, "= {lock} {what}"),
            };
        }
        lines
    }

    fn command(&mut self, arguments: &[String]) -> String {
        let mut words: Vec<String> = Vec::new();
        for argument in arguments {
            let is_fence = words.last().is_some_and(|before| before == "FENCE");
            let is_wait = words.last().is_some_and(|before| before == "WAIT");
            let is_token =
                argument.len() == 32 && argument.bytes().all(|byte| byte.is_ascii_hexdigit());
            words.push(if is_token {
                self.token(argument)
            } else if is_wait {
                "slice".to_owned()
            } else if is_fence && argument == "0" {
                "front".to_owned()
            } else if is_fence && !self.fences.contains(&argument.parse().unwrap()) {
                "new".to_owned()
            } else {
                argument.clone()
            });
        }
        words.join(" ")
    }

    fn token(&mut self, token: &str) -> String {
        let known = self.tokens.iter().position(|known| known == token);
        let index = known.unwrap_or_else(|| {
            self.tokens.push(token.to_owned());
            self.tokens.len() - 1
        });
        format!("token{}", index + 1)
    }
}
