//! Replays the histories with the driver of this crate.
//!
//! With `QUORLOCK_RECORD=1`, first writes into the histories what this driver does.

#[path = "../../histories/mod.rs"]
mod history;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use history::{Answer, Connection, Driver, Input, Output, TTL_MS};
use quorlock_core::client::{Command, Keys, NodeError, Request, Response, Spec, Token};
use quorlock_core::quorum::ExtensionVerdict;
use quorlock_core::{Fence, Ttl};

use super::caller::Caller;
use super::clock::{ClientClock, MS, Ns};
use super::events::Event;
use super::network::{Conn, Direction, Down, Network, Path, Up};
use super::plan::{Habits, Plan};
use super::process::{Machine, Process};
use super::simulation::WARM_UP;
use super::trace::Trace;
use super::world::{Note, World};

/// The keys of the histories.
const KEYS: [&str; 2] = ["report", "nightly"];

#[test]
fn simulated_driver_repeats_the_histories() {
    if std::env::var_os("QUORLOCK_RECORD").is_some() {
        history::record_all::<Replay<true>>();
    }
    history::replay_all::<Replay<true>>();
    history::replay_all::<Replay<false>>();
}

#[test]
#[should_panic(expected = "line 2 is neither a comment nor an input")]
fn history_line_of_unknown_kind_is_refused() {
    history::replay::<Replay<true>>("# the next line has no mark\nconnect 3\n", true);
}

/// A process whose nodes do what a history says. If `MACHINES_FIRST`, the other state machines
/// learn of a lost connection before the links do.
struct Replay<const MACHINES_FIRST: bool> {
    process: Process,
    world: World,
    nodes: Vec<Node>,
    names: BTreeMap<Conn, Connection>,
    /// For each connection: the number of requests without an answer.
    unanswered: BTreeMap<Conn, usize>,
    locks: BTreeMap<String, u64>,
    /// Locks whose extension the program awaits.
    extending: Vec<u64>,
    detached: BTreeMap<String, (Token, Arc<Spec>)>,
    outputs: Vec<Output>,
}

struct Node {
    accepts: bool,
    connections: usize,
}

impl<const MACHINES_FIRST: bool> Driver for Replay<MACHINES_FIRST> {
    fn new(nodes: usize) -> Self {
        let habits =
            Habits { ttls_ms: vec![TTL_MS], hold: (1, 1), rest: (1, 1), ..Habits::default() };
        let key_indexes = (0..KEYS.len()).map(|key| vec![key]).collect();
        let mut plan = Plan::of_clients(1, &habits, 0).with_sets(KEYS.len(), key_indexes);
        plan.nodes = nodes;
        plan.names = KEYS.map(str::to_owned).to_vec();
        plan.key_sets = KEYS.map(|key| Keys::from_iter([key])).to_vec();
        let plan = Arc::new(plan);
        let network = Network::new(nodes, vec![Path::new(0, 0); nodes], 1);
        let mut world = World::new(&plan, Vec::new(), network, Trace::new(false));
        world.now = WARM_UP;
        let clock = ClientClock::new(0, 0, Duration::from_secs(1), 0);
        let process = Process::new(0, clock, 1, &world).telling_machines_first(MACHINES_FIRST);
        Self {
            process,
            world,
            nodes: (0..nodes).map(|_| Node { accepts: true, connections: 0 }).collect(),
            names: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            locks: BTreeMap::new(),
            extending: Vec::new(),
            detached: BTreeMap::new(),
            outputs: Vec::new(),
        }
    }

