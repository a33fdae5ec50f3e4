//! Why something could not be done, with each node's own answer.

use std::fmt;
use std::time::Duration;

use quorlock_core::Fence;

/// Why a [`Quorum`](crate::Quorum) could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No node was named.
    ///
    /// ```
    /// # use quorlock_client::{ConnectError, Quorum};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let error = Quorum::connect(Vec::<String>::new()).await.unwrap_err();
    /// assert!(matches!(error, ConnectError::NoNodes));
    /// # }
    /// ```
    #[error("no nodes were named: give the URLs of the masters, three or five of them")]
    NoNodes,
    /// A URL cannot be used.
    ///
    /// ```
    /// # use quorlock_client::{ConnectError, Quorum};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let error = Quorum::connect(["http://user:secret@a"]).await.unwrap_err();
    /// assert!(matches!(error, ConnectError::BadUrl { .. }));
    /// assert!(!error.to_string().contains("secret"));
    /// # }
    /// ```
    #[error("{url} is not the URL of a node: {reason}")]
    BadUrl {
        /// The URL, without its password.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The same address was named twice: one server would have two votes.
    ///
    /// ```
    /// # use quorlock_client::{ConnectError, Quorum};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let error = Quorum::connect(["redis://a", "redis://a:6379/1"]).await.unwrap_err();
    /// assert!(matches!(error, ConnectError::NamedTwice { .. }));
    /// # }
    /// ```
    #[error("{node} is named twice: a server must not have two votes")]
    NamedTwice {
        /// The address.
        node: String,
    },
    /// Two addresses lead to the same server, which would have two votes.
    ///
    /// ```
    /// # use quorlock_client::{ConnectError, Quorum};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let master = quorlock_testkit::Server::with_module().start().unwrap();
    /// # let another_way = quorlock_testkit::Proxy::start(master.url());
    /// let error = Quorum::connect([master.url(), another_way.url()]).await.unwrap_err();
    /// assert!(matches!(error, ConnectError::SameServer { .. }));
    /// # }
    /// ```
    #[error("{} and {} are the same server: a server must not have two votes", nodes[0], nodes[1])]
    SameServer {
        /// The addresses.
        nodes: [String; 2],
    },
    /// The system has no thread left for a [`blocking::Quorum`](crate::blocking::Quorum).
    #[error("no thread for the connections")]
    NoThread {
        /// What the system says.
        source: std::io::Error,
    },
    /// There is no tokio runtime here to run the connections on.
    ///
    /// ```
    /// # use quorlock_client::{ConnectError, Quorum};
    /// let connecting = Quorum::connect(["redis://a"]);
    /// let error = futures_util::FutureExt::now_or_never(connecting).unwrap().unwrap_err();
    /// assert!(matches!(error, ConnectError::NoRuntime));
    /// ```
    #[error("no tokio runtime: call this from within one")]
    NoRuntime,
}

