//! What users read is right: sessions, commands, figures and objects for Kubernetes in the README
//! and the pages of the book, the texts of `--help`, errors that point to it, man pages and shell
//! completions. `make test-dist` runs the other commands of the pages.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::*;
use quorlock_testkit::{Nodes, Server};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

const README: &str = include_str!("../../../README.md");
const GETTING_STARTED: &str = include_str!("../../../docs/getting-started.md");
const JOBS: &str = include_str!("../../../docs/operations/jobs.md");
const BENCHMARKS: &str = include_str!("../../../docs/benchmarks.md");

/// An integer with at least this many digits is a fence or a time, which differs in each run.
const VARYING_DIGITS: usize = 3;

const PROMPT: &str = "127.0.0.1:6379> ";

/// The blocks of shell commands that need nodes and install nothing.
fn scripts(page: &'static str) -> Vec<&'static str> {
    let needs_nodes =
        |block: &&str| block.contains("quorlock ") && !block.starts_with("quorlock up");
    let installs = |block: &&str| block.contains("make ") || block.contains("sudo ");
    blocks(page, "sh").into_iter().filter(|block| needs_nodes(block) && !installs(block)).collect()
}

/// Runs a block on these nodes, in a folder with the programs that the block names.
fn run_block(block: &str, nodes: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    for name in ["report.sh", "first-step", "second-step"] {
        let path = folder.path().join(name);
        fs::write(&path, "#!/bin/sh\necho ran\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    shell(block, nodes).current_dir(folder.path()).output().unwrap()
}

#[test]
fn shell_blocks_run_as_they_are_shown_on_the_nodes_of_quorlock_up() {
    let help = help(&["acquire"]);
    let (_, example) = help.split_once("Example:\n").unwrap();
    let example = example.split("\n\n").next().unwrap();
    for page in [README, GETTING_STARTED] {
        let up = blocks(page, "sh").into_iter().find(|block| block.starts_with("quorlock up"));
        let arguments = up.unwrap().split('#').next().unwrap().split_whitespace().skip(1);
        let up = Running::start(quorlock().args(arguments));
        let nodes = up.nodes();
        let scripts = scripts(page);
        assert!(!scripts.is_empty());
        for block in scripts.into_iter().chain([example]) {
            let output = output_retried_on_122(|| run_block(block, &nodes));
            assert_eq!(code(output.status), 0, "{block}{}", stderr(&output));
        }
        up.signal(Signal::INT);
        assert_eq!(code(up.wait_for_end().status), 0);
    }
}

#[test]
fn cron_file_runs_its_job_with_the_nodes_of_the_system_file() {
    let nodes = Nodes::start(3);
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("quorlock.toml");
    let shown = blocks(README, "toml").into_iter().find(|block| block.starts_with("nodes = "));
    let nodes = shown.unwrap().split('"').skip(1).step_by(2).zip(nodes.urls());
    let text = nodes.fold(shown.unwrap().to_owned(), |text, (node, url)| text.replace(node, &url));
    fs::write(&config, text).unwrap();
    let block = blocks(JOBS, "cron ops /etc/cron.d/nightly-report")[0];
    // A line with a time begins with five fields and the user.
    let line = |line: &str| match line.split_once('=') {
        Some((name, _)) if name.bytes().all(|byte| byte.is_ascii_uppercase()) => line.to_owned(),
        _ => line.split(' ').skip(6).collect::<Vec<_>>().join(" "),
    };
    let lines = block.lines().map(line).collect::<Vec<_>>().join("\n");
    // A hold of a minute would delay this test.
    let lines = lines.replace("--hold-at-least 1m", "--hold-at-least 10ms");
    let job = "printf '#!/bin/sh\necho the report\n' >/usr/local/bin/nightly-report
        chmod +x /usr/local/bin/nightly-report\n";
    let mut cron = from_cron(&config, &format!("{job}{lines}"));
    let output = output_retried_on_122(|| cron.output().unwrap());
    assert_eq!(code(output.status), 0, "{block}{}", stderr(&output));
    assert_eq!((stdout(&output), stderr(&output)), ("the report\n", ""), "{block}");
}

/// What the command-line client of the server prints in a terminal.
fn cli(server: &Server, line: &str) -> String {
    let url = server.url();
    let socket = url.strip_prefix("redis+unix://").unwrap();
    for client in ["redis-cli", "valkey-cli"] {
        let mut command = Command::new(client);
        command.args(["-s", socket, "--no-raw"]).args(line.split(' '));
        if let Ok(output) = command.output() {
            return stdout(&output).to_owned();
        }
    }
    panic!("neither redis-cli nor valkey-cli is installed: run `make setup`");
}

/// The lines of a reply, without integers that differ from run to run.
fn stable_lines(reply: &str) -> Vec<&str> {
    let is_varying = |number: &str| number.len() >= VARYING_DIGITS;
    let stable = |line| match str::rsplit_once(line, "(integer) ") {
        Some((before, number)) if is_varying(number) => before,
        _ => line,
    };
    reply.lines().map(stable).collect()
}

#[test]
fn sessions_are_what_a_server_answers() {
    for page in [README, GETTING_STARTED] {
        let sessions: Vec<_> =
            blocks(page, "text").into_iter().filter(|text| text.starts_with(PROMPT)).collect();
        assert!(!sessions.is_empty());
        for session in sessions {
            let nodes = Nodes::start(1);
            for exchange in session.split(PROMPT).skip(1) {
                let (command, shown) = exchange.split_once('\n').unwrap();
                let actual = cli(&nodes[0], command);
                assert_eq!(stable_lines(&actual), stable_lines(shown), "{command}");
            }
        }
    }
}

/// The first four cells of each table row with a time in µs.
fn figures(page: &str) -> Vec<Vec<&str>> {
    let rows = page.lines().filter(|line| line.starts_with("| ") && line.contains(" µs |"));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).take(4).collect()).collect()
}

#[test]
fn figures_of_the_readme_are_those_of_the_benchmarks() {
    let (shown, all) = (figures(README), figures(BENCHMARKS));
    assert!(shown.len() >= 5, "{shown:?}");
    for row in shown {
        assert!(all.contains(&row), "docs/benchmarks.md lacks {row:?}");
    }
}

/// The containers of the pods that a Kubernetes object describes.
fn containers(object: &Value) -> impl Iterator<Item = &Value> {
    let pods =
        ["/spec/template/spec/containers", "/spec/jobTemplate/spec/template/spec/containers"];
    pods.into_iter().filter_map(move |path| object.pointer(path)?.as_array()).flatten()
}

#[test]
fn objects_for_kubernetes_run_their_command_under_a_lock() {
    let nodes = Nodes::start(3);
    let mut kinds = Vec::new();
    for block in blocks(JOBS, "yaml") {
        for object in serde_saphyr::from_multiple::<Value>(block).unwrap() {
            let field = |name: &str| object[name].as_str().unwrap();
            let count = containers(&object).count();
            kinds.push(format!("{} {} {count}", field("apiVersion"), field("kind")));
            assert!(object["metadata"]["name"].is_string(), "{object}");
            for container in containers(&object) {
                assert_eq!(container["envFrom"][0]["secretRef"]["name"], "quorlock");
                let words = container["command"].as_array().unwrap().iter();
                let words = words.map(|word| word.as_str().unwrap());
                // A hold of a minute would delay this test.
                let words: Vec<_> =
                    words.map(|word| if word == "1m" { "10ms" } else { word }).collect();
                let end = words.iter().position(|word| *word == "--").unwrap();
                let mut command = quorlock();
                command.arg(words[1]).args(LONG_NODE_TIMEOUT).args(&words[2..=end]).arg("true");
                command.env("QUORLOCK_NODES", nodes.urls().join(","));
                let output = command.output().unwrap();
                assert_eq!((words[0], code(output.status)), ("quorlock", 0), "{}", stderr(&output));
            }
        }
    }
    assert_eq!(kinds, ["batch/v1 CronJob 1", "v1 Secret 0", "apps/v1 Deployment 1"]);
}

#[test]
fn short_help_fits_a_screen() {
    let subcommands = subcommands();
    let words = subcommands.iter().map(|name| vec![&**name, "-h"]).chain([vec!["-h"]]);
    for arguments in words {
        let help = quorlock().env("COLUMNS", "80").args(&arguments).output().unwrap();
        let lines: Vec<_> = stdout(&help).lines().collect();
        // The last line of a screen is the prompt.
        assert!(lines.len() < 40, "{arguments:?}: {} lines", lines.len());
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{arguments:?}: {lines:?}");
        assert!(lines.iter().any(|line| line.contains("--help")), "{arguments:?}: {lines:?}");
    }
}

#[test]
fn example_files_of_help_and_documentation_are_valid() {
    let help = quorlock().arg("--help").output().unwrap();
    let (_, of_help) = stdout(&help).split_once("File:\n").unwrap();
    let page = include_str!("../../../docs/operations/configuration.md");
    let (_, of_page) = page.split_once("```toml\n").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("quorlock.toml");
    for file in [of_help.split("\n\n").next().unwrap(), of_page.split("```").next().unwrap()] {
        fs::write(&path, file).unwrap();
        let mut run = quorlock();
        run.args(["run", "k", "--config"]).arg(&path).args(["--", "true"]);
        // The file is read, and the first file that it names is missing.
        let error = "cannot read the password from /etc/quorlock.password";
        assert_error(&run.output().unwrap(), 125, error);
    }
}

/// Lets the program write the man pages and completions to a new folder.
fn manual() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let output = quorlock().arg("__manual").arg(folder.path()).output().unwrap();
    assert_eq!((code(output.status), stderr(&output)), (0, ""));
    folder
}

