//! Distributed locks on a majority of independent Redis or Valkey masters that run the Quorlock
//! module.
//!
//! A lock is held until it is released or until its deadline, which this machine's own clocks
//! measure. A holder that dies or is cut off loses the lock by its deadline, and the next waiter
//! acquires it. A minority of the nodes may fail: one of three, two of five.
//!
//! # Examples
//!
//! The folder `examples` of this crate has complete programs. The tests run each of them.
//!
//! - `axum.rs`: an HTTP service that ships an order under a lock, and answers 409 or 503 otherwise.
//! - `cron.rs`: a job that every machine starts at the same time, and that only one machine runs.
//! - `cache.rs`: a cache that many programs read under a shared lock and one program refreshes.
//! - `encoders.rs`: a semaphore that allows at most four encoders in a fleet.
//! - `leader.rs`: leader election with a bounded term.
//! - `fence_sqlite.rs`: a stock in a database that accepts the write of an earlier holder without a
//!   fence, and refuses it with one.
//! - `blocking.rs`: a program without tokio.
//!
//! # Three ways to use a lock
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
//! println!("fence {}, {:?} left", lock.fence(), lock.remaining());
//! lock.extend().await?; // A full ttl from now. `lock.renew()` does that in the background.
//! lock.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! **[Blocking](blocking).** The same API for programs without tokio.
//!
//! [`Quorum::lock_all`] locks several keys as one: all keys or none, without deadlock, in whatever
//! order clients name the keys. [`LockBuilder::shared`] is for readers, [`Quorum::semaphore`] for
//! at most n holders, and [`Quorum::lock_any`] for one of several keys.
//!
//! # What to choose
//!
//! | option | default | choose more when | choose less when |
//! |---|---|---|---|
//! | [`ttl`](LockBuilder::ttl) | 10 s | pauses of the program or the network are longer | the lock of a holder that died must be free sooner |
//! | [`wait`](LockBuilder::wait) | 10 s | the work must be done | another client does the same work; zero makes one attempt |
//! | [`max_hold`](LockBuilder::max_hold) | no limit | | work that hangs must not block other clients |
//! | [`min_validity`](LockBuilder::min_validity) | ttl / 2 | the work needs more time than half the ttl | a slow network must not fail the call |
//! | [`node_timeout`](LockBuilder::node_timeout) | derived: 4 measured round trips, at least 50 ms, at most ttl / 4 | some nodes are slow at times | a silent node must be noticed sooner |
//! | [`owner`](LockBuilder::owner) | host name and process id | | |
//!
//! For work that takes long, do not choose a long ttl: use [`run`](LockBuilder::run) or
//! [`renew`](Lock::renew). At the end of a program, call [`Quorum::flush`]: a lock that was just
//! dropped may otherwise last for the rest of its ttl.
//!
//! # What a lock cannot do
//!
//! A lock cannot stop a program that was paused and continues after its lock was lost. Send the
//! lock's [`fence`](LockWatch::fence) with every write to the protected resource. The fence grows
//! with every lock of a key, so the resource can refuse a fence that is smaller than the last one.
//! [`FenceGate`] does this in Rust, and its documentation shows the same in SQL.
//!
//! # Testing your own code
//!
//! Test a service with real local masters, which start in a few milliseconds.
//!
//! - `quorlock up` starts masters on this machine and prints `QUORLOCK_NODES` for the tests.
//! - A container of Redis or Valkey that loads the module works as well.
//! - A single server is enough for some tests: `redis-server --port 0 --unixsocket PATH
//!   --loadmodule /path/to/libquorlock.so --lock.rejoin-delay 0`. Without the last option, a new
//!   server abstains for a minute, since it may have forgotten locks.
//!
//! Give each test its own keys or servers. Then inject the failures of production:
//!
//! - A loss: `DEL` of the key on all nodes. The next extension finds the loss: [`LockWatch::lost`]
//!   returns [`LostError::Ended`], and `run` stops its work.
//! - A paused holder: `SIGSTOP` of the service's process for longer than the ttl, then `SIGCONT`.
//!   The store must refuse the write that follows.
//! - A node that does not answer: `SIGSTOP` of one server. The locks must stay held.
//! - No quorum: `SIGSTOP` of a majority of the servers. Check what the service answers.
//! - A held lock: another [`Quorum`] in the test acquires the key.
//!
//! Do not mock [`Lock`] or its fence. A mock grants what a node would refuse, and a fixed fence
//! never fails the check in the store. Do not simulate time: the validity of a lock is measured on
//! the clocks of the system, which `tokio::time::pause` does not stop. Use a short ttl instead.
//!
//! # Events and metrics
//!
//! Events and spans of [`tracing`](https://docs.rs/tracing) contain the key, the coverage and the
//! answers of the nodes. A lost or uncertain lock, a restarted node and a node that may not vote
//! are warnings. The feature `metrics` adds counters and histograms for the
//! [`metrics`](https://docs.rs/metrics) facade:
//!
//! | name | kind | meaning |
//! |---|---|---|
//! | `quorlock_acquires_total` | counter | calls of `acquire`, `try_acquire` or `run`, by `outcome`: `acquired`, `held`, `timed_out`, `no_quorum`, `insufficient_validity`, `invalid` |
//! | `quorlock_extends_total` | counter | rounds of extensions of a lock, by `outcome`: `extended`, `uncertain`, `lost` |
//! | `quorlock_repairs_total` | counter | repairs that have ended, by `outcome`: `repaired`, `refused` (which includes failed requests) |
//! | `quorlock_releases_total` | counter | locks that the program released, dropped or detached, by `outcome`: `released`, `already_over`, `unconfirmed`, `dropped`, `detached` |
//! | `quorlock_wait_seconds` | histogram | how long a call took to acquire the lock or to fail |
//! | `quorlock_hold_seconds` | histogram | from the grant until the program releases, drops or detaches the lock |
//!
//! No event, metric or error shows a token.
//!
//! # Platforms
//!
//! The tests run on Linux. The crate also compiles for macOS, where it is not tested. Other systems
//! are not supported, since a lock needs a clock that counts the time during suspend.
#![cfg_attr(
    not(docsrs),
    doc = "
# The book

[The book](../book/index.html) describes the server's commands, operations, safety, fencing and
waiting. `make docs` builds the book and this reference."
)]

mod api;
pub mod blocking;
mod clock;
mod driver;
mod random;
mod telemetry;
mod transport;

pub use api::*;
#[doc(hidden)]
pub use clock::now;
pub use quorlock_core::{Fence, InvalidFence};
#[doc(hidden)]
pub use random::SystemRandom;
#[doc(hidden)]
pub use transport::{connect_or_explain, read_error};

// The examples of the documentation, compiled or run.

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/client.md")]
struct ClientPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/fencing.md")]
struct FencingPage;
