use quorlock_core::node::{
    Acquire, Acquired, Adjusted, Event, Extend, Extended, Lend, MirrorWrite, Node, Now, Released, Settings,
};
use quorlock_core::{Fence, Ttl};

use crate::Keys;
use crate::keyspace::{Bytes, Seeing};
use crate::message::{Answer, Request};

/// A key or a token.
pub(crate) type Name = Bytes<2>;

const NOBODY: Name = Bytes(*b"n\0");

/// One server: the real node, and what its keyspace holds under the keys that there are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    node: Node<Name>,
    mirrors: [Option<Name>; Keys::COUNT],
}

/// What a server is asked with: its clocks, and the ttl that everybody uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) now: Now,
    pub(crate) ttl: Ttl,
}

impl Server {
    /// Starts with empty memory. Its counters begin at its wall clock.
    pub(crate) fn start(at: At, rejoin_delay_ms: u64) -> Self {
        Self::with_counters(at, rejoin_delay_ms, 1)
    }

    /// The same with more than one counter of fences, so that each key has its own.
    pub(crate) fn with_counters(at: At, rejoin_delay_ms: u64, fence_stripes: usize) -> Self {
        let settings = Settings {
            max_ttl: at.ttl,
            rejoin_delay_ms,
            max_clock_skew_ms: 0,
            max_waiters: 0,
            fence_stripes,
            hash_seed: 0,
        };
        Self { node: Node::new(settings, at.now), mirrors: [None; Keys::COUNT] }
    }

    /// Executes a request, as the module does.
    pub(crate) fn execute(&mut self, at: At, keys: Keys, token: Name, request: Request) -> Answer {
        self.turn(at);
        let answer = match request {
            Request::Acquire(hint) => self.acquire(at, keys, token, Some(hint)),
            Request::Repair(_) => self.acquire(at, keys, token, None),
            Request::Tell(fence) => self.extend(at, keys, token, Some(fence)),
            Request::Extend(_) => self.extend(at, keys, token, None),
            Request::Release => self.release(at, keys, token),
        };
        self.turn(at);
        answer
    }

    /// What a server does between commands.
    pub(crate) fn turn(&mut self, at: At) {
        self.node.rejoin(at.now);
        while let Some(due) = self.node.due(at.now.monotonic) {
            let (name, index) = (*due.key, Keys::index_of(*due.key));
            let mirror = Seeing(self.mirrors[index]);
            if let Adjusted::DeleteMirror { .. } =
                self.node.settle(at.now.monotonic, 0, name.bytes(), &mirror)
            {
                self.mirrors[index] = None;
            }
        }
    }

    /// Whatever ends a lease ends this one, as far as the node can tell: a command by somebody.
    pub(crate) fn end(&mut self, at: At, key: Keys) {
        for (index, name) in key.indices().zip(key.names()) {
            if self.mirrors[index].take().is_some() {
                self.node.observe(at.now.monotonic, 0, name.bytes(), Event::Removed);
            }
        }
        self.turn(at);
    }

    /// A key of each lock that is held.
    pub(crate) fn held(&self) -> impl Iterator<Item = Keys> {
        let [a, b] = self.mirrors;
        a.map(|_| Keys::A).into_iter().chain(b.filter(|_| a != b).map(|_| Keys::B))
    }

    fn seeing(&self) -> [Seeing<2>; Keys::COUNT] {
        self.mirrors.map(Seeing)
    }

    fn acquire(&mut self, at: At, keys: Keys, token: Name, fence: Option<Fence>) -> Answer {
        let (names, ttl) = (keys.names(), at.ttl);
        let ask = Acquire { db: 0, keys: names, token: &token, ttl, owner: None, fence, may_wait: false };
        match self.node.acquire(at.now, &ask, &self.seeing()[keys.indices()]) {
            Acquired::Granted { fence, .. } => {
                self.mirrors[keys.indices()].fill(Some(token));
                Answer::Held(fence)
            }
            Acquired::Refused => Answer::NotHeld,
            Acquired::Abstaining { .. } => Answer::Silent,
            Acquired::WrongType => unreachable!("there are only strings"),
            Acquired::MustWait | Acquired::QueueFull { .. } => unreachable!("nobody waits"),
        }
    }

