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

mod attempt;
mod builder;
mod clock;
mod error;
mod extend;
mod gate;
mod lock;
mod node;
mod quorum;
pub mod redis;
mod release;
mod token;

pub use builder::LockBuilder;
pub use error::{
    AcquireError, Answer, ConnectError, ExtendError, NodeAnswer, NodeError, Nodes, ReleaseError,
};
pub use gate::{FenceGate, Stale};
pub use lock::{Coverage, Lock, Released};
pub use quorlock_core::{Fence, NotAFence};
pub use quorum::Quorum;

/// The example of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
