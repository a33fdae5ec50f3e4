//! The holders of shared locks.

use std::collections::BTreeSet;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;

use super::chunks::Chunks;
use super::index::HashIndex;
use super::leases::NewLock;
use super::{Monotonic, Token};
use crate::Fence;

#[derive(Clone, Debug)]
pub(super) struct SharedHolder {
    pub(super) token: Token,
    pub(super) owner: Option<Box<[u8]>>,
    pub(super) fence: Fence,
    ticket: Fence,
    pub(super) granted: Monotonic,
    deadline: Monotonic,
    group: u32,
    /// The previous and the next holder of the same key.
    previous: u32,
    next: u32,
}

/// All holders of one key, in the order of their grants.
#[derive(Clone, Debug)]
struct Group {
    first: u32,
    last: u32,
    len: u32,
    /// The lowest fence of a holder that joins: above the fences of all earlier exclusive locks.
    floor: Fence,
    /// The largest fence of a holder so far.
    highest: Fence,
}

/// The holders of all shared locks.
///
/// The lease of a shared lock stands for all its holders. No client knows its token, which is the
/// value of the mirror until the lock is revoked. Its deadline is the latest deadline of a holder.
#[derive(Clone, Debug)]
pub(super) struct Holders {
    hasher: FixedState,
    items: Chunks<SharedHolder>,
    groups: Chunks<Group>,
    /// Finds a holder by its group and token.
    by_token: HashIndex,
    /// The group, the deadline and the slot of each holder.
    deadlines: BTreeSet<(u32, Monotonic, u32)>,
    /// The group, the ticket and the slot of each holder.
    tickets: BTreeSet<(u32, Fence, u32)>,
    /// Groups whose locks have ended, and whose holders are not removed yet.
    ended: Vec<u32>,
    /// The number of holders in groups that have not ended.
    live: usize,
}

/// Means no holder, or no group.
pub(super) const NONE: u32 = u32::MAX;

impl SharedHolder {
    pub(super) fn deadline(&self) -> Monotonic {
        self.deadline
    }

    pub(super) fn ticket(&self) -> Fence {
        self.ticket
    }
}

