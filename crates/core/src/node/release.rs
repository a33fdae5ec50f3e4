//! RELEASE of one key or of several.

use super::key_state::KeyState;
use super::turn::Budget;
use super::{Access, Change, CommandError, Keyspace, Node, Now, Release, Reply};

impl Node {
    /// Releases the keys that the token holds, and hands each over to its next waiter at once. The
    /// budget is for the waiters that handovers consider.
    /// On a key that the token does not hold, removes the token's waiter instead.
    pub(super) fn release<K: Keyspace>(
        &mut self,
        now: Now,
        release: &Release<'_, K::Name>,
        budget: &mut Budget,
        keyspace: &mut K,
    ) -> Result<Reply, CommandError> {
        self.refuse_on_replica(now.monotonic)?;
        let mut any = false;
        let mut failed = None;
        for key in release.keys {
            let token = release.token.as_ref();
            match self.release_key(now, release.db, key, token, budget, keyspace) {
                Ok(was_held) => any |= was_held,
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            // A key of another type does not prevent the release of the other keys.
            Some(error) if !any => Err(error),
            _ => Ok(Reply::Released(any)),
        }
    }

    /// Releases one key. Returns whether the token held it.
    pub(super) fn release_key<K: Keyspace>(
        &mut self,
        now: Now,
        db: u32,
        name: &K::Name,
        token: &[u8],
        budget: &mut Budget,
        keyspace: &mut K,
    ) -> Result<bool, CommandError> {
        let key = name.as_ref();
        let hash = self.leases.hash(db, key);
        let (state, mut entry) = self.open_key(now, (hash, db), name, Access::Write, keyspace);
        let (was_held, delete) = match state {
            KeyState::Held { lease, mirrored } if self.leases.get(lease).is_held_by(token) => {
                self.stats.releases += self.end(lease);
                (true, mirrored)
            }
            KeyState::Held { lease, mirrored }
                if let Some(holder) = self.live_holder(now, lease, token) =>
            {
                if !self.release_holder(now, (lease, holder), name, &mut entry, keyspace) {
                    return Ok(true);
                }
                (true, mirrored)
            }
            KeyState::Ended { lease, mirrored } => {
                // Deletes the token's mirror too, so that it is never adopted. A job deletes the
                // mirror of another token.
                let has_token = self.leases.get(lease).token[..] == *token;
                if has_token || !mirrored {
                    self.end_by_deadline(lease);
                }
                (false, has_token && mirrored)
            }
            KeyState::Foreign if keyspace.holds(&entry, token) => {
                self.stats.releases += 1;
                (true, true)
            }
            KeyState::WrongType => return Err(CommandError::WrongType),
            KeyState::Held { .. } | KeyState::Foreign | KeyState::Free => (false, false),
        };
        if delete {
            keyspace.delete(&mut entry);
        }
        // A handover is published as one SET, without a DEL before it.
        let handed_over = self.queues.find(hash, db, key).is_some_and(|queue| {
            if !was_held {
                // The token's waiter leaves before the handover. Otherwise the handover could grant
                // the key to the token that releases it.
                let waiters = self.queues.len(queue);
                if let Some(place) = self.queues.waiter_with(queue, token) {
                    self.spend_on_leaving(place, budget);
                    self.queues.dismiss(place);
                    if waiters == 1 {
                        return false;
                    }
                }
            }
            self.hand_over(now, queue, Some(entry), budget, keyspace)
        });
        if delete && !handed_over {
            self.publish(keyspace, name, Change::Delete);
        }
        Ok(was_held)
    }
}
