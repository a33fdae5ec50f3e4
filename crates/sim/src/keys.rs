/// The keys that a client locks together: one of the two keys, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Keys {
    A,
    B,
    /// Both keys, as one lock.
    Both,
}

impl Keys {
    /// Whether `self` and `other` have a key in common.
    pub(crate) fn overlap(self, other: Self) -> bool {
        self == other || self == Self::Both || other == Self::Both
    }

    /// The single keys, in order.
    pub(crate) fn each(self) -> impl Iterator<Item = Self> {
        [Self::A, Self::B].into_iter().filter(move |key| self.overlap(*key))
    }

    /// The names of the keys, in order.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static [u8]> {
        let names: &[&[u8]] = match self {
            Self::A => &[b"a"],
            Self::B => &[b"b"],
            Self::Both => &[b"a", b"b"],
        };
        names.iter().copied()
    }
}
