use quorlock_core::node::memory::{self, Name};
use quorlock_core::node::{
    Acquire, Command, CommandError, Extend, KeyEvent, Mode, Monotonic, Now, Release, Reply, Revoke,
    Settings,
};
use quorlock_core::{Fence, Ttl};

use crate::Keys;
use crate::message::{Answer, Request};

const NOBODY: &[u8] = b"nobody";
/// The value that replaces the token when a lock is revoked.
const UNKNOWN: &[u8] = b"unknown";

/// How an operator revokes a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Revocation {
    /// Marks the lease, and replaces the token in the mirror: the real rule, no mutant.
    Marks,
    Ends,
    /// Marks the lease, and leaves the token in the mirror.
    KeepsToken,
}

/// A server of the model: the real node on a keyspace in memory. Two servers are equal if they
/// behave alike from now on. So statistics of the keyspace are reset after each step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    memory: memory::Server,
    /// When the server had its last turn. Servers with different last turns are not equal: the
    /// timing wheel of the leases has advanced to that moment, and cannot go back.
    turned_at: Monotonic,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerContext {
    pub(crate) now: Now,
    /// Of all clients.
    pub(crate) ttl: Ttl,
}

impl Server {
    /// Starts a server with empty memory and this number of fence counters, which start at its wall
    /// clock.
    pub(crate) fn start(ctx: ServerContext, rejoin_delay_ms: u64, fence_stripes: usize) -> Self {
        let settings = Settings {
            max_ttl: ctx.ttl,
            rejoin_delay_ms,
            max_clock_skew_ms: 0,
            max_waiters: 0,
            fence_stripes,
            table_shards: 1,
            hash_seed: 0,
            defer_wakes: false,
        };
        let mut server = Self {
            memory: memory::Server::new(settings, ctx.now),
            turned_at: Monotonic::default(),
        };
        // In its first turn, a node checks for listeners, and stores the time of the next check.
        // Here, the first turn is always at time zero, so that servers with different start times
        // can be equal.
        server.run_turns(ServerContext {
            now: Now { monotonic: Monotonic::default(), ..ctx.now },
            ..ctx
        });
        server.run_turns(ctx);
        server
    }

    /// Executes a request, between two turns of the server's loop.
    pub(crate) fn execute(
        &mut self,
        ctx: ServerContext,
        (keys, mode): (Keys, Mode),
        token: &Name,
        request: Request,
    ) -> Answer {
        self.run_turns(ctx);
        let answer = match request {
            Request::Acquire(proposal) => self.acquire_as(ctx, keys, mode, token, Some(proposal)),
            Request::Repair(_) => self.acquire_as(ctx, keys, mode, token, None),
            Request::StoreFence(fence) => self.extend(ctx, keys, token, Some(fence)),
            Request::Extend(_) => self.extend(ctx, keys, token, None),
            Request::Release => self.release(ctx, keys, token),
        };
        self.run_turns(ctx);
        answer
    }

    /// Does the work of a server between commands.
    pub(crate) fn run_turns(&mut self, ctx: ServerContext) {
        debug_assert_eq!(
            ctx.now.wall_ms(),
            0,
            "the wall clock stays in its first millisecond, so no mirror expires"
        );
        self.memory.run_turns(ctx.now);
        self.memory.keys.counted = 0;
        self.memory.keys.random_values_made = 0;
        self.turned_at = ctx.now.monotonic;
    }

    /// Ends the leases of these keys, as a DEL of the keys does.
    pub(crate) fn end(&mut self, ctx: ServerContext, keys: Keys) {
        for name in keys.names() {
            self.memory.remove(ctx.now, 0, name, KeyEvent::Removed);
        }
        self.run_turns(ctx);
    }

