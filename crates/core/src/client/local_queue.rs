use std::collections::VecDeque;

use smallvec::SmallVec;

use super::Mode;

/// A queue of this program: so many at a time, first come first served.
///
/// One place for each lock, so that at most one call of a program is on the network for it, or any
/// number of those at the head that [share](Self::enter_to_share) it; and
/// [`SEATS_MAX`](super::limits::SEATS_MAX) places for waiting connections to each node.
#[derive(Debug)]
pub struct Line {
    places: usize,
    /// How many share one of the places that are taken.
    sharing: usize,
    waiting: VecDeque<(u64, Mode)>,
    next: u64,
}

/// A place, or a number in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// There is a place: return it with [`Line::leave`].
    Place,
    /// There is none. The number is called by [`Line::leave`] or [`Line::give_up`]; or gives up
    /// with the latter.
    InLine(u64),
}

/// The numbers that have a place from now on.
pub type Called = SmallVec<[u64; 1]>;

impl Line {
    /// With so many places. A line in which places are shared has one.
    pub fn new(places: usize) -> Self {
        Self { places, sharing: 0, waiting: VecDeque::new(), next: 0 }
    }

    /// Takes a place, or gets in line for one.
    pub fn enter(&mut self) -> Entry {
        self.enter_as(Mode::Exclusive)
    }

    /// Takes a place, or shares the one of others that share it, or gets in line.
    pub fn enter_to_share(&mut self) -> Entry {
        self.enter_as(Mode::Shared)
    }

    fn enter_as(&mut self, mode: Mode) -> Entry {
        self.next += 1;
        self.waiting.push_back((self.next, mode));
        // No place is free while others are in line.
        if self.call().is_empty() { Entry::InLine(self.next) } else { Entry::Place }
    }

    /// Releases a place. Returns the numbers that have one now.
    pub fn leave(&mut self) -> Called {
        self.sharing = self.sharing.saturating_sub(1);
        if self.sharing == 0 {
            self.places += 1;
        }
        self.call()
    }

    /// Gets out of the line, and returns the numbers behind it that have a place now. `None` if the
    /// number has been called already: it has a place.
    pub fn give_up(&mut self, number: u64) -> Option<Called> {
        let place = self.waiting.iter().position(|&(waiting, _)| waiting == number)?;
        self.waiting.remove(place);
        Some(self.call())
    }

    /// Gives places to the head of the line.
    fn call(&mut self) -> Called {
        let mut called = Called::new();
        while let Some(&(number, mode)) = self.waiting.front() {
            let joins = mode == Mode::Shared && self.sharing > 0;
            if !joins {
                if self.places == 0 {
                    break;
                }
                self.places -= 1;
            }
            self.sharing += usize::from(mode == Mode::Shared);
            self.waiting.pop_front();
            called.push(number);
        }
        called
    }

    /// Whether all of these places are free, and no caller waits for one.
    pub fn is_idle(&self, places: usize) -> bool {
        self.places == places && self.waiting.is_empty()
    }
}
