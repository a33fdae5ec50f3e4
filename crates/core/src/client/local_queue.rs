use std::collections::VecDeque;

/// A queue of this program: so many at a time, first come first served.
///
/// One place for each lock, so that at most one call of a program is on the network for it; and
/// [`SEATS_MAX`](super::limits::SEATS_MAX) places for waiting connections to each node.
#[derive(Debug)]
pub struct Line {
    places: usize,
    waiting: VecDeque<u64>,
    next: u64,
}

/// A place, or a number in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// There is a place: return it with [`Line::leave`].
    Place,
    /// There is none. The number is called by [`Line::leave`]; or gives up with
    /// [`Line::give_up`].
    InLine(u64),
}

impl Line {
    /// With so many places.
    pub fn new(places: usize) -> Self {
        Self { places, waiting: VecDeque::new(), next: 0 }
    }

    /// Takes a place, or gets in line for one.
    pub fn enter(&mut self) -> Entry {
        if self.places > 0 && self.waiting.is_empty() {
            self.places -= 1;
            return Entry::Place;
        }
        self.next += 1;
        self.waiting.push_back(self.next);
        Entry::InLine(self.next)
    }

    /// Releases a place. Returns the number that it belongs to now, if one is waiting.
    pub fn leave(&mut self) -> Option<u64> {
        let next = self.waiting.pop_front();
        if next.is_none() {
            self.places += 1;
        }
        next
    }

    /// Gets out of the line. False if the number has been called already: it has a place.
    pub fn give_up(&mut self, number: u64) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|&waiting| waiting != number);
        self.waiting.len() < before
    }

    /// Whether all of these places are free, and no caller waits for one.
    pub fn is_idle(&self, places: usize) -> bool {
        self.places == places && self.waiting.is_empty()
    }
}
