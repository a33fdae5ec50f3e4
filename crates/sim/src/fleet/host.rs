//! The hosts of nodes: each runs the real node in memory, with connections, pauses and restarts.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use quorlock_core::client::{Command, Mode, Response, Token};
use quorlock_core::node::memory_server::{Name, Server};
use quorlock_core::node::{
    self, BlockedId, CommandError, FenceError, Now, Reply, Settings, WaitReply, Wants,
};
use quorlock_core::{NodeError, Ttl};
use std::time::Duration;

use super::claims::{Claim, ClaimKind};
use super::clock::{NodeClock, Ns, SECOND};
use super::events::{Conn, Down, Event, Packet, Up};
use super::world::World;

/// Time after which a process notices that the host at the other end of a connection is off.
const KEEPALIVE: Ns = 8 * SECOND;

/// A node and the computer on which it runs.
pub(super) struct Host {
    pub(super) server: Server,
    pub(super) settings: Settings,
    pub(super) clock: NodeClock,
    pub(super) state: State,
    pub(super) is_paused: bool,
    pub(super) restarts: u32,
    pub(super) run_id: Arc<str>,
    /// Messages that have arrived and that the node has not read.
    inbox: VecDeque<(Conn, Up)>,
    /// Clients whose WAIT is unanswered.
    blocked: BTreeMap<BlockedId, Blocked>,
    next_blocked_id: u64,
    /// When the node wakes next without a command.
    wakes_at: Option<Ns>,
    busy_until: Ns,
    /// Time for which each message keeps the node busy.
    pub(super) service: Ns,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Up,
    /// The server has ended. Its host refuses connections.
    ServerDown,
    HostDown,
}

struct Blocked {
    conn: Conn,
    token: Token,
    keys: Vec<usize>,
    ttl: Ttl,
    mode: Mode,
}

impl Host {
    pub(super) fn new(node: usize, settings: Settings, clock: NodeClock) -> Self {
        // The node was started long ago, so its fence counters are far below its wall clock.
        let settled = Settings { rejoin_delay_ms: 0, ..settings };
        let now = clock.at(0);
        let long_ago = Now { wall_us: now.wall_us - 2 * 1000 * settings.max_clock_skew_ms, ..now };
        Self {
            server: Server::new(settled, long_ago),
            settings,
            clock,
            state: State::Up,
            is_paused: false,
            restarts: 0,
            run_id: run_id(node, 0),
            inbox: VecDeque::new(),
            blocked: BTreeMap::new(),
            next_blocked_id: 0,
            wakes_at: None,
            busy_until: 0,
            service: 0,
        }
    }

    /// The number of clients whose WAIT is unanswered.
    pub(super) fn blocked(&self) -> usize {
        self.blocked.len()
    }
}

/// Returns the run ID of a node, which differs after each restart.
pub(super) fn run_id(node: usize, restarts: u32) -> Arc<str> {
    format!("{:040x}", (node as u64 + 1) * 1_000_003 + u64::from(restarts) * 7_919).into()
}

impl World {
    pub(super) fn arrive(&mut self, conn: Conn, message: Up) {
        let node = self.network.connection(conn).node;
        self.activity += 1;
        let host = &mut self.hosts[node];
        #[expect(clippy::match_same_arms, reason = "a guarded arm lies between the equal arms")]
        match (host.state, &message) {
            (State::HostDown, _) | (State::ServerDown, Up::Close) => {}
            (State::ServerDown, Up::Connect) => self.send_down(conn, Down::Refused),
            (State::Up, Up::Connect) => {
                self.network.connection(conn).accepted_in_run = Some(host.restarts);
                self.send_down(conn, Down::Connected);
            }
            (State::Up, _)
                if self.network.connection(conn).accepted_in_run == Some(host.restarts) =>
            {
                host.inbox.push_back((conn, message));
                self.read(node);
            }
            (State::Up, Up::Close) => {}
            (State::ServerDown | State::Up, _) => self.send_down(conn, Down::Closed),
        }
    }

