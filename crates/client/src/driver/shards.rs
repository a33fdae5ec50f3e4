//! The driver of the calls, locks and releases of a client.
//!
//! Each shard of the client has a mutex, under which its requests are sent: a later RELEASE of the
//! same lock cannot overtake them. Responses go into an inbox, because a request may fail at once,
//! under the mutex. A thread that puts one there, or unlocks the mutex, passes them on.

use std::hash::{BuildHasher as _, RandomState};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use quorlock_core::client::{
    Answer, Context, Failure, Keys, Request, Response, Shard, ShardAction, Spec, limits,
};
use quorlock_core::quorum::{ExtensionVerdict, Moment, ReleaseVerdict};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::network::Network;
use super::timers::{ByNumber, Timers};
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
    drivers: Vec<ShardDriver>,
    hasher: RandomState,
    timekeeper: Arc<Timekeeper>,
    /// Ends the timekeeper when it is dropped.
    _stop: DropGuard,
}

/// One shard of a client.
struct ShardDriver {
    state: Mutex<State>,
    inbox: Mutex<Vec<(u64, Response)>>,
    /// When its next timer fires, in nanoseconds of the clock that stops while the computer sleeps.
    next: AtomicU64,
}

/// What the mutex of a shard protects.
pub(crate) struct State {
    pub(crate) machines: Shard,
    timers: Timers,
    /// The callers that wait, by the number of the call.
    calls: ByNumber<oneshot::Sender<CallResult>>,
    /// The locks that are told of their extensions.
    locks: ByNumber<Weak<dyn OnVerdict>>,
    /// The callers that wait for a verdict on a round of a lock or a later one.
    rounds: Vec<(u64, u32, oneshot::Sender<ExtensionVerdict>)>,
    verdicts: ByNumber<oneshot::Sender<ReleaseResult>>,
    /// The WAITs whose connections are being opened.
    opening: ByNumber<AbortHandle>,
    /// How many releases are not over, and what they keep.
    releases: usize,
    kept: Option<OpenReleases>,
    /// Room for the content of the inbox.
    arrived: Vec<(u64, Response)>,
    /// The last encoded request, for reuse: most requests go to several nodes.
    last_built: Option<(Request, Arc<Spec>, Outgoing)>,
    /// Whether the runtime has ended. Then no timer fires.
    is_closed: bool,
}

/// A lock that is told of its extensions.
pub(crate) trait OnVerdict: Send + Sync {
    /// Called after the machines, without their mutex.
    fn on_verdict(&self, verdict: ExtensionVerdict);
}

/// Releases keep the client's connections open, and `flush` waits for them.
struct OpenReleases {
    _shards: Arc<Shards>,
    _tracked: TaskTrackerToken,
}

/// What callers learn once the mutex is unlocked: to wake a task may take locks of an executor.
enum News {
    Call(oneshot::Sender<CallResult>, CallResult),
    Release(oneshot::Sender<ReleaseResult>, ReleaseResult),
    Round(oneshot::Sender<ExtensionVerdict>, ExtensionVerdict),
    Lock(Weak<dyn OnVerdict>, ExtensionVerdict),
    /// No release is open any more. To drop this may end the client.
    ReleasesOver {
        _kept: OpenReleases,
    },
}

/// Wakes the task that keeps the timers of all shards.
#[derive(Default)]
struct Timekeeper {
    notify: Notify,
    /// When the task wakes by itself, in nanoseconds of the clock that stops while the computer
    /// sleeps; 0 while it is awake.
    wakes_at: AtomicU64,
}

impl ShardDriver {
    fn new() -> Self {
        let machines = Shard::new(limits::LOCAL_QUEUES_MAX / SHARDS);
        let state = State {
            machines,
            timers: Timers::default(),
            calls: ByNumber::default(),
            locks: ByNumber::default(),
            rounds: Vec::new(),
            verdicts: ByNumber::default(),
            opening: ByNumber::default(),
            releases: 0,
            kept: None,
            arrived: Vec::new(),
            last_built: None,
            is_closed: false,
        };
        let next = AtomicU64::new(u64::MAX);
        Self { state: Mutex::new(state), inbox: Mutex::default(), next }
    }