/// Why a lock was not acquired. Whatever some nodes may have granted is being released in the background.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Others hold the lock on so many nodes that no majority can be won.
    ///
    /// ```
    /// # use quorlock_client::{AcquireError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let masters = quorlock_testkit::Masters::start(3);
    /// # let quorum = quorlock_client::Quorum::builder().nodes(masters.urls());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// # while quorum.connected().1 < 3 { tokio::task::yield_now().await }
    /// let _lock = quorum.lock("k").acquire().await.unwrap();
    /// let error = quorum.lock("k").try_acquire().await.unwrap_err();
    /// assert!(matches!(error, AcquireError::Held { .. }));
    /// # }
    /// ```
    #[error("the lock is held by another: {nodes}")]
    Held {
        /// What each node answered.
        nodes: Nodes,
    },
    /// No majority could be won because nodes do not answer, answer with an error, or abstain.
    ///
    /// ```
    /// # use quorlock_client::{AcquireError, NodeError, Quorum};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let quorum = Quorum::connect(["redis://127.0.0.1:1"]).await.unwrap();
    /// let AcquireError::NoQuorum { nodes } = quorum.lock("k").try_acquire().await.unwrap_err() else { panic!() };
    /// let (node, error) = nodes.failed().next().unwrap();
    /// assert_eq!(node, "127.0.0.1:1");
    /// assert!(matches!(error, NodeError::Down { .. }));
    /// # }
    /// ```
    #[error("no majority of the nodes can vote: {nodes}")]
    NoQuorum {
        /// What each node answered.
        nodes: Nodes,
    },
    /// The wait ran out while others held the lock.
    ///
    /// ```
    /// # use quorlock_client::{AcquireError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let masters = quorlock_testkit::Masters::start(3);
    /// # let quorum = quorlock_client::Quorum::builder().nodes(masters.urls());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// # while quorum.connected().1 < 3 { tokio::task::yield_now().await }
    /// let _lock = quorum.lock("k").acquire().await.unwrap();
    /// let error = quorum.lock("k").wait(std::time::Duration::from_millis(100)).acquire().await.unwrap_err();
    /// assert!(matches!(error, AcquireError::TimedOut { .. }));
    /// # }
    /// ```
    #[error("the lock was still held by another after waiting {waited:?}: {nodes}")]
    TimedOut {
        /// How long was waited.
        waited: Duration,
        /// What each node answered last.
        nodes: Nodes,
    },
    /// When a majority had granted the lock, or it was clear that none would in time, less than the wanted validity was
    /// left.
    ///
    /// ```
    /// # use quorlock_client::{AcquireError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let masters = quorlock_testkit::Masters::start(3);
    /// # let quorum = quorlock_client::Quorum::builder().nodes(masters.urls());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// # while quorum.connected().1 < 3 { tokio::task::yield_now().await }
    /// // All that is left of a second after clock drift: no answer can be so fast.
    /// let builder = quorum.lock("k").ttl(std::time::Duration::from_millis(1000)).min_validity(std::time::Duration::from_millis(988));
    /// let error = builder.try_acquire().await.unwrap_err();
    /// assert!(matches!(error, AcquireError::Expired { .. }));
    /// # }
    /// ```
    #[error(
        "the nodes answered too late for the lock to be of use: {nodes}. Raise the ttl, or lower min_validity"
    )]
    Expired {
        /// What each node answered.
        nodes: Nodes,
    },
    /// What was asked for can never be a lock.
    ///
    /// ```
    /// # use quorlock_client::{AcquireError, Quorum};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let quorum = Quorum::connect(["redis://127.0.0.1:1"]).await.unwrap();
    /// let error = quorum.lock("k").ttl(std::time::Duration::ZERO).acquire().await.unwrap_err();
    /// assert!(matches!(error, AcquireError::Unusable { .. }));
    /// # }
    /// ```
    #[error("{reason}")]
    Unusable {
        /// What is wrong, and what to do.
        reason: String,
    },
}

/// Why a lock was not extended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The lock is not held any more. Stop what it protected.
    ///
    /// ```
    /// # use quorlock_client::{ExtendError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let masters = quorlock_testkit::Masters::start(3);
    /// # let quorum = quorlock_client::Quorum::builder().nodes(masters.urls());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// # while quorum.connected().1 < 3 { tokio::task::yield_now().await }
    /// let mut lock = quorum.lock("k").ttl(std::time::Duration::from_millis(200)).acquire().await.unwrap();
    /// lock.lost().await;
    /// let error = lock.extend().await.unwrap_err();
    /// assert!(matches!(error, ExtendError::Lost { .. }));
    /// # }
    /// ```
    #[error("the lock is lost: {nodes}")]
    Lost {
        /// What each node answered.
        nodes: Nodes,
    },
    /// Too few nodes confirmed. The lock is held until its old deadline: [`Lock::remaining`](crate::Lock::remaining).
    ///
    /// ```
    /// # use quorlock_client::{ExtendError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let masters = quorlock_testkit::Masters::start(3);
    /// # let quorum = quorlock_client::Quorum::builder().nodes(masters.urls());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// # while quorum.connected().1 < 3 { tokio::task::yield_now().await }
    /// let mut lock = quorum.lock("k").acquire().await.unwrap();
    /// masters[0].pause();
    /// masters[1].pause();
    /// let error = lock.extend().await.unwrap_err();
    /// assert!(matches!(error, ExtendError::NoQuorum { .. }));
    /// assert!(!lock.ownership().is_lost());
    /// # }
    /// ```
    #[error("too few nodes confirmed that the lock is held: {nodes}")]
    NoQuorum {
        /// What each node answered.
        nodes: Nodes,
    },
    /// The lock has been held for so long that an extension would make it last no longer. It is held until its old
    /// deadline.
    ///
    /// ```
    /// # use quorlock_client::{ExtendError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let masters = quorlock_testkit::Masters::start(3);
    /// # let quorum = quorlock_client::Quorum::builder().nodes(masters.urls());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// # while quorum.connected().1 < 3 { tokio::task::yield_now().await }
    /// let builder = quorum.lock("k").max_hold(std::time::Duration::from_secs(6));
    /// let mut lock = builder.acquire().await.unwrap();
    /// let error = lock.extend().await.unwrap_err();
    /// assert!(matches!(error, ExtendError::HeldTooLong { .. }));
    /// # }
    /// ```
    #[error(
        "the lock is not to be held for longer than max_hold, {max_hold:?}: raise it, or do less under the lock"
    )]
    HeldTooLong {
        /// What [`LockBuilder::max_hold`](crate::LockBuilder::max_hold) says.
        max_hold: Duration,
    },
}

