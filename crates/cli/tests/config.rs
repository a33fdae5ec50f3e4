//! Where the nodes, the user, the password, the certificates and the defaults come from; and
//! connections to nodes through TLS.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use crate::common::*;
use quorlock_testkit::{Nodes, ReservedPort};
use rustix::process::Signal;
use tempfile::TempDir;

const NO_SERVER: &str = "redis://127.0.0.1:1";
/// What the program says of this server.
const NOT_CONNECTED: &str = "127.0.0.1:1: not connected";
const PASSWORD: &str = "s3cret/@ &";
const CREDENTIALS: &str = "user = 'locker'\npassword-file = 'password'\n";

/// A folder for lines of a shell, with files that only their owner can read. There, `./run` takes
/// the options of `quorlock run`, runs `true` under the lock `k`, and does not wait.
struct Folder {
    folder: TempDir,
    /// The nodes in the variable `NODES`.
    nodes: Nodes,
}

impl Folder {
    fn new(nodes: Nodes) -> Self {
        let folder = Self { folder: tempfile::tempdir().unwrap(), nodes };
        let run = "exec quorlock run k -n --node-timeout 1s -c true \"$@\"";
        folder.write("run", &format!("#!/bin/sh\n{run}\n"));
        fs::set_permissions(folder.path("run"), Permissions::from_mode(0o700)).unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), Permissions::from_mode(0o600)).unwrap();
    }

    /// Writes a configuration file with the nodes and these lines.
    fn write_config(&self, name: &str, rest: &str) {
        self.write(name, &format!("nodes = {:?}\n{rest}", self.nodes.urls()));
    }

    fn output(&self, line: &str) -> Output {
        let mut shell = shell(line, "");
        shell.current_dir(self.folder.path()).env_remove("QUORLOCK_NODES");
        shell.env("NODES", self.nodes.urls().join(",")).env("DOWN", NO_SERVER);
        shell.env("PASSWORD", PASSWORD).output().unwrap()
    }

    /// Asserts that each line ends with this code, and says this and no password. A line without
    /// a text says nothing.
    #[track_caller]
    fn check(&self, lines: &[(&str, i32, &str)]) {
        for (line, expected, text) in lines {
            let output = self.output(line);
            let said = stderr(&output);
            assert_eq!(code(output.status), *expected, "{line}: {said}");
            assert!(said.contains(text) && said.is_empty() == text.is_empty(), "{line}: {said}");
            assert!(![said, stdout(&output)].concat().contains("s3cret"), "{line}: {output:?}");
        }
    }
}

/// Nodes that accept only the user `locker` with [`PASSWORD`].
fn with_password() -> Nodes {
    let nodes = Nodes::start(3);
    for node in &nodes {
        exec(node, &["ACL", "SETUSER", "locker", "on", &format!(">{PASSWORD}"), "~*", "+@all"]);
        exec(node, &["ACL", "SETUSER", "default", "off"]);
    }
    nodes
}

#[test]
fn option_comes_before_environment_and_environment_before_files() {
    let folder = Folder::new(Nodes::start(3));
    folder.write_config("quorlock.toml", "");
    folder.write("bad.toml", &format!("nodes = ['{NO_SERVER}']"));
    folder.write("password", PASSWORD);
    folder.write("other.toml", &format!("nodes = ['{NO_SERVER}']\n{CREDENTIALS}"));
    folder.write_config("f.toml", CREDENTIALS);
    folder.check(&[
        ("XDG_CONFIG_HOME=$PWD ./run", 0, ""),
        ("QUORLOCK_CONFIG=quorlock.toml ./run", 0, ""),
        ("QUORLOCK_CONFIG=bad.toml ./run", 122, NOT_CONNECTED),
        ("XDG_CONFIG_HOME=$PWD QUORLOCK_CONFIG=bad.toml ./run", 122, NOT_CONNECTED),
        ("XDG_CONFIG_HOME=$PWD QUORLOCK_CONFIG= ./run", 0, ""),
        ("QUORLOCK_CONFIG=bad.toml QUORLOCK_NODES=$NODES ./run", 0, ""),
        ("XDG_CONFIG_HOME=$PWD QUORLOCK_NODES=$DOWN ./run", 122, NOT_CONNECTED),
        ("QUORLOCK_NODES=$DOWN ./run --nodes $NODES", 0, ""),
        // The nodes of the environment come before those of the file.
        ("QUORLOCK_NODES=$DOWN ./run --config quorlock.toml", 122, NOT_CONNECTED),
        // The password of a file goes to the nodes of that file only, and these have none.
        ("QUORLOCK_CONFIG=other.toml QUORLOCK_NODES=$NODES ./run", 0, ""),
        ("QUORLOCK_CONFIG=f.toml ./run", 125, "WRONGPASS"),
    ]);
    let script = "echo ${QUORLOCK_NODES-none} ${QUORLOCK_PASSWORD-none} $QUORLOCK_KEY";
    let output = folder
        .output(&format!("QUORLOCK_NODES=$NODES QUORLOCK_PASSWORD= quorlock run k -c '{script}'"));
    assert_eq!((code(output.status), stdout(&output)), (0, "none none k\n"));
}

