//! `quorlock`: runs a program under a lock that a majority of Redis or Valkey masters grants.
//!
//! Each subcommand has a module with its options. What several of them share is below them:
//!
//! - [`run`]: with [`lock_renewer`], which renews and checks the lock, [`watchdog`], the process
//!   that starts the command and stops it in time, and [`process_tree`], all that it started.
//! - [`acquire`], and in [`handle`] extend and release: for scripts, which pass a lock on.
//! - [`inspect`] with list, and [`revoke`]: for operators. [`locks`] says what the nodes answer
//!   about a lock.
//! - [`status`], [`doctor`], [`exporter`], [`top`], [`restart_nodes`]: the state of each node.
//!   [`fleet`] asks for it, and makes one snapshot for all of them.
//! - [`up`]: local nodes. [`manual`]: man pages and shell completions.
//! - [`nodes`]: the list of nodes, and the connection to them; [`endpoint`]: one node of the list;
//!   [`config`]: configuration files.
//! - [`values`]: names and times; [`exit`]: exit codes and errors; [`output`]: what is printed;
//!   [`system`]: clocks and signals.

mod acquire;
mod config;
mod doctor;
mod endpoint;
mod exit;
mod exporter;
mod fleet;
mod handle;
mod inspect;
mod lock_renewer;
mod locks;
mod manual;
mod nodes;
mod output;
mod process_tree;
mod restart_nodes;
mod revoke;
mod run;
mod status;
mod system;
mod top;
mod up;
mod values;
mod watchdog;

use std::env;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser, Subcommand};

use crate::exit::Ended;
use crate::output::say;

/// Distributed locks on a majority of Redis or Valkey masters.
#[derive(Parser)]
#[command(
    name = "quorlock",
    version,
    after_help = TRY_IT,
    after_long_help = [nodes::HELP, TRY_IT].join("\n\n"),
)]
struct Args {
    #[command(subcommand)]
    subcommand: Subcommands,
}

const TRY_IT: &str =
    "To try it out: `quorlock up` in one terminal, `quorlock run KEY -- COMMAND` in another.";

#[derive(Subcommand)]
enum Subcommands {
    Run(run::Run),
    Acquire(acquire::Acquire),
    Extend(handle::Extend),
    Release(handle::Release),
    Inspect(inspect::Inspect),
    List(inspect::List),
    Revoke(revoke::Revoke),
    Status(status::Status),
    Doctor(doctor::Doctor),
    Top(top::Top),
    Exporter(exporter::Exporter),
    RestartNodes(restart_nodes::RestartNodes),
    Up(up::Up),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut words = env::args_os().skip(1);
    match words.next() {
        Some(subcommand) if subcommand == watchdog::SUBCOMMAND => {
            return finish(watchdog::main(words.collect()).await);
        }
        Some(subcommand) if subcommand == manual::SUBCOMMAND => {
            return finish(manual::main(Args::command(), &words.collect::<Vec<_>>()));
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
        Subcommands::Run(args) => run::run(args).await,
        Subcommands::Acquire(args) => acquire::acquire(args).await,
        Subcommands::Extend(args) => handle::extend(args).await,
        Subcommands::Release(args) => handle::release(args).await,
        Subcommands::Inspect(args) => inspect::inspect(args).await,
        Subcommands::List(args) => inspect::list(args).await,
        Subcommands::Revoke(args) => revoke::revoke(args).await,
        Subcommands::Status(args) => status::status(args).await,
        Subcommands::Doctor(args) => doctor::doctor(args).await,
        Subcommands::Exporter(args) => exporter::exporter(args).await,
        Subcommands::Top(args) => top::top(args).await,
        Subcommands::RestartNodes(args) => restart_nodes::restart_nodes(args).await,
        Subcommands::Up(args) => up::up(args).await,
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
        let message = format!("{error:#}");
        if !message.is_empty() {
            say(message);
        }
        error.downcast_ref::<Ended>().map_or(ExitCode::from(exit::FAILED), |ended| ended.code)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_valid_and_every_argument_has_a_help_text() {
        let mut command = Args::command();
        command.build();
        command.clone().debug_assert();
        for subcommand in command.get_subcommands().filter(|of| of.get_name() != "help") {
            for argument in subcommand.get_arguments() {
                let name = (subcommand.get_name(), argument.get_id());
                assert!(argument.get_help().is_some(), "{name:?}");
            }
        }
    }
}
