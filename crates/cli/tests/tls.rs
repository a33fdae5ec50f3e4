//! Connections to nodes through TLS.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::*;
use quorlock_testkit::{Nodes, ReservedPort, Server};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustix::process::Signal;
use tempfile::TempDir;

/// The roots, the certificate and the key of a client that all nodes accept.
const TRUSTED: [(&str, &str); 3] =
    [("--cacert", "ca.pem"), ("--cert", "node.pem"), ("--key", "node.key")];

/// Nodes that speak TLS, and the files of their certificates.
struct TlsNodes {
    folder: TempDir,
    ports: Vec<ReservedPort>,
    _servers: Vec<Server>,
}

impl TlsNodes {
    fn start(requires_certificate: bool) -> Self {
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
                .arg("tls-auth-clients", if requires_certificate { "yes" } else { "no" })
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
        run(&mut self.on("run", options))
    }
}

/// Runs `true` under the lock `k`, with the options that the command has.
fn run(command: &mut Command) -> Output {
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
fn nodes_are_checked_by_the_given_roots_or_those_of_the_system() {
    let nodes = TlsNodes::start(false);
    assert_ok(&nodes.run(&[("--cacert", "ca.pem")]));
    assert_error(&nodes.run(&[("--cacert", "node.key")]), 125, "BEGIN CERTIFICATE");
    assert_error(&nodes.run(&[]), 125, "certificate");

    let mut command = nodes.on("run", &[]);
    assert_ok(&run(command.env("SSL_CERT_FILE", nodes.file("ca.pem"))));
}

#[test]
fn client_certificate_comes_from_options_or_a_file() {
    let nodes = TlsNodes::start(true);
    assert_ok(&nodes.run(&TRUSTED));
    let without_certificate = nodes.run(&TRUSTED[..1]);
    assert_ne!(code(without_certificate.status), 0, "the nodes require a certificate");
    assert_error(&nodes.run(&[("--cert", "node.pem")]), 125, "--key");

    let urls = nodes.urls().join(",");
    let tls = "tls = { cacert = 'ca.pem', cert = 'node.pem', key = 'node.key' }";
    let file = nodes.file("quorlock.toml");
    fs::write(&file, format!("nodes = '{urls}'\n{tls}")).unwrap();
    assert_ok(&run(quorlock().env("QUORLOCK_CONFIG", &file).arg("run")));
}

#[test]
fn watchdog_releases_the_lock_through_tls() {
    let nodes = TlsNodes::start(true);
    let mut command = nodes.on("run", &TRUSTED);
    command.args(["--ttl", "60s", "k", "--", "sh", "-c", "echo $$; exec sleep 60"]);
    let mut running = Running::start(&mut command);
    running.pid_line();
    running.signal(Signal::KILL);
    // The wait is shorter than the ttl.
    let mut next = nodes.on("run", &TRUSTED);
    assert_ok(&next.args(["--wait", "15s", "k", "--", "true"]).output().unwrap());
}

#[test]
fn certificates_without_tls_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    let with_roots = |nodes: &str| {
        let mut command = on_urls(&[nodes.to_owned()], "run");
        run(command.arg("--cacert").arg(folder.path().join("ca.pem")))
    };
    assert_error(&with_roots("a:6379"), 125, "write rediss://a:6379");
    assert_error(&with_roots("redis://a:6379"), 125, "rediss://");
}

#[test]
fn restart_nodes_uses_certificates_and_passes_host_and_port_on() {
    let nodes = TlsNodes::start(true);
    let mut command = nodes.on("restart-nodes", &TRUSTED);
    command.args(["--limit", "1s", "--", "echo", "{host}", "{port}"]);
    let output = command.output().unwrap();
    // Nothing restarts the server, but it was asked and votes.
    assert_error(&output, 122, "is voting after 1s");
    assert_eq!(stdout(&output), format!("127.0.0.1 {}\n", nodes.ports[0].number()));
}

#[test]
fn wrong_scheme_is_a_permanent_error_that_asks_plain_or_tls() {
    let nodes = TlsNodes::start(false);
    let plain = Nodes::start_with(3, |_, node| node.tcp()).unwrap();
    let with_scheme = |scheme: &str, urls: Vec<String>| -> Vec<_> {
        urls.iter().map(|url| format!("{scheme}{}", url.split_once(':').unwrap().1)).collect()
    };
    let to_tls_ports = with_scheme("redis:", nodes.urls());
    let to_plain_ports = with_scheme("rediss:", plain.urls());
    for urls in [to_tls_ports, to_plain_ports] {
        for words in [&["run", "k", "--", "true"][..], &["inspect", "k"], &["list"]] {
            // `run` waits for ever, unless waiting cannot help.
            let output = on_urls(&urls, words[0]).args(&words[1..]).output().unwrap();
            assert_error(&output, 125, "is this port plain or TLS?");
        }
        for (subcommand, expected) in [("status", 122), ("doctor", 2)] {
            let output = on_urls(&urls, subcommand).output().unwrap();
            assert_eq!(code(output.status), expected, "{}", stderr(&output));
            assert_contains(stdout(&output), "is this port plain or TLS?");
        }
    }
}

/// `status` and `doctor` connect to each node separately, without a quorum.
#[test]
fn status_uses_certificates_and_doctor_reports_untrusted_nodes() {
    let nodes = TlsNodes::start(true);
    assert_ok(&nodes.on("status", &TRUSTED).arg("--json").output().unwrap());
    let output = nodes.on("doctor", &TRUSTED[1..]).arg("--json").output().unwrap();
    assert_eq!(code(output.status), 2, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("misconfigured") && text.contains("--cacert"), "{text}");
}
