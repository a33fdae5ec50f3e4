use std::env;
use std::path::PathBuf;

use crate::BinaryError;

/// The environment variable that names the server program to use.
pub const BINARY_VARIABLE: &str = "QUORLOCK_SERVER";

const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// The server program that tests run: what `QUORLOCK_SERVER` names, else `redis-server`, else `valkey-server` on `PATH`.
///
/// The path is absolute and its symbolic links are kept, because these programs look at the name they were called by.
pub fn find_server_binary() -> Result<PathBuf, BinaryError> {
    if let Some(named) = env::var_os(BINARY_VARIABLE).filter(|named| !named.is_empty()) {
        let path = PathBuf::from(named);
        return match std::path::absolute(&path) {
            Ok(absolute) if absolute.is_file() => Ok(absolute),
            _ => Err(BinaryError::NoSuchFile { path }),
        };
    }
    let search = env::var_os("PATH").unwrap_or_default();
    PROGRAMS
        .iter()
        .flat_map(|program| env::split_paths(&search).map(move |directory| directory.join(program)))
        .filter_map(|candidate| std::path::absolute(candidate).ok())
        .find(|candidate| candidate.is_file())
        .ok_or(BinaryError::NotInstalled)
}
