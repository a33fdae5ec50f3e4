//! Where the nodes, the user, the password, the certificates and the defaults come from; and
//! connections to nodes through TLS.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::*;
use quorlock_testkit::{Nodes, ReservedPort, Server};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustix::process::Signal;
use tempfile::TempDir;

const NO_SERVER: &str = "redis://127.0.0.1:1";
const PASSWORD: &str = "s3cret/@ &";
const CREDENTIALS: &str = "user = 'locker'\npassword-file = 'password'\n";

/// A folder for files that only their owner can read.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        self.allow(name, 0o600);
        path
    }

    fn allow(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), Permissions::from_mode(mode)).unwrap();
    }
}

fn nodes_line(nodes: &Nodes) -> String {
    format!("nodes = {:?}\n", nodes.urls())
}

fn run(command: &mut Command) -> Output {
    run_with_options(command, &[])
}

fn run_with_options(command: &mut Command, options: &[&str]) -> Output {
    command.arg("run").args(LONG_NODE_TIMEOUT).arg("--no-wait").args(options);
    command.args(["k", "--", "true"]).output().unwrap()
}

fn run_with(file: &Path) -> Output {
    run(quorlock().env("QUORLOCK_CONFIG", file))
}

#[track_caller]
fn assert_succeeds(output: &Output) {
    assert_eq!((code(output.status), stderr(output)), (0, ""));
}

#[track_caller]
fn assert_finds_no_server(output: &Output) {
    assert_ne!(code(output.status), 0);
    assert_contains(stderr(output), "127.0.0.1:1: not connected");
}

/// Asserts that the program failed with 125 and these hints, and showed no password.
#[track_caller]
fn assert_fails(output: &Output, hints: &[&str]) {
    for hint in hints {
        assert_error(output, 125, hint);
    }
    assert!(!stderr(output).contains("s3cret"), "{}", stderr(output));
}

/// Nodes that accept only the user `locker` with [`PASSWORD`].
fn with_password() -> Nodes {
    let nodes = Nodes::start(3);
    for node in &nodes {
        let password = format!(">{PASSWORD}");
        let mut connection = node.connection();
        for rules in [&["locker", "on", &password, "~*", "+@all"][..], &["default", "off"]] {
            redis::cmd("ACL").arg("SETUSER").arg(rules).exec(&mut connection).unwrap();
        }
    }
    nodes
}

/// Writes a configuration file with these nodes and [`CREDENTIALS`], and returns its path.
fn write_config(files: &Files, nodes: &Nodes) -> PathBuf {
    files.write("f.toml", &(nodes_line(nodes) + CREDENTIALS))
}

#[test]
fn option_comes_before_environment_and_environment_before_files() {
    let nodes = Nodes::start(3);
    let files = Files::new();
    let (here, nowhere) = (nodes.urls().join(","), format!("nodes = ['{NO_SERVER}']"));
    let good = files.write("quorlock.toml", &nodes_line(&nodes));
    let bad = files.write("bad.toml", &nowhere);
    let of_user = || {
        let mut command = quorlock();
        command.env("XDG_CONFIG_HOME", files.path(""));
        command
    };
    assert_succeeds(&run(&mut of_user()));
    assert_succeeds(&run_with(&good));
    assert_finds_no_server(&run_with(&bad));
    assert_finds_no_server(&run(of_user().env("QUORLOCK_CONFIG", &bad)));
    assert_succeeds(&run(of_user().env("QUORLOCK_CONFIG", "")));
    assert_succeeds(&run(of_user().env("QUORLOCK_CONFIG", &bad).env("QUORLOCK_NODES", &here)));
    assert_finds_no_server(&run(of_user().env("QUORLOCK_NODES", NO_SERVER)));

    let with_options =
        |options: &[&str]| run_with_options(of_user().env("QUORLOCK_NODES", NO_SERVER), options);
    assert_succeeds(&with_options(&["--nodes", &here]));
    assert_fails(&with_options(&["--nodes", ""]), &["--nodes is empty"]);
    let config = ["--config", good.to_str().unwrap()];
    // The nodes of the environment come before those of the file.
    assert_finds_no_server(&with_options(&config));
}

#[test]
fn defaults_come_from_the_file_and_options_replace_them() {
    let nodes = Nodes::start(1);
    let files = Files::new();
    let defaults = "[defaults]\nttl = '30s'\nwait = '0'\nowner = 'the night watch'";
    let file = files.write("f.toml", &(nodes_line(&nodes) + defaults));
    // Returns whether the lock has the ttl of the file, and whether it has the owner named there.
    let seen_with = |options: &[&str]| {
        let start = |options: &[&str], script: &str| {
            let mut run = quorlock();
            run.args(["run", "--config"]).arg(&file).args(LONG_NODE_TIMEOUT).args(options);
            Running::start(run.args(["k", "--", "sh", "-c", script]))
        };
        let mut running = start(options, "echo held; read go");
        assert_eq!(running.line(), "held");
        let mut connection = nodes[0].connection();
        let ttl_ms: u64 = redis::cmd("PTTL").arg("k").query(&mut connection).unwrap();
        let seen: redis::Value =
            redis::cmd("LOCK.INSPECT").arg("k").query(&mut connection).unwrap();
        // Without the wait of the file, this run would wait for the lock.
        assert_eq!(code(start(&[], "true").wait_for_end().status), 121);
        running.say("go");
        assert_eq!(code(running.wait_for_end().status), 0);
        (ttl_ms > 12_000, format!("{seen:?}").contains("the night watch"))
    };
    assert_eq!(seen_with(&[]), (true, true));
    assert_eq!(seen_with(&["--ttl", "10s", "--owner", "me"]), (false, false));
}

