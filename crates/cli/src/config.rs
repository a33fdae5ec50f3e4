//! Configuration files: their places and their contents.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context as _, anyhow};
use etcetera::BaseStrategy as _;
use etcetera::base_strategy::Xdg;
use serde::{Deserialize, Deserializer};

use crate::values;

const SYSTEM_FILE: &str = "/etc/quorlock.toml";
/// The file of a user, in `XDG_CONFIG_HOME` or `~/.config`.
const USER_FILE_NAME: &str = "quorlock.toml";
/// The environment variable that names the only file to read.
const VARIABLE: &str = "QUORLOCK_CONFIG";

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct ConfigFile {
    #[serde(deserialize_with = "node_list")]
    pub(crate) nodes: Vec<String>,
    pub(crate) user: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) tls: Tls,
    pub(crate) defaults: Defaults,
}

/// Files in PEM for `rediss://` nodes.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Tls {
    pub(crate) cacert: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

/// Values for options that the command line does not give.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Defaults {
    #[serde(deserialize_with = "values::deserialize")]
    pub(crate) ttl: Option<Duration>,
    #[serde(deserialize_with = "values::deserialize")]
    pub(crate) wait: Option<Duration>,
    pub(crate) owner: Option<String>,
}

pub(crate) struct Loaded {
    pub(crate) path: PathBuf,
    pub(crate) file: ConfigFile,
}

/// Reads the configuration files; the first one has precedence. If `named` or else
/// `QUORLOCK_CONFIG` names a file, reads only that file. Otherwise reads the files of the user and
/// of the system, if they exist.
pub(crate) fn load(named: Option<&Path>) -> anyhow::Result<Vec<Loaded>> {
    let variable = || env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    if let Some(path) = named.map(Path::to_owned).or_else(variable) {
        let file = read(&path)?;
        let missing = || anyhow!("there is no configuration file {}", path.display());
        return Ok(vec![file.ok_or_else(missing)?]);
    }
    let user_file = Xdg::new().ok().map(|base| base.config_dir().join(USER_FILE_NAME));
    let paths = user_file.into_iter().chain([PathBuf::from(SYSTEM_FILE)]);
    paths.filter_map(|path| read(&path).transpose()).collect()
}

/// Reads a file; `None` when it does not exist.
fn read(path: &Path) -> anyhow::Result<Option<Loaded>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            let hint = "make it readable, or name another file with --config";
            return Err(error).with_context(|| format!("cannot read {} ({hint})", path.display()));
        }
    };
    let mut file = parse(&text).map_err(|error| anyhow!("{}, {error}", path.display()))?;
    let tls = &mut file.tls;
    for relative in [&mut file.password_file, &mut tls.cacert, &mut tls.cert, &mut tls.key] {
        if let (Some(relative), Some(folder)) = (relative, path.parent()) {
            *relative = folder.join(&*relative);
        }
    }
    Ok(Some(Loaded { path: path.to_owned(), file }))
}

/// Parses a file. The error names the line and does not quote it: the line may contain a password.
fn parse(text: &str) -> Result<ConfigFile, String> {
    toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let message = error.message().replace('\n', "; ");
        let hint = if message.starts_with("unknown field `password`") {
            ": write password-file = \"/path\", and the password into that file"
        } else {
            ""
        };
        format!("line {line}: {message}{hint}")
    })
}

/// A list of nodes, or one string with commas, as in `QUORLOCK_NODES`. The error quotes neither:
/// they may contain passwords.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a list of nodes, such as [\"redis://a:6379\", \"redis://b:6379\"]"
)]
enum NodeList {
    Text(String),
    List(Vec<String>),
}

fn node_list<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<String>, D::Error> {
    NodeList::deserialize(value).map(|nodes| match nodes {
        NodeList::Text(text) => text.split(',').map(str::to_owned).collect(),
        NodeList::List(list) => list,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_line_and_the_remedy_and_no_password() {
        for (text, hints) in [
            ("\nnode = ['redis://:s3cret@a']", ["line 2", "`nodes`"]),
            ("password = 's3cret'", ["line 1", "write password-file"]),
            ("nodes = 's3cret'\nnodes = 's3cret'", ["line 2", "duplicate"]),
            ("nodes = 5", ["line 1", "such as [\"redis://a:6379\""]),
            ("nodes = ['s3cret', 5]", ["line 1", "a list of nodes"]),
            ("user = 'a'\n[defaults]\nttl = 10", ["line 3", "a time in quotes, such as \"10s\""]),
            ("[defaults]\n\nwait = '10'", ["line 3", "give a unit, such as 10s"]),
            ("[tls]\nca = 'x'", ["line 2", "`cacert`"]),
            ("nodes = [\"s3cret\n", ["line 1", ""]),
        ] {
            let Err(error) = parse(text) else { panic!("{text}") };
            assert!(hints.iter().all(|hint| error.contains(hint)), "{text}: {error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
