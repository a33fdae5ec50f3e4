//! Gives the node access to the server's keys and clients.

use quorlock_core::node::{
    Access, BlockedId, Change, KeyEvent, Keyspace, Kind, Listeners, ServerEvent, WriteRefused,
};

use crate::ffi::{Blocked, Ctx, Key, Name};
use crate::server_events;

/// The server's keys and clients, during one command or the jobs of one turn.
pub(crate) struct ServerKeyspace<'a> {
    ctx: &'a Ctx<'a>,
    db: u32,
    activity: Activity,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Activity {
    Command,
    Jobs,
}

impl<'a> ServerKeyspace<'a> {
    pub(crate) fn for_command(ctx: &'a Ctx<'a>) -> Self {
        Self { ctx, db: ctx.db(), activity: Activity::Command }
    }

    pub(crate) fn for_jobs(ctx: &'a Ctx<'a>) -> Self {
        Self { ctx, db: ctx.db(), activity: Activity::Jobs }
    }

    pub(crate) fn db(&self) -> u32 {
        self.db
    }
}

impl<'a> Keyspace for ServerKeyspace<'a> {
    type Name = Name<'a>;
    type Entry = Key<'a>;

    fn name(&mut self, bytes: &[u8]) -> Name<'a> {
        Name::made(bytes)
    }

    fn random_value(&mut self) -> Name<'a> {
        Name::random()
    }

    fn open(&mut self, db: u32, key: &Name<'a>, access: Access) -> Key<'a> {
        if db != self.db {
            self.ctx.select_db(db);
            self.db = db;
        }
        Key::open(self.ctx, key.as_arg(), access)
    }

    fn kind(&self, key: &Key<'a>) -> Kind {
        key.kind()
    }

    fn holds(&self, key: &Key<'a>, value: &[u8]) -> bool {
        key.holds(value)
    }

    fn expires_at_ms(&self, key: &Key<'a>) -> Option<u64> {
        key.expires_at_ms()
    }

    fn set(&mut self, key: &mut Key<'a>, value: &Name<'a>, at_ms: u64) -> Result<(), WriteRefused> {
        key.set(value.as_arg(), at_ms)
    }

    fn expire(&mut self, key: &mut Key<'a>, at_ms: u64) -> Result<(), WriteRefused> {
        key.expire(at_ms)
    }

    fn delete(&mut self, key: &mut Key<'a>) {
        key.delete();
    }

    fn propagate(&mut self, key: &Name<'a>, change: Change<'_, Name<'a>>) {
        let key = key.as_arg();
        match change {
            Change::Set { value, expires_at_ms } => {
                self.ctx.propagate_set(key, value.as_arg(), expires_at_ms);
            }
            Change::Expire { expires_at_ms } => self.ctx.propagate_expire(key, expires_at_ms),
            Change::Delete | Change::Expired => self.ctx.propagate_delete(key),
        }
    }

    fn count_change(&mut self) {
        match self.activity {
            Activity::Command => self.ctx.count_change_of_command(),
            Activity::Jobs => self.ctx.count_change(),
        }
    }

    fn listeners(&mut self) -> Listeners {
        self.ctx.listeners()
    }

    fn invalidate(&mut self, key: &Name<'a>) {
        self.ctx.signal_modified(key.as_arg());
    }

    fn notify(&mut self, key: &Name<'a>, change: Change<'_, Name<'a>>) {
        let key = key.as_arg();
        let generic = |name| {
            server_events::send_own(name, key, || self.ctx.notify_generic(name, key));
        };
        match change {
            Change::Set { .. } => {
                self.ctx.notify_string(c"set", key);
                generic(c"expire");
            }
            Change::Expire { .. } => generic(c"expire"),
            Change::Delete => generic(c"del"),
            Change::Expired => {
                server_events::send_own(c"expired", key, || self.ctx.notify_expired(key));
            }
        }
    }

    fn publishes_events(&self) -> bool {
        self.ctx.publishes_keyspace_events()
    }

    fn may_block(&self) -> bool {
        !self.ctx.denies_blocking()
    }

    fn block(&mut self) -> Option<BlockedId> {
        Blocked::block(self.ctx)
    }

    fn wake(&mut self, blocked_id: BlockedId) {
        Blocked::unblock(blocked_id);
    }

    fn next_event(&mut self) -> Option<ServerEvent> {
        server_events::take_pending()
    }

    fn writes_are_paused(&self) -> bool {
        self.ctx.writes_are_paused()
    }

    fn memory_is_short(&self) -> bool {
        self.ctx.memory_is_short()
    }
}

/// Translates the name of a keyspace event; `None` if it does not concern locks.
pub(crate) fn key_event(name: &[u8]) -> Option<KeyEvent> {
    match name {
        b"expired" => Some(KeyEvent::Expired),
        b"evicted" => Some(KeyEvent::Evicted),
        b"del" | b"rename_from" | b"move_from" => Some(KeyEvent::Removed),
        b"rename_to" | b"move_to" | b"copy_to" | b"restore" => Some(KeyEvent::Replaced),
        // EXPIRE sends this event, and so does a SET with an expiry, which replaces the value.
        // `server_events` adds the length of the value, which tells a mirror from other values.
        b"expire" => Some(KeyEvent::ExpirySet { value_bytes: None }),
        _ => None,
    }
}