fn help(words: &[&str]) -> String {
    stdout(&quorlock().args(words).arg("--help").output().unwrap()).to_owned()
}

fn subcommands() -> Vec<String> {
    let help = help(&[]);
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let list = list.split("\n\n").next().unwrap();
    let names = list.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty() && *name != "help").map(str::to_owned).collect()
}

/// The text of a man page, without the escapes of its hyphens.
fn man_page(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join("man").join(format!("{name}.1"))).unwrap().replace("\\-", "-")
}

#[test]
fn every_verb_has_a_man_page_with_its_exit_codes() {
    let folder = manual();
    let main_page = man_page(folder.path(), "quorlock");
    let subcommands = subcommands();
    assert!(subcommands.len() > 10, "{subcommands:?}");
    for subcommand in &subcommands {
        assert!(main_page.contains(&format!("quorlock-{subcommand}(1)")), "{subcommand}");
        let page = man_page(folder.path(), &format!("quorlock-{subcommand}"));
        let help = help(&[subcommand]);
        let codes = help.split_once("Exit codes").unwrap().1.split("\n\n").next().unwrap();
        for line in codes.lines().filter(|line| line.trim().starts_with(char::is_numeric)) {
            assert!(page.contains(line.split('-').next().unwrap()), "{subcommand}: {line}");
        }
        let paragraphs = help.split("\n\n").filter_map(|paragraph| paragraph.lines().next());
        for heading in paragraphs.filter_map(|line| line.strip_suffix(':')) {
            let is_exempt = ["Usage", "Options", "Arguments", "Nodes"].contains(&heading)
                || heading.starts_with(' ');
            let section = format!(".SH {}", heading.to_uppercase());
            let section = section.split(" (").next().unwrap();
            assert!(
                is_exempt || page.replace('"', "").contains(section),
                "{subcommand}: {section}"
            );
        }
    }
    assert_eq!(fs::read_dir(folder.path().join("man")).unwrap().count(), subcommands.len() + 1);
}

