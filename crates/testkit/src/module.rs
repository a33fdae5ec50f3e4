use std::env::{self, consts};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use crate::ModuleError;

/// The environment variable that names the module to load.
pub const MODULE_VARIABLE: &str = "QUORLOCK_MODULE";

const OUTPUT_TAIL_LINES: usize = 40;

/// The Quorlock module to load: what `QUORLOCK_MODULE` names, else the one beside the running program.
///
/// A test or program that runs where cargo put it gets the module of the same target directory and profile, built now
/// when it is not there: one of another profile may be of another day. Any other program gets the one in its own
/// directory, else the installed one in `../lib/quorlock`, else that of the workspace, the release before the debug build.
///
/// A module that is there is taken as it is, and not built again.
pub fn module_path() -> Result<PathBuf, ModuleError> {
    // Looked for once: all servers of one program load the same module.
    static FOUND: OnceLock<Result<PathBuf, ModuleError>> = OnceLock::new();
    FOUND.get_or_init(find_or_build).clone()
}

fn find_or_build() -> Result<PathBuf, ModuleError> {
    if let Some(named) = env::var_os(MODULE_VARIABLE).filter(|named| !named.is_empty()) {
        let path = PathBuf::from(named);
        return match std::path::absolute(&path) {
            Ok(absolute) if absolute.is_file() => Ok(absolute),
            _ => Err(ModuleError::NoSuchFile { path }),
        };
    }
    let executable = env::current_exe().unwrap_or_default();
    let workspace = workspace();
    let mut looked_at = Vec::new();
    if let Some(beside) = output_directory(&executable) {
        let module = beside.join(file_name());
        if module.is_file() {
            return Ok(module);
        }
        if beside.join("deps").is_dir() && workspace.join("Cargo.toml").is_file() {
            build(&workspace, beside)?;
            return Ok(module);
        }
        looked_at.push(module);
        // /usr/bin/quorlock and /usr/lib/quorlock/libquorlock.so.
        looked_at.extend(beside.parent().map(|prefix| prefix.join("lib/quorlock").join(file_name())));
    }
    // An installed program is not on the machine that built it.
    if workspace.join("Cargo.toml").is_file() {
        // Documentation tests run from a directory of their own.
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
        looked_at.extend(["release", "debug"].map(|profile| target.join(profile).join(file_name())));
    }
    match looked_at.iter().find(|module| module.is_file()) {
        Some(module) => Ok(module.clone()),
        None => Err(ModuleError::NotFound { looked_at }),
    }
}

fn workspace() -> PathBuf {
    let this_crate = Path::new(env!("CARGO_MANIFEST_DIR"));
    this_crate.ancestors().nth(2).unwrap_or(this_crate).to_path_buf()
}

fn file_name() -> String {
    format!("{}quorlock{}", consts::DLL_PREFIX, consts::DLL_SUFFIX)
}

/// Where a build that made `executable` leaves libraries: tests and examples are one level further down.
fn output_directory(executable: &Path) -> Option<&Path> {
    let directory = executable.parent()?;
    match directory.file_name()?.to_str() {
        Some("deps" | "examples") => directory.parent(),
        _ => Some(directory),
    }
}

fn build(workspace: &Path, output_directory: &Path) -> Result<(), ModuleError> {
    let profile = match output_directory.file_name().and_then(|name| name.to_str()) {
        None | Some("debug") => "dev",
        Some(profile) => profile,
    };
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(workspace)
        .args(["build", "--package", "quorlock", "--profile", profile, "--target-dir"])
        .arg(output_directory.parent().unwrap_or(output_directory))
        .stdin(Stdio::null())
        .output()
        .map_err(|source| ModuleError::NoCargo { source: Arc::new(source) })?;
    let path = output_directory.join(file_name());
    if output.status.success() && path.is_file() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<_> = said.lines().collect();
    let output_tail = lines[lines.len().saturating_sub(OUTPUT_TAIL_LINES)..].join("\n");
    Err(ModuleError::NotBuilt { path, status: output.status, output_tail })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_of_a_test_an_example_and_a_program_is_in_the_same_directory() {
        for executable in ["/t/debug/deps/claims-1f", "/t/debug/examples/tour", "/t/debug/quorlock"] {
            assert_eq!(output_directory(Path::new(executable)), Some(Path::new("/t/debug")), "{executable}");
        }
    }
}