/// Why a lock is not held any more. Stop what it protected.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LostError {
    /// A majority of the nodes say that this lock is not held there any more: an operator has ended it, or they have
    /// forgotten it.
    ///
    /// ```
    /// # use quorlock_client::{LostError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let masters = quorlock_testkit::Masters::start(3);
    /// # let quorum = quorlock_client::Quorum::builder().nodes(masters.urls());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// # while quorum.connected().1 < 3 { tokio::task::yield_now().await }
    /// let mut lock = quorum.lock("k").acquire().await.unwrap();
    /// for master in &masters {
    ///     redis::cmd("DEL").arg("k").exec(&mut master.connection()).unwrap();
    /// }
    /// lock.extend().await.unwrap_err();
    /// assert!(matches!(lock.lost().await, LostError::Ended { .. }));
    /// # }
    /// ```
    #[error("the lock has ended on the nodes: {nodes}")]
    Ended {
        /// What each node answered last.
        nodes: Nodes,
    },
    /// Its deadline has come, and no majority has confirmed an extension before; if one was asked for at all.
    ///
    /// ```
    /// # use quorlock_client::{LostError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let masters = quorlock_testkit::Masters::start(3);
    /// # let quorum = quorlock_client::Quorum::builder().nodes(masters.urls());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// # while quorum.connected().1 < 3 { tokio::task::yield_now().await }
    /// let lock = quorum.lock("k").ttl(std::time::Duration::from_millis(200)).acquire().await.unwrap();
    /// assert!(matches!(lock.lost().await, LostError::Expired { .. }));
    /// # }
    /// ```
    #[error("the lock's time is over, and it was not extended: {nodes}")]
    Expired {
        /// What each node answered last.
        nodes: Nodes,
    },
    /// The lock has been held for as long as it was to be held at all.
    ///
    /// ```
    /// # use quorlock_client::{LostError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let masters = quorlock_testkit::Masters::start(3);
    /// # let quorum = quorlock_client::Quorum::builder().nodes(masters.urls());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// # while quorum.connected().1 < 3 { tokio::task::yield_now().await }
    /// let builder = quorum.lock("k").ttl(std::time::Duration::from_millis(400)).max_hold(std::time::Duration::from_millis(300));
    /// let mut lock = builder.acquire().await.unwrap();
    /// lock.keep_alive();
    /// assert!(matches!(lock.lost().await, LostError::HeldTooLong { .. }));
    /// # }
    /// ```
    #[error("the lock was held for max_hold, {max_hold:?}: raise it, or do less under the lock")]
    HeldTooLong {
        /// What [`LockBuilder::max_hold`](crate::LockBuilder::max_hold) says.
        max_hold: Duration,
    },
}

