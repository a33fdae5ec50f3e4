//! A server around a node: a keyspace, two clocks, and the glue that carries out what the node decides.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::HashMap;

use quorlock_core::node::{
    Acquire, Acquired, Adjusted, Event, Extend, Extended, Inspected, Mirror, MirrorWrite, Monotonic, Next,
    Node, Now, Released, Repair, Seen, Settings, Ticket,
};
use quorlock_core::{Fence, Ttl};

pub(crate) const MAX_TTL_MS: u64 = 60_000;
pub(crate) const MAX_WAITERS: usize = 50;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) text: Vec<u8>,
    pub(crate) expires_at_ms: Option<u64>,
}

pub(crate) struct Server {
    pub(crate) node: Node<Box<[u8]>>,
    pub(crate) keys: HashMap<Vec<u8>, Value>,
    pub(crate) mono_us: u64,
    pub(crate) wall_ms: u64,
    tickets: u64,
    /// What those who waited were told.
    pub(crate) told: Vec<(Ticket, Told)>,
}

/// What one who waited is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Granted { fence: Fence, waited_us: u64 },
    Dismissed,
}

/// What becomes of a client that is ready to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patient {
    Granted(Fence),
    Waits(Ticket),
    QueueFull,
    Abstaining,
}

fn settings(rejoin_delay_ms: u64) -> Settings {
    Settings {
        max_ttl: Ttl::from_ms(MAX_TTL_MS).unwrap(),
        rejoin_delay_ms,
        max_clock_skew_ms: 60_000,
        max_waiters: MAX_WAITERS,
        fence_stripes: 8,
        hash_seed: 7,
    }
}

struct Seeing<'a>(Option<&'a Value>);