#[test]
fn defaults_come_from_the_file_and_options_replace_them() {
    let folder = Folder::new(Nodes::start(1));
    let defaults = "[defaults]\nttl = '30s'\nwait = '0'\nowner = 'the night watch'";
    folder.write_config("f.toml", defaults);
    folder.write_config("wait.toml", "[defaults]\nwait = '1h'");
    // Returns whether the lock has the ttl of the file, and whether it has the owner named there.
    let seen_with = |options: &[&str]| {
        let mut run = quorlock();
        run.args(["run", "--config"]).arg(folder.path("f.toml")).args(LONG_NODE_TIMEOUT);
        let running = Running::start(run.args(options).args(["k", "-c", "echo held; read go"]));
        assert_eq!(running.line(), "held");
        let mut connection = folder.nodes[0].connection();
        let ttl_ms: u64 = redis::cmd("PTTL").arg("k").query(&mut connection).unwrap();
        let seen: redis::Value =
            redis::cmd("LOCK.INSPECT").arg("k").query(&mut connection).unwrap();
        let held = "not acquired: another client holds the lock";
        // Without the wait of the file, the first run would wait for the lock.
        folder.check(&[
            ("quorlock run --config f.toml --node-timeout 1s k -c true", 121, held),
            ("QUORLOCK_CONFIG=wait.toml ./run", 121, held),
        ]);
        running.say("go");
        assert_eq!(code(running.wait_for_end().status), 0);
        (ttl_ms > 12_000, format!("{seen:?}").contains("the night watch"))
    };
    assert_eq!(seen_with(&[]), (true, true));
    assert_eq!(seen_with(&["--ttl", "10s", "--owner", "me"]), (false, false));
}

#[test]
fn user_and_password_come_from_files_environment_or_options() {
    let folder = Folder::new(with_password());
    folder.write("password", &format!("{PASSWORD}\n"));
    folder.write("empty", "\n");
    folder.write_config("f.toml", CREDENTIALS);
    let urls = urls_with(&folder.nodes, "user=locker&pass=s3cret%2F%40%20%26");
    folder.write("urls.toml", &format!("nodes = {urls:?}"));
    let of_locker = "export QUORLOCK_NODES=$NODES QUORLOCK_USER=locker;";
    let by_options = "QUORLOCK_NODES=$NODES ./run --user locker --password-file";
    folder.check(&[
        ("QUORLOCK_CONFIG=f.toml ./run", 0, ""),
        (&format!("{of_locker} QUORLOCK_PASSWORD=\"$PASSWORD\" ./run"), 0, ""),
        (&format!("{of_locker} ./run"), 125, "needs a password: give --password-file"),
        (&format!("{of_locker} QUORLOCK_PASSWORD=s3cretive ./run"), 125, "WRONGPASS"),
        (&format!("{by_options} password"), 0, ""),
        (&format!("{by_options} missing"), 125, "cannot read the password from missing"),
        (&format!("{by_options} empty"), 125, "is empty"),
        // A file with a secret that others can read is reported.
        ("chmod 640 password; QUORLOCK_CONFIG=f.toml ./run", 0, ""),
        ("chmod 644 password; QUORLOCK_CONFIG=f.toml ./run", 0, "warning: every user"),
        ("QUORLOCK_CONFIG=urls.toml ./run", 0, ""),
        ("chmod 644 urls.toml; QUORLOCK_CONFIG=urls.toml ./run", 0, "chmod 600"),
        // An error of the command line does not show the password, either.
        ("QUORLOCK_NODES=redis://:s3cret@127.0.0.1:1 ./run", 122, NOT_CONNECTED),
        ("QUORLOCK_NODES=redis://:s3cret@127.0.0.1:1 ./run --nonsense", 125, "--nonsense"),
        ("QUORLOCK_NODES=redis://:s3cret@127.0.0.1:1 ./run --help", 0, ""),
        ("QUORLOCK_NODES=redis://:s3cret/@127.0.0.1 ./run", 125, "redis://"),
        ("./run --nodes :s3cret@127.0.0.1:x", 125, "invalid port"),
    ]);
}

