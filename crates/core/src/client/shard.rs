//! All calls, locks and releases of a client, or of a part of its keys.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use smallvec::SmallVec;

use super::local_queue::LocalQueue;
use super::{
    Acquire, Action, ConnectionId, Context, Failure, Hold, Keys, OutgoingRequest, Release, Request,
    RequestId, Response, Spec, Token, limits,
};
use crate::mutants::{ClientRule, is_broken};
use crate::quorum::{ExtensionVerdict, Moment, Ownership};
use crate::{Answer, NodeError};

/// The machines of a client for some of its keys, and the queues of its own calls.
///
/// A call, the lock that it acquires, and a release have a number each, above zero; a lock keeps
/// that of its call. After each event, carry out what [`poll`](Self::poll) returns, in this order,
/// before the next event. Pass each response with the number of its request, once: the shard knows
/// whose it is. Keep the order of the responses of one connection.
#[derive(Debug, Default)]
pub struct Shard {
    machines: HashMap<u64, Entry, FixedState>,
    last_machine: u64,
    requests: HashMap<u64, Asked, FixedState>,
    last_request: u64,
    queues: HashMap<Keys, LocalQueue, FixedState>,
    /// When the last check of each semaphore began, until another is due.
    permit_checks: HashMap<Keys, Moment, FixedState>,
    actions: VecDeque<ShardAction>,
}

#[derive(Debug)]
struct Entry {
    machine: Machine,
    /// The numbers of its requests without a response.
    requests: SmallVec<[u64; 8]>,
    /// Whether the driver asks about the machine no longer.
    is_forgotten: bool,
}

#[derive(Debug)]
enum Machine {
    Call(Box<Call>),
    Lock(Box<Hold>),
    Release(Box<Release>),
}

#[derive(Debug)]
struct Call {
    acquire: Acquire,
    /// Whether the call begins with its next timer, or has begun: it is at the head of its local
    /// queue, or in none. A call that attaches a lock has no turn.
    has_turn: bool,
    is_renewed: bool,
}

#[derive(Debug)]
struct Asked {
    machine: u64,
    id: RequestId,
    /// When the request was sent; `None` for a WAIT that has no connection yet.
    sent: Option<Moment>,
    is_wait: bool,
}

/// An instruction to the driver of a shard.
#[derive(Debug)]
pub enum ShardAction {
    /// Send a request. If the connection is closed, respond with
    /// [`NodeError::connection_lost`].
    Send {
        /// Identifies the response.
        number: u64,
        /// The request.
        request: OutgoingRequest,
    },
    /// Get a connection to this node that nothing else uses. Then call
    /// [`Shard::handle_wait_connection`], and send the WAIT that it returns.
    Wait {
        /// Identifies the response.
        number: u64,
        /// The index of the node.
        node: usize,
    },
    /// The WAIT with this number needs no connection any more.
    StopWaiting(u64),
    /// Call [`Shard::handle_timeout`] for this machine at this time. Earlier calls do no harm.
    Timer(u64, Option<Moment>),
    /// Report to the node's link that this connection left a request unanswered.
    Suspect(ConnectionId),
    /// A call has ended. The lock that it has acquired has the call's number.
    Ended {
        /// The number of the call.
        call: u64,
        /// How often the call asked all nodes until it acquired the lock, or why it failed.
        result: Result<u32, Failure>,
    },
    /// A round of extensions was decided.
    Extended {
        /// The number of the lock.
        lock: u64,
        /// The number of the round. Its verdict also answers the calls that wait for an earlier
        /// round.
        round: u32,
        /// What the nodes answered.
        verdict: ExtensionVerdict,
    },
    /// A repair has ended. The value says whether the node has the lock again.
    Repaired(bool),
    /// A release has begun.
    Releases {
        /// The number of the release.
        release: u64,
        /// The machine that began it; `None` for the token of a detached lock.
        by: Option<u64>,
    },
    /// The release has its verdict, or is over without one. See [`Shard::release_of`].
    Released(u64),
    /// The release is over. Until the driver [takes](Shard::take_release) it, it stays.
    ReleaseOver(u64),
}

impl Entry {
    fn poll(&mut self) -> Option<Action> {
        match &mut self.machine {
            Machine::Call(call) => call.acquire.poll(),
            Machine::Lock(hold) => hold.poll(),
            Machine::Release(release) => release.poll(),
        }
    }
}

