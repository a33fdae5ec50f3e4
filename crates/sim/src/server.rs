use quorlock_core::node::memory::{self, Name};
use quorlock_core::node::{
    Acquire, Command, CommandError, Extend, KeyEvent, Mode, Monotonic, Now, Release, Reply, Revoke,
    Settings,
};
use quorlock_core::{Fence, Ttl};

use crate::Keys;
use crate::message::{Answer, Request};

/// A token that no client has.
const NOBODY: &[u8] = b"nobody";
/// The value that replaces the token when a lock is revoked.
const UNKNOWN: &[u8] = b"unknown";

/// How an operator revokes a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Revocation {
    /// By the unchanged rule.
    Marks,
    /// Ends the lock at once.
    Ends,
    /// Marks the lease, and leaves the token in the mirror.
    KeepsToken,
}

/// A server of the model: the real node on a keyspace in memory.
///
/// Two servers are equal when they behave alike from here on, so mere counters of the keyspace are
/// reset.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    memory: memory::Server,
    /// When it had its last turn. Equal nodes behave alike only from the same moment on: each has
    /// sorted its leases up to then, and cannot go back.
    turned_at: Monotonic,
}

/// The clocks of a server, and the ttl of all clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) now: Now,
    pub(crate) ttl: Ttl,
}

impl Server {
    /// Starts a server with empty memory. Its fence counter starts at its wall clock.
    pub(crate) fn start(at: At, rejoin_delay_ms: u64) -> Self {
        Self::with_counters(at, rejoin_delay_ms, 1)
    }

    /// Starts a server with several fence counters, so that each key has its own.
    pub(crate) fn with_counters(at: At, rejoin_delay_ms: u64, fence_stripes: usize) -> Self {
        let settings = Settings {
            max_ttl: at.ttl,
            rejoin_delay_ms,
            max_clock_skew_ms: 0,
            max_waiters: 0,
            fence_stripes,
            table_shards: 1,
            hash_seed: 0,
            defer_wakes: false,
        };
        let mut server =
            Self { memory: memory::Server::new(settings, at.now), turned_at: Monotonic::default() };
        // In its first turn a node checks which receivers its propagation has, and remembers when.
        // Every server does that at time zero, so that the time of its start does not matter later.
        server.turn(At { now: Now { monotonic: Monotonic::default(), ..at.now }, ..at });
        server.turn(at);
        server
    }

    /// Executes a request, between two turns of the server's loop.
    pub(crate) fn execute(
        &mut self,
        at: At,
        (keys, mode): (Keys, Mode),
        token: &Name,
        request: Request,
    ) -> Answer {
        self.turn(at);
        let answer = match request {
            Request::Acquire(hint) => self.acquire_as(at, keys, mode, token, Some(hint)),
            Request::Repair(_) => self.acquire_as(at, keys, mode, token, None),
            Request::Tell(fence) => self.extend(at, keys, token, Some(fence)),
            Request::Extend(_) => self.extend(at, keys, token, None),
            Request::Release => self.release(at, keys, token),
        };
        self.turn(at);
        answer
    }

    /// Does the work of a server between commands.
    pub(crate) fn turn(&mut self, at: At) {
        debug_assert_eq!(
            at.now.wall_ms(),
            0,
            "leases end before the wall clock expires their keys"
        );
        self.memory.turn(at.now);
        self.memory.keys.counted = 0;
        self.memory.keys.unknowns = 0;
        self.turned_at = at.now.monotonic;
    }

    /// Ends the leases of these keys, as a command of another client does.
    pub(crate) fn end(&mut self, at: At, keys: Keys) {
        for name in keys.names() {
            self.memory.remove(at.now, 0, name, KeyEvent::Removed);
        }
        self.turn(at);
    }

    /// Restarts with its keys, and without its leases.
    pub(crate) fn restart_from_disk(&self, at: At, fence_stripes: usize) -> Self {
        let mut restarted = Self::with_counters(at, 0, fence_stripes);
        restarted.memory.keys = self.memory.keys.clone();
        restarted.turn(at);
        restarted
    }

