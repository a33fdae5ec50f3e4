//! Faults injected from within a server's process, by objects of ours that the loader puts before the C library.
//!
//! - `wall_clock`: steps the wall clock
//! - `power_cut`: forgets what was not synced
//! - `preload`: the object and the file through which it is spoken to
//!
//! An object that cannot do what it was loaded for ends the process that it was loaded into, with a line in the server's
//! log: a fault that was not injected must not pass for one that was survived.

#[cfg(target_os = "linux")]
mod power_cut;
mod preload;
#[cfg(target_os = "linux")]
mod wall_clock;

#[cfg(target_os = "linux")]
pub use self::power_cut::PowerCut;
pub(crate) use self::preload::{Preload, preload};
#[cfg(target_os = "linux")]
pub use self::wall_clock::WallClock;