impl Shard {
    /// Returns the next action.
    pub fn poll(&mut self) -> Option<ShardAction> {
        self.actions.pop_front()
    }

    /// Begins a call that waits for at most `wait`; `None` is no limit. Returns its number.
    pub fn call(&mut self, spec: Arc<Spec>, wait: Option<Duration>, ctx: &mut Context<'_>) -> u64 {
        let acquire = Acquire::new(spec, wait, ctx);
        let (takes_turn, spec) = (acquire.takes_turn(), Arc::clone(acquire.spec()));
        let number = self.add_call(acquire);
        let mut has_turn =
            || self.queues.entry_ref(spec.name()).or_default().enter(number, spec.mode);
        if takes_turn && !has_turn() {
            self.drive(number, ctx);
        } else {
            self.begin(number, ctx);
        }
        number
    }

    /// Begins a call that swaps the token of a detached lock. Returns its number.
    pub fn attach(&mut self, spec: Arc<Spec>, old: Token, ctx: &mut Context<'_>) -> u64 {
        let number = self.add_call(Acquire::attach(spec, old, ctx));
        self.drive(number, ctx);
        number
    }

    fn add_call(&mut self, acquire: Acquire) -> u64 {
        let call = Call { acquire, has_turn: false, is_renewed: false };
        self.add(Machine::Call(Box::new(call)))
    }

    fn add(&mut self, machine: Machine) -> u64 {
        self.last_machine += 1;
        let entry = Entry { machine, requests: SmallVec::new(), is_forgotten: false };
        self.machines.insert(self.last_machine, entry);
        self.last_machine
    }

    /// Whether a check for clients that give this semaphore more permits is due. If so, records its
    /// start.
    pub fn begins_permit_check(&mut self, keys: &Keys, now: Moment) -> bool {
        self.permit_checks.retain(|_, at| now.since(*at) < limits::COMPARE_PERMITS_EVERY);
        let is_due = !self.permit_checks.contains_key(keys);
        if is_due {
            self.permit_checks.insert(keys.clone(), now);
        }
        is_due
    }

    /// Begins a call at its turn.
    fn begin(&mut self, number: u64, ctx: &mut Context<'_>) {
        if let Some(call) = self.call_mut(number) {
            call.has_turn = true;
            call.acquire.begin(ctx);
        }
        self.drive(number, ctx);
    }

    /// Ends a call without a result, or releases and forgets the lock that it has acquired. What
    /// nodes may have granted is released.
    pub fn cancel(&mut self, number: u64, ctx: &mut Context<'_>) {
        let Some(call) = self.call_mut(number) else {
            self.release(number, ctx);
            return self.forget(number);
        };
        call.acquire.cancel(ctx);
        let spec = Arc::clone(call.acquire.spec());
        self.drive(number, ctx);
        self.stop_opening(number);
        self.machines.remove(&number);
        self.set_timer(number);
        self.leave_queue(number, &spec, ctx.now);
    }

    /// Handles everything that a machine has to do at the context's time.
    pub fn handle_timeout(&mut self, machine: u64, ctx: &mut Context<'_>) {
        if self.call_mut(machine).is_some_and(|call| call.acquire.is_queued() && call.has_turn) {
            return self.begin(machine, ctx);
        }
        let Some(entry) = self.machines.get_mut(&machine) else { return };
        match &mut entry.machine {
            Machine::Call(call) => call.acquire.handle_timeout(ctx),
            Machine::Lock(hold) => hold.handle_timeout(ctx),
            Machine::Release(release) => release.handle_timeout(ctx),
        }
        self.drive(machine, ctx);
        if let Some(call) = self.call_mut(machine)
            && !call.acquire.is_queued()
            && !call.has_turn
        {
            // The call may have gone on without its turn.
            let spec = Arc::clone(call.acquire.spec());
            self.leave_queue(machine, &spec, ctx.now);
        }
    }

    /// The machine that sent this request, and the identity that the machine gave it.
    pub fn asked(&self, number: u64) -> Option<(u64, RequestId)> {
        self.requests.get(&number).map(|asked| (asked.machine, asked.id))
    }

