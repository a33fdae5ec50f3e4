use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

/// A client in a process of its own, which is sent lines and answers with lines.
///
/// It is killed when this is dropped.
pub struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    /// Starts a program with these arguments.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(
        program: &Path,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("start {}", program.display()))?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().context("its output is piped")?);
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            // Ends with the output, or with the receiver.
            let _ = stdout
                .lines()
                .map_while(std::io::Result::ok)
                .try_for_each(|line| sender.send(line));
        });
        Ok(Self { child, stdin, lines })
    }

    /// Sends a line.
    ///
    /// # Errors
    /// When the process reads no more.
    pub fn send(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("its input has ended")?;
        writeln!(stdin, "{line}")?;
        Ok(stdin.flush()?)
    }

    /// Ends the input of the process, which tells it to end.
    pub fn end_input(&mut self) {
        self.stdin = None;
    }

    /// Returns the lines that have arrived since the last call.
    pub fn lines_so_far(&self) -> impl Iterator<Item = String> {
        self.lines.try_iter()
    }

    /// Waits for the next line. Returns `None` when the output has ended.
    ///
    /// # Errors
    /// When none arrives within `limit`.
    pub fn next_line(&self, limit: Duration) -> Result<Option<String>> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => bail!("a client is silent for {} s", limit.as_secs()),
        }
    }

    /// Reaps a process whose output has ended.
    ///
    /// # Errors
    /// When it failed.
    pub fn wait(mut self) -> Result<()> {
        let status = self.child.wait()?;
        ensure!(status.success(), "a client failed: {status}");
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Neither can fail for a process that was not reaped, nor does it matter for one that was.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