#[test]
fn refusal_says_which_settings_of_a_file_are_not_used() {
    let folder = Folder::new(with_password());
    folder.write("password", PASSWORD);
    folder.write("wrong", "s3cretive");
    folder.write_config("f.toml", CREDENTIALS);
    let unused = "user, password-file of f.toml, because --nodes names the nodes";
    for (subcommand, expected) in [
        ("run k -c true", 125),
        ("acquire k", 125),
        ("release quorlock1:k:0123456789abcdef0123456789abcdef:1000:1:1", 125),
        ("inspect k", 125),
        ("list", 125),
        ("status", 122),
        ("doctor", 2),
        ("restart-nodes --limit 1s", 122),
    ] {
        let command = if subcommand.starts_with("restart") { "-- true" } else { "" };
        let line = format!("QUORLOCK_CONFIG=f.toml quorlock {subcommand} --nodes $NODES {command}");
        folder.check(&[(&line, expected, unused)]);
    }
    let run = "export QUORLOCK_CONFIG=f.toml QUORLOCK_NODES=$NODES; ./run";
    folder.check(&[
        (run, 125, "because QUORLOCK_NODES names the nodes"),
        (&format!("{run} --user locker"), 125, "QUORLOCK_PASSWORD; not used: password-file of "),
        (
            &format!("{run} --password-file /nowhere"),
            125,
            "/nowhere: No such file or directory (os error 2); not used: user of ",
        ),
    ]);
    // Nodes that accept the client, and settings that options replace, are no reason to warn.
    let replaced = folder.output(&format!("{run} --user locker --password-file wrong"));
    assert_error(&replaced, 125, "WRONGPASS");
    assert!(!stderr(&replaced).contains("not used"), "{}", stderr(&replaced));
}

#[test]
fn error_in_a_file_names_the_file_the_line_and_what_to_write() {
    let folder = Folder::new(Nodes::start(1));
    for (text, hint) in [
        ("nodes = ['a']\n\nttl = '10s'", "f.toml, line 3: unknown field `ttl`"),
        ("nodes = ['a b']", "f.toml: separate the nodes by commas"),
        ("nodes = ['rediss://a']\ntls = { cert = 'x' }", "f.toml: tls.cert and tls.key"),
        ("nodes = ['rediss://a']\ntls = { cacert = '/x' }", "quorlock: cannot read /x"),
    ] {
        folder.write("f.toml", text);
        folder.check(&[("QUORLOCK_CONFIG=f.toml ./run", 125, hint)]);
    }
    folder.check(&[
        ("./run --config missing.toml", 125, "there is no configuration file missing.toml"),
        ("./run --config .", 125, "or name another file with --config"),
    ]);
}

/// The roots, the certificate and the key of a client that all nodes accept.
const TRUSTED: [(&str, &str); 3] =
    [("--cacert", "ca.pem"), ("--cert", "node.pem"), ("--key", "node.key")];

/// Nodes that speak TLS and require a certificate. Their own certificate is the authority, too.
struct TlsNodes {
    folder: TempDir,
    ports: [ReservedPort; 3],
    _nodes: Nodes,
}

impl TlsNodes {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        fs::write(folder.path().join("ca.pem"), made.cert.pem()).unwrap();
        fs::write(folder.path().join("node.pem"), made.cert.pem()).unwrap();
        fs::write(folder.path().join("node.key"), made.signing_key.serialize_pem()).unwrap();
        let file = |name: &str| folder.path().join(name).display().to_string();
        let ports = [(); 3].map(|()| ReservedPort::new(None).unwrap());
        let nodes = Nodes::start_with(3, |index, node| {
            node.arg("tls-port", ports[index].number())
                .arg("tls-cert-file", file("node.pem"))
                .arg("tls-key-file", file("node.key"))
                .arg("tls-ca-cert-file", file("ca.pem"))
                .arg("tls-auth-clients", "yes")
        });
        let nodes =
            nodes.unwrap_or_else(|error| panic!("this test needs a server with TLS: {error}"));
        Self { folder, ports, _nodes: nodes }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn urls(&self) -> Vec<String> {
        self.ports.iter().map(|port| format!("rediss://127.0.0.1:{}", port.number())).collect()
    }

