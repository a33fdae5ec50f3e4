use quorlock_core::node::{
    Acquire, Acquired, Event, Extend, Extended, Lend, Mirror, Node, Now, Released, Seen, Settings,
};
use quorlock_core::{Fence, Ttl};

use crate::message::{Answer, Request};

/// A key or a token, short enough to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name([u8; 2]);

const KEY: Name = Name(*b"k\0");
const NOBODY: Name = Name(*b"n\0");

/// One server: the real node, and what its keyspace holds under the one key that there is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    node: Node<Name>,
    mirror: Option<Name>,
}

/// What a server is asked with: its clocks, and the ttl that everybody uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) now: Now,
    pub(crate) ttl: Ttl,
}

struct Seeing(Option<Name>);

impl Server {
    /// Starts with empty memory. Its counters begin at its wall clock.
    pub(crate) fn start(at: At, rejoin_delay_ms: u64) -> Self {
        let settings = Settings {
            max_ttl: at.ttl,
            rejoin_delay_ms,
            max_clock_skew_ms: 0,
            max_waiters: 0,
            fence_stripes: 1,
            hash_seed: 0,
        };
        Self { node: Node::new(settings, at.now), mirror: None }
    }

    /// Executes a request, as the module does.
    pub(crate) fn execute(&mut self, at: At, token: Name, request: Request) -> Answer {
        self.turn(at);
        match request {
            Request::Acquire(hint) => self.acquire(at, token, Some(hint)),
            Request::Repair(_) => self.acquire(at, token, None),
            Request::Tell(fence) => self.extend(at, token, Some(fence)),
            Request::Extend(_) => self.extend(at, token, None),
            Request::Release => self.release(at, token),
        }
    }

    /// What a server does between commands.
    pub(crate) fn turn(&mut self, at: At) {
        self.node.rejoin(at.now);
        while self.node.due(at.now.monotonic).is_some() {
            let _ = self.node.settle(at.now.monotonic, 0, KEY.bytes(), &Seeing(self.mirror));
            self.mirror = None;
        }
    }

    /// Whatever ends a lease ends this one, as far as the node can tell: a command by somebody.
    pub(crate) fn end(&mut self, at: At) {
        if self.mirror.take().is_some() {
            self.node.observe(at.now.monotonic, 0, KEY.bytes(), Event::Removed);
        }
    }

    pub(crate) fn holder(&self) -> Option<Name> {
        self.mirror
    }

    fn acquire(&mut self, at: At, token: Name, fence: Option<Fence>) -> Answer {
        let ask =
            Acquire { db: 0, key: &KEY, token: &token, ttl: at.ttl, owner: None, fence, may_wait: false };
        match self.node.acquire(at.now, &ask, &Seeing(self.mirror)) {
            Acquired::Granted { fence, .. } => {
                self.mirror = Some(token);
                Answer::Held(fence)
            }
            Acquired::Refused => Answer::NotHeld,
            Acquired::Abstaining { .. } => Answer::Silent,
            Acquired::WrongType => unreachable!("there are only strings"),
            Acquired::MustWait | Acquired::QueueFull { .. } => unreachable!("nobody waits"),
        }
    }

    fn extend(&mut self, at: At, token: Name, fence: Option<Fence>) -> Answer {
        let ask = Extend { db: 0, key: &KEY, token: &token, ttl: at.ttl, fence, new_token: None };
        match self.node.extend(at.now, &ask, &Seeing(self.mirror)) {
            Extended::Held { fence, .. } => Answer::Held(fence),
            Extended::NotHeld => Answer::NotHeld,
            Extended::BadFence(_) => Answer::BadFence,
            Extended::WrongType => unreachable!("there are only strings"),
        }
    }

    fn release(&mut self, at: At, token: Name) -> Answer {
        match self.node.release(at.now.monotonic, 0, KEY.bytes(), token.bytes(), &Seeing(self.mirror)) {
            Released::Released(_) => {
                self.mirror = None;
                Answer::Released
            }
            Released::NotHeld(_) => Answer::NotHeld,
            Released::WrongType => unreachable!("there are only strings"),
        }
    }
}

/// What no server does: the seams at which broken twins differ.
impl Server {
    /// Takes a fence from anybody, whether the token holds the key or not.
    pub(crate) fn store_from_anybody(&mut self, at: At, fence: Fence) -> Answer {
        if let Some(holder) = self.mirror {
            self.extend(at, holder, Some(fence));
        } else {
            self.acquire(at, NOBODY, Some(fence));
            self.release(at, NOBODY);
        }
        Answer::Held(fence)
    }

    /// Takes a fence below the lock's own, and goes on counting from there.
    pub(crate) fn store_downwards(&mut self, at: At, token: Name, fence: Fence) -> Answer {
        if self.mirror != Some(token) {
            return Answer::NotHeld;
        }
        let beginning = At { now: Now { wall_us: 0, ..at.now }, ..at };
        *self = Self::start(beginning, 0);
        self.acquire(at, token, Some(fence))
    }

    /// Extends a lock that has ended, if nobody else has taken it since.
    pub(crate) fn revive(&mut self, at: At, token: Name) -> Answer {
        if self.mirror.is_some() { Answer::NotHeld } else { self.acquire(at, token, None) }
    }
}

impl Name {
    pub(crate) fn token(client: u8, attempt: u8) -> Self {
        Self([client, attempt])
    }
}

impl AsRef<[u8]> for Name {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Lend for Name {
    type Kept = Self;

    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn keep(&self) -> Self {
        *self
    }
}

impl Mirror for Seeing {
    fn seen(&self) -> Seen {
        if self.0.is_some() { Seen::Text } else { Seen::Missing }
    }

    fn holds(&self, token: &[u8]) -> bool {
        self.0.is_some_and(|held| held.as_ref() == token)
    }

    fn expires_at_ms(&self) -> Option<u64> {
        // No key of this server ever lacks one, and none is ever expired by it.
        Some(u64::MAX)
    }
}