    /// Processes the response to a request, or the failure to get a connection for a WAIT.
    pub fn handle_response(&mut self, number: u64, response: &Response, ctx: &mut Context<'_>) {
        let Some(Asked { machine, id, sent, is_wait }) = self.requests.remove(&number) else {
            return;
        };
        let is_answer = !matches!(response, Response::Failed(NodeError::Down { .. }));
        if let (true, false, Some(sent)) = (is_answer, is_wait, sent) {
            ctx.client_state.round_trips.sample(id.node, ctx.now.since(sent));
        }
        let Some(entry) = self.machines.get_mut(&machine) else { return };
        entry.requests.retain(|asked| *asked != number);
        match &mut entry.machine {
            Machine::Call(call) => call.acquire.handle_response(id, response, ctx),
            Machine::Lock(hold) => hold.handle_response(id, response, ctx),
            Machine::Release(release) => release.handle_response(id, response, ctx),
        }
        self.drive(machine, ctx);
    }

    /// Returns the WAIT to send through its connection; `None` if no machine needs it any more.
    pub fn handle_wait_connection(
        &mut self,
        number: u64,
        ctx: &mut Context<'_>,
    ) -> Option<(Request, Arc<Spec>)> {
        let asked = self.requests.get_mut(&number)?;
        asked.sent = Some(ctx.now);
        let (machine, id) = (asked.machine, asked.id);
        let wait = match self.machines.get_mut(&machine).map(|entry| &mut entry.machine) {
            Some(Machine::Call(call)) => call.acquire.handle_wait_connection(id, ctx),
            Some(Machine::Lock(hold)) => hold.handle_wait_connection(id, ctx),
            Some(Machine::Release(_)) | None => None,
        };
        if wait.is_none() {
            self.forget_request(number);
        }
        self.set_timer(machine);
        wait
    }

    fn forget_request(&mut self, number: u64) {
        let asked = self.requests.remove(&number);
        if let Some(entry) = asked.and_then(|asked| self.machines.get_mut(&asked.machine)) {
            entry.requests.retain(|other| *other != number);
        }
    }

    /// Carries out the actions of a machine.
    fn drive(&mut self, number: u64, ctx: &mut Context<'_>) {
        while let Some(action) = self.machines.get_mut(&number).and_then(Entry::poll) {
            match action {
                Action::Send(request) => {
                    let (id, sent) = (request.id, Some(ctx.now));
                    let number = self.ask(Asked { machine: number, id, sent, is_wait: false });
                    self.actions.push_back(ShardAction::Send { number, request });
                }
                Action::Wait { id } => {
                    let number = self.ask(Asked { machine: number, id, sent: None, is_wait: true });
                    self.actions.push_back(ShardAction::Wait { number, node: id.node });
                }
                Action::Release(release) => {
                    self.add_release(*release, Some(number), ctx);
                }
                Action::Suspect(id) => self.actions.push_back(ShardAction::Suspect(id)),
                Action::Done(result) => return self.end_call(number, result, ctx),
                Action::Decided { round, verdict } => {
                    let extended = ShardAction::Extended { lock: number, round, verdict };
                    self.actions.push_back(extended);
                }
                Action::Repaired(is_held) => {
                    self.actions.push_back(ShardAction::Repaired(is_held));
                }
            }
        }
        if let Some(release) = self.release_of(number) {
            let (has_verdict, is_done) = (release.verdict().is_some(), release.is_done());
            if has_verdict {
                self.actions.push_back(ShardAction::Released(number));
            }
            if is_done {
                self.actions.push_back(ShardAction::ReleaseOver(number));
            }
        }
        self.set_timer(number);
        self.remove_if_over(number);
    }

    fn end_call(&mut self, number: u64, result: Result<Box<Hold>, Failure>, ctx: &mut Context<'_>) {
        self.stop_opening(number);
        let Some(entry) = self.machines.get_mut(&number) else { return };
        let Machine::Call(call) = &entry.machine else { return };
        let (spec, attempts) = (Arc::clone(call.acquire.spec()), call.acquire.attempts());
        let result = match result {
            Ok(mut hold) => {
                if call.is_renewed {
                    hold.renew();
                }
                entry.machine = Machine::Lock(hold);
                Ok(attempts)
            }
            Err(failure) => {
                self.machines.remove(&number);
                Err(failure)
            }
        };
        self.actions.push_back(ShardAction::Ended { call: number, result });
        self.drive(number, ctx);
        self.leave_queue(number, &spec, ctx.now);
    }