#[test]
fn completions_work_in_bash_and_know_no_hidden_subcommand() {
    let folder = manual();
    for file in ["quorlock.bash", "quorlock.fish", "_quorlock"] {
        let text = fs::read_to_string(folder.path().join("completions").join(file)).unwrap();
        assert!(!text.contains("__manual") && !text.contains("__watchdog"), "{file}");
    }
    let bash = folder.path().join("completions/quorlock.bash");
    let script = format!(
        "source {}; COMP_WORDS=(quorlock rel); COMP_CWORD=1; _quorlock quorlock rel quorlock; echo $COMPREPLY",
        bash.display()
    );
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!(stdout(&output), "release\n", "{}", stderr(&output));
}

#[test]
fn help_names_exit_codes_and_environment_variables() {
    for (subcommand, things) in [
        ("", &["QUORLOCK_CONFIG", "QUORLOCK_NODES", "QUORLOCK_USER", "QUORLOCK_PASSWORD"][..]),
        ("", &["SSL_CERT_FILE", "XDG_CONFIG_HOME", "/etc/quorlock.toml", "defaults.ttl"]),
        ("run", &["128 +", "120 ", "121 ", "122 ", "125 ", "126 ", "127 ", "0 3 * * *"]),
        ("run", &["QUORLOCK_NODES", "QUORLOCK_KEY", "QUORLOCK_FENCE", "QUORLOCK_PERMIT"]),
        ("acquire", &["0 ", "121 ", "122 ", "125 ", "128 +", "quorlock --help"]),
        ("extend", &["0 ", "120 ", "122 ", "125 ", "quorlock --help"]),
        ("release", &["0 ", "120 ", "122 ", "125 ", "quorlock --help"]),
        ("inspect", &["0 ", "122 ", "123 ", "125 ", "quorlock --help"]),
        ("list", &["0 ", "122 ", "125 ", "quorlock --help"]),
        ("revoke", &["0 ", "121 ", "122 ", "123 ", "125 ", "128 +"]),
        ("status", &["0 ", "122 ", "125 ", "128 +"]),
        ("doctor", &["0 ", "1 ", "2 ", "125 "]),
        ("top", &["q quits", "0 ", "125 ", "128 +"]),
        ("exporter", &["127.0.0.1:", "/metrics", "0 ", "125 "]),
        ("restart-nodes", &["0 ", "122 ", "125 "]),
        ("up", &["QUORLOCK_SERVER", "QUORLOCK_MODULE", "0 ", "125 "]),
    ] {
        let subcommand = (!subcommand.is_empty()).then_some(subcommand);
        let help = quorlock().args(subcommand).arg("--help").output().unwrap();
        assert_ok(&help);
        for thing in things {
            assert_contains(stdout(&help), thing);
        }
    }
}

/// What a user forgot who wrote the command of `quorlock run` directly after the key.
const SEPARATOR: &str = "write `--` before the command";

#[test]
fn wrong_command_line_exits_with_125_and_says_what_to_write() {
    let rows: Vec<_> = include_str!("wrong_lines.txt").lines().skip(1).collect();
    for row in rows.chunks(2) {
        let (line, hint) = (row[0], row[1].trim_start());
        let output = shell(line, "redis+unix:///nowhere").output().unwrap();
        assert_error(&output, 125, hint);
        let said = stderr(&output);
        assert!(hint == SEPARATOR || !said.contains(SEPARATOR), "{line}: {said}");
        assert_eq!(stdout(&output), "", "{line}");
    }
}
