//! The examples work as documented, on real nodes.

use std::collections::BTreeSet;
use std::env;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use quorlock_client::blocking::Quorum;
use quorlock_testkit::{Nodes, eventually};
use rustix::process::{Pid, Signal, kill_process};

/// The program of an example. Builds it if Cargo has not: `cargo test --test examples` builds none.
fn example(name: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let path = profile.join("examples").join(name);
    if !path.is_file() {
        let profile_name = match profile.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            other => other,
        };
        let built = Command::new(env!("CARGO"))
            .args(["build", "--package", env!("CARGO_PKG_NAME"), "--examples"])
            .args(["--profile", profile_name])
            .arg("--target-dir")
            .arg(profile.parent().unwrap())
            .status();
        assert!(built.unwrap().success());
    }
    path
}

/// Runs `times` copies of an example at the same time, on new nodes. Returns the output of each, or
/// what one that failed printed as its error.
fn run(name: &str, times: usize, args: &[&Path]) -> Result<Vec<String>, String> {
    let nodes = Nodes::start(3);
    let path = example(name);
    let run_one = || {
        let mut command = Command::new(&path);
        command.args(args).env("QUORLOCK_NODES", nodes.urls().join(","));
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..times).map(|_| scope.spawn(run_one)).collect();
        running.into_iter().map(|running| running.join().unwrap()).collect()
    })
}

/// What a line has between these words and the next comma.
fn after<'t>(text: &'t str, words: &str) -> &'t str {
    let (_, rest) = text.split_once(words).unwrap();
    rest.split(',').next().unwrap()
}

#[test]
fn one_machine_of_a_fleet_runs_the_job() {
    // On a busy machine, too few nodes may answer at the end of a wait.
    let mut runs = (0..5).map(|_| run("cron", 4, &[]));
    let is_known = |run: &Result<_, String>| !run.as_ref().is_err_and(|e| e.contains("NoQuorum"));
    let mut printed = runs.find(is_known).expect("enough nodes answer in one of the runs").unwrap();
    printed.sort_unstable();
    assert_eq!(printed[0], "42 pages\n");
    let others_wait = printed[1..].iter().all(|text| text == "another machine does the job\n");
    assert!(others_wait, "{printed:?}");
}

#[test]
fn leaders_take_turns_with_distinct_fences() {
    let printed = run("leader", 3, &[]).unwrap();
    assert!(printed.iter().all(|text| text.ends_with("steps down\n")), "{printed:?}");
    let fences: BTreeSet<_> = printed.iter().map(|text| after(text, "leads, fence ")).collect();
    assert_eq!(fences.len(), 3);
}

#[test]
fn late_write_wins_without_a_fence_and_is_refused_with_it() {
    let output = Command::new(example("fence_sqlite")).output().unwrap();
    let story = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{story}\n{}", String::from_utf8_lossy(&output.stderr));
    let outcomes: Vec<_> =
        story.lines().filter_map(|line| line.trim().strip_prefix("=> ")).collect();
    assert_eq!(outcomes, ["2 sold, 9 left of 10: WRONG", "1 sold, 9 left of 10: right"], "{story}");
}

#[test]
fn cache_is_refreshed_once_and_read_whole_by_all() {
    let directory = tempfile::tempdir().unwrap();
    let printed = run("cache", 6, &[directory.path()]).unwrap().concat();
    let (refreshes, reads): (Vec<_>, Vec<_>) =
        printed.lines().partition(|line| *line == "refreshed");
    assert_eq!((refreshes.len(), reads.len()), (1, 60), "{printed}");
    let fence = reads[0].rsplit(' ').next().unwrap();
    let whole = format!("prices of refresh {fence}, names of refresh {fence}");
    assert!(reads.iter().all(|line| *line == whole), "{printed}");
}

#[test]
fn encoders_of_a_fleet_use_at_most_four_slots_with_distinct_fences() {
    let directory = tempfile::tempdir().unwrap();
    let printed = run("encoders", 6, &[directory.path(), Path::new("10")]).unwrap().concat();
    let mut used = BTreeSet::new();
    for line in printed.lines() {
        let (slot, fence) = (after(line, "slot "), after(line, "fence "));
        assert!(slot.parse::<usize>().unwrap() < 4, "{line}");
        assert!(used.insert((slot, fence)), "two locks of a slot had the same fence: {line}");
    }
    assert_eq!(used.len(), 60, "each video was encoded: {printed}");
    assert!(used.iter().any(|(slot, _)| *slot != used.first().unwrap().0), "{printed}");
}

#[test]
fn program_without_tokio_acquires_locks() {
    let printed = run("blocking", 1, &[]).unwrap().concat();
    assert!(printed.contains("fence ") && printed.contains("10 steps under the lock"), "{printed}");
}

struct Service {
    process: Child,
    address: String,
}

impl Service {
    fn start(nodes: &Nodes) -> Self {
        let mut command = Command::new(example("axum"));
        command.arg("127.0.0.1:0").env("QUORLOCK_NODES", nodes.urls().join(","));
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect(&line).to_owned();
        Self { process, address }
    }

    /// Repeats a request while it is answered with 503: on a busy machine, nodes may answer late.
    fn ship(&self, order: u64) -> u16 {
        let mut status = 503;
        eventually(Duration::from_secs(10), "a majority answers in time", || {
            status = self.request(order);
            status != 503
        });
        status
    }

    fn request(&self, order: u64) -> u16 {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let request = format!(
            "POST /orders/{order}/ship HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.address
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response.split(' ').nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn http_service_answers_200_409_or_503_and_ends_cleanly() {
    let mut nodes = Nodes::start(3);
    let mut service = Service::start(&nodes);
    assert_eq!(service.ship(42), 200);

    let builder = Quorum::builder().nodes(nodes.urls()).node_timeout(Duration::from_secs(5));
    let quorum = builder.connect().unwrap();
    let lock = quorum.lock("orders/42").acquire().unwrap();
    assert_eq!(service.ship(42), 409);
    assert_eq!(service.ship(43), 200);
    lock.release().unwrap();
    assert_eq!(service.ship(42), 200);

    nodes[0].kill();
    nodes[1].kill();
    assert_eq!(service.request(42), 503);

    for node in nodes.iter_mut().take(2) {
        node.restart().unwrap();
    }
    kill_process(Pid::from_child(&service.process), Signal::TERM).unwrap();
    let mut printed = String::new();
    service.process.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert_eq!(printed, "all locks are released\n");
    assert!(service.process.wait().unwrap().success());
}
