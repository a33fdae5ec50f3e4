//! Finds slots by hash.

use hashbrown::HashTable;

/// A hash table in shards, so that growth and shrinkage move one shard at a time.
///
/// One table would move all entries in one command: two million take nearly a tenth of a second.
#[derive(Clone, Debug)]
pub(super) struct HashIndex {
    shards: Box<[HashTable<Entry>]>,
}

/// A slot and a part of its hash. The part suffices to move an entry without reading the item.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    slot: u32,
}

/// A shard of this capacity or less keeps its memory.
const SHRINK_ABOVE_ENTRIES: usize = 64;

impl HashIndex {
    /// Creates an index with `shards` shards, rounded up to a power of two.
    pub(super) fn new(shards: usize) -> Self {
        Self { shards: vec![HashTable::new(); shards.next_power_of_two()].into() }
    }

    /// The slot with this hash that `matches` accepts.
    pub(super) fn find(&self, hash: u64, matches: impl Fn(u32) -> bool) -> Option<u32> {
        let short = shorten(hash);
        let found = self.shards[self.shard(hash)]
            .find(spread(short), |entry| entry.hash == short && matches(entry.slot));
        found.map(|entry| entry.slot)
    }

    pub(super) fn insert(&mut self, hash: u64, slot: u32) {
        let short = shorten(hash);
        let shard = self.shard(hash);
        self.shards[shard]
            .insert_unique(spread(short), Entry { hash: short, slot }, |entry| spread(entry.hash));
    }

    pub(super) fn remove(&mut self, hash: u64, slot: u32) {
        let shard = self.shard(hash);
        let table = &mut self.shards[shard];
        if let Ok(entry) = table.find_entry(spread(shorten(hash)), |entry| entry.slot == slot) {
            entry.remove();
        }
        if table.capacity() > SHRINK_ABOVE_ENTRIES && table.len() < table.capacity() / 8 {
            table.shrink_to(table.len() * 2, |entry| spread(entry.hash));
        }
    }

    fn shard(&self, hash: u64) -> usize {
        // The low half of the hash distinguishes the entries of one shard.
        usize::try_from(hash >> 32).expect("half a hash fits") & (self.shards.len() - 1)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the other half chooses the shard")]
const fn shorten(hash: u64) -> u32 {
    hash as u32
}

/// Expands part of a hash to a full hash, because the table uses its lowest and highest bits.
fn spread(short: u32) -> u64 {
    u64::from(short) | u64::from(short) << 32
}
