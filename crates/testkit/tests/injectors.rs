//! Injected faults have the effect that they claim to have.

#![cfg(target_os = "linux")]

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorlock_testkit::{Inject as _, PowerCut, Server, StartError, WallClock, eventually};

const LIMIT: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_secs(3600);
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

fn set(server: &Server, key: &str) {
    redis::cmd("SET").arg(key).arg("value").exec(&mut server.connection()).expect("it is set");
}

fn has(server: &Server, key: &str) -> bool {
    redis::cmd("EXISTS").arg(key).query(&mut server.connection()).expect("it answers")
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
fn keys_expire_by_the_stepped_clock() {
    let (clock, server) = with_wall_clock();
    let connection = &mut server.connection();
    redis::cmd("SET").arg("key").arg("value").arg("EX").arg(3000).exec(connection).unwrap();
    assert!(has(&server, "key"));
    clock.step_ms(-HOUR_MS);
    let mut ttl = || redis::cmd("TTL").arg("key").query::<i64>(connection).expect("it answers");
    eventually(LIMIT, "the key lives for an hour longer", || ttl() > 6000);
    clock.step_ms(2 * HOUR_MS);
    eventually(LIMIT, "the key has expired", || !has(&server, "key"));
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
fn monotonic_clocks_are_not_stepped() {
    let clock = WallClock::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "all_clocks_before_and_after_a_line", "--nocapture"]);
    clock.attach(&mut command);
    let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let before = read_clocks(&mut lines);
    clock.step_ms(HOUR_MS);
    writeln!(program.stdin.take().unwrap()).unwrap();
    let after = read_clocks(&mut lines);
    assert!(program.wait().unwrap().success());

    for ((name, before), (_, after)) in before.iter().zip(&after) {
        let passed = Duration::from_nanos((after - before).try_into().unwrap());
        if name.starts_with("wall") {
            assert!(passed >= HOUR, "{name}: {passed:?}");
        } else {
            assert!(name.starts_with("monotonic") && passed < LIMIT, "{name}: {passed:?}");
        }
    }
}

/// Reads the value of each clock in nanoseconds, up to the line `end`.
fn read_clocks(lines: &mut Lines<BufReader<ChildStdout>>) -> Vec<(String, i64)> {
    let lines = lines
        .by_ref()
        .map(|line| line.expect("it prints text"))
        .skip_while(|line| !line.ends_with("clocks:"));
    let clocks: Vec<_> = lines
        .skip(1)
        .take_while(|line| line != "end")
        .map(|line| {
            let (name, ns) = line.rsplit_once(' ').expect("a name and a number");
            (name.to_owned(), ns.parse().expect("a number"))
        })
        .collect();
    assert_eq!(clocks.len(), 10, "{clocks:?}");
    clocks
}

