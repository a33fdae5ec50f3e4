//! A running exporter, and requests to local HTTP servers.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use super::{PATIENCE, Running, on_urls};

pub(crate) struct Exporter {
    pub(crate) address: SocketAddr,
    pub(crate) process: Running,
}

impl Exporter {
    /// Starts an exporter for these nodes on a free port.
    pub(crate) fn start(urls: &[String], options: &[&str]) -> Self {
        let mut command = on_urls(urls, "exporter");
        let mut process = Running::start(command.args(["--listen", "127.0.0.1:0"]).args(options));
        let line = process.error_line();
        let address =
            line.trim_start_matches("quorlock: serving http://").trim_end_matches("/metrics");
        Self { address: address.parse().unwrap_or_else(|_| panic!("{line}")), process }
    }

    pub(crate) fn scrape(&self) -> String {
        let (status, text) = get(self.address, "/metrics");
        assert_eq!(status, 200, "{text}");
        text
    }
}

/// Sends a GET request, and returns the status and the body.
pub(crate) fn get(address: SocketAddr, path: &str) -> (u16, String) {
    try_get(address, path).unwrap_or_else(|error| panic!("{address}{path}: {error}"))
}

/// As [`get`], but returns an error of the connection.
pub(crate) fn try_get(address: SocketAddr, path: &str) -> std::io::Result<(u16, String)> {
    let (head, body) = get_with(address, path, "")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Ok((status, body))
}

/// Sends a GET request with more lines of the head, each of which ends in CRLF. Returns the head of
/// the response and its body.
pub(crate) fn get_with(
    address: SocketAddr,
    path: &str,
    lines: &str,
) -> std::io::Result<(String, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // In HTTP/1.0, the response has no chunks.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n{lines}\r\n")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    Ok((head.to_owned(), body.to_owned()))
}