    fn inbox(&self) -> MutexGuard<'_, Vec<(u64, Response)>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shards {
    pub(crate) fn start(network: Arc<Network>) -> Arc<Self> {
        let (stop, timekeeper) = (CancellationToken::new(), Arc::<Timekeeper>::default());
        let shards = Arc::new(Self {
            network,
            tasks: TaskTracker::new(),
            drivers: (0..SHARDS).map(|_| ShardDriver::new()).collect(),
            hasher: RandomState::new(),
            timekeeper: Arc::clone(&timekeeper),
            _stop: stop.clone().drop_guard(),
        });
        let guard = CloseShards(Arc::downgrade(&shards));
        shards.network.runtime.spawn(Self::keep_time(guard, timekeeper, stop));
        shards
    }

    /// The index of the shard of these keys.
    pub(crate) fn of(&self, keys: &Keys) -> usize {
        let hash = self.hasher.hash_one(keys);
        usize::try_from(hash % SHARDS as u64).unwrap_or_default()
    }

    /// How many releases are not over.
    pub(crate) fn open_releases(self: &Arc<Self>) -> usize {
        (0..SHARDS).map(|index| self.with_state(index, |state| state.releases)).sum()
    }

    /// Locks a shard. Afterwards, handles the responses that arrived meanwhile.
    pub(crate) fn with_state<T>(
        self: &Arc<Self>,
        index: usize,
        call: impl FnOnce(&mut State) -> T,
    ) -> T {
        let mut state = self.drivers[index].state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = call(&mut state);
        drop(state);
        self.deliver(index, None);
        result
    }

    /// Passes an event to a shard, and carries out the actions that follow.
    pub(crate) fn with_shard<T>(
        self: &Arc<Self>,
        index: usize,
        event: impl FnOnce(&mut State, &mut Context<'_>) -> T,
    ) -> T {
        let mut news = Vec::new();
        let result = self.with_state(index, |state| {
            let result = self.network.with_context(|ctx| event(state, ctx));
            state.act(self, index, &mut news);
            result
        });
        tell(news);
        result
    }

    /// Passes the responses in the inbox to the shard, and then this one, unless another thread has
    /// the mutex: that one looks into the inbox after it has unlocked the mutex.
    fn deliver(self: &Arc<Self>, index: usize, mut response: Option<(u64, Response)>) {
        let shard = &self.drivers[index];
        while response.is_some() || !shard.inbox().is_empty() {
            let mut state = match shard.state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => match response.take() {
                    Some(response) => {
                        // The mutex may be free by now, so this tries it once more.
                        shard.inbox().push(response);
                        continue;
                    }
                    None => return,
                },
            };
            let mut arrived = mem::take(&mut state.arrived);
            mem::swap(&mut arrived, &mut *shard.inbox());
            arrived.extend(response.take());
            let mut news = Vec::new();
            for (number, response) in arrived.drain(..) {
                let handle = |ctx: &mut Context<'_>| {
                    state.machines.handle_response(number, &response, ctx);
                };
                self.network.with_context(handle);
                state.act(self, index, &mut news);
            }
            state.arrived = arrived;
            drop(state);
            tell(news);
        }
    }

    /// Fires the timers of all machines until the client is gone or the runtime ends.
    async fn keep_time(guard: CloseShards, timekeeper: Arc<Timekeeper>, stop: CancellationToken) {
        // The two clocks move apart while the computer sleeps.
        let mut slept = Duration::ZERO;
        loop {
            // The task is awake, and looks at all shards.
            timekeeper.wakes_at.store(0, Ordering::SeqCst);
            let Some(shards) = guard.0.upgrade() else { return };
            let now = clock::now();
            let apart = now.boot.saturating_sub(now.raw);
            let has_slept = apart > slept + Duration::from_millis(1);
            if has_slept {
                slept = apart;
                for (index, shard) in shards.drivers.iter().enumerate() {
                    shards.with_state(index, |state| {
                        state.timers.set_apart(apart);
                        state.show_next_timer(shard);
                    });
                }
            }
            shards.fire_timers(now, has_slept);
            let next = shards.next_timer();
            timekeeper.wakes_at.store(next, Ordering::SeqCst);
            if shards.next_timer() < next {
                // It was set while the task was awake.
                continue;
            }
            drop(shards);
            let pause = Duration::from_nanos(next.saturating_sub(nanos(clock::now().raw)));
            tokio::select! {
                () = timekeeper.notify.notified() => {}
                () = tokio::time::sleep(pause.min(CHECK_EVERY)), if next < u64::MAX => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Fires all timers that are due.
    fn fire_timers(self: &Arc<Self>, now: Moment, has_slept: bool) {
        for (index, shard) in self.drivers.iter().enumerate() {
            if has_slept || shard.next.load(Ordering::SeqCst) <= nanos(now.raw) {
                for machine in self.with_state(index, |state| state.timers.take_due(now)) {
                    self.with_shard(index, |state, ctx| {
                        state.machines.handle_timeout(machine, ctx);
                    });
                }
            }
        }
    }

    /// When the next timer fires, in nanoseconds.
    fn next_timer(&self) -> u64 {
        let next = self.drivers.iter().map(|shard| shard.next.load(Ordering::SeqCst));
        next.min().unwrap_or(u64::MAX)
    }

    /// Gets a connection for a WAIT, and sends the WAIT if a machine still needs it.
    fn begin_wait(self: &Arc<Self>, index: usize, number: u64, node: usize) -> AbortHandle {
        let pool = Arc::clone(&self.network.nodes[node].wait_connections);
        let (client, ticket) = (Arc::downgrade(self), self.ticket(index, number));
        let waiting = self.network.runtime.spawn(async move {
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
                    ticket.answer(connection.ask(Outgoing::new(&spec, &request)).await);
                }
                (Ok(_), None) => {}
            }
        });
        waiting.abort_handle()
    }

    fn ticket(self: &Arc<Self>, index: usize, number: u64) -> Ticket {
        let inbox: Weak<Self> = Arc::downgrade(self);
        Ticket::new(inbox, index, number)
    }
}