    /// Handles the messages that have arrived, unless the node is paused or busy.
    pub(super) fn read(&mut self, node: usize) {
        while self.hosts[node].state == State::Up && !self.hosts[node].is_paused {
            let host = &mut self.hosts[node];
            if host.inbox.is_empty() {
                return;
            }
            if host.busy_until > self.now {
                let at = host.busy_until;
                self.events.add(at, Event::NodeIsFree { node });
                return;
            }
            let Some((conn, message)) = host.inbox.pop_front() else { return };
            host.busy_until = self.now + host.service;
            if self.network.connection(conn).accepted_in_run != Some(host.restarts) {
                continue;
            }
            match message {
                Up::Hello => {
                    let run_id = Arc::clone(&host.run_id);
                    self.send_down(conn, Down::Hello { run_id });
                }
                Up::Request(packet) => self.execute(node, conn, &packet),
                Up::Close => self.node_loses(conn),
                Up::Connect => {}
            }
        }
    }

    pub(super) fn node_wakes(&mut self, node: usize) {
        let host = &mut self.hosts[node];
        if host.wakes_at != Some(self.now) {
            return;
        }
        host.wakes_at = None;
        if host.state == State::Up && !host.is_paused {
            self.run_turns(node);
        }
    }

    pub(super) fn stop_node(&mut self, node: usize, state: State) {
        trace!(self, "n{node} stops: {state:?}");
        let host = &mut self.hosts[node];
        host.state = state;
        host.inbox.clear();
        host.blocked.clear();
        host.wakes_at = None;
        host.busy_until = 0;
        for conn in self.network.of_node(node) {
            let accepted = self.network.connection(conn).accepted_in_run.take().is_some();
            // The host of an ended server closes its connections. A host that is off sends nothing.
            match state {
                State::ServerDown if accepted => self.send_down(conn, Down::Closed),
                State::HostDown => {
                    let at = self.now + KEEPALIVE;
                    self.events.add(at, Event::ProcessLosesConnection { conn });
                }
                _ => {}
            }
        }
        self.claims.end_all(node, self.now);
    }

    /// Starts the server again, without its leases.
    pub(super) fn start_node(&mut self, node: usize, with_keys: bool) {
        trace!(self, "n{node} starts {}", if with_keys { "with its keys" } else { "empty" });
        let host = &mut self.hosts[node];
        host.restarts += 1;
        host.run_id = run_id(node, host.restarts);
        let now = host.clock.at(self.now);
        let mut server = Server::new(host.settings, now);
        if with_keys {
            for (db, name, value) in host.server.keys.iter() {
                server.keys.insert(db, name, value.clone());
            }
        }
        host.server = server;
        host.state = State::Up;
        host.is_paused = false;
        self.claim_foreign(node, true);
        self.run_turns(node);
    }

    /// Ends the lock of a key on these nodes, as an operator.
    pub(super) fn end_lock(&mut self, key: usize, nodes: &[usize]) {
        let name = self.plan.names[key].clone();
        let mut ended: Vec<Token> = Vec::new();
        for &node in nodes {
            let host = &mut self.hosts[node];
            if host.state != State::Up {
                continue;
            }
            let now = host.clock.at(self.now);
            host.server.remove(now, 0, name.as_bytes(), node::KeyEvent::Removed);
            let claims: Vec<Claim> = self.claims.at(node, key, self.now).collect();
            for claim in claims.iter().filter(|claim| claim.kind != ClaimKind::Waiter) {
                self.claims.end(node, key, claim.token, claim.kind, self.now, self.now);
                ended.push(claim.token);
            }
            self.run_turns(node);
        }
        trace!(self, "an operator ends {} leases of {key}", ended.len());
        let majority = self.plan.nodes / 2 + 1;
        let count = |token: &Token| ended.iter().filter(|other| *other == token).count();
        if let Some(token) = ended.iter().find(|token| count(token) >= majority) {
            self.ended_on_majority.push((*token, self.now));
        }
        self.ended_by_operator.append(&mut ended);
    }

    /// Revokes the lock of a key on this node, as an operator.
    pub(super) fn revoke_lock(&mut self, key: usize, node: usize) {
        let host = &mut self.hosts[node];
        if host.state != State::Up || host.is_paused {
            return;
        }
        let (name, now) =
            (Name::from_slice(self.plan.names[key].as_bytes()), host.clock.at(self.now));
        let revoke = node::Revoke { db: 0, key: &name, ends_now: false };
        let reply = host.server.execute(now, &node::Command::Revoke(revoke));
        trace!(self, "an operator revokes {key} on n{node}: {reply:?}");
        if reply.is_ok() {
            self.revocations.push((node, key, self.now));
        }
        self.run_turns(node);
    }

