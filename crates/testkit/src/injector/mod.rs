//! Faults inside a server's process, injected by shared objects that precede the C library.
//!
//! - `wall_clock`: steps the wall clock
//! - `power_cut`: removes the bytes that were not synced
//!
//! An object that cannot inject its fault ends the process that loaded it, with a line on stderr: a
//! test must not pass because a fault was not injected.

mod power_cut;
mod wall_clock;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use quorlock_localserver::{Server, ServerBuilder, StartHook};
use tempfile::TempDir;

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

/// The loader's list of objects to load before all others.
const LOADER_VARIABLE: &str = "LD_PRELOAD";

/// A shared object that a process loads before all others, and a file that it shares with the test.
#[derive(Debug)]
struct Preload {
    object: PathBuf,
    /// The environment variable in which the object finds the path of `data_file`.
    variable: &'static str,
    /// Contains the number that the object reads, or the record that it writes.
    data_file: PathBuf,
    /// Contains both. Must live for as long as the process may be started again.
    _directory: TempDir,
}

impl Preload {
    /// Writes the object, and the data file with these contents.
    ///
    /// # Panics
    ///
    /// When they cannot be written.
    #[track_caller]
    fn write(object_bytes: &[u8], variable: &'static str, contents: &[u8]) -> Self {
        let write = || -> std::io::Result<Self> {
            let directory = tempfile::Builder::new().prefix("ql-").tempdir()?;
            let path = |name| directory.path().join(name);
            let (object, data_file) = (path("preload.so"), path("data"));
            std::fs::write(&object, object_bytes)?;
            std::fs::write(&data_file, contents)?;
            Ok(Self { object, variable, data_file, _directory: directory })
        };
        match write() {
            Ok(preload) => preload,
            Err(error) => panic!("cannot write a shared object to preload: {error}"),
        }
    }

    /// Returns whether the server, if it runs, has loaded the object.
    fn is_loaded_by(&self, server: &Server) -> bool {
        let is_mapped = || -> std::io::Result<bool> {
            // The system resolves links in the paths that it lists.
            let object = std::fs::canonicalize(&self.object)?;
            let mapped = std::fs::read_to_string(format!("/proc/{}/maps", server.pid()))?;
            Ok(mapped.contains(&*object.to_string_lossy()))
        };
        !server.is_running() || is_mapped().unwrap_or(false)
    }
}

impl StartHook for Preload {
    /// Loads the object before the objects of earlier hooks. An `LD_PRELOAD` of this process is
    /// replaced.
    fn prepare(&self, command: &mut Command) {
        let earlier = command.get_envs().find(|(name, _)| *name == LOADER_VARIABLE);
        let earlier = earlier.and_then(|(_, objects)| objects);
        let objects: Vec<_> = [self.object.as_os_str()].into_iter().chain(earlier).collect();
        let objects = objects.join(OsStr::new(":"));
        command.env(LOADER_VARIABLE, objects).env(self.variable, &self.data_file);
    }
}
