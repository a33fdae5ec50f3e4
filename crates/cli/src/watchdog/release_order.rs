use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Context as _;
use quorlock_client::DetachedLock;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::nodes::SecretNodes;

/// How long the watchdog tries to release the lock. A lease that remains on a node ends by its ttl.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// What the watchdog needs to release the lock if `quorlock run` is gone. It contains the token and
/// passwords: never print it.
#[derive(Deserialize, Serialize)]
pub(crate) struct ReleaseOrder {
    /// The text of a [`DetachedLock`].
    pub(crate) handle: String,
    pub(crate) nodes: SecretNodes,
}

impl ReleaseOrder {
    /// Writes the order to a file in memory, from which [`read`](Self::read) reads it. Certificates
    /// may need more space than a socket has.
    pub(super) fn write(&self) -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create("quorlock", MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        file.rewind()?;
        Ok(file.into())
    }

    /// Reads and closes the file.
    pub(super) fn read(file: OwnedFd) -> anyhow::Result<Self> {
        let mut text = String::new();
        File::from(file).read_to_string(&mut text)?;
        // The error of serde would quote the text.
        serde_json::from_str(&text).ok().context("the order to release the lock is incomplete")
    }

    /// Releases the lock on all nodes, unless it has ended or has another token. Ignores errors: no
    /// process is left to report them to.
    pub(super) async fn carry_out(self) {
        let release = async {
            let handle: DetachedLock = self.handle.parse()?;
            let quorum = self.nodes.connect().await?;
            let _ = quorum.release_detached(handle).await;
            // Waits for the nodes beyond the majority, and repeats failed requests.
            quorum.flush(RELEASE_LIMIT).await?;
            anyhow::Ok(())
        };
        let _ = timeout(RELEASE_LIMIT, release).await;
    }
}
