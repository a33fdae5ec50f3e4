use std::process::ExitCode;

use anyhow::Context as _;
use quorlock_testkit::{Server, find_server_binary, module_path};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Up;

pub(crate) async fn up(args: Up) -> anyhow::Result<ExitCode> {
    let binary = args.server.map_or_else(find_server_binary, Ok)?;
    let module = args.module.map_or_else(module_path, Ok)?;
    // Before the first server is there: one that is interrupted must not leave any behind.
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let starting = tokio::task::spawn_blocking(move || {
        (0..args.masters)
            .map(|_| {
                // Brand-new, and gone at the end: there is nothing that they could have forgotten.
                let master = Server::builder().binary(&binary).module(&module).arg("lock.rejoin-delay", 0);
                master.tcp().start()
            })
            .collect::<Result<Vec<_>, _>>()
    });
    let masters = starting.await?.context("cannot start a master")?;

    for (index, master) in masters.iter().enumerate() {
        eprintln!("master {}: {} (process {})", index + 1, master.url(), master.pid());
    }
    let urls: Vec<_> = masters.iter().map(|master| master.url().trim_end_matches('/').to_owned()).collect();
    eprintln!(
        "Ready. Paste this into another terminal, and then: quorlock run KEY -- COMMAND. Ctrl-C ends all."
    );
    println!("export QUORLOCK_NODES={}", urls.join(","));
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    drop(masters);
    eprintln!("All masters are stopped.");
    Ok(ExitCode::SUCCESS)
}
