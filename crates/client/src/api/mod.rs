//! The public types.

mod deadline;
mod detached;
mod error;
mod gate;
mod inspection;
mod lock;
mod lock_builder;
mod lock_inner;
mod queries;
mod quorum;
mod quorum_builder;
mod revocation;
mod watch;

pub use deadline::{Deadline, Ownership};
pub use detached::{DetachedLock, InvalidDetached};
pub use error::{
    AcquireError, Answer, AttachError, ConnectError, ExtendError, FlushError, InspectError,
    LostError, NodeAnswer, NodeAnswers, NodeError, ReleaseError, RevokeError, RunError, ScanError,
};
pub use gate::{FenceGate, Stale};
pub use inspection::{
    HeldLock, Holder, Inspection, LeaseInfo, ListedLock, LockList, LockMode, LockState, NodeHealth,
    NodeInspection, WaiterInfo,
};
pub use lock::{Coverage, Lock, Released};
pub use lock_builder::LockBuilder;
pub(crate) use lock_inner::LockInner;
pub use quorum::Quorum;
pub use quorum_builder::QuorumBuilder;
pub use revocation::{NodeRevocation, Revocation, RevocationReport, RevocationState, RevokedNode};
pub use watch::LockWatch;
