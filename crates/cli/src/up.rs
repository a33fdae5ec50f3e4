use std::fmt::Display;
use std::fs::{self, File};
use std::io::{Write as _, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail, ensure};
use quorlock_localserver::{Nodes, ServerBuilder, StartError, find_server_binary, module_path};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::system::Signals;

/// Starts local nodes with the lock module, for trying things out.
///
/// They listen on free ports of 127.0.0.1, keep their files in temporary directories, and stop at
/// Ctrl-C. Standard output is one line. In a shell that has run this line, the other commands of
/// quorlock use these nodes.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Up {
    /// How many nodes to start
    #[arg(short = 'n', long = "nodes", default_value_t = 5, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: u16,

    /// The port of the first node; the others have the next ones [default: free ports]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,

    /// Keep the files of the nodes in this directory, and start with the files that are there
    ///
    /// A node that is started again grants no locks for a minute, since it may have forgotten
    /// some.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,

    /// The server to run [default: redis-server, else valkey-server, from the PATH]
    #[arg(long, value_name = "FILE")]
    server: Option<PathBuf>,

    /// The module to load [default: see below]
    #[arg(long, value_name = "FILE")]
    module: Option<PathBuf>,
}

const HELP: &str = "The module is the first of these that is named or exists:
  --module FILE
  QUORLOCK_MODULE
  libquorlock.so in the directory of this program, as after `cargo build`
  ../lib/quorlock/libquorlock.so from that directory, as after an installation:
  /usr/bin/quorlock and /usr/lib/quorlock/libquorlock.so
  target/release, then target/debug of the source that this program was built
  from

Environment:
  QUORLOCK_SERVER  read: the server to run, if --server does not name it
  QUORLOCK_MODULE  read: the module to load, if --module does not name it

Exit codes:
  0    a signal ended quorlock, and all nodes are stopped
  125  a node did not start, or quorlock itself failed

Example:
  quorlock up --port 7001 --keep ~/locks
  uses the same addresses and the same data each time.";

/// The file in the directory of `--keep` that this program locks while it uses the directory.
const LOCK_FILE: &str = "quorlock-up.lock";

pub(crate) async fn up(args: Up) -> anyhow::Result<ExitCode> {
    let last_port = args.port.map_or(0, u32::from) + u32::from(args.nodes) - 1;
    ensure!(
        u16::try_from(last_port).is_ok(),
        "the last of {} nodes would have port {last_port}: choose a smaller --port",
        args.nodes
    );
    let binary = args.server.map_or_else(find_server_binary, Ok)?;
    let module = match args.module {
        Some(module) => {
            ensure!(
                module.is_file(),
                "--module names {}, which is not a file: the package quorlock-module installs \
                 /usr/lib/quorlock/libquorlock.so, and `cargo build --release -p quorlock` leaves \
                 it in target/release/libquorlock.so",
                module.display()
            );
            module
        }
        None => module_path().context(
            "there is no module to load: name one with --module (`quorlock up --help` lists where quorlock looks for it)",
        )?,
    };
    let directory = args.keep.as_deref().map(Directory::open).transpose()?.map(Arc::new);
    let has_started_before = directory
        .as_ref()
        .is_some_and(|directory| (0..args.nodes).any(|index| directory.has_node(index)));

    // Listens before the first server starts: an interrupted program must leave no server behind.
    let mut signals = Signals::listen()?;
    let shared_directory = directory.clone();
    let configure = move |index: usize, node: ServerBuilder| {
        let index = u16::try_from(index).unwrap_or(u16::MAX);
        let node = node.binary(&binary).module(&module);
        let node = args.port.map_or(node.clone().tcp(), |port| node.tcp_port(port + index));
        match &shared_directory {
            Some(directory) => directory.configure(index, node),
            None => node,
        }
    };
    let start = move || Nodes::start_with(args.nodes.into(), configure);
    let started = tokio::task::spawn_blocking(start).await?;
    let mut nodes = started.map_err(|error| match error {
        StartError::Spawn { .. } => {
            anyhow!("{error}: name a redis-server or valkey-server with --server")
        }
        StartError::Port { .. } => anyhow!("{error}: choose another --port"),
        _ => anyhow!("cannot start a node: {error}"),
    })?;

    let urls: Vec<_> =
        nodes.iter().map(|node| node.url().trim_end_matches('/').to_owned()).collect();
    for (index, (node, url)) in nodes.iter().zip(&urls).enumerate() {
        print_message(format_args!("node {}: {url} (process {})", index + 1, node.pid()));
    }
    if has_started_before {
        print_message(
            "Nodes that were started before may have forgotten locks: they grant none until \
             `quorlock status` says that they vote.",
        );
    }
    print_message(
        "Ready. In another terminal, paste the next line, and run: quorlock run KEY -- COMMAND",
    );
    writeln!(stdout(), "export QUORLOCK_NODES={}", urls.join(","))
        .context("cannot print the nodes")?;
    print_message("Ctrl-C stops all nodes.");
    signals.next().await;
    if directory.is_some() {
        // A clean shutdown writes the data of the nodes.
        for node in nodes.iter_mut() {
            node.shutdown();
        }
    }
    drop(nodes);
    print_message("All nodes are stopped.");
    Ok(ExitCode::SUCCESS)
}

/// The directory for the files of the nodes. One program at a time uses it.
struct Directory {
    path: PathBuf,
    /// The open file that holds the lock on the directory.
    _lock: File,
}

impl Directory {
    fn open(path: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(path)
            .with_context(|| format!("cannot make the directory {}", path.display()))?;
        let path = path.canonicalize()?;
        let lock = File::create(path.join(LOCK_FILE))
            .with_context(|| format!("cannot write to the directory {}", path.display()))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(Errno::WOULDBLOCK) => bail!(
                "another `quorlock up` uses {}: stop it, or choose another --keep",
                path.display()
            ),
            Err(error) => {
                Err(error).with_context(|| format!("cannot lock the directory {}", path.display()))
            }
        }
    }

    fn node_directory(&self, index: u16) -> PathBuf {
        self.path.join((index + 1).to_string())
    }

    fn has_node(&self, index: u16) -> bool {
        self.node_directory(index).exists()
    }

    fn configure(&self, index: u16, node: ServerBuilder) -> ServerBuilder {
        let node = node.dir(self.node_directory(index)).arg("appendonly", "yes");
        // -1 restores the module's default: a node that has run before may have forgotten locks.
        if self.has_node(index) { node.arg("lock.rejoin-delay", -1) } else { node }
    }
}

/// Prints a message. Ignores write errors: standard error may be closed.
fn print_message(message: impl Display) {
    let _ = writeln!(stderr(), "{message}");
}