    /// Records the foreign strings of a restarted node, or their new ends after a step of its wall
    /// clock.
    pub(super) fn claim_foreign(&mut self, node: usize, has_restarted: bool) {
        let host = &self.hosts[node];
        let mut strings = Vec::new();
        for (_, name, value) in host.server.keys.iter() {
            let token = value.text.as_deref().and_then(|text| str::from_utf8(text).ok());
            let token = token.and_then(Token::from_text);
            // The mirror of a shared or revoked lock holds a value that is no client's token.
            let is_unknown = token.is_none();
            let token = token.unwrap_or_else(|| Token::of_bits(0));
            if let Some(at) = value.expires_at_ms {
                let until = host.clock.when_wall(at + 1, self.now);
                strings.push((self.plan.key_index(name), token, until, is_unknown));
            }
        }
        for (key, token, until, is_unknown) in strings {
            let known = self
                .claims
                .at(node, key, self.now)
                .any(|claim| claim.token == token && claim.kind != ClaimKind::Waiter);
            if known {
                self.claims.end(node, key, token, ClaimKind::Foreign, self.now, until);
            } else if has_restarted || !is_unknown {
                let holder = (token, Mode::Exclusive);
                let claim = Claim::new(ClaimKind::Foreign, holder, self.now, until);
                self.claims.begin(node, key, claim);
            }
        }
    }

    pub(super) fn node_loses(&mut self, conn: Conn) {
        let connection = self.network.connection(conn);
        let node = connection.node;
        if connection.accepted_in_run.take() != Some(self.hosts[node].restarts) {
            return;
        }
        let host = &mut self.hosts[node];
        let found = host.blocked.iter().find(|(_, blocked)| blocked.conn == conn);
        let Some(blocked_id) = found.map(|(blocked_id, _)| *blocked_id) else { return };
        let _ = host.server.node.disconnect(blocked_id);
        if let Some(blocked) = host.blocked.remove(&blocked_id) {
            self.end_claims(node, &blocked.keys, blocked.token, &[ClaimKind::Waiter]);
        }
        self.run_turns(node);
    }

    fn end_claims(&mut self, node: usize, keys: &[usize], token: Token, kinds: &[ClaimKind]) {
        for &key in keys {
            for &kind in kinds {
                self.claims.end(node, key, token, kind, self.now, self.now);
            }
        }
    }

    pub(super) fn run_turns(&mut self, node: usize) {
        let host = &mut self.hosts[node];
        let now = host.clock.at(self.now);
        host.server.run_turns(now);
        self.answer_woken(node, now);
        let host = &mut self.hosts[node];
        let wake = host.server.node.next_wake().map(|at| host.clock.when(at, self.now));
        if let Some(at) = wake
            && host.wakes_at != Some(at)
        {
            host.wakes_at = Some(at);
            self.events.add(at, Event::NodeWakes { node });
        }
    }

    /// Answers the clients whose WAIT has ended.
    fn answer_woken(&mut self, node: usize, now: Now) {
        for blocked_id in std::mem::take(&mut self.hosts[node].server.keys.woken) {
            let host = &mut self.hosts[node];
            let Some(blocked) = host.blocked.remove(&blocked_id) else { continue };
            let reply = host.server.node.answer(blocked_id);
            self.end_claims(node, &blocked.keys, blocked.token, &[ClaimKind::Waiter]);
            let response = match reply {
                WaitReply::Granted { fence, waited_us, key } => {
                    let Blocked { token, ttl, mode, ref keys, .. } = blocked;
                    let waited = Duration::from_micros(waited_us);
                    let key = match key.map(|key| self.plan.key_index(key.as_bytes())) {
                        None => {
                            self.claim_lease(node, keys, (token, mode), ttl, now);
                            None
                        }
                        Some(key) => {
                            self.claim_lease(node, &[key], (token, mode), ttl, now);
                            let key = keys.iter().position(|asked| *asked == key);
                            Some(key.expect("the client asked for this key"))
                        }
                    };
                    Response::Granted { fence, waited, key }
                }
                WaitReply::Refused => Response::No,
                WaitReply::Failed(error) => failed(&error),
            };
            trace!(self, "n{node} ends a wait: {response:?}");
            self.send_down(blocked.conn, Down::Response(response));
        }
    }

