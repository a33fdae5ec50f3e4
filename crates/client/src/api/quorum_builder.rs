//! URLs and certificates into clients of the nodes.

use std::fmt;
use std::time::Duration;

use ::redis::{Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo as _, TlsCertificates};

use crate::{ConnectError, Quorum};

/// Where a quorum is, and how to get there. Made by [`Quorum::builder`].
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use quorlock_client::Quorum;
///
/// let quorum = Quorum::builder()
///     .nodes(["rediss://locks:secret@a", "rediss://locks:secret@b", "rediss://locks:secret@c"])
///     .root_certificates(std::fs::read("ca.pem")?)
///     .node_limit(Duration::from_millis(400)) // they are in three regions
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "nothing is connected until connect is called"]
pub struct QuorumBuilder {
    urls: Vec<String>,
    root_certificates: Option<Vec<u8>>,
    client_certificate: Option<ClientTlsConfig>,
    node_limit: Option<Duration>,
}

impl QuorumBuilder {
    pub(crate) fn new() -> Self {
        Self { urls: Vec::new(), root_certificates: None, client_certificate: None, node_limit: None }
    }

    /// Adds a node: see [`Quorum::connect`].
    pub fn node(mut self, url: impl AsRef<str>) -> Self {
        self.urls.push(url.as_ref().to_owned());
        self
    }

    /// Adds nodes: see [`Quorum::connect`].
    pub fn nodes<U: AsRef<str>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        self.urls.extend(urls.into_iter().map(|url| url.as_ref().to_owned()));
        self
    }

    /// What signs the certificates of the `rediss://` nodes, in PEM: then nobody else does. Otherwise what this machine
    /// trusts.
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificates = Some(pem.into());
        self
    }

    /// The certificate and the key, both in PEM, by which the `rediss://` nodes know this client.
    pub fn client_certificate(mut self, chain_pem: impl Into<Vec<u8>>, key_pem: impl Into<Vec<u8>>) -> Self {
        self.client_certificate =
            Some(ClientTlsConfig { client_cert: chain_pem.into(), client_key: key_pem.into() });
        self
    }

    /// How long one node may take to answer before it counts as silent, for all locks that do not say otherwise by
    /// [`LockBuilder::node_limit`](crate::LockBuilder::node_limit); a quarter of the ttl, if that is less.
    pub fn node_limit(mut self, limit: Duration) -> Self {
        self.node_limit = Some(limit);
        self
    }

    /// Connects: see [`Quorum::connect`].
    ///
    /// # Errors
    /// Only what no time can mend: see [`ConnectError`].
    ///
    /// # Cancel safety
    /// Dropping the future closes the connections.
    pub async fn connect(self) -> Result<Quorum, ConnectError> {
        let clients = self.urls.iter().map(|url| self.open(url)).collect::<Result<_, _>>()?;
        Quorum::connected_to(clients, self.node_limit).await
    }

    /// A client of this URL. Errors never show a password.
    fn open(&self, url: &str) -> Result<Client, ConnectError> {
        let bad = |reason: String| ConnectError::BadUrl { url: without_password(url), reason };
        if let Some(reason) = not_yet(url) {
            return Err(bad(reason.to_owned()));
        }
        let info = url.into_connection_info().map_err(|error| bad(error.to_string()))?;
        let settings = info.tcp_settings().clone().set_nodelay(true);
        let info = info.set_tcp_settings(settings);
        if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            return Client::open(info).map_err(|error| bad(error.to_string()));
        }
        choose_cryptography();
        let certificates = TlsCertificates {
            client_tls: self.client_certificate.clone(),
            root_cert: self.root_certificates.clone(),
        };
        let is_plain = certificates.client_tls.is_none() && certificates.root_cert.is_none();
        let client = if is_plain { Client::open(info) } else { Client::build_with_tls(info, certificates) };
        client.map_err(|error| bad(error.to_string()))
    }
}

impl fmt::Debug for QuorumBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<_> = self.urls.iter().map(|url| without_password(url)).collect();
        f.debug_struct("QuorumBuilder").field("nodes", &urls).finish_non_exhaustive()
    }
}

/// Why this kind of node is refused.
fn not_yet(url: &str) -> Option<&'static str> {
    let scheme = url.split("://").next().unwrap_or_default();
    if scheme.contains("sentinel") {
        return Some(
            "a master that Sentinel may fail over is no node yet: name each master itself, and let nothing promote another \
             in its place",
        );
    }
    scheme.contains("cluster").then_some(
        "a Redis Cluster is no node yet, since its slots move: name independent masters, each by its own address",
    )
}

/// The program may have chosen for itself. If it has not, there must be one, and one only, or TLS would panic.
fn choose_cryptography() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // If somebody else was faster, that is as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// The address of a node, for people.
pub(crate) fn address(client: &Client) -> String {
    match client.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            format!("{host}:{port}")
        }
        ConnectionAddr::Unix(path) => path.display().to_string(),
        other => other.to_string(),
    }
}

/// A URL without what may be a password: whatever is before an `@`, and whatever is after a `?`.
fn without_password(url: &str) -> String {
    let (address, query) = url.split_once('?').map_or((url, ""), |(address, _)| (address, "?…"));
    let scheme = address.find("://").map_or("", |end| &address[..end + 3]);
    match address.rfind('@') {
        Some(at) if at >= scheme.len() => format!("{scheme}…{}{query}", &address[at..]),
        _ => format!("{address}{query}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_a_url_that_may_be_a_password_is_shown() {
        for (url, shown) in [
            ("redis://host:1/2", "redis://host:1/2"),
            ("redis://user:secret@host", "redis://…@host"),
            ("redis://:secret@host?protocol=resp3", "redis://…@host?…"),
            ("redis+unix:///tmp/x?db=x&pass=secret", "redis+unix:///tmp/x?…"),
            (":secret@host:7001", "…@host:7001"),
            ("secret@", "…@"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
