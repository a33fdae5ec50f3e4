//! Effects of a failing network on clients and servers.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use quorlock_testkit::Direction::{ToClient, ToServer};
use quorlock_testkit::{Proxy, Server, eventually, eventually_async, holds_within};
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
fn expect_bytes(stream: &mut TcpStream, bytes: &[u8]) {
    let mut received = vec![0; bytes.len()];
    stream.read_exact(&mut received).expect("bytes arrive");
    assert_eq!(received, bytes);
}

#[track_caller]
fn expect_answer(stream: &mut TcpStream, request: &str, answer: &str) {
    stream.write_all(request.as_bytes()).expect("it is connected");
    expect_bytes(stream, answer.as_bytes());
}

fn proxied_server() -> (Server, Proxy) {
    let server = Server::builder().start().expect("a server");
    let proxy = Proxy::start(server.url());
    (server, proxy)
}

/// Starts a server that echoes the bytes of one connection.
fn echo() -> (String, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}/", listener.local_addr().expect("it is bound"));
    let thread = thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a client connects");
        let _ = std::io::copy(&mut &stream, &mut &stream);
    });
    (url, thread)
}

#[test]
fn proxy_leads_to_servers_on_unix_sockets_and_on_tcp() {
    for builder in [Server::builder(), Server::builder().tcp()] {
        let server = builder.start().unwrap();
        let proxy = Proxy::start(server.url());
        assert_eq!(connect_and_ping(&proxy).unwrap(), "PONG");
    }
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
fn delayed_chunks_keep_their_order_and_their_delays_do_not_add_up() {
    let (url, echo) = echo();
    let proxy = Proxy::start(url);
    let mut stream = plain(&proxy);
    let delay = Duration::from_secs(1);
    proxy.delay(ToServer, delay);
    let started = Instant::now();
    let chunks_sent = 20;
    for number in 1..=chunks_sent {
        stream.write_all(&[number]).unwrap();
        eventually(LIMIT, "the byte has arrived as a separate chunk", || {
            // In this order, a byte that passes in between is not counted twice.
            proxy.bytes(ToServer) + proxy.waiting_bytes(ToServer) >= u64::from(number)
        });
    }
    expect_bytes(&mut stream, &(1..=chunks_sent).collect::<Vec<_>>());
    let took = started.elapsed();
    assert_eq!(proxy.chunks(ToServer), u64::from(chunks_sent));
    assert!(took >= delay, "the chunks were delayed: {took:?}");
    assert!(took < delay * u32::from(chunks_sent / 2), "the delays did not add up: {took:?}");
    drop(stream);
    echo.join().unwrap();
}

#[test]
fn shortened_delay_applies_to_delayed_bytes() {
    let (_server, proxy) = proxied_server();
    let mut connection = connect(&proxy).unwrap();
    proxy.delay(ToClient, Duration::MAX);
    send_ping(&mut connection);
    eventually(LIMIT, "the answer waits", || proxy.waiting_bytes(ToClient) > 0);
    proxy.delay(ToClient, Duration::ZERO);
    assert_eq!(connection.recv_response().unwrap(), redis::Value::SimpleString("PONG".into()));
}

#[test]
fn held_bytes_are_delivered_in_order_after_healing() {
    let (_server, proxy) = proxied_server();
    let mut connection = connect(&proxy).unwrap();
    for direction in [ToServer, ToClient] {
        let (bytes, waiting) = (proxy.bytes(direction), proxy.waiting_bytes(direction));
        assert_eq!(waiting, 0);
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
        assert_eq!(proxy.bytes(direction), bytes, "nothing has passed");
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
fn round_trips_are_counted_and_a_pipeline_is_one() {
    let (server, proxy) = proxied_server();
    let mut connection = connect(&proxy).unwrap();
    let before = proxy.round_trips();
    for done in 1..=3 {
        ping(&mut connection).unwrap();
        assert_eq!(proxy.round_trips() - before, done);
    }
    redis::pipe().cmd("PING").cmd("PING").cmd("PING").exec(&mut connection).unwrap();
    assert_eq!(proxy.round_trips() - before, 4);

    let value = vec![b'x'; 1024 * 1024];
    redis::cmd("SET").arg("key").arg(value).exec(&mut server.connection()).unwrap();
    let chunks = proxy.chunks(ToClient);
    redis::cmd("GET").arg("key").exec(&mut connection).unwrap();
    assert!(proxy.chunks(ToClient) - chunks > 1);
    assert_eq!(proxy.round_trips() - before, 5, "an answer in many chunks is one round trip");

    let mut other = connect(&proxy).unwrap();
    let count = || (proxy.round_trips(), proxy.bytes(ToServer), proxy.chunks(ToClient));
    let before = count();
    ping(&mut other).unwrap();
    ping(&mut connection).unwrap();
    let ping_bytes = 2 * "*1\r\n$4\r\nPING\r\n".len() as u64;
    let expected = (before.0 + 2, before.1 + ping_bytes, before.2 + 2);
    assert_eq!(count(), expected, "connections are counted together");
}

#[test]
fn sender_waits_at_the_limit_of_held_bytes_and_loses_none() {
    let (url, echo) = echo();
    let proxy = Proxy::start(url);
    let mut stream = plain(&proxy);
    stream.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
    let pattern: Vec<u8> = (0..251).cycle().take(64 * 1024).collect();
    let kept_bytes = 16 * 1024 * 1024;

    proxy.hold(ToServer);
    let mut sent_bytes = 0;
    loop {
        match stream.write(&pattern[sent_bytes % 251..]) {
            Ok(length) => sent_bytes += length,
            Err(_) if proxy.waiting_bytes(ToServer) >= kept_bytes => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        assert!(sent_bytes < 128 * 1024 * 1024, "the sender never has to wait");
    }
    assert!(
        proxy.waiting_bytes(ToServer) < kept_bytes + 1024 * 1024,
        "the proxy keeps no more than that"
    );

    proxy.heal();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), sent_bytes);
    assert!(received.chunks(251).all(|chunk| pattern.starts_with(chunk)));
    echo.join().unwrap();
    eventually(LIMIT, "both ends of the connection were forwarded", || proxy.connections() == 0);
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

#[test]
#[should_panic(expected = "a proxy cannot connect to")]
fn url_of_no_server_is_refused() {
    Proxy::start("nowhere");
}

#[tokio::test]
async fn proxy_works_in_a_runtime_of_one_thread_and_is_dropped_there() {
    let (_server, proxy) = proxied_server();
    let client = redis::Client::open(proxy.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    redis::cmd("PING").exec_async(&mut connection).await.unwrap();

    proxy.hold(ToClient);
    let ping = tokio::spawn({
        let mut connection = connection.clone();
        async move { redis::cmd("PING").query_async::<String>(&mut connection).await }
    });
    eventually_async(LIMIT, "the answer is held", async || proxy.waiting_bytes(ToClient) > 0).await;
    assert!(!ping.is_finished());
    proxy.heal();
    assert_eq!(ping.await.unwrap().unwrap(), "PONG");

    proxy.cut();
    assert!(redis::cmd("PING").exec_async(&mut connection).await.is_err());
    proxy.heal();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    redis::cmd("PING").exec_async(&mut connection).await.unwrap();
    drop(proxy);
    assert!(redis::cmd("PING").exec_async(&mut connection).await.is_err());
}
