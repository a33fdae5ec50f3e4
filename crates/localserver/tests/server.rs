//! Servers that are killed, paused and restarted.

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use quorlock_localserver::{Nodes, Server, StartError};
use quorlock_testkit::eventually;
use tokio::net::TcpSocket;

const LIMIT: Duration = Duration::from_secs(5);

fn ping(server: &Server) -> String {
    redis::cmd("PING").query(&mut server.connection()).expect("the server answers")
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn killed_server_restarts_with_its_address_and_directory() {
    for (builder, start) in
        [(Server::builder(), "redis+unix:///"), (Server::builder().tcp(), "redis://127.0.0.1:")]
    {
        let mut server = builder.start().unwrap();
        assert!(server.url().starts_with(start), "{}", server.url());
        assert_eq!(ping(&server), "PONG");
        let (url, dir, pid) = (server.url(), server.dir().to_path_buf(), server.pid());
        server.kill();
        assert!(!server.is_running() && !is_alive(pid));
        assert!(server.try_connection().is_err(), "no server may listen at {url}");
        server.restart().unwrap();
        assert_ne!(server.pid(), pid);
        assert_eq!((server.url(), server.dir()), (url, dir.as_path()));
        assert_eq!(ping(&server), "PONG");
    }
}

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
    assert_eq!(ping(&server), "PONG");
}

#[test]
fn paused_server_does_not_answer_until_it_is_resumed() {
    let server = Server::builder().start().unwrap();
    let mut connection = server.connection();
    server.pause();
    server.pause();
    let state = fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap();
    assert_eq!(state.rsplit(") ").next().unwrap().chars().next(), Some('T'), "{state}");
    assert!(server.is_running());
    connection.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    connection.send_packed_command(&redis::cmd("PING").get_packed_command()).unwrap();
    assert!(connection.recv_response().unwrap_err().is_timeout());

    server.resume();
    assert_eq!(ping(&server), "PONG");
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
    assert!(!is_alive(pid));
}

#[test]
fn server_that_ends_by_itself_is_not_running() {
    let server = Server::builder().start().unwrap();
    let mut connection = server.connection();
    let _ = redis::cmd("SHUTDOWN").arg("NOSAVE").query::<()>(&mut connection);
    eventually(LIMIT, "the server has ended", || !server.is_running());
}

#[test]
fn dropped_server_leaves_no_process_and_no_temporary_directory() {
    let server = Server::builder().start().unwrap();
    let (pid, dir) = (server.pid(), server.dir().to_path_buf());
    assert!(is_alive(pid) && dir.is_dir());
    drop(server);
    assert!(!is_alive(pid) && !dir.exists());
}

#[test]
fn chosen_directory_stays_with_its_files() {
    let chosen = tempfile::tempdir().unwrap();
    let dir = chosen.path().join("made");
    let server = Server::builder().dir(&dir).start().unwrap();
    redis::cmd("SET").arg("key").arg("kept").exec(&mut server.connection()).unwrap();
    redis::cmd("SAVE").exec(&mut server.connection()).unwrap();
    drop(server);
    let server = Server::builder().dir(&dir).start().unwrap();
    let value: String = redis::cmd("GET").arg("key").query(&mut server.connection()).unwrap();
    assert_eq!(value, "kept");
}

#[test]
fn directives_override_defaults_and_can_change_between_restarts() {
    let appendonly = |server: &Server| {
        let answer =
            redis::cmd("CONFIG").arg("GET").arg("appendonly").query(&mut server.connection());
        let [_, value]: [String; 2] = answer.expect("the server answers");
        value
    };
    let mut server = Server::builder().arg("appendonly", "yes").start().unwrap();
    assert_eq!(appendonly(&server), "yes");
    server.set_arg("appendonly", "no");
    assert_eq!(appendonly(&server), "yes");
    server.restart().unwrap();
    assert_eq!(appendonly(&server), "no");
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
    fs::write(&log, "Address already in use\n").unwrap();
    let started = Instant::now();
    let builder = Server::builder().dir(chosen.path()).tcp();
    let error = builder.arg("no-such-directive", "1").start().unwrap_err();
    let StartError::Exited { status, .. } = &error else { panic!("{error}") };
    assert!(!status.success());
    assert!(error.to_string().contains("no-such-directive"), "{error}");
    assert!(!error.to_string().contains("Address already in use"), "{error}");
    assert!(started.elapsed() < LIMIT, "the start fails as soon as the process ends");
    // The start is not repeated either.
    let log = fs::read_to_string(log).unwrap();
    assert_eq!(log.matches("no-such-directive").count(), 1, "{log}");
}

#[test]
fn port_that_is_taken_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = Server::builder().tcp_port(port).start().unwrap_err();
    assert!(error.to_string().contains(&port.to_string()), "{error}");
}

#[test]
fn directory_too_deep_for_a_socket_is_reported() {
    let chosen = tempfile::tempdir().unwrap();
    let error = Server::builder().dir(chosen.path().join("d".repeat(100))).start().unwrap_err();
    assert!(matches!(error, StartError::SocketPathTooLong { .. }), "{error}");
}

#[test]
fn program_that_does_not_exist_is_reported() {
    let error = Server::builder().binary("/nowhere/redis-server").start().unwrap_err();
    assert!(matches!(error, StartError::Spawn { .. }), "{error}");
}

#[test]
fn nodes_are_independent_and_each_has_an_address() {
    let mut nodes = Nodes::start_with(3, |_, builder| builder.without_module()).unwrap();
    assert_eq!(nodes.len(), 3);
    let mut urls = nodes.urls();
    urls.sort();
    urls.dedup();
    assert_eq!(urls.len(), 3);
    nodes[1].kill();
    let running: Vec<_> = nodes.iter().map(Server::is_running).collect();
    assert_eq!(running, [true, false, true]);
    for node in &mut nodes {
        node.restart().unwrap();
    }
    assert!(nodes.iter().all(Server::is_running));
}

#[test]
fn nodes_that_cannot_all_start_are_reported_and_stopped() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let error = Nodes::start_with(2, |index, builder| {
        let builder = builder.without_module().dir(dirs[index].path());
        if index == 1 { builder.arg("no-such-directive", "1") } else { builder }
    });
    assert!(matches!(error, Err(StartError::Exited { .. })));
    assert!(std::os::unix::net::UnixStream::connect(dirs[0].path().join("s")).is_err());
}
