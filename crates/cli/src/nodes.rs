//! The nodes of a subcommand: where the user names them, and the connection to them.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context as _, anyhow, bail, ensure};
use quorlock_client::{NodeError, Quorum, QuorumBuilder};
use quorlock_core::client::limits::HANDSHAKE;
use redis::{Client, ClientTlsConfig, IntoConnectionInfo as _, TlsCertificates};
use rustls::crypto::CryptoProvider;
use serde::{Deserialize, Serialize};

use crate::config::{self, ConfigFile, Defaults, Loaded, Tls};
use crate::endpoint::Endpoint;
use crate::output::say;

/// The variables that may contain a password. `quorlock run` hides them from its command.
pub(crate) const SECRET_VARIABLES: [&str; 2] = [NODES_VARIABLE, PASSWORD_VARIABLE];

const NODES_VARIABLE: &str = "QUORLOCK_NODES";
const USER_VARIABLE: &str = "QUORLOCK_USER";
const PASSWORD_VARIABLE: &str = "QUORLOCK_PASSWORD";

const HEADING: &str = "Nodes";

/// How long connecting waits for a majority.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// The same for a call that then waits for a lock: missing nodes may still connect meanwhile.
const CONNECT_LIMIT_BEFORE_WAIT: Duration = Duration::from_secs(1);
/// The round trips of one attempt to connect: one of TCP, two of TLS, and one for the first reply.
const CONNECT_ROUND_TRIPS: u32 = 4;

/// Options of every subcommand that connects to the nodes.
#[expect(clippy::doc_markdown, reason = "the help shows it as it is")]
#[derive(clap::Args)]
pub(crate) struct NodeArgs {
    /// The nodes, separated by commas [env: QUORLOCK_NODES]
    ///
    /// Give all users of the lock the same list.
    #[arg(help_heading = HEADING, long, value_name = "URLS", value_delimiter = ',')]
    nodes: Option<Vec<String>>,

    /// The only configuration file to read [env: QUORLOCK_CONFIG]
    #[arg(help_heading = HEADING, long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// The user to log in as [env: QUORLOCK_USER]
    #[arg(help_heading = HEADING, long, value_name = "NAME", hide_short_help = true)]
    user: Option<String>,

    /// A file with the password; or give it in QUORLOCK_PASSWORD
    #[arg(help_heading = HEADING, long, value_name = "FILE", hide_short_help = true)]
    password_file: Option<PathBuf>,

    /// The root certificates for rediss:// nodes, in PEM [default: SSL_CERT_FILE, or the system's]
    #[arg(help_heading = HEADING, long, value_name = "FILE", hide_short_help = true)]
    cacert: Option<PathBuf>,

    /// The certificate of this client, in PEM
    #[arg(help_heading = HEADING, long, value_name = "FILE", requires = "tls_key")]
    #[arg(hide_short_help = true)]
    cert: Option<PathBuf>,

    /// The private key of --cert, in PEM
    #[arg(help_heading = HEADING, long = "key", value_name = "FILE", requires = "cert")]
    #[arg(hide_short_help = true)]
    tls_key: Option<PathBuf>,
}

/// Shown by `--help` of every subcommand that has [`NodeArgs`].
pub(crate) const SEE_ALSO: &str = "\
Nodes, passwords, certificates and defaults also come from the environment and
from files: see `quorlock --help`";

/// Shown by `quorlock --help`.
pub(crate) const HELP: &str = "\
Where values come from (in each row, the leftmost value is used):
  value     option           environment        file           default
  file      --config         QUORLOCK_CONFIG                   see below
  nodes     --nodes          QUORLOCK_NODES     nodes
  user      --user           QUORLOCK_USER      user           default user
  password  --password-file  QUORLOCK_PASSWORD  password-file  none
  roots     --cacert                            tls.cacert     SSL_CERT_FILE,
                                                               or the system's
  cert      --cert, --key                       tls.cert/key   none
  ttl       --ttl                               defaults.ttl   10s
  wait      --wait                              defaults.wait  for ever
  owner     --owner                             defaults.owner HOST:PID, and for
                                                               acquire (detached)
  A user and a password in a URL come before all of these. The files are
  quorlock.toml in XDG_CONFIG_HOME (~/.config), and /etc/quorlock.toml. The
  nodes, and each default, are taken from the first of the two files that has
  them. User, password and TLS are taken only from the file whose nodes are
  used, and from no file if --nodes or QUORLOCK_NODES names the nodes.