#[test]
fn user_and_password_come_from_files_environment_or_options() {
    let nodes = with_password();
    let files = Files::new();
    files.write("password", &format!("{PASSWORD}\n"));
    assert_succeeds(&run_with(&write_config(&files, &nodes)));

    let urls = nodes.urls().join(",");
    let of_locker = || {
        let mut command = quorlock();
        command.env("QUORLOCK_NODES", &urls).env("QUORLOCK_USER", "locker");
        command
    };
    assert_succeeds(&run(of_locker().env("QUORLOCK_PASSWORD", PASSWORD)));
    assert_fails(&run(&mut of_locker()), &["needs a password", "--password-file"]);
    let wrong = run(of_locker().env("QUORLOCK_PASSWORD", "s3cretive"));
    assert_fails(&wrong, &["WRONGPASS"]);

    let run_with_password = |file: &Path| {
        let options = ["--user", "locker", "--password-file", file.to_str().unwrap()];
        run_with_options(quorlock().env("QUORLOCK_NODES", &urls), &options)
    };
    assert_succeeds(&run_with_password(&files.path("password")));
    let missing = run_with_password(&files.path("missing"));
    assert_fails(&missing, &["cannot read the password", "missing"]);
    assert_fails(&run_with_password(&files.write("empty", "\n")), &["is empty"]);
}

#[test]
fn file_with_a_secret_that_others_can_read_is_reported() {
    let nodes = with_password();
    let files = Files::new();
    files.write("password", PASSWORD);
    let file = write_config(&files, &nodes);
    files.allow("password", 0o640);
    assert_succeeds(&run_with(&file));
    files.allow("password", 0o644);
    let output = run_with(&file);
    assert_error(&output, 0, "warning: ");
    assert_contains(stderr(&output), "chmod 600");

    let urls = urls_with(&nodes, "user=locker&pass=s3cret%2F%40%20%26");
    let file = files.write("urls.toml", &format!("nodes = {urls:?}"));
    assert_succeeds(&run_with(&file));
    files.allow("urls.toml", 0o644);
    assert_error(&run_with(&file), 0, "chmod 600");
}

/// The nodes that an option or a variable names must not receive the password of a file.
#[test]
fn password_of_a_file_goes_to_the_nodes_of_that_file_only() {
    let nodes = Nodes::start(3);
    let files = Files::new();
    files.write("password", PASSWORD);
    let file = files.write("f.toml", &format!("nodes = ['{NO_SERVER}']\n{CREDENTIALS}"));
    let urls = nodes.urls().join(",");
    let output = run(quorlock().env("QUORLOCK_CONFIG", &file).env("QUORLOCK_NODES", urls));
    assert_succeeds(&output);
    assert_fails(&run_with(&write_config(&files, &nodes)), &["WRONGPASS"]);
}

#[test]
fn refusal_says_which_settings_of_a_file_are_not_used() {
    let nodes = with_password();
    let files = Files::new();
    files.write("password", PASSWORD);
    let file = write_config(&files, &nodes);
    let unused = format!("user, password-file of {}, because", file.display());
    let urls = nodes.urls().join(",");
    let on_urls = |words: &[&str]| {
        let mut command = quorlock();
        command.env("QUORLOCK_CONFIG", &file).args([words[0], "--nodes", &urls]);
        command.args(&words[1..]).output().unwrap()
    };
    for words in [
        &["run", "k", "-c", "true"][..],
        &["acquire", "k"],
        &["release", "quorlock1:k:0123456789abcdef0123456789abcdef:1000:1:1"],
        &["inspect", "k"],
        &["list"],
        &["status"],
        &["doctor"],
        &["restart-nodes", "--limit", "1s", "--", "true"],
    ] {
        let output = on_urls(words);
        assert_ne!(code(output.status), 0, "{words:?}");
        let said = stderr(&output);
        assert!(said.contains(&format!("{unused} --nodes names the nodes")), "{words:?}: {said}");
    }
    let only_user = on_urls(&["run", "k", "-c", "true", "--user", "locker"]);
    assert_fails(&only_user, &["needs a password", "not used: password-file of "]);
    let no_file = on_urls(&["run", "k", "-c", "true", "--password-file", "/nowhere"]);
    assert_fails(&no_file, &["/nowhere: No such file", "; not used: user of "]);
    let mut of_variable = quorlock();
    of_variable.env("QUORLOCK_CONFIG", &file).env("QUORLOCK_NODES", &urls);
    assert_fails(&run(&mut of_variable), &["because QUORLOCK_NODES names the nodes"]);

    // Nodes that accept the client, and settings that options replace, are no reason to warn.
    let open = Nodes::start(3);
    let mut command = quorlock();
    command.env("QUORLOCK_CONFIG", &file).env("QUORLOCK_NODES", open.urls().join(","));
    assert_succeeds(&run(&mut command));
    let wrong = files.write("wrong", "s3cretive");
    let options = ["--user", "locker", "--password-file", wrong.to_str().unwrap()];
    let output = on_urls(&[&["run", "k", "-c", "true"], &options[..]].concat());
    assert_fails(&output, &["WRONGPASS"]);
    assert!(!stderr(&output).contains("not used"), "{}", stderr(&output));
}

