use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "tls")]
use ::redis::ConnectionAddr;
use ::redis::{Client, ConnectionInfo, IntoConnectionInfo as _, RedisError, RedisResult};

use quorlock_core::client::limits;
use quorlock_core::{redact_url, unsupported_scheme};

use crate::driver::NodeInfo;
use crate::transport::{Endpoint, WaitConnectionPool};
use crate::{ConnectError, Quorum};

/// Describes the nodes of a quorum and how to connect to them. Made by [`Quorum::builder`], and by
/// [`blocking::Quorum::builder`](crate::blocking::Quorum::builder) for the other `Q`.
///
/// ```no_run
/// # #[cfg(feature = "tls")]
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use quorlock_client::Quorum;
///
/// let quorum = Quorum::builder()
///     .nodes(["rediss://a", "rediss://b", "rediss://c"])
///     .credentials("locks", std::env::var("LOCKS_PASSWORD")?)
///     .root_certificates(std::fs::read("ca.pem")?)
///     .set("eu-locks")
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "nothing is connected until connect is called"]
pub struct QuorumBuilder<Q = Quorum> {
    nodes: Vec<NodeSource>,
    credentials: Option<(String, String)>,
    #[cfg(feature = "tls")]
    certificates: ::redis::TlsCertificates,
    node_timeout: Option<Duration>,
    connect_timeout: Duration,
    set: Option<String>,
    makes: PhantomData<fn() -> Q>,
}

#[derive(Clone)]
enum NodeSource {
    Url(String),
    Client(Box<Client>),
}

