use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use super::address::Address;
use crate::injector::{Preload, preload};

/// What a server of ours is told when the caller says nothing else: it keeps nothing, stays in the foreground, and lets
/// a test do to it what it wants.
const DEFAULT_DIRECTIVES: [(&str, &str); 6] = [
    ("save", ""),
    ("appendonly", "no"),
    ("daemonize", "no"),
    ("enable-debug-command", "yes"),
    ("enable-module-command", "yes"),
    ("loglevel", "notice"),
];

/// What is started, apart from where it listens: kept, so that a restart is the same again.
#[derive(Debug)]
pub(super) struct Settings {
    binary: PathBuf,
    module: Option<PathBuf>,
    module_args: Vec<String>,
    directives: Vec<(String, String)>,
    pub(super) config_file: Option<PathBuf>,
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) preloads: Vec<Arc<Preload>>,
}

/// Used from another directory than the caller's.
pub(super) fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

impl Settings {
    pub(super) fn new(binary: PathBuf, module: Option<PathBuf>, module_args: Vec<String>) -> Self {
        let directives = DEFAULT_DIRECTIVES.map(|(name, value)| (name.into(), value.into())).into();
        let is_on_path = binary.components().count() == 1 && !binary.exists();
        Self {
            binary: if is_on_path { binary } else { absolute(binary) },
            module: module.map(absolute),
            module_args,
            directives,
            config_file: None,
            environment: Vec::new(),
            preloads: Vec::new(),
        }
    }

    pub(super) fn set(&mut self, name: String, value: String) {
        match self.directives.iter_mut().find(|(existing, _)| existing.eq_ignore_ascii_case(&name)) {
            Some((_, existing)) => *existing = value,
            None => self.directives.push((name, value)),
        }
    }

    pub(super) fn binary(&self) -> &Path {
        &self.binary
    }

    pub(super) fn command(&self, address: &Address) -> Command {
        let mut command = Command::new(&self.binary);
        // It can only come first.
        command.args(&self.config_file);
        // Of a directive that is given twice the server takes the last, so the caller's come after the address.
        for (name, value) in address.directives() {
            command.arg(format!("--{name}")).arg(value);
        }
        for (name, value) in &self.directives {
            command.arg(format!("--{name}")).arg(value);
        }
        if let Some(module) = &self.module {
            command.arg("--loadmodule").arg(module).args(&self.module_args);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        preload(&mut command, &self.preloads);
        command
    }
}
