//! One client against N independent nodes: what their answers amount to, when that is certain, and what is still to be
//! sent. The caller sends, receives and reads the clock.
//!
//! - [`Majority`]: how many nodes decide.
//! - [`Acquisition`]: one attempt to take a lock, up to the fence that a majority of the nodes agrees on.
//! - [`order`]: the order of the nodes for a key, the same for all clients.
//! - [`Extension`] and [`Release`]: the other two verbs.
//! - [`Tenure`]: what a holder knows of its lock, from the grant to the end.
//! - [`Lifetime`] and [`Moment`]: how long a lock is certainly held, on a clock that neither steps nor sleeps.

mod acquisition;
mod extension;
mod lifetime;
mod majority;
mod moment;
mod order;
mod release;
mod tally;
mod tenure;

pub use acquisition::{Acquisition, FenceAnswer, Loss, Step, Vote, Win};
pub use extension::{Extension, ExtensionVerdict};
pub use lifetime::{Lifetime, drift, reliable};
pub use majority::Majority;
pub use moment::Moment;
pub use order::order;
pub use release::{Release, ReleaseVerdict};
pub use tenure::{End, Standing, Tenure};
