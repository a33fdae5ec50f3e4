//! The driver of the calls, locks and releases of a client.
//!
//! Each shard of the client has a mutex, under which its requests are sent: a later RELEASE of the
//! same lock cannot overtake them. Responses go into an inbox, because a request may fail at once,
//! under the mutex. A thread that puts one there, or unlocks the mutex, passes them on.

use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use quorlock_core::client::{
    Answer, Context, Failure, Request, Response, Shard, ShardAction, Spec, limits,
};
use quorlock_core::quorum::{ExtensionVerdict, Moment, ReleaseVerdict};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::lock::LockInner;
use super::shared::Shared;
use super::timers::{ByNumber, Timers};
use crate::transport::{Inbox, Outgoing, Ticket};
use crate::{clock, telemetry};

/// Calls for different locks rarely contend for the mutex of one shard.
pub(super) const SHARDS: usize = 32;
/// Timers stop while the computer sleeps, and deadlines do not.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// How often a call asked all nodes before it acquired its lock, or why it did not.
pub(super) type CallResult = Result<u32, Failure>;

/// A verdict on a release, and the nodes' answers.
pub(super) type ReleaseResult = (ReleaseVerdict, Vec<Answer>);

/// One shard of a client.
pub(super) struct ShardDriver {
    state: Mutex<State>,
    inbox: Mutex<Vec<(u64, Response)>>,
    /// When its next timer fires, in nanoseconds of the clock that stops while the computer sleeps.
    next: AtomicU64,
}

/// A locked shard. When this is dropped, responses that could not be handled meanwhile are.
pub(super) struct Locked<'a> {
    shared: &'a Arc<Shared>,
    index: usize,
    state: Option<MutexGuard<'a, State>>,
}

/// What the mutex of a shard protects.
pub(super) struct State {
    pub(super) machines: Shard,
    timers: Timers,
    /// The callers that wait, by the number of the call.
    pub(super) calls: ByNumber<oneshot::Sender<CallResult>>,
    /// The locks that were extended.
    pub(super) locks: ByNumber<Weak<LockInner>>,
    /// The callers that wait for a verdict on a round of a lock or a later one.
    pub(super) rounds: Vec<(u64, u32, oneshot::Sender<ExtensionVerdict>)>,
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

/// Releases keep the client's connections open, and `flush` waits for them.
struct OpenReleases {
    _shared: Arc<Shared>,
    _tracked: TaskTrackerToken,
}

/// What follows once the mutex is unlocked.
#[derive(Default)]
struct Afterwards {
    /// What callers learn: to wake a task may take locks of an executor.
    ended: Vec<(oneshot::Sender<CallResult>, CallResult)>,
    released: Vec<(oneshot::Sender<ReleaseResult>, ReleaseResult)>,
    extended: Vec<(oneshot::Sender<ExtensionVerdict>, ExtensionVerdict)>,
    verdicts: Vec<(Weak<LockInner>, ExtensionVerdict)>,
    over: Option<OpenReleases>,
}

/// Wakes the task that keeps the timers of all shards.
#[derive(Default)]
pub(super) struct Timekeeper {
    notify: Notify,
    /// When the task wakes by itself, in nanoseconds of the clock that stops while the computer
    /// sleeps; 0 while it is awake.
    wakes_at: AtomicU64,
}

impl ShardDriver {
    pub(super) fn all() -> Vec<Self> {
        let shard = |_| {
            let state = State {
                machines: Shard::new(limits::LOCAL_QUEUES_MAX / SHARDS),
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
        };
        (0..SHARDS).map(shard).collect()
    }

    fn inbox(&self) -> MutexGuard<'_, Vec<(u64, Response)>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("it is unlocked by drop alone")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("it is unlocked by drop alone")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.state = None;
        self.shared.deliver(self.index, None);
    }
}

impl Shared {
    pub(super) fn lock(self: &Arc<Self>, index: usize) -> Locked<'_> {
        let state = self.shards[index].state.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { shared: self, index, state: Some(state) }
    }

