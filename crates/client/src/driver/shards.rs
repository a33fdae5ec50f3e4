//! The driver of the calls, locks and releases of a client.
//!
//! Each shard of the client has a mutex, under which its requests are sent: a later RELEASE of the
//! same lock cannot overtake them. A response takes the mutex too, so nothing may respond under it.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::mem;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use quorlock_core::client::{
    Context, Failure, Keys, OutgoingRequest, Request, Response, Shard, ShardAction, Spec,
};
use quorlock_core::quorum::{ExtensionVerdict, Moment, ReleaseVerdict};
use quorlock_core::{Answer, NodeError};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::network::Network;
use super::timers::{ByNumber, Timers};
use crate::api::LockInner;
use crate::transport::{Inbox, Outgoing, Ticket};
use crate::{clock, telemetry};

/// Calls for different locks rarely contend for the mutex of one shard.
const SHARDS: usize = 32;
/// Timers stop while the computer sleeps, and deadlines do not.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// How often a call asked all nodes before it acquired its lock, or why it did not.
pub(crate) type CallResult = Result<u32, Failure>;

/// A verdict on a release, and the nodes' answers.
pub(crate) type ReleaseResult = (ReleaseVerdict, Vec<Answer>);

/// The calls, locks and releases of a client, which all its handles share.
pub(crate) struct Shards {
    pub(crate) network: Arc<Network>,
    /// The releases in the background, for which `flush` waits.
    pub(crate) tasks: TaskTracker,
    states: Vec<Mutex<State>>,
    hasher: RandomState,
}

/// One shard of a client, which its mutex protects.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) machines: Shard,
    timers: Timers,
    /// Wakes the task that fires the timers.
    wake: Arc<Notify>,
    /// When the task that fires the timers wakes by itself; zero while it is awake.
    wakes_at: Duration,
    pub(crate) callers: Callers,
    /// The locks that are told of their extensions.
    pub(crate) locks: ByNumber<Weak<LockInner>>,
    /// The WAITs whose connections are being opened.
    opening: ByNumber<AbortHandle>,
    /// The last encoded request, for reuse: most requests go to several nodes.
    last_built: Option<(Request, Arc<Spec>, Outgoing)>,
    /// Whether the runtime has ended. Then no timer fires, so nothing waits for a result.
    is_closed: bool,
}

/// The callers that wait for the machines of a shard.
#[derive(Default)]
pub(crate) struct Callers {
    /// By the number of the call.
    pub(crate) calls: ByNumber<oneshot::Sender<CallResult>>,
    /// For a verdict on this round of this lock, or a later one.
    pub(crate) rounds: Vec<(u64, u32, oneshot::Sender<ExtensionVerdict>)>,
    /// By the number of the release.
    pub(crate) releases: ByNumber<oneshot::Sender<ReleaseResult>>,
    /// By the number of each release that is not over.
    open_releases: ByNumber<OpenRelease>,
}

/// Until a release is over, the client's connections stay open, and `flush` waits for it.
type OpenRelease = (Arc<Shards>, TaskTrackerToken);

/// What is done once the mutex is unlocked: to wake a task may take locks of an executor, to drop a
/// release may end the client, and a recorder of metrics is the program's.
type Unlocked = Box<dyn FnOnce() + Send>;

/// Tells a caller its result. A caller that is gone cancels its call, or drops its lock, by itself.
fn tell<T: Send + 'static>(caller: oneshot::Sender<T>, result: T) -> Unlocked {
    Box::new(move || drop(caller.send(result)))
}

impl Shards {
    pub(crate) fn start(network: Arc<Network>) -> Arc<Self> {
        let shards = Arc::new(Self {
            network,
            tasks: TaskTracker::new(),
            states: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
        });
        for index in 0..SHARDS {
            let timekeeper = Timekeeper { shards: Arc::downgrade(&shards), index };
            let wake = shards.with_state(index, |state| Arc::clone(&state.wake));
            shards.network.runtime.spawn(timekeeper.run(wake));
        }
        shards
    }

