use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use anyhow::ensure;
use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Parser, Subcommand};

use quorlock_client::{LockBuilder, Quorum};
use quorlock_core::node::PATTERN_BYTES_MAX;

use crate::acquire::Acquire;
use crate::config::Defaults;
use crate::doctor::Doctor;
use crate::duration::duration;
use crate::exit;
use crate::exporter::Exporter;
use crate::extend::Extend;
use crate::inspect::Inspect;
use crate::list::List;
use crate::nodes::{self, NodeArgs};
use crate::release::Release;
use crate::restart_nodes::RestartNodes;
use crate::revoke::Revoke;
use crate::status::Status;
use crate::top::Top;
use crate::up::Up;

/// The default ttl of a lock.
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(10);
/// A fraction of the ttl must be enough time to start a process, extend the lock, or stop the
/// command.
const TTL_MIN: Duration = Duration::from_millis(100);

/// Distributed locks on a majority of Redis or Valkey masters.
#[derive(Parser)]
#[command(
    name = "quorlock",
    version,
    after_help = TRY_IT,
    after_long_help = [nodes::HELP, TRY_IT].join("\n\n"),
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) subcommand: SubcommandArgs,
}

const TRY_IT: &str =
    "To try it out: `quorlock up` in one terminal, `quorlock run KEY -- COMMAND` in another.";

#[derive(Subcommand)]
pub(crate) enum SubcommandArgs {
    Run(Run),
    Acquire(Acquire),
    Extend(Extend),
    Release(Release),
    Inspect(Inspect),
    List(List),
    Revoke(Revoke),
    Status(Status),
    Doctor(Doctor),
    Top(Top),
    Exporter(Exporter),
    RestartNodes(RestartNodes),
    Up(Up),
}

/// Runs a command while holding a lock.
///
/// Waits for the lock, renews it, and releases it when the command ends.
///
/// When the lock cannot be renewed, the command and everything that it started are ended before
/// another client can acquire the lock: with SIGKILL when a 20th of the ttl is left, and with
/// SIGTERM before that, when a third of the ttl is left or, with --kill-after, by that time before
/// SIGKILL. If the masters say that the lock has ended, SIGTERM is sent at once, and SIGKILL after
/// at most a 20th of the ttl. A second process, the watchdog, does this even if quorlock itself is
/// suspended. If quorlock is killed with SIGKILL, the watchdog ends the command and all that it
/// started, and then releases the lock.
///
/// When the command ends, the lock is released. Processes that the command left in the background
/// then run without the lock. With --wait-all, the lock is released when they, too, have ended.
///
/// The signals TERM, INT, HUP, QUIT, USR1 and USR2 that reach quorlock are passed on to the command
/// and its process group. In the foreground of a terminal, only TERM, USR1 and USR2 are passed on,
/// and only to the command: Ctrl-C and the like reach it directly.
#[derive(clap::Args)]
#[command(
    after_help = [RUN_IN_SHORT, nodes::SEE_ALSO].join("\n\n"),
    after_long_help =
        [RUN_VALUES, nodes::SEE_ALSO, RUN_ENVIRONMENT, exit::RUN_HELP, RUN_EXAMPLE].join("\n\n"),
)]
pub(crate) struct Run {
    /// The lock's name: the key on every master
    #[arg(value_parser = OsStringValueParser::new().try_map(check_key))]
    pub(crate) key: OsString,

    #[command(flatten)]
    pub(crate) nodes: NodeArgs,

    /// The ttl: the lock ends this long after its last extension [default: 10s]
    ///
    /// Give at least 100ms. This program extends the lock whenever a third of the ttl has passed.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    ttl: Option<Duration>,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,

    /// Do not wait: try once, as with --wait 0
    ///
    /// Connecting to the masters may take 1s or, if --node-timeout is given, four times that time.
    #[arg(short = 'n', long, conflicts_with_all = ["wait", "wait_seconds"])]
    pub(crate) no_wait: bool,

    /// The exit code if the lock is held
    #[arg(short = 'E', long, default_value_t = exit::CONFLICT, value_name = "N")]
    pub(crate) conflict_exit_code: u8,

    /// Keep the lock for at least this long
    ///
    /// The lock is kept even if the command ends sooner. TERM, INT and QUIT end this time; HUP does
    /// so once the command has ended. The lock is then kept only while the command runs. The exit
    /// code is the command's.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) hold_at_least: Option<Duration>,

