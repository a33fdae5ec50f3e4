//! Shared locks: how holders join, leave and extend.
//!
//! Accidents, overwrites and revocations apply to the lease of the key, as to any lease.

use super::acquire::Terms;
use super::key_state::KeyState;
use super::leases::MirrorState;
use super::mutants::{NodeRule, is_broken};
use super::queues::QueueScan;
use super::turn::{Budget, COMMAND_UNITS};
use super::{Change, CommandError, Extend, Keyspace, Kind, Mode, Node, Now, Reply, Token};
use crate::Fence;

impl Node {
    /// The lease of a shared lock that another client may join.
    pub(super) fn shared_lease(&self, state: KeyState) -> Option<u32> {
        let KeyState::Held { lease, .. } = state else { return None };
        let held = self.leases.get(lease);
        let is_revoked = held.is_revoked() && !is_broken(NodeRule::RevokedAdmitsHolders);
        (held.mode() == Mode::Shared && !is_revoked).then_some(lease)
    }

    /// The holder of a shared lock with this token, unless its deadline has passed.
    pub(super) fn live_holder(&self, now: Now, lease: u32, token: &[u8]) -> Option<u32> {
        let group = self.leases.group(lease)?;
        let holders = self.leases.holders();
        holders.find(group, token).filter(|&holder| now.monotonic < holders.get(holder).deadline())
    }

    /// Removes the holder with this token if its deadline has passed. Returns whether the token
    /// still shares the lock.
    pub(super) fn still_shares(&mut self, now: Now, lease: u32, token: &[u8]) -> bool {
        if self.live_holder(now, lease, token).is_some() {
            return true;
        }
        let holders = self.leases.holders();
        if let Some(ended) = self.leases.group(lease).and_then(|group| holders.find(group, token)) {
            self.stats.ended_by_deadline += 1;
            self.leases.leave(lease, ended);
        }
        false
    }

    /// Adds a holder to a shared lock, and returns the holder's fence.
    pub(super) fn join<K: Keyspace>(
        &mut self,
        now: Now,
        lease: u32,
        (name, entry): (&K::Name, &mut K::Entry),
        terms: &Terms<'_, K::Name>,
        keyspace: &mut K,
    ) -> Fence {
        let group = self.leases.group(lease).expect("a shared lock has holders");
        let floor = self.leases.holders().floor(group);
        let held = self.leases.get(lease);
        let (db, hash, old_deadline) = (held.db, held.hash(), held.deadline);
        let fence = self.fences.next_shared(hash, terms.ticket, floor, now.wall_us);
        self.leases.join(lease, &terms.lock(now, db, fence));
        self.stats.grants += 1;
        self.follow_last_deadline(now, lease, old_deadline, name, entry, keyspace);
        fence
    }

    /// Moves the expiry of a shared lock's mirror to the latest deadline of its holders.
    /// Invalidates the key even if the expiry stays, because INSPECT now shows other holders.
    fn follow_last_deadline<K: Keyspace>(
        &mut self,
        now: Now,
        lease: u32,
        old_deadline: super::Monotonic,
        name: &K::Name,
        entry: &mut K::Entry,
        keyspace: &mut K,
    ) {
        let held = self.leases.get(lease);
        let kind = keyspace.kind(entry);
        let needs_write = match held.mirror() {
            _ if kind == Kind::Missing => true,
            // The mirror was lost before. The node does not change another value under the key.
            MirrorState::Lost => false,
            _ => held.deadline != old_deadline,
        };
        if !needs_write {
            return keyspace.invalidate(name);
        }
        let value = keyspace.name(held.mirror_value());
        let expires_at_ms = now.wall_ms_after(held.deadline.us_since(now.monotonic));
        // The key already holds the value, unless it is missing.
        let missing = (kind == Kind::Missing).then_some(&value);
        if self.write_mirror(now, lease, entry, missing, expires_at_ms, keyspace).is_some() {
            self.publish(keyspace, name, Change::Set { value: &value, expires_at_ms });
        }
    }

