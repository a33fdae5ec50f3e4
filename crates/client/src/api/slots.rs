//! The slots of a semaphore: their keys, and who uses more of them than this client.

use crate::driver::{self, Shared};

/// How many permits a semaphore has at most: as many as `LOCK.ACQUIREANY` has keys.
pub(crate) const PERMITS_MAX: usize = 64;

/// The key of a slot of a semaphore.
pub(crate) fn slot_key(name: &[u8], slot: usize) -> Vec<u8> {
    [name, format!(":{slot:02}").as_bytes()].concat()
}

/// The name of the semaphore whose first slot this is.
pub(crate) fn name_of(first: &[u8]) -> Option<&[u8]> {
    first.strip_suffix(b":00")
}

/// The number of permits that some client uses at least, if that is larger.
pub(crate) async fn larger(shared: &Shared, name: &[u8], permits: usize) -> Option<usize> {
    let further: Vec<_> = (permits..PERMITS_MAX).map(|slot| slot_key(name, slot)).collect();
    if further.is_empty() {
        return None;
    }
    Some(permits + driver::last_in_use(shared, &further).await? + 1)
}
