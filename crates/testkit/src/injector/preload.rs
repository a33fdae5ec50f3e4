use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;

/// What the loader reads: objects to be loaded before all others.
const LOADER_VARIABLE: &str = "LD_PRELOAD";

/// A shared object to be loaded into a server before all others, and the file through which it is spoken to.
#[derive(Debug)]
pub(crate) struct Preload {
    object: PathBuf,
    variable: &'static str,
    file: PathBuf,
    /// Both are in there. Whoever may start the server again keeps this.
    _directory: TempDir,
}

impl Preload {
    /// Writes the object and its file. The object finds the path of the file in the environment variable.
    ///
    /// # Panics
    ///
    /// When there is no place to write them to.
    #[cfg(target_os = "linux")]
    #[track_caller]
    pub(super) fn write(object: &[u8], variable: &'static str, contents: &[u8]) -> Self {
        let write = || -> std::io::Result<Self> {
            let directory = tempfile::Builder::new().prefix("ql-").tempdir()?;
            let (object_path, file) = (directory.path().join("preload.so"), directory.path().join("file"));
            std::fs::write(&object_path, object)?;
            std::fs::write(&file, contents)?;
            Ok(Self { object: object_path, variable, file, _directory: directory })
        };
        match write() {
            Ok(preload) => preload,
            Err(error) => panic!("no place for a shared object to preload: {error}"),
        }
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }
}

/// Has a program load these before what it was to preload anyway.
pub(crate) fn preload(command: &mut Command, preloads: &[Arc<Preload>]) {
    if preloads.is_empty() {
        return;
    }
    let already = command.get_envs().find(|(name, _)| *name == LOADER_VARIABLE).and_then(|(_, value)| value);
    let objects: Vec<_> = preloads.iter().map(|preload| preload.object.as_os_str()).chain(already).collect();
    let objects = objects.join(OsStr::new(":"));
    command.env(LOADER_VARIABLE, objects);
    for Preload { variable, file, .. } in preloads.iter().map(AsRef::as_ref) {
        let is_set = command.get_envs().any(|(name, _)| name == *variable);
        if !is_set {
            command.env(variable, file);
        }
    }
}