    /// The waiter at the head of a queue; `NotFound` if it wants an exclusive lock, or if the key
    /// is kept for an older one.
    pub(super) fn next_shared_waiter(
        &mut self,
        now: Now,
        queue: u32,
        budget: &mut Budget,
    ) -> QueueScan {
        match self.queues.first_single(queue, now.monotonic, budget) {
            QueueScan::Found(place) if self.queues.waiter(place).mode == Mode::Exclusive => {
                QueueScan::NotFound
            }
            QueueScan::Found(place) => self.queues.unless_kept(queue, place, now.monotonic, budget),
            other => other,
        }
    }

    /// Removes a holder that releases a shared lock. Returns whether the lease ended with it.
    pub(super) fn release_holder<K: Keyspace>(
        &mut self,
        now: Now,
        (lease, holder): (u32, u32),
        name: &K::Name,
        entry: &mut K::Entry,
        keyspace: &mut K,
    ) -> bool {
        self.stats.releases += 1;
        let old = self.leases.get(lease).deadline;
        if self.leases.leave(lease, holder) {
            self.end(lease);
            return true;
        }
        let deadline = self.leases.get(lease).deadline;
        self.check_key_of_lease_by(lease, deadline);
        self.follow_last_deadline(now, lease, old, name, entry, keyspace);
        false
    }

    /// Moves the deadline of one holder forward. The lock stays shared.
    pub(super) fn extend_holder<K: Keyspace>(
        &mut self,
        now: Now,
        (lease, holder): (u32, u32),
        extend: &Extend<'_, K::Name>,
        entry: &mut K::Entry,
        keyspace: &mut K,
    ) -> Result<Reply, CommandError> {
        let old = self.leases.holders().get(holder).deadline();
        if self.leases.get(lease).is_revoked() {
            return Err(CommandError::Revoked { left_ms: old.ms_since(now.monotonic) });
        }
        let token = extend.new_token.map(|token| Token::from_slice(token.as_ref()));
        let token = token.filter(|token| *token != self.leases.holders().get(holder).token);
        if token.as_ref().is_some_and(|token| self.still_shares(now, lease, token)) {
            return Err(CommandError::TokenInUse);
        }
        let (hash, current) =
            (self.leases.get(lease).hash(), self.leases.holders().get(holder).fence);
        let fence = self.extended_fence(now, &[hash], current, extend, token.is_some())?;
        self.leases.holders_mut().set_fence(holder, fence);
        if let Some(token) = token {
            self.leases.holders_mut().change_token(holder, token);
        }
        let old_last = self.leases.get(lease).deadline;
        let deadline = old.max(now.monotonic.plus_us(extend.ttl.us()));
        if deadline != old {
            self.leases.extend_holder(lease, holder, deadline);
        }
        self.stats.extends += 1;
        let name = &extend.keys[0];
        self.follow_last_deadline(now, lease, old_last, name, entry, keyspace);
        Ok(Reply::Extended(fence))
    }

    /// Turns an exclusive lock that its holder has just extended into a shared one.
    /// Grants the key to its shared waiters in the same step, so that no newcomer overtakes them.
    pub(super) fn share<K: Keyspace>(
        &mut self,
        now: Now,
        lease: u32,
        extend: &Extend<'_, K::Name>,
        mut entry: K::Entry,
        keyspace: &mut K,
    ) {
        let value = keyspace.random_value();
        let held = self.leases.get(lease);
        let (db, hash, is_lost) = (held.db, held.hash(), held.mirror() == MirrorState::Lost);
        let expires_at_ms = now.wall_ms_after(held.deadline.us_since(now.monotonic));
        // Holders that join later must get fences above the fence of the exclusive lock.
        let floor = self.fences.floor(hash);
        self.leases.share(lease, value.as_ref(), floor);
        let name = &extend.keys[0];
        let is_taken = is_lost && keyspace.kind(&entry) != Kind::Missing;
        let change = (!is_taken).then(|| {
            self.write_mirror(now, lease, &mut entry, Some(&value), expires_at_ms, keyspace)
                // The token must not be readable from the append-only file.
                .unwrap_or(Change::Delete)
        });
        self.publish_or_invalidate(keyspace, name, change);
        if let Some(queue) = self.queues.find(hash, db, name.as_ref())
            && !is_broken(NodeRule::ShareForgetsQueue)
        {
            let mut budget = Budget::units(COMMAND_UNITS);
            self.hand_over(now, queue, Some(entry), &mut budget, keyspace);
        }
    }
}
