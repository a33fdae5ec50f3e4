use crate::server::Name;

/// Some of the two keys that there are: what a client locks, at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Keys {
    /// The first.
    A,
    /// The second.
    B,
    /// Both, as one lock.
    Both,
}

/// The names of the keys.
const NAMES: [Name; Keys::COUNT] = [Name::key(b'a'), Name::key(b'b')];

impl Keys {
    /// How many keys there are.
    pub(crate) const COUNT: usize = 2;

    /// Whether there is a key in both sets.
    pub(crate) fn overlap(self, other: Self) -> bool {
        self == other || self == Self::Both || other == Self::Both
    }

    /// The indices of the keys.
    pub(crate) fn indices(self) -> std::ops::Range<usize> {
        match self {
            Self::A => 0..1,
            Self::B => 1..2,
            Self::Both => 0..2,
        }
    }

    /// The names of the keys, in their order.
    pub(crate) fn names(self) -> &'static [Name] {
        &NAMES[self.indices()]
    }

    /// The index of a key by its name.
    pub(crate) fn index_of(name: Name) -> usize {
        usize::from(name == NAMES[1])
    }
}
