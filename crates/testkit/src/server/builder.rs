use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use super::address::Address;
use super::directory::Directory;
use super::settings::{Settings, absolute};
use crate::injector::Preload;
#[cfg(target_os = "linux")]
use crate::{PowerCut, WallClock};
use crate::{Server, StartError, find_server_binary, module_path};

/// How a [`Server`] is to be started; made by [`Server::builder`] and [`Server::with_module`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing runs until `start` is called"]
pub struct ServerBuilder {
    binary: Option<PathBuf>,
    module: Module,
    module_args: Vec<String>,
    config_file: Option<PathBuf>,
    directives: Vec<(String, String)>,
    environment: Vec<(OsString, OsString)>,
    preloads: Vec<Arc<Preload>>,
    directory: Option<PathBuf>,
    listen: Listen,
}

#[derive(Clone, Debug, Default)]
enum Module {
    #[default]
    None,
    /// The one of [`module_path()`], which is only looked for, and perhaps built, at the start.
    Quorlock,
    At(PathBuf),
}

#[derive(Clone, Copy, Debug, Default)]
enum Listen {
    #[default]
    Unix,
    Tcp {
        port: Option<u16>,
    },
}

impl ServerBuilder {
    /// The server program, instead of the one of [`find_server_binary`].
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// The module to load.
    pub fn module(mut self, path: impl Into<PathBuf>) -> Self {
        self.module = Module::At(path.into());
        self
    }

    /// The Quorlock module, wherever [`module_path()`] finds it at the start.
    pub fn quorlock_module(mut self) -> Self {
        self.module = Module::Quorlock;
        self
    }

    /// A plain server: no module is loaded, and none is configured.
    pub fn without_module(mut self) -> Self {
        self.module = Module::None;
        // A server refuses the configuration of a module that it does not load.
        self.directives.retain(|(name, _)| !name.starts_with("lock."));
        self
    }

    /// One more word for the module to be loaded with.
    pub fn module_arg(mut self, word: impl Into<String>) -> Self {
        self.module_args.push(word.into());
        self
    }

    /// A directive of redis.conf, given as `--name value`; it replaces an earlier one of that name, and the defaults.
    ///
    /// Where the server listens is not for this: see [`ServerBuilder::tcp`] and [`ServerBuilder::tcp_port`].
    #[expect(clippy::needless_pass_by_value, reason = "a number is to be given as it is, not by reference")]
    pub fn arg(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.directives.push((name.into(), value.to_string()));
        self
    }

    /// A redis.conf of the caller's, which the server reads first and `CONFIG REWRITE` writes. What is given in other ways
    /// comes after it.
    pub fn config_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.config_file = Some(path.into());
        self
    }

    /// A variable of the server's environment.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Has the server tell the time by this wall clock, which can then be stepped.
    #[cfg(target_os = "linux")]
    pub fn wall_clock(mut self, clock: &WallClock) -> Self {
        self.preloads.push(clock.preload());
        self
    }

    /// Takes down what the server syncs, so that this can cut its power.
    #[cfg(target_os = "linux")]
    pub fn power_cut(mut self, power: &PowerCut) -> Self {
        self.preloads.push(power.preload());
        self
    }

    /// The directory for its files, made when it does not exist and left behind at the end, instead of a temporary
    /// one that goes with the server.
    pub fn dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.directory = Some(path.into());
        self
    }

    /// Listens on a free port of 127.0.0.1, instead of on a unix socket in its directory.
    pub fn tcp(mut self) -> Self {
        self.listen = Listen::Tcp { port: None };
        self
    }

    /// Listens on this port of 127.0.0.1, instead of on a unix socket in its directory.
    pub fn tcp_port(mut self, port: u16) -> Self {
        self.listen = Listen::Tcp { port: Some(port) };
        self
    }

    /// Starts the server, and returns when it answers a PING with PONG.
    ///
    /// When it does not within 10 s, or ends before, the error has the end of its log.
    pub fn start(self) -> Result<Server, StartError> {
        let binary = match self.binary {
            Some(path) => path,
            None => find_server_binary()?,
        };
        let module = match self.module {
            Module::None => None,
            Module::Quorlock => Some(module_path()?),
            Module::At(path) => Some(path),
        };
        let directory = Directory::prepare(self.directory)?;
        let address = match self.listen {
            Listen::Unix => Address::unix_in(directory.path())?,
            Listen::Tcp { port } => Address::tcp(port)?,
        };
        let mut settings = Settings::new(binary, module, self.module_args);
        settings.config_file = self.config_file.map(absolute);
        settings.environment = self.environment;
        settings.preloads = self.preloads;
        for (name, value) in self.directives {
            settings.set(name, value);
        }
        Server::start(directory, address, settings)
    }
}