File:
  nodes = [\"rediss://a:6380\", \"rediss://b:6380\", \"rediss://c:6380\"]
  user = \"locker\"
  password-file = \"/etc/quorlock.password\"
  tls = { cacert = \"ca.pem\", cert = \"client.pem\", key = \"client.key\" }
  defaults = { ttl = \"10s\", wait = \"1m\", owner = \"web-3\" }";

/// The nodes, and how to reach them.
pub(crate) struct NodeSettings {
    /// At least one, in the user's order.
    pub(crate) endpoints: Vec<Endpoint>,
    certificates: Certificates,
    pub(crate) defaults: Defaults,
    /// Says which settings of a file are not used, because the file does not name the nodes.
    unused: Option<String>,
}

/// The nodes as the user names them.
struct NamedNodes<'a> {
    /// The option, the variable or the file that names them.
    source: String,
    texts: Vec<String>,
    /// `None` if an option or a variable names them.
    file: Option<&'a Loaded>,
}

/// The certificates for nodes with TLS, in PEM.
#[derive(Clone, Default, Deserialize, Serialize)]
struct Certificates {
    /// `None` for those of `SSL_CERT_FILE` or of the system.
    roots: Option<String>,
    /// `None` if this client shows no certificate.
    identity: Option<Identity>,
}

#[derive(Clone, Deserialize, Serialize)]
struct Identity {
    chain: String,
    key: String,
}

/// What another process needs to connect to the same nodes. It contains passwords and a private
/// key: never print it.
#[derive(Deserialize, Serialize)]
pub(crate) struct SecretNodes {
    urls: Vec<String>,
    certificates: Certificates,
}

impl NodeArgs {
    pub(crate) async fn connect(&self) -> anyhow::Result<Quorum> {
        self.load()?.connect().await
    }

    /// Finds the nodes and the defaults in options, environment and files.
    pub(crate) fn load(&self) -> anyhow::Result<NodeSettings> {
        let files = config::load(self.config.as_deref())?;
        let NamedNodes { source, texts, file } = self.named_nodes(&files)?;
        let parse =
            |text: &String| Endpoint::parse(text).map_err(|error| anyhow!("{source}: {error}"));
        let mut endpoints = texts.iter().map(parse).collect::<anyhow::Result<Vec<_>>>()?;
        if let Some(loaded) = file.filter(|_| endpoints.iter().any(Endpoint::has_password)) {
            warn_if_readable_by_others(&loaded.path);
        }
        let file = file.map(|loaded| &loaded.file);
        let unused = self.unused_settings(&source, &files)?;
        self.add_credentials(&mut endpoints, file).map_err(|error| match &unused {
            Some(unused) => anyhow!("{error:#}; {unused}"),
            None => error,
        })?;
        let certificates =
            self.read_certificates(&source, &endpoints, file.map(|file| &file.tls))?;
        let defaults = files.into_iter().map(|loaded| loaded.file.defaults);
        let defaults = defaults.reduce(Defaults::or).unwrap_or_default();
        Ok(NodeSettings { endpoints, certificates, defaults, unused })
    }

    /// Describes the settings of files that do not name the nodes, unless an option or a variable
    /// replaces them.
    fn unused_settings(&self, source: &str, files: &[Loaded]) -> anyhow::Result<Option<String>> {
        let has_user = self.user.is_some() || variable(USER_VARIABLE)?.is_some();
        let has_password = self.password_file.is_some() || variable(PASSWORD_VARIABLE)?.is_some();
        let of_file = |Loaded { path, file }: &Loaded| {
            let settings = [
                ("user", file.user.is_some() && !has_user),
                ("password-file", file.password_file.is_some() && !has_password),
                ("tls.cacert", file.tls.cacert.is_some() && self.cacert.is_none()),
                ("tls.cert", file.tls.cert.is_some() && self.cert.is_none()),
            ];
            let names: Vec<_> = settings
                .iter()
                .filter(|(_, is_unused)| *is_unused)
                .map(|(name, _)| *name)
                .collect();
            let path = path.display().to_string();
            (path != source && !names.is_empty()).then(|| {
                let names = names.join(", ");
                format!("not used: {names} of {path}, because {source} names the nodes")
            })
        };
        Ok(files.iter().find_map(of_file))
    }

    fn named_nodes<'a>(&self, files: &'a [Loaded]) -> anyhow::Result<NamedNodes<'a>> {
        if let Some(given) = &self.nodes {
            let texts = not_blank(given.iter().map(String::as_str));
            ensure!(
                !texts.is_empty(),
                "--nodes is empty: give URLs, such as --nodes a:6379,b:6379,c:6379"
            );
            return Ok(NamedNodes { source: "--nodes".into(), texts, file: None });
        }
        let texts = not_blank(variable(NODES_VARIABLE)?.unwrap_or_default().split(','));
        if !texts.is_empty() {
            return Ok(NamedNodes { source: NODES_VARIABLE.into(), texts, file: None });
        }
        for loaded in files {
            let texts = not_blank(loaded.file.nodes.iter().map(String::as_str));
            if !texts.is_empty() {
                return Ok(NamedNodes {
                    source: loaded.path.display().to_string(),
                    texts,
                    file: Some(loaded),
                });
            }
        }
        bail!(
            "no nodes are named: give their URLs with --nodes or in QUORLOCK_NODES, separated by commas, such as \
             redis://a:6379,redis://b:6379,redis://c:6379, or as nodes = [...] in /etc/quorlock.toml; `quorlock up` \
             starts some for trying things out"
        )
    }

    fn add_credentials(
        &self,
        endpoints: &mut [Endpoint],
        config: Option<&ConfigFile>,
    ) -> anyhow::Result<()> {
        let user = match &self.user {
            Some(user) => Some(user.clone()),
            None => variable(USER_VARIABLE)?.or_else(|| config?.user.clone()),
        };
        let password_file = config.and_then(|file| file.password_file.as_deref());
        let password = match (&self.password_file, variable(PASSWORD_VARIABLE)?) {
            (Some(file), _) => Some(read_password(file)?),
            (None, Some(password)) => Some(password),
            (None, None) => password_file.map(read_password).transpose()?,
        };
        match (&user, &password) {
            (_, Some(password)) => {
                for node in endpoints {
                    node.add_credentials(user.as_deref(), password);
                }
            }
            (Some(user), None) => ensure!(
                endpoints.iter().all(Endpoint::has_password),
                "the user {user} needs a password: give --password-file or QUORLOCK_PASSWORD"
            ),
            (None, None) => {}
        }
        Ok(())
    }

    fn read_certificates(
        &self,
        source: &str,
        endpoints: &[Endpoint],
        config: Option<&Tls>,
    ) -> anyhow::Result<Certificates> {
        let cacert = self.cacert.as_deref().or_else(|| config?.cacert.as_deref());
        let (cert, key) = match (&self.cert, &self.tls_key) {
            (Some(cert), Some(key)) => (Some(cert), Some(key)),
            _ => config.map_or((None, None), |tls| (tls.cert.as_ref(), tls.key.as_ref())),
        };
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => {
                warn_if_readable_by_others(key);
                Some(Identity {
                    chain: read_pem(cert, "CERTIFICATE")?,
                    key: read_pem(key, "PRIVATE KEY")?,
                })
            }
            (None, None) => None,
            _ => bail!("{source}: tls.cert and tls.key belong together: give both or none"),
        };
        if cacert.is_some() || identity.is_some() {
            if let Some(node) = endpoints.iter().find(|node| !node.has_scheme()) {
                let name = node.name();
                bail!(
                    "{source}: with certificates, {name} is ambiguous: write rediss://{name} for \
                     TLS, or redis://{name}"
                );
            }
            ensure!(
                endpoints.iter().any(Endpoint::has_tls),
                "{source}: certificates are for nodes with TLS, and no node uses TLS: write \
                 rediss://host:port"
            );
        }
        let roots = cacert.map(|path| read_pem(path, "CERTIFICATE")).transpose()?;
        Ok(Certificates { roots, identity })
    }
}