#[test]
#[ignore = "run as a program of its own by monotonic_clocks_are_not_stepped"]
#[allow(unsafe_code, reason = "std shows two clocks only")]
fn all_clocks_before_and_after_a_line() {
    let print = || {
        println!("clocks:");
        for (name, id) in [
            ("wall", libc::CLOCK_REALTIME),
            ("wall coarse", libc::CLOCK_REALTIME_COARSE),
            ("wall tai", libc::CLOCK_TAI),
            ("monotonic", libc::CLOCK_MONOTONIC),
            ("monotonic coarse", libc::CLOCK_MONOTONIC_COARSE),
            ("monotonic raw", libc::CLOCK_MONOTONIC_RAW),
            ("monotonic boot", libc::CLOCK_BOOTTIME),
        ] {
            let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: `now` is valid for a write.
            assert_eq!(unsafe { libc::clock_gettime(id, &raw mut now) }, 0, "{name}");
            println!("{name} {}", now.tv_sec * 1_000_000_000 + now.tv_nsec);
        }
        let mut day = libc::timeval { tv_sec: 0, tv_usec: 0 };
        // SAFETY: the result is valid for a write, and the time zone may be null.
        assert_eq!(unsafe { libc::gettimeofday(&raw mut day, std::ptr::null_mut()) }, 0);
        println!("wall gettimeofday {}", day.tv_sec * 1_000_000_000 + day.tv_usec * 1000);
        // SAFETY: the result may be null.
        println!("wall time {}", unsafe { libc::time(std::ptr::null_mut()) } * 1_000_000_000);
        let std = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        println!("wall std {}\nend", std.as_nanos());
    };
    print();
    std::io::stdin().read_line(&mut String::new()).unwrap();
    print();
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
fn injectors_work_together_and_with_other_preloads() {
    let (clock, power) = (WallClock::new(), PowerCut::new());
    let builder = Server::builder().arg("appendonly", "yes").arg("appendfsync", "always");
    let builder =
        builder.wall_clock(&clock).power_cut(&power).env("LD_PRELOAD", "/nowhere/theirs.so");
    let server = builder.start().unwrap();
    assert!(server.log().contains("/nowhere/theirs.so"), "the loader complains: {}", server.log());
    clock.step_ms(HOUR_MS);
    assert_ahead_by_s(&server, 3600);
    let before = power.syncs();
    set(&server, "key");
    assert_eq!(power.syncs(), before + 1);
}

fn with_append_only_file(fsync: &str) -> (PowerCut, Server) {
    let power = PowerCut::new();
    let builder = Server::builder().arg("appendonly", "yes").arg("appendfsync", fsync);
    let server = builder.power_cut(&power).start().expect("a server");
    (power, server)
}

#[test]
fn power_cut_removes_bytes_that_were_never_synced_and_a_kill_does_not() {
    let (power, mut server) = with_append_only_file("no");
    set(&server, "key");
    server.kill();
    server.restart().unwrap();
    assert!(has(&server, "key"));
    let log = server.log();
    assert!(power.cut(&mut server) > 0);
    assert!(!server.is_running() && server.log().starts_with(&log), "the log is left");
    server.restart().unwrap();
    assert!(!has(&server, "key"));
}

#[test]
#[should_panic(expected = "was started without this PowerCut")]
fn power_cut_of_another_server_panics() {
    let (_, mut server) = with_append_only_file("no");
    PowerCut::new().cut(&mut server);
}

#[test]
fn power_cut_leaves_synced_bytes() {
    let (power, mut server) = with_append_only_file("always");
    for key in ["first", "second", "third"] {
        set(&server, key);
        assert_eq!(power.cut(&mut server), 0);
        server.restart().unwrap();
        assert!(has(&server, key));
    }
    assert!(has(&server, "first"));
}

#[test]
fn power_cut_cuts_a_file_back_to_its_last_sync() {
    let lost = (0..10).any(|_| {
        let (power, mut server) = with_append_only_file("everysec");
        let before = power.syncs();
        set(&server, "synced");
        eventually(LIMIT, "the server syncs once a second", || power.syncs() > before);
        set(&server, "not synced");
        let lost_bytes = power.cut(&mut server);
        server.restart().unwrap();
        assert!(has(&server, "synced"));
        assert_eq!(has(&server, "not synced"), lost_bytes == 0);
        // Nothing is lost if the server synced once more before the cut.
        lost_bytes > 0
    });
    assert!(lost);
}

#[test]
fn power_cut_knows_files_that_were_renamed_after_a_sync() {
    let (power, mut server) = with_append_only_file("no");
    let connection = &mut server.connection();
    set(&server, "rewritten");
    redis::cmd("BGREWRITEAOF").exec(connection).unwrap();
    eventually(LIMIT, "the append-only file is rewritten", || {
        let info: String = redis::cmd("INFO").arg("persistence").query(connection).unwrap();
        info.contains("aof_rewrite_in_progress:0")
            && info.contains("aof_last_bgrewrite_status:ok")
            && !info.contains("aof_base_size:0\r")
    });
    set(&server, "only written");
    assert!(power.cut(&mut server) > 0);
    server.restart().unwrap();
    assert!(has(&server, "rewritten"));
    assert!(!has(&server, "only written"));
}
