//! EXTEND of one key or of several, and the adoption of foreign strings.

use super::key_state::KeyState;
use super::leases::{MirrorState, NewLock};
use super::mutants::{NodeRule, is_broken};
use super::node::PerKey;
use super::{
    Acquire, Change, CommandError, Extend, FenceError, KEY_BYTES_MAX, Keyspace, Kind, Mode, Node,
    Now, Reply, Wants,
};
use crate::Fence;

/// How soon to retry a mirror that the server refused to write, in microseconds.
const RETRY_WRITE_US: u64 = 100_000;

impl Node {
    /// Moves the deadline of a lock forward, never back, while the token holds all of its keys.
    /// Adopts foreign strings that hold the token and have an expiry: they become leases, unless
    /// the key is too long. Turns an exclusive lock into a shared one on request. A shared lock
    /// stays shared.
    pub(super) fn extend<K: Keyspace>(
        &mut self,
        now: Now,
        extend: &Extend<'_, K::Name>,
        keyspace: &mut K,
    ) -> Result<Reply, CommandError> {
        self.refuse_on_replica(now.monotonic)?;
        let &Extend { db, keys, token, .. } = extend;
        let mut entries = self.open_all(now, db, keys, keyspace);
        let mut hashes: PerKey<u64> = PerKey::new();
        // The leases of a lock's keys form a ring in the order of the keys.
        let (mut first, mut last, mut in_order) = (None, None, true);
        let (mut foreign, mut shared) = (false, None);
        for (key, entry) in keys.iter().zip(&entries) {
            let key = key.as_ref();
            let hash = self.leases.hash(db, key);
            hashes.push(hash);
            match self.key_state(now.monotonic, (hash, db, key), keyspace, entry) {
                KeyState::Held { lease, .. }
                    if self.leases.get(lease).is_held_by(token.as_ref()) =>
                {
                    in_order &= last.is_none_or(|last| self.leases.next_key(last) == lease);
                    first = first.or(Some(lease));
                    last = Some(lease);
                }
                KeyState::Held { lease, .. }
                    if let Some(holder) = self.live_holder(now, lease, token.as_ref()) =>
                {
                    shared = Some((lease, holder));
                }
                // A string that never expires is data, even if its value is the token.
                KeyState::Foreign
                    if key.len() <= KEY_BYTES_MAX
                        && keyspace.expires_at_ms(entry).is_some()
                        && keyspace.holds(entry, token.as_ref()) =>
                {
                    foreign = true;
                }
                KeyState::WrongType => return Err(CommandError::WrongType),
                _ if is_broken(NodeRule::FenceOfAnyToken)
                    && let Some(fence) = extend.fence =>
                {
                    self.fences.raise(hash, fence);
                    return Ok(Reply::Extended(fence));
                }
                KeyState::Free | KeyState::Ended { .. } if is_broken(NodeRule::ExtendRevives) => {
                    drop(entries);
                    return self.revive(now, extend, keyspace);
                }
                _ => return Ok(Reply::NotHeld),
            }
        }
        let wants_shared = extend.mode == Mode::Shared;
        if wants_shared && keys.len() > 1 {
            return Err(CommandError::SeveralShared);
        }
        if let Some(holder) = shared {
            let [entry] = &mut entries[..] else { return Err(CommandError::OtherKeys) };
            return self.extend_holder(now, holder, extend, entry, keyspace);
        }
        let extended = match (first, last) {
            (Some(first), Some(last))
                if !foreign && in_order && self.leases.next_key(last) == first =>
            {
                self.extend_lease(now, first, &hashes, extend, &mut entries, keyspace)
            }
            (None, None) => self.adopt(now, &hashes, extend, &mut entries, keyspace),
            _ => Err(CommandError::OtherKeys),
        }?;
        if wants_shared
            && let (Some(entry), [hash]) = (entries.pop(), &hashes[..])
            && let Some(lease) = self.leases.find(*hash, db, keys[0].as_ref())
        {
            self.share(now, lease, extend, entry, keyspace);
        }
        Ok(extended)
    }

    fn extend_lease<K: Keyspace>(
        &mut self,
        now: Now,
        first: u32,
        hashes: &[u64],
        extend: &Extend<'_, K::Name>,
        entries: &mut [K::Entry],
        keyspace: &mut K,
    ) -> Result<Reply, CommandError> {
        if self.leases.get(first).is_revoked() && !is_broken(NodeRule::ExtendsRevoked) {
            let left_ms = self.leases.get(first).deadline.ms_since(now.monotonic);
            return Err(CommandError::Revoked { left_ms });
        }
        let held = self.leases.get(first);
        let (fence_before, old) = (held.fence, held.deadline);
        let changes_token = extend.new_token.is_some_and(|token| *token.as_ref() != held.token[..]);
        let fence = self.extended_fence(now, hashes, fence_before, extend, changes_token)?;
        if fence != fence_before {
            self.leases.change_all(first, |lease| lease.fence = fence);
        }
        let new = now.monotonic.plus_us(extend.ttl.us());
        let deadline = if is_broken(NodeRule::RepeatShortens) { new } else { old.max(new) };
        if deadline != old {
            self.leases.extend(first, deadline);
        }
        if let Some(token) = extend.new_token {
            let token = super::Token::from_slice(token.as_ref());
            self.leases.change_all(first, |lease| lease.token.clone_from(&token));
        }
        self.stats.extends += extend.keys.len() as u64;

        let expires_at_ms = now.wall_ms_after(deadline.us_since(now.monotonic));
        let value = extend.new_token.unwrap_or(extend.token);
        let mut lease = first;
        let mut changes: PerKey<Option<Change<'_, K::Name>>> = PerKey::new();
        for entry in entries {
            let is_missing = keyspace.kind(entry) == Kind::Missing;
            let is_intact = !is_missing && self.leases.get(lease).mirror() != MirrorState::Lost;
            let value = (is_missing || is_intact && extend.new_token.is_some()).then_some(value);
            let needs_write = value.is_some() || is_intact && deadline != old;
            changes.push(if needs_write {
                self.write_mirror(now, lease, entry, value, expires_at_ms, keyspace)
            } else {
                None
            });
            lease = self.leases.next_key(lease);
        }
        for (key, change) in extend.keys.iter().zip(changes) {
            if change.is_some() || fence != fence_before {
                self.publish_or_invalidate(keyspace, key, change);
            }
        }
        Ok(Reply::Extended(fence))
    }

