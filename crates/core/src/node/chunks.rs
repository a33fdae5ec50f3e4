//! A table of items, each of which keeps its slot.

use std::ops::{Index, IndexMut};

use slab::Slab;

/// Items in chunks of a fixed size, so that growth and shrinkage never move more than one chunk.
/// One slab would move all leases in one command: two million take half a second.
///
/// A chunk that becomes empty frees its memory if another chunk has a vacant slot. An item
/// moves in memory only while its own chunk grows.
#[derive(Clone, Debug)]
pub(super) struct Chunks<T> {
    slabs: Vec<Slab<T>>,
    /// The chunks with a vacant slot, the most recently opened last.
    open: Vec<u32>,
    len: usize,
}

/// The next item of a walk through a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The slot of the item.
    Item(u32),
    /// The budget is spent: the walk continues from this slot.
    Spent(u32),
    /// No item is left.
    End,
}

const CHUNK_ITEMS: usize = 128;

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Self { slabs: Vec::new(), open: Vec::new(), len: 0 }
    }
}

impl<T> Chunks<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an item and returns its slot.
    pub(super) fn insert(&mut self, item: T) -> u32 {
        let chunk = match self.open.last() {
            Some(&chunk) => chunk,
            None => self.open_chunk(),
        };
        let items = &mut self.slabs[chunk as usize];
        // A small table grows with its items; a large one grows chunk by chunk.
        if chunk > 0 && items.capacity() == 0 {
            *items = Slab::with_capacity(CHUNK_ITEMS);
        }
        let index = items.insert(item);
        if items.len() == CHUNK_ITEMS {
            self.open.pop();
        }
        self.len += 1;
        to_u32(chunk as usize * CHUNK_ITEMS + index)
    }

    fn open_chunk(&mut self) -> u32 {
        let chunk = to_u32(self.slabs.len());
        self.slabs.push(Slab::new());
        self.open.push(chunk);
        chunk
    }

    pub(super) fn remove(&mut self, slot: u32) -> T {
        let (chunk, index) = place_of(slot);
        let items = &mut self.slabs[chunk];
        if items.len() == CHUNK_ITEMS {
            self.open.push(to_u32(chunk));
        }
        let item = items.remove(index);
        // The only open chunk keeps its memory: a small table does not allocate for each item.
        if items.is_empty() && self.open.len() > 1 {
            *items = Slab::new();
        }
        self.len -= 1;
        item
    }

    pub(super) fn get(&self, slot: u32) -> Option<&T> {
        let (chunk, index) = place_of(slot);
        self.slabs.get(chunk)?.get(index)
    }

    /// Returns the first item in `from` or a later slot.
    /// A vacant slot and an empty chunk cost one unit of the budget each.
    pub(super) fn next_from(&self, from: u32, budget: &mut u32) -> Next {
        let (first, mut index) = place_of(from);
        for (chunk, items) in self.slabs.iter().enumerate().skip(first) {
            // No item has an index at or above the capacity.
            let end = if items.is_empty() { index + 1 } else { items.capacity().min(CHUNK_ITEMS) };
            while index < end {
                let slot = chunk * CHUNK_ITEMS + index;
                if items.contains(index) {
                    return Next::Item(to_u32(slot));
                }
                if *budget == 0 {
                    return Next::Spent(to_u32(slot));
                }
                *budget -= 1;
                index += 1;
            }
            index = 0;
        }
        Next::End
    }

    /// A bound above every slot in use.
    pub(super) fn slots_end(&self) -> u32 {
        to_u32(self.slabs.len() * CHUNK_ITEMS)
    }

    #[cfg(any(test, feature = "memory"))]
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slabs.iter().enumerate().flat_map(|(chunk, items)| {
            let slot = move |index| to_u32(chunk * CHUNK_ITEMS + index);
            items.iter().map(move |(index, item)| (slot(index), item))
        })
    }
}

impl<T> Index<u32> for Chunks<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        let (chunk, index) = place_of(slot);
        &self.slabs[chunk][index]
    }
}

impl<T> IndexMut<u32> for Chunks<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        let (chunk, index) = place_of(slot);
        &mut self.slabs[chunk][index]
    }
}

const fn place_of(slot: u32) -> (usize, usize) {
    (slot as usize / CHUNK_ITEMS, slot as usize % CHUNK_ITEMS)
}

fn to_u32(number: usize) -> u32 {
    u32::try_from(number).expect("2^32 items do not fit in memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_stay_valid_while_the_table_grows_and_shrinks() {
        let mut table = Chunks::default();
        let slots: Vec<_> = (0..1000_u32).map(|n| table.insert(n)).collect();
        for (n, &slot) in (0..).zip(&slots).filter(|(n, _)| n % 7 != 0) {
            assert_eq!(table.remove(slot), n);
        }
        for (n, &slot) in (0..).zip(&slots).filter(|(n, _)| n % 7 == 0) {
            assert_eq!(table[slot], n);
        }
        assert_eq!(table.len(), table.iter().count());
    }

    #[test]
    fn empty_chunks_free_their_memory() {
        let mut table = Chunks::default();
        let slots: Vec<_> = (0..100_000_u32).map(|n| table.insert(n)).collect();
        for slot in slots {
            table.remove(slot);
        }
        let kept: usize = table.slabs.iter().map(Slab::capacity).sum();
        assert!(kept <= 2 * CHUNK_ITEMS, "{kept} slots are kept");
    }
}
