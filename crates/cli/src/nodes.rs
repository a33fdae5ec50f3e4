//! The nodes of a subcommand: where the user names them, and the connection to them.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context as _, anyhow, bail, ensure};
use quorlock_client::{ConnectError, NodeError, Quorum, QuorumBuilder};
use quorlock_core::client::limits::HANDSHAKE;
use redis::Client;
use serde::{Deserialize, Serialize};

use crate::config::{self, ConfigFile, Defaults, Loaded, Tls};
use crate::endpoint::Endpoint;
use crate::output::say;

/// The variables that may contain a password. `quorlock run` hides them from its command.
pub(crate) const SECRET_VARIABLES: [&str; 2] = [NODES_VARIABLE, PASSWORD_VARIABLE];

const NODES_VARIABLE: &str = "QUORLOCK_NODES";
const USER_VARIABLE: &str = "QUORLOCK_USER";
const PASSWORD_VARIABLE: &str = "QUORLOCK_PASSWORD";

/// The user of a server that has a password and no other users.
const DEFAULT_USER: &str = "default";

const HEADING: &str = "Nodes";

/// The permission bit that lets users other than the owner and the group read a file.
const READABLE_BY_OTHERS: u32 = 0o004;
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
    pub(crate) secret: SecretNodes,
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

/// The certificate and the key of this client, in PEM.
type Identity = (String, String);

/// What this and other processes need to connect to the nodes. It contains passwords and a private
/// key: never print it.
#[derive(Clone, Deserialize, Serialize)]
pub(crate) struct SecretNodes {
    urls: Vec<String>,
    /// The user and the password for URLs without a password.
    credentials: Option<(String, String)>,
    /// In PEM; `None` for those of `SSL_CERT_FILE` or of the system.
    roots: Option<String>,
    /// `None` if this client shows no certificate.
    identity: Option<Identity>,
}

impl NodeArgs {
    pub(crate) async fn connect(&self) -> anyhow::Result<Quorum> {
        self.load()?.connect_within(CONNECT_LIMIT, None).await
    }

