//! The handle that `quorlock acquire` prints: a detached lock as text.

use std::io::{self, Read as _, Write as _, stdin, stdout};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, anyhow};
use quorlock_client::{DetachedLock, Lock, Quorum};
use rustix::process::getppid;
use rustix::system::uname;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

/// The limit for standard input: far more than a handle with 64 long keys.
const INPUT_BYTES_MAX: u64 = 1024 * 1024;
/// How long to wait for slow nodes, so that all reachable nodes hold the lock.
const STRAGGLERS_LIMIT: Duration = Duration::from_millis(50);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The handle of the lock to extend or release.
#[derive(clap::Args)]
pub(crate) struct HandleArg {
    /// The handle as it was printed, text or JSON; `-` reads it from standard input
    #[arg(value_name = "HANDLE")]
    text: String,
}

/// How a handle is printed.
#[derive(clap::Args)]
pub(crate) struct HandleOutput {
    /// Print JSON: handle, key, fence, `ttl_ms`, `expires_unix_ms`
    ///
    /// If the lock is a permit of a semaphore, also permit: the number of its slot, from 0.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Printed<'a> {
    handle: &'a str,
    /// With replacement characters for bytes that are not UTF-8. The handle has the exact key.
    key: String,
    fence: u64,
    ttl_ms: u128,
    expires_unix_ms: u128,
    #[serde(skip_serializing_if = "Option::is_none")]
    permit: Option<usize>,
}

#[derive(Deserialize)]
struct Given {
    handle: String,
}

/// The owner label of a lock that no process holds. It names the parent, usually the script that
/// keeps the handle: this process ends before the lock does.
pub(crate) fn default_owner() -> String {
    let host = uname().nodename().to_string_lossy().into_owned();
    match getppid() {
        Some(parent) => format!("{host}:{} (detached)", parent.as_raw_pid()),
        // The parent is in another PID namespace.
        None => format!("{host} (detached)"),
    }
}

impl HandleArg {
    /// Reads the handle. The error does not show it.
    pub(crate) fn read(&self) -> anyhow::Result<DetachedLock> {
        let text = match &*self.text {
            "-" => io::read_to_string(stdin().take(INPUT_BYTES_MAX))
                .context("cannot read the handle from standard input")?,
            given => given.to_owned(),
        };
        let hint = "give what `quorlock acquire` or `quorlock extend` printed last";
        if text.trim_start().starts_with('{') {
            let given: Given = serde_json::from_str(&text)
                .map_err(|_| anyhow!("this JSON has no text field \"handle\": {hint}"))?;
            return given.handle.parse().context(hint);
        }
        text.parse().context(hint)
    }
}

impl HandleOutput {
    /// Detaches the lock from this process and prints its handle. Releases the lock if printing
    /// fails: no other process could release it.
    pub(crate) async fn detach_and_print(&self, quorum: &Quorum, lock: Lock) -> anyhow::Result<()> {
        wait_for_stragglers(quorum, &lock).await;
        let detached = lock.detach();
        let Err(error) = self.print(&detached) else { return Ok(()) };
        match quorum.release_detached(detached).await {
            Ok(_) => Err(error).context("cannot print the handle; the lock is released"),
            Err(_) => {
                Err(error).context("cannot print the handle; the lock stays until its ttl is over")
            }
        }
    }

    fn print(&self, detached: &DetachedLock) -> anyhow::Result<()> {
        let handle = detached.to_secret_text();
        let line = if self.json {
            let expires = detached.until().duration_since(UNIX_EPOCH).unwrap_or_default();
            serde_json::to_string(&Printed {
                handle: &handle,
                key: String::from_utf8_lossy(detached.key()).into_owned(),
                fence: detached.fence().get(),
                ttl_ms: detached.ttl().as_millis(),
                expires_unix_ms: expires.as_millis(),
                permit: detached.slot(),
            })?
        } else {
            handle
        };
        let mut stdout = stdout().lock();
        writeln!(stdout, "{line}")?;
        Ok(stdout.flush()?)
    }
}

/// Waits until every reachable node holds the lock, for [`STRAGGLERS_LIMIT`] at most. Otherwise the
/// process could end before its requests are sent to the slower nodes.
async fn wait_for_stragglers(quorum: &Quorum, lock: &Lock) {
    let until = Instant::now() + STRAGGLERS_LIMIT;
    while Instant::now() < until {
        let reachable = quorum.health().iter().filter(|node| node.error.is_none()).count();
        if lock.coverage().held >= reachable {
            return;
        }
        sleep(POLL_INTERVAL).await;
    }
}
