//! ACQUIRE of one key, and ACQUIREANY, which locks one of several keys.

use super::acquire::{FreeKeys, Terms, place_in_line};
use super::key_state::KeyState;
use super::mutants::{NodeRule, is_broken};
use super::node::PerKey;
use super::queues::{Lack, Wants};
use super::turn::{Budget, COMMAND_UNITS};
use super::{Access, Acquire, CommandError, Keyspace, Mode, Node, Now, Reply};

impl Node {
    /// Acquires the lock of the first free key, in the order in which the client names the keys.
    /// The lock is then an ordinary lock of that key.
    ///
    /// Without FENCE, refuses a held lock even to its own token. A newcomer comes after each older
    /// waiter that needs no other key.
    pub(super) fn acquire_one<K: Keyspace>(
        &mut self,
        now: Now,
        acquire: &Acquire<'_, K::Name>,
        wants: Wants,
        keyspace: &mut K,
    ) -> Result<Reply, CommandError> {
        debug_assert!(acquire.mode == Mode::Exclusive, "a shared lock is granted elsewhere");
        self.admit(now, acquire)?;
        let &Acquire { db, keys, token, ttl, owner, .. } = acquire;
        let granted = |fence, key| match wants {
            Wants::All => Reply::Granted(fence),
            Wants::Any => Reply::GrantedOne { fence, key },
        };
        let hashes = self.hashes(db, keys);
        for (index, name) in keys.iter().enumerate() {
            let one = Acquire { keys: std::slice::from_ref(name), ..*acquire };
            if let Some(fence) = self.ask_again(now, &one, hashes[index], keyspace)? {
                return Ok(granted(fence, index));
            }
        }
        let rank = self.rank(acquire, &hashes)?;
        let place = place_in_line(acquire, rank.as_ref(), keyspace);
        let mut lacks: PerKey<Option<Lack>> = PerKey::new();
        let mut budget = Budget::units(COMMAND_UNITS);
        for (index, name) in keys.iter().enumerate() {
            let hash = hashes[index];
            let (state, mut entry) = self.open_key(now, (hash, db), name, Access::Write, keyspace);
            if state == KeyState::WrongType {
                return Err(CommandError::WrongType);
            }
            let lack = self.lack(now, state, keyspace, &entry).or_else(|| {
                let key = (hash, db, name.as_ref());
                let is_behind = self.is_behind_in_line(now, key, place, &mut budget);
                is_behind.then_some(Lack::Behind)
            });
            if lack.is_some() {
                lacks.push(lack);
                continue;
            }
            self.leave_line(acquire, &hashes);
            let terms = Terms { token, owner, ttl, ticket: rank.map(|rank| rank.ticket) };
            let (keys, entries) = (std::slice::from_ref(name), std::slice::from_mut(&mut entry));
            let have_ended = matches!(state, KeyState::Ended { .. });
            let free = FreeKeys { db, keys, hashes: &[hash], entries, have_ended };
            let fence = self.grant(now, free, &terms, keyspace)?;
            return Ok(granted(fence, index));
        }
        if is_broken(NodeRule::AnyWaitsForFirst) {
            let first = Acquire { keys: &keys[..1], ..*acquire };
            let (hashes, lacks) = (&hashes[..1], &lacks[..1]);
            return self.wait_or_refuse(now, &first, wants, rank, hashes, lacks, keyspace);
        }
        self.wait_or_refuse(now, acquire, wants, rank, &hashes, &lacks, keyspace)
    }
}
