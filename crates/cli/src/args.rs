use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::exit;

/// Distributed locks on a majority of Redis or Valkey masters.
#[derive(Parser)]
#[command(
    name = "quorlock",
    version,
    after_help = "Start with `quorlock up`, then `quorlock run KEY -- COMMAND`."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Subcommand)]
pub(crate) enum Verb {
    Run(Run),
    Up(Up),
}

/// Runs a command while holding a lock: waits for it, keeps it, gives it back.
///
/// The command finds the lock's fencing token in QUORLOCK_FENCE and its key in QUORLOCK_KEY. If the lock is lost, the
/// command is stopped before anybody else can have it: first with SIGTERM, then with SIGKILL.
#[derive(clap::Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct Run {
    /// The lock's name: the key on every master
    pub(crate) key: String,

    /// The masters' URLs, separated by commas: redis://[user:password@]host:port[/db], rediss:// or redis+unix:///path
    #[arg(long, env = "QUORLOCK_NODES", value_delimiter = ',', required = true, hide_env_values = true)]
    pub(crate) nodes: Vec<String>,

    /// How long the lock lasts if this program dies; it is extended three times in that time while the command runs
    #[arg(long, default_value = "10s", value_parser = duration, value_name = "TIME")]
    pub(crate) ttl: Duration,

    /// How long to wait for the lock [default: for ever]
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) wait: Option<Duration>,

    /// Who holds the lock, for LOCK.INSPECT to show [default: host name and process id]
    #[arg(long)]
    pub(crate) owner: Option<String>,

    /// The command to run, and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// Starts local masters with the lock module, for trying things out.
///
/// They run on free ports in a temporary folder and are gone after Ctrl-C.
#[derive(clap::Args)]
pub(crate) struct Up {
    /// How many masters
    #[arg(short = 'n', long = "masters", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) masters: u16,

    /// The server to run [default: redis-server, else valkey-server, from the PATH]
    #[arg(long, value_name = "FILE")]
    pub(crate) server: Option<PathBuf>,

    /// The module [default: libquorlock.so beside this program]
    #[arg(long, value_name = "FILE")]
    pub(crate) module: Option<PathBuf>,
}

/// `10s`, `500ms`, `2m`, `1h`.
fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 =
        number.parse().map_err(|_| "give a whole number and a unit, such as 10s or 500ms".to_owned())?;
    let ms_per_unit = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err("the unit must be ms, s, m or h".into()),
    };
    number.checked_mul(ms_per_unit).map(Duration::from_millis).ok_or_else(|| "that is too long".into())
}
