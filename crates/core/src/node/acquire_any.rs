//! ACQUIREANY: locks the first free key of several.

use super::acquire::{FreeKeys, Terms, place_in_line};
use super::key_state::KeyState;
use super::machine::PerKey;
use super::mutants::{Mutant, is_broken};
use super::queues::{Lack, Wants};
use super::turn::{Budget, COMMAND_UNITS};
use super::{Access, Acquire, CommandError, Keyspace, Mode, Node, Now, Reply};

impl Node {
    /// Acquires the lock of the first free key, in the order in which the client names the keys.
    /// The lock is then an ordinary lock of that key.
    pub(super) fn acquire_any<K: Keyspace>(
        &mut self,
        now: Now,
        acquire: &Acquire<'_, K::Name>,
        keyspace: &mut K,
    ) -> Result<Reply, CommandError> {
        self.admit(now, acquire)?;
        debug_assert!(acquire.mode == Mode::Exclusive, "LOCK.ACQUIREANY has no shared mode");
        let &Acquire { db, keys, token, ttl, owner, .. } = acquire;
        let hashes: PerKey<u64> =
            keys.iter().map(|key| self.leases.hash(db, key.as_ref())).collect();
        for (index, name) in keys.iter().enumerate() {
            let one = Acquire { keys: std::slice::from_ref(name), ..*acquire };
            if let Some(fence) = self.ask_again(now, &one, hashes[index], keyspace)? {
                return Ok(Reply::GrantedOne { fence, key: index });
            }
        }
        let rank = self.rank(acquire, &hashes);
        let place = place_in_line(acquire, rank.as_ref(), keyspace);
        let mut lacks: PerKey<Option<Lack>> = PerKey::new();
        let mut budget = Budget::units(COMMAND_UNITS);
        for (index, name) in keys.iter().enumerate() {
            let (hash, state, mut entry) = self.open_key(now, db, name, Access::Write, keyspace);
            if state == KeyState::WrongType {
                return Err(CommandError::WrongType);
            }
            let lack = self.lack(now, state, keyspace, &entry).or_else(|| {
                let key = (hash, db, name.as_ref());
                let is_behind = self.is_behind_in_line(now, key, place, &mut budget);
                is_behind.then_some(Lack::Behind)
            });
            if lack.is_none() {
                self.leave_line(acquire, &hashes);
                let free = FreeKeys {
                    db,
                    keys: std::slice::from_ref(name),
                    hashes: &[hash],
                    entries: std::slice::from_mut(&mut entry),
                    have_ended: matches!(state, KeyState::Ended { .. }),
                };
                let ticket = rank.map(|rank| rank.ticket);
                let terms = Terms { token, owner, ttl, ticket };
                let granted = self.grant(now, free, &terms, keyspace);
                return granted.map(|fence| Reply::GrantedOne { fence, key: index });
            }
            lacks.push(lack);
        }
        if is_broken(Mutant::AnyWaitsForFirst) {
            let first = Acquire { keys: &keys[..1], ..*acquire };
            let (hashes, lacks) = (&hashes[..1], &lacks[..1]);
            return self.wait_or_refuse(now, &first, Wants::Any, rank, hashes, lacks, keyspace);
        }
        self.wait_or_refuse(now, acquire, Wants::Any, rank, &hashes, &lacks, keyspace)
    }
}