impl NodeSettings {
    pub(crate) async fn connect(&self) -> anyhow::Result<Quorum> {
        self.connect_within(CONNECT_LIMIT, None).await
    }

    /// Connects to the nodes for a call that acquires a lock and may wait for it.
    pub(crate) async fn connect_before_call(
        &self,
        node_timeout: Option<Duration>,
    ) -> anyhow::Result<Quorum> {
        let limit =
            node_timeout.map_or(CONNECT_LIMIT_BEFORE_WAIT, |limit| limit * CONNECT_ROUND_TRIPS);
        self.connect_within(limit.min(HANDSHAKE), None).await
    }

    pub(crate) async fn connect_within(
        &self,
        limit: Duration,
        node_timeout: Option<Duration>,
    ) -> anyhow::Result<Quorum> {
        let mut builder = self.secret().quorum().connect_timeout(limit);
        if let Some(node_timeout) = node_timeout {
            builder = builder.node_timeout(node_timeout);
        }
        let quorum = builder.connect().await?;
        self.explain_refusal(quorum.health().into_iter().filter_map(|node| node.error));
        Ok(quorum)
    }

    /// Says which settings are not used, if a node does not accept this client.
    pub(crate) fn explain_refusal(&self, errors: impl IntoIterator<Item = NodeError>) {
        let is_refusal =
            |error| matches!(error, NodeError::Denied { .. } | NodeError::Misconfigured { .. });
        if let Some(unused) = &self.unused
            && errors.into_iter().any(is_refusal)
        {
            say(unused);
        }
    }

