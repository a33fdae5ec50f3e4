//! Histories: what a client is told, and what it sends.
//!
//! Each file of this folder is one, and the drivers of the client and of the simulator must send
//! the same.
//!
//! | line | meaning |
//! |---|---|
//! | `# …` | a comment |
//! | `> …` | what the driver is told: see [`Told`] |
//! | `< 0/2 …` | what it does on the second connection to node 0: `connects`, `closes`, or a request |
//! | `= a …` | what the program learns of its lock `a` |
//!
//! Requests are in order for each connection. Tokens are named by their first appearance. A fence
//! that no node has answered with is the client's own proposal, and written `new`.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::path::Path;
use std::time::Duration;

/// The ttl of every lock, in milliseconds.
pub(crate) const TTL_MS: u64 = 10_000;

/// The run id of a node, from which the order of the nodes for a key follows.
pub(crate) fn run_id(node: usize) -> String {
    format!("run-{node}")
}

/// A driver of the machines, with a program and nodes that do only what a history says.
pub(crate) trait Driver {
    /// A client that has not connected yet.
    fn new(nodes: usize) -> Self;

    /// Tells it what happens, and waits until nothing follows from that any more.
    fn tell(&mut self, told: &Told);

    /// What it has done since the last call.
    fn take_done(&mut self) -> Vec<Done>;
}

/// What a driver is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// `connect`: the client connects to all nodes.
    Connect,
    /// `acquire LOCK KEY [wait TIME|forever] [renew]`: the program calls for a lock.
    Acquire { lock: String, key: String, wait: Option<Duration>, renew: bool },
    /// `cancel LOCK`: the program drops its call.
    Cancel(String),
    /// `extend LOCK`.
    Extend(String),
    /// `release LOCK`: the program releases it, and waits for the answers.
    Release(String),
    /// `drop LOCK`: the program drops it.
    Drop(String),
    /// `detach LOCK`.
    Detach(String),
    /// `attach LOCK OTHER`: the program attaches the other lock, which was detached.
    Attach { lock: String, detached: String },
    /// `answer CONNECTION ANSWER`: the node answers its oldest request.
    Answer(Connection, Answer),
    /// `lose CONNECTION`: it ends.
    Lose(Connection),
    /// `refuse NODE`: it accepts no connection from now on.
    Refuse(usize),
    /// `accept NODE`: it does again.
    Accept(usize),
    /// `pass TIME`: of whole milliseconds.
    Pass(Duration),
}

/// What a node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// `fence N`.
    Fence(u64),
    /// `fence N waited TIME`: to a WAIT.
    Waited(u64, Duration),
    /// `yes`: released, taken or alive.
    Yes,
    /// `no`: refused, not held or free.
    No,
    /// `abstain`: an error.
    Abstain,
}

/// A connection: the node, and how many connections to that node were begun before, plus one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Connection {
    pub(crate) node: usize,
    pub(crate) number: usize,
}

/// What a driver has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Connects(Connection),
    Closes(Connection),
    /// A command, by its arguments.
    Sends(Connection, Vec<String>),
    /// The program learns this about a lock.
    Learns(String, String),
}

/// Replays every history, and panics at the first step after which the driver does anything else.
pub(crate) fn replay_all<D: Driver>() {
    each(|_, text| {
        replay::<D>(&text, true);
    });
}

/// Writes into each history what the driver does.
#[allow(dead_code, reason = "only the simulator records")]
pub(crate) fn record_all<D: Driver>() {
    each(|path, text| {
        let recorded = replay::<D>(&text, false);
        std::fs::write(path, recorded).unwrap();
    });
}

fn each(mut check: impl FnMut(&Path, String)) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/histories");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|it| it == "txt")).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{folder} has no history");
    for path in paths {
        println!("{}", path.display());
        check(&path, std::fs::read_to_string(&path).unwrap());
    }
}

/// Replays a history, and returns it with what the driver did.
///
/// With `checked`, that must be what the history says.
fn replay<D: Driver>(text: &str, checked: bool) -> String {
    let is_done = |line: &str| line.starts_with("< ") || line.starts_with("= ");
    let mut lines = text.lines().enumerate().peekable();
    let mut driver = None;
    let mut names = Names::default();
    let mut recorded = String::new();
    while let Some((number, line)) = lines.next() {
        let _ = writeln!(recorded, "{line}");
        let Some(told) = line.strip_prefix("> ") else { continue };
        let words: Vec<_> = told.split(' ').collect();
        let mut expected = String::new();
        while let Some((_, line)) = lines.next_if(|(_, line)| is_done(line)) {
            let _ = writeln!(expected, "{line}");
        }
        let driver = match words[..] {
            ["connect", nodes] => driver.insert(D::new(nodes.parse().unwrap())),
            _ => driver.as_mut().expect("a history begins with connect"),
        };
        let told = Told::parse(&words).unwrap_or_else(|| panic!("line {}: {line}", number + 1));
        names.hear(&told);
        driver.tell(&told);
        let done = names.describe(driver.take_done());
        assert!(
            !checked || done == expected,
            "after line {}, {line}\nthe history has\n{expected}\nand the driver did\n{done}",
            number + 1,
        );
        recorded += &done;
    }
    recorded
}

impl Told {
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

/// What differs between two runs of one history.
#[derive(Default)]
struct Names {
    /// In the order of their first appearance.
    tokens: Vec<String>,
    /// The fences that nodes have answered with.
    fences: BTreeSet<u64>,
}

impl Names {
    fn hear(&mut self, told: &Told) {
        if let Told::Answer(_, Answer::Fence(fence) | Answer::Waited(fence, _)) = told {
            self.fences.insert(*fence);
        }
    }

    fn describe(&mut self, mut done: Vec<Done>) -> String {
        done.sort_by_key(|done| match done {
            Done::Connects(at) | Done::Closes(at) | Done::Sends(at, _) => (false, Some(*at)),
            Done::Learns(..) => (true, None),
        });
        let mut lines = String::new();
        for done in done {
            let _ = match done {
                Done::Connects(at) => writeln!(lines, "< {at} connects"),
                Done::Closes(at) => writeln!(lines, "< {at} closes"),
                Done::Sends(at, command) => writeln!(lines, "< {at} {}", self.command(&command)),
                Done::Learns(lock, what) => writeln!(lines, "= {lock} {what}"),
            };
        }
        lines
    }

    fn command(&mut self, arguments: &[String]) -> String {
        let mut words: Vec<String> = Vec::new();
        for argument in arguments {
            let is_fence = words.last().is_some_and(|before| before == "FENCE");
            let word =
                if argument.len() == 32 && argument.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                    self.token(argument)
                } else if is_fence && !self.fences.contains(&argument.parse().unwrap()) {
                    "new".to_owned()
                } else {
                    argument.clone()
                };
            words.push(word);
        }
        words.join(" ")
    }

    fn token(&mut self, token: &str) -> String {
        let known = self.tokens.iter().position(|known| known == token);
        let place = known.unwrap_or_else(|| {
            self.tokens.push(token.to_owned());
            self.tokens.len() - 1
        });
        format!("token{}", place + 1)
    }
}