/// Why what was to be done under a lock was not done under it to its end.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RunError<T> {
    /// The lock was not acquired, and nothing was done.
    ///
    /// ```
    /// # use quorlock_client::{Quorum, RunError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let quorum = Quorum::connect(["redis://127.0.0.1:1"]).await.unwrap();
    /// let builder = quorum.lock("k").wait(std::time::Duration::ZERO);
    /// let error = builder.run(async |_| unreachable!()).await.unwrap_err();
    /// assert!(matches!(error, RunError::<()>::NotAcquired(_)));
    /// # }
    /// ```
    #[error("nothing was done, because the lock was not acquired")]
    NotAcquired(#[source] AcquireError),
    /// The lock was lost meanwhile.
    ///
    /// ```
    /// # use quorlock_client::{RunError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let masters = quorlock_testkit::Masters::start(3);
    /// # let quorum = quorlock_client::Quorum::builder().nodes(masters.urls());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// # while quorum.connected().1 < 3 { tokio::task::yield_now().await }
    /// let builder = quorum.lock("k").ttl(std::time::Duration::from_millis(400)).max_hold(std::time::Duration::from_millis(300));
    /// let error = builder.run(async |_| std::future::pending::<()>().await).await.unwrap_err();
    /// assert!(matches!(error, RunError::Lost { output: None, .. }));
    /// # }
    /// ```
    #[error("the lock was lost while something was done under it, which was {}", if output.is_some() { "done when that was noticed" } else { "stopped" })]
    Lost {
        /// Why.
        #[source]
        lost: LostError,
        /// What came of it, if it had come to an end before the loss was noticed: its own error, for example.
        output: Option<T>,
    },
}

impl<T> fmt::Debug for RunError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAcquired(error) => f.debug_tuple("NotAcquired").field(error).finish(),
            Self::Lost { lost, output } => {
                let output = output.as_ref().map(|_| format_args!("…"));
                f.debug_struct("Lost").field("lost", lost).field("output", &output).finish()
            }
        }
    }
}

/// Why a lock that another process gave was not resumed. If some nodes have made it this one's already, they are releasing
/// it in the background.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// The lock has ended, or somebody else has resumed it.
    ///
    /// ```
    /// # use quorlock_client::{ResumeError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let masters = quorlock_testkit::Masters::start(3);
    /// # let quorum = quorlock_client::Quorum::builder().nodes(masters.urls());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// # while quorum.connected().1 < 3 { tokio::task::yield_now().await }
    /// let text = quorum.lock("k").acquire().await.unwrap().hand_over().to_secret_text();
    /// let _lock = quorum.resume(text.parse().unwrap()).await.unwrap();
    /// let error = quorum.resume(text.parse().unwrap()).await.unwrap_err();
    /// assert!(matches!(error, ResumeError::Gone { .. }));
    /// # }
    /// ```
    #[error("the lock has ended, or was resumed by another: {nodes}")]
    Gone {
        /// What each node answered.
        nodes: Nodes,
    },
    /// Too few nodes answered.
    ///
    /// ```
    /// # use quorlock_client::{ResumeError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let masters = quorlock_testkit::Masters::start(3);
    /// # let quorum = quorlock_client::Quorum::builder().nodes(masters.urls());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// # while quorum.connected().1 < 3 { tokio::task::yield_now().await }
    /// let handover = quorum.lock("k").acquire().await.unwrap().hand_over();
    /// masters[0].pause();
    /// masters[1].pause();
    /// let error = quorum.resume(handover).await.unwrap_err();
    /// assert!(matches!(error, ResumeError::NoQuorum { .. }));
    /// # }
    /// ```
    #[error("too few nodes answered for the lock to be resumed: {nodes}")]
    NoQuorum {
        /// What each node answered.
        nodes: Nodes,
    },
    /// When a majority had answered, less than the wanted validity was left.
    ///
    /// ```
    /// # use quorlock_client::{ResumeError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let masters = quorlock_testkit::Masters::start(3);
    /// # let quorum = quorlock_client::Quorum::builder().nodes(masters.urls());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// # while quorum.connected().1 < 3 { tokio::task::yield_now().await }
    /// let handover = quorum.lock("k").acquire().await.unwrap().hand_over();
    /// // All that is left of a second after clock drift: no answer can be so fast.
    /// let builder = quorum.lock("k").ttl(std::time::Duration::from_millis(1000)).min_validity(std::time::Duration::from_millis(988));
    /// let error = builder.resume(handover).await.unwrap_err();
    /// assert!(matches!(error, ResumeError::Expired { .. }));
    /// # }
    /// ```
    #[error(
        "the nodes answered too late for the lock to be of use: {nodes}. Raise the ttl, or lower min_validity"
    )]
    Expired {
        /// What each node answered.
        nodes: Nodes,
    },
    /// What was asked for can never be a lock, or is not this lock.
    ///
    /// ```
    /// # use quorlock_client::{ResumeError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let masters = quorlock_testkit::Masters::start(3);
    /// # let quorum = quorlock_client::Quorum::builder().nodes(masters.urls());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// # while quorum.connected().1 < 3 { tokio::task::yield_now().await }
    /// let handover = quorum.lock("a").acquire().await.unwrap().hand_over();
    /// let error = quorum.lock("b").resume(handover).await.unwrap_err();
    /// assert!(matches!(error, ResumeError::Unusable { .. }));
    /// # }
    /// ```
    #[error("{reason}")]
    Unusable {
        /// What is wrong, and what to do.
        reason: String,
    },
}