    /// Passes an event to a shard, and carries out the actions that follow.
    pub(super) fn with_shard<T>(
        self: &Arc<Self>,
        index: usize,
        event: impl FnOnce(&mut State, &mut Context<'_>) -> T,
    ) -> T {
        let mut state = self.lock(index);
        let result = self.with_context(|ctx| event(&mut state, ctx));
        let afterwards = state.act(self, index);
        drop(state);
        afterwards.happen();
        result
    }

    /// Passes the responses in the inbox to the shard, and then this one, unless another thread has
    /// the mutex: that one looks into the inbox after it has unlocked the mutex.
    fn deliver(self: &Arc<Self>, index: usize, mut response: Option<(u64, Response)>) {
        let shard = &self.shards[index];
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
            let mut afterwards = Afterwards::default();
            for (number, response) in arrived.drain(..) {
                self.with_context(|ctx| state.machines.handle_response(number, &response, ctx));
                afterwards.append(state.act(self, index));
            }
            state.arrived = arrived;
            drop(state);
            afterwards.happen();
        }
    }

    /// Fires the timers of all machines until the client is gone or the runtime ends.
    pub(super) async fn keep_time(
        guard: CloseShards,
        timekeeper: Arc<Timekeeper>,
        stop: CancellationToken,
    ) {
        // The two clocks move apart while the computer sleeps.
        let mut slept = Duration::ZERO;
        loop {
            // The task is awake, and looks at all shards.
            timekeeper.wakes_at.store(0, Ordering::SeqCst);
            let Some(shared) = guard.0.upgrade() else { return };
            let now = clock::now();
            let apart = now.boot.saturating_sub(now.raw);
            let has_slept = apart > slept + Duration::from_millis(1);
            if has_slept {
                slept = apart;
                for index in 0..SHARDS {
                    let mut state = shared.lock(index);
                    state.timers.set_apart(apart);
                    state.show_next_timer(&shared.shards[index]);
                }
            }
            shared.fire_timers(now, has_slept);
            let next = shared.next_timer();
            timekeeper.wakes_at.store(next, Ordering::SeqCst);
            if shared.next_timer() < next {
                // It was set while the task was awake.
                continue;
            }
            drop(shared);
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
        for (index, shard) in self.shards.iter().enumerate() {
            if has_slept || shard.next.load(Ordering::SeqCst) <= nanos(now.raw) {
                let due = self.lock(index).timers.take_due(now);
                for machine in due {
                    self.with_shard(index, |state, ctx| {
                        state.machines.handle_timeout(machine, ctx);
                    });
                }
            }
        }
    }

    /// When the next timer fires, in nanoseconds.
    fn next_timer(&self) -> u64 {
        let next = self.shards.iter().map(|shard| shard.next.load(Ordering::SeqCst));
        next.min().unwrap_or(u64::MAX)
    }

    /// Gets a connection for a WAIT, and sends the WAIT if a machine still needs it.
    fn begin_wait(self: &Arc<Self>, index: usize, number: u64, node: usize) -> AbortHandle {
        let pool = Arc::clone(&self.nodes[node].wait_connections);
        let (client, ticket) = (Arc::downgrade(self), self.ticket(index, number));
        let waiting = self.runtime.spawn(async move {
            let connection = pool.checkout().await;
            let wait = client.upgrade().and_then(|shared| {
                shared.with_shard(index, |state, ctx| {
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

impl Inbox for Shared {
    fn put(self: Arc<Self>, shard: usize, number: u64, response: Response) {
        self.deliver(shard, Some((number, response)));
    }
}

/// Ends all calls of a client whose runtime has ended.
pub(super) struct CloseShards(pub(super) Weak<Shared>);

impl Drop for CloseShards {
    fn drop(&mut self) {
        let Some(shared) = self.0.upgrade() else { return };
        for index in 0..SHARDS {
            let mut state = shared.lock(index);
            state.is_closed = true;
            let calls = mem::take(&mut state.calls);
            let (rounds, verdicts) = (mem::take(&mut state.rounds), mem::take(&mut state.verdicts));
            let kept = state.kept.take();
            drop(state);
            drop((calls, rounds, verdicts, kept));
        }
    }
}

impl State {
    /// How many releases are not over.
    pub(super) fn open_releases(&self) -> usize {
        self.releases
    }

    /// Whether the runtime of the client has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Tells this caller the verdict on a release that has just begun.
    pub(super) fn await_release(&mut self, release: u64, caller: oneshot::Sender<ReleaseResult>) {
        if !self.is_closed {
            self.verdicts.insert(release, caller);
        }
    }

    /// Carries out all actions of the machines.
    fn act(&mut self, shared: &Arc<Shared>, index: usize) -> Afterwards {
        let mut afterwards = Afterwards::default();
        while let Some(action) = self.machines.poll() {
            match action {
                ShardAction::Send { number, node, connection, request, spec, .. } => {
                    let outgoing = self.encode(request, spec);
                    let ticket = shared.ticket(index, number);
                    if let Some(connection) = shared.connection(node, connection) {
                        connection.ask(outgoing, ticket);
                    }
                }
                ShardAction::Wait { number, node } => {
                    self.opening.insert(number, shared.begin_wait(index, number, node));
                }
                ShardAction::StopWaiting(number) => {
                    if let Some(opening) = self.opening.remove(&number) {
                        opening.abort();
                    }
                }
                ShardAction::Timer(machine, at) => self.timers.set(machine, at),
                ShardAction::Suspect { node, connection } => shared.suspect(node, connection),
                ShardAction::Acquired { call, attempts } => {
                    let caller = self.calls.remove(&call);
                    afterwards.ended.extend(caller.map(|caller| (caller, Ok(attempts))));
                }
                ShardAction::Failed { call, failure } => {
                    let caller = self.calls.remove(&call);
                    afterwards.ended.extend(caller.map(|caller| (caller, Err(failure))));
                }
                ShardAction::Extended { lock, round, verdict } => {
                    let answered =
                        |(of, awaited, _): &mut (u64, u32, _)| *of == lock && *awaited <= round;
                    let answered = self.rounds.extract_if(.., answered);
                    afterwards.extended.extend(answered.map(|(_, _, call)| (call, verdict)));
                    let lock = self.locks.get(&lock).cloned();
                    afterwards.verdicts.extend(lock.map(|lock| (lock, verdict)));
                }
                ShardAction::Repaired(granted) => telemetry::repaired(granted),
                ShardAction::Releases { .. } => {
                    self.releases += 1;
                    if !self.is_closed && self.kept.is_none() {
                        self.kept = Some(OpenReleases {
                            _shared: Arc::clone(shared),
                            _tracked: shared.tasks.token(),
                        });
                    }
                }
                ShardAction::Released(number) => {
                    let Some(release) = self.machines.release_of(number) else { continue };
                    if let (Some(verdict), Some(caller)) =
                        (release.verdict(), self.verdicts.remove(&number))
                    {
                        let answers = release.answers().cloned().collect();
                        afterwards.released.push((caller, (verdict, answers)));
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
            afterwards.over = self.kept.take();
        }
        let next = self.show_next_timer(&shared.shards[index]);
        shared.timekeeper.wake_at(next);
        afterwards
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

impl Afterwards {
    fn append(&mut self, other: Self) {
        self.ended.extend(other.ended);
        self.released.extend(other.released);
        self.extended.extend(other.extended);
        self.verdicts.extend(other.verdicts);
        self.over = self.over.take().or(other.over);
    }

    fn happen(self) {
        for (lock, verdict) in self.verdicts {
            if let Some(lock) = lock.upgrade() {
                lock.handle_verdict(verdict);
            }
        }
        // A caller that is gone cancels its call, or drops its lock, by itself.
        for (caller, result) in self.ended {
            let _ = caller.send(result);
        }
        for (caller, result) in self.released {
            let _ = caller.send(result);
        }
        for (caller, verdict) in self.extended {
            let _ = caller.send(verdict);
        }
        drop(self.over);
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
