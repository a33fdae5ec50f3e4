use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use quorlock_localserver::Server;

use super::preload::Preload;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/synced_sizes.so"));

/// Cuts the power of the servers that are started with it: kills one with SIGKILL, and takes away what it has written
/// and never synced, which SIGKILL alone would leave in the system's memory, and so on the disk.
///
/// Every file in the server's directory is cut back to the size that it had when the last `fsync` or `fdatasync` of it
/// that succeeded began; a file that was never synced is left empty. Renaming a file does not matter.
///
/// What is not modelled: a file that was made, renamed or removed is so at once, without a sync of its directory; bytes
/// that were written over in place stay; and everything that was not synced is lost, of which a real disk may have
/// kept some. The server's log, which is written by the test kit's own hand, is left as it is.
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
    preload: Arc<Preload>,
}

impl PowerCut {
    /// A switch that nothing is connected to yet.
    ///
    /// # Panics
    ///
    /// When the system has no place for a small file.
    #[track_caller]
    pub fn new() -> Self {
        Self { preload: Arc::new(Preload::write(OBJECT, "QUORLOCK_SYNCED_SIZES", b"")) }
    }

    /// Cuts the power of a server that was started with this, and says how many bytes that has cost. It can be restarted.
    ///
    /// # Panics
    ///
    /// When a file cannot be cut.
    #[track_caller]
    pub fn cut(&self, server: &mut Server) -> u64 {
        server.kill();
        let cut = SyncedSizes::read(self.preload.file()).and_then(|synced| synced.restore(server.dir()));
        match cut {
            Ok(lost_bytes) => lost_bytes,
            Err(error) => panic!("the files in {} cannot be cut: {error}", server.dir().display()),
        }
    }

    /// How many syncs there were so far: a larger number later means that something has been synced in between.
    ///
    /// # Panics
    ///
    /// When they cannot be read.
    #[track_caller]
    pub fn syncs(&self) -> usize {
        match fs::read_to_string(self.preload.file()) {
            Ok(lines) => lines.lines().count(),
            Err(error) => panic!("{} cannot be read: {error}", self.preload.file().display()),
        }
    }

    pub(super) fn preload(&self) -> Arc<Preload> {
        Arc::clone(&self.preload)
    }
}

impl Default for PowerCut {
    fn default() -> Self {
        Self::new()
    }
}

/// Which file it is, whatever its name: the inode, and when it was born, in nanoseconds since 1970.
#[derive(PartialEq, Eq, Hash)]
struct FileId {
    inode: u64,
    birth_ns: u128,
}

impl FileId {
    fn of(metadata: &Metadata) -> Self {
        // Zero where the file system does not know it, as in the log.
        let birth = metadata.created().ok().and_then(|birth| birth.duration_since(UNIX_EPOCH).ok());
        Self { inode: metadata.ino(), birth_ns: birth.map_or(0, |birth| birth.as_nanos()) }
    }
}

/// The size of each file when it was last synced, in bytes.
struct SyncedSizes(HashMap<FileId, u64>);

impl SyncedSizes {
    fn read(log: &Path) -> io::Result<Self> {
        let parse = |line: &str| -> Option<(FileId, u64)> {
            let mut words = line.split(' ');
            let inode = words.next()?.parse().ok()?;
            let birth_ns = words.next()?.parse().ok()?;
            Some((FileId { inode, birth_ns }, words.next()?.parse().ok()?))
        };
        let log = fs::read_to_string(log)?;
        // Later lines replace earlier ones. Only the last can be half a line: its writer was killed.
        Ok(Self(log.split_inclusive('\n').filter_map(|line| parse(line.strip_suffix('\n')?)).collect()))
    }

    /// Cuts the files in a directory, and in those within, back to these sizes.
    fn restore(&self, directory: &Path) -> io::Result<u64> {
        let mut lost_bytes = 0;
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                lost_bytes += self.restore(&entry.path())?;
            } else if metadata.is_file() && entry.file_name() != Server::LOG_NAME {
                let synced = self.0.get(&FileId::of(&metadata)).copied().unwrap_or(0);
                if synced < metadata.len() {
                    File::options().write(true).open(entry.path())?.set_len(synced)?;
                    lost_bytes += metadata.len() - synced;
                }
            }
        }
        Ok(lost_bytes)
    }
}
