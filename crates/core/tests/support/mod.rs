//! A server in memory, with methods for most commands.
//!
//! `scripted` has the environment of a client's state machines, and a call whose answers the test
//! gives.

pub(crate) mod scripted;

use quorlock_core::node::memory_server::{self, Name, Value};
use quorlock_core::node::{
    self, Acquire, BlockedId, Command, CommandError, Extend, Inspect, KeyEvent, Mode, Monotonic,
    Node, Now, Reason, Release, Reply, Revoke, ServerEvent, Settings, WaitReply, Wants,
};
use quorlock_core::{Fence, Ttl};

pub(crate) const MAX_TTL_MS: u64 = 60_000;
pub(crate) const MAX_WAITERS: usize = 50;

pub(crate) struct Server {
    pub(crate) memory: memory_server::Server,
    pub(crate) mono_us: u64,
    pub(crate) wall_ms: u64,
    pub(crate) blocked_ids: u64,
    /// The answers to the clients that waited, in order.
    pub(crate) answers: Vec<(BlockedId, WaitReply)>,
}

/// Whether a client shares the lock, its ticket, and how long it waits.
type Terms = (Mode, Option<Fence>, u64);

pub(crate) fn settings(rejoin_delay_ms: u64) -> Settings {
    Settings {
        max_ttl: Ttl::from_ms(MAX_TTL_MS).unwrap(),
        rejoin_delay_ms,
        max_clock_skew_ms: 60_000,
        max_waiters: MAX_WAITERS,
        fence_stripes: 8,
        table_shards: 4,
        hash_seed: 7,
        defer_wakes: false,
    }
}

fn names(keys: &[&[u8]]) -> Vec<Name> {
    keys.iter().map(|key| Name::from_slice(key)).collect()
}