    /// The time from SIGTERM to SIGKILL
    ///
    /// How long the command may take to end before it is killed. Give at most two fifths of the ttl
    /// [default: until a 20th of the ttl is left].
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) kill_after: Option<Duration>,

    /// Also wait for all that the command started
    ///
    /// Keeps the lock until the command and everything that it started have ended.
    #[arg(long)]
    pub(crate) wait_all: bool,

    #[command(flatten)]
    pub(crate) kind: KindArgs,

    /// How long one master may take to answer
    ///
    /// At most a 10th of the ttl. Raise it if the masters are far away [default: 4 round trips,
    /// within limits that depend on the ttl].
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) node_timeout: Option<Duration>,

    /// The owner label of the lock [default: HOST:PID]
    ///
    /// `quorlock inspect` and LOCK.INSPECT show it.
    #[arg(long, value_name = "LABEL")]
    pub(crate) owner: Option<String>,

    /// Report when the lock is acquired and released
    ///
    /// Also reports why it is not acquired.
    #[arg(long)]
    pub(crate) verbose: bool,

    /// Run this command line, as `sh -c STRING`
    #[arg(short = 'c', value_name = "STRING", conflicts_with = "command")]
    shell_command: Option<OsString>,

    /// The command to run, and its arguments
    #[arg(last = true, required_unless_present = "shell_command")]
    command: Vec<OsString>,
}

/// The options of `run` and `acquire` that choose the kind of the lock.
#[derive(clap::Args)]
pub(crate) struct KindArgs {
    /// Share the lock with others that have --shared
    ///
    /// For commands that only read. Without this option, the lock is exclusive.
    #[arg(long)]
    shared: bool,

    /// Let at most N, 1 to 64, hold KEY at a time
    ///
    /// KEY is then a semaphore. Give the same number everywhere.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64), conflicts_with = "shared")]
    pub(crate) permits: Option<u8>,
}

/// The options of `run` and `acquire` that say how long to wait.
#[derive(clap::Args)]
pub(crate) struct WaitArgs {
    /// Wait at most this long [default: for ever]
    ///
    /// The time includes connecting.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    wait: Option<Duration>,

    /// The same in seconds or a fraction, as in flock
    #[arg(short = 'w', value_parser = seconds, value_name = "SECONDS", conflicts_with = "wait")]
    wait_seconds: Option<Duration>,
}

const RUN_IN_SHORT: &str = "\
Exit codes: the command's own; 120 the lock was lost, 121 it is held, 122 no
majority of the masters voted, 125 quorlock failed, 126 and 127 as in a shell
Example: quorlock run deploy --wait 30s -- ./deploy.sh production";

const RUN_VALUES: &str = "Values:
  TIME  a number with ms, s, m or h, such as 10s or 1.5s
  URLS  redis://[user:password@]host[:port][/db], rediss:// for TLS, or
        redis+unix:///path; host:port is short for redis://host:port.
        Never write a password on the command line: other users can see it";

const RUN_ENVIRONMENT: &str = "Environment:
  QUORLOCK_NODES  removed for the command, and so is QUORLOCK_PASSWORD: both
                  may contain a password
  QUORLOCK_KEY    set for the command: the lock's name
  QUORLOCK_FENCE  set for the command: an integer, larger than that of every
                  earlier holder; with --permits, of every earlier holder of
                  the same slot; with --shared, of every earlier holder
                  without --shared. The storage that the command writes to can
                  refuse smaller fences, and with them a late holder
  QUORLOCK_TTL_MS set for the command: the ttl in milliseconds
  QUORLOCK_PERMIT set for the command with --permits: the number of its slot,
                  from 0. No other command has this slot at the same time.
                  Without --permits, removed for the command";

const RUN_EXAMPLE: &str = "Examples:
  quorlock run nightly-backup -- backup --to /mnt
  quorlock run deploy -w 30 -c 'git pull && make install'

  The same file in /etc/cron.d of many machines, of which one runs the job. The
  nodes are in /etc/quorlock.toml, and the PATH of cron is short.
  --hold-at-least exceeds the difference of their clocks: a late machine finds
  the lock held even when the job is over. With -E 0, that is a success:
  PATH=/usr/local/bin:/usr/bin:/bin
  0 3 * * * root quorlock run nightly -n -E 0 --hold-at-least 1m -- report";

impl Run {
    /// Fills a missing ttl and owner from the configuration files.
    pub(crate) fn fill(&mut self, defaults: &Defaults) {
        self.ttl = self.ttl.or(defaults.ttl);
        self.owner = self.owner.take().or_else(|| defaults.owner.clone());
    }

