//! `quorlock`: runs a program under a lock that a majority of Redis or Valkey masters grants.
//!
//! - [`args`]: the command line.
//! - [`run`]: `quorlock run`.
//! - [`up`]: `quorlock up`.
//! - [`exit`]: what the exit codes mean.

mod args;
mod exit;
mod run;
mod up;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Verb};

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match Args::parse().verb {
        Verb::Run(args) => run::run(args).await,
        Verb::Up(args) => up::up(args).await,
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("quorlock: {error:#}");
            ExitCode::from(exit::FAILED)
        }
    }
}
