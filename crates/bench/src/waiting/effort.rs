use std::time::Duration;

/// How long to measure: what a figure in a table needs, or a third of that, to see roughly.
#[derive(Clone, Copy)]
pub(crate) enum Effort {
    Full,
    Quick,
}

impl Effort {
    /// For so long, or a third of it.
    pub(crate) fn time(self, full: Duration) -> Duration {
        match self {
            Self::Full => full,
            Self::Quick => full / 3,
        }
    }

    /// So often, or a third of it.
    pub(crate) fn count(self, full: u64) -> u64 {
        match self {
            Self::Full => full,
            Self::Quick => full / 3,
        }
    }
}
