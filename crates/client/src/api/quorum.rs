use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use quorlock_core::client::{Spec, limits};
use quorlock_core::operator::{RevokeMode, summarize};
use quorlock_core::quorum::Majority;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::lock_builder::Kind;
use super::lock_inner;
use super::queries::{self, PERMITS_MAX, slot_key};
use crate::driver::{Network, NodeInfo, Shards};
use crate::{
    Answer, AttachError, ConnectError, DetachedLock, FlushError, InspectError, Inspection,
    LeaseInfo, ListedLock, Lock, LockBuilder, LockList, LockState, NodeError, NodeHealth,
    NodeInspection, NodeRevocation, QuorumBuilder, ReleaseError, Released, Revocation, RevokeError,
    RevokedNode, ScanError, clock,
};

const SLOTS_INSPECTED_AT_ONCE: usize = 8;

/// Independent masters that together grant locks. Cheap to clone: clones share connections.
///
/// The connections live as long as any clone, lock, builder, watch or revocation.
#[derive(Clone)]
pub struct Quorum {
    shards: Arc<Shards>,
}

impl Quorum {
    /// Connects to the masters at these URLs, usually three or five.
    ///
    /// - `redis://user:password@host:6379/0`. All but the host is optional.
    /// - `rediss://…` is the same with TLS.
    /// - `redis+unix:///path?db=0&user=…&pass=…` is a unix socket.
    ///
    /// Returns shortly after a majority is connected or each node has been tried, and after about
    /// 5 s at the latest ([`QuorumBuilder::connect_timeout`]). The client keeps trying to reach the
    /// other nodes in the background. [`Quorum::builder`] has more options.
    ///
    /// # Errors
    /// [`ConnectError`] when another call would fail as well, for example because a URL is invalid.
    /// An unreachable node does not cause an error.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connections.
    pub async fn connect<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Self, ConnectError> {
        Self::builder().nodes(urls).connect().await
    }

    /// Describes a quorum with more options: certificates, limits, the name of the set.
    pub fn builder() -> QuorumBuilder {
        QuorumBuilder::new()
    }

    pub(crate) async fn start(
        nodes: Arc<[NodeInfo]>,
        expected_set: Option<String>,
        node_timeout: Option<Duration>,
        connect_timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let majority = Majority::of(nodes.len()).ok_or(ConnectError::NoNodes)?;
        let mut names = HashSet::new();
        if let Some(twice) = nodes.iter().find(|node| !names.insert(&node.name)) {
            return Err(ConnectError::DuplicateNode { node: twice.name.to_string() });
        }
        if nodes.len().is_multiple_of(2) {
            tracing::warn!(
                nodes = nodes.len(),
                "an even number of nodes survives no more failures than one node fewer: use three or five"
            );
        }
        let runtime = Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
        let network = Network::start(nodes, majority, expected_set, node_timeout, runtime);
        let quorum = Self { shards: Shards::start(network) };
        quorum.settle(majority, connect_timeout).await;
        // An address that only later proves to be the same server gets no vote.
        for node in quorum.health() {
            if let Some(NodeError::SameServer { node: other }) = node.error {
                return Err(ConnectError::SameServer { nodes: [other, node.node] });
            }
        }
        Ok(quorum)
    }

    /// Waits until a majority can vote or each node was tried, then briefly for the others.
    async fn settle(&self, majority: Majority, limit: Duration) {
        let network = &self.shards.network;
        let (view, mut changed) = (|| network.view.load(), network.changed.clone());
        let enough = changed.wait_for(|()| {
            let view = view();
            let voting = view.links.iter().filter(|link| link.error.is_none());
            view.settled || voting.count() >= majority.size()
        });
        let _ = timeout(limit, enough).await;
        let stragglers = changed.wait_for(|()| view().settled);
        let _ = timeout(network.typical_timeout(), stragglers).await;
    }