impl<Q> QuorumBuilder<Q> {
    pub(crate) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            credentials: None,
            #[cfg(feature = "tls")]
            certificates: ::redis::TlsCertificates { client_tls: None, root_cert: None },
            node_timeout: None,
            connect_timeout: limits::HANDSHAKE,
            set: None,
            makes: PhantomData,
        }
    }

    /// Adds a node: see [`Quorum::connect`].
    pub fn node(self, url: impl AsRef<str>) -> Self {
        self.nodes([url])
    }

    /// Adds nodes: see [`Quorum::connect`].
    pub fn nodes<U: AsRef<str>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        self.nodes.extend(urls.into_iter().map(|url| NodeSource::Url(url.as_ref().to_owned())));
        self
    }

    /// Adds the node to which this redis-rs client connects.
    ///
    /// With its settings, the quorum opens one connection for all locks, and one for each wait.
    pub fn redis_client(mut self, client: Client) -> Self {
        self.nodes.push(NodeSource::Client(Box::new(client)));
        self
    }

    /// The user and the password for all nodes that are added by a URL without a password.
    ///
    /// A password with `/`, `@` or `%` needs no escapes here, and no URL has to contain a secret.
    /// `default` is the user of a server with a `requirepass` only. A user in a URL stays.
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.credentials = Some((user.into(), password.into()));
        self
    }

    /// The root certificates for `rediss://` nodes, in PEM. Default: the roots of the system.
    ///
    /// The environment variable `SSL_CERT_FILE` names a file that replaces the roots of the system.
    #[cfg(feature = "tls")]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.root_cert = Some(pem.into());
        self
    }

    /// The certificate and the key of this client for the `rediss://` nodes, both in PEM.
    #[cfg(feature = "tls")]
    pub fn client_certificate(
        mut self,
        chain_pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates.client_tls = Some(::redis::ClientTlsConfig {
            client_cert: chain_pem.into(),
            client_key: key_pem.into(),
        });
        self
    }

    /// How long a node may take to answer before it counts as silent. Default: derived.
    ///
    /// Applies to all locks without their own
    /// [`LockBuilder::node_timeout`](crate::LockBuilder::node_timeout), which has the details. The
    /// limit for a lock is at most a quarter of its ttl.
    pub fn node_timeout(mut self, limit: Duration) -> Self {
        self.node_timeout = Some(limit);
        self
    }

    /// How long [`connect`](Quorum::connect) waits for a majority. Default: 5 s.
    ///
    /// After that time `connect` returns, and the client keeps trying to reach the nodes. With a
    /// short limit, the first call for a lock may find that too few nodes are connected.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// The name of the nodes' set (`lock.set`). Default: the set that a majority reports.
    pub fn set(mut self, name: impl Into<String>) -> Self {
        self.set = Some(name.into());
        self
    }

    pub(crate) async fn open_all(self) -> Result<Quorum, ConnectError> {
        let nodes = self.nodes.iter().map(|node| self.open(node)).collect::<Result<_, _>>()?;
        Quorum::start(nodes, self.set, self.node_timeout, self.connect_timeout).await
    }

    fn open(&self, node: &NodeSource) -> Result<NodeInfo, ConnectError> {
        let endpoint = Endpoint::new(&self.client_of(node)?).map_err(|error| tls_error(&error))?;
        let name: Arc<str> = endpoint.address().into();
        let wait_connections = Arc::new(WaitConnectionPool::new(endpoint.clone()));
        Ok(NodeInfo { name, endpoint, wait_connections })
    }

    /// Makes a client of redis-rs for each node, and connects none.
    ///
    /// Not part of the API: the program `quorlock` connects to each node by itself, too.
    #[doc(hidden)]
    pub fn redis_clients(&self) -> Vec<Result<Client, ConnectError>> {
        self.nodes.iter().map(|node| self.client_of(node)).collect()
    }

    fn client_of(&self, node: &NodeSource) -> Result<Client, ConnectError> {
        let url = match node {
            NodeSource::Client(client) => return Ok((**client).clone()),
            NodeSource::Url(url) => url,
        };
        let invalid = |reason: String| ConnectError::InvalidUrl { url: redact_url(url), reason };
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        if let Some(reason) = unsupported_scheme(scheme) {
            return Err(invalid(reason.to_owned()));
        }
        let info =
            url.as_str().into_connection_info().map_err(|error| invalid(error.to_string()))?;
        self.open_client(self.with_credentials(info)).map_err(|error| tls_error(&error))
    }

    fn with_credentials(&self, info: ConnectionInfo) -> ConnectionInfo {
        let settings = info.redis_settings();
        match &self.credentials {
            Some((user, password)) if settings.password().is_none() => {
                let user = settings.username().unwrap_or(user).to_owned();
                let settings = settings.clone().set_username(user).set_password(password);
                info.set_redis_settings(settings)
            }
            _ => info,
        }
    }

    #[cfg_attr(
        not(feature = "tls"),
        expect(clippy::unused_self, reason = "it has no certificates")
    )]
    fn open_client(&self, info: ConnectionInfo) -> RedisResult<Client> {
        #[cfg(feature = "tls")]
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            choose_cryptography();
            return Client::build_with_tls(info, self.certificates.clone());
        }
        Client::open(info)
    }
}

impl QuorumBuilder {
    /// Connects: see [`Quorum::connect`].
    ///
    /// # Errors
    /// See [`Quorum::connect`].
    ///
    /// # Cancel safety
    /// Dropping the future closes the connections.
    pub async fn connect(self) -> Result<Quorum, ConnectError> {
        self.open_all().await
    }
}

impl<Q> fmt::Debug for QuorumBuilder<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |node: &NodeSource| match node {
            NodeSource::Url(url) => redact_url(url),
            NodeSource::Client(_) => "a client of redis-rs".to_owned(),
        };
        let nodes: Vec<_> = self.nodes.iter().map(name).collect();
        f.debug_struct("QuorumBuilder").field("nodes", &nodes).finish_non_exhaustive()
    }
}

fn tls_error(error: &RedisError) -> ConnectError {
    ConnectError::Tls { reason: error.to_string() }
}

/// Without a cryptography provider, connecting panics. The program may have chosen one.
#[cfg(feature = "tls")]
fn choose_cryptography() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Another thread may have installed one in the meantime.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