#[test]
fn error_in_a_file_names_the_file_the_line_and_what_to_write() {
    let files = Files::new();
    for (text, hints) in [
        ("nodes = ['a']\n\nttl = '10s'", ["f.toml, line 3", "`ttl`"]),
        ("nodes = ['a b']", ["by commas", "f.toml"]),
        ("nodes = ['rediss://a']\ntls = { cert = 'x' }", ["tls.key", "f.toml"]),
        ("nodes = ['rediss://a']\ntls = { cacert = 'x' }", ["quorlock: cannot read /", "/x"]),
    ] {
        let file = files.write("f.toml", text);
        assert_fails(&run_with(&file), &hints);
    }
    let missing = run_with(&files.path("missing.toml"));
    assert_fails(&missing, &["there is no configuration file", "missing.toml"]);
    assert_fails(&run_with(&files.path("")), &["cannot read", "--config"]);
}

#[test]
fn command_does_not_inherit_variables_with_passwords() {
    let nodes = Nodes::start(3);
    let script = "echo \"${QUORLOCK_NODES-none} ${QUORLOCK_PASSWORD-none} $QUORLOCK_KEY\"";
    let mut command = quorlock();
    command.env("QUORLOCK_NODES", nodes.urls().join(",")).env("QUORLOCK_PASSWORD", "");
    let output = command.args(["run", "k", "--", "sh", "-c", script]).output().unwrap();
    assert_eq!((code(output.status), stdout(&output)), (0, "none none k\n"));
}

#[test]
fn no_wait_replaces_the_wait_of_a_file() {
    let nodes = Nodes::start(3);
    let files = Files::new();
    let file = files.write("f.toml", &(nodes_line(&nodes) + "[defaults]\nwait = '1h'"));
    let holder = Holder::start(&nodes, &LONG_NODE_TIMEOUT);
    assert_eq!(code(run_with(&file).status), 121);
    holder.release();
}

/// The roots, the certificate and the key of a client that all nodes accept.
const TRUSTED: [(&str, &str); 3] =
    [("--cacert", "ca.pem"), ("--cert", "node.pem"), ("--key", "node.key")];

/// Nodes that speak TLS and require a certificate, and the files of their certificates.
struct TlsNodes {
    folder: TempDir,
    ports: Vec<ReservedPort>,
    _servers: Vec<Server>,
}

impl TlsNodes {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_certificates(folder.path());
        let mut ports = Vec::new();
        let mut servers = Vec::new();
        for _ in 0..3 {
            let port = ReservedPort::new(None).unwrap();
            let file = |name: &str| folder.path().join(name).display().to_string();
            let server = Server::with_module()
                .arg("tls-port", port.number())
                .arg("tls-cert-file", file("node.pem"))
                .arg("tls-key-file", file("node.key"))
                .arg("tls-ca-cert-file", file("ca.pem"))
                .arg("tls-auth-clients", "yes")
                .start()
                .unwrap_or_else(|error| panic!("this test needs a server with TLS: {error}"));
            servers.push(server);
            ports.push(port);
        }
        Self { folder, ports, _servers: servers }
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

fn write_certificates(folder: &Path) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "an authority");
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    fs::write(folder.join("ca.pem"), authority.pem()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "a node");
    fs::write(folder.join("node.pem"), params.signed_by(&key, &authority).unwrap().pem()).unwrap();
    fs::write(folder.join("node.key"), key.serialize_pem()).unwrap();
}

#[test]
fn certificates_come_from_options_a_file_or_the_system() {
    let nodes = TlsNodes::start();
    assert_ok(&nodes.run(&TRUSTED));
    assert_error(&nodes.run(&[("--cacert", "node.key")]), 125, "BEGIN CERTIFICATE");
    assert_error(&nodes.run(&TRUSTED[1..]), 125, "certificate");
    assert_ne!(code(nodes.run(&TRUSTED[..1]).status), 0, "the nodes require a certificate");
    assert_error(&nodes.run(&[("--cert", "node.pem")]), 125, "--key");
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
    let mut running = Running::start(&mut command);
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
fn certificates_without_tls_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    let with_roots = |nodes: &str| {
        let mut command = on_urls(&[nodes.to_owned()], "run");
        run_true(command.arg("--cacert").arg(folder.path().join("ca.pem")))
    };
    assert_error(&with_roots("a:6379"), 125, "write rediss://a:6379");
    assert_error(&with_roots("redis://a:6379"), 125, "rediss://");
}
