use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use quorlock_localserver::Server;

use super::Preload;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/synced_sizes.so"));

/// Cuts the power of the servers that are started with it.
///
/// A cut kills a server with SIGKILL, and removes the bytes that it has written but not synced.
/// After SIGKILL alone, the system would still write these bytes from its memory to the disk.
///
/// Each file in the server's directory is cut back to its size when its last successful `fsync` or
/// `fdatasync` began, even if the file was renamed since. A file that was never synced is left
/// empty. The log of the server is left as it is.
///
/// The model is simpler than a real disk:
///
/// - Creating, renaming and removing a file takes effect without a sync of the directory.
/// - Bytes that were written over earlier bytes stay, also unsynced.
/// - All other bytes that were not synced are lost. A real disk may keep some of them.
///
/// ```
/// use quorlock_testkit::{Inject as _, PowerCut, Server};
///
/// let power = PowerCut::new();
/// let mut server = Server::builder().arg("appendonly", "yes").power_cut(&power).start()?;
/// let lost_bytes = power.cut(&mut server);
/// server.restart()?;
/// # Ok::<(), quorlock_testkit::StartError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PowerCut {
    pub(super) preload: Arc<Preload>,
}

impl PowerCut {
    /// # Panics
    ///
    /// When a temporary file cannot be written.
    #[track_caller]
    pub fn new() -> Self {
        Self { preload: Arc::new(Preload::write(OBJECT, "QUORLOCK_SYNCED_SIZES", b"")) }
    }

    /// Returns the number of lost bytes. The server can be restarted afterwards.
    ///
    /// # Panics
    ///
    /// When the server was started without this `PowerCut`, or a file cannot be cut.
    #[track_caller]
    pub fn cut(&self, server: &mut Server) -> u64 {
        assert!(
            self.preload.is_loaded_by(server),
            "the server at {} was started without this PowerCut",
            server.url()
        );
        server.kill();
        let synced = synced_sizes(&self.preload.data_file);
        match synced.and_then(|synced| cut_files(server.dir(), &synced)) {
            Ok(lost_bytes) => lost_bytes,
            Err(error) => panic!("the files in {} cannot be cut: {error}", server.dir().display()),
        }
    }

    /// Returns the number of successful syncs, of all files of all servers with this `PowerCut`.
    ///
    /// # Panics
    ///
    /// When the record cannot be read.
    #[track_caller]
    pub fn syncs(&self) -> usize {
        let record = &self.preload.data_file;
        match fs::read_to_string(record) {
            Ok(lines) => lines.lines().count(),
            Err(error) => panic!("{} cannot be read: {error}", record.display()),
        }
    }
}

impl Default for PowerCut {
    fn default() -> Self {
        Self::new()
    }
}

/// Identifies a file independently of its name: inode, and birth in nanoseconds since 1970.
type FileId = (u64, u128);

fn id_of(metadata: &Metadata) -> FileId {
    // Where the file system does not know the birth, it is zero, here and in the record.
    let birth = metadata.created().ok().and_then(|birth| birth.duration_since(UNIX_EPOCH).ok());
    (metadata.ino(), birth.map_or(0, |birth| birth.as_nanos()))
}

/// Reads the size in bytes of each file when it was last synced.
fn synced_sizes(record: &Path) -> io::Result<HashMap<FileId, u64>> {
    let parse = |line: &str| -> Option<(FileId, u64)> {
        let mut words = line.split(' ');
        let id = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some((id, words.next()?.parse().ok()?))
    };
    let record = fs::read_to_string(record)?;
    // Later lines replace earlier ones. A killed writer may leave the last line incomplete.
    let lines = record.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    Ok(lines.filter_map(parse).collect())
}

/// Cuts the files below a directory back to these sizes. Returns the number of lost bytes.
fn cut_files(directory: &Path, synced: &HashMap<FileId, u64>) -> io::Result<u64> {
    let mut lost_bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            lost_bytes += cut_files(&entry.path(), synced)?;
        } else if metadata.is_file() && entry.file_name() != Server::LOG_NAME {
            let synced = synced.get(&id_of(&metadata)).copied().unwrap_or(0);
            if synced < metadata.len() {
                File::options().write(true).open(entry.path())?.set_len(synced)?;
                lost_bytes += metadata.len() - synced;
            }
        }
    }
    Ok(lost_bytes)
}
