//! What the holders of random locks believe, in runs with locks of several keys.

use std::collections::HashMap;

use proptest::prelude::*;
use quorlock_core::Fence;
use quorlock_core::node::KeyEvent;

use super::Server;

pub(crate) const KEYS: u8 = 4;
const NAMES: [&[u8]; 4] = [&[0], &[1], &[2], &[3]];

/// The names of the keys in this bit set.
pub(crate) fn names(keys: u8) -> Vec<&'static [u8]> {
    NAMES.into_iter().filter(|name| keys & 1 << name[0] != 0).collect()
}

#[derive(Clone, Debug)]
pub(crate) struct Belief {
    pub(crate) token: Vec<u8>,
    /// A bit set.
    pub(crate) keys: u8,
    pub(crate) fence: Fence,
    pub(crate) until_us: u64,
}

#[derive(Default)]
pub(crate) struct Beliefs {
    pub(crate) held: Vec<Belief>,
    /// The last fence of each key.
    fences: HashMap<u8, Fence>,
}

impl Beliefs {
    pub(crate) fn expire(&mut self, now_us: u64) {
        self.held.retain(|held| now_us < held.until_us);
    }

    pub(crate) fn nth(&self, nth: usize) -> Option<Belief> {
        self.held.get(nth % self.held.len().max(1)).cloned()
    }

    /// Records a grant. Fails if another holder has one of the keys, or if a fence did not grow.
    pub(crate) fn record_grant(&mut self, held: Belief) -> Result<(), TestCaseError> {
        let taken = self.held.iter().find(|other| other.keys & held.keys != 0);
        prop_assert!(taken.is_none(), "two holders: {taken:?} and {held:?}");
        for key in (0..KEYS).filter(|key| held.keys & 1 << key != 0) {
            let before = self.fences.insert(key, held.fence);
            let grows = before.is_none_or(|before| before < held.fence);
            prop_assert!(grows, "a fence that did not grow");
        }
        self.held.push(held);
        Ok(())
    }

    /// Removes a key. A command that removes a mirror ends its lock, and an accident does not.
    pub(crate) fn remove_key(&mut self, server: &mut Server, key: u8, event: KeyEvent) {
        let is_mirror = self.held.iter().any(|held| held.token == server.text(&[key]));
        server.remove_key(&[key], event);
        if is_mirror && event == KeyEvent::Removed {
            self.held.retain(|held| held.keys & 1 << key == 0);
        }
    }

    /// The number of leases that the node must have.
    pub(crate) fn leases(&self) -> usize {
        self.held.iter().map(|held| held.keys.count_ones() as usize).sum()
    }
}
