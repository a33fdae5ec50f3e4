//! No thread and no open file is left when everything is dropped.
//!
//! This test is alone in its program, because it counts the threads and files of the whole program.

use std::fs;
use std::time::Duration;

use quorlock_testkit::{Proxy, Server, eventually};

fn open_files_and_threads() -> (usize, usize) {
    let count = |directory| fs::read_dir(directory).expect("proc is there").count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

#[test]
fn no_thread_and_no_descriptor_outlives_a_proxy_and_a_server() {
    let start_and_drop = || {
        let mut server = Server::builder().tcp().start().unwrap();
        let proxy = Proxy::start(server.url());
        let client = redis::Client::open(proxy.url()).unwrap();
        let connections: Vec<_> = (0..3).map(|_| client.get_connection().unwrap()).collect();
        assert_eq!(proxy.connections(), 3);
        server.restart().unwrap();
        drop(proxy);
        drop(connections);
    };
    // The first use opens files that stay open, such as a source of randomness.
    start_and_drop();
    let before = open_files_and_threads();
    for _ in 0..3 {
        start_and_drop();
    }
    // A thread that was joined is listed for a moment longer, perhaps also in `before`.
    eventually(Duration::from_secs(5), "no more are left than before", || {
        let (files, threads) = open_files_and_threads();
        files <= before.0 && threads <= before.1
    });
}
