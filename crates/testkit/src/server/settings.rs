use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::address::Address;

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
    environment: Vec<(OsString, OsString)>,
    directives: Vec<(String, String)>,
}

impl Settings {
    pub(super) fn new(
        binary: PathBuf,
        module: Option<PathBuf>,
        module_args: Vec<String>,
        environment: Vec<(OsString, OsString)>,
    ) -> Self {
        let directives = DEFAULT_DIRECTIVES.map(|(name, value)| (name.into(), value.into())).into();
        // Both are used from another directory than the caller's.
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let is_on_path = binary.components().count() == 1 && !binary.exists();
        Self {
            binary: if is_on_path { binary } else { absolute(binary) },
            module: module.map(absolute),
            module_args,
            environment,
            directives,
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
        command
    }
}
