//! What storms, scenarios and the fuzzer share.

use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};

/// Whether the protection under test is in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protected {
    /// The module and the client run as the documentation describes.
    Yes,
    /// One protection is removed. Such a run is a baseline.
    No,
}

/// Returns a seed that differs from run to run: a test must pass with every seed.
pub fn any_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() % 1_000_000 * 1000 + u64::from(since.subsec_millis())
}

/// Returns the result of a thread. A panic of the thread goes on in the caller.
pub(crate) fn result_of<T>(joined: thread::Result<T>) -> T {
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Returns the port in the address of a server that listens on TCP.
pub(crate) fn port(url: &str) -> Result<u16> {
    let port = url.trim_end_matches('/').rsplit(':').next().unwrap_or_default();
    port.parse().with_context(|| format!("{url} has no port"))
}

#[cfg(test)]
mod tests {
    use super::port;

    #[test]
    fn port_is_a_number_after_the_last_colon() {
        assert_eq!(port("redis://127.0.0.1:6379/").ok(), Some(6379));
        assert!(port("redis+unix:///socket").is_err());
    }
}