    /// Writes a mirror, or only its expiry if there is no `value`. Returns the change.
    ///
    /// If the server refuses, plans another try and returns `None`: the lease decides, so the lock
    /// is held even without its mirror.
    pub(super) fn write_mirror<'n, K: Keyspace>(
        &mut self,
        now: Now,
        lease: u32,
        entry: &mut K::Entry,
        value: Option<&'n K::Name>,
        expires_at_ms: u64,
        keyspace: &mut K,
    ) -> Option<Change<'n, K::Name>> {
        let written = match value {
            Some(value) => keyspace.set(entry, value, expires_at_ms),
            None => keyspace.expire(entry, expires_at_ms),
        };
        if written.is_err() {
            let retry_at = now.monotonic.plus_us(RETRY_WRITE_US);
            self.leases.set_mirror(lease, MirrorState::Lost, retry_at);
            return None;
        }
        self.leases.regain_mirror(lease);
        Some(match value {
            Some(value) => Change::Set { value, expires_at_ms },
            None => Change::Expire { expires_at_ms },
        })
    }

    /// The fence of an extended lock: the one that the client proposes, or a larger one if the
    /// token changes.
    ///
    /// # Errors
    /// If the proposal is below the current fence, or too far ahead of the clock.
    pub(super) fn extended_fence<N>(
        &mut self,
        now: Now,
        hashes: &[u64],
        current: Fence,
        extend: &Extend<'_, N>,
        changes_token: bool,
    ) -> Result<Fence, CommandError> {
        if let Some(fence) = extend.fence {
            let largest = self.fences.ceiling(now.wall_us);
            if fence < current && !is_broken(NodeRule::FenceDecreases) {
                return Err(CommandError::BadFence(FenceError::Below { current }));
            }
            if fence > current && fence > largest {
                return Err(CommandError::BadFence(FenceError::TooFarAhead { largest }));
            }
            for &hash in hashes {
                self.fences.raise(hash, fence);
            }
        }
        if changes_token {
            return Ok(self.fences.next(hashes, extend.fence, now.wall_us));
        }
        Ok(extend.fence.unwrap_or(current))
    }

    /// Acquires a lock that has ended, which only a mutant does.
    fn revive<K: Keyspace>(
        &mut self,
        now: Now,
        extend: &Extend<'_, K::Name>,
        keyspace: &mut K,
    ) -> Result<Reply, CommandError> {
        let &Extend { db, keys, token, ttl, mode, .. } = extend;
        let (wants, owner, fence, wait_ms) = (Wants::All, None, None, 0);
        let acquire = Acquire { db, keys, wants, token, ttl, mode, owner, fence, wait_ms };
        Ok(match self.acquire(now, &acquire, keyspace)? {
            Reply::Granted(fence) => Reply::Extended(fence),
            _ => Reply::NotHeld,
        })
    }

    /// Adopts foreign strings: turns them into the leases of one lock, with a new fence.
    fn adopt<K: Keyspace>(
        &mut self,
        now: Now,
        hashes: &[u64],
        extend: &Extend<'_, K::Name>,
        entries: &mut [K::Entry],
        keyspace: &mut K,
    ) -> Result<Reply, CommandError> {
        let largest = self.fences.ceiling(now.wall_us);
        if extend.fence.is_some_and(|fence| fence > largest) {
            return Err(CommandError::BadFence(FenceError::TooFarAhead { largest }));
        }
        let last_expiry_ms = entries.iter().filter_map(|entry| keyspace.expires_at_ms(entry)).max();
        let ends_at_us = last_expiry_ms.unwrap_or_default().saturating_mul(1000);
        let left_us = ends_at_us.saturating_sub(now.wall_us);
        let left_us = left_us.max(extend.ttl.us()).min(self.max_ttl.us());
        let fence = self.fences.next(hashes, extend.fence, now.wall_us);
        let value = extend.new_token.unwrap_or(extend.token);
        let deadline = now.monotonic.plus_us(left_us);
        let (db, granted, ticket) = (extend.db, now.monotonic, Fence::ZERO);
        let token = value.as_ref();
        let new = NewLock { db, token, owner: None, fence, ticket, granted, deadline };
        let mut lease = self.insert(hashes, extend.keys.iter().map(AsRef::as_ref), &new);
        let expires_at_ms = now.wall_ms_after(left_us);
        let mut changes: PerKey<Option<Change<'_, K::Name>>> = PerKey::new();
        for entry in entries {
            let has_expiry = keyspace.expires_at_ms(entry) == Some(expires_at_ms);
            changes.push(if has_expiry && extend.new_token.is_none() {
                None
            } else {
                self.write_mirror(now, lease, entry, extend.new_token, expires_at_ms, keyspace)
            });
            lease = self.leases.next_key(lease);
        }
        for (key, change) in extend.keys.iter().zip(changes) {
            self.publish_or_invalidate(keyspace, key, change);
        }
        Ok(Reply::Extended(fence))
    }
}