impl Holders {
    pub(super) fn new(hash_seed: u64, shards: usize) -> Self {
        Self {
            hasher: FixedState::with_seed(hash_seed),
            items: Chunks::default(),
            groups: Chunks::default(),
            by_token: HashIndex::new(shards),
            deadlines: BTreeSet::new(),
            tickets: BTreeSet::new(),
            ended: Vec::new(),
            live: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.live
    }

    #[cfg(feature = "memory")]
    pub(super) fn deadlines(&self) -> impl Iterator<Item = Monotonic> {
        self.deadlines.iter().map(|(_, at, _)| *at)
    }

    /// The number of shared locks.
    pub(super) fn groups(&self) -> usize {
        self.groups.len() - self.ended.len()
    }

    /// Opens a group for the first holder of a key.
    pub(super) fn open(&mut self, floor: Fence) -> u32 {
        self.groups.insert(Group { first: NONE, last: NONE, len: 0, floor, highest: Fence::ZERO })
    }

    pub(super) fn floor(&self, group: u32) -> Fence {
        self.groups[group].floor
    }

    pub(super) fn highest_fence(&self, group: u32) -> Fence {
        self.groups[group].highest
    }

    pub(super) fn count(&self, group: u32) -> u32 {
        self.groups[group].len
    }

    /// The holder with this token, even after its deadline.
    pub(super) fn find(&self, group: u32, token: &[u8]) -> Option<u32> {
        self.by_token.find(self.hash(group, token), |slot| {
            let holder = &self.items[slot];
            holder.group == group && holder.token[..] == *token
        })
    }

    pub(super) fn get(&self, holder: u32) -> &SharedHolder {
        &self.items[holder]
    }

    pub(super) fn set_fence(&mut self, holder: u32, fence: Fence) {
        let SharedHolder { group, fence: of_holder, .. } = &mut self.items[holder];
        *of_holder = fence;
        let highest = &mut self.groups[*group].highest;
        *highest = fence.max(*highest);
    }

    pub(super) fn set_ticket(&mut self, slot: u32, ticket: Fence) {
        let SharedHolder { group, ticket: of_holder, .. } = &mut self.items[slot];
        let old = std::mem::replace(of_holder, ticket);
        self.tickets.remove(&(*group, old, slot));
        self.tickets.insert((*group, ticket, slot));
    }

    /// The holders of a group with this ticket or a smaller one, the smallest first.
    pub(super) fn up_to_ticket(
        &self,
        group: u32,
        ticket: Fence,
    ) -> impl Iterator<Item = &SharedHolder> {
        let of_group = self.tickets.range((group, Fence::ZERO, 0)..=(group, ticket, NONE));
        of_group.map(|&(_, _, slot)| &self.items[slot])
    }

    /// The largest ticket of a holder.
    pub(super) fn largest_ticket(&self, group: u32) -> Fence {
        let mut of_group = self.tickets.range((group, Fence::ZERO, 0)..=(group, Fence::MAX, NONE));
        of_group.next_back().map(|&(_, ticket, _)| ticket).unwrap_or_default()
    }

    /// Adds a holder. No other holder of the group may have its token.
    pub(super) fn insert(&mut self, group: u32, new: &NewLock<'_>) {
        let &NewLock { token, owner, fence, ticket, granted, deadline, .. } = new;
        debug_assert!(self.find(group, token).is_none(), "a token holds a key once");
        let hash = self.hash(group, token);
        let (token, owner) = (Token::from_slice(token), owner.map(Into::into));
        let previous = self.groups[group].last;
        let next = NONE;
        let holder =
            SharedHolder { token, owner, fence, ticket, granted, deadline, group, previous, next };
        let slot = self.items.insert(holder);
        match previous {
            NONE => self.groups[group].first = slot,
            previous => self.items[previous].next = slot,
        }
        let joined = &mut self.groups[group];
        joined.last = slot;
        joined.highest = fence.max(joined.highest);
        joined.len += 1;
        self.live += 1;
        self.by_token.insert(hash, slot);
        self.deadlines.insert((group, deadline, slot));
        self.tickets.insert((group, ticket, slot));
    }

    /// Removes a holder of a group that has not ended.
    pub(super) fn remove(&mut self, holder: u32) {
        self.live -= 1;
        self.unlink(holder);
    }

    fn unlink(&mut self, slot: u32) {
        let SharedHolder { token, ticket, deadline, group, previous, next, .. } =
            self.items.remove(slot);
        self.by_token.remove(self.hash(group, &token), slot);
        self.deadlines.remove(&(group, deadline, slot));
        self.tickets.remove(&(group, ticket, slot));
        match previous {
            NONE => self.groups[group].first = next,
            previous => self.items[previous].next = next,
        }
        match next {
            NONE => self.groups[group].last = previous,
            next => self.items[next].previous = previous,
        }
        self.groups[group].len -= 1;
    }

    pub(super) fn extend(&mut self, slot: u32, deadline: Monotonic) {
        let holder = &mut self.items[slot];
        let old = std::mem::replace(&mut holder.deadline, deadline);
        let group = holder.group;
        self.deadlines.remove(&(group, old, slot));
        self.deadlines.insert((group, deadline, slot));
    }

    /// Replaces the token of a holder. No other holder of the group may have the new one.
    pub(super) fn change_token(&mut self, slot: u32, token: Token) {
        let group = self.items[slot].group;
        let old_hash = self.hash(group, &self.items[slot].token);
        self.by_token.remove(old_hash, slot);
        self.by_token.insert(self.hash(group, &token), slot);
        self.items[slot].token = token;
    }

    /// The earliest deadline of a holder, and the slot of that holder.
    pub(super) fn first_end(&self, group: u32) -> Option<(Monotonic, u32)> {
        let from = (group, Monotonic::default(), 0);
        let (of, at, holder) = self.deadlines.range(from..).next().copied()?;
        (of == group).then_some((at, holder))
    }

    /// The latest deadline of a holder.
    pub(super) fn last_end(&self, group: u32) -> Option<Monotonic> {
        let to = (group, Monotonic::from_us(u64::MAX), NONE);
        let (of, at, _) = self.deadlines.range(..=to).next_back().copied()?;
        (of == group).then_some(at)
    }

    /// The number of holders whose deadlines have passed. Counts no further than `max`.
    pub(super) fn count_ended(&self, group: u32, now: Monotonic, max: usize) -> usize {
        let from = (group, Monotonic::default(), 0);
        self.deadlines.range(from..=(group, now, NONE)).take(max).count()
    }

    pub(super) fn iter(&self, group: u32) -> impl Iterator<Item = &SharedHolder> {
        let mut at = self.groups[group].first;
        std::iter::from_fn(move || {
            let holder = (at != NONE).then(|| &self.items[at])?;
            at = holder.next;
            Some(holder)
        })
    }

    /// Ends the lock of a group and returns its number of holders, which a sweep removes.
    pub(super) fn end(&mut self, group: u32) -> u32 {
        let holders = self.groups[group].len;
        self.live -= holders as usize;
        if holders == 0 {
            self.groups.remove(group);
        } else {
            self.ended.push(group);
        }
        holders
    }

    pub(super) fn is_sweeping(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Removes one holder of an ended group, and the group with its last holder.
    pub(super) fn sweep(&mut self) {
        let Some(&group) = self.ended.last() else { return };
        self.unlink(self.groups[group].first);
        if self.groups[group].len == 0 {
            self.groups.remove(group);
            self.ended.pop();
        }
    }

    fn hash(&self, group: u32, token: &[u8]) -> u64 {
        self.hasher.hash_one((group, token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(holders: &mut Holders, group: u32, token: u32, deadline_us: u64) {
        let (token, deadline) = (&token.to_le_bytes(), Monotonic::from_us(deadline_us));
        let (owner, fence, ticket) = (None, Fence::ZERO, Fence::ZERO);
        let granted = Monotonic::default();
        let new = NewLock { db: 0, token, owner, fence, ticket, granted, deadline };
        holders.insert(group, &new);
    }

    #[test]
    fn ends_of_a_group_do_not_depend_on_other_groups() {
        let mut holders = Holders::new(7, 4);
        let groups: Vec<_> = (0..3).map(|_| holders.open(Fence::ZERO)).collect();
        for (n, &group) in (0..).zip(&groups) {
            for end in [30, 10, 20] {
                insert(&mut holders, group, n * 100 + end, u64::from(n * 100 + end));
            }
        }
        for (n, &group) in (0..).zip(&groups) {
            let (first, slot) = holders.first_end(group).expect("it has holders");
            assert_eq!(
                (first.us(), holders.last_end(group).map(Monotonic::us)),
                (n * 100 + 10, Some(n * 100 + 30))
            );
            holders.remove(slot);
            assert_eq!(holders.first_end(group).map(|(at, _)| at.us()), Some(n * 100 + 20));
            assert_eq!(
                holders.iter(group).map(|holder| holder.deadline.us()).collect::<Vec<_>>(),
                [n * 100 + 30, n * 100 + 20]
            );
        }
    }

    #[test]
    fn sweep_removes_all_holders_of_an_ended_lock_in_steps() {
        let mut holders = Holders::new(7, 4);
        let group = holders.open(Fence::ZERO);
        for n in 0..1000 {
            insert(&mut holders, group, n, 1);
        }
        assert_eq!((holders.end(group), holders.len(), holders.groups()), (1000, 0, 0));
        let mut steps = 0;
        while holders.is_sweeping() {
            holders.sweep();
            steps += 1;
        }
        assert_eq!(steps, 1000, "a step removes one holder");
        assert!(holders.items.is_empty() && holders.groups.is_empty());
        assert!(holders.deadlines.is_empty() && holders.tickets.is_empty());
    }
}
