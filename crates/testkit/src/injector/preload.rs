use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use quorlock_localserver::StartHook;
use tempfile::TempDir;

/// The loader's list of objects to load before all others.
const LOADER_VARIABLE: &str = "LD_PRELOAD";

/// A shared object to load into a process before all others, and its file.
#[derive(Debug)]
pub(super) struct Preload {
    object: PathBuf,
    /// The environment variable that names `file` to the object.
    variable: &'static str,
    /// The number that the object reads, or the record that it writes.
    file: PathBuf,
    /// Contains the object and the file. Must live for as long as the process may be started again.
    _directory: TempDir,
}

impl Preload {
    /// Writes the object, and its file with these contents.
    ///
    /// # Panics
    ///
    /// When they cannot be written.
    #[track_caller]
    pub(super) fn write(object: &[u8], variable: &'static str, contents: &[u8]) -> Self {
        let write = || -> std::io::Result<Self> {
            let directory = tempfile::Builder::new().prefix("ql-").tempdir()?;
            let (object_path, file) =
                (directory.path().join("preload.so"), directory.path().join("file"));
            std::fs::write(&object_path, object)?;
            std::fs::write(&file, contents)?;
            Ok(Self { object: object_path, variable, file, _directory: directory })
        };
        match write() {
            Ok(preload) => preload,
            Err(error) => panic!("cannot write a shared object to preload: {error}"),
        }
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
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
    /// Loads the object before all objects that the command already preloads.
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
            command.env(self.variable, &self.file);
        }
    }
}
