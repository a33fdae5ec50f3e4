//! Distributed locks on a majority of independent Redis or Valkey masters that run the Quorlock module.
//!
//! A lock is held until it is given back or until its deadline, on this machine's own clocks, whatever the nodes and the
//! network do. Whoever dies or is cut off loses it by then, and the next one gets it. Some of the nodes may be lost: with
//! three one, with five two.
//!
//! # Three ways
//!
//! **Scoped**: something is done under the lock, which is extended meanwhile. When the lock is lost, it is stopped.
//!
//! ```no_run
//! # async fn write_report(fence: quorlock_client::Fence) -> std::io::Result<u32> { Ok(1) }
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use quorlock_client::Quorum;
//!
//! let quorum = Quorum::connect(["redis://a", "redis://b", "redis://c"]).await?;
//! let pages = quorum.lock("nightly").run(|lock| async move { write_report(lock.fence()).await }).await??;
//! quorum.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! **As a handle**: for all else. Dropping it releases the lock in the background.
//!
//! ```no_run
//! # async fn example(quorum: quorlock_client::Quorum) -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! let mut lock = quorum.lock("orders/42").ttl(Duration::from_secs(10)).wait(Duration::from_secs(5)).acquire().await?;
//! println!("fence {}, {:?} left, held on {}", lock.fence(), lock.remaining(), lock.coverage());
//! lock.extend().await?;      // a full ttl from now; or lock.keep_alive(), once
//! lock.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! **[Blocking](blocking)**: the same for programs without tokio.
//!
//! Several keys are one lock by [`Quorum::lock_all`], whichever way it is used: all of them or none, without deadlock in
//! whatever order callers name them.
//!
//! # What to choose
//!
//! | | default | longer | shorter |
//! |---|---|---|---|
//! | [`ttl`](LockBuilder::ttl) | 10 s | a pause of this program, or of the network, does not lose the lock | whoever dies blocks the others for less |
//! | [`wait`](LockBuilder::wait) | 10 s | for something that must be done | for something that another will do just as well; zero for one attempt |
//! | [`max_hold`](LockBuilder::max_hold) | 1 hour | for a leader | for anything that may hang: then others get their turn |
//! | [`min_validity`](LockBuilder::min_validity) | ttl / 2 | work begins with enough time | a slow network is no reason to fail |
//! | [`node_limit`](LockBuilder::node_limit) | 50 ms, ttl / 20 | nodes in regions far apart | a sick node is told sooner |
//!
//! Something that takes longer than a few seconds, or nobody knows how long, is done by [`run`](LockBuilder::run) or with
//! [`keep_alive`](Lock::keep_alive), not with a long ttl.
//!
//! # What a lock cannot do
//!
//! It cannot stop a program that was paused and goes on after its lock was lost. Give the lock's [`fence`](Lock::fence), which
//! only grows for a key, with every write to what the lock protects, and have that refuse a fence that is smaller than the last:
//! `examples/inventory.rs` shows it with a database.
//!
//! At the end of a program, [`Quorum::close`] waits for what is released in the background. Without it, a lock that was just
//! dropped may last for the rest of its ttl.
//!
//! # What is where
//!
//! - [`Quorum`]: the nodes. [`QuorumBuilder`]: certificates, and limits for all locks.
//! - [`LockBuilder`]: what lock, for how long.
//! - [`Lock`]: a held lock. [`LockWatch`]: a view of one. [`Ownership`]: held, uncertain or lost, and until when.
//! - [`Handover`]: a lock on its way to another process.
//! - [`FenceGate`]: the side of what the lock protects. It refuses whoever comes late.
//! - [`AcquireError`] and its kin: why not, with each node's own answer.
//! - [`blocking`]: the same without tokio.
//! - [`redis`]: nodes from connections that are there already.
//!
//! # What it tells
//!
//! Events and spans of [`tracing`](https://docs.rs/tracing), with the key, the number of the attempt, the coverage and the
//! words of each node; a lost or doubtful lock, a node that was started again and two addresses of one server are warnings. With
//! the feature `metrics`, figures for the [`metrics`](https://docs.rs/metrics) facade:
//!
//! | | |
//! |---|---|
//! | `quorlock_acquires_total` | calls, by `outcome`: `acquired`, `held`, `no_quorum`, `timed_out`, `expired`, `unusable` |
//! | `quorlock_extends_total` | by `outcome`: `extended`, `uncertain`, `lost` |
//! | `quorlock_repairs_total` | nodes that did not have a lock when it was extended, by `outcome`: `repaired`, `refused` |
//! | `quorlock_releases_total` | by `outcome`: `released`, `already_over`, `unconfirmed`, `dropped`, `handed_over` |
//! | `quorlock_acquire_seconds` | one attempt on all nodes |
//! | `quorlock_wait_seconds` | a whole call, the waiting included |
//! | `quorlock_hold_seconds` | from the grant to the release |
//!
//! A token is in none of it.

mod api;
pub mod blocking;
mod clock;
mod driver;
mod telemetry;
mod transport;

pub use api::{
    AcquireError, Answer, AttachError, ConnectError, Coverage, Deadline, DetachedLock, ExtendError,
    FenceGate, FlushError, HeldLock, InspectError, Inspection, InvalidDetached, LeaseInfo, Lock, LockBuilder,
    LockState, LockWatch, LostError, NodeAnswer, NodeError, NodeHealth, NodeInspection, Nodes, Ownership,
    Quorum, QuorumBuilder, ReleaseError, Released, RunError, Stale,
};
pub use quorlock_core::{Fence, InvalidFence};

/// The example of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The example of docs/fencing.md, run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/fencing.md")]
struct FencingPage;
