//! The same for programs without tokio: the same names, and every call blocks its thread until it is done.
//!
//! ```no_run
//! use std::time::Duration;
//! use quorlock_client::blocking::Quorum;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let quorum = Quorum::connect(["redis://a", "redis://b", "redis://c"])?;
//! let mut lock = quorum.lock("orders/42").ttl(Duration::from_secs(10)).acquire()?;
//! println!("fence {}, {:?} left", lock.fence(), lock.remaining());
//! lock.extend()?;
//! lock.release()?;
//! quorum.close();
//! # Ok(())
//! # }
//! ```
//!
//! Each [`Quorum`] has one thread of its own, on which its connections are kept and its locks extended. It works inside a
//! program that uses tokio, too: a call blocks the thread that it is made on, as any call that blocks does, and does not panic.

mod builder;
mod lock;
mod quorum;
mod thread;

pub use builder::{LockBuilder, QuorumBuilder};
pub use lock::{Lock, LockWatch};
pub use quorum::Quorum;
