//! A server in memory: a node, and keys that behave like those of a server.
//!
//! Tests, simulators and the model checker run the node on it. It decides nothing: it is a map with
//! expiry, a wall clock that the caller sets, and the events that a server would send.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use super::{
    Access, BlockedId, Budget, Change, Command, CommandError, KeyBytes, KeyEvent, Keyspace, Kind,
    Listeners, Node, Now, Reply, ServerEvent, Settings, WriteRefused,
};

/// A key or a token. A short one needs no allocation.
pub type Name = SmallVec<[u8; 24]>;

/// The value under a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Value {
    /// The string; `None` for another type.
    pub text: Option<Name>,
    /// When it expires, in milliseconds of the wall clock; `None` if it does not expire.
    pub expires_at_ms: Option<u64>,
}

/// A node and its keyspace.
#[derive(Clone, Debug)]
pub struct Server {
    /// The node.
    pub node: Node,
    /// Its keys.
    pub keys: Keys,
}

/// The keyspace of a [`Server`].
#[derive(Clone, Debug, Default)]
pub struct Keys {
    values: BTreeMap<(u32, Name), Value>,
    wall_ms: u64,
    events: VecDeque<ServerEvent>,
    /// The id of the next client that waits; `None` if the server forbids blocking.
    pub client: Option<BlockedId>,
    /// Clients that were unblocked and have not fetched their [answers](Node::answer).
    pub woken: Vec<BlockedId>,
    /// For each write that was propagated to the replica: its key, and whether it deleted the key.
    pub propagated: Vec<(Name, bool)>,
    /// Whether a replica is connected.
    pub has_replica: bool,
    /// Whether clients are paused.
    pub is_paused: bool,
    /// Whether memory is short.
    pub memory_is_short: bool,
    /// The number of random values so far.
    pub random_values_made: u64,
    /// How many writes the server still accepts; `None` for all.
    pub writes_left: Option<u32>,
}

impl Server {
    /// Creates a server without keys, whose node has no leases.
    pub fn new(settings: Settings, now: Now) -> Self {
        Self { node: Node::new(settings, now), keys: Keys::default() }
    }

    /// Carries out a command.
    ///
    /// # Errors
    /// As [`Node::execute`].
    pub fn execute(
        &mut self,
        now: Now,
        command: &Command<'_, Name>,
    ) -> Result<Reply, CommandError> {
        self.keys.wall_ms = now.wall_ms();
        self.node.execute(now, command, &mut self.keys)
    }

    /// Does all due work, in as many turns as it needs.
    pub fn run_turns(&mut self, now: Now) {
        loop {
            self.one_turn(now);
            if self.node.next_wake().is_none_or(|at| at > now.monotonic) {
                return;
            }
        }
    }

    /// Does the work of one turn within its budget. Returns the number of jobs.
    pub fn one_turn(&mut self, now: Now) -> usize {
        self.keys.wall_ms = now.wall_ms();
        let mut budget = Budget::turn();
        let mut jobs = 0;
        while self.node.next_job(now, &mut budget, &mut self.keys).is_some() {
            jobs += 1;
        }
        jobs
    }

    /// Removes the expired keys, as the server does in the background.
    pub fn expire_keys(&mut self, now: Now) {
        self.keys.wall_ms = now.wall_ms();
        let expired: Vec<_> = self
            .keys
            .values
            .iter()
            .filter(|(_, value)| value.has_expired(now.wall_ms()))
            .map(|(place, _)| place.clone())
            .collect();
        for (db, key) in expired {
            self.remove(now, db, &key, KeyEvent::Expired);
        }
    }

    /// Removes a key, as an accident or a command of another client does. Returns whether it
    /// existed.
    pub fn remove(&mut self, now: Now, db: u32, key: &[u8], event: KeyEvent) -> bool {
        let removed = self.keys.values.remove(&(db, Name::from_slice(key))).is_some();
        if removed {
            self.handle_key_event(now, db, key, event);
        }
        removed
    }

    /// Writes a key as a SET of another client does. Only a SET with an expiry sends an event.
    pub fn write(&mut self, now: Now, db: u32, key: &[u8], value: Value) {
        let expires = value.expires_at_ms.is_some();
        let value_bytes = value.text.as_ref().map(SmallVec::len);
        self.keys.values.insert((db, Name::from_slice(key)), value);
        if expires {
            self.handle_key_event(now, db, key, KeyEvent::ExpirySet { value_bytes });
        }
    }

    /// Reports an event about a key to the node.
    pub fn handle_key_event(&mut self, now: Now, db: u32, key: &[u8], event: KeyEvent) {
        self.node.handle_event(now, &ServerEvent::Key { db, key: KeyBytes::new(key), event });
    }

    /// Empties a database, or all of them.
    pub fn flush(&mut self, now: Now, db: Option<u32>) {
        self.node.handle_event(now, &ServerEvent::Flush(db));
        self.keys.values.retain(|(other, _), _| db.is_some_and(|db| db != *other));
    }

    /// The value under a key.
    pub fn get(&self, db: u32, key: &[u8]) -> Option<&Value> {
        self.keys.values.get(&(db, Name::from_slice(key)))
    }
}

