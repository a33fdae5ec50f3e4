//! An HTTP service that ships an order under a lock.
//!
//! `POST /orders/{id}/ship` answers
//!
//! - 200 when the order is shipped,
//! - 409 when another request or another instance of the service is shipping it, or has written to
//!   it under a later lock,
//! - 503 when too few nodes vote in time or the lock was lost: the HTTP client may try again later,
//! - 500 after any other error.
//!
//! With `QUORLOCK_NODES=redis://a,redis://b,redis://c`:
//! `cargo run -p quorlock-client --example axum -- 127.0.0.1:8080`

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use quorlock_client::{AcquireError, Fence, FenceGate, Quorum, RunError, Stale};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// How long a request waits for another one that ships the same order.
const WAIT: Duration = Duration::from_millis(500);
/// How long the program waits at its end for releases in the background: longer than the ttl of a
/// lock, after which nothing is left to release.
const FLUSH: Duration = Duration::from_secs(12);

struct Service {
    quorum: Quorum,
    store: Store,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes = std::env::var("QUORLOCK_NODES")?;
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".into());
    let quorum = Quorum::connect(nodes.split(',')).await?;
    let service = Arc::new(Service { quorum: quorum.clone(), store: Store::default() });
    let app = Router::new().route("/orders/{id}/ship", post(ship)).with_state(service);

    let mut terminate = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(async move {
            terminate.recv().await;
        })
        .await?;
    // Requests that were cancelled may have left releases to the background.
    quorum.flush(FLUSH).await?;
    println!("all locks are released");
    Ok(())
}

/// If the HTTP client disconnects, axum drops this future. Dropping it also drops the work, and
/// releases the lock in the background.
async fn ship(State(service): State<Arc<Service>>, Path(order): Path<u64>) -> (StatusCode, String) {
    let Service { quorum, store } = &*service;
    let lock = quorum.lock(format!("orders/{order}")).wait(WAIT);
    let shipped = lock.run(|lock| async move {
        call_the_carrier().await;
        // A lock can be lost at any moment, even between a check and the write. So the store
        // refuses a fence that is smaller than an earlier one.
        store.set_shipped(order, lock.fence())
    });
    match shipped.await {
        Ok(Ok(())) => (StatusCode::OK, format!("order {order} is shipped\n")),
        Ok(Err(stale)) => (StatusCode::CONFLICT, format!("{stale}\n")),
        Err(error) => (status(&error), format!("{error}\n")),
    }
}

fn status(error: &RunError) -> StatusCode {
    match error {
        RunError::NotAcquired(AcquireError::Held { .. } | AcquireError::TimedOut { .. }) => {
            StatusCode::CONFLICT
        }
        RunError::NotAcquired(
            AcquireError::NoQuorum { .. } | AcquireError::InsufficientValidity { .. },
        )
        | RunError::Lost { .. } => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The work that must not be done by two instances at a time.
async fn call_the_carrier() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}

/// Stands for a database. A real one stores the fence in the order's row and compares it in the
/// same statement: see [`FenceGate`].
#[derive(Default)]
struct Store {
    /// Of each order that was shipped.
    gates: Mutex<HashMap<u64, FenceGate>>,
}

impl Store {
    /// Refuses a fence that is smaller than that of the last write to the order.
    fn set_shipped(&self, order: u64, fence: Fence) -> Result<(), Stale> {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.entry(order).or_default().check(fence)
    }
}
