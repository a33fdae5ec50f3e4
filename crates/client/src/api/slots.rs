//! The slots of a semaphore: their keys, and the check whether other clients use more slots.

use quorlock_core::client::Keys;

use super::queries;
use crate::driver::Network;

/// The maximum number of keys of `LOCK.ACQUIREANY`.
pub(crate) const PERMITS_MAX: usize = 64;

pub(crate) fn slot_key(name: &[u8], slot: usize) -> Vec<u8> {
    [name, format!(":{slot:02}").as_bytes()].concat()
}

/// The name of the semaphore whose first slot has this key.
pub(crate) fn name_of(first: &[u8]) -> Option<&[u8]> {
    first.strip_suffix(b":00")
}

/// See [`crate::Quorum::larger_permits`].
pub(crate) async fn larger_permits(
    network: &Network,
    name: &[u8],
    permits: usize,
) -> Option<usize> {
    let further: Keys = (permits..PERMITS_MAX).map(|slot| slot_key(name, slot)).collect();
    if further.is_empty() {
        return None;
    }
    Some(permits + queries::last_taken(network, &further).await? + 1)
}