    fn apply(&mut self, input: &Input) {
        let mut until = self.world.now;
        match input {
            Input::Connect => self.process.begin(&mut self.world),
            Input::Acquire { lock, key, wait, renew } => {
                let key_set = self.world.plan.key_index(key.as_bytes());
                let keys = self.world.plan.key_sets[key_set].clone();
                let spec = Arc::new(Spec::exclusive(keys, Ttl::from_ms(TTL_MS).unwrap()));
                let caller = self.add_caller();
                let call =
                    self.process.call(caller, key_set, &spec, *wait, *renew, &mut self.world);
                self.locks.insert(lock.clone(), call);
            }
            Input::Attach { lock, detached } => {
                let (token, spec) = self.detached.remove(detached).expect("it was detached");
                let key_set = self.world.plan.key_index(spec.keys.first());
                let caller = self.add_caller();
                let call = self.process.attach(caller, key_set, &spec, token, &mut self.world);
                self.locks.insert(lock.clone(), call);
            }
            Input::Cancel(lock) => self.process.cancel(self.locks[lock], &mut self.world),
            Input::Extend(lock) => {
                let lock = self.locks[lock];
                self.extending.push(lock);
                assert!(self.process.extend(lock, &mut self.world), "the lock has ended");
            }
            Input::Release(lock) => {
                let caller = self.add_caller();
                self.process.release_lock(self.locks[lock], Some(caller), &mut self.world);
            }
            Input::Drop(lock) => self.process.release_lock(self.locks[lock], None, &mut self.world),
            Input::Detach(lock) => {
                let detached =
                    self.process.detach(self.locks[lock], &mut self.world).expect("it is held");
                self.detached.insert(lock.clone(), detached);
            }
            Input::Answer(connection, answer) => {
                let conn = self.conn(*connection);
                let unanswered = self.unanswered.get_mut(&conn).filter(|requests| **requests > 0);
                *unanswered.unwrap_or_else(|| panic!("{connection} has no request")) -= 1;
                self.world.send_down(conn, Down::Response(response(*answer)));
            }
            Input::Lose(connection) => {
                let conn = self.conn(*connection);
                self.names.remove(&conn);
                self.process.lose(conn, "the history says so", &mut self.world);
            }
            Input::Refuse(node) => self.nodes[*node].accepts = false,
            Input::Accept(node) => self.nodes[*node].accepts = true,
            Input::Pass(time) => until += Ns::try_from(time.as_nanos()).unwrap(),
        }
        assert_eq!(until % MS, 0, "the timers of the client crate have whole milliseconds");
        self.process.settle(&mut self.world);
        self.run_until(until);
    }

    fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }
}

impl<const MACHINES_FIRST: bool> Replay<MACHINES_FIRST> {
    fn add_caller(&mut self) -> usize {
        self.process.callers.push(Caller::new(0));
        self.process.callers.len() - 1
    }

    fn conn(&self, name: Connection) -> Conn {
        let found = self.names.iter().find(|(_, known)| **known == name);
        *found.unwrap_or_else(|| panic!("there is no connection {name}")).0
    }

    fn lock(&self, machine: u64) -> String {
        let found = self.locks.iter().find(|(_, known)| **known == machine);
        found.map_or_else(|| machine.to_string(), |(name, _)| name.clone())
    }

    fn run_until(&mut self, until: Ns) {
        self.record_results();
        while let Some(at) = self.world.events.next_at().filter(|at| *at <= until) {
            self.world.now = at;
            let (_, event) = self.world.events.pop().expect("there is one");
            self.happen(event);
            self.record_results();
        }
        self.world.now = until;
    }

    fn happen(&mut self, event: Event) {
        let world = &mut self.world;
        match event {
            Event::Up { conn, number, message } => {
                if world.network.arrives(conn, number, Direction::Up) {
                    self.arrive(conn, message);
                }
            }
            Event::Down { conn, number, message } => {
                if world.network.arrives(conn, number, Direction::Down) {
                    self.process.receive(conn, message, world);
                }
            }
            Event::ProcessLosesConnection { conn } => {
                self.process.lose(conn, "it was refused", world);
            }
            Event::Timer { timer, .. } => self.process.time_out(timer, world),
            // The history decides what the program does.
            Event::Caller { .. } => {}
            other => panic!("{other:?} does not occur in a history"),
        }
    }

