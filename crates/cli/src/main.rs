//! `quorlock`: runs a program under a lock that a majority of Redis or Valkey masters grants.
//!
//! - [`args`]: the command line.
//! - [`nodes`]: the list of nodes and the connection to them; [`endpoint`]: one node of the list.
//! - [`config`]: configuration files.
//! - [`acquire`], [`extend`], [`release`]: the subcommands for scripts. They pass a lock on as a
//!   [`handle`].
//! - [`inspect`], [`list`], [`revoke`]: the subcommands for operators. [`semaphore`] shows all
//!   slots of a semaphore.
//! - [`output`]: what a terminal shows: escaped text, times, tables, JSON.
//! - [`advice`]: errors that name the option to change.
//! - [`duration`]: times on the command line and in configuration files.
//! - [`run`]: `quorlock run`.
//! - [`lock_renewer`]: renews and checks the lock of `quorlock run`.
//! - [`watchdog`]: the process that starts the command of `quorlock run` and stops it in time.
//! - [`process_tree`]: the command and everything that it started.
//! - [`clock`]: the clocks that measure a validity.
//! - [`signals`]: the signals that this program handles.
//! - [`up`]: `quorlock up`.
//! - [`fleet`]: the state of each node; [`status`] shows it, [`doctor`] finds faults, [`exporter`]
//!   serves figures to Prometheus, [`top`] shows the locks, and [`restart_nodes`] restarts the
//!   nodes one at a time.
//! - [`exit`]: the exit codes.
//! - [`manual`]: man pages and shell completions.

mod acquire;
mod advice;
mod args;
mod clock;
mod config;
mod doctor;
mod duration;
mod endpoint;
mod exit;
mod exporter;
mod extend;
mod fleet;
mod handle;
mod inspect;
mod list;
mod lock_renewer;
mod manual;
mod nodes;
mod output;
mod process_tree;
mod release;
mod restart_nodes;
mod revoke;
mod run;
mod semaphore;
mod signals;
mod status;
mod top;
mod up;
mod watchdog;

use std::env;
use std::fmt::Display;
use std::io::{Write as _, stderr};
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::args::{Args, SubcommandArgs};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut words = env::args_os().skip(1);
    match words.next() {
        Some(subcommand) if subcommand == watchdog::SUBCOMMAND => {
            return finish(watchdog::main(words.collect()).await);
        }
        Some(subcommand) if subcommand == manual::SUBCOMMAND => {
            return finish(manual::main(&words.collect::<Vec<_>>()));
        }
        _ => {}
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            if error.kind() == ErrorKind::UnknownArgument
                && env::args_os().any(|word| word == "--nodes")
            {
                say("to give several nodes to --nodes, separate them by commas, not by spaces");
            } else if lacks_separator(&error) {
                say("write `--` before the command: quorlock run KEY -- COMMAND");
            }
            // `exit::FAILED` replaces clap's exit code 2, which could also be the command's own.
            let code = if error.use_stderr() { exit::FAILED } else { exit::SUCCESS };
            return ExitCode::from(code);
        }
    };
    finish(match args.subcommand {
        SubcommandArgs::Run(args) => run::run(args).await,
        SubcommandArgs::Acquire(args) => acquire::acquire(args).await,
        SubcommandArgs::Extend(args) => extend::extend(args).await,
        SubcommandArgs::Release(args) => release::release(args).await,
        SubcommandArgs::Inspect(args) => inspect::inspect(args).await,
        SubcommandArgs::List(args) => list::list(args).await,
        SubcommandArgs::Revoke(args) => revoke::revoke(args).await,
        SubcommandArgs::Status(args) => status::status(args).await,
        SubcommandArgs::Doctor(args) => doctor::doctor(args).await,
        SubcommandArgs::Exporter(args) => exporter::exporter(args).await,
        SubcommandArgs::Top(args) => top::top(args).await,
        SubcommandArgs::RestartNodes(args) => restart_nodes::restart_nodes(args).await,
        SubcommandArgs::Up(args) => up::up(args).await,
    })
}

/// Whether the command of `quorlock run` follows the key directly.
fn lacks_separator(error: &clap::Error) -> bool {
    let mut words = env::args_os().skip(1);
    let is_run = words.next().is_some_and(|subcommand| subcommand == "run");
    let is_unexpected = matches!(
        error.get(ContextKind::InvalidArg),
        Some(ContextValue::String(word)) if !word.starts_with('-')
    );
    is_run
        && error.kind() == ErrorKind::UnknownArgument
        && is_unexpected
        && words.all(|word| word != "--")
}

fn finish(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        say(format_args!("{error:#}"));
        ExitCode::from(exit::FAILED)
    })
}

/// Prints a message on standard error, with control characters escaped. Standard output is only for
/// results and for the command of `quorlock run`.
fn say(message: impl Display) {
    // Standard error may be closed.
    let _ = writeln!(stderr(), "quorlock: {}", output::escape_lines(&message.to_string()));
}
