//! Distributed locks on a majority of independent Redis or Valkey masters that run the Quorlock
//! module.
//!
//! A lock is held until it is released or until its deadline, on this machine's own clocks,
//! whatever the nodes and the network do. A holder that dies or is cut off loses the lock by its
//! deadline, and the next waiter gets it. A minority of the nodes may fail: one of three, two of
//! five.
//!
//! # Examples
//!
//! The folder `examples` of this crate has complete programs. The tests run each of them.
//!
//! - `axum.rs`: an HTTP service that ships an order under a lock, and answers 409 or 503 otherwise.
//! - `workers.rs`: many workers share a list of jobs, and skip a job that another worker does.
//! - `cron.rs`: a job that every machine starts at the same time, and one machine does.
//! - `cache.rs`: a cache that many programs read under a shared lock, and one refreshes.
//! - `encoders.rs`: at most four encoders in a fleet, by a semaphore.
//! - `leader.rs`: leader election with a bounded term.
//! - `inventory.rs`: a stock in a database that refuses the writes of an earlier holder.
//! - `fence_sqlite.rs`: what happens to such a stock without a fence.
//! - `blocking.rs`: a program without tokio.
//!
//! # Three ways
//!
//! **Scoped.** [`run`](LockBuilder::run) acquires the lock, renews it while the work runs, and
//! releases it. When the lock is lost, the work is stopped.
//!
//! ```no_run
//! # async fn write_report(fence: quorlock_client::Fence) -> std::io::Result<u32> { Ok(1) }
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use quorlock_client::Quorum;
//!
//! let quorum = Quorum::connect(["redis://a", "redis://b", "redis://c"]).await?;
//! let nightly = quorum.lock("nightly");
//! let pages = nightly.run(|lock| async move { write_report(lock.fence()).await }).await??;
//! quorum.flush(Duration::from_secs(5)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! **As a handle.** [`acquire`](LockBuilder::acquire) returns a [`Lock`] to extend, renew, watch
//! and release. Dropping it releases the lock in the background.
//!
//! ```no_run
//! # async fn example(quorum: quorlock_client::Quorum) -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! let order = quorum.lock("orders/42").ttl(Duration::from_secs(10)).wait(Duration::from_secs(5));
//! let mut lock = order.acquire().await?;
//! println!("fence {}, {:?} left, held on {}", lock.fence(), lock.remaining(), lock.coverage());
//! lock.extend().await?; // A full ttl from now. Or once lock.renew(), in the background.
//! lock.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! **[Blocking](blocking).** The same API for programs without tokio.
//!
//! All of them lock several keys as one with [`Quorum::lock_all`]: all of them or none, without
//! deadlock, in any order of the keys. [`LockBuilder::shared`] is for readers,
//! [`Quorum::semaphore`] for at most n holders, and [`Quorum::lock_any`] for one of several keys.
//!
//! # What to choose
//!
//! | option | default | reasons for more | reasons for less |
//! |---|---|---|---|
//! | [`ttl`](LockBuilder::ttl) | 10 s | a longer pause of the program or the network does not lose the lock | a holder that died blocks the others for a shorter time |
//! | [`wait`](LockBuilder::wait) | 10 s | the work must be done | another client does the same work; zero is one attempt |
//! | [`max_hold`](LockBuilder::max_hold) | no limit | | work that may hang must not block the others for ever |
//! | [`min_validity`](LockBuilder::min_validity) | ttl / 2 | the work needs that much time | a slow network shall not fail the call |
//! | [`node_timeout`](LockBuilder::node_timeout) | derived: 4 measured round trips, at least 50 ms, at most ttl / 10 or 2 round trips | some nodes are slow at times | a silent node must be noticed sooner |
//! | [`owner`](LockBuilder::owner) | host name and process id | | |
//!
//! Do not choose a long ttl for work that takes long. Use [`run`](LockBuilder::run) or
//! [`renew`](Lock::renew) with a short ttl.
//!
//! At the end of a program, [`Quorum::flush`] waits for the releases in the background. Without it,
//! a lock that was just dropped may last for the rest of its ttl.
//!
//! # What a lock cannot do
//!
//! A lock cannot stop a program that was paused and continues after its lock was lost. Send the
//! lock's [`fence`](Lock::fence), which only grows for a key, with every write to the protected
//! resource. The resource refuses a fence that is smaller than the last one. [`FenceGate`] has the
//! rules, in Rust and in SQL.
//!
//! # What is where
//!
//! - [`Quorum`] connects to the nodes, and describes, inspects and attaches locks.
//!   [`QuorumBuilder`] has its options.
//! - [`LockBuilder`] describes one lock. [`Lock`] is a held lock. [`LockWatch`] is a view of it.
//! - [`Ownership`] tells whether a lock is held, uncertain or lost, and until when.
//! - [`DetachedLock`] is a lock without a process, for another process to attach.
//! - [`Inspection`] is what the nodes say about a key, and [`LockList`] all locks.
//! - [`Revocation`] takes a lock back from its holder.
//! - [`FenceGate`] is the resource's side of a lock.
//! - [`AcquireError`] and the other errors have the answer of each node.
//! - [`blocking`] is the same without tokio.
//!
//! # Testing your own code
//!
//! Test a service with real local masters. They start in a few milliseconds.
//!
//! - `quorlock up` starts masters on this machine and prints `QUORLOCK_NODES` for the tests.
//! - A container of Redis or Valkey that loads the module does as well.
//! - A test that needs no majority uses one server, which it starts itself: `redis-server --port 0
//!   --unixsocket PATH --loadmodule libquorlock.so --lock.rejoin-delay 0`. Without the last option,
//!   a new server abstains for a minute, since it may have forgotten locks.
//!
//! Give each test its own keys or servers. Then inject what happens in production:
//!
//! - A loss: `DEL` of the key on all nodes. The next extension reports [`LostError::Ended`], and
//!   `run` stops its work.
//! - A paused holder: `SIGSTOP` of the service's process for longer than the ttl, then `SIGCONT`.
//!   The store must refuse the write that follows.
//! - A node that does not answer: `SIGSTOP` of one server. The locks must stay held.
//! - No quorum: `SIGSTOP` of a majority of the servers. The service must answer what it does then.
//! - A held lock: another [`Quorum`] in the test acquires the key.
//!
//! Do not mock [`Lock`] or its fence. A mock grants what a node would refuse, and a fixed fence
//! never fails the check in the store. Do not simulate time: the validity of a lock is measured on
//! the clocks of the system, which `tokio::time::pause` does not stop. Use a short ttl instead.
//!
//! # What it reports
//!
//! Events and spans of [`tracing`](https://docs.rs/tracing) have the key, the coverage and the
//! answers of the nodes. A lost or uncertain lock, a restarted node and a node that may not vote
//! are warnings. The feature `metrics` adds figures for the [`metrics`](https://docs.rs/metrics)
//! facade:
//!
//! | name | kind | meaning |
//! |---|---|---|
//! | `quorlock_acquires_total` | counter | calls by `outcome`: `acquired`, `held`, `timed_out`, `no_quorum`, `insufficient_validity`, `invalid` |
//! | `quorlock_extends_total` | counter | rounds by `outcome`: `extended`, `uncertain`, `lost` |
//! | `quorlock_repairs_total` | counter | nodes that missed a lock by `outcome`: `repaired`, `refused` |
//! | `quorlock_releases_total` | counter | ends by `outcome`: `released`, `already_over`, `unconfirmed`, `dropped`, `detached` |
//! | `quorlock_wait_seconds` | histogram | a whole call of `acquire` or `try_acquire` |
//! | `quorlock_hold_seconds` | histogram | from the grant to the release |
//!
//! No event, figure or error shows a token.
//!
//! # Platforms
//!
//! The tests run on Linux. The crate also compiles for macOS, where it is not tested. Other systems
//! are not supported, since a lock needs a clock that counts the time in suspend.
#![cfg_attr(
    not(docsrs),
    doc = "
# The book

[The book](../book/index.html) has the server's commands, operations, safety, fencing and waiting.
`make docs` builds both."
)]

mod api;
pub mod blocking;
mod clock;
mod driver;
mod telemetry;
mod transport;

pub use api::{
    AcquireError, Answer, AttachError, ConnectError, Coverage, Deadline, DetachedLock, ExtendError,
    FenceGate, FlushError, HeldLock, InspectError, Inspection, InvalidDetached, LeaseInfo,
    ListedLock, Lock, LockBuilder, LockList, LockMode, LockState, LockWatch, LostError, NodeAnswer,
    NodeError, NodeHealth, NodeInspection, NodeRevocation, Nodes, Ownership, Quorum, QuorumBuilder,
    ReleaseError, Released, Revocation, RevocationReport, RevocationState, RevokeError,
    RevokedNode, RunError, ScanError, Stale, WaiterInfo,
};
pub use quorlock_core::{Fence, InvalidFence};

/// The example of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The example of this crate's README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;

/// The examples of docs/client.md, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/client.md")]
struct ClientPage;

/// The example of docs/fencing.md, run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/fencing.md")]
struct FencingPage;
