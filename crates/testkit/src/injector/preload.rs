use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use quorlock_localserver::StartHook;
use tempfile::TempDir;

/// The loader's list of objects to load before all others.
const LOADER_VARIABLE: &str = "LD_PRELOAD";

/// A shared object that a process loads before all others, and a file that it shares with the test.
#[derive(Debug)]
pub(super) struct Preload {
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
    pub(super) fn write(object_bytes: &[u8], variable: &'static str, contents: &[u8]) -> Self {
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

    pub(super) fn data_file(&self) -> &Path {
        &self.data_file
    }

    /// Returns whether a running process has loaded the object.
    pub(super) fn is_loaded_by(&self, pid: u32) -> std::io::Result<bool> {
        // The system resolves links in the paths that it lists.
        let object = std::fs::canonicalize(&self.object)?;
        let mapped = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
        Ok(mapped.contains(&*object.to_string_lossy()))
    }
}

impl StartHook for Preload {
    /// Loads the object before the objects that were set on the command. An `LD_PRELOAD` of this
    /// process is replaced, and a path of the data file that was set on the command stays.
    fn prepare(&self, command: &mut Command) {
        let value_of = |name: &str| {
            command.get_envs().find(|(set, _)| *set == name).and_then(|(_, value)| value)
        };
        let objects: Vec<_> =
            [self.object.as_os_str()].into_iter().chain(value_of(LOADER_VARIABLE)).collect();
        let objects = objects.join(OsStr::new(":"));
        let is_set = command.get_envs().any(|(name, _)| name == self.variable);
        command.env(LOADER_VARIABLE, objects);
        if !is_set {
            command.env(self.variable, &self.data_file);
        }
    }
}