    /// The index of the shard of these keys.
    pub(crate) fn of(&self, keys: &Keys) -> usize {
        let hash = self.hasher.hash_one(keys);
        usize::try_from(hash % SHARDS as u64).unwrap_or_default()
    }

    pub(crate) fn with_state<T>(&self, index: usize, call: impl FnOnce(&mut State) -> T) -> T {
        call(&mut self.states[index].lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Passes an event to a shard, and carries out the actions that follow.
    pub(crate) fn with_shard<T>(
        self: &Arc<Self>,
        index: usize,
        event: impl FnOnce(&mut State, &mut Context<'_>) -> T,
    ) -> T {
        let (result, unlocked) = self.with_state(index, |state| {
            let (result, now) = self.network.with_context(|ctx| (event(state, ctx), ctx.now));
            (result, state.act(self, index, now))
        });
        for act in unlocked {
            act();
        }
        result
    }

    /// Gets a connection for a WAIT, and sends the WAIT if a machine still needs it.
    fn begin_wait(self: &Arc<Self>, index: usize, number: u64, node: usize) -> AbortHandle {
        let pool = Arc::clone(&self.network.nodes[node].wait_connections);
        let client = Arc::downgrade(self);
        let waiting = self.network.runtime.spawn(async move {
            // Made here, because a runtime that has ended drops this future at once.
            let ticket = Ticket::new(client.clone(), index, number);
            let connection = pool.checkout().await;
            let wait = client.upgrade().and_then(|shards| {
                shards.with_shard(index, |state, ctx| {
                    state.opening.remove(&number);
                    let is_open = connection.is_ok();
                    is_open.then(|| state.machines.handle_wait_connection(number, ctx))?
                })
            });
            match (connection, wait) {
                (Err(error), _) => ticket.answer(Response::Failed(error)),
                (Ok(connection), Some((request, spec))) => {
                    ticket.answer(pool.ask(connection, &Outgoing::new(&spec, &request)).await);
                }
                (Ok(connection), None) => pool.put_back(connection),
            }
        });
        waiting.abort_handle()
    }
}

impl Inbox for Shards {
    fn put(self: Arc<Self>, shard: usize, number: u64, response: Response) {
        self.with_shard(shard, |state, ctx| {
            state.machines.handle_response(number, &response, ctx);
        });
    }
}

/// The task that fires the timers of a shard. If it ends before the client, the runtime has ended,
/// and so have all calls.
struct Timekeeper {
    shards: Weak<Shards>,
    index: usize,
}

impl Timekeeper {
    async fn run(self, wake: Arc<Notify>) {
        let mut slept = Duration::ZERO;
        loop {
            let Some(shards) = self.shards.upgrade() else { return };
            let now = clock::now();
            // The two clocks move apart while the computer sleeps.
            let apart = now.boot.saturating_sub(now.raw);
            let has_slept = apart > slept + Duration::from_millis(1);
            let by = if has_slept { Duration::MAX } else { now.raw };
            slept = slept.max(apart);
            let due = shards.with_state(self.index, |state| {
                state.wakes_at = Duration::ZERO;
                state.timers.take_due(by)
            });
            for machine in due {
                shards.with_shard(self.index, |state, ctx| {
                    state.machines.handle_timeout(machine, ctx);
                });
            }
            let next = shards.with_state(self.index, |state| {
                state.wakes_at = state.timers.next();
                state.wakes_at
            });
            drop(shards);
            let pause = next.saturating_sub(clock::now().raw).min(CHECK_EVERY);
            tokio::select! {
                () = wake.notified() => {}
                () = sleep(pause), if next < Duration::MAX => {}
            }
        }
    }
}

impl Drop for Timekeeper {
    fn drop(&mut self) {
        if let Some(shards) = self.shards.upgrade() {
            shards.with_shard(self.index, |state, _| state.is_closed = true);
        }
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        // The timekeepers end.
        (0..SHARDS).for_each(|index| self.with_state(index, |state| state.wake.notify_one()));
    }
}

impl State {
    /// Carries out all actions of the machines. Returns what is left to do without the mutex.
    fn act(&mut self, shards: &Arc<Shards>, index: usize, now: Moment) -> Vec<Unlocked> {
        let mut unlocked: Vec<Unlocked> = Vec::new();
        let mut failed = VecDeque::new();
        loop {
            let Some(action) = self.machines.poll() else {
                let Some((number, error)) = failed.pop_front() else { break };
                let response = Response::Failed(error);
                shards.network.with_context(|ctx| {
                    self.machines.handle_response(number, &response, ctx);
                });
                continue;
            };
            match action {
                ShardAction::Send { number, request } => {
                    let OutgoingRequest { id, connection, request, spec } = request;
                    let is_locked = || shards.states[index].try_lock().is_err();
                    debug_assert!(is_locked(), "a later RELEASE could overtake the request");
                    let outgoing = self.encode(request, spec);
                    let sent = match shards.network.connection(id.node, connection) {
                        Some(connection) => connection.batches.add(outgoing, || {
                            let inbox: Weak<Shards> = Arc::downgrade(shards);
                            Ticket::new(inbox, index, number)
                        }),
                        None => Err(NodeError::connection_lost()),
                    };
                    failed.extend(sent.err().map(|error| (number, error)));
                }
                ShardAction::Wait { number, node } => {
                    self.opening.insert(number, shards.begin_wait(index, number, node));
                }
                ShardAction::StopWaiting(number) => {
                    if let Some(opening) = self.opening.remove(&number) {
                        opening.abort();
                    }
                }
                ShardAction::Timer(machine, at) => self.timers.set(machine, at, now),
                ShardAction::Suspect(connection) => shards.network.suspect(connection),
                ShardAction::Ended { call, result } => {
                    let caller = self.callers.calls.remove(&call);
                    unlocked.extend(caller.map(|caller| tell(caller, result)));
                }
                ShardAction::Extended { lock, round, verdict } => {
                    let answered =
                        |(of, awaited, _): &mut (u64, u32, _)| *of == lock && *awaited <= round;
                    if let Some(lock) = self.locks.get(&lock).cloned() {
                        unlocked.push(Box::new(move || {
                            if let Some(lock) = lock.upgrade() {
                                lock.on_verdict(verdict);
                            }
                        }));
                    }
                    let answered = self.callers.rounds.extract_if(.., answered);
                    unlocked.extend(answered.map(|(_, _, caller)| tell(caller, verdict)));
                }
                ShardAction::Repaired(granted) => {
                    unlocked.push(Box::new(move || telemetry::repaired(granted)));
                }
                ShardAction::Releases { release, .. } => {
                    let open = (Arc::clone(shards), shards.tasks.token());
                    self.callers.open_releases.insert(release, open);
                }
                ShardAction::Released(number) => {
                    let Some(release) = self.machines.release_of(number) else { continue };
                    if let (Some(verdict), Some(caller)) =
                        (release.verdict(), self.callers.releases.remove(&number))
                    {
                        let answers = release.answers().cloned().collect();
                        unlocked.push(tell(caller, (verdict, answers)));
                    }
                }
                ShardAction::ReleaseOver(number) => {
                    self.machines.take_release(number);
                    self.callers.releases.remove(&number);
                    let open = self.callers.open_releases.remove(&number);
                    unlocked.push(Box::new(move || drop(open)));
                }
            }
        }
        if self.is_closed {
            // Nothing waits any more.
            let callers = mem::take(&mut self.callers);
            unlocked.push(Box::new(move || drop(callers)));
        }
        let next = self.timers.next();
        if next < self.wakes_at {
            self.wakes_at = next;
            self.wake.notify_one();
        }
        unlocked
    }

    fn encode(&mut self, request: Request, spec: Arc<Spec>) -> Outgoing {
        match &self.last_built {
            Some((built, of, outgoing)) if *built == request && Arc::ptr_eq(of, &spec) => {
                outgoing.clone()
            }
            _ => {
                let outgoing = Outgoing::new(&spec, &request);
                self.last_built = Some((request, spec, outgoing.clone()));
                outgoing
            }
        }
    }
}
