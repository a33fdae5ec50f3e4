//! Faults inside a server's process, injected by shared objects that precede the C library.
//!
//! - `wall_clock`: steps the wall clock
//! - `power_cut`: removes the bytes that were not synced
//! - `preload`: a shared object, and the file that it reads or writes
//!
//! An object that cannot inject its fault ends the process that loaded it, with a line on stderr: a
//! test must not pass because a fault was not injected.

mod power_cut;
mod preload;
mod wall_clock;

use quorlock_localserver::ServerBuilder;

pub use self::power_cut::PowerCut;
pub use self::wall_clock::WallClock;

pub trait Inject {
    /// Lets the server read this wall clock.
    #[must_use]
    fn wall_clock(self, clock: &WallClock) -> Self;

    /// Records what the server syncs, so that [`PowerCut::cut`] removes only the rest.
    #[must_use]
    fn power_cut(self, power: &PowerCut) -> Self;
}

impl Inject for ServerBuilder {
    fn wall_clock(self, clock: &WallClock) -> Self {
        self.on_start(clock.preload.clone())
    }

    fn power_cut(self, power: &PowerCut) -> Self {
        self.on_start(power.preload.clone())
    }
}
