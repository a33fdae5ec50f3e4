//! Processes that compete for one lock.

use std::env;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::turns::{Account, Course};
use super::worker::{self, Behaviour};

/// How long a process may take to be ready, or to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// They are killed when this is dropped.
pub(crate) struct Crowd {
    workers: Vec<Worker>,
}

struct Worker {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Crowd {
    /// Starts so many, and returns when all of them are connected.
    pub(crate) async fn start(n: usize, behaviour: &Behaviour) -> anyhow::Result<Self> {
        let mut workers = (0..n).map(|_| Worker::start(behaviour)).collect::<anyhow::Result<Vec<_>>>()?;
        for worker in &mut workers {
            let line =
                timeout(PATIENCE, worker.lines.next_line()).await.context("a client does not start")??;
            ensure!(line.as_deref() == Some("ready"), "a client could not connect");
        }
        Ok(Self { workers })
    }

    /// Lets each of them take the lock again and again, until it is told to stop.
    pub(crate) async fn go(&mut self) -> anyhow::Result<()> {
        self.order(worker::GO).await
    }

    /// Lets each of them take the lock once, and returns at once; [`Crowd::turns`] waits for them.
    pub(crate) async fn once(&mut self) -> anyhow::Result<()> {
        self.order(worker::ONCE).await
    }

    /// What each did at [`Crowd::once`].
    pub(crate) async fn turns(&mut self) -> anyhow::Result<Vec<Account>> {
        let mut accounts = Vec::new();
        for worker in &mut self.workers {
            let line =
                timeout(PATIENCE, worker.lines.next_line()).await.context("a client got no lock")??;
            let mut account = Account::default();
            account.add(line.context("a client has ended")?.parse()?);
            accounts.push(account);
        }
        Ok(accounts)
    }

    async fn order(&mut self, what: &str) -> anyhow::Result<()> {
        for worker in &mut self.workers {
            worker.stdin.write_all(format!("{what}\n").as_bytes()).await?;
        }
        Ok(())
    }

    /// Lets them stop, and tells what they did.
    pub(crate) async fn stop(self) -> anyhow::Result<Course> {
        let (stdins, others): (Vec<_>, Vec<_>) =
            self.workers.into_iter().map(|Worker { child, stdin, lines }| (stdin, (child, lines))).unzip();
        drop(stdins);
        let mut accounts = Vec::new();
        for (mut child, mut lines) in others {
            let mut account = Account::default();
            while let Some(line) =
                timeout(PATIENCE, lines.next_line()).await.context("a client does not end")??
            {
                account.add(line.parse()?);
            }
            let status = child.wait().await?;
            ensure!(status.success(), "a client ended with {status}");
            accounts.push(account);
        }
        Ok(Course::new(accounts))
    }
}

impl Worker {
    fn start(behaviour: &Behaviour) -> anyhow::Result<Self> {
        let program = env::current_exe().context("cannot tell what program this is")?;
        let mut child = Command::new(program)
            .arg(worker::NAME)
            .args(behaviour.args())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a client")?;
        let stdin = child.stdin.take().context("it has a pipe")?;
        let stdout = child.stdout.take().context("it has a pipe")?;
        Ok(Self { child, stdin, lines: BufReader::new(stdout).lines() })
    }
}
