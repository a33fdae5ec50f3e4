//! Replays, with the driver of this crate, the histories that the simulator's driver recorded.
//!
//! Nodes are unix sockets. Everything runs on one thread under tokio's paused clock, which the
//! machines read too, so that time passes only where the history says so.

#[path = "../../../../sim/histories/mod.rs"]
mod history;
mod scripted_node;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use history::{Driver, Input, Output, TTL_MS};
use quorlock_core::Ttl;
use quorlock_core::client::{Failure, Keys, Spec, Token};
use quorlock_core::quorum::Majority;
use redis::Client;
use scripted_node::ScriptedNode;
use tempfile::TempDir;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{AbortHandle, yield_now};

use super::{LockInner, NodeInfo, Shared, acquire, attach, extend};
use crate::clock::tests::follow_the_runtime;
use crate::transport::{Endpoint, WaitConnectionPool};

/// A client is idle when its nodes receive nothing during this many passes of the runtime. An event
/// wakes a few tasks one after the other, and each task needs one pass.
const IDLE_PASSES: u32 = 32;
/// tokio's timers have no finer resolution.
const TICK: Duration = Duration::from_millis(1);

#[test]
fn driver_repeats_the_histories() {
    history::replay_all::<Replay>();
}

struct Replay {
    runtime: Runtime,
    setup: Setup,
}

/// The client and its nodes, which run on the runtime.
struct Setup {
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
    results: Arc<Mutex<Vec<Output>>>,
}

impl Driver for Replay {
    fn new(nodes: usize) -> Self {
        let runtime =
            Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let folder = TempDir::new().unwrap();
        let node = |index| ScriptedNode::new(index, folder.path().join(index.to_string()));
        let setup = Setup {
            nodes: (0..nodes).map(node).collect(),
            shared: None,
            calls: BTreeMap::new(),
            detached: BTreeMap::new(),
            program: Program::default(),
            _folder: folder,
        };
        Self { runtime, setup }
    }

    fn apply(&mut self, input: &Input) {
        let Self { runtime, setup } = self;
        runtime.block_on(async {
            follow_the_runtime();
            setup.apply(input).await;
            setup.wait_until_idle().await;
        });
    }

    fn take_outputs(&mut self) -> Vec<Output> {
        let nodes = self.setup.nodes.iter_mut().flat_map(ScriptedNode::take_outputs);
        let results = std::mem::take(&mut *self.setup.program.results.lock().unwrap());
        nodes.chain(results).collect()
    }
}

impl Setup {
    async fn apply(&mut self, input: &Input) {
        match input {
            Input::Connect => self.shared = Some(self.connect()),
            Input::Acquire { lock, key, wait, renew } => {
                let spec = Spec::exclusive(Keys::from_iter([key]), Ttl::from_ms(TTL_MS).unwrap());
                let (shared, wait, renew) = (self.shared(), *wait, *renew);
                self.call(lock, async move {
                    let lock = acquire(&shared, spec, wait).await?;
                    if renew {
                        lock.renew();
                    }
                    Ok(lock)
                });
            }
            Input::Attach { lock, detached } => {
                let (spec, old) =
                    self.detached.remove(detached).expect("the history detaches this lock");
                let (shared, spec) = (self.shared(), Spec::clone(&spec));
                self.call(lock, async move { attach(&shared, spec, old).await });
            }
            Input::Cancel(lock) => self.calls[lock].abort(),
            Input::Extend(name) => {
                let lock = self.program.lock(name);
                let (name, program) = (name.clone(), self.program.clone());
                tokio::spawn(async move {
                    let is_extended = extend(&lock).await.is_ok();
                    let what = if is_extended { "is extended" } else { "is not extended" };
                    program.learns(&name, what);
                });
            }
            Input::Release(lock) => {
                let lock = self.program.lock(lock);
                tokio::spawn(async move { lock.release().await });
            }
            Input::Drop(lock) => self.program.lock(lock).release_in_background(),
            Input::Detach(name) => {
                let lock = self.program.lock(name);
                let (token, _) = lock.detach();
                self.detached.insert(name.clone(), (Arc::clone(&lock.spec), token));
            }
            Input::Answer(connection, answer) => {
                self.nodes[connection.node].answer(*connection, *answer);
            }
            Input::Lose(connection) => self.nodes[connection.node].lose(*connection),
            Input::Refuse(node) => self.nodes[*node].stop_listening(),
            Input::Accept(node) => self.nodes[*node].listen(),
            Input::Pass(time) => {
                let end = tokio::time::Instant::now() + *time;
                while tokio::time::Instant::now() < end {
                    tokio::time::advance(TICK).await;
                    self.wait_until_idle().await;
                }
            }
        }
    }

    fn connect(&self) -> Arc<Shared> {
        let nodes = self.nodes.iter().map(|node| {
            let client = Client::open(node.url()).unwrap();
            let endpoint = Endpoint::of_client(&client).unwrap();
            let wait_connections = Arc::new(WaitConnectionPool::new(endpoint.clone()));
            NodeInfo { name: endpoint.address().into(), endpoint, wait_connections }
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
        let (program, lock_name) = (self.program.clone(), name.to_owned());
        let task = tokio::spawn(async move {
            match call.await {
                Ok(lock) => {
                    program.learns(&lock_name, &format!("is acquired with fence {}", lock.fence));
                    program.locks.lock().unwrap().insert(lock_name, lock);
                }
                Err(failure) => {
                    program.learns(&lock_name, &format!("is not acquired: {:?}", failure.reason));
                }
            }
        });
        self.calls.insert(name.to_owned(), task.abort_handle());
    }

    async fn wait_until_idle(&mut self) {
        loop {
            for _ in 0..IDLE_PASSES {
                yield_now().await;
            }
            let mut has_activity = false;
            for node in &mut self.nodes {
                has_activity |= node.receive();
            }
            if !has_activity {
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
        self.results.lock().unwrap().push(Output::Learns(name.to_owned(), what.to_owned()));
    }
}
