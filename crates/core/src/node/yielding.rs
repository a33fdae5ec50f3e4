//! YIELD: releases a lock if an older waiter wants it.

use super::key_state::KeyState;
use super::mutants::{NodeRule, is_broken};
use super::node::PerKey;
use super::ticket::Rank;
use super::turn::{Budget, COMMAND_UNITS};
use super::{Access, CommandError, Keyspace, Node, Now, Release, Reply};
use crate::Fence;

impl Node {
    /// Releases the keys that the token holds if a waiter is older than the token and wants one of
    /// them, or another key of the same lock. Otherwise the token keeps all of them.
    ///
    /// A holder without a ticket is older than every waiter. A holder of a shared lock yields only
    /// to a waiter for an exclusive one. A revoked lock is yielded like any other, because its
    /// holder may release it early.
    pub(super) fn yield_lock<K: Keyspace>(
        &mut self,
        now: Now,
        yields: &Release<'_, K::Name>,
        keyspace: &mut K,
    ) -> Result<Reply, CommandError> {
        self.refuse_on_replica(now.monotonic)?;
        let mut budget = Budget::units(COMMAND_UNITS);
        let (token, mut held, mut is_wanted) = (yields.token.as_ref(), PerKey::new(), false);
        // The leases of the locks that were examined, each on all keys of its lock.
        let mut examined: PerKey<u32> = PerKey::new();
        for name in yields.keys {
            let key = (self.leases.hash(yields.db, name.as_ref()), yields.db);
            let (state, entry) = self.open_key(now, key, name, Access::Write, keyspace);
            match state {
                KeyState::Held { lease, .. } => {
                    let Some(ticket) = self.ticket_of_holder(now, lease, token) else { continue };
                    if !examined.contains(&lease) {
                        examined.extend(self.leases.ring(lease));
                        let rank = Rank::new(ticket, token);
                        is_wanted |= self.is_wanted(now, lease, &rank, &mut budget);
                    }
                    held.push(name);
                }
                KeyState::Foreign if keyspace.holds(&entry, token) => held.push(name),
                KeyState::WrongType => return Err(CommandError::WrongType),
                KeyState::Foreign | KeyState::Free | KeyState::Ended { .. } => {}
            }
        }
        if held.is_empty() && !is_broken(NodeRule::YieldClaimsToHold) {
            return Ok(Reply::NotHeld);
        }
        if is_wanted {
            for name in held {
                self.release_key(now, yields.db, name, token, &mut budget, keyspace)?;
            }
        }
        Ok(Reply::Yielded(is_wanted))
    }

    /// The ticket of this token; `None` if it does not hold the lease.
    fn ticket_of_holder(&self, now: Now, lease: u32, token: &[u8]) -> Option<Fence> {
        let held = self.leases.get(lease);
        if held.is_held_by(token) {
            return Some(held.ticket);
        }
        let holder = self.live_holder(now, lease, token)?;
        Some(self.leases.holders().get(holder).ticket())
    }

    /// Whether a waiter is older than this holder and wants a key of its lock. From now on that key
    /// is kept for the waiter, which may lack other keys or other holders may have to leave first.
    fn is_wanted(&mut self, now: Now, lease: u32, rank: &Rank, budget: &mut Budget) -> bool {
        if rank.ticket == Fence::ZERO {
            return false;
        }
        let is_shared = self.leases.group(lease).is_some();
        let keys: PerKey<u32> = self.leases.ring(lease).collect();
        keys.into_iter().any(|lease| {
            let Some(queue) = self.queue_of(lease) else { return false };
            let older = self.queues.next_older(queue, rank, is_shared, now.monotonic, budget);
            if let Some(older) = older {
                self.queues.keep_keys(older);
            }
            older.is_some()
        })
    }
}