    pub(crate) fn secret(&self) -> SecretNodes {
        SecretNodes {
            urls: self.endpoints.iter().map(|node| node.secret_url().to_owned()).collect(),
            certificates: self.certificates.clone(),
        }
    }

    /// Makes a client for each endpoint, and connects none yet. An error says why there can be no
    /// connection to this node.
    pub(crate) fn clients(&self) -> anyhow::Result<Vec<Result<Client, NodeError>>> {
        if self.endpoints.iter().any(Endpoint::has_tls) && CryptoProvider::get_default().is_none() {
            // Fails only if another provider was installed in the meantime.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        self.endpoints.iter().map(|endpoint| self.client(endpoint)).collect()
    }

    fn client(&self, endpoint: &Endpoint) -> anyhow::Result<Result<Client, NodeError>> {
        let misconfigured = |reason: String| Ok(Err(NodeError::Misconfigured { reason }));
        if let Some(reason) = endpoint.unsupported() {
            return misconfigured(reason.to_owned());
        }
        let info = match endpoint.secret_url().into_connection_info() {
            Ok(info) => info,
            Err(error) => return misconfigured(error.to_string()),
        };
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let info = info.set_tcp_settings(tcp);
        let Certificates { roots, identity } = &self.certificates;
        let has_certificates = roots.is_some() || identity.is_some();
        let client = if endpoint.has_tls() && has_certificates {
            let certificates = TlsCertificates {
                client_tls: identity.as_ref().map(|identity| ClientTlsConfig {
                    client_cert: identity.chain.clone().into(),
                    client_key: identity.key.clone().into(),
                }),
                root_cert: roots.clone().map(String::into_bytes),
            };
            Client::build_with_tls(info, certificates)
        } else {
            Client::open(info)
        };
        Ok(Ok(client.context("TLS cannot be used")?))
    }
}

impl SecretNodes {
    pub(crate) async fn connect(self) -> anyhow::Result<Quorum> {
        Ok(self.quorum().connect_timeout(CONNECT_LIMIT).connect().await?)
    }

    fn quorum(self) -> QuorumBuilder {
        let mut builder = Quorum::builder().nodes(self.urls);
        if let Some(roots) = self.certificates.roots {
            builder = builder.root_certificates(roots);
        }
        if let Some(Identity { chain, key }) = self.certificates.identity {
            builder = builder.client_certificate(chain, key);
        }
        builder
    }
}

fn not_blank<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<String> {
    texts.map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned).collect()
}

/// Reads a variable of the environment. An empty one counts as missing.
fn variable(name: &str) -> anyhow::Result<Option<String>> {
    let Some(value) = env::var_os(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    // The error does not quote the value, which may be a password.
    let not_utf8 = |_| anyhow!("{name} is not UTF-8: write its value in UTF-8");
    value.into_string().map(Some).map_err(not_utf8)
}

fn read_password(path: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read the password from {}", path.display()))?;
    let password =
        text.strip_suffix('\n').map_or(&*text, |line| line.strip_suffix('\r').unwrap_or(line));
    let shown = path.display();
    ensure!(!password.is_empty(), "the password file {shown} is empty: write the password into it");
    ensure!(!password.contains('\n'), "the password file {shown} has several lines: leave one");
    warn_if_readable_by_others(path);
    Ok(password.to_owned())
}

/// Reads a file in PEM that has a section of this kind.
fn read_pem(path: &Path, kind: &str) -> anyhow::Result<String> {
    let shown = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    let is_begin = |line: &str| {
        line.starts_with("-----BEGIN ") && line.trim_end().ends_with(&format!("{kind}-----"))
    };
    ensure!(
        text.lines().any(is_begin),
        "{shown} has no line `-----BEGIN {kind}-----`: TLS needs a file in PEM"
    );
    Ok(text)
}

fn warn_if_readable_by_others(path: &Path) {
    if config::is_readable_by_others(path) {
        let path = path.display();
        say(format_args!(
            "warning: every user of this machine can read the secret in {path}: chmod 600 {path}"
        ));
    }
}
