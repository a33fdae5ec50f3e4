//! The API for programs without tokio: the same names, with calls that block.
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
//! quorum.flush(Duration::from_secs(5))?;
//! # Ok(())
//! # }
//! ```
//!
//! A call that is the only one sends its requests and reads the replies on the caller's thread,
//! which is faster than to wake another one. Each [`Quorum`] has a thread that does so otherwise,
//! and after the first 2 ms of a call: it keeps the connections, and renews locks. The release of a
//! lock that is dropped may begin 2 ms late; before the end of the program, call
//! [`Quorum::flush`]. A recorder of metrics and a layer of tracing are called on either thread, and
//! panic if they wait for the same quorum.
//!
//! The API also works inside a program that uses tokio: a call does not panic there, but blocks its
//! caller's thread.

mod lock;
mod quorum;
mod runtime;
mod thread;

pub use lock::{Lock, LockBuilder, LockWatch};
pub use quorum::{Quorum, QuorumBuilder, Revocation};
/// For the Python package.
#[doc(hidden)]
pub use runtime::Runtime;
pub use thread::Blocking;
