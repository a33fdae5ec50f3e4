//! One client and N independent nodes: what their answers decide, and what to send next.
//!
//! The caller sends, receives and reads the clock.
//!
//! - [`Majority`]: how many nodes decide.
//! - [`Acquisition`]: one attempt to acquire a lock, up to the fence on which a majority agrees.
//! - [`Extension`]: one round of EXTEND, and which nodes to repair.
//! - [`ReleaseRound`]: one round of RELEASE.
//! - [`OwnershipState`]: whether a lock is held or lost, and when to extend it.
//! - [`Validity`] and [`Moment`]: how long a lock is certainly held, and the clocks that measure
//!   it.

mod extension;
mod fence_agreement;
mod majority;
mod ownership;
mod release;
mod validity;

pub use extension::{Extension, ExtensionVerdict, KnownBefore};
pub use fence_agreement::{Acquisition, FenceAnswer, Loss, Step, Win};
pub use majority::Majority;
pub use ownership::{LossReason, Ownership, OwnershipState};
pub use release::{ReleaseRound, ReleaseVerdict};
pub use validity::{Moment, Validity, drift, longest_validity};
