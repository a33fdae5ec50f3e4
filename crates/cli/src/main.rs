//! `quorlock`: runs a program under a lock that a majority of Redis or Valkey masters grants.
//!
//! - [`args`]: the command line.
//! - [`run`]: `quorlock run`.
//! - [`keeper`]: the lock that it keeps.
//! - [`watchdog`]: the process that starts the command, and stops it in time.
//! - [`family`]: the command and everything that it started.
//! - [`clock`]: the clocks of a validity.
//! - [`signals`]: what others want of this program.
//! - [`up`]: `quorlock up`.
//! - [`exit`]: what the exit codes mean.

mod args;
mod clock;
mod exit;
mod family;
mod keeper;
mod run;
mod signals;
mod up;
mod watchdog;

use std::env;
use std::fmt::Display;
use std::io::{Write as _, stderr};
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Verb};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut words = env::args_os().skip(1);
    if words.next().is_some_and(|verb| verb == watchdog::VERB) {
        return finish(watchdog::main(words.collect()).await);
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            // Not clap's 2, which a command may well mean something by.
            return if error.use_stderr() { ExitCode::from(exit::FAILED) } else { ExitCode::SUCCESS };
        }
    };
    finish(match args.verb {
        Verb::Run(args) => run::run(args).await,
        Verb::Up(args) => up::up(args).await,
    })
}

fn finish(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        say(format_args!("{error:#}"));
        ExitCode::from(exit::FAILED)
    })
}

/// Tells the person. Standard output belongs to the command, and that nobody listens is no reason to fail.
fn say(message: impl Display) {
    let _ = writeln!(stderr(), "quorlock: {message}");
}