    fn extend(&mut self, at: At, keys: Keys, token: Name, fence: Option<Fence>) -> Answer {
        let ask = Extend { db: 0, keys: keys.names(), token: &token, ttl: at.ttl, fence, new_token: None };
        let mut writes = [MirrorWrite::Nothing; Keys::COUNT];
        match self.node.extend(at.now, &ask, &self.seeing()[keys.indices()], &mut writes) {
            Extended::Held { fence, .. } => Answer::Held(fence),
            Extended::NotHeld => Answer::NotHeld,
            Extended::BadFence(_) => Answer::BadFence,
            // An error. Only a node that has taken what it should not has one for a client, which names all its keys.
            Extended::OtherKeys => Answer::Silent,
            Extended::WrongType => unreachable!("there are only strings"),
        }
    }

    fn release(&mut self, at: At, keys: Keys, token: Name) -> Answer {
        let mut answer = Answer::NotHeld;
        for (index, name) in keys.indices().zip(keys.names()) {
            let mirror = Seeing(self.mirrors[index]);
            let delete = match self.node.release(at.now.monotonic, 0, name.bytes(), token.bytes(), &mirror) {
                Released::Released(delete) => {
                    answer = Answer::Released;
                    delete
                }
                Released::NotHeld(delete) => delete,
                Released::WrongType => unreachable!("there are only strings"),
            };
            if delete {
                self.mirrors[index] = None;
            }
        }
        answer
    }
}

/// What no server does: the seams at which broken twins differ.
impl Server {
    /// Takes a fence from anybody, whether the token holds the key or not.
    pub(crate) fn store_from_anybody(&mut self, at: At, fence: Fence) -> Answer {
        if let Some(holder) = self.mirrors[0] {
            self.extend(at, Keys::A, holder, Some(fence));
        } else {
            self.acquire(at, Keys::A, NOBODY, Some(fence));
            self.release(at, Keys::A, NOBODY);
        }
        Answer::Held(fence)
    }

    /// Takes a fence below the lock's own, and goes on counting from there.
    pub(crate) fn store_downwards(&mut self, at: At, token: Name, fence: Fence) -> Answer {
        if self.mirrors[0] != Some(token) {
            return Answer::NotHeld;
        }
        let beginning = At { now: Now { wall_us: 0, ..at.now }, ..at };
        *self = Self::start(beginning, 0);
        self.acquire(at, Keys::A, token, Some(fence))
    }

    /// Takes those of the keys that are free, each for itself, and says so with the fence of the first that it has.
    pub(crate) fn take_some(&mut self, at: At, keys: Keys, token: Name, fence: Fence) -> Answer {
        self.take_each(at, keys, token, fence).into_iter().next().map_or(Answer::NotHeld, Answer::Held)
    }

    /// Takes all of the keys or none, each with a fence above its own counter alone, and says that of the first.
    pub(crate) fn take_with_fence_of_first(
        &mut self,
        at: At,
        keys: Keys,
        token: Name,
        fence: Fence,
    ) -> Answer {
        if self.mirrors[keys.indices()].iter().any(Option::is_some) {
            return Answer::NotHeld;
        }
        self.take_some(at, keys, token, fence)
    }

    fn take_each(&mut self, at: At, keys: Keys, token: Name, fence: Fence) -> Vec<Fence> {
        let each = [Keys::A, Keys::B].into_iter().filter(|key| keys.overlap(*key));
        let answers = each.map(|key| self.acquire(at, key, token, Some(fence)));
        answers
            .filter_map(|answer| if let Answer::Held(fence) = answer { Some(fence) } else { None })
            .collect()
    }

    /// Extends a lock that has ended, if nobody else has taken it since.
    pub(crate) fn revive(&mut self, at: At, token: Name) -> Answer {
        if self.mirrors[0].is_some() { Answer::NotHeld } else { self.acquire(at, Keys::A, token, None) }
    }
}

impl Name {
    pub(crate) const fn key(letter: u8) -> Self {
        Self([letter, 0])
    }

    pub(crate) fn token(client: u8, attempt: u8) -> Self {
        Self([client, attempt])
    }
}