impl Inbox for Shards {
    fn put(self: Arc<Self>, shard: usize, number: u64, response: Response) {
        self.deliver(shard, Some((number, response)));
    }
}

/// Ends all calls of a client whose runtime has ended.
struct CloseShards(Weak<Shards>);

impl Drop for CloseShards {
    fn drop(&mut self) {
        let Some(shards) = self.0.upgrade() else { return };
        for index in 0..SHARDS {
            let ended = shards.with_state(index, |state| {
                state.is_closed = true;
                let calls = (mem::take(&mut state.calls), mem::take(&mut state.rounds));
                (calls, mem::take(&mut state.verdicts), state.kept.take())
            });
            // To drop the last of these may end the client.
            drop(ended);
        }
    }
}

impl State {
    /// Tells this caller the result of a call that has just begun. The caller gets none if the
    /// runtime has ended: no timer would end the call.
    pub(crate) fn await_call(&mut self, call: u64, caller: oneshot::Sender<CallResult>) {
        if !self.is_closed {
            self.calls.insert(call, caller);
        }
    }

    /// Tells this caller the verdict on a round that has just begun. As
    /// [`await_call`](Self::await_call).
    pub(crate) fn await_round(
        &mut self,
        lock: u64,
        round: u32,
        caller: oneshot::Sender<ExtensionVerdict>,
    ) {
        if !self.is_closed {
            self.rounds.push((lock, round, caller));
        }
    }

    /// Tells this caller the verdict on a release that has just begun. As
    /// [`await_call`](Self::await_call).
    pub(crate) fn await_release(&mut self, release: u64, caller: oneshot::Sender<ReleaseResult>) {
        if !self.is_closed {
            self.verdicts.insert(release, caller);
        }
    }

    /// Tells this lock the verdicts on its extensions.
    pub(crate) fn observe(&mut self, lock: u64, observer: Weak<dyn OnVerdict>) {
        self.locks.insert(lock, observer);
    }

    /// Ends a call that its caller does not await any more.
    pub(crate) fn cancel(&mut self, call: u64, ctx: &mut Context<'_>) {
        self.calls.remove(&call);
        self.machines.cancel(call, ctx);
    }

