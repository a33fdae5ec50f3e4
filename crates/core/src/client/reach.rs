use super::Delivery;

/// How far the requests of one token to one node got that may grant it a lock there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reach {
    /// How far the last ACQUIRE got. A node that was sent only WAITs counts as reached.
    pub(super) delivery: Delivery,
    /// The round number of the unanswered WAIT.
    pub(super) wait: Option<u32>,
    /// Whether a request was lost, so that it may still arrive.
    pub(super) is_lost: bool,
    /// Whether a late answer has granted one of several keys, which may be another one.
    pub(super) may_have_others: bool,
    /// Whether the node has granted a request, so that an unanswered one is a second one.
    pub(super) has_granted: bool,
}

impl Reach {
    /// No request is unanswered or lost.
    pub(super) fn of(delivery: Delivery) -> Self {
        Self { delivery, ..Self::default() }
    }

    /// The connection of an ACQUIRE that is unanswered, in time or not.
    pub(super) fn connection(self) -> Option<u64> {
        match self.delivery {
            Delivery::InFlight { connection } => Some(connection),
            Delivery::NotSent | Delivery::Arrived => None,
        }
    }

    /// Records that ACQUIRE is sent through this connection.
    pub(super) fn send_acquire(&mut self, connection: u64) {
        // An unanswered request through an earlier connection may arrive after all others.
        self.is_lost |= self.connection().is_some_and(|earlier| earlier != connection);
        self.delivery = Delivery::InFlight { connection };
    }

    /// Records that the WAIT with this round number is sent.
    pub(super) fn send_wait(&mut self, round: u32) {
        self.wait = Some(round);
        if self.delivery == Delivery::NotSent {
            self.delivery = Delivery::Arrived;
        }
    }

    /// Whether a RELEASE through this connection may leave the token on the node for a while: a
    /// request of this token may arrive after it.
    pub(super) fn may_outlast_release(self, route: Option<u64>) -> bool {
        let has_all = self.delivery == Delivery::Arrived && route.is_some();
        let in_order = self.connection().is_some() && self.connection() == route;
        self.delivery != Delivery::NotSent && (self.is_lost || !(has_all || in_order))
    }
}