/// Why it is not known whether a lock was released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// Too few nodes answered. The release goes on in the background, and the lock ends by its deadline at the latest.
    ///
    /// ```
    /// # use quorlock_client::{ReleaseError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let masters = quorlock_testkit::Masters::start(3);
    /// # let quorum = quorlock_client::Quorum::builder().nodes(masters.urls());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// # while quorum.connected().1 < 3 { tokio::task::yield_now().await }
    /// let lock = quorum.lock("k").acquire().await.unwrap();
    /// masters[0].pause();
    /// masters[1].pause();
    /// let error = lock.release().await.unwrap_err();
    /// assert!(matches!(error, ReleaseError::NoQuorum { .. }));
    /// # }
    /// ```
    #[error("too few nodes confirmed the release: {nodes}")]
    NoQuorum {
        /// What each node answered.
        nodes: Nodes,
    },
}

/// What every node answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes(pub Vec<NodeAnswer>);

/// What one node answered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeAnswer {
    /// The node's address.
    pub node: String,
    /// Its answer.
    pub answer: Answer,
}

/// An answer, as far as one came.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// The node did what was asked.
    Yes(Option<Fence>),
    /// The node did not: another holds the lock there, or this one no longer does.
    No,
    /// The node did not vote.
    Failed(NodeError),
    /// It was decided before the node answered, or was asked.
    Pending,
}