    pub(crate) fn command(&self) -> Vec<OsString> {
        match &self.shell_command {
            Some(line) => vec!["sh".into(), "-c".into(), line.clone()],
            None => self.command.clone(),
        }
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.ttl.unwrap_or(DEFAULT_TTL)
    }
}

impl KindArgs {
    pub(crate) fn lock(&self, quorum: &Quorum, key: &OsStr) -> LockBuilder {
        let key = key.as_bytes();
        match self.permits {
            Some(permits) => quorum.semaphore(key, permits.into()),
            None if self.shared => quorum.lock(key).shared(),
            None => quorum.lock(key),
        }
    }
}

impl WaitArgs {
    /// Returns how long to wait for the lock; [`Duration::MAX`] without a limit.
    pub(crate) fn limit(&self, no_wait: bool, default: Option<Duration>) -> Duration {
        let given = if no_wait { Some(Duration::ZERO) } else { self.wait.or(self.wait_seconds) };
        given.or(default).unwrap_or(Duration::MAX)
    }
}

/// Refuses an empty key: its usual cause is an unset variable in a script.
pub(crate) fn check_key<K: AsRef<OsStr>>(key: K) -> Result<K, &'static str> {
    if key.as_ref().is_empty() { Err("the lock needs a name") } else { Ok(key) }
}

pub(crate) fn check_ttl(ttl: Duration) -> anyhow::Result<Duration> {
    ensure!(
        ttl >= TTL_MIN,
        "a ttl of {ttl:?} is too short for the nodes to answer in time: give at least {TTL_MIN:?}"
    );
    Ok(ttl)
}

pub(crate) fn check_pattern(text: OsString) -> Result<OsString, String> {
    let mut rest = text.as_bytes();
    if rest.is_empty() {
        return Err("an empty pattern matches no lock: leave it out to match all locks".into());
    }
    if rest.len() > PATTERN_BYTES_MAX {
        return Err(format!("a pattern has at most {PATTERN_BYTES_MAX} bytes"));
    }
    let mut is_in_class = false;
    while let [first, after @ ..] = rest {
        rest = match (first, after) {
            (b'\\', []) => return Err("the \\ at the end escapes nothing: write \\\\".into()),
            (b'\\', [_, after @ ..]) => after,
            (b'[', [b'^', after @ ..]) if !is_in_class => after,
            (first, [b'-', _, after @ ..]) if is_in_class && *first != b']' => after,
            _ => after,
        };
        is_in_class = *first == b'[' || (is_in_class && *first != b']');
    }
    if is_in_class { Err("a [ has no ]: write \\[ for a literal [".into()) } else { Ok(text) }
}

/// Reads seconds as `flock -w` does: `10`, `0.5`.
fn seconds(text: &str) -> Result<Duration, &'static str> {
    let seconds: f64 = text.parse().map_err(|_| "give a number of seconds, such as 10 or 0.5")?;
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| "give a number of seconds from 0 up, such as 10 or 0.5")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_is_valid_and_every_argument_has_a_help_text() {
        let mut command = Args::command();
        command.build();
        command.clone().debug_assert();
        for subcommand in
            command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help")
        {
            for argument in subcommand.get_arguments() {
                assert!(
                    argument.get_help().is_some(),
                    "{} {}",
                    subcommand.get_name(),
                    argument.get_id()
                );
            }
        }
    }

    #[test]
    fn error_says_what_is_wrong_with_a_pattern() {
        for valid in [
            "*",
            "orders/*",
            "[a-c]?",
            r"\[bad",
            r"[\]]",
            "a]",
            "[[]",
            "[^a-c]x\\*",
            "[^-]",
            "[a-]]",
            r"[a-\]",
        ] {
            assert_eq!(check_pattern(valid.into()), Ok(valid.into()));
        }
        let long = "x".repeat(256);
        for (broken, hint) in [
            ("[bad", "no ]"),
            ("[a-]", "no ]"),
            (r"[bad\]", "no ]"),
            ("x[^a", "no ]"),
            ("x\\", "escapes nothing"),
            ("", "empty"),
            (&long, "255 bytes"),
        ] {
            let error = check_pattern(broken.into()).unwrap_err();
            assert!(error.contains(hint), "{broken}: {error}");
        }
    }

    #[test]
    fn seconds_may_be_fractions_and_are_never_negative() {
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        assert_eq!(seconds("10"), Ok(Duration::from_secs(10)));
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for invalid in ["", "-1", "1s", "NaN", "inf", "1e30"] {
            assert!(seconds(invalid).is_err(), "{invalid}");
        }
    }
}