impl Keys {
    /// All keys, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Name, &Value)> {
        self.values.iter().map(|((db, key), value)| (*db, key, value))
    }

    /// Sets the clock by which keys expire.
    ///
    /// In a transaction or a script, the clock of a server stands still.
    pub fn set_wall_ms(&mut self, wall_ms: u64) {
        self.wall_ms = wall_ms;
    }

    /// The value under a key, for changes without an event.
    pub fn get_mut(&mut self, db: u32, key: &[u8]) -> Option<&mut Value> {
        self.values.get_mut(&(db, Name::from_slice(key)))
    }

    /// Writes a key without an event.
    pub fn insert(&mut self, db: u32, key: &[u8], value: Value) {
        self.values.insert((db, Name::from_slice(key)), value);
    }

    /// Removes all keys without an event.
    pub fn clear(&mut self) {
        self.values.clear();
    }

    fn accept_write(&mut self) -> Result<(), WriteRefused> {
        let left = self.writes_left.map(|left| left.checked_sub(1).ok_or(WriteRefused));
        self.writes_left = left.transpose()?;
        Ok(())
    }

    /// Removes a key without an event.
    pub fn take(&mut self, db: u32, key: &[u8]) -> Option<Value> {
        self.values.remove(&(db, Name::from_slice(key)))
    }
}

impl Value {
    /// Creates a string.
    pub fn text(text: &[u8], expires_at_ms: Option<u64>) -> Self {
        Self { text: Some(Name::from_slice(text)), expires_at_ms }
    }

    fn has_expired(&self, wall_ms: u64) -> bool {
        self.expires_at_ms.is_some_and(|at| wall_ms > at)
    }
}

impl Keyspace for Keys {
    type Name = Name;
    type Entry = (u32, Name);

    fn name(&mut self, bytes: &[u8]) -> Name {
        Name::from_slice(bytes)
    }

    fn random_value(&mut self) -> Name {
        self.random_values_made += 1;
        Name::from_slice(format!("unknown-{:024x}", self.random_values_made).as_bytes())
    }

    fn open(&mut self, db: u32, key: &Name, _access: Access) -> (u32, Name) {
        let place = (db, key.clone());
        if self.values.get(&place).is_some_and(|value| value.has_expired(self.wall_ms)) {
            self.values.remove(&place);
            let key = KeyBytes::new(key);
            self.events.push_back(ServerEvent::Key { db, key, event: KeyEvent::Expired });
        }
        place
    }

    fn kind(&self, entry: &(u32, Name)) -> Kind {
        match self.values.get(entry) {
            None => Kind::Missing,
            Some(Value { text: Some(_), .. }) => Kind::Text,
            Some(_) => Kind::Other,
        }
    }

    fn holds(&self, entry: &(u32, Name), value: &[u8]) -> bool {
        self.values.get(entry).is_some_and(|there| there.text.as_deref() == Some(value))
    }

    fn expires_at_ms(&self, entry: &(u32, Name)) -> Option<u64> {
        self.values.get(entry)?.expires_at_ms
    }

    fn set(
        &mut self,
        entry: &mut (u32, Name),
        value: &Name,
        expires_at_ms: u64,
    ) -> Result<(), WriteRefused> {
        if self.accept_write().is_err() {
            self.values.remove(entry);
            return Err(WriteRefused);
        }
        let value = Value { text: Some(value.clone()), expires_at_ms: Some(expires_at_ms) };
        self.values.insert(entry.clone(), value);
        Ok(())
    }

    fn expire(&mut self, entry: &mut (u32, Name), expires_at_ms: u64) -> Result<(), WriteRefused> {
        self.accept_write()?;
        let value = self.values.get_mut(entry).ok_or(WriteRefused)?;
        value.expires_at_ms = Some(expires_at_ms);
        Ok(())
    }

    fn delete(&mut self, entry: &mut (u32, Name)) {
        self.values.remove(entry);
    }

    fn propagate(&mut self, key: &Name, change: Change<'_, Name>) {
        if self.has_replica {
            let is_deleted = matches!(change, Change::Delete | Change::Expired);
            self.propagated.push((key.clone(), is_deleted));
        }
    }

    fn count_change(&mut self) {}

    fn listeners(&mut self) -> Listeners {
        let replicas = self.has_replica;
        Listeners { append_only_file: false, backlog: replicas, replicas, child: false }
    }

    fn invalidate(&mut self, _key: &Name) {}

    fn notify(&mut self, _key: &Name, _change: Change<'_, Name>) {}

    fn publishes_events(&self) -> bool {
        false
    }

    fn may_block(&self) -> bool {
        self.client.is_some()
    }

    fn block(&mut self) -> Option<BlockedId> {
        self.client.take()
    }

    fn wake(&mut self, blocked_id: BlockedId) {
        self.woken.push(blocked_id);
    }

    fn next_event(&mut self) -> Option<ServerEvent> {
        self.events.pop_front()
    }

    fn writes_are_paused(&self) -> bool {
        self.is_paused
    }

    fn memory_is_short(&self) -> bool {
        self.memory_is_short
    }
}