/// Why a node did not vote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// There is no connection, for this reason.
    ///
    /// ```
    /// # use quorlock_client::{AcquireError, NodeError, Quorum};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let quorum = Quorum::connect(["redis://127.0.0.1:1"]).await.unwrap();
    /// let AcquireError::NoQuorum { nodes } = quorum.lock("k").try_acquire().await.unwrap_err() else { panic!() };
    /// let (_, error) = nodes.failed().next().unwrap();
    /// assert!(matches!(error, NodeError::Down { .. }));
    /// # }
    /// ```
    #[error("not connected ({reason})")]
    Down {
        /// What the last attempt to connect said.
        reason: String,
    },
    /// No answer within the time limit.
    ///
    /// ```
    /// # use quorlock_client::{AcquireError, NodeError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let masters = quorlock_testkit::Masters::start(1);
    /// # let quorum = quorlock_client::Quorum::builder().nodes(masters.urls());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// # while quorum.connected().1 < 1 { tokio::task::yield_now().await }
    /// masters[0].pause();
    /// let AcquireError::NoQuorum { nodes } = quorum.lock("k").try_acquire().await.unwrap_err() else { panic!() };
    /// let (_, error) = nodes.failed().next().unwrap();
    /// assert_eq!(error, &NodeError::TimedOut { limit_ms: 1000 });
    /// # }
    /// ```
    #[error("no answer within {limit_ms} ms")]
    TimedOut {
        /// The limit per node, in milliseconds.
        limit_ms: u64,
    },
    /// The node may have forgotten locks and stays out until they have ended.
    ///
    /// ```
    /// # use quorlock_client::{AcquireError, NodeError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let server = quorlock_testkit::Server::with_module().arg("lock.rejoin-delay", 60_000).start().unwrap();
    /// # let quorum = quorlock_client::Quorum::builder().node(server.url());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// // It was started a moment ago.
    /// let AcquireError::NoQuorum { nodes } = quorum.lock("k").try_acquire().await.unwrap_err() else { panic!() };
    /// let (_, error) = nodes.failed().next().unwrap();
    /// assert!(matches!(error, NodeError::Abstains { .. }));
    /// # }
    /// ```
    #[error("abstains: {reason}")]
    Abstains {
        /// How much longer, in milliseconds, and why.
        reason: String,
    },
    /// The node's clock is so far from the others' that it does not take their fence.
    ///
    /// ```
    /// # use quorlock_client::{AcquireError, NodeError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let with_skew = |ms: u32| quorlock_testkit::Server::with_module().arg("lock.max-clock-skew", ms).start().unwrap();
    /// # let (ahead, behind) = (with_skew(60_000), with_skew(1000));
    /// # let quorum = quorlock_client::Quorum::builder().nodes([ahead.url(), behind.url()]);
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// # while quorum.connected().1 < 2 { tokio::task::yield_now().await }
    /// // One counts its fences from where a clock that is a minute ahead would be, and the other allows for a second.
    /// let AcquireError::NoQuorum { nodes } = quorum.lock("k").try_acquire().await.unwrap_err() else { panic!() };
    /// let (_, error) = nodes.failed().next().unwrap();
    /// assert!(matches!(error, NodeError::ClockBehind { .. }));
    /// # }
    /// ```
    #[error("its clock is too far behind the others': {reason}")]
    ClockBehind {
        /// The node's own words.
        reason: String,
    },
    /// The node answered an error.
    ///
    /// ```
    /// # use quorlock_client::{AcquireError, NodeError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let masters = quorlock_testkit::Masters::start(1);
    /// # let quorum = quorlock_client::Quorum::builder().nodes(masters.urls());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// # while quorum.connected().1 < 1 { tokio::task::yield_now().await }
    /// redis::cmd("LPUSH").arg("k").arg("a list").exec(&mut masters[0].connection()).unwrap();
    /// let AcquireError::NoQuorum { nodes } = quorum.lock("k").try_acquire().await.unwrap_err() else { panic!() };
    /// let (_, error) = nodes.failed().next().unwrap();
    /// assert!(matches!(error, NodeError::Refused(words) if words.starts_with("WRONGTYPE")));
    /// # }
    /// ```
    #[error("{0}")]
    Refused(
        /// Its own words.
        String,
    ),
    /// The server runs, but without the module.
    ///
    /// ```
    /// # use quorlock_client::{AcquireError, NodeError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let server = quorlock_testkit::Server::builder().start().unwrap();
    /// # let quorum = quorlock_client::Quorum::builder().node(server.url());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// let AcquireError::NoQuorum { nodes } = quorum.lock("k").try_acquire().await.unwrap_err() else { panic!() };
    /// let (_, error) = nodes.failed().next().unwrap();
    /// assert_eq!(error, &NodeError::NoModule);
    /// # }
    /// ```
    #[error(
        "the lock module is not loaded there: add `loadmodule /path/to/libquorlock.so` to its configuration"
    )]
    NoModule,
    /// This is a server that another node is already: it has a vote there, and none here.
    ///
    /// ```
    /// # use quorlock_client::{AcquireError, NodeError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let (a, b) = (quorlock_testkit::Server::with_module().start().unwrap(), quorlock_testkit::Server::with_module().start().unwrap());
    /// # let another_way = quorlock_testkit::Proxy::start(b.url());
    /// # another_way.cut();
    /// # let quorum = quorlock_client::Quorum::connect([a.url(), b.url(), another_way.url()]).await.unwrap();
    /// # another_way.heal();
    /// // The third address could not be reached at first, and turns out to be the second server.
    /// let same = loop {
    ///     let _lock = quorum.lock("k").acquire().await.unwrap();
    ///     let AcquireError::Held { nodes } = quorum.lock("k").try_acquire().await.unwrap_err() else { panic!() };
    ///     if let Some((_, NodeError::SameServer { node })) = nodes.failed().next() {
    ///         break node.clone();
    ///     }
    /// };
    /// assert!(b.url().contains(&same));
    /// # }
    /// ```
    #[error("it is the same server as {node}, which has its vote")]
    SameServer {
        /// The other address.
        node: String,
    },
    /// The server is a Sentinel, or in cluster mode: no master that stands by itself.
    ///
    /// ```
    /// # use quorlock_client::{AcquireError, NodeError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let server = quorlock_testkit::Server::builder().tcp().arg("cluster-enabled", "yes").start().unwrap();
    /// # let quorum = quorlock_client::Quorum::builder().node(server.url());
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// let AcquireError::NoQuorum { nodes } = quorum.lock("k").try_acquire().await.unwrap_err() else { panic!() };
    /// let (_, error) = nodes.failed().next().unwrap();
    /// assert!(matches!(error, NodeError::NotAMaster { mode } if mode == "cluster"));
    /// # }
    /// ```
    #[error("it runs in {mode} mode: a node must be a master that stands by itself")]
    NotAMaster {
        /// What the server calls it.
        mode: String,
    },
    /// The node answered something that is not an answer to what was asked.
    ///
    /// ```
    /// # use quorlock_client::{AcquireError, NodeError};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # use std::io::{Read as _, Write as _};
    /// # let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    /// # let url = format!("redis://{}", listener.local_addr().unwrap());
    /// # std::thread::spawn(move || {
    /// #     for connection in listener.incoming() {
    /// #         let mut connection = connection.unwrap();
    /// #         std::thread::spawn(move || {
    /// #             let mut bytes = [0; 4096];
    /// #             while let Ok(count @ 1..) = connection.read(&mut bytes) {
    /// #                 let commands = bytes[..count].iter().filter(|byte| **byte == b'*').count();
    /// #                 connection.write_all("+OK\r\n".repeat(commands).as_bytes()).unwrap();
    /// #             }
    /// #         });
    /// #     }
    /// # });
    /// # let quorum = quorlock_client::Quorum::builder().node(url);
    /// # let quorum = quorum.node_limit(std::time::Duration::from_secs(1)).connect().await.unwrap();
    /// // Something that says OK to everything.
    /// let AcquireError::NoQuorum { nodes } = quorum.lock("k").try_acquire().await.unwrap_err() else { panic!() };
    /// let (_, error) = nodes.failed().next().unwrap();
    /// assert_eq!(error, &NodeError::Nonsense);
    /// # }
    /// ```
    #[error("answered nonsense")]
    Nonsense,
}