    /// Returns this server after a restart that kept its keys, but not its leases.
    pub(crate) fn restart_from_disk(&self, ctx: ServerContext, fence_stripes: usize) -> Self {
        let mut restarted = Self::start(ctx, 0, fence_stripes);
        restarted.memory.keys = self.memory.keys.clone();
        restarted.run_turns(ctx);
        restarted
    }

    /// Revokes the lock of the first key. Returns its holder; `None` if the mirror names no client.
    pub(crate) fn revoke(&mut self, ctx: ServerContext, revocation: Revocation) -> Option<u8> {
        let holder = self.holder_to_revoke()?;
        let token = self.mirror(Keys::A).map(Name::from_slice)?;
        let key = &names(Keys::A)[0];
        let random_value =
            if revocation == Revocation::KeepsToken { token } else { Name::from_slice(UNKNOWN) };
        let ends_now = revocation == Revocation::Ends;
        let revoke = Revoke { db: 0, key, random_value: &random_value, ends_now };
        let reply = self.memory.execute(ctx.now, &Command::Revoke(revoke));
        assert_eq!(reply, Ok(Reply::Revoked(true)), "the key is held");
        self.run_turns(ctx);
        Some(holder)
    }

    /// Returns the client whose token is in the mirror of the first key. Its lock can be revoked.
    pub(crate) fn holder_to_revoke(&self) -> Option<u8> {
        match self.mirror(Keys::A) {
            Some(&[client, _attempt]) => Some(client),
            _ => None,
        }
    }

    /// Returns one key of each held lock.
    pub(crate) fn held(&self) -> impl Iterator<Item = Keys> {
        let (a, b) = (self.mirror(Keys::A), self.mirror(Keys::B));
        a.map(|_| Keys::A).into_iter().chain(b.filter(|_| a != b).map(|_| Keys::B))
    }

    fn mirror(&self, keys: Keys) -> Option<&[u8]> {
        keys.names().next().and_then(|name| self.memory.get(0, name)?.text.as_deref())
    }

    fn acquire(
        &mut self,
        ctx: ServerContext,
        keys: Keys,
        token: &Name,
        fence: Option<Fence>,
    ) -> Answer {
        self.acquire_as(ctx, keys, Mode::Exclusive, token, fence)
    }

    fn acquire_as(
        &mut self,
        ctx: ServerContext,
        keys: Keys,
        mode: Mode,
        token: &Name,
        fence: Option<Fence>,
    ) -> Answer {
        let keys = &names(keys);
        let acquire =
            Acquire { db: 0, keys, token, ttl: ctx.ttl, mode, owner: None, fence, wait_ms: 0 };
        self.carry_out(ctx, &Command::Acquire(acquire))
    }

    fn extend(
        &mut self,
        ctx: ServerContext,
        keys: Keys,
        token: &Name,
        fence: Option<Fence>,
    ) -> Answer {
        let keys = &names(keys);
        let extend = Extend {
            db: 0,
            keys,
            token,
            ttl: ctx.ttl,
            mode: Mode::Exclusive,
            fence,
            new_token: None,
        };
        self.carry_out(ctx, &Command::Extend(extend))
    }

    fn release(&mut self, ctx: ServerContext, keys: Keys, token: &Name) -> Answer {
        self.carry_out(ctx, &Command::Release(Release { db: 0, keys: &names(keys), token }))
    }