/// The fence of a grant without a wait; `None` if the node refused.
fn granted(reply: Result<Reply, CommandError>) -> Option<Fence> {
    match reply {
        Ok(Reply::Granted(fence)) => Some(fence),
        Ok(Reply::Refused) | Err(CommandError::Abstaining { .. }) => None,
        other => unreachable!("there is no ticket, and all values are strings: {other:?}"),
    }
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::that_rejoins_after_ms(0)
    }

    pub(crate) fn that_rejoins_after_ms(rejoin_delay_ms: u64) -> Self {
        Self::with(settings(rejoin_delay_ms))
    }

    pub(crate) fn with_max_waiters(max_waiters: usize) -> Self {
        Self::with(Settings { max_waiters, ..settings(0) })
    }

    pub(crate) fn that_defers_wakes() -> Self {
        Self::with(Settings { defer_wakes: true, ..settings(0) })
    }

    /// A server on which this token holds these keys.
    pub(crate) fn with_lock(keys: &[&[u8]], token: &[u8], ttl_ms: u64) -> Self {
        let mut server = Self::new();
        server.acquire_all(keys, token, ttl_ms).unwrap();
        server
    }

    pub(crate) fn with(settings: Settings) -> Self {
        let (mono_us, wall_ms) = (1_000_000, 1_700_000_000_000);
        let now = Now { monotonic: Monotonic::from_us(mono_us), wall_us: wall_ms * 1000 };
        Self {
            memory: memory_server::Server::new(settings, now),
            mono_us,
            wall_ms,
            blocked_ids: 0,
            answers: Vec::new(),
        }
    }

    /// Restarts the server with empty memory: without keys and leases.
    pub(crate) fn restart(&mut self, rejoin_delay_ms: u64) {
        self.memory = memory_server::Server::new(settings(rejoin_delay_ms), self.now());
    }

    pub(crate) fn node(&self) -> &Node {
        &self.memory.node
    }

    /// Why the node abstains, and for how many more milliseconds (`None`: no known end). Returns
    /// `None` if the node votes.
    pub(crate) fn abstention(&self) -> Option<(Reason, Option<u64>)> {
        self.node().abstention(self.now().monotonic)
    }

    pub(crate) fn now(&self) -> Now {
        Now { monotonic: Monotonic::from_us(self.mono_us), wall_us: self.wall_ms * 1000 }
    }

    pub(crate) fn pass_ms(&mut self, ms: u64) {
        self.mono_us += ms * 1000;
        self.wall_ms += ms;
    }

    pub(crate) fn turn_after_ms(&mut self, ms: u64) {
        self.pass_ms(ms);
        self.run_turns();
    }

    /// The value of a key; empty if it does not exist.
    pub(crate) fn text(&self, key: &[u8]) -> &[u8] {
        self.memory.get(0, key).and_then(|value| value.text.as_deref()).unwrap_or_default()
    }

    pub(crate) fn expires_at_ms(&self, key: &[u8]) -> Option<u64> {
        self.memory.get(0, key)?.expires_at_ms
    }

    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.memory.get(0, key).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.key_count() == 0
    }

    pub(crate) fn key_count(&self) -> usize {
        self.memory.keys.iter().count()
    }

    pub(crate) fn flush(&mut self) {
        self.memory.flush(self.now(), None);
    }

    /// Removes a key, as an accident or a command of another client does.
    pub(crate) fn remove_key(&mut self, key: &[u8], event: KeyEvent) {
        self.memory.remove(self.now(), 0, key, event);
    }

    /// Writes a key as another client does, but without an event.
    pub(crate) fn set(&mut self, key: &[u8], text: &[u8], expires_in_ms: Option<u64>) {
        let expires_at_ms = expires_in_ms.map(|ms| self.wall_ms + ms);
        self.memory.keys.insert(0, key, Value::text(text, expires_at_ms));
    }

    pub(crate) fn handle_event(&mut self, event: &ServerEvent) {
        self.memory.node.handle_event(self.now(), event);
    }

    pub(crate) fn execute(&mut self, command: &Command<'_, Name>) -> Result<Reply, CommandError> {
        let reply = self.memory.execute(self.now(), command);
        self.collect_answers();
        reply
    }

    fn collect_answers(&mut self) {
        let woken = std::mem::take(&mut self.memory.keys.woken);
        self.answers.extend(woken.into_iter().map(|id| (id, self.memory.node.answer(id))));
    }

    /// The ids of the clients that waited and were granted a lock, in order.
    pub(crate) fn granted(&self) -> Vec<BlockedId> {
        let is_grant = |answer: &WaitReply| matches!(answer, WaitReply::Granted { .. });
        let granted = self.answers.iter().filter(|(_, answer)| is_grant(answer));
        granted.map(|&(blocked_id, _)| blocked_id).collect()
    }

    pub(crate) fn acquire(&mut self, key: &[u8], token: &[u8], ttl_ms: u64) -> Option<Fence> {
        self.acquire_all(&[key], token, ttl_ms)
    }

    /// ACQUIRE of one key, or MACQUIRE of several keys in this order.
    pub(crate) fn acquire_all(
        &mut self,
        keys: &[&[u8]],
        token: &[u8],
        ttl_ms: u64,
    ) -> Option<Fence> {
        let terms = (Mode::Exclusive, None, 0);
        granted(self.execute_acquire(Wants::All, keys, token, ttl_ms, terms))
    }

    pub(crate) fn acquire_shared(
        &mut self,
        key: &[u8],
        token: &[u8],
        ttl_ms: u64,
    ) -> Option<Fence> {
        granted(self.execute_acquire(Wants::All, &[key], token, ttl_ms, (Mode::Shared, None, 0)))
    }

    /// A client that waits for all of these keys. Returns its id, as the next two methods do.
    #[track_caller]
    pub(crate) fn wait_for_all(&mut self, keys: &[&[u8]], token: &[u8], wait_ms: u64) -> BlockedId {
        self.wait(Wants::All, keys, token, Mode::Exclusive, wait_ms)
    }

    #[track_caller]
    pub(crate) fn wait_for_shared(&mut self, key: &[u8], token: &[u8], wait_ms: u64) -> BlockedId {
        self.wait(Wants::All, &[key], token, Mode::Shared, wait_ms)
    }

    #[track_caller]
    pub(crate) fn wait_for_any(&mut self, keys: &[&[u8]], token: &[u8], wait_ms: u64) -> BlockedId {
        self.wait(Wants::Any, keys, token, Mode::Exclusive, wait_ms)
    }

    #[track_caller]
    fn wait(
        &mut self,
        wants: Wants,
        keys: &[&[u8]],
        token: &[u8],
        mode: Mode,
        wait_ms: u64,
    ) -> BlockedId {
        let reply = self.execute_acquire(wants, keys, token, MAX_TTL_MS, (mode, None, wait_ms));
        assert_eq!(reply, Ok(Reply::Waits));
        BlockedId(self.blocked_ids)
    }

    /// ACQUIRE or MACQUIRE with a ticket. Zero is the front of the queue.
    pub(crate) fn ask(
        &mut self,
        keys: &[&[u8]],
        token: &[u8],
        ttl_ms: u64,
        ticket: u64,
        wait_ms: u64,
    ) -> Result<Reply, CommandError> {
        let fence = Some(Fence::new(ticket).unwrap_or_default());
        self.execute_acquire(Wants::All, keys, token, ttl_ms, (Mode::Exclusive, fence, wait_ms))
    }

    pub(crate) fn execute_acquire(
        &mut self,
        wants: Wants,
        keys: &[&[u8]],
        token: &[u8],
        ttl_ms: u64,
        (mode, fence, wait_ms): Terms,
    ) -> Result<Reply, CommandError> {
        let (keys, token) = (&names(keys)[..], &Name::from_slice(token));
        let (db, ttl, owner) = (0, Ttl::from_ms(ttl_ms).unwrap(), None);
        self.blocked_ids += 1;
        self.memory.keys.client = Some(BlockedId(self.blocked_ids));
        let acquire = Acquire { db, keys, wants, token, ttl, mode, owner, fence, wait_ms };
        self.execute(&Command::Acquire(acquire))
    }

    pub(crate) fn extend(&mut self, key: &[u8], token: &[u8], ttl_ms: u64) -> Option<Fence> {
        match self.extend_with(&[key], token, ttl_ms, None, None) {
            Ok(Reply::Extended(fence)) => Some(fence),
            _ => None,
        }
    }

    /// EXTEND of one key, or MEXTEND of several keys in this order.
    pub(crate) fn extend_with(
        &mut self,
        keys: &[&[u8]],
        token: &[u8],
        ttl_ms: u64,
        fence: Option<Fence>,
        new_token: Option<&[u8]>,
    ) -> Result<Reply, CommandError> {
        let (keys, token) = (&names(keys)[..], &Name::from_slice(token));
        let (ttl, new_token) = (Ttl::from_ms(ttl_ms).unwrap(), new_token.map(Name::from_slice));
        let (mode, new_token) = (Mode::Exclusive, new_token.as_ref());
        self.execute(&Command::Extend(Extend { db: 0, keys, token, ttl, mode, fence, new_token }))
    }

    pub(crate) fn release(&mut self, key: &[u8], token: &[u8]) -> bool {
        let (keys, token) = (names(&[key]), Name::from_slice(token));
        match self.execute(&Command::Release(Release { db: 0, keys: &keys, token: &token })) {
            Ok(Reply::Released(released)) => released,
            other => unreachable!("all values are strings: {other:?}"),
        }
    }

    pub(crate) fn revoke(&mut self, key: &[u8]) -> Result<bool, CommandError> {
        self.revoke_with(key, false)
    }

    pub(crate) fn revoke_with(&mut self, key: &[u8], ends_now: bool) -> Result<bool, CommandError> {
        let key = &Name::from_slice(key);
        match self.execute(&Command::Revoke(Revoke { db: 0, key, ends_now }))? {
            Reply::Revoked(revoked) => Ok(revoked),
            other => unreachable!("{other:?}"),
        }
    }

    /// All fields that INSPECT shows; `None` if the key is free.
    pub(crate) fn inspect(&mut self, key: &[u8]) -> Option<node::Inspected> {
        let key = Name::from_slice(key);
        match self.memory.execute(self.now(), &Command::Inspect(Inspect { db: 0, key: &key })) {
            Ok(Reply::Inspected(inspected)) => inspected.map(|inspected| *inspected),
            other => unreachable!("all values are strings: {other:?}"),
        }
    }

    /// Does all work that is due between commands, in as many turns as it needs.
    pub(crate) fn run_turns(&mut self) {
        self.memory.expire_keys(self.now());
        self.memory.run_turns(self.now());
        self.collect_answers();
    }
}