    /// Gives up the WAITs of a machine that have no connection yet.
    fn stop_opening(&mut self, number: u64) {
        let requests = self.machines.get(&number).map(|entry| entry.requests.clone());
        for request in requests.unwrap_or_default() {
            if self.requests.get(&request).is_some_and(|asked| asked.sent.is_none()) {
                self.forget_request(request);
                self.actions.push_back(ShardAction::StopWaiting(request));
            }
        }
    }

    /// Lets the calls behind this one move up in the local queue, if it is there. The next one
    /// begins with an event of its own: if many callers give up at once, only the last one's
    /// successor asks the nodes.
    fn leave_queue(&mut self, number: u64, spec: &Spec, now: Moment) {
        let Some(queue) = self.queues.get_mut(spec.name()) else { return };
        let called = queue.leave(number);
        if queue.is_idle() {
            self.queues.remove(spec.name());
        }
        for next in called {
            if let Some(call) = self.call_mut(next) {
                call.has_turn = true;
                self.actions.push_back(ShardAction::Timer(next, Some(now)));
            }
        }
    }

    /// Removes a lock that the driver has forgotten, once no request of it is unanswered.
    fn remove_if_over(&mut self, number: u64) {
        let Some(entry) = self.machines.get(&number) else { return };
        let Machine::Lock(hold) = &entry.machine else { return };
        let is_sent =
            |request: &u64| self.requests.get(request).is_some_and(|asked| asked.sent.is_some());
        if entry.is_forgotten && hold.was_given_up() && !entry.requests.iter().any(is_sent) {
            self.machines.remove(&number);
            self.set_timer(number);
        }
    }

    /// Renews a lock until it is released. A call is told so for the lock that it acquires.
    pub fn renew(&mut self, number: u64) {
        match self.machines.get_mut(&number).map(|entry| &mut entry.machine) {
            Some(Machine::Call(call)) => call.is_renewed = true,
            Some(Machine::Lock(hold)) => {
                hold.renew();
                self.set_timer(number);
            }
            Some(Machine::Release(_)) | None => {}
        }
    }

    /// Begins a round of extensions. Returns the number of the round that answers; `None` if the
    /// lock has ended.
    pub fn extend(&mut self, lock: u64, ctx: &mut Context<'_>) -> Option<u32> {
        self.begin_round(lock, Hold::extend, ctx)
    }

    /// Makes an exclusive lock shared, and extends it. Returns as [`extend`](Self::extend).
    pub fn downgrade(&mut self, lock: u64, ctx: &mut Context<'_>) -> Option<u32> {
        self.begin_round(lock, Hold::downgrade, ctx)
    }

