use std::env;
use std::path::{Path, PathBuf};

use crate::StartError;

/// Environment variable that names the server program to start.
pub const BINARY_VARIABLE: &str = "QUORLOCK_SERVER";
/// Environment variable that names the module to load.
pub const MODULE_VARIABLE: &str = "QUORLOCK_MODULE";

const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];
const MODULE_FILE: &str = "libquorlock.so";

/// Returns the server program to start.
///
/// The program is the one that `QUORLOCK_SERVER` names, else `redis-server`, else `valkey-server`
/// on `PATH`. The returned path is absolute. Symbolic links are not resolved, because these
/// programs act by the name under which they are called.
pub fn find_server_binary() -> Result<PathBuf, StartError> {
    if let Some(named) = named_file(BINARY_VARIABLE) {
        return named.map_err(|path| StartError::NoSuchBinary { path });
    }
    let search = env::var_os("PATH").unwrap_or_default();
    PROGRAMS
        .iter()
        .flat_map(|program| env::split_paths(&search).map(move |directory| directory.join(program)))
        .filter_map(|candidate| std::path::absolute(candidate).ok())
        .find(|candidate| candidate.is_file())
        .ok_or(StartError::NoBinary)
}

/// Returns the path of the Quorlock module to load.
///
/// The module is the one that `QUORLOCK_MODULE` names. If the variable is not set, the place
/// depends on the running program.
///
/// A test or program that runs in a target directory of cargo uses the module of the same directory
/// and profile, since the module of another profile may be older. Any other program uses the module
/// in its own directory, else the installed one in `../lib/quorlock`, else the release build of the
/// workspace, else the debug build.
pub fn module_path() -> Result<PathBuf, StartError> {
    if let Some(named) = named_file(MODULE_VARIABLE) {
        return named.map_err(|path| StartError::NoSuchModule { path });
    }
    let executable = env::current_exe().unwrap_or_default();
    let searched = expected_modules(&executable);
    match searched.iter().find(|module| module.is_file()) {
        Some(module) => Ok(module.clone()),
        None => Err(StartError::NoModule { searched }),
    }
}

/// Returns the absolute path of the file that a variable names. The error is the value of the
/// variable, if there is no such file. Returns `None` if the variable is not set or empty.
fn named_file(variable: &str) -> Option<Result<PathBuf, PathBuf>> {
    let path = PathBuf::from(env::var_os(variable).filter(|named| !named.is_empty())?);
    let absolute = std::path::absolute(&path).ok().filter(|absolute| absolute.is_file());
    Some(absolute.ok_or(path))
}

/// Returns where a program finds the module.
fn expected_modules(executable: &Path) -> Vec<PathBuf> {
    let this_crate = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = this_crate.ancestors().nth(2).unwrap_or(this_crate);
    let mut expected = Vec::new();
    if let Some(directory) = output_directory(executable) {
        expected.push(directory.join(MODULE_FILE));
        if directory.join("deps").is_dir() {
            return expected;
        }
        // For example, /usr/bin/quorlock loads /usr/lib/quorlock/libquorlock.so.
        expected
            .extend(directory.parent().map(|prefix| prefix.join("lib/quorlock").join(MODULE_FILE)));
    }
    // The workspace exists only on the machine that built this program.
    if workspace.join("Cargo.toml").is_file() {
        // A documentation test runs outside the target directory, so this directory is a guess.
        let target =
            env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
        expected.extend(["release", "debug"].map(|profile| target.join(profile).join(MODULE_FILE)));
    }
    expected
}

/// Returns the directory in which the build of `executable` leaves libraries. The programs of tests
/// and examples are in directories below this one.
fn output_directory(executable: &Path) -> Option<&Path> {
    let directory = executable.parent()?;
    match directory.file_name()?.to_str() {
        Some("deps" | "examples") => directory.parent(),
        _ => Some(directory),
    }
}
