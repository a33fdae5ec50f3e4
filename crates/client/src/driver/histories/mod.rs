//! Replays, with the driver of this crate, the histories that the simulator's driver recorded.
//!
//! Nodes are unix sockets that answer as the history says. Everything runs on one thread under
//! tokio's paused clock, and the machines read the same clock, so that time passes only where the
//! history says so.

#[path = "../../../../sim/histories/mod.rs"]
mod history;
mod scripted_node;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use history::{Done, Driver, TTL_MS, Told};
use quorlock_core::Ttl;
use quorlock_core::client::{Failure, Keys, Mode, Spec, Token};
use quorlock_core::quorum::Majority;
use redis::Client;
use scripted_node::ScriptedNode;
use tempfile::TempDir;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{AbortHandle, yield_now};

use super::{LockInner, NodeInfo, Shared, acquire, attach, extend};
use crate::clock::tests::follow_the_runtime;
use crate::transport::{BlockingPool, Endpoint};

/// The client is idle when its nodes receive nothing during this many passes of the runtime. An
/// event wakes a few tasks one after the other, and each of them needs one pass.
const TURNS_AT_REST: u32 = 32;
/// The step by which the clock advances: tokio's timers have no finer resolution.
const TICK: Duration = Duration::from_millis(1);

#[test]
fn driver_repeats_the_histories() {
    history::replay_all::<Replay>();
}

/// A client whose nodes answer as a history says.
struct Replay {
    runtime: Runtime,
    stage: Stage,
}

/// The client and its nodes, which run on the runtime.
struct Stage {
    nodes: Vec<ScriptedNode>,
    shared: Option<Arc<Shared>>,
    calls: BTreeMap<String, AbortHandle>,
    detached: BTreeMap<String, (Arc<Spec>, Token)>,
    program: Program,
    _folder: TempDir,
}

/// The handles of the program, and the results that it received.
#[derive(Clone, Default)]
struct Program {
    locks: Arc<Mutex<BTreeMap<String, Arc<LockInner>>>>,
    learnt: Arc<Mutex<Vec<Done>>>,
}

impl Driver for Replay {
    fn new(nodes: usize) -> Self {
        let runtime =
            Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let folder = TempDir::new().unwrap();
        let node = |index| ScriptedNode::new(index, folder.path().join(index.to_string()));
        let stage = Stage {
            nodes: (0..nodes).map(node).collect(),
            shared: None,
            calls: BTreeMap::new(),
            detached: BTreeMap::new(),
            program: Program::default(),
            _folder: folder,
        };
        Self { runtime, stage }
    }

    fn tell(&mut self, told: &Told) {
        let Self { runtime, stage } = self;
        runtime.block_on(async {
            follow_the_runtime();
            stage.tell(told).await;
            stage.rest().await;
        });
    }

    fn take_done(&mut self) -> Vec<Done> {
        let nodes = self.stage.nodes.iter_mut().flat_map(ScriptedNode::take_done);
        let learnt = std::mem::take(&mut *self.stage.program.learnt.lock().unwrap());
        nodes.chain(learnt).collect()
    }
}

impl Stage {
    async fn tell(&mut self, told: &Told) {
        match told {
            Told::Connect => self.shared = Some(self.connect()),
            Told::Acquire { lock, key, wait, renew } => {
                let spec = Spec {
                    keys: Keys::from_iter([key]),
                    ttl: Ttl::from_ms(TTL_MS).unwrap(),
                    mode: Mode::Exclusive,
                    any: None,
                    min_validity: Duration::ZERO,
                    node_timeout: None,
                    max_hold: None,
                    owner: None,
                };
                let (shared, wait, renew) = (self.shared(), *wait, *renew);
                self.call(lock, async move {
                    let lock = acquire(&shared, spec, wait).await?;
                    if renew {
                        lock.renew();
                    }
                    Ok(lock)
                });
            }
            Told::Attach { lock, detached } => {
                let (spec, old) =
                    self.detached.remove(detached).expect("the history detaches this lock");
                let (shared, spec) = (self.shared(), Spec::clone(&spec));
                self.call(lock, async move { attach(&shared, spec, old).await });
            }
            Told::Cancel(lock) => self.calls[lock].abort(),
            Told::Extend(name) => {
                let (lock, name, program) =
                    (self.program.lock(name), name.clone(), self.program.clone());
                tokio::spawn(async move {
                    let is_extended = extend(&lock).await.is_ok();
                    program
                        .learns(&name, if is_extended { "is extended" } else { "is not extended" });
                });
            }
            Told::Release(lock) => {
                let lock = self.program.lock(lock);
                tokio::spawn(async move { lock.release().await });
            }
            Told::Drop(lock) => self.program.lock(lock).drop_lock(),
            Told::Detach(name) => {
                let lock = self.program.lock(name);
                let (token, _) = lock.detach();
                self.detached.insert(name.clone(), (Arc::clone(&lock.spec), token));
            }
            Told::Answer(connection, answer) => {
                self.nodes[connection.node].answer(*connection, *answer);
            }
            Told::Lose(connection) => self.nodes[connection.node].lose(*connection),
            Told::Refuse(node) => self.nodes[*node].refuse(),
            Told::Accept(node) => self.nodes[*node].accept(),
            Told::Pass(time) => {
                let end = tokio::time::Instant::now() + *time;
                while tokio::time::Instant::now() < end {
                    tokio::time::advance(TICK).await;
                    self.rest().await;
                }
            }
        }
    }

    fn connect(&self) -> Arc<Shared> {
        let nodes = self.nodes.iter().map(|node| {
            let client = Client::open(node.url()).unwrap();
            let endpoint = Endpoint::of_client(&client).unwrap();
            let pool = Arc::new(BlockingPool::new(endpoint.clone()));
            NodeInfo { name: endpoint.address().into(), endpoint, pool }
        });
        let majority = Majority::of(self.nodes.len()).unwrap();
        Shared::start(nodes.collect(), majority, None, None, Handle::current())
    }

    fn shared(&self) -> Arc<Shared> {
        Arc::clone(self.shared.as_ref().expect("a history begins with connect"))
    }

    fn call(
        &mut self,
        name: &str,
        call: impl Future<Output = Result<Arc<LockInner>, Failure>> + Send + 'static,
    ) {
        let (program, of) = (self.program.clone(), name.to_owned());
        let task = tokio::spawn(async move {
            match call.await {
                Ok(lock) => {
                    program.learns(&of, &format!("is acquired with fence {}", lock.fence));
                    program.locks.lock().unwrap().insert(of, lock);
                }
                Err(failure) => {
                    program.learns(&of, &format!("is not acquired: {:?}", failure.reason));
                }
            }
        });
        self.calls.insert(name.to_owned(), task.abort_handle());
    }

    /// Waits until the client is idle.
    async fn rest(&mut self) {
        loop {
            for _ in 0..TURNS_AT_REST {
                yield_now().await;
            }
            let mut has_seen = false;
            for node in &mut self.nodes {
                has_seen |= node.receive();
            }
            if !has_seen {
                return;
            }
        }
    }
}

impl Program {
    fn lock(&self, name: &str) -> Arc<LockInner> {
        Arc::clone(&self.locks.lock().unwrap()[name])
    }

    fn learns(&self, name: &str, what: &str) {
        self.learnt.lock().unwrap().push(Done::Learns(name.to_owned(), what.to_owned()));
    }
}
