use quorlock_core::node::{
    Acquire, Acquired, Adjusted, Extend, Extended, Lend, MirrorWrite, Monotonic, Next, Node, Now, Released,
    Settings, Ticket,
};
use quorlock_core::{Fence, Ttl};

use crate::keyspace::{Bytes, Seeing};

/// The key that everybody wants.
pub(super) const KEY: Name = Bytes(*b"the key!");
/// So long that no lock ends by itself.
pub(super) const TTL: Ttl = match Ttl::from_ms(120_000) {
    Ok(ttl) => ttl,
    Err(_) => unreachable!(),
};
/// Some day, in microseconds since 1970.
const EPOCH_US: u64 = 1_700_000_000_000_000;

/// The key, or a token.
pub(super) type Name = Bytes<8>;

/// Who asks: a client, and which of its moves it is.
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
    /// RELEASE. Nobody looks at its answer.
    Release,
}

/// What a node says to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The lock is the caller's, after it had to wait for so long.
    Held { fence: Fence, waited_us: u64 },
    /// nil.
    NotHeld,
    /// The fence cannot be.
    BadFence,
}

/// An answer, and what it is to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reply {
    pub(super) to: Caller,
    pub(super) is: Answer,
    /// Whether it is to a WAIT.
    pub(super) waited: bool,
    /// Whether it is to EXTEND.
    pub(super) told: bool,
}

/// One server: the real node with its queue, and what its keyspace holds under the key.
#[derive(Debug)]
pub(super) struct Server {
    node: Node<Name>,
    mirror: Option<Name>,
}

/// The node's clocks, which all say the same.
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
            hash_seed: 0,
        };
        Self { node: Node::new(settings, at(0)), mirror: None }
    }

    /// Executes a command as the module does, and says what is to be answered to whom.
    pub(super) fn execute(&mut self, now_us: u64, from: Caller, request: Request) -> Vec<Reply> {
        let now = at(now_us);
        let mut replies = self.turn(now_us);
        let token = from.token();
        let reply = |is| Reply { to: from, is, waited: false, told: false };
        match request {
            Request::Acquire(fence) => replies.extend(self.acquire(now, from, fence, None).map(reply)),
            Request::Wait { fence, wait_ms } => {
                let answer = self.acquire(now, from, fence, Some(wait_ms));
                replies.extend(answer.map(|is| Reply { waited: true, ..reply(is) }));
            }
            Request::Tell(fence) => {
                replies.push(Reply { told: true, ..reply(self.tell(now, token, fence)) });
            }
            Request::Release => {
                self.release(now, token);
                replies.extend(self.hand_over(now));
            }
        }
        replies.extend(self.turn(now_us));
        replies
    }

    /// What a server does between commands.
    pub(super) fn turn(&mut self, now_us: u64) -> Vec<Reply> {
        let now = at(now_us);
        self.node.rejoin(now);
        while self.node.due(now.monotonic).is_some() {
            let settled = self.node.settle(now.monotonic, 0, KEY.bytes(), &Seeing(self.mirror));
            if let Adjusted::DeleteMirror { .. } = settled {
                self.mirror = None;
            }
        }
        let mut replies = Vec::new();
        while self.node.due_for_hand_over(now.monotonic).is_some() {
            replies.extend(self.hand_over(now));
        }
        while let Some(ticket) = self.node.pop_dismissed(now.monotonic) {
            let to = Caller::of(ticket);
            replies.push(Reply { to, is: Answer::NotHeld, waited: true, told: false });
        }
        replies
    }

    /// When there is something to be done without a command.
    pub(super) fn next_turn_us(&self) -> Option<u64> {
        self.node.next_wake().map(Monotonic::us)
    }

    /// `None` when the caller waits.
    fn acquire(&mut self, now: Now, from: Caller, fence: Fence, wait_ms: Option<u64>) -> Option<Answer> {
        let token = from.token();
        let ask = Acquire {
            db: 0,
            keys: &[KEY],
            token: &token,
            ttl: TTL,
            owner: None,
            fence: Some(fence),
            may_wait: wait_ms.is_some(),
        };
        let mirrors = [Seeing(self.mirror)];
        match (self.node.acquire(now, &ask, &mirrors), wait_ms) {
            (Acquired::Granted { fence, .. }, _) => {
                self.mirror = Some(token);
                Some(Answer::Held { fence, waited_us: 0 })
            }
            (Acquired::MustWait, Some(wait_ms)) => {
                self.node.enqueue(now, &ask, wait_ms, from.ticket(), &mirrors);
                None
            }
            (Acquired::Refused, None) => Some(Answer::NotHeld),
            (other, _) => unreachable!("the node has neither forgotten anything nor is it full: {other:?}"),
        }
    }

    fn tell(&mut self, now: Now, token: Name, fence: Fence) -> Answer {
        let ask =
            Extend { db: 0, keys: &[KEY], token: &token, ttl: TTL, fence: Some(fence), new_token: None };
        match self.node.extend(now, &ask, &[Seeing(self.mirror)], &mut [MirrorWrite::Nothing]) {
            Extended::Held { fence } => Answer::Held { fence, waited_us: 0 },
            Extended::NotHeld => Answer::NotHeld,
            Extended::BadFence(_) => Answer::BadFence,
            Extended::OtherKeys | Extended::WrongType => unreachable!("there is one key, and it is a string"),
        }
    }

    fn release(&mut self, now: Now, token: Name) {
        let released = self.node.release(now.monotonic, 0, KEY.bytes(), token.bytes(), &Seeing(self.mirror));
        if let Released::Released(true) | Released::NotHeld(true) = released {
            self.mirror = None;
        }
    }

    fn hand_over(&mut self, now: Now) -> Option<Reply> {
        match self.node.hand_over(now, 0, KEY.bytes(), &Seeing(self.mirror)) {
            Next::Nobody => None,
            Next::Granted(next) => {
                self.mirror = Some(*next.token);
                let is = Answer::Held { fence: next.fence, waited_us: next.waited_us };
                Some(Reply { to: Caller::of(next.ticket), is, waited: true, told: false })
            }
            Next::Several { .. } => unreachable!("there is one key"),
        }
    }
}

fn at(now_us: u64) -> Now {
    Now { monotonic: Monotonic::from_us(now_us), wall_us: wall_us(now_us) }
}

impl Caller {
    /// Each move has a token of its own.
    fn token(self) -> Name {
        Bytes(self.ticket().0.to_le_bytes())
    }

    fn ticket(self) -> Ticket {
        Ticket(u64::from(self.client) << 32 | u64::from(self.a_move))
    }

    fn of(ticket: Ticket) -> Self {
        let half = |bits| u32::try_from(bits & u64::from(u32::MAX)).expect("no more than half of it");
        Self { client: half(ticket.0 >> 32), a_move: half(ticket.0) }
    }
}
