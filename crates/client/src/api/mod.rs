//! The public types.

mod detached;
mod error;
mod gate;
mod health;
mod inspection;
mod lock;
mod lock_builder;
mod ownership;
mod quorum;
mod quorum_builder;
mod revocation;
mod run;
mod slots;
mod watch;

pub use detached::{DetachedLock, InvalidDetached};
pub use error::{
    AcquireError, Answer, AttachError, ConnectError, ExtendError, FlushError, InspectError,
    LostError, NodeAnswer, NodeAnswers, NodeError, ReleaseError, RevokeError, RunError, ScanError,
};
pub use gate::{FenceGate, Stale};
pub use health::NodeHealth;
pub use inspection::{
    HeldLock, Holder, Inspection, LeaseInfo, ListedLock, LockList, LockMode, LockState,
    NodeInspection, WaiterInfo,
};
pub use lock::{Coverage, Lock, Released};
pub(crate) use lock_builder::DEFAULT_TTL;
pub use lock_builder::LockBuilder;
pub use ownership::{Deadline, Ownership};
pub use quorum::Quorum;
pub use quorum_builder::QuorumBuilder;
pub use revocation::{NodeRevocation, Revocation, RevocationReport, RevocationState, RevokedNode};
pub(crate) use run::finish;
pub use watch::LockWatch;
