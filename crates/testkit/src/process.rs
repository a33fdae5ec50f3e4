use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

/// A client in a separate process, which reads lines, and answers with lines. Dropping this value
/// kills the process.
pub struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    /// # Errors
    /// When the program does not start.
    pub fn start(
        program: &Path,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("start {}", program.display()))?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().context("the child has no piped output")?);
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            // Ends when the output ends, or the receiver is dropped.
            let _ = stdout
                .lines()
                .map_while(std::io::Result::ok)
                .try_for_each(|line| sender.send(line));
        });
        Ok(Self { child, stdin, lines })
    }

    /// # Errors
    /// When the process has closed its input.
    pub fn send(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("the input of the client was closed")?;
        writeln!(stdin, "{line}")?;
        Ok(stdin.flush()?)
    }

    /// Tells the process to end, by closing its input.
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
    /// When no line arrives within `limit`.
    pub fn next_line(&self, limit: Duration) -> Result<Option<String>> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                bail!("a client printed nothing for {} s", limit.as_secs())
            }
        }
    }

    /// Reaps a process whose output has ended.
    ///
    /// # Errors
    /// When the process failed.
    pub fn wait(mut self) -> Result<()> {
        let status = self.child.wait()?;
        ensure!(status.success(), "a client failed: {status}");
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both calls succeed for a process that was not reaped. Otherwise, failures do not matter.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