    /// Describes a lock on `key`, which may be any bytes and is the same on every node.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> LockBuilder {
        self.lock_all([key])
    }

    /// Describes one lock on several keys, at most 64: all of them or none.
    ///
    /// The lock has one fence and one deadline. It excludes every other lock on any of its keys,
    /// and its fence is larger than that of every earlier holder of any of its keys. The order of
    /// the keys does not matter. A waiting client holds no key, so that clients never deadlock.
    ///
    /// ```no_run
    /// # async fn example(quorum: quorlock_client::Quorum) -> Result<(), Box<dyn std::error::Error>> {
    /// let transfer = quorum.lock_all(["account/17", "account/4"]).acquire().await?;
    /// println!("fence {} for both", transfer.fence());
    /// transfer.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock_all<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> LockBuilder {
        LockBuilder::new(Kind::All, Arc::clone(&self.shards), keys.into_iter().collect())
    }

    /// Describes a lock on one of up to 64 keys: on the first that becomes free.
    ///
    /// Use it to take one of several resources that do the same work. The lock is an ordinary lock
    /// on the key that [`Lock::key`](crate::LockWatch::key) returns. All clients should name the
    /// same keys, in any order.
    ///
    /// ```no_run
    /// # async fn example(quorum: quorlock_client::Quorum) -> Result<(), Box<dyn std::error::Error>> {
    /// let printer = quorum.lock_any(["printer/east", "printer/west"]).acquire().await?;
    /// println!("{}", String::from_utf8_lossy(printer.key()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock_any<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> LockBuilder {
        LockBuilder::new(Kind::Any, Arc::clone(&self.shards), keys.into_iter().collect())
    }

    /// Describes a permit of a semaphore. At most `permits` (1 to 64) permits are held at a time.
    ///
    /// A permit is an ordinary lock on one of the keys `name:00`, `name:01` and so on. The number
    /// in the key is the permit's [slot](crate::LockWatch::slot). Each permit has its own deadline
    /// and fence. Fences grow within a slot, and those of different slots are unrelated.
    ///
    /// All clients must use the same number of permits: a client with a larger number admits that
    /// many holders. A client that finds the semaphore full checks whether [another client uses a
    /// larger number](Self::larger_permits), and warns.
    ///
    /// A call asks for a slot that is likely free, or else for any other one. If all are taken, it
    /// stands in line for all of them.
    ///
    /// ```no_run
    /// # async fn example(quorum: quorlock_client::Quorum) -> Result<(), Box<dyn std::error::Error>> {
    /// let permit = quorum.semaphore("encoder", 4).acquire().await?;
    /// println!("slot {:?} of 4", permit.slot());
    /// # Ok(())
    /// # }
    /// ```
    pub fn semaphore(&self, name: impl AsRef<[u8]>, permits: usize) -> LockBuilder {
        let keys = (0..permits.min(PERMITS_MAX)).map(|slot| slot_key(name.as_ref(), slot));
        LockBuilder::new(Kind::Permits(permits), Arc::clone(&self.shards), keys.collect())
    }

    /// Attaches a lock that another process [detached](crate::Lock::detach), with the same ttl.
    ///
    /// [`LockBuilder::attach`] can change the ttl and other options.
    ///
    /// # Errors
    /// See [`LockBuilder::attach`].
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background on nodes that attached it.
    pub async fn attach(&self, detached: DetachedLock) -> Result<Lock, AttachError> {
        self.lock_all(detached.keys()).ttl(detached.ttl()).attach(detached).await
    }

    /// Releases a detached lock that no process attaches.
    ///
    /// # Errors
    /// [`ReleaseError::NoQuorum`] when too few nodes answer. The release then continues.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the release to the background.
    pub async fn release_detached(&self, detached: DetachedLock) -> Result<Released, ReleaseError> {
        let spec = Spec {
            node_timeout: self.shards.network.node_timeout(detached.ttl),
            ..Spec::exclusive(detached.keys, detached.ttl)
        };
        lock_inner::release_token(&self.shards, detached.token, spec).await
    }

    /// The state of the connection to each node, in the order in which the nodes were named.
    pub fn health(&self) -> Vec<NodeHealth> {
        let now = clock::now();
        let view = self.shards.network.view.load();
        let nodes = self.shards.network.nodes.iter().zip(&view.links).enumerate();
        let nodes = nodes.map(|(index, (node, link))| {
            let hello = link.hello.as_ref();
            NodeHealth {
                node: node.name.to_string(),
                error: link.error.clone(),
                since: now.since(link.since),
                round_trip: self.shards.network.client_state.round_trips.of(index),
                module_version: hello.and_then(|hello| hello.module_version.clone()),
                set: hello.and_then(|hello| hello.set.set().map(ToString::to_string)),
            }
        });
        nodes.collect()
    }

    /// Asks every node which lock holds `key`, and for how long.
    ///
    /// The answer is for people and for tools. When it arrives, the key may have been acquired or
    /// released. To act on a free key, acquire the lock.
    ///
    /// The time limit of each node is that of a lock with a ttl of 10 s. [`Inspection::nodes`] has
    /// an error for a node that does not answer, may not vote, or may have forgotten the lock.
    ///
    /// ```no_run
    /// # async fn example(quorum: quorlock_client::Quorum) -> Result<(), Box<dyn std::error::Error>> {
    /// use quorlock_client::LockState;
    ///
    /// match quorum.inspect("orders/42").await?.state {
    ///     LockState::Free => println!("free"),
    ///     LockState::Held(lock) => println!("{:?} holds it, fence {}", lock.owner, lock.fence),
    ///     LockState::Unclear => println!("no majority of the nodes agrees"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`InspectError::NoAnswer`] when no node answers.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn inspect(&self, key: impl AsRef<[u8]>) -> Result<Inspection, InspectError> {
        let leases = queries::inspect(&self.shards.network, key.as_ref()).await;
        if leases.iter().all(Result::is_err) {
            let answers = leases.into_iter().filter_map(Result::err).map(Answer::Failed);
            return Err(InspectError::NoAnswer { nodes: self.shards.network.report(answers) });
        }
        let state = summarize(self.shards.network.client_state.majority, &leases);
        Ok(self.name_nodes(state, leases))
    }

    /// [Inspects](Self::inspect) the 64 possible slots of a [semaphore](Self::semaphore), from 0.
    ///
    /// Slots beyond the number of permits are free and have no waiters, unless a client uses a
    /// larger number. A client that waits for a permit is in the queue of every slot it accepts.
    ///
    /// # Errors
    /// [`InspectError::NoAnswer`] when no node answers about one of the slots.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn inspect_semaphore(
        &self,
        name: impl AsRef<[u8]>,
    ) -> Result<Vec<(Vec<u8>, Inspection)>, InspectError> {
        let inspect = async |slot| {
            let key = slot_key(name.as_ref(), slot);
            let inspection = self.inspect(&key).await?;
            Ok((key, inspection))
        };
        let slots = stream::iter(0..PERMITS_MAX).map(inspect);
        slots.buffered(SLOTS_INSPECTED_AT_ONCE).try_collect().await
    }

    /// Checks whether another client of a [semaphore](Self::semaphore) uses more than `permits`.
    ///
    /// Returns the smallest number of permits that the other client can be using; `None` if no node
    /// reports a slot from `permits` on as taken. A client with a smaller number does no harm, and
    /// is not detected.
    ///
    /// A client that finds a semaphore full makes this check in the background, once a minute at
    /// most, and warns with `tracing`. The check sends one pipeline to each node.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn larger_permits(&self, name: impl AsRef<[u8]>, permits: usize) -> Option<usize> {
        queries::larger_permits(&self.shards.network, name.as_ref(), permits).await
    }

    fn name_nodes(
        &self,
        state: LockState,
        leases: Vec<Result<Option<LeaseInfo>, NodeError>>,
    ) -> Inspection {
        let nodes = self.shards.network.names().zip(leases);
        let nodes = nodes.map(|(node, lease)| NodeInspection { node, lease }).collect();
        Inspection { state, nodes }
    }

    /// For operators: revokes the lock on `key` on all nodes. Its holder can no longer extend it.
    ///
    /// The key stays taken until the holder releases the lock, or until the deadline, on which the
    /// holder relies. Then the first waiter acquires the key. A lock of several keys is revoked on
    /// all of them.
    ///
    /// Returns when each node has answered or its time limit has passed: 1 s, or the limit of a
    /// lock with a ttl of 10 s if that is longer. [`Revocation::report`] says how long the lock may
    /// last. [`Revocation::ended`] waits for the end of the lock, and asks silent nodes again.
    ///
    /// The user needs the permission for `LOCK.REVOKE`, `LOCK.INSPECT` and `INFO` on every node.
    ///
    /// ```no_run
    /// # async fn example(quorum: quorlock_client::Quorum) -> Result<(), Box<dyn std::error::Error>> {
    /// use quorlock_client::RevocationState;
    ///
    /// let mut revocation = quorum.revoke("orders/42").await?;
    /// let report = revocation.report();
    /// if report.state == RevocationState::Revoked {
    ///     println!("the lock ends within {:?}", report.remaining);
    /// }
    /// revocation.ended().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RevokeError::NoAnswer`] when no node answers. If only a minority answers, the call
    /// succeeds with the state [`Unknown`](crate::RevocationState::Unknown).
    ///
    /// # Cancel safety
    /// Dropping the future may leave the lock revoked on some or all nodes.
    pub async fn revoke(&self, key: impl AsRef<[u8]>) -> Result<Revocation, RevokeError> {
        self.begin_revocation(key.as_ref(), RevokeMode::AtDeadline).await
    }

    /// For operators, if the holder is dead: ends the lock on `key` at once, on all nodes.
    ///
    /// **A holder that is still alive may continue its work while the next holder has the lock**,
    /// until the validity of its own lock ends or it tries to extend that lock.
    /// [`RevocationReport::remaining`](crate::RevocationReport::remaining) says for how long.
    ///
    /// Otherwise as [`revoke`](Self::revoke). The lock is ended only after a majority of the nodes,
    /// or all that answer, have revoked it, so that no repair restores it.
    ///
    /// # Errors
    /// [`RevokeError::NoAnswer`] when no node answers.
    ///
    /// # Cancel safety
    /// Dropping the future may leave the lock revoked or ended on some or all nodes.
    pub async fn revoke_now(&self, key: impl AsRef<[u8]>) -> Result<Revocation, RevokeError> {
        self.begin_revocation(key.as_ref(), RevokeMode::Now).await
    }

    async fn begin_revocation(
        &self,
        key: &[u8],
        mode: RevokeMode,
    ) -> Result<Revocation, RevokeError> {
        let mut revocation = Revocation::start(&self.shards.network, key, mode);
        revocation.settle().await;
        let failed = |node: RevokedNode| match node.result {
            NodeRevocation::Failed(error) => Some(Answer::Failed(error)),
            _ => None,
        };
        let failures: Option<Vec<_>> = revocation.report().nodes.into_iter().map(failed).collect();
        match failures {
            Some(answers) => {
                Err(RevokeError::NoAnswer { nodes: self.shards.network.report(answers) })
            }
            None => Ok(revocation),
        }
    }

    /// For operators: lists the locks whose keys match `pattern`, on all nodes.
    ///
    /// The list has the first `limit` locks in the order of their keys, and 100,000 at most. It
    /// shows each lock as [`inspect`](Self::inspect) does. The pattern is that of `SCAN`: `*`, `?`,
    /// `[a-c]`, `[^a-c]` and `\`, at most 255 bytes. Keys written with plain `SET` are not listed.
    ///
    /// The list is no snapshot. A lock that is acquired or released meanwhile may be listed for
    /// some nodes only. A lock that is held from beginning to end is listed.
    ///
    /// The client asks each node for a bounded number of locks at a time, and waits up to 1 s for
    /// each answer. `limit` bounds the memory of the list.
    ///
    /// # Errors
    /// [`ScanError::NoAnswer`] when no node lists its locks.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn scan(
        &self,
        pattern: impl AsRef<[u8]>,
        limit: usize,
    ) -> Result<LockList, ScanError> {
        let limit = limit.min(limits::LISTED_MAX);
        let listing = queries::scan(&self.shards.network, pattern.as_ref(), limit).await;
        let failures: Vec<_> = listing.failures().collect();
        if failures.iter().all(|error| !matches!(error, None | Some(NodeError::Abstains { .. }))) {
            let answers = failures.into_iter().flatten().map(Answer::Failed);
            return Err(ScanError::NoAnswer { nodes: self.shards.network.report(answers) });
        }
        let nodes = self.shards.network.names().zip(failures);
        let (is_truncated, nodes) = (listing.is_truncated(), nodes.collect());
        let locks = listing.merge(self.shards.network.client_state.majority).into_iter();
        let locks = locks.map(|lock| ListedLock {
            key: lock.key,
            lock: self.name_nodes(lock.state, lock.nodes),
        });
        Ok(LockList { locks: locks.collect(), is_truncated, nodes })
    }

    /// Waits until the releases in the background have ended, for `limit` at most.
    ///
    /// A release ends when all nodes have confirmed it, and with the ttl of its lock at the latest.
    /// Call this at the end of a program, or a lock that was just dropped may last for its ttl.
    ///
    /// # Errors
    /// [`FlushError`] with the number of unfinished releases. Their locks end by the deadlines.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the releases.
    pub async fn flush(&self, limit: Duration) -> Result<(), FlushError> {
        self.shards.tasks.close();
        let done = timeout(limit, self.shards.tasks.wait()).await;
        done.map_err(|_| FlushError { pending: self.shards.tasks.len() })
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> = self.shards.network.names().collect();
        f.debug_struct("Quorum").field("nodes", &nodes).finish_non_exhaustive()
    }
}
