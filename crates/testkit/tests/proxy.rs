//! Effects of a failing network on clients and servers.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use quorlock_testkit::Direction::{ToClient, ToServer};
use quorlock_testkit::{Proxy, Server, eventually, holds_within};
use redis::RedisResult;

const LIMIT: Duration = Duration::from_secs(5);

fn connect(proxy: &Proxy) -> RedisResult<redis::Connection> {
    let connection = redis::Client::open(proxy.url())?.get_connection_with_timeout(LIMIT)?;
    connection.set_read_timeout(Some(LIMIT))?;
    Ok(connection)
}

fn ping(connection: &mut redis::Connection) -> RedisResult<String> {
    redis::cmd("PING").query(connection)
}

fn connect_and_ping(proxy: &Proxy) -> RedisResult<String> {
    ping(&mut connect(proxy)?)
}

fn send_ping(connection: &mut redis::Connection) {
    connection
        .send_packed_command(&redis::cmd("PING").get_packed_command())
        .expect("sending does not wait");
}

/// Opens a plain TCP connection, for effects that a client library hides.
fn plain(proxy: &Proxy) -> TcpStream {
    let url = proxy.url();
    let stream = TcpStream::connect(url.trim_start_matches("redis://").trim_end_matches('/'))
        .expect("it listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a timeout above zero");
    stream
}

#[track_caller]
fn expect_answer(stream: &mut TcpStream, request: &str, answer: &str) {
    stream.write_all(request.as_bytes()).expect("it is connected");
    let mut received = vec![0; answer.len()];
    stream.read_exact(&mut received).expect("bytes arrive");
    assert_eq!(received, answer.as_bytes());
}

fn proxied_server() -> (Server, Proxy) {
    let server = Server::builder().start().expect("a server");
    let proxy = Proxy::start(server.url());
    (server, proxy)
}

#[test]
fn delays_of_both_directions_add_up() {
    let (_server, proxy) = proxied_server();
    let mut connection = connect(&proxy).unwrap();
    proxy.delay(ToServer, Duration::from_millis(30));
    proxy.delay(ToClient, Duration::from_millis(50));
    let started = Instant::now();
    ping(&mut connection).unwrap();
    assert!(started.elapsed() >= Duration::from_millis(80), "{:?}", started.elapsed());
}

#[test]
fn held_bytes_are_delivered_in_order_after_healing() {
    let (_server, proxy) = proxied_server();
    let mut connection = connect(&proxy).unwrap();
    for direction in [ToServer, ToClient] {
        assert_eq!(proxy.waiting_bytes(direction), 0);
        proxy.hold(direction);
        for number in 1..=3 {
            let echo = redis::cmd("ECHO").arg(number).get_packed_command();
            connection.send_packed_command(&echo).unwrap();
        }
        let expected_bytes = if direction == ToServer {
            3 * "*2\r\n$4\r\nECHO\r\n$1\r\n1\r\n".len()
        } else {
            3 * "$1\r\n1\r\n".len()
        };
        eventually(LIMIT, "all bytes are held", || {
            proxy.waiting_bytes(direction) == expected_bytes as u64
        });
        proxy.heal();
        for number in 1..=3 {
            assert_eq!(
                connection.recv_response().unwrap(),
                redis::Value::BulkString(format!("{number}").into())
            );
        }
    }
}

#[test]
fn requests_that_are_dropped_never_reach_the_server() {
    let (_server, proxy) = proxied_server();
    let mut stream = plain(&proxy);
    proxy.drop_bytes(ToServer);
    let lost = b"SET key lost\r\n";
    stream.write_all(lost).unwrap();
    eventually(LIMIT, "the request is dropped", || {
        proxy.dropped_bytes(ToServer) == lost.len() as u64
    });
    proxy.heal();
    expect_answer(&mut stream, "EXISTS key\r\n", ":0\r\n");
}

#[test]
fn requests_whose_answers_are_dropped_reach_the_server() {
    let (_server, proxy) = proxied_server();
    let mut stream = plain(&proxy);
    proxy.drop_bytes(ToClient);
    stream.write_all(b"SET key done\r\n").unwrap();
    eventually(LIMIT, "the answer is dropped", || {
        proxy.dropped_bytes(ToClient) == "+OK\r\n".len() as u64
    });
    proxy.heal();
    expect_answer(&mut stream, "EXISTS key\r\n", ":1\r\n");
    assert_eq!(proxy.round_trips(), 1, "one of the two answers has arrived");
}

#[test]
fn cut_resets_old_and_new_connections_until_the_proxy_is_healed() {
    let (_server, proxy) = proxied_server();
    let mut old = plain(&proxy);
    expect_answer(&mut old, "PING\r\n", "+PONG\r\n");
    assert_eq!(proxy.connections(), 1);

    proxy.cut();
    assert_eq!(proxy.connections(), 0);
    assert_eq!(old.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(connect_and_ping(&proxy).is_err());

    proxy.heal();
    assert_eq!(connect_and_ping(&proxy).unwrap(), "PONG");
}

#[test]
fn held_bytes_are_lost_when_they_are_dropped_or_the_connection_is_cut() {
    for lose in [|proxy: &Proxy| proxy.drop_bytes(ToServer), Proxy::cut] {
        let (server, proxy) = proxied_server();
        let mut stream = plain(&proxy);
        proxy.hold(ToServer);
        stream.write_all(b"SET key lost\r\n").unwrap();
        eventually(LIMIT, "the request is held", || proxy.waiting_bytes(ToServer) > 0);
        lose(&proxy);
        eventually(LIMIT, "the request is lost", || proxy.dropped_bytes(ToServer) > 0);
        assert_eq!(proxy.waiting_bytes(ToServer), 0);
        proxy.heal();
        let exists = redis::cmd("EXISTS").arg("key").query::<bool>(&mut server.connection());
        assert!(!exists.unwrap());
    }
}

#[test]
fn server_does_not_learn_of_a_client_that_leaves_in_a_partition() {
    let (server, proxy) = proxied_server();
    let mut connection = connect(&proxy).unwrap();
    let id: u64 = redis::cmd("CLIENT").arg("ID").query(&mut connection).unwrap();
    let mut control = server.connection();
    let mut is_known = || {
        let list = redis::cmd("CLIENT").arg("LIST").arg("ID").arg(id).query::<String>(&mut control);
        !list.unwrap().is_empty()
    };
    proxy.hold(ToServer);
    send_ping(&mut connection);
    eventually(LIMIT, "the request is held", || proxy.waiting_bytes(ToServer) > 0);
    drop(connection);
    assert!(!holds_within(Duration::from_millis(200), || !is_known()));
    proxy.heal();
    eventually(LIMIT, "the server learns that the client is gone", || !is_known());
}
