//! Effects of a failing network on clients and servers.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use quorlock_testkit::Direction::{ToClient, ToServer};
use quorlock_testkit::{Proxy, Server, eventually, holds_within};

const LIMIT: Duration = Duration::from_secs(5);

fn connect(proxy: &Proxy) -> redis::Connection {
    let client = redis::Client::open(proxy.url()).expect("an address");
    let connection = client.get_connection_with_timeout(LIMIT).expect("it listens");
    connection.set_read_timeout(Some(LIMIT)).expect("a timeout above zero");
    connection
}

fn proxied_server() -> (Server, Proxy) {
    let server = Server::builder().start().expect("a server");
    let proxy = Proxy::start(server.url());
    (server, proxy)
}

#[test]
fn held_bytes_are_delivered_in_order_after_healing() {
    let (_server, proxy) = proxied_server();
    let mut connection = connect(&proxy);
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
fn held_bytes_are_lost_when_they_are_dropped_or_the_connection_is_cut() {
    for lose in [|proxy: &Proxy| proxy.drop_bytes(ToServer), Proxy::cut] {
        let (server, proxy) = proxied_server();
        // Without a client library, which would hide the effects.
        let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
        proxy.hold(ToServer);
        stream.write_all(b"SET key lost\r\n").unwrap();
        eventually(LIMIT, "the request is held", || proxy.waiting_bytes(ToServer) > 0);
        lose(&proxy);
        eventually(LIMIT, "the request is lost", || proxy.waiting_bytes(ToServer) == 0);
        proxy.heal();
        let exists = redis::cmd("EXISTS").arg("key").query::<bool>(&mut server.connection());
        assert!(!exists.unwrap());
    }
}

#[test]
fn server_does_not_learn_of_a_client_that_leaves_in_a_partition() {
    let (server, proxy) = proxied_server();
    let mut connection = connect(&proxy);
    let id: u64 = redis::cmd("CLIENT").arg("ID").query(&mut connection).unwrap();
    let mut control = server.connection();
    let mut is_known = || {
        let list = redis::cmd("CLIENT").arg("LIST").arg("ID").arg(id).query::<String>(&mut control);
        !list.unwrap().is_empty()
    };
    proxy.hold(ToServer);
    connection.send_packed_command(&redis::cmd("PING").get_packed_command()).unwrap();
    eventually(LIMIT, "the request is held", || proxy.waiting_bytes(ToServer) > 0);
    drop(connection);
    assert!(!holds_within(Duration::from_millis(200), || !is_known()));
    proxy.heal();
    eventually(LIMIT, "the server learns that the client is gone", || !is_known());
}