    /// Finds the nodes and the defaults in options, environment and files.
    pub(crate) fn load(&self) -> anyhow::Result<NodeSettings> {
        let files = config::load(self.config.as_deref())?;
        let NamedNodes { source, texts, file } = self.named_nodes(&files)?;
        let parse =
            |text: &String| Endpoint::parse(text).map_err(|error| anyhow!("{source}: {error}"));
        let endpoints = texts.iter().map(parse).collect::<anyhow::Result<Vec<_>>>()?;
        if let Some(loaded) = file.filter(|_| endpoints.iter().any(Endpoint::has_password)) {
            warn_if_readable_by_others(&loaded.path);
        }
        let file = file.map(|loaded| &loaded.file);
        let unused = self.unused_settings(&source, &files)?;
        let credentials = self.credentials(&endpoints, file);
        let credentials = credentials.map_err(|error| match &unused {
            Some(unused) => anyhow!("{error:#}; {unused}"),
            None => error,
        })?;
        let (roots, identity) =
            self.read_certificates(&source, &endpoints, file.map(|file| &file.tls))?;
        let urls = endpoints.iter().map(|node| node.secret_url().to_owned()).collect();
        let secret = SecretNodes { urls, credentials, roots, identity };
        let of_files = || files.iter().map(|loaded| &loaded.file.defaults);
        let defaults = Defaults {
            ttl: of_files().find_map(|defaults| defaults.ttl),
            wait: of_files().find_map(|defaults| defaults.wait),
            owner: of_files().find_map(|defaults| defaults.owner.clone()),
        };
        Ok(NodeSettings { endpoints, secret, defaults, unused })
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
            let names =
                settings.into_iter().filter_map(|(name, is_unused)| is_unused.then_some(name));
            let (names, path) = (names.collect::<Vec<_>>().join(", "), path.display().to_string());
            (path != source && !names.is_empty())
                .then(|| format!("not used: {names} of {path}, because {source} names the nodes"))
        };
        Ok(files.iter().find_map(of_file))
    }

    fn named_nodes<'a>(&self, files: &'a [Loaded]) -> anyhow::Result<NamedNodes<'a>> {
        const OPTION: &str = "--nodes";
        let option = self.nodes.clone().map(|texts| (OPTION.to_owned(), texts, None));
        let variable = if option.is_some() { None } else { variable(NODES_VARIABLE)? };
        let variable = variable.map(|text| {
            (NODES_VARIABLE.to_owned(), text.split(',').map(str::to_owned).collect(), None)
        });
        let of_files = files.iter().map(|loaded| {
            (loaded.path.display().to_string(), loaded.file.nodes.clone(), Some(loaded))
        });
        for (source, texts, file) in option.into_iter().chain(variable).chain(of_files) {
            let texts = texts.iter().map(|text| text.trim()).filter(|text| !text.is_empty());
            let texts: Vec<_> = texts.map(str::to_owned).collect();
            if !texts.is_empty() {
                return Ok(NamedNodes { source, texts, file });
            }
            ensure!(
                source != OPTION,
                "--nodes is empty: give URLs, such as --nodes a:6379,b:6379,c:6379"
            );
        }
        bail!(
            "no nodes are named: give their URLs with --nodes or in QUORLOCK_NODES, separated by commas, such as \
             redis://a:6379,redis://b:6379,redis://c:6379, or as nodes = [...] in /etc/quorlock.toml; `quorlock up` \
             starts some for trying things out"
        )
    }

    fn credentials(
        &self,
        endpoints: &[Endpoint],
        config: Option<&ConfigFile>,
    ) -> anyhow::Result<Option<(String, String)>> {
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
        if let (Some(user), None) = (&user, &password) {
            ensure!(
                endpoints.iter().all(Endpoint::has_password),
                "the user {user} needs a password: give --password-file or QUORLOCK_PASSWORD"
            );
        }
        let user = user.unwrap_or_else(|| DEFAULT_USER.to_owned());
        Ok(password.map(|password| (user, password)))
    }

    fn read_certificates(
        &self,
        source: &str,
        endpoints: &[Endpoint],
        config: Option<&Tls>,
    ) -> anyhow::Result<(Option<String>, Option<Identity>)> {
        let cacert = self.cacert.as_deref().or_else(|| config?.cacert.as_deref());
        let (cert, key) = match (&self.cert, &self.tls_key) {
            (Some(cert), Some(key)) => (Some(cert), Some(key)),
            _ => config.map_or((None, None), |tls| (tls.cert.as_ref(), tls.key.as_ref())),
        };
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => {
                warn_if_readable_by_others(key);
                Some((read_pem(cert, "CERTIFICATE")?, read_pem(key, "PRIVATE KEY")?))
            }
            (None, None) => None,
            _ => bail!("{source}: tls.cert and tls.key belong together: give both or none"),
        };
        if cacert.is_some() || identity.is_some() {
            if let Some(node) = endpoints.iter().find(|node| !node.has_scheme) {
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
        Ok((roots, identity))
    }
}

impl NodeSettings {
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
        let mut builder = self.secret.builder().connect_timeout(limit);
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

    /// Makes a client for each endpoint, and connects none yet. An error says why there can be no
    /// connection to this node.
    pub(crate) fn clients(&self) -> anyhow::Result<Vec<Result<Client, NodeError>>> {
        let clients = self.secret.builder().redis_clients().into_iter();
        let client = |client| match client {
            Ok(client) => Ok(Ok(client)),
            Err(ConnectError::InvalidUrl { reason, .. }) => {
                Ok(Err(NodeError::Misconfigured { reason }))
            }
            Err(error) => Err(error.into()),
        };
        clients.map(client).collect()
    }
}

impl SecretNodes {
    pub(crate) fn builder(&self) -> QuorumBuilder {
        let mut builder = Quorum::builder().nodes(&self.urls);
        if let Some((user, password)) = &self.credentials {
            builder = builder.credentials(user, password);
        }
        if let Some(roots) = &self.roots {
            builder = builder.root_certificates(roots.as_bytes());
        }
        if let Some((chain, key)) = &self.identity {
            builder = builder.client_certificate(chain.as_bytes(), key.as_bytes());
        }
        builder
    }
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
    let is_readable = |file: fs::Metadata| file.mode() & READABLE_BY_OTHERS != 0 && file.is_file();
    if fs::metadata(path).is_ok_and(is_readable) {
        let path = path.display();
        say(format_args!(
            "warning: every user of this machine can read the secret in {path}: chmod 600 {path}"
        ));
    }
}
