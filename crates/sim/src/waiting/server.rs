use quorlock_core::node::memory::{self, Name};
use quorlock_core::node::{
    Acquire, Command, CommandError, Extend, Monotonic, Now, Release, Reply as NodeReply, Settings, Ticket,
    WaitReply,
};
use quorlock_core::{Fence, Ttl};

/// The key that all clients want.
pub(super) const KEY: &[u8] = b"the key!";
/// So long that no lock ends by itself.
pub(super) const TTL: Ttl = match Ttl::from_ms(120_000) {
    Ok(ttl) => ttl,
    Err(_) => unreachable!(),
};
/// Some day, in microseconds since 1970.
const EPOCH_US: u64 = 1_700_000_000_000_000;

/// The sender of a command: a client, and the number of its move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) client: u32,
    pub(super) a_move: u32,
}

/// A command, on its way to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// ACQUIRE, with this fence.
    Acquire(Fence),
    /// The same with WAIT.
    Wait { fence: Fence, wait_ms: u64 },
    /// EXTEND with this fence.
    Tell(Fence),
    /// RELEASE. Its reply is not delivered.
    Release,
}

/// What a node answers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The caller holds the lock, after a wait of `waited_us`.
    Held { fence: Fence, waited_us: u64 },
    /// nil.
    NotHeld,
    /// The node does not accept the fence.
    BadFence,
}

/// An answer, and the command that it answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reply {
    pub(super) to: Caller,
    pub(super) is: Answer,
    /// Whether it is to a WAIT.
    pub(super) waited: bool,
    /// Whether it is to EXTEND.
    pub(super) told: bool,
}

/// One server: the real node, with its queue, on a keyspace in memory.
#[derive(Debug)]
pub(super) struct Server {
    memory: memory::Server,
}

/// The wall clock, which passes as the monotonic clock does.
pub(super) fn wall_us(now_us: u64) -> u64 {
    EPOCH_US + now_us
}

impl Server {
    pub(super) fn new(max_waiters: usize) -> Self {
        let settings = Settings {
            max_ttl: TTL,
            rejoin_delay_ms: 0,
            max_clock_skew_ms: 1000,
            max_waiters,
            fence_stripes: 1,
            table_shards: 1,
            hash_seed: 0,
            defer_wakes: false,
        };
        Self { memory: memory::Server::new(settings, at(0)) }
    }

    /// Executes a command between two turns of the server's loop. Returns all replies that it sends.
    pub(super) fn execute(&mut self, now_us: u64, from: Caller, request: Request) -> Vec<Reply> {
        let mut replies = self.turn(now_us);
        let reply = |is| Reply { to: from, is, waited: false, told: false };
        match request {
            Request::Acquire(fence) => replies.extend(self.acquire(now_us, from, fence, 0).map(reply)),
            Request::Wait { fence, wait_ms } => {
                let answer = self.acquire(now_us, from, fence, wait_ms);
                replies.extend(answer.map(|is| Reply { waited: true, ..reply(is) }));
            }
            Request::Tell(fence) => {
                replies.extend(self.extend(now_us, from, fence).map(|is| Reply { told: true, ..reply(is) }));
            }
            Request::Release => self.release(now_us, from),
        }
        replies.extend(self.unblocked());
        replies.extend(self.turn(now_us));
        replies
    }

    /// Does what a server does between commands.
    pub(super) fn turn(&mut self, now_us: u64) -> Vec<Reply> {
        self.memory.turn(at(now_us));
        self.unblocked()
    }

    /// When the server is to have its next turn, if no command comes before.
    pub(super) fn next_turn_us(&self) -> Option<u64> {
        self.memory.node.next_wake().map(Monotonic::us)
    }

    /// The replies to clients that waited, and were unblocked.
    fn unblocked(&mut self) -> Vec<Reply> {
        let woken = std::mem::take(&mut self.memory.keys.woken);
        let reply = |ticket| {
            let is = match self.memory.node.answer(ticket) {
                WaitReply::Granted { fence, waited_us } => Answer::Held { fence, waited_us },
                WaitReply::Refused => Answer::NotHeld,
                WaitReply::Failed(error) => {
                    unreachable!("the node does not abstain, and all writes succeed: {error:?}")
                }
            };
            Reply { to: Caller::of(ticket), is, waited: true, told: false }
        };
        woken.into_iter().map(reply).collect()
    }

    /// Returns `None` when the caller waits.
    fn acquire(&mut self, now_us: u64, from: Caller, fence: Fence, wait_ms: u64) -> Option<Answer> {
        self.memory.keys.client = Some(from.ticket());
        let (keys, token) = (&[Name::from_slice(KEY)], &from.token());
        let acquire = Acquire { db: 0, keys, token, ttl: TTL, owner: None, fence: Some(fence), wait_ms };
        self.carry_out(now_us, &Command::Acquire(acquire))
    }

    fn extend(&mut self, now_us: u64, from: Caller, fence: Fence) -> Option<Answer> {
        let (keys, token) = (&[Name::from_slice(KEY)], &from.token());
        let extend = Extend { db: 0, keys, token, ttl: TTL, fence: Some(fence), new_token: None };
        self.carry_out(now_us, &Command::Extend(extend))
    }

    fn release(&mut self, now_us: u64, from: Caller) {
        let (keys, token) = (&[Name::from_slice(KEY)], &from.token());
        self.carry_out(now_us, &Command::Release(Release { db: 0, keys, token }));
    }

    /// Returns what to answer to the command, if anything.
    fn carry_out(&mut self, now_us: u64, command: &Command<'_, Name>) -> Option<Answer> {
        match self.memory.execute(at(now_us), command) {
            Ok(NodeReply::Granted(fence) | NodeReply::Extended(fence)) => {
                Some(Answer::Held { fence, waited_us: 0 })
            }
            Ok(NodeReply::Refused | NodeReply::NotHeld) => Some(Answer::NotHeld),
            Err(CommandError::BadFence(_)) => Some(Answer::BadFence),
            Ok(NodeReply::Waits | NodeReply::Released(_)) => None,
            other => unreachable!("the node neither abstains nor is its queue full: {other:?}"),
        }
    }
}

fn at(now_us: u64) -> Now {
    Now { monotonic: Monotonic::from_us(now_us), wall_us: wall_us(now_us) }
}

impl Caller {
    /// Each move has a token of its own.
    fn token(self) -> Name {
        Name::from_slice(&self.ticket().0.to_le_bytes())
    }

    fn ticket(self) -> Ticket {
        Ticket(u64::from(self.client) << 32 | u64::from(self.a_move))
    }

    fn of(ticket: Ticket) -> Self {
        let half = |bits| u32::try_from(bits & u64::from(u32::MAX)).expect("no more than half of it");
        Self { client: half(ticket.0 >> 32), a_move: half(ticket.0) }
    }
}
