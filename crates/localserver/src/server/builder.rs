use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use super::address::Address;
use super::directory::Directory;
use crate::{Server, StartError, find_server_binary, module_path};

/// The settings of a [`Server`]; made by [`Server::builder`] and [`Server::with_module`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing runs until `start` is called"]
pub struct ServerBuilder {
    /// The program; empty for the one of [`find_server_binary`].
    pub(super) binary: PathBuf,
    module: Module,
    module_args: Vec<String>,
    /// Those of the caller.
    directives: Vec<(String, String)>,
    config_file: Option<PathBuf>,
    hooks: Vec<Arc<dyn StartHook>>,
    directory: Option<PathBuf>,
    listen: Listen,
}

#[derive(Clone, Debug, Default)]
enum Module {
    #[default]
    None,
    /// The module of [`module_path()`], which searches for it at the start.
    Quorlock,
    At(PathBuf),
}

#[derive(Clone, Copy, Debug, Default)]
enum Listen {
    #[default]
    Unix,
    /// On this port, or on any free one.
    Tcp(Option<u16>),
}

impl ServerBuilder {
    /// Runs this server program instead of the one of [`find_server_binary`].
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = path.into();
        self
    }

    /// Loads this module.
    pub fn module(mut self, path: impl Into<PathBuf>) -> Self {
        self.module = Module::At(path.into());
        self
    }

    /// Loads the Quorlock module that [`module_path()`] finds at the start.
    pub fn quorlock_module(mut self) -> Self {
        self.module = Module::Quorlock;
        self
    }

    /// Adds an argument of the module.
    pub fn module_arg(mut self, word: impl Into<String>) -> Self {
        self.module_args.push(word.into());
        self
    }

    /// Sets a directive of redis.conf, which the server receives as `--name value`.
    ///
    /// Replaces an earlier directive of that name, and the default. The setters of the address are
    /// [`ServerBuilder::tcp`] and [`ServerBuilder::tcp_port`].
    #[expect(clippy::needless_pass_by_value, reason = "callers pass numbers by value")]
    pub fn arg(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.set(name.into(), value.to_string());
        self
    }

    /// Uses a redis.conf of the caller. All other settings override it, because the server reads it
    /// first. `CONFIG REWRITE` overwrites the file.
    pub fn config_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.config_file = Some(absolute(&path.into()));
        self
    }

    /// Runs `hook` at each start, and keeps it until the server is dropped.
    pub fn on_start(mut self, hook: Arc<dyn StartHook>) -> Self {
        self.hooks.push(hook);
        self
    }

    /// Keeps the files of the server in this directory instead of a temporary one. The directory is
    /// created if it does not exist, and stays when the server ends.
    pub fn dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.directory = Some(path.into());
        self
    }

    /// Listens on a free port of 127.0.0.1, instead of on a unix socket in its directory.
    pub fn tcp(mut self) -> Self {
        self.listen = Listen::Tcp(None);
        self
    }

    /// Listens on this port of 127.0.0.1, instead of on a unix socket in its directory.
    pub fn tcp_port(mut self, port: u16) -> Self {
        self.listen = Listen::Tcp(Some(port));
        self
    }

    /// Starts the server, and returns when it has loaded its data and answers a PING with PONG. A
    /// server with a password answers NOAUTH instead, even while it loads.
    ///
    /// If the server does not answer within 10 s, or ends, the error quotes the end of its log.
    pub fn start(mut self) -> Result<Server, StartError> {
        let path = &self.binary;
        if path.as_os_str().is_empty() {
            self.binary = find_server_binary()?;
        } else if path.components().count() > 1 || path.exists() {
            // A name without a directory is looked up on PATH.
            self.binary = absolute(path);
        }
        self.module = match self.module {
            Module::None => Module::None,
            Module::Quorlock => Module::At(module_path()?),
            Module::At(path) => Module::At(absolute(&path)),
        };
        let directory = Directory::prepare(self.directory.clone())?;
        let address = match self.listen {
            Listen::Unix => Address::unix_in(directory.path()),
            Listen::Tcp(port) => Address::tcp(port)?,
        };
        let mut server = Server { process: None, settings: self, address, directory };
        server.restart()?;
        Ok(server)
    }

    pub(super) fn set(&mut self, name: String, value: String) {
        match self.directives.iter_mut().find(|(existing, _)| existing.eq_ignore_ascii_case(&name))
        {
            Some((_, existing)) => *existing = value,
            None => self.directives.push((name, value)),
        }
    }

    /// Returns the command that starts the server. [`start`](Self::start) must have found the
    /// program and the module.
    pub(super) fn command(&self, address: &Address) -> Command {
        let mut command = Command::new(&self.binary);
        // The server reads a configuration file only as its first argument.
        command.args(&self.config_file);
        // If a directive is repeated, the server uses the last one. So the caller's directives
        // follow the others.
        let of_address = address.directives();
        let of_address = of_address.iter().map(|(name, value)| (*name, &value[..]));
        let of_caller = self.directives.iter().map(|(name, value)| (&name[..], &value[..]));
        for (name, value) in DEFAULT_DIRECTIVES.into_iter().chain(of_address).chain(of_caller) {
            command.arg(format!("--{name}")).arg(value);
        }
        if let Module::At(module) = &self.module {
            command.arg("--loadmodule").arg(module).args(&self.module_args);
        }
        for hook in &self.hooks {
            hook.prepare(&mut command);
        }
        command
    }
}

/// The directives of a server, unless the caller sets others. The server keeps nothing on disk,
/// stays in the foreground, and allows the commands that tests need.
const DEFAULT_DIRECTIVES: [(&str, &str); 6] = [
    ("save", ""),
    ("appendonly", "no"),
    ("daemonize", "no"),
    ("enable-debug-command", "yes"),
    ("enable-module-command", "yes"),
    ("loglevel", "notice"),
];

/// Changes the command of a server at each start, for example to inject faults.
pub trait StartHook: fmt::Debug + Send + Sync {
    /// Changes the command. All other settings are already in it.
    fn prepare(&self, command: &mut Command);
}

/// Makes a path absolute, because the server runs in another directory than the caller.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}
