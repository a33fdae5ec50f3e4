use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, anyhow, ensure};

use super::account::Grant;
use super::{Behaviour, NAME, PROCESSES, Plan};
use crate::Protected;

/// All processes that take locks, and what they have told so far.
pub(super) struct Fleet {
    processes: Vec<Process>,
    grants: Arc<Mutex<Vec<Grant>>>,
}

struct Process {
    child: Child,
    listener: JoinHandle<Result<()>>,
}

impl Fleet {
    pub(super) fn start(plan: &Plan, urls: &[String]) -> Result<Self> {
        let mut fleet = Self { processes: Vec::new(), grants: Arc::default() };
        for id in 0..PROCESSES as u64 {
            let behaviour = Behaviour {
                // Each has random numbers of its own, so that none depends on what the others come to.
                seed: plan.seed ^ (id + 1) << 32,
                without_agreement: plan.protected == Protected::No,
                urls: urls.to_vec(),
            };
            let mut command = Command::new(&plan.program);
            command.arg(NAME).args(behaviour.args()).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().with_context(|| plan.program.display().to_string())?;
            let lines = BufReader::new(child.stdout.take().context("it is piped")?).lines();
            let grants = Arc::clone(&fleet.grants);
            let listener = thread::spawn(move || {
                for line in lines {
                    let grant = line?.parse()?;
                    locked(&grants).push(grant);
                }
                Ok(())
            });
            fleet.processes.push(Process { child, listener });
        }
        Ok(fleet)
    }

    /// What was told so far.
    pub(super) fn grants(&self) -> Vec<Grant> {
        locked(&self.grants).clone()
    }

    /// Has them finish what they do, and returns all that they told.
    pub(super) fn stop(&mut self) -> Result<Vec<Grant>> {
        for process in &mut self.processes {
            // The end of their input.
            drop(process.child.stdin.take());
        }
        for mut process in std::mem::take(&mut self.processes) {
            let status = process.child.wait()?;
            process.listener.join().map_err(|_| anyhow!("a listener panicked"))??;
            ensure!(status.success(), "a process that takes locks has failed: {status}");
        }
        Ok(self.grants())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // Neither can fail for a process that was not reaped, nor does it matter for one that was.
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}

fn locked(grants: &Mutex<Vec<Grant>>) -> MutexGuard<'_, Vec<Grant>> {
    grants.lock().unwrap_or_else(PoisonError::into_inner)
}
