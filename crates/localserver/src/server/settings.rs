use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use super::address::Address;

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

/// The command line that a restart repeats, without the address.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// Set when the server is started.
    pub(super) binary: PathBuf,
    /// As above.
    pub(super) module: Option<PathBuf>,
    pub(super) module_args: Vec<String>,
    pub(super) directives: Vec<(String, String)>,
    pub(super) config_file: Option<PathBuf>,
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) hooks: Vec<Arc<dyn StartHook>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            binary: PathBuf::new(),
            module: None,
            module_args: Vec::new(),
            directives: DEFAULT_DIRECTIVES.map(|(name, value)| (name.into(), value.into())).into(),
            config_file: None,
            environment: Vec::new(),
            hooks: Vec::new(),
        }
    }
}

/// Makes a path absolute, because the server runs in another directory than the caller.
pub(super) fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

impl Settings {
    pub(super) fn set(&mut self, name: String, value: String) {
        match self.directives.iter_mut().find(|(existing, _)| existing.eq_ignore_ascii_case(&name))
        {
            Some((_, existing)) => *existing = value,
            None => self.directives.push((name, value)),
        }
    }

    pub(super) fn command(&self, address: &Address) -> Command {
        let mut command = Command::new(&self.binary);
        // The server reads a configuration file only as its first argument.
        command.args(&self.config_file);
        // If a directive is repeated, the server uses the last one. So the caller's directives
        // follow those of the address.
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
        for hook in &self.hooks {
            hook.prepare(&mut command);
        }
        command
    }
}
