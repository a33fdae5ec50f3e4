//! Injected faults have the effect that they claim to have.

#![cfg(target_os = "linux")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorlock_testkit::{Inject as _, PowerCut, Server, StartError, WallClock, eventually};

const LIMIT: Duration = Duration::from_secs(10);
const HOUR_MS: i64 = 3_600_000;

/// Returns the server's time in microseconds since 1970.
fn time_us(server: &Server) -> i128 {
    let [seconds, us]: [i128; 2] =
        redis::cmd("TIME").query(&mut server.connection()).expect("it answers");
    seconds * 1_000_000 + us
}

fn true_time_us() -> i128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970");
    since.as_micros().try_into().expect("it fits")
}

#[track_caller]
fn assert_ahead_by_s(server: &Server, seconds: i128) {
    // A server may use an old reading for a moment.
    const OLD_US: i128 = 200_000;
    eventually(LIMIT, "the server shows the time", || {
        let before = true_time_us();
        let shown = time_us(server) - seconds * 1_000_000;
        (before - OLD_US..=true_time_us()).contains(&shown)
    });
}

fn with_wall_clock() -> (WallClock, Server) {
    let clock = WallClock::new();
    let server = Server::builder().wall_clock(&clock).start().expect("a server");
    (clock, server)
}

#[test]
fn wall_clock_is_stepped_both_ways_while_the_server_runs() {
    let (clock, server) = with_wall_clock();
    assert_ahead_by_s(&server, 0);
    clock.step_ms(HOUR_MS);
    assert_ahead_by_s(&server, 3600);
    clock.step_ms(-3 * HOUR_MS);
    assert_eq!(clock.ahead_ms(), -7_200_000);
    assert_ahead_by_s(&server, -7200);
    clock.correct();
    assert_ahead_by_s(&server, 0);
}

#[test]
fn step_outlasts_restarts_and_affects_only_servers_of_its_clock() {
    let (clock, mut server) = with_wall_clock();
    clock.step_ms(HOUR_MS);
    server.restart().unwrap();
    assert_ahead_by_s(&server, 3600);
    assert_ahead_by_s(&Server::builder().wall_clock(&clock.clone()).start().unwrap(), 3600);
    assert_ahead_by_s(&Server::builder().wall_clock(&WallClock::new()).start().unwrap(), 0);
    assert_ahead_by_s(&Server::builder().start().unwrap(), 0);
    // The server keeps the files that it needs to start again.
    drop(clock);
    server.restart().unwrap();
    assert_ahead_by_s(&server, 3600);
}

#[test]
fn clock_that_cannot_be_mapped_ends_the_server() {
    let clock = WallClock::new();
    let error = Server::builder()
        .wall_clock(&clock)
        .env("QUORLOCK_WALL_CLOCK", "/nowhere")
        .start()
        .unwrap_err();
    let StartError::Exited { log_tail, .. } = &error else { panic!("{error}") };
    assert!(log_tail.contains("wall_clock: cannot map /nowhere: No such file"), "{log_tail}");
}

#[test]
#[should_panic(expected = "was started without this PowerCut")]
fn power_cut_of_another_server_panics() {
    let mut server = Server::builder().power_cut(&PowerCut::new()).start().unwrap();
    PowerCut::new().cut(&mut server);
}
