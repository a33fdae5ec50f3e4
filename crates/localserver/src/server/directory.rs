use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::{Server, StartError};

/// With this limit, the log of a faulty server does not fill the memory.
const LOG_READ_MAX_BYTES: u64 = 4 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// Removed with the server; `None` when the caller chose the directory.
    _temporary: Option<TempDir>,
}

impl Directory {
    pub(super) fn prepare(chosen: Option<PathBuf>) -> Result<Self, StartError> {
        let Some(chosen) = chosen else {
            // Not in TMPDIR, which may be long: the path of a socket must be short.
            let temporary = tempfile::Builder::new()
                .prefix("ql-")
                .tempdir_in("/tmp")
                .map_err(|source| StartError::Directory { path: "/tmp".into(), source })?;
            return Ok(Self { path: temporary.path().to_path_buf(), _temporary: Some(temporary) });
        };
        // Absolute, because the address of the server's socket contains this path, and a client may
        // run in another directory.
        match fs::create_dir_all(&chosen).and_then(|()| chosen.canonicalize()) {
            Ok(path) => Ok(Self { path, _temporary: None }),
            Err(source) => Err(StartError::Directory { path: chosen, source }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn log_for_appending(&self) -> Result<File, StartError> {
        let path = self.path.join(Server::LOG_NAME);
        let log = File::options().create(true).append(true).open(&path);
        log.map_err(|source| StartError::Directory { path, source })
    }

    /// Returns the log after its first `skipped_bytes`, or the last 4 MiB of that. Returns an empty
    /// text if the log cannot be read.
    pub(super) fn log_after(&self, skipped_bytes: u64) -> String {
        let read = || -> io::Result<Vec<u8>> {
            let mut file = File::open(self.path.join(Server::LOG_NAME))?;
            let length_bytes = file.metadata()?.len();
            let tail_offset = length_bytes.saturating_sub(LOG_READ_MAX_BYTES);
            file.seek(SeekFrom::Start(tail_offset.max(skipped_bytes)))?;
            let mut bytes = Vec::new();
            file.take(LOG_READ_MAX_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
    }
}