    /// Revokes the lock on the first key. Returns the client that held it, if one did.
    pub(crate) fn revoke(&mut self, at: At, revocation: Revocation) -> Option<u8> {
        let holder = self.holder_to_revoke()?;
        let token = self.holder(Keys::A).map(Name::from_slice)?;
        let key = &names(Keys::A)[0];
        let unknown =
            if revocation == Revocation::KeepsToken { token } else { Name::from_slice(UNKNOWN) };
        let ends_now = revocation == Revocation::Ends;
        let revoke = Revoke { db: 0, key, unknown: &unknown, ends_now };
        let reply = self.memory.execute(at.now, &Command::Revoke(revoke));
        assert_eq!(reply, Ok(Reply::Revoked(true)), "the key is a held one");
        self.turn(at);
        Some(holder)
    }

    /// Returns the client whose lock on the first key can be revoked.
    pub(crate) fn holder_to_revoke(&self) -> Option<u8> {
        match self.holder(Keys::A) {
            Some(&[client, _attempt]) => Some(client),
            _ => None,
        }
    }

    /// Returns one key of each lock that is held.
    pub(crate) fn held(&self) -> impl Iterator<Item = Keys> {
        let (a, b) = (self.holder(Keys::A), self.holder(Keys::B));
        a.map(|_| Keys::A).into_iter().chain(b.filter(|_| a != b).map(|_| Keys::B))
    }

    /// Returns the token that holds the first of these keys.
    fn holder(&self, keys: Keys) -> Option<&[u8]> {
        keys.names().next().and_then(|name| self.memory.get(0, name)?.text.as_deref())
    }

    fn acquire(&mut self, at: At, keys: Keys, token: &Name, fence: Option<Fence>) -> Answer {
        self.acquire_as(at, keys, Mode::Exclusive, token, fence)
    }

    fn acquire_as(
        &mut self,
        at: At,
        keys: Keys,
        mode: Mode,
        token: &Name,
        fence: Option<Fence>,
    ) -> Answer {
        let keys = &names(keys);
        let acquire =
            Acquire { db: 0, keys, token, ttl: at.ttl, mode, owner: None, fence, wait_ms: 0 };
        self.carry_out(at, &Command::Acquire(acquire))
    }

    fn extend(&mut self, at: At, keys: Keys, token: &Name, fence: Option<Fence>) -> Answer {
        let keys = &names(keys);
        let extend = Extend {
            db: 0,
            keys,
            token,
            ttl: at.ttl,
            mode: Mode::Exclusive,
            fence,
            new_token: None,
        };
        self.carry_out(at, &Command::Extend(extend))
    }

    fn release(&mut self, at: At, keys: Keys, token: &Name) -> Answer {
        self.carry_out(at, &Command::Release(Release { db: 0, keys: &names(keys), token }))
    }

    fn carry_out(&mut self, at: At, command: &Command<'_, Name>) -> Answer {
        let reply = self.memory.execute(at.now, command);
        self.memory.keys.counted = 0;
        self.memory.keys.unknowns = 0;
        match reply {
            Ok(Reply::Granted(fence) | Reply::Extended(fence)) => Answer::Held(fence),
            Ok(Reply::Refused | Reply::NotHeld | Reply::Released(false)) => Answer::NotHeld,
            Ok(Reply::Released(true)) => Answer::Released,
            Err(CommandError::BadFence(_)) => Answer::BadFence,
            // A client names all keys of its lock: only the server of a mutant answers `OtherKeys`.
            Err(CommandError::Abstaining { .. } | CommandError::OtherKeys) => Answer::Silent,
            Err(CommandError::Revoked { .. }) => Answer::Revoked,
            Ok(
                Reply::Waits
                | Reply::GrantedOne { .. }
                | Reply::Inspected(_)
                | Reply::Revoked(_)
                | Reply::Scanned(_),
            )
            | Err(
                CommandError::WrongType
                | CommandError::QueueFull { .. }
                | CommandError::SeveralShared
                | CommandError::TokenInUse
                | CommandError::NoExpiry
                | CommandError::NotWritten,
            ) => {
                unreachable!(
                    "no client waits, all keys are strings, and all writes succeed: {reply:?}"
                )
            }
        }
    }
}

