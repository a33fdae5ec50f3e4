use super::Monotonic;

/// The deadlines of all leases, soonest first: a binary heap that knows where each slot's entry is, so that a lease
/// which is released takes its deadline along.
#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines {
    heap: Vec<Entry>,
    /// Where in the heap the entry of each slot is.
    position: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Monotonic,
    slot: u32,
}

impl Deadlines {
    pub(super) fn soonest(&self) -> Option<(Monotonic, u32)> {
        self.heap.first().map(|entry| (entry.at, entry.slot))
    }

    /// The deadline of the entry at that index of the slab.
    pub(super) fn at(&self, slot: usize) -> Monotonic {
        self.heap[self.position[slot] as usize].at
    }

    pub(super) fn insert(&mut self, slot: u32, at: Monotonic) {
        if self.position.len() <= slot as usize {
            self.position.resize(slot as usize + 1, 0);
        }
        self.heap.push(Entry { at, slot });
        self.sift_up(self.heap.len() - 1);
    }

    pub(super) fn remove(&mut self, slot: u32) {
        let hole = self.position[slot as usize] as usize;
        debug_assert_eq!(self.heap[hole].slot, slot, "the position of a slot is where its entry is");
        self.heap.swap_remove(hole);
        if hole < self.heap.len() {
            self.settle(hole);
        }
    }

    pub(super) fn change(&mut self, slot: u32, at: Monotonic) {
        let index = self.position[slot as usize] as usize;
        self.heap[index].at = at;
        self.settle(index);
    }

    fn settle(&mut self, index: usize) {
        let index = self.sift_up(index);
        self.sift_down(index);
    }

    fn sift_up(&mut self, mut index: usize) -> usize {
        let entry = self.heap[index];
        while index > 0 {
            let parent = (index - 1) / 2;
            if self.heap[parent].at <= entry.at {
                break;
            }
            self.put(index, self.heap[parent]);
            index = parent;
        }
        self.put(index, entry);
        index
    }

    fn sift_down(&mut self, mut index: usize) {
        let entry = self.heap[index];
        loop {
            let left = 2 * index + 1;
            let Some(mut child) = self.heap.get(left) else { break };
            let mut child_index = left;
            if let Some(right) = self.heap.get(left + 1).filter(|right| right.at < child.at) {
                (child, child_index) = (right, left + 1);
            }
            if entry.at <= child.at {
                break;
            }
            self.put(index, *child);
            index = child_index;
        }
        self.put(index, entry);
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "slots are u32, so there are no more entries than that"
    )]
    fn put(&mut self, index: usize, entry: Entry) {
        self.heap[index] = entry;
        self.position[entry.slot as usize] = index as u32;
    }
}
