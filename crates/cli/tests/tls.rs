//! Connections to nodes through TLS.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{LONG_NODE_LIMIT, code, quorlock, stderr, stdout};
use quorlock_testkit::Server;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

/// Masters that speak TLS, and the files of their certificates.
struct TlsMasters {
    folder: TempDir,
    ports: Vec<u16>,
    _servers: Vec<Server>,
}

impl TlsMasters {
    fn start(requires_certificate: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_certificates(folder.path());
        let mut ports = Vec::new();
        let mut servers = Vec::new();
        for _ in 0..3 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let file = |name: &str| folder.path().join(name).display().to_string();
            let server = Server::with_module()
                .arg("tls-port", port)
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

    fn urls(&self, scheme: &str) -> String {
        let urls: Vec<_> =
            self.ports.iter().map(|port| format!("{scheme}127.0.0.1:{port}")).collect();
        urls.join(",")
    }

    fn run(&self, options: &[(&str, &str)]) -> Output {
        let options = options.iter().map(|(name, file)| ((*name).to_owned(), self.file(file)));
        run(quorlock().arg("run").arg("--nodes").arg(self.urls("rediss://")), options)
    }
}

fn run(command: &mut Command, options: impl Iterator<Item = (String, PathBuf)>) -> Output {
    for (name, file) in options {
        command.arg(name).arg(file);
    }
    command.args(LONG_NODE_LIMIT).args(["--no-wait", "k", "--", "true"]).output().unwrap()
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

/// Asserts that the program failed with this exit code and this hint.
#[track_caller]
fn assert_fails(output: &Output, expected: i32, hint: &str) {
    assert_eq!(code(output.status), expected, "{}", stderr(output));
    assert!(stderr(output).contains(hint), "no {hint} in {}", stderr(output));
}

#[test]
fn nodes_are_checked_by_the_given_roots_or_those_of_the_system() {
    let masters = TlsMasters::start(false);
    let output = masters.run(&[("--cacert", "ca.pem")]);
    assert_eq!(code(output.status), 0, "{}", stderr(&output));
    assert_fails(&masters.run(&[("--cacert", "node.key")]), 125, "BEGIN CERTIFICATE");
    assert_fails(&masters.run(&[]), 125, "certificate");

    let mut command = quorlock();
    command.arg("run").arg("--nodes").arg(masters.urls("rediss://"));
    let output = run(command.env("SSL_CERT_FILE", masters.file("ca.pem")), [].into_iter());
    assert_eq!(code(output.status), 0, "{}", stderr(&output));
}

#[test]
fn client_certificate_comes_from_options_or_a_file() {
    let masters = TlsMasters::start(true);
    let output =
        masters.run(&[("--cacert", "ca.pem"), ("--cert", "node.pem"), ("--key", "node.key")]);
    assert_eq!(code(output.status), 0, "{}", stderr(&output));
    assert_ne!(
        code(masters.run(&[("--cacert", "ca.pem")]).status),
        0,
        "the nodes require a certificate"
    );
    assert_fails(&masters.run(&[("--cert", "node.pem")]), 125, "--key");

    let nodes = masters.urls("rediss://");
    let tls = "tls = { cacert = 'ca.pem', cert = 'node.pem', key = 'node.key' }";
    let file = masters.file("quorlock.toml");
    fs::write(&file, format!("nodes = '{nodes}'\n{tls}")).unwrap();
    let output = run(quorlock().env("QUORLOCK_CONFIG", &file).arg("run"), [].into_iter());
    assert_eq!(code(output.status), 0, "{}", stderr(&output));
}

#[test]
fn certificates_without_tls_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    let with_roots = |nodes: &str| {
        let options = [("--cacert".to_owned(), folder.path().join("ca.pem"))];
        run(quorlock().args(["run", "--nodes", nodes]), options.into_iter())
    };
    assert_fails(&with_roots("a:6379"), 125, "write rediss://a:6379");
    assert_fails(&with_roots("redis://a:6379"), 125, "rediss://");
}

/// `status` and `doctor` connect to each node separately, without a quorum.
#[test]
fn status_uses_certificates_and_doctor_reports_untrusted_nodes() {
    let masters = TlsMasters::start(true);
    let ask = |verb: &str, options: &[(&str, &str)]| {
        let mut command = quorlock();
        command.args([verb, "--json", "--nodes"]).arg(masters.urls("rediss://"));
        for (name, file) in options {
            command.arg(name).arg(masters.file(file));
        }
        command.output().unwrap()
    };
    let trusted = [("--cacert", "ca.pem"), ("--cert", "node.pem"), ("--key", "node.key")];
    let output = ask("status", &trusted);
    assert_eq!(code(output.status), 0, "{}{}", stdout(&output), stderr(&output));
    let output = ask("doctor", &trusted[1..]);
    assert_eq!(code(output.status), 2, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("misconfigured") && text.contains("--cacert"), "{text}");
}
