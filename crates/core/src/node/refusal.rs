//! What a refusal tells a client that gave its ticket.

use super::node::PerKey;
use super::queues::Lack;
use super::ticket::Rank;
use super::turn::{Budget, units};
use super::{CommandError, Node, Now, Wants};
use crate::Fence;

/// How many holders that have ended, or waiters that have timed out, a refusal passes over before
/// a job removes them.
const ENDED_PASSED_MAX: usize = 16;

/// The largest number that a node knows for a key, and whether an older client comes first there.
struct Standing {
    largest: Fence,
    has_older: bool,
}

impl Node {
    /// The refusal of a client with this rank, for these keys and what it lacks on each.
    ///
    /// A client that wants all of the keys comes after an older client of any of them. One that
    /// wants any of them comes after older clients only if each key has one.
    pub(super) fn held<'k>(
        &self,
        now: Now,
        db: u32,
        keys: impl Iterator<Item = (u64, &'k [u8], Option<Lack>)>,
        rank: &Rank,
        wants: Wants,
    ) -> CommandError {
        let standings: PerKey<Standing> = keys
            .map(|(hash, key, lack)| {
                let is_foreign = matches!(lack, Some(Lack::Foreign(_)));
                self.standing(now, (hash, db, key), is_foreign, rank)
            })
            .collect();
        let mut older = standings.iter().map(|standing| standing.has_older);
        let is_older = match wants {
            Wants::All => older.any(|has_older| has_older),
            Wants::Any => older.all(|has_older| has_older),
        };
        let largest = standings.iter().map(|standing| standing.largest).max().unwrap_or_default();
        // The client answers with a larger ticket, which the node must accept.
        let number = largest.min(self.fences.ticket_ceiling(now.wall_us));
        CommandError::Held { number, is_older }
    }

    /// The refusal of a waiter whose time is over; `None` for a client without a ticket.
    pub(super) fn held_after_wait(&self, now: Now, place: u32) -> Option<CommandError> {
        let waiter = self.queues.waiter(place);
        waiter.proposed()?;
        let queues = self.queues.queues_of(place);
        let (db, ..) = self.queues.key(queues[0]);
        let keys = queues.iter().map(|&queue| {
            let (_, hash, key) = self.queues.key(queue);
            (hash, &key[..], self.queues.foreign_lack(queue, now.monotonic))
        });
        Some(self.held(now, db, keys, &waiter.rank, waiter.wants))
    }

    fn standing(
        &self,
        now: Now,
        (hash, db, key): (u64, u32, &[u8]),
        is_foreign: bool,
        rank: &Rank,
    ) -> Standing {
        let mut standing = Standing { largest: Fence::ZERO, has_older: is_foreign };
        if let Some(slot) = self.leases.find(hash, db, key) {
            let lease = self.leases.get(slot);
            if self.leases.is_live(lease, now.monotonic) {
                standing.add_holders(self, now, slot, rank);
            }
        }
        if let Some(queue) = self.queues.find(hash, db, key) {
            standing.largest = standing.largest.max(self.queues.largest_other(queue, &rank.token));
            let mut budget = Budget::units(units(ENDED_PASSED_MAX));
            let older = self.queues.next_older(queue, rank, false, now.monotonic, &mut budget);
            standing.has_older |= older.is_some();
        }
        standing
    }
}

impl Standing {
    fn add_holders(&mut self, node: &Node, now: Now, slot: u32, rank: &Rank) {
        let lease = node.leases.get(slot);
        let Some(group) = node.leases.group(slot) else {
            self.largest = lease.fence.max(lease.ticket);
            self.has_older |= rank.is_younger_than_holder(lease.ticket, &lease.token);
            return;
        };
        let holders = node.leases.holders();
        self.largest = holders.highest_fence(group).max(holders.largest_ticket(group));
        let mut first = holders.up_to_ticket(group, rank.ticket).take(ENDED_PASSED_MAX);
        self.has_older |= first.any(|holder| {
            now.monotonic < holder.deadline()
                && rank.is_younger_than_holder(holder.ticket(), &holder.token)
        });
    }
}
