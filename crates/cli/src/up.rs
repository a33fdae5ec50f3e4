use std::io::{Write as _, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, ensure};
use quorlock_testkit::{Masters, StartError, find_server_binary, module_path};

use crate::args::Up;
use crate::signals::Signals;

pub(crate) async fn up(args: Up) -> anyhow::Result<ExitCode> {
    let binary = args.server.map_or_else(find_server_binary, Ok)?;
    let module = match args.module {
        Some(module) => existing(module)?,
        None => module_path()?,
    };
    // Before the first server is there: one that is interrupted must not leave any behind.
    let mut signals = Signals::listen()?;
    let starting = tokio::task::spawn_blocking(move || {
        Masters::start_with(args.masters.into(), |_, master| master.binary(&binary).module(&module).tcp())
    });
    let masters = starting.await?.map_err(|error| match error {
        StartError::Spawn { .. } => anyhow!("{error}: name a redis-server or valkey-server with --server"),
        _ => anyhow!("cannot start a master: {error}"),
    })?;

    let urls: Vec<_> = masters.iter().map(|master| master.url().trim_end_matches('/').to_owned()).collect();
    for (index, (master, url)) in masters.iter().zip(&urls).enumerate() {
        eprintln!("master {}: {url} (process {})", index + 1, master.pid());
    }
    eprintln!("Ready. In another terminal, paste the next line, and then: quorlock run KEY -- COMMAND");
    writeln!(stdout(), "export QUORLOCK_NODES={}", urls.join(",")).context("cannot print the masters")?;
    eprintln!("Ctrl-C ends all.");
    signals.next().await;
    drop(masters);
    eprintln!("All masters are stopped.");
    Ok(ExitCode::SUCCESS)
}

fn existing(module: PathBuf) -> anyhow::Result<PathBuf> {
    ensure!(
        module.is_file(),
        "there is no module at {}: `cargo build --release -p quorlock` leaves it in target/release/libquorlock.so",
        module.display()
    );
    Ok(module)
}