    fn claim_lease(
        &mut self,
        node: usize,
        keys: &[usize],
        (token, mode): (Token, Mode),
        ttl: Ttl,
        now: Now,
    ) {
        let deadline = now.monotonic.plus_us(ttl.us());
        let until = self.hosts[node].clock.when(deadline, self.now);
        self.last_lease_at = self.now;
        for &key in keys {
            if self.claims.extend(node, key, (token, mode), self.now, until) {
                self.claims.ask_again(node, key, token, self.now);
                continue;
            }
            self.check_joins_no_revoked_lock(node, key, mode);
            let claim = Claim::new(ClaimKind::Lease, (token, mode), self.now, until);
            self.claims.begin(node, key, claim);
        }
    }

    /// Checks that a new lease does not join a shared lock that an operator has revoked.
    fn check_joins_no_revoked_lock(&mut self, node: usize, key: usize, mode: Mode) {
        let revoked = |&&(other, of, _): &&(usize, usize, Ns)| (other, of) == (node, key);
        let Some(&(_, _, at)) = self.revocations.iter().rev().find(revoked) else { return };
        let is_revoked = |claim: Claim| claim.kind == ClaimKind::Lease && claim.since <= at;
        if mode == Mode::Shared && self.claims.at(node, key, self.now).any(is_revoked) {
            self.violate(format!("n{node} lets a reader join a lock that was revoked"));
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each command")]
    fn execute(&mut self, node: usize, conn: Conn, packet: &Packet) {
        self.report.commands += 1;
        let Packet { request, spec } = packet;
        let token = Name::from_slice(request.token.as_str().as_bytes());
        let names: Vec<Name> = spec.keys.iter().map(Name::from_slice).collect();
        let keys: Vec<usize> = names.iter().map(|name| self.plan.key_index(name)).collect();
        let host = &mut self.hosts[node];
        let now = host.clock.at(self.now);
        let (db, ttl, mode) = (0, spec.ttl, spec.mode);
        let holder = (request.token, mode);
        host.next_blocked_id += 1;
        let blocked_id = BlockedId(host.next_blocked_id);
        let extend = |fence, new_token| node::Extend {
            db,
            keys: &names,
            token: &token,
            ttl,
            mode,
            fence,
            new_token,
        };
        let waited = Duration::ZERO;
        let response = match request.command {
            Command::Acquire { fence }
            | Command::AcquireAny { fence }
            | Command::Wait { fence, .. } => {
                let (wait, is_any) = match request.command {
                    Command::Wait { wait, .. } => (Some(wait), spec.any.is_some()),
                    Command::AcquireAny { .. } => (None, true),
                    _ => (None, false),
                };
                let wants = if is_any { Wants::Any } else { Wants::All };
                host.server.keys.client = wait.map(|_| blocked_id);
                let acquire = node::Acquire {
                    db,
                    keys: &names,
                    wants,
                    token: &token,
                    ttl,
                    mode,
                    owner: None,
                    fence: Some(fence),
                    wait_ms: u64::try_from(wait.unwrap_or_default().as_millis())
                        .unwrap_or(u64::MAX),
                };
                match host.server.execute(now, &node::Command::Acquire(acquire)) {
                    Ok(Reply::Granted(fence)) => {
                        self.claim_lease(node, &keys, holder, ttl, now);
                        Some(Response::Granted { fence, waited, key: None })
                    }
                    Ok(Reply::GrantedOne { fence, key }) => {
                        self.claim_lease(node, &keys[key..=key], holder, ttl, now);
                        Some(Response::Granted { fence, waited, key: Some(key) })
                    }
                    Ok(Reply::Waits) => {
                        let token = request.token;
                        let blocked = Blocked { conn, token, keys: keys.clone(), ttl, mode };
                        host.blocked.insert(blocked_id, blocked);
                        for &key in &keys {
                            let kind = ClaimKind::Waiter;
                            let claim = Claim::new(kind, holder, self.now, Ns::MAX);
                            self.claims.begin(node, key, claim);
                        }
                        None
                    }
                    other => Some(refused(&other)),
                }
            }
            Command::Extend { fence } => {
                let command = node::Command::Extend(extend(fence, None));
                Some(match host.server.execute(now, &command) {
                    Ok(Reply::Extended(fence)) => {
                        let deadline = now.monotonic.plus_us(ttl.us());
                        let until = host.clock.when(deadline, self.now);
                        for &key in &keys {
                            self.claims.extend(node, key, holder, self.now, until);
                        }
                        Response::Granted { fence, waited, key: None }
                    }
                    other => refused(&other),
                })
            }
            Command::SwapToken { new } => {
                let new_token = Name::from_slice(new.as_str().as_bytes());
                let command = node::Command::Extend(extend(None, Some(&new_token)));
                Some(match host.server.execute(now, &command) {
                    Ok(Reply::Extended(fence)) => {
                        let kinds = [ClaimKind::Lease, ClaimKind::Foreign];
                        self.end_claims(node, &keys, request.token, &kinds);
                        self.claim_lease(node, &keys, (new, mode), ttl, now);
                        Response::Granted { fence, waited, key: None }
                    }
                    other => refused(&other),
                })
            }
            Command::Release => {
                let release = node::Release { db, keys: &names, token: &token };
                let reply = host.server.execute(now, &node::Command::Release(release));
                let kinds = [ClaimKind::Lease, ClaimKind::Foreign, ClaimKind::Waiter];
                self.end_claims(node, &keys, request.token, &kinds);
                Some(match reply {
                    Ok(Reply::Released(true)) => Response::Yes,
                    Ok(Reply::Released(false)) => Response::No,
                    other => refused(&other),
                })
            }
            Command::Yield => {
                let yields = node::Release { db, keys: &names, token: &token };
                let reply = host.server.execute(now, &node::Command::Yield(yields));
                if reply == Ok(Reply::Yielded(true)) {
                    let kinds = [ClaimKind::Lease, ClaimKind::Foreign];
                    self.end_claims(node, &keys, request.token, &kinds);
                }
                Some(match reply {
                    Ok(Reply::Yielded(true)) => Response::Yes,
                    Ok(Reply::Yielded(false)) => Response::Kept,
                    other => refused(&other),
                })
            }
            Command::Ping => Some(Response::Yes),
        };
        if self.is_traced {
            let (token, command) = (self.short(request.token), command_name(request.command));
            trace!(self, "n{node} {command} {keys:?} of {token}: {response:?}");
        }
        self.answer_woken(node, now);
        if let Some(response) = response {
            self.send_down(conn, Down::Response(response));
        }
        self.run_turns(node);
    }
}

fn command_name(command: Command) -> &'static str {
    match command {
        Command::Acquire { .. } => "ACQUIRE",
        Command::Wait { .. } => "WAIT",
        Command::AcquireAny { .. } => "ACQUIREANY",
        Command::Extend { fence: None } => "EXTEND",
        Command::Extend { fence: Some(_) } => "EXTEND FENCE",
        Command::SwapToken { .. } => "EXTEND TOKEN",
        Command::Release => "RELEASE",
        Command::Yield => "YIELD",
        Command::Ping => "PING",
    }
}

fn refused(reply: &Result<Reply, CommandError>) -> Response {
    match reply {
        Ok(Reply::Refused | Reply::NotHeld) => Response::No,
        Ok(_) => Response::Failed(NodeError::UnexpectedReply),
        Err(error) => failed(error),
    }
}

/// Returns the error to which the client's transport converts an error reply of the module.
fn failed(error: &CommandError) -> Response {
    Response::Failed(match error {
        &CommandError::Held { number, is_older } => return Response::Held { number, is_older },
        // Unlike the transport, omits the remaining time, which would make all errors differ.
        CommandError::Abstaining { reason, left_ms: _ } => {
            NodeError::Abstains { reason: reason.word().into() }
        }
        CommandError::BadFence(FenceError::TooFarAhead { .. }) => {
            NodeError::ClockBehind { reason: "FENCE is too far ahead".into() }
        }
        CommandError::TicketTooFarAhead { .. } => {
            NodeError::ErrorReply("ERR FENCE is more than twice the skew ahead".into())
        }
        CommandError::QueueFull { max_waiters } => {
            NodeError::QueueFull { reason: format!("{max_waiters} clients wait") }
        }
        CommandError::Revoked { left_ms } => NodeError::Revoked { left_ms: *left_ms },
        other => NodeError::ErrorReply(format!("ERR {other:?}")),
    })
}