    /// Answers requests to connect, and HELLO. The history answers all other requests.
    fn arrive(&mut self, conn: Conn, message: Up) {
        let node = self.world.network.connection(conn).node;
        match message {
            Up::Connect if self.nodes[node].accepts => {
                self.nodes[node].connections += 1;
                let name = Connection { node, number: self.nodes[node].connections };
                self.names.insert(conn, name);
                self.outputs.push(Output::Connects(name));
                self.world.send_down(conn, Down::Connected);
            }
            Up::Connect => self.world.send_down(conn, Down::Refused),
            Up::Hello => {
                let run_id = history::run_id(node).into();
                self.world.send_down(conn, Down::Hello { run_id });
            }
            Up::Request(packet) => {
                let command = command(&packet.spec, &packet.request);
                self.outputs.push(Output::Sends(self.names[&conn], command));
                *self.unanswered.entry(conn).or_default() += 1;
            }
            Up::Close => {
                if let Some(name) = self.names.get(&conn) {
                    self.outputs.push(Output::Closes(*name));
                }
            }
        }
    }

    /// Records the results that the program learns.
    fn record_results(&mut self) {
        for note in std::mem::take(&mut self.world.notes) {
            let (id, what) = match note {
                Note::Granted(id) => match &self.process.machines[&id.number].machine {
                    Machine::Lock(lock) => {
                        (id, format!("is acquired with fence {}", lock.hold.fence()))
                    }
                    Machine::Call(_) | Machine::Release(_) => continue,
                },
                Note::Failed(call) => (call.id, format!("is not acquired: {:?}", call.reason)),
                Note::Extended { lock, verdict, .. } => {
                    let awaited = self.extending.iter().position(|number| *number == lock.number);
                    let Some(awaited) = awaited else { continue };
                    self.extending.remove(awaited);
                    let what = match verdict {
                        ExtensionVerdict::Extended(_) => "is extended",
                        ExtensionVerdict::Uncertain | ExtensionVerdict::Lost => "is not extended",
                    };
                    (lock, what.to_owned())
                }
                Note::Released(_) | Note::Detached(_) => continue,
            };
            self.outputs.push(Output::Learns(self.lock(id.number), what));
        }
    }
}

fn response(answer: Answer) -> Response {
    let fence = |fence| Fence::new(fence).unwrap();
    match answer {
        Answer::Fence(value) => Response::Fence(fence(value)),
        Answer::Waited(value, waited) => Response::FenceAfterWait { fence: fence(value), waited },
        Answer::Yes => Response::Yes,
        Answer::No => Response::No,
        Answer::Abstain => Response::Failed(NodeError::Abstains { reason: String::new() }),
    }
}

/// Formats a request as the client sends it. docs/protocol/vectors.json has the same formats.
fn command(spec: &Spec, request: &Request) -> Vec<String> {
    let key = String::from_utf8(spec.keys.first().to_vec()).unwrap();
    let (token, ttl) = (request.token.as_str().to_owned(), spec.ttl.ms().to_string());
    let with_fence = |fence: Fence| ["FENCE".to_owned(), fence.to_string()];
    match request.command {
        Command::Acquire { fence } => {
            [&["LOCK.ACQUIRE".to_owned(), key, token, ttl][..], &with_fence(fence)].concat()
        }
        Command::Wait { fence, wait } => {
            let ms = wait.as_millis().max(1).to_string();
            let command = ["LOCK.ACQUIRE".to_owned(), key, token, ttl, "WAIT".into(), ms];
            [&command[..], &with_fence(fence)].concat()
        }
        Command::AcquireAny { .. } => unreachable!("no history has a semaphore"),
        Command::Extend { fence } => {
            let mut command = vec!["LOCK.EXTEND".to_owned(), key, token, ttl];
            command.extend(fence.into_iter().flat_map(with_fence));
            command
        }
        Command::SwapToken { new } => {
            vec!["LOCK.EXTEND".to_owned(), key, token, ttl, "TOKEN".into(), new.as_str().into()]
        }
        Command::Release => vec!["LOCK.RELEASE".to_owned(), key, token],
        Command::Yield => vec!["LOCK.YIELD".to_owned(), key, token],
        Command::Ping => vec!["PING".to_owned()],
    }
}