    fn carry_out(&mut self, ctx: ServerContext, command: &Command<'_, Name>) -> Answer {
        let reply = self.memory.execute(ctx.now, command);
        self.memory.keys.counted = 0;
        self.memory.keys.random_values_made = 0;
        match reply {
            Ok(Reply::Granted(fence) | Reply::Extended(fence)) => Answer::Held(fence),
            Ok(Reply::Refused | Reply::NotHeld | Reply::Released(false))
            | Err(CommandError::Held { .. }) => Answer::NotHeld,
            Ok(Reply::Released(true)) => Answer::Released,
            Err(CommandError::BadFence(_)) => Answer::BadFence,
            // A client names all keys of its lock, so only a mutant leads to `OtherKeys`.
            Err(
                CommandError::Abstaining { .. }
                | CommandError::OtherKeys
                | CommandError::TicketTooFarAhead { .. },
            ) => Answer::Silent,
            Err(CommandError::Revoked { .. }) => Answer::Revoked,
            Ok(
                Reply::Waits
                | Reply::GrantedOne { .. }
                | Reply::Yielded(_)
                | Reply::Inspected(_)
                | Reply::Revoked(_)
                | Reply::Scanned(_),
            )
            | Err(
                CommandError::KeyLength
                | CommandError::AlreadyWaits
                | CommandError::WrongType
                | CommandError::QueueFull { .. }
                | CommandError::SeveralShared
                | CommandError::TokenInUse
                | CommandError::NoExpiry
                | CommandError::NotWritten,
            ) => {
                unreachable!(
                    "no client waits, all keys are short strings, and all writes succeed: {reply:?}"
                )
            }
        }
    }
}

/// Steps that only mutants execute.
impl Server {
    /// Stores a fence for any token, whether the token holds the key or not.
    pub(crate) fn store_from_any_token(&mut self, ctx: ServerContext, fence: Fence) -> Answer {
        if let Some(holder) = self.mirror(Keys::A).map(Name::from_slice) {
            self.extend(ctx, Keys::A, &holder, Some(fence));
        } else {
            let nobody = Name::from_slice(NOBODY);
            self.acquire(ctx, Keys::A, &nobody, Some(fence));
            self.release(ctx, Keys::A, &nobody);
        }
        Answer::Held(fence)
    }

    /// Returns this server after a restart, with `reader` as the mirror of each shared lock.
    pub(crate) fn restart_naming(
        &self,
        ctx: ServerContext,
        fence_stripes: usize,
        reader: &Name,
    ) -> Self {
        let mut restarted = self.restart_from_disk(ctx, fence_stripes);
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

    /// Stores a fence below that of the lock, and lowers the fence counter to it.
    pub(crate) fn store_downwards(
        &mut self,
        ctx: ServerContext,
        token: &Name,
        fence: Fence,
    ) -> Answer {
        if self.mirror(Keys::A) != Some(&token[..]) {
            return Answer::NotHeld;
        }
        let beginning = ServerContext { now: Now { wall_us: 0, ..ctx.now }, ..ctx };
        *self = Self::start(beginning, 0, 1);
        self.acquire(ctx, Keys::A, token, Some(fence))
    }

    /// Grants the free ones of these keys, each by itself, and answers with the first grant.
    pub(crate) fn take_some(
        &mut self,
        ctx: ServerContext,
        keys: Keys,
        token: &Name,
        fence: Fence,
    ) -> Answer {
        let answers: Vec<_> =
            keys.each().map(|key| self.acquire(ctx, key, token, Some(fence))).collect();
        let grant = answers.into_iter().find(|answer| matches!(answer, Answer::Held(_)));
        grant.unwrap_or(Answer::NotHeld)
    }

    /// Grants all of these keys or none, each with a fence from its own counter, and answers with
    /// the first fence.
    pub(crate) fn take_with_fence_of_first(
        &mut self,
        ctx: ServerContext,
        keys: Keys,
        token: &Name,
        fence: Fence,
    ) -> Answer {
        if keys.each().any(|key| self.mirror(key).is_some()) {
            return Answer::NotHeld;
        }
        self.take_some(ctx, keys, token, fence)
    }

    /// Grants a free key to a token whose lock has ended.
    pub(crate) fn revive(&mut self, ctx: ServerContext, token: &Name) -> Answer {
        if self.mirror(Keys::A).is_some() {
            Answer::NotHeld
        } else {
            self.acquire(ctx, Keys::A, token, None)
        }
    }
}

fn names(keys: Keys) -> Vec<Name> {
    keys.names().map(Name::from_slice).collect()
}
