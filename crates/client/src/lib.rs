//! Distributed locks on a majority of independent Redis or Valkey masters that run the Quorlock module.
//!
//! ```no_run
//! use std::time::Duration;
//! use quorlock_client::Quorum;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let quorum = Quorum::connect(["redis://a", "redis://b", "redis://c"]).await?;
//! let mut lock = quorum.lock("orders/42").ttl(Duration::from_secs(10)).wait(Duration::from_secs(5)).acquire().await?;
//! println!("fence {}, {:?} left, held on {}", lock.fence(), lock.remaining(), lock.coverage());
//! lock.extend().await?;
//! lock.release().await?;
//! quorum.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! - [`Quorum`]: the nodes.
//! - [`LockBuilder`]: what lock, for how long.
//! - [`Lock`]: a held lock. Dropping it releases it in the background.
//! - [`FenceGate`]: the side of what the lock protects. It refuses whoever comes late.
//! - [`AcquireError`] and its kin: why not, with each node's own answer.
//! - [`redis`]: nodes from connections that are there already.

mod acquire;
mod answers;
mod attempt;
mod builder;
mod clock;
mod connect;
mod error;
mod extend;
mod gate;
mod handover;
mod held;
mod keeper;
mod lock;
mod node;
mod observe;
mod ownership;
mod quorum;
pub mod redis;
mod release;
mod run;
mod slots;
mod token;
mod wait;
mod watch;

pub use builder::LockBuilder;
pub use connect::QuorumBuilder;
pub use error::{
    AcquireError, Answer, ConnectError, ExtendError, LostError, NodeAnswer, NodeError, Nodes, ReleaseError,
    ResumeError, RunError,
};
pub use gate::{FenceGate, Stale};
pub use handover::{Handover, HandoverError};
pub use lock::{Coverage, Lock, Released};
pub use ownership::{Deadline, Ownership};
pub use quorlock_core::{Fence, NotAFence};
pub use quorum::Quorum;
pub use watch::LockWatch;

/// The example of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