/// Steps that only the servers of mutants do.
impl Server {
    /// Accepts a fence from any token, whether it holds the key or not.
    pub(crate) fn store_from_anybody(&mut self, at: At, fence: Fence) -> Answer {
        if let Some(holder) = self.holder(Keys::A).map(Name::from_slice) {
            self.extend(at, Keys::A, &holder, Some(fence));
        } else {
            let nobody = Name::from_slice(NOBODY);
            self.acquire(at, Keys::A, &nobody, Some(fence));
            self.release(at, Keys::A, &nobody);
        }
        Answer::Held(fence)
    }

    /// Grants a shared lock without a look at what is there.
    pub(crate) fn join_writer(&mut self, at: At, keys: Keys, token: &Name, fence: Fence) -> Answer {
        match self.execute(at, (keys, Mode::Shared), token, Request::Acquire(fence)) {
            Answer::NotHeld => Answer::Held(fence),
            answer => answer,
        }
    }

    /// Grants a shared lock with the fence that its client proposes, whatever was granted before.
    pub(crate) fn share_with_fence(
        &mut self,
        at: At,
        keys: Keys,
        token: &Name,
        fence: Fence,
    ) -> Answer {
        match self.execute(at, (keys, Mode::Shared), token, Request::Acquire(fence)) {
            Answer::Held(_) => Answer::Held(fence),
            answer => answer,
        }
    }

    /// Starts again with a mirror that held the token of one of the clients that share the lock.
    pub(crate) fn restart_naming(&self, at: At, fence_stripes: usize, reader: &Name) -> Self {
        let mut restarted = self.restart_from_disk(at, fence_stripes);
        let is_shared = |name: &&[u8]| {
            self.memory.get(0, name).is_some_and(|value| {
                value.text.as_ref().is_some_and(|text| text.starts_with(b"unknown-"))
            })
        };
        for name in Keys::A.names().filter(is_shared) {
            if let Some(value) = restarted.memory.keys.get_mut(0, name) {
                value.text = Some(reader.clone());
            }
        }
        restarted
    }

    /// Accepts a fence below the lock's own, and counts on from there.
    pub(crate) fn store_downwards(&mut self, at: At, token: &Name, fence: Fence) -> Answer {
        if self.holder(Keys::A) != Some(&token[..]) {
            return Answer::NotHeld;
        }
        let beginning = At { now: Now { wall_us: 0, ..at.now }, ..at };
        *self = Self::start(beginning, 0);
        self.acquire(at, Keys::A, token, Some(fence))
    }

    /// Grants the free keys among these, each for itself. Answers with the fence of the first.
    pub(crate) fn take_some(&mut self, at: At, keys: Keys, token: &Name, fence: Fence) -> Answer {
        self.take_each(at, keys, token, fence)
            .into_iter()
            .next()
            .map_or(Answer::NotHeld, Answer::Held)
    }

    /// Grants all of the keys or none, each with a fence above its own counter alone. Answers with
    /// the fence of the first.
    pub(crate) fn take_with_fence_of_first(
        &mut self,
        at: At,
        keys: Keys,
        token: &Name,
        fence: Fence,
    ) -> Answer {
        if keys.each().any(|key| self.holder(key).is_some()) {
            return Answer::NotHeld;
        }
        self.take_some(at, keys, token, fence)
    }

    fn take_each(&mut self, at: At, keys: Keys, token: &Name, fence: Fence) -> Vec<Fence> {
        let answers = keys.each().map(|key| self.acquire(at, key, token, Some(fence)));
        answers
            .filter_map(|answer| if let Answer::Held(fence) = answer { Some(fence) } else { None })
            .collect()
    }

    /// Grants a lock that has ended to its old token, if the key is free.
    pub(crate) fn revive(&mut self, at: At, token: &Name) -> Answer {
        if self.holder(Keys::A).is_some() {
            Answer::NotHeld
        } else {
            self.acquire(at, Keys::A, token, None)
        }
    }
}

fn names(keys: Keys) -> Vec<Name> {
    keys.names().map(Name::from_slice).collect()
}
