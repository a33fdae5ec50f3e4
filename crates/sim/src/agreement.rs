use std::time::Duration;

use quorlock_core::quorum::{
    Acquisition, FenceAnswer, Majority, Moment, Step, Validity, Vote, Win,
};
use quorlock_core::{Fence, Ttl};

use crate::Mutant;

/// The rules and parameters of all clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) majority: Majority,
    pub(crate) ttl: Ttl,
    pub(crate) repair: bool,
    pub(crate) mutant: Option<Mutant>,
}

/// Decides from the answers of the nodes whether a client wins the lock, and with which fence.
///
/// Each mutant of this decision has a variant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Agreement {
    /// The unchanged rule.
    Real(Acquisition),
    /// [`Mutant::LargestAtOnce`].
    LargestAtOnce(Grants),
    /// [`Mutant::MajorityOfGrants`]: once a majority has granted, only the nodes that granted agree
    /// on the fence.
    AmongGrants {
        grants: Grants,
        /// The agreement of the nodes that granted, each by its index in the list of grants. `None`
        /// until a majority has granted.
        among: Option<Acquisition>,
    },
    /// [`Mutant::StoredFenceDecreases`]: at the end, nodes with a larger fence must also store the
    /// agreed fence.
    Downwards { real: Acquisition, grants: Grants },
}

/// The grants so far, without any agreement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Grants {
    majority: Majority,
    sent: Moment,
    ttl: Ttl,
    granted: Vec<(usize, Fence)>,
}

impl Agreement {
    pub(crate) fn new(rules: Rules, sent: Moment) -> Self {
        let Rules { majority, ttl, mutant, .. } = rules;
        let real = || Acquisition::new(majority, sent, ttl, Duration::ZERO);
        let grants = || Grants { majority, sent, ttl, granted: Vec::new() };
        match mutant {
            Some(Mutant::LargestAtOnce) => Self::LargestAtOnce(grants()),
            Some(Mutant::MajorityOfGrants) => Self::AmongGrants { grants: grants(), among: None },
            Some(Mutant::StoredFenceDecreases) => {
                Self::Downwards { real: real(), grants: grants() }
            }
            _ => Self::Real(real()),
        }
    }

    pub(crate) fn vote(&mut self, node: usize, vote: Vote, now: Moment) {
        match self {
            Self::Real(real) => real.vote(node, vote, now),
            Self::LargestAtOnce(grants) => grants.vote(node, vote),
            Self::AmongGrants { grants, among } => {
                grants.vote(node, vote);
                if among.is_none() && grants.has_majority() {
                    *among = Some(grants.agree_among_grants(now));
                }
            }
            Self::Downwards { real, grants } => {
                grants.vote(node, vote);
                real.vote(node, vote, now);
            }
        }
    }

    pub(crate) fn fence_answer(&mut self, node: usize, answer: FenceAnswer, now: Moment) {
        match self {
            Self::Real(real) | Self::Downwards { real, .. } => real.fence_answer(node, answer, now),
            Self::LargestAtOnce(_) => {}
            Self::AmongGrants { grants, among } => {
                let place = grants.granted.iter().position(|&(granted, _)| granted == node);
                if let (Some(place), Some(among)) = (place, among) {
                    among.fence_answer(place, answer, now);
                }
            }
        }
    }

    pub(crate) fn expire(&mut self, now: Moment) {
        if let Self::Real(real) = self {
            real.expire(now);
        }
    }

    pub(crate) fn steps(&mut self) -> Vec<Step> {
        match self {
            Self::Real(real) => drain(real),
            Self::LargestAtOnce(grants) => {
                grants.largest().map(|fence| grants.won(fence)).into_iter().collect()
            }
            Self::AmongGrants { grants, among } => {
                let mut steps = among.as_mut().map(drain).unwrap_or_default();
                for step in &mut steps {
                    if let Step::StoreFence { node, .. } = step {
                        *node = grants.granted[*node].0;
                    }
                }
                steps
            }
            Self::Downwards { real, grants } => {
                let mut steps = drain(real);
                if let Some(&Step::Won(Win { fence, .. })) = steps.last() {
                    let above = grants.granted.iter().filter(|&&(_, granted)| granted > fence);
                    steps.splice(0..0, above.map(|&(node, _)| Step::StoreFence { node, fence }));
                }
                steps
            }
        }
    }
}

impl Grants {
    fn vote(&mut self, node: usize, vote: Vote) {
        if let Vote::Granted(fence) = vote {
            self.granted.push((node, fence));
        }
    }

    fn has_majority(&self) -> bool {
        self.granted.len() >= self.majority.size()
    }

    fn largest(&self) -> Option<Fence> {
        self.granted.iter().map(|&(_, fence)| fence).max().filter(|_| self.has_majority())
    }

    fn won(&self, fence: Fence) -> Step {
        let validity = Validity::new(self.sent, self.ttl).expect("the ttl exceeds the drift");
        Step::Won(Win { fence, validity })
    }

    fn agree_among_grants(&self, now: Moment) -> Acquisition {
        let majority = Majority::of(self.granted.len()).expect("a majority is not empty");
        let mut among = Acquisition::new(majority, self.sent, self.ttl, Duration::ZERO);
        for (place, &(_, fence)) in self.granted.iter().enumerate() {
            among.vote(place, Vote::Granted(fence), now);
        }
        among
    }
}

fn drain(real: &mut Acquisition) -> Vec<Step> {
    std::iter::from_fn(|| real.poll()).collect()
}