impl NodeError {
    /// A node has not answered within this limit.
    pub(crate) fn timed_out(limit: Duration) -> Self {
        Self::TimedOut { limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX) }
    }

    /// Whether it stays so until a person does something about it: the server lacks the module, does not allow the user what
    /// is asked, or does not take it as it is. Nodes that are away, abstain, or are short of something come back by
    /// themselves.
    ///
    /// ```
    /// # use quorlock_client::NodeError;
    /// assert!(NodeError::NoModule.is_lasting());
    /// assert!(NodeError::Refused("NOPERM this user has no permissions".into()).is_lasting());
    /// assert!(!NodeError::TimedOut { limit_ms: 50 }.is_lasting());
    /// ```
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::NoModule | Self::NotAMaster { .. } | Self::SameServer { .. } => true,
            Self::Refused(words) => ["NOPERM ", "NOAUTH ", "WRONGPASS ", "WRONGTYPE ", "ERR ttl "]
                .iter()
                .any(|kind| words.starts_with(kind)),
            Self::Down { .. }
            | Self::TimedOut { .. }
            | Self::Abstains { .. }
            | Self::ClockBehind { .. }
            | Self::Nonsense => false,
        }
    }
}

impl Nodes {
    /// The nodes that did not vote.
    pub fn failed(&self) -> impl Iterator<Item = (&str, &NodeError)> {
        self.0.iter().filter_map(|node| match &node.answer {
            Answer::Failed(error) => Some((node.node.as_str(), error)),
            _ => None,
        })
    }
}

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{} ", node.node)?;
            match &node.answer {
                Answer::Yes(_) => write!(f, "said yes")?,
                Answer::No => write!(f, "said no")?,
                Answer::Failed(error) => write!(f, "{error}")?,
                Answer::Pending => write!(f, "was not waited for")?,
            }
        }
        Ok(())
    }
}
