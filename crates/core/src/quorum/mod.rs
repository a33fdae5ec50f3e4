//! One client against N independent nodes: what their answers decide, and what to send next.
//!
//! The caller sends, receives and reads the clock.
//!
//! - [`Majority`]: how many nodes decide.
//! - [`Acquisition`]: one attempt to acquire a lock, up to the fence on which a majority agrees.
//! - [`order`]: the order of the nodes for a key, the same for all clients.
//! - [`Extension`] and [`Release`]: one round of EXTEND, and one of RELEASE.
//! - [`Tenure`]: what a holder knows of its lock, from the grant to the end.
//! - [`Lifetime`] and [`Moment`]: how long a lock is certainly held, and the clocks that measure
//!   it.

mod extension;
mod fence_agreement;
mod majority;
mod moment;
mod order;
mod release;
mod tally;
mod tenure;
mod validity;

pub use extension::{Extension, ExtensionVerdict};
pub use fence_agreement::{Acquisition, FenceAnswer, Loss, Step, Vote, Win};
pub use majority::Majority;
pub use moment::Moment;
pub use order::order;
pub use release::{Release, ReleaseVerdict};
pub use tenure::{End, Standing, Tenure};
pub use validity::{Lifetime, drift, reliable};
