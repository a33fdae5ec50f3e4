//! `quorlock exporter`: the figures of all nodes for Prometheus, over HTTP.

mod metrics;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, http};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use tokio::time::sleep;

use crate::fleet::{Fleet, FleetArgs, Snapshot};
use crate::nodes;
use crate::output::say;
use crate::system::Signals;

const PATH: &str = "/metrics";
const HOME: &str = concat!("quorlock exporter ", env!("CARGO_PKG_VERSION"), ": see /metrics\n");
/// The pause after a failure to accept a connection, such as for the lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

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

struct Exporting {
    fleet: Fleet,
    /// The snapshot that is being made, and how long that took.
    current: SharedCall<Arc<(Snapshot, Duration)>>,
}

pub(crate) async fn exporter(args: Exporter) -> anyhow::Result<ExitCode> {
    let (fleet, _) = args.fleet.load()?;
    let mut signals = Signals::listen()?;
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}: choose another --listen", args.listen))?;
    say(format_args!("serving http://{}{PATH}", listener.local_addr()?));
    let exporting = Arc::new(Exporting { fleet, current: SharedCall(Mutex::default()) });
    // A signal may cut off a scrape. Prometheus repeats it.
    let _ = signals.interrupting(exporting.serve(listener)).await;
    Ok(ExitCode::SUCCESS)
}

impl Exporting {
    async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let exporting = Arc::clone(&self);
            tokio::spawn(async move {
                let respond = async |request| exporting.respond(&request).await;
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .serve_connection(TokioIo::new(stream), service_fn(respond));
                // The client may end the connection at any time.
                let _ = connection.await;
            });
        }
    }

    async fn respond(&self, request: &Request<Incoming>) -> http::Result<Response<String>> {
        let response = Response::builder();
        match (request.method(), request.uri().path()) {
            (&Method::GET | &Method::HEAD, PATH) => {
                let gather = async || {
                    let started = Instant::now();
                    let snapshot = self.fleet.gather().await;
                    Arc::new((snapshot, started.elapsed()))
                };
                let gathered = self.current.get(gather).await;
                let text = "text/plain; version=0.0.4; charset=utf-8";
                let metrics = metrics::render(&gathered.0, gathered.1);
                response.header(CONTENT_TYPE, text).body(metrics)
            }
            (&Method::GET | &Method::HEAD, "/") => {
                let text = "text/plain; charset=utf-8";
                response.header(CONTENT_TYPE, text).body(HOME.to_owned())
            }
            (_, PATH | "/") => {
                let response = response.status(StatusCode::METHOD_NOT_ALLOWED);
                response.header(ALLOW, "GET,HEAD").body(String::new())
            }
            _ => response.status(StatusCode::NOT_FOUND).body(String::new()),
        }
    }
}

/// Makes a value on demand. Callers that arrive while a value is being made share it.
struct SharedCall<T>(Mutex<Arc<OnceCell<T>>>);

impl<T: Clone> SharedCall<T> {
    /// Returns the value that is being made, or makes a new one.
    ///
    /// # Cancel safety
    /// When the caller that makes the value is dropped, another waiting caller makes it.
    async fn get<F: Future<Output = T>>(&self, make: impl FnOnce() -> F) -> T {
        let current = Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let value = current.get_or_init(make).await.clone();
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&latest, &current) {
            // The next caller gets a fresh value.
            *latest = Arc::default();
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::pin;

    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn second_caller_continues_when_the_first_is_dropped() {
        let shared = SharedCall::<u32>(Mutex::default());
        let mut first = Box::pin(shared.get(pending));
        assert!(first.as_mut().now_or_never().is_none());
        let mut second = pin!(shared.get(|| ready(7)));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert_eq!(second.now_or_never(), Some(7));
    }
}