    /// Forgets a lock that has no handle any more.
    pub(crate) fn forget(&mut self, lock: u64) {
        self.locks.remove(&lock);
        self.machines.forget(lock);
    }

    /// Carries out all actions of the machines.
    fn act(&mut self, shards: &Arc<Shards>, index: usize, news: &mut Vec<News>) {
        while let Some(action) = self.machines.poll() {
            match action {
                ShardAction::Send { number, node, connection, request, spec, .. } => {
                    let outgoing = self.encode(request, spec);
                    let ticket = shards.ticket(index, number);
                    if let Some(connection) = shards.network.connection(node, connection) {
                        connection.ask(outgoing, ticket);
                    }
                }
                ShardAction::Wait { number, node } => {
                    self.opening.insert(number, shards.begin_wait(index, number, node));
                }
                ShardAction::StopWaiting(number) => {
                    if let Some(opening) = self.opening.remove(&number) {
                        opening.abort();
                    }
                }
                ShardAction::Timer(machine, at) => self.timers.set(machine, at),
                ShardAction::Suspect { node, connection } => {
                    shards.network.suspect(node, connection);
                }
                ShardAction::Acquired { call, attempts } => {
                    let caller = self.calls.remove(&call);
                    news.extend(caller.map(|caller| News::Call(caller, Ok(attempts))));
                }
                ShardAction::Failed { call, failure } => {
                    let caller = self.calls.remove(&call);
                    news.extend(caller.map(|caller| News::Call(caller, Err(failure))));
                }
                ShardAction::Extended { lock, round, verdict } => {
                    let answered =
                        |(of, awaited, _): &mut (u64, u32, _)| *of == lock && *awaited <= round;
                    let observer = self.locks.get(&lock).cloned();
                    news.extend(observer.map(|lock| News::Lock(lock, verdict)));
                    let answered = self.rounds.extract_if(.., answered);
                    news.extend(answered.map(|(_, _, caller)| News::Round(caller, verdict)));
                }
                ShardAction::Repaired(granted) => telemetry::repaired(granted),
                ShardAction::Releases { .. } => {
                    self.releases += 1;
                    if !self.is_closed && self.kept.is_none() {
                        self.kept = Some(OpenReleases {
                            _shards: Arc::clone(shards),
                            _tracked: shards.tasks.token(),
                        });
                    }
                }
                ShardAction::Released(number) => {
                    let Some(release) = self.machines.release_of(number) else { continue };
                    if let (Some(verdict), Some(caller)) =
                        (release.verdict(), self.verdicts.remove(&number))
                    {
                        let answers = release.answers().cloned().collect();
                        news.push(News::Release(caller, (verdict, answers)));
                    }
                }
                ShardAction::ReleaseOver(number) => {
                    if self.machines.take_release(number).is_some() {
                        self.releases -= 1;
                    }
                    self.verdicts.remove(&number);
                }
            }
        }
        if self.releases == 0 {
            news.extend(self.kept.take().map(|kept| News::ReleasesOver { _kept: kept }));
        }
        let next = self.show_next_timer(&shards.drivers[index]);
        shards.timekeeper.wake_at(next);
    }

    fn show_next_timer(&self, shard: &ShardDriver) -> u64 {
        let next = self.timers.next().map_or(u64::MAX, nanos);
        shard.next.store(next, Ordering::SeqCst);
        next
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

/// A caller that is gone cancels its call, or drops its lock, by itself.
fn tell(news: Vec<News>) {
    for news in news {
        match news {
            News::Call(caller, result) => drop(caller.send(result)),
            News::Release(caller, result) => drop(caller.send(result)),
            News::Round(caller, verdict) => drop(caller.send(verdict)),
            News::Lock(lock, verdict) => {
                if let Some(lock) = lock.upgrade() {
                    lock.on_verdict(verdict);
                }
            }
            News::ReleasesOver { .. } => {}
        }
    }
}

impl Timekeeper {
    /// Makes the task wake at this time, or earlier.
    fn wake_at(&self, at: u64) {
        if at < self.wakes_at.fetch_min(at, Ordering::SeqCst) {
            self.notify.notify_one();
        }
    }
}

fn nanos(at: Duration) -> u64 {
    u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
}
