//! REVOKE: an operator ends the holder's right to extend a lock.

use super::key_state::KeyState;
use super::mutants::{NodeRule, is_broken};
use super::node::PerKey;
use super::{Access, Change, CommandError, Keyspace, Kind, Monotonic, Node, Now, Reply, Revoke};

struct LockedKey<K: Keyspace> {
    name: K::Name,
    entry: K::Entry,
    lease: u32,
    mirrored: bool,
}

impl Node {
    /// Revokes the lock on a key, and with it the lock's other keys.
    ///
    /// From now on no client can extend the lock, or join it if it is shared. Unless the operator
    /// ends the lock at once, the keys stay locked until the deadline, because the holder relies on
    /// the lock until then. The mirrors hold a value that no client knows, so that the holder
    /// cannot adopt the lock after a crash of the server.
    pub(super) fn revoke<K: Keyspace>(
        &mut self,
        now: Now,
        revoke: &Revoke<'_, K::Name>,
        keyspace: &mut K,
    ) -> Result<Reply, CommandError> {
        self.refuse_on_replica(now.monotonic)?;
        let &Revoke { db, key, ends_now } = revoke;
        let hash = self.leases.hash(db, key.as_ref());
        let (state, entry) = self.open_key(now, (hash, db), key, Access::Write, keyspace);
        match state {
            KeyState::Free | KeyState::Ended { .. } => return Ok(Reply::Revoked(false)),
            KeyState::WrongType => return Err(CommandError::WrongType),
            KeyState::Foreign => self.revoke_foreign(revoke, hash, entry, keyspace)?,
            KeyState::Held { lease, .. } => {
                drop(entry);
                let Some(keys) = self.open_keys_of(now, lease, keyspace) else {
                    return Ok(Reply::Revoked(false));
                };
                if !self.leases.get(lease).is_revoked() {
                    let group = self.leases.group(lease);
                    let holders = group.map(|group| u64::from(self.leases.holders().count(group)));
                    self.stats.revoked += holders.unwrap_or(keys.len() as u64);
                }
                if ends_now || is_broken(NodeRule::RevokeFreesAtOnce) {
                    self.end_lock(lease, keys, keyspace);
                } else if !self.leases.get(lease).is_revoked() {
                    self.mark_revoked(now, lease, keys, keyspace);
                }
            }
        }
        Ok(Reply::Revoked(true))
    }

    /// Revokes a foreign string, so that no client can extend it.
    fn revoke_foreign<K: Keyspace>(
        &mut self,
        revoke: &Revoke<'_, K::Name>,
        hash: u64,
        mut entry: K::Entry,
        keyspace: &mut K,
    ) -> Result<(), CommandError> {
        let &Revoke { db, key, ends_now } = revoke;
        let expires_at_ms = keyspace.expires_at_ms(&entry).ok_or(CommandError::NoExpiry)?;
        let value = &keyspace.random_value();
        let written = if ends_now {
            keyspace.delete(&mut entry);
            Ok(Change::Delete)
        } else {
            let set = Change::Set { value, expires_at_ms };
            keyspace.set(&mut entry, value, expires_at_ms).map(|()| set)
        };
        // A string that the server could not write is gone.
        self.publish(keyspace, key, written.unwrap_or(Change::Delete));
        if keyspace.kind(&entry) == Kind::Missing
            && let Some(queue) = self.queues.find(hash, db, key.as_ref())
        {
            self.queues.forget_foreign(queue);
            self.queues.check_by(queue, Monotonic::default());
        }
        written.map_err(|_| CommandError::NotWritten)?;
        self.stats.revoked += 1;
        Ok(())
    }

    /// Opens all keys of a lock. Returns `None` if a key was overwritten: that has ended the lock.
    fn open_keys_of<K: Keyspace>(
        &mut self,
        now: Now,
        first: u32,
        keyspace: &mut K,
    ) -> Option<PerKey<LockedKey<K>>> {
        let db = self.leases.get(first).db;
        let leases = self.leases.ring(first).map(|lease| self.leases.get(lease));
        let names: PerKey<K::Name> = leases.map(|lease| keyspace.name(&lease.key)).collect();
        let entries = self.open_all(now, db, &names, keyspace);
        let mut keys = PerKey::new();
        for (name, entry) in names.into_iter().zip(entries) {
            let hash = self.leases.hash(db, name.as_ref());
            let state = self.key_state(now.monotonic, (hash, db, name.as_ref()), keyspace, &entry);
            let KeyState::Held { lease, mirrored } = state else { return None };
            keys.push(LockedKey { name, entry, lease, mirrored });
        }
        Some(keys)
    }

    fn mark_revoked<K: Keyspace>(
        &mut self,
        now: Now,
        first: u32,
        mut keys: PerKey<LockedKey<K>>,
        keyspace: &mut K,
    ) {
        let value = &if is_broken(NodeRule::RevokeKeepsToken) {
            keyspace.name(&self.leases.get(first).token)
        } else {
            keyspace.random_value()
        };
        self.leases.change_all(first, |lease| lease.revoke(value.as_ref()));
        let left_us = self.leases.get(first).deadline.us_since(now.monotonic);
        let expires_at_ms = now.wall_ms_after(left_us);
        let mut changes: PerKey<Option<Change<'_, K::Name>>> = PerKey::new();
        for LockedKey { entry, lease, mirrored, .. } in &mut keys {
            // The mirror was lost before. The node does not overwrite another value under the key.
            let is_taken = !*mirrored && keyspace.kind(entry) != Kind::Missing;
            changes.push((!is_taken).then(|| {
                self.write_mirror(now, *lease, entry, Some(value), expires_at_ms, keyspace)
                    // The token must not be readable from the append-only file.
                    .unwrap_or(Change::Delete)
            }));
        }
        for (key, change) in keys.iter().zip(changes) {
            self.publish_or_invalidate(keyspace, &key.name, change);
        }
    }

    fn end_lock<K: Keyspace>(
        &mut self,
        first: u32,
        mut keys: PerKey<LockedKey<K>>,
        keyspace: &mut K,
    ) {
        self.end_by_operator(first);
        for key in keys.iter_mut().filter(|key| key.mirrored) {
            keyspace.delete(&mut key.entry);
        }
        for key in keys.iter().filter(|key| key.mirrored) {
            self.publish(keyspace, &key.name, Change::Delete);
        }
    }
}
