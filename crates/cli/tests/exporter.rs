//! `quorlock exporter` on real masters.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use common::http::{Exporter, get, get_with};
use common::{
    PATIENCE, address, assert_error, code, command_stats, exec, on_urls, stderr, stdout, with_input,
};
use quorlock_testkit::{Direction, Masters, Proxy, eventually};
use rustix::process::Signal;

#[track_caller]
fn assert_has(text: &str, line: &str) {
    assert!(text.lines().any(|have| have == line), "no {line} in {text}");
}

#[test]
fn scrape_has_the_state_and_the_counters_of_each_node() {
    let mut masters = Masters::start_with(3, |_, master| master.tcp()).unwrap();
    let exporter = Exporter::start(&masters.urls(), &[]);
    let names = [0, 1, 2].map(|index: usize| address(&masters[index]));
    let acquire = ["LOCK.ACQUIRE", "a-secret-key", "a-secret-token", "60000", "OWNER", "an-owner"];
    exec(&masters[0], &acquire);
    let text = exporter.scrape();
    assert_has(&text, &format!("quorlock_node_leases{{node=\"{}\"}} 1.0", names[0]));
    assert_has(&text, &format!("quorlock_node_grants_total{{node=\"{}\"}} 1", names[0]));
    assert_has(&text, &format!("quorlock_node_grants_total{{node=\"{}\"}} 0", names[1]));
    assert_has(&text, "quorlock_voting_nodes{} 3.0");
    for secret in ["a-secret-key", "a-secret-token", "an-owner"] {
        assert!(!text.contains(secret), "{text}");
    }

    masters[2].kill();
    let text = exporter.scrape();
    assert_has(&text, &format!("quorlock_node_up{{node=\"{}\"}} 0.0", names[2]));
    assert_has(&text, "quorlock_voting_nodes{} 2.0");
    // The node is scraped again without a restart of the exporter.
    masters[2].restart().unwrap();
    eventually(PATIENCE, "the node is up again", || {
        exporter.scrape().contains("voting_nodes{} 3.0")
    });

    assert_eq!(get(exporter.address, "/").0, 200);
    assert_eq!(get(exporter.address, "/other").0, 404);
    exporter.process.signal(Signal::TERM);
    assert_eq!(code(exporter.process.wait_for_end().status), 0);
}

#[test]
fn silent_node_costs_a_scrape_no_more_than_its_time_limit() {
    let masters = Masters::start(3);
    let proxy = Proxy::start(masters[2].url());
    let urls = [masters[0].url(), masters[1].url(), proxy.url()];
    let exporter = Exporter::start(&urls, &["--node-timeout", "1s"]);
    assert!(exporter.scrape().contains("voting_nodes{} 3.0"));
    proxy.drop_bytes(Direction::ToServer);
    // On a busy machine a scrape may be late, but not every time.
    eventually(PATIENCE, "a scrape takes less than twice the limit", || {
        let started = Instant::now();
        let text = exporter.scrape();
        let took = started.elapsed();
        assert!(took >= Duration::from_secs(1), "the scrape did not wait for the node: {took:?}");
        assert!(text.contains("voting_nodes{} 2.0"), "{text}");
        took < Duration::from_secs(2)
    });
    proxy.heal();
    eventually(PATIENCE, "the node is up again", || {
        exporter.scrape().contains("voting_nodes{} 3.0")
    });
}

#[test]
fn scrape_asks_each_node_once_and_overlapping_scrapes_share_requests() {
    const SCRAPES: u64 = 8;
    // INFO and INFO lock.
    const INFOS_PER_SCRAPE: u64 = 2;
    let masters = Masters::start(1);
    let proxy = Proxy::start(masters[0].url());
    let exporter = Exporter::start(&[proxy.url()], &["--node-timeout", "10s"]);
    let address = exporter.address;
    let info_calls = || command_stats(&masters[0], "info").0;
    exporter.scrape();
    let before = info_calls();
    exporter.scrape();
    let connections = proxy.connections();
    // `info_calls` calls INFO itself, too.
    assert_eq!(info_calls() - before, INFOS_PER_SCRAPE + 1);

    let before = info_calls();
    proxy.hold(Direction::ToServer);
    thread::scope(|scope| {
        for _ in 0..SCRAPES {
            scope.spawn(|| assert_eq!(get(address, "/metrics").0, 200));
        }
        eventually(PATIENCE, "the node is asked", || proxy.waiting_bytes(Direction::ToServer) > 0);
        // The pause lets the other scrapes arrive. A scrape after `heal` would ask the node again.
        thread::sleep(Duration::from_millis(200));
        proxy.heal();
    });
    let asked = info_calls() - before - 1;
    assert!(asked < SCRAPES * INFOS_PER_SCRAPE / 2, "{asked}");
    assert_eq!(proxy.connections(), connections, "one connection is kept");
}

#[test]
fn client_gets_the_format_that_it_accepts() {
    let masters = Masters::start_with(3, |_, master| master.tcp()).unwrap();
    let exporter = Exporter::start(&masters.urls(), &[]);
    let accepting = |accept: &str| {
        let line = format!("Accept: {accept}\r\n");
        get_with(exporter.address, "/metrics", &line).unwrap()
    };
    let (head, text) = accepting("text/plain; version=0.0.4");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert_has(&text, "# TYPE quorlock_node_grants_total counter");
    assert!(!text.contains("# EOF"), "{text}");
    let (head, open_metrics) = accepting("application/openmetrics-text; version=1.0.0");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert_has(&open_metrics, "# TYPE quorlock_node_grants counter");
    assert!(open_metrics.ends_with("# EOF\n"), "{open_metrics}");

    // promtool reads the older format.
    let mut promtool = Command::new("promtool");
    let promtool = promtool.args(["check", "metrics"]);
    let output = with_input(promtool, &text);
    assert_eq!((code(output.status), stdout(&output), stderr(&output)), (0, "", ""), "{text}");
    assert_ne!(code(with_input(promtool, &open_metrics).status), 0);
}

#[test]
fn address_that_is_taken_is_an_error_that_says_what_to_do() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut exporter = on_urls(&["a".into()], "exporter");
    let output = exporter.args(["--listen", &address]).output().unwrap();
    assert_error(&output, 125, "choose another --listen");
}
