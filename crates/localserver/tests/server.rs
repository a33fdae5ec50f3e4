//! Servers that are killed, paused and restarted.

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use quorlock_localserver::{Nodes, Server, StartError};
use quorlock_testkit::eventually;
use tokio::net::TcpSocket;

const LIMIT: Duration = Duration::from_secs(5);

#[test]
fn port_of_a_server_that_is_down_stays_reserved() {
    let mut server = Server::builder().tcp().start().unwrap();
    let port = server.port();
    server.kill();
    // Like a program that asks for any free port, this socket does not set SO_REUSEADDR.
    let other = TcpSocket::new_v4().unwrap();
    let refused = other.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AddrInUse);
    server.restart().unwrap();
}

#[test]
fn paused_server_can_be_killed_shut_down_and_dropped() {
    let mut server = Server::builder().start().unwrap();
    server.pause();
    server.kill();
    server.restart().unwrap();
    server.pause();
    assert!(server.shutdown(), "the server ends without a kill");
    assert!(!server.is_running());
    server.restart().unwrap();
    let pid = server.pid();
    server.pause();
    drop(server);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn server_that_ends_by_itself_is_not_running() {
    let server = Server::builder().start().unwrap();
    let mut connection = server.connection();
    let _ = redis::cmd("SHUTDOWN").arg("NOSAVE").query::<()>(&mut connection);
    eventually(LIMIT, "the server has ended", || !server.is_running());
}

#[test]
fn server_that_is_still_loading_is_not_yet_started() {
    let mut server = Server::builder().start().unwrap();
    let mut connection = server.connection();
    redis::cmd("DEBUG").arg("POPULATE").arg(200).exec(&mut connection).unwrap();
    redis::cmd("SAVE").exec(&mut connection).unwrap();
    // 200 keys at 1000 us each.
    server.set_arg("key-load-delay", 1000);
    server.set_arg("loading-process-events-interval-bytes", 1024);
    let started = Instant::now();
    server.restart().unwrap();
    assert!(started.elapsed() >= Duration::from_millis(200), "the server was loading");
    assert_eq!(redis::cmd("DBSIZE").query::<u64>(&mut server.connection()).unwrap(), 200);
}

#[test]
fn failed_start_is_reported_at_once_with_its_own_log() {
    let chosen = tempfile::tempdir().unwrap();
    let log = chosen.path().join(Server::LOG_NAME);
    fs::write(log, "of an earlier server\n").unwrap();
    let started = Instant::now();
    let builder = Server::builder().dir(chosen.path()).tcp();
    let error = builder.arg("no-such-directive", "1").start().unwrap_err();
    let StartError::Exited { status, .. } = &error else { panic!("{error}") };
    assert!(!status.success());
    assert!(error.to_string().contains("no-such-directive"), "{error}");
    assert!(!error.to_string().contains("of an earlier server"), "{error}");
    assert!(started.elapsed() < LIMIT, "the start fails as soon as the process ends");
}

#[test]
fn nodes_that_cannot_all_start_are_reported_and_stopped() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let error = Nodes::start_with(2, |index, builder| {
        let builder = builder.dir(dirs[index].path());
        if index == 1 { builder.arg("no-such-directive", "1") } else { builder }
    });
    assert!(matches!(error, Err(StartError::Exited { .. })));
    assert!(std::os::unix::net::UnixStream::connect(dirs[0].path().join("s")).is_err());
}