    fn begin_round(
        &mut self,
        number: u64,
        begin: fn(&mut Hold, &Context<'_>) -> Option<u32>,
        ctx: &mut Context<'_>,
    ) -> Option<u32> {
        let round = begin(self.lock_mut(number)?, ctx);
        self.drive(number, ctx);
        round
    }

    /// Begins the release of a lock. Returns the ownership before it, and the number of the
    /// release.
    pub fn release(&mut self, lock: u64, ctx: &mut Context<'_>) -> Option<(Ownership, u64)> {
        let (ownership, release) = self.lock_mut(lock)?.release(ctx);
        self.stop_opening(lock);
        let release = self.add_release(release, Some(lock), ctx);
        self.drive(lock, ctx);
        Some((ownership, release))
    }

    /// Gives a lock up for another process to attach. Returns its token, and the validity that is
    /// left; `None` if the lock is lost.
    pub fn detach(&mut self, lock: u64, ctx: &mut Context<'_>) -> Option<(Token, Duration)> {
        let hold = self.lock_mut(lock)?;
        let (token, left) = (hold.token(), hold.detach(ctx.now));
        self.stop_opening(lock);
        self.drive(lock, ctx);
        Some((token, left?))
    }

    /// Says that the driver does not ask about this lock any more.
    pub fn forget(&mut self, lock: u64) {
        if let Some(entry) = self.machines.get_mut(&lock) {
            entry.is_forgotten = true;
        }
        self.remove_if_over(lock);
    }

    /// Releases the token of a detached lock on all nodes. Returns the number of the release.
    pub fn release_token(&mut self, token: Token, spec: &Arc<Spec>, ctx: &mut Context<'_>) -> u64 {
        self.add_release(Release::on(token, spec, ctx, |_| true), None, ctx)
    }

    /// Adds a release, and sends its first requests. It takes over the WAITs of its token that are
    /// unanswered.
    fn add_release(&mut self, release: Release, by: Option<u64>, ctx: &mut Context<'_>) -> u64 {
        let waits: SmallVec<[RequestId; 8]> = release.waits().collect();
        let number = self.add(Machine::Release(Box::new(release)));
        let of_token = by.and_then(|by| self.machines.get_mut(&by));
        let moved: SmallVec<[u64; 8]> = of_token.map_or_else(SmallVec::new, |entry| {
            let requests = &self.requests;
            let is_wait = |request: &u64| {
                requests.get(request).is_some_and(|asked| waits.contains(&asked.id))
            };
            let (moved, kept) = entry.requests.iter().copied().partition(is_wait);
            entry.requests = kept;
            moved
        });
        for request in &moved {
            if let Some(asked) = self.requests.get_mut(request) {
                asked.machine = number;
            }
        }
        if let Some(entry) = self.machines.get_mut(&number) {
            entry.requests = moved;
        }
        self.actions.push_back(ShardAction::Releases { release: number, by });
        if is_broken(ClientRule::LateRelease) {
            let later = ctx.now.plus(limits::LATE_TIMER * 2);
            self.actions.push_back(ShardAction::Timer(number, Some(later)));
        } else {
            self.drive(number, ctx);
        }
        number
    }

    /// A release that the driver has not [taken](Self::take_release).
    pub fn release_of(&self, number: u64) -> Option<&Release> {
        match &self.machines.get(&number)?.machine {
            Machine::Release(release) => Some(release),
            Machine::Call(_) | Machine::Lock(_) => None,
        }
    }

    /// Removes a release that is over.
    pub fn take_release(&mut self, number: u64) -> Option<Release> {
        self.release_of(number)?;
        match self.machines.remove(&number)?.machine {
            Machine::Release(release) => Some(*release),
            Machine::Call(_) | Machine::Lock(_) => None,
        }
    }

    /// A lock, until the driver has forgotten it and no request of it is unanswered.
    pub fn hold(&self, lock: u64) -> Option<&Hold> {
        match &self.machines.get(&lock)?.machine {
            Machine::Lock(hold) => Some(hold),
            Machine::Call(_) | Machine::Release(_) => None,
        }
    }

    /// Records the nodes' answers to a release of this lock.
    pub fn handle_released(&mut self, lock: u64, answers: impl Iterator<Item = Answer>) {
        if let Some(lock) = self.lock_mut(lock) {
            lock.handle_released(answers);
        }
    }

    /// Whether the shard has no machine and no local queue, and needs no wait connection.
    pub fn is_idle(&self) -> bool {
        let is_opening = |asked: &Asked| asked.sent.is_none();
        let has_requests = self.requests.values().any(is_opening);
        self.machines.is_empty() && self.queues.is_empty() && !has_requests
    }

    fn call_mut(&mut self, number: u64) -> Option<&mut Call> {
        match &mut self.machines.get_mut(&number)?.machine {
            Machine::Call(call) => Some(call),
            Machine::Lock(_) | Machine::Release(_) => None,
        }
    }

    fn lock_mut(&mut self, number: u64) -> Option<&mut Hold> {
        match &mut self.machines.get_mut(&number)?.machine {
            Machine::Lock(hold) => Some(hold),
            Machine::Call(_) | Machine::Release(_) => None,
        }
    }

    fn set_timer(&mut self, number: u64) {
        let at = match self.machines.get(&number).map(|entry| &entry.machine) {
            Some(Machine::Call(call)) => call.acquire.poll_timeout(),
            Some(Machine::Lock(hold)) => hold.poll_timeout(),
            Some(Machine::Release(release)) => release.poll_timeout(),
            None => None,
        };
        self.actions.push_back(ShardAction::Timer(number, at));
    }

    /// Returns the number of a request that a machine makes.
    fn ask(&mut self, asked: Asked) -> u64 {
        self.last_request += 1;
        if let Some(entry) = self.machines.get_mut(&asked.machine) {
            entry.requests.push(self.last_request);
        }
        self.requests.insert(self.last_request, asked);
        self.last_request
    }
}
