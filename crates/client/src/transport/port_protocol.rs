//! Finds out whether a port speaks TLS, when a connection to it fails.
//!
//! A server without TLS waits for the end of a line that the first record of TLS lacks, and a
//! server with TLS closes a plain connection. Both look like a server that hangs or restarts.

use std::future::pending;
use std::io;

use ::redis::ConnectionAddr;
use quorlock_core::NodeError;
use quorlock_core::client::limits;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// A command without arguments, which a plain server answers with a line that begins with `+`, or
/// with an error.
const PLAIN_PING: &[u8] = b"PING\r\n";
/// A record of TLS with an empty `ClientHello`. A server with TLS answers with an alert.
const EMPTY_CLIENT_HELLO: &[u8] = &[0x16, 3, 1, 0, 4, 1, 0, 0, 0];
/// The first two bytes of an alert, and of a handshake, in every version of TLS.
const TLS_RECORDS: [[u8; 2]; 2] = [[0x15, 3], [0x16, 3]];

/// Returns a permanent error if the port speaks TLS and the URL does not, or the other way round.
/// Opens a second connection, and returns `None` if that one proves nothing.
pub(super) async fn mismatch(address: &ConnectionAddr) -> Option<NodeError> {
    let (host, port, has_tls) = match address {
        ConnectionAddr::Tcp(host, port) => (host, *port, false),
        ConnectionAddr::TcpTls { host, port, .. } => (host, *port, true),
        _ => return None,
    };
    let request = if has_tls { PLAIN_PING } else { EMPTY_CLIENT_HELLO };
    let asked = timeout(limits::OPERATOR_TIMEOUT, first_bytes(host, port, request)).await;
    let bytes = asked.ok()?.ok()?;
    let reason = match has_tls {
        true if matches!(bytes[0], b'+' | b'-') => {
            "it answers without TLS: write redis://, or name its port for TLS"
        }
        false if TLS_RECORDS.contains(&bytes) => {
            "it answers with TLS: write rediss://, or name its port without TLS"
        }
        _ => return None,
    };
    let reason = format!("is this port plain or TLS? {reason}");
    Some(NodeError::Misconfigured { reason })
}

/// As [`mismatch`], but waits first, for a connection with TLS that may only be slow. Never ends if
/// it proves nothing.
pub(super) async fn mismatch_of_silent_port(address: &ConnectionAddr) -> NodeError {
    if matches!(address, ConnectionAddr::TcpTls { .. }) {
        sleep(limits::PORT_PROBE_AFTER).await;
        if let Some(error) = mismatch(address).await {
            return error;
        }
    }
    pending().await
}

async fn first_bytes(host: &str, port: u16, request: &[u8]) -> io::Result<[u8; 2]> {
    let mut stream = TcpStream::connect((host, port)).await?;
    stream.write_all(request).await?;
    let mut bytes = [0; 2];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}