impl Mirror for Seeing<'_> {
    fn seen(&self) -> Seen {
        if self.0.is_some() { Seen::Text } else { Seen::Missing }
    }

    fn holds(&self, token: &[u8]) -> bool {
        self.0.is_some_and(|value| value.text == token)
    }

    fn expires_at_ms(&self) -> Option<u64> {
        self.0?.expires_at_ms
    }
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::that_rejoins_after_ms(0)
    }

    pub(crate) fn that_rejoins_after_ms(rejoin_delay_ms: u64) -> Self {
        let (mono_us, wall_ms) = (1_000_000, 1_700_000_000_000);
        let now = Now { monotonic: Monotonic::from_us(mono_us), wall_us: wall_ms * 1000 };
        Self {
            node: Node::new(settings(rejoin_delay_ms), now),
            keys: HashMap::new(),
            mono_us,
            wall_ms,
            tickets: 0,
            told: Vec::new(),
        }
    }

    /// Ends, and starts again with nothing left of what it knew.
    pub(crate) fn restart(&mut self, rejoin_delay_ms: u64) {
        self.node = Node::new(settings(rejoin_delay_ms), self.now());
        self.keys.clear();
    }

    pub(crate) fn now(&self) -> Now {
        Now { monotonic: Monotonic::from_us(self.mono_us), wall_us: self.wall_ms * 1000 }
    }

    pub(crate) fn pass_ms(&mut self, ms: u64) {
        self.mono_us += ms * 1000;
        self.wall_ms += ms;
    }

    /// The server's own expiry, by the wall clock.
    pub(crate) fn expire_keys(&mut self) {
        let wall_ms = self.wall_ms;
        let gone: Vec<_> = self
            .keys
            .iter()
            .filter(|(_, value)| value.expires_at_ms.is_some_and(|at| wall_ms > at))
            .map(|(key, _)| key.clone())
            .collect();
        for key in gone {
            self.take_away(&key, Event::Expired);
        }
    }

    /// Removes a key by another's hand, or by accident.
    pub(crate) fn take_away(&mut self, key: &[u8], event: Event) {
        if self.keys.remove(key).is_some() {
            self.node.observe(self.now().monotonic, 0, key, event);
        }
    }

    pub(crate) fn set(&mut self, key: &[u8], text: &[u8], expires_in_ms: Option<u64>) {
        let expires_at_ms = expires_in_ms.map(|ms| self.wall_ms + ms);
        self.keys.insert(key.into(), Value { text: text.into(), expires_at_ms });
    }

    pub(crate) fn acquire(
        &mut self,
        key: &[u8],
        token: &[u8],
        ttl_ms: u64,
        fence: Option<Fence>,
    ) -> Option<Fence> {
        self.acquire_all(&[key], token, ttl_ms, fence)
    }

    /// MACQUIRE of keys that are in order.
    pub(crate) fn acquire_all(
        &mut self,
        keys: &[&[u8]],
        token: &[u8],
        ttl_ms: u64,
        fence: Option<Fence>,
    ) -> Option<Fence> {
        match self.ask(keys, token, ttl_ms, fence, None) {
            Acquired::Granted { fence, .. } => Some(fence),
            Acquired::Refused | Acquired::Abstaining { .. } => None,
            Acquired::MustWait | Acquired::QueueFull { .. } => unreachable!("it may not wait"),
            Acquired::WrongType => unreachable!("there are only strings"),
        }
    }

    /// ACQUIRE … WAIT.
    pub(crate) fn acquire_or_wait(&mut self, key: &[u8], token: &[u8], ttl_ms: u64, wait_ms: u64) -> Patient {
        self.acquire_all_or_wait(&[key], token, ttl_ms, wait_ms)
    }

    /// MACQUIRE … WAIT of keys that are in order.
    pub(crate) fn acquire_all_or_wait(
        &mut self,
        keys: &[&[u8]],
        token: &[u8],
        ttl_ms: u64,
        wait_ms: u64,
    ) -> Patient {
        match self.ask(keys, token, ttl_ms, None, Some(wait_ms)) {
            Acquired::Granted { fence, .. } => Patient::Granted(fence),
            Acquired::MustWait => Patient::Waits(Ticket(self.tickets)),
            Acquired::QueueFull { .. } => Patient::QueueFull,
            Acquired::Abstaining { .. } => Patient::Abstaining,
            Acquired::Refused | Acquired::WrongType => {
                unreachable!("it may wait, and there are only strings")
            }
        }
    }

    fn ask(
        &mut self,
        keys: &[&[u8]],
        token: &[u8],
        ttl_ms: u64,
        fence: Option<Fence>,
        wait_ms: Option<u64>,
    ) -> Acquired {
        self.expire_keys();
        let (ttl, may_wait) = (Ttl::from_ms(ttl_ms).unwrap(), wait_ms.is_some());
        let ask = Acquire { db: 0, keys, token: &token, ttl, owner: None, fence, may_wait };
        let now = self.now();
        let mirrors: Vec<_> = keys.iter().map(|key| Seeing(self.keys.get(*key))).collect();
        let acquired = self.node.acquire(now, &ask, &mirrors);
        match acquired {
            Acquired::Granted { expires_at_ms, .. } => self.write(keys, token, expires_at_ms),
            Acquired::MustWait => {
                self.tickets += 1;
                self.node.enqueue(now, &ask, wait_ms.unwrap(), Ticket(self.tickets), &mirrors);
            }
            _ => {}
        }
        acquired
    }

    fn write(&mut self, keys: &[&[u8]], token: &[u8], expires_at_ms: u64) {
        for &key in keys {
            self.keys.insert(key.into(), Value { text: token.into(), expires_at_ms: Some(expires_at_ms) });
        }
    }

    /// Hands the key over, if it is free and somebody waits.
    fn hand_over(&mut self, key: &[u8]) {
        let now = self.now();
        loop {
            let (ticket, keys) = match self.node.hand_over(now, 0, key, &Seeing(self.keys.get(key))) {
                Next::Nobody => return,
                Next::Granted(next) => {
                    let granted = Told::Granted { fence: next.fence, waited_us: next.waited_us };
                    self.told.push((next.ticket, granted));
                    let (token, expires_at_ms) = (next.token.clone(), next.expires_at_ms);
                    return self.write(&[key], &token, expires_at_ms);
                }
                Next::Several { ticket, keys } => (ticket, keys.into_iter().cloned().collect::<Vec<_>>()),
            };
            let mirrors: Vec<_> = keys.iter().map(|key| Seeing(self.keys.get(&**key))).collect();
            if let Some(next) = self.node.hand_over_all(now, ticket, &mirrors) {
                let granted = Told::Granted { fence: next.fence, waited_us: next.waited_us };
                self.told.push((ticket, granted));
                let (token, expires_at_ms) = (next.token.clone(), next.expires_at_ms);
                let keys: Vec<_> = keys.iter().map(AsRef::as_ref).collect();
                return self.write(&keys, &token, expires_at_ms);
            }
        }
    }

    pub(crate) fn extend(&mut self, key: &[u8], token: &[u8], ttl_ms: u64) -> Option<Fence> {
        match self.extend_with(key, token, ttl_ms, None, None) {
            Extended::Held { fence, .. } => Some(fence),
            _ => None,
        }
    }

    pub(crate) fn extend_with(
        &mut self,
        key: &[u8],
        token: &[u8],
        ttl_ms: u64,
        fence: Option<Fence>,
        new_token: Option<&[u8]>,
    ) -> Extended {
        self.extend_all_with(&[key], token, ttl_ms, fence, new_token)
    }

    /// MEXTEND of keys that are in order.
    pub(crate) fn extend_all_with(
        &mut self,
        keys: &[&[u8]],
        token: &[u8],
        ttl_ms: u64,
        fence: Option<Fence>,
        new_token: Option<&[u8]>,
    ) -> Extended {
        self.expire_keys();
        let ttl = Ttl::from_ms(ttl_ms).unwrap();
        let ask = Extend { db: 0, keys, token: &token, ttl, fence, new_token: new_token.as_ref() };
        let now = self.now();
        let mirrors: Vec<_> = keys.iter().map(|key| Seeing(self.keys.get(*key))).collect();
        let mut writes = vec![MirrorWrite::Nothing; keys.len()];
        let extended = self.node.extend(now, &ask, &mirrors, &mut writes);
        if let Extended::Held { .. } = extended {
            for (&key, write) in keys.iter().zip(writes) {
                match write {
                    MirrorWrite::Nothing => {}
                    MirrorWrite::Set { expires_at_ms } => {
                        self.write(&[key], new_token.unwrap_or(token), expires_at_ms);
                    }
                    MirrorWrite::Expire { expires_at_ms } => {
                        self.keys.get_mut(key).unwrap().expires_at_ms = Some(expires_at_ms);
                    }
                }
            }
        }
        extended
    }

    /// MRELEASE.
    pub(crate) fn release_all(&mut self, keys: &[&[u8]], token: &[u8]) -> bool {
        let released: Vec<_> = keys.iter().map(|key| self.release_only(key, token)).collect();
        for key in keys {
            self.hand_over(key);
        }
        released.contains(&true)
    }

    pub(crate) fn release(&mut self, key: &[u8], token: &[u8]) -> bool {
        let released = self.release_only(key, token);
        self.hand_over(key);
        released
    }

    fn release_only(&mut self, key: &[u8], token: &[u8]) -> bool {
        self.expire_keys();
        let now = self.now().monotonic;
        let (released, delete) = match self.node.release(now, 0, key, token, &Seeing(self.keys.get(key))) {
            Released::Released(delete) => (true, delete),
            Released::NotHeld(delete) => (false, delete),
            Released::WrongType => unreachable!("there are only strings"),
        };
        if delete {
            self.keys.remove(key).expect("there is something to delete");
        }
        released
    }

    pub(crate) fn inspect(&mut self, key: &[u8]) -> Inspected<'_> {
        self.node.inspect(self.now(), 0, key, &Seeing(self.keys.get(key)))
    }

    /// What the server does between commands.
    pub(crate) fn turn(&mut self) {
        self.expire_keys();
        self.node.settle_flushes();
        let now = self.now().monotonic;
        while let Some(ticket) = self.node.pop_dismissed(now) {
            self.told.push((ticket, Told::Dismissed));
        }
        while let Some(due) = self.node.due(now) {
            let key = due.key.clone();
            let adjusted = self.node.settle(now, 0, &key, &Seeing(self.keys.get(&*key)));
            if let Adjusted::DeleteMirror { .. } = adjusted {
                self.keys.remove(&*key);
            }
        }
        while let Some(due) = self.node.due_for_hand_over(now) {
            let key = due.key.clone();
            self.hand_over(&key);
        }
        let now = self.now();
        while let Some(due) = self.node.due_for_repair(now.monotonic) {
            let key = due.key.clone();
            if let Repair::Set { token, expires_at_ms } =
                self.node.repair(now, 0, &key, &Seeing(self.keys.get(&*key)))
            {
                let text = token.to_vec();
                self.keys.insert(key.into(), Value { text, expires_at_ms: Some(expires_at_ms) });
            }
        }
        self.node.rejoin(now);
    }
}
