use std::time::Duration;

/// Which way bytes go through a [`Proxy`](crate::Proxy).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Requests.
    ToServer,
    /// Answers.
    ToClient,
}

/// All that is wrong with a network; by default nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) cut: bool,
    to_server: LaneFault,
    to_client: LaneFault,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LaneFault {
    pub(super) delay: Duration,
    pub(super) passage: Passage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Passage {
    #[default]
    Open,
    Hold,
    Drop,
}

impl Faults {
    pub(super) fn lane(&self, direction: Direction) -> LaneFault {
        match direction {
            Direction::ToServer => self.to_server,
            Direction::ToClient => self.to_client,
        }
    }

    pub(super) fn lane_mut(&mut self, direction: Direction) -> &mut LaneFault {
        match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        }
    }
}
