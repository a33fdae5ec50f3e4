//! `quorlock exporter`: the figures of all nodes for Prometheus, over HTTP.
//!
//! - [`metrics`]: metrics from a report of the nodes.
//! - [`format`]: the format that a client accepts.
//! - [`shared`]: one gathering for all concurrent scrapes.

mod format;
mod metrics;
mod shared;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;

use self::format::Format;
use self::shared::SharedCall;
use crate::fleet::{Fleet, FleetArgs};
use crate::signals::Signals;
use crate::{nodes, say};

const PATH: &str = "/metrics";

/// Serves the state and the counters of all nodes to Prometheus, under /metrics.
///
/// Each scrape asks every node once, with the time limit --node-timeout, which should be shorter
/// than the scrape timeout of Prometheus. A node that does not answer has `quorlock_node_up 0`.
/// Scrapes at the same time share one gathering. No metric contains a key, an owner or a token.
#[derive(clap::Args)]
#[command(after_help = [EXIT_CODES, nodes::SEE_ALSO].join("\n\n"))]
pub(crate) struct Exporter {
    /// The address to listen on; every client that reaches it can read the metrics
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9871")]
    listen: SocketAddr,

    #[command(flatten)]
    fleet: FleetArgs,
}

const EXIT_CODES: &str = "Exit codes:
  0    a signal ended quorlock
  125  quorlock itself failed, or its arguments are not understood";

struct Gatherer {
    fleet: Fleet,
    current: SharedCall<Arc<str>>,
}

pub(crate) async fn exporter(args: Exporter) -> anyhow::Result<ExitCode> {
    let (fleet, _) = args.fleet.load()?;
    let mut signals = Signals::listen()?;
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}: choose another --listen", args.listen))?;
    say(format_args!("serving http://{}{PATH}", listener.local_addr()?));
    let gatherer = Arc::new(Gatherer { fleet, current: SharedCall::default() });
    let home =
        || async { concat!("quorlock exporter ", env!("CARGO_PKG_VERSION"), ": see /metrics\n") };
    let router = Router::new().route(PATH, get(scrape)).route("/", get(home)).with_state(gatherer);
    // A signal may cut off a scrape. Prometheus repeats it.
    if let Ok(ended) = signals.interrupting(axum::serve(listener, router).into_future()).await {
        ended.context("the exporter cannot serve any more")?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn scrape(headers: HeaderMap, State(gatherer): State<Arc<Gatherer>>) -> impl IntoResponse {
    let gather = async || {
        let started = Instant::now();
        let report = gatherer.fleet.gather().await;
        Arc::from(metrics::render(&report, started.elapsed()))
    };
    let text = gatherer.current.get(gather).await;
    let accept: Vec<_> =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let format = Format::accepted(&accept.join(","));
    let headers = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")];
    (headers, format.convert(&text))
}