    fn on(&self, subcommand: &str, options: &[(&str, &str)]) -> Command {
        let mut command = on_urls(&self.urls(), subcommand);
        for (name, file) in options {
            command.arg(name).arg(self.file(file));
        }
        command
    }

    fn run(&self, options: &[(&str, &str)]) -> Output {
        run_true(&mut self.on("run", options))
    }
}

/// Runs `true` under the lock `k`, with the options that the command has.
fn run_true(command: &mut Command) -> Output {
    command.args(LONG_NODE_TIMEOUT).args(["--no-wait", "k", "--", "true"]).output().unwrap()
}

#[test]
fn certificates_come_from_options_a_file_or_the_system() {
    let nodes = TlsNodes::start();
    assert_ok(&nodes.run(&TRUSTED));
    assert_error(&nodes.run(&[("--cacert", "node.key")]), 125, "BEGIN CERTIFICATE");
    assert_error(&nodes.run(&TRUSTED[1..]), 125, "certificate");
    assert_ne!(code(nodes.run(&TRUSTED[..1]).status), 0, "the nodes require a certificate");
    let mut with_roots_of_the_system = nodes.on("run", &TRUSTED[1..]);
    assert_ok(&run_true(with_roots_of_the_system.env("SSL_CERT_FILE", nodes.file("ca.pem"))));

    let urls = nodes.urls().join(",");
    let tls = "tls = { cacert = 'ca.pem', cert = 'node.pem', key = 'node.key' }";
    let file = nodes.file("quorlock.toml");
    fs::write(&file, format!("nodes = '{urls}'\n{tls}")).unwrap();
    assert_ok(&run_true(quorlock().env("QUORLOCK_CONFIG", &file).arg("run")));
}

/// The watchdog is a process of its own. `status`, `doctor` and `restart-nodes` connect to each
/// node separately.
#[test]
fn watchdog_and_each_subcommand_use_the_certificates() {
    let nodes = TlsNodes::start();
    let mut command = nodes.on("run", &TRUSTED);
    command.args(["--ttl", "60s", "k", "--", "sh", "-c", "echo $$; exec sleep 60"]);
    let running = Running::start(&mut command);
    running.pid_line();
    running.signal(Signal::KILL);
    // The wait is shorter than the ttl.
    let mut next = nodes.on("run", &TRUSTED);
    assert_ok(&next.args(["--wait", "15s", "k", "--", "true"]).output().unwrap());

    assert_ok(&nodes.on("status", &TRUSTED).arg("--json").output().unwrap());
    let output = nodes.on("doctor", &TRUSTED[1..]).arg("--json").output().unwrap();
    assert_eq!(code(output.status), 2, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("misconfigured") && text.contains("--cacert"), "{text}");
    let plain: Vec<_> = nodes.urls().iter().map(|url| url.replace("rediss:", "redis:")).collect();
    let output = on_urls(&plain, "status").output().unwrap();
    assert_contains(stdout(&output), "is this port plain or TLS?");

    let mut command = nodes.on("restart-nodes", &TRUSTED);
    command.args(["--limit", "1s", "--", "echo", "{host}", "{port}"]);
    let output = command.output().unwrap();
    // Nothing restarts the server, but it was asked and votes.
    assert_error(&output, 122, "is voting after 1s");
    assert_eq!(stdout(&output), format!("127.0.0.1 {}\n", nodes.ports[0].number()));
}

#[test]
fn watchdog_releases_the_lock_with_the_password_of_a_file() {
    let folder = Folder::new(with_password());
    folder.write("password", PASSWORD);
    folder.write_config("f.toml", CREDENTIALS);
    let line = "export QUORLOCK_CONFIG=f.toml
        quorlock run k --ttl 60s -- sh -c 'touch held; exec sleep 60' 2>/dev/null &
        until [ -e held ]; do sleep 0.01; done
        kill -9 $!
        exec quorlock run k --wait 15s -- true";
    folder.check(&[(line, 0, "")]);
}
