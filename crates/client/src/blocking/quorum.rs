use std::fmt;
use std::sync::Arc;

use super::thread::Thread;
use super::{Lock, LockBuilder, QuorumBuilder};
use crate::{ConnectError, Handover, ResumeError};

/// Independent masters that together grant locks: a [`crate::Quorum`] whose calls block. Cheap to clone; all clones share
/// their connections and their thread.
///
/// When the last clone and the last lock are dropped, the thread goes on until all that was dropped is released, as
/// [`close`](Self::close) does, and ends.
#[derive(Clone)]
pub struct Quorum {
    quorum: crate::Quorum,
    thread: Arc<Closing>,
}

/// The thread, which closes the quorum when nobody uses it any more.
pub(super) struct Closing {
    pub(super) thread: Thread,
    quorum: crate::Quorum,
}

impl Quorum {
    pub(super) fn start(
        connecting: impl Future<Output = Result<crate::Quorum, ConnectError>> + Send + 'static,
    ) -> Result<Self, ConnectError> {
        let thread = Thread::start().map_err(|source| ConnectError::NoThread { source })?;
        let quorum = thread.block_on(connecting)?;
        Ok(Self { quorum: quorum.clone(), thread: Arc::new(Closing { thread, quorum }) })
    }

    /// Connects to the masters: see [`crate::Quorum::connect`].
    ///
    /// # Errors
    /// Only what no time can mend: see [`ConnectError`].
    pub fn connect<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, ConnectError> {
        Self::builder().nodes(urls).connect()
    }

    /// A quorum to be connected, with certificates and limits of one's own.
    pub fn builder() -> QuorumBuilder {
        QuorumBuilder::new(crate::Quorum::builder())
    }

    /// Describes a lock on `key`, to be acquired.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> LockBuilder {
        LockBuilder::new(self.quorum.lock(key), Arc::clone(&self.thread))
    }

    /// Describes one lock on several keys, to be acquired: see [`crate::Quorum::lock_all`].
    pub fn lock_all<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> LockBuilder {
        LockBuilder::new(self.quorum.lock_all(keys), Arc::clone(&self.thread))
    }

    /// Makes a lock that another process handed over this one's: see [`crate::Quorum::resume`].
    ///
    /// # Errors
    /// See [`ResumeError`].
    pub fn resume(&self, handover: Handover) -> Result<Lock, ResumeError> {
        self.lock_all(handover.keys()).ttl(handover.ttl()).resume(handover)
    }

    /// How many nodes there are, and how many of them are connected now.
    pub fn connected(&self) -> (usize, usize) {
        self.quorum.connected()
    }

    /// Waits until the releases that go on in the background are done: each of them has a limit, which is the ttl of its
    /// lock. Afterwards this client has left nothing behind.
    pub fn close(self) {
        let quorum = self.quorum.clone();
        self.thread.thread.block_on(quorum.close());
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.thread.last(self.quorum.clone().close());
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.quorum.fmt(f)
    }
}
