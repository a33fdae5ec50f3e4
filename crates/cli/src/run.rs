use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::Context as _;
use quorlock_client::{AcquireError, ExtendError, Lock, Quorum};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::args::Run;
use crate::exit;

/// The longest wait there is, for those who did not say: as good as for ever.
const WAIT_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

pub(crate) async fn run(args: Run) -> anyhow::Result<ExitCode> {
    let quorum = Quorum::connect(&args.nodes).await?;
    let owner = args.owner.unwrap_or_else(|| format!("{} {}", host_name(), std::process::id()));
    let acquiring =
        quorum.lock(args.key.as_str()).ttl(args.ttl).wait(args.wait.unwrap_or(WAIT_MAX)).owner(owner);
    let lock = match acquiring.acquire().await {
        Ok(lock) => lock,
        Err(error @ AcquireError::Unusable { .. }) => return Err(error.into()),
        Err(error) => {
            eprintln!("quorlock: not acquired: {error}");
            quorum.close().await;
            return Ok(ExitCode::from(exit::NOT_ACQUIRED));
        }
    };
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    command.env("QUORLOCK_KEY", &args.key).env("QUORLOCK_FENCE", lock.fence().to_string());
    command.kill_on_drop(true);
    let code = match command.spawn() {
        Ok(child) => supervise(child, lock, args.ttl).await?,
        Err(error) => {
            eprintln!("quorlock: cannot run {}: {error}", args.command[0].display());
            drop(lock);
            let missing = error.kind() == ErrorKind::NotFound;
            ExitCode::from(if missing { exit::NOT_FOUND } else { exit::CANNOT_RUN })
        }
    };
    quorum.close().await;
    Ok(code)
}

/// Extends the lock while the child runs, forwards signals to it, and stops it when the lock is lost.
async fn supervise(mut child: Child, mut lock: Lock, ttl: Duration) -> anyhow::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    // A terminal sends Ctrl-C to the child as well; this program must outlive it to release the lock.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut extend_at = Instant::now() + ttl / 3;
    loop {
        tokio::select! {
            biased;
            ended = child.wait() => {
                let status = ended.context("cannot wait for the command")?;
                if let Err(error) = lock.release().await {
                    eprintln!("quorlock: {error}");
                }
                return Ok(code_of(status));
            }
            // A third of the ttl before the end there is still time for the child to clean up.
            () = sleep(lock.remaining().saturating_sub(ttl / 3)) => {
                eprintln!("quorlock: the lock could not be extended in time: stopping the command");
                return stop(child, lock.remaining()).await;
            }
            () = sleep_until(extend_at) => {
                match lock.extend().await {
                    Ok(()) => extend_at = Instant::now() + ttl / 3,
                    // Too few nodes answered; the lock is still held for a while, and they may come back.
                    Err(ExtendError::NoQuorum { .. }) => extend_at = Instant::now() + ttl / 20,
                    Err(error) => {
                        eprintln!("quorlock: {error}: stopping the command");
                        return stop(child, lock.remaining()).await;
                    }
                }
            }
            _ = terminate.recv() => forward(&child, Signal::TERM),
            _ = hang_up.recv() => forward(&child, Signal::HUP),
            _ = interrupt.recv() => {}
        }
    }
}

/// Stops the child before the lock can be another's: asks first, and leaves no choice for the last half of the time.
async fn stop(mut child: Child, remaining: Duration) -> anyhow::Result<ExitCode> {
    forward(&child, Signal::TERM);
    if timeout(remaining / 2, child.wait()).await.is_err() {
        child.kill().await.context("cannot kill the command")?;
    }
    Ok(ExitCode::from(exit::LOST))
}

fn forward(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // It may have ended just now, which its exit status will tell.
        let _ = kill_process(pid, signal);
    }
}

fn code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::FAILED))
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
