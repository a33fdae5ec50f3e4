//! The texts of `--help`, errors that point to it, man pages and shell completions.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::*;
use tempfile::TempDir;

#[test]
fn short_help_fits_a_screen() {
    let help = quorlock().env("COLUMNS", "80").arg("-h").output().unwrap();
    let (_, commands) = stdout(&help).split_once("Commands:\n").unwrap();
    let lines = commands.lines().take_while(|line| line.starts_with("  "));
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names: Vec<_> = names.filter(|name| !["", "help"].contains(name)).collect();
    assert!(names.len() > 10 && names.contains(&"run"), "{names:?}");
    for arguments in [vec!["-h"]].into_iter().chain(names.into_iter().map(|name| vec![name, "-h"]))
    {
        let help = quorlock().env("COLUMNS", "80").args(&arguments).output().unwrap();
        let lines: Vec<_> = stdout(&help).lines().collect();
        // The last line of a screen is the prompt.
        assert!(lines.len() < 40, "{arguments:?}: {} lines", lines.len());
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{arguments:?}: {lines:?}");
        assert!(lines.iter().any(|line| line.contains("--help")), "{arguments:?}: {lines:?}");
    }
}

#[test]
fn wrong_command_line_exits_with_125_and_points_to_help() {
    let hint = "write `--` before the command";
    for words in
        [&["k", "echo", "hi"][..], &["-n", "k", "echo", "-n"], &["k", "--ttl", "5s", "true"]]
    {
        assert_error(&quorlock().arg("run").args(words).output().unwrap(), 125, hint);
    }
    for words in [
        &["run", "k", "--nonsense", "--", "true"][..],
        &["run", "k", "l", "--", "true"],
        &["run", "--ttl", "10", "k"],
        &["run", "k"],
        &["run"],
        &["release", "x", "y"],
        &["walk"],
    ] {
        let output = quorlock().args(words).output().unwrap();
        assert_error(&output, 125, "--help");
        assert!(!stderr(&output).contains(hint), "{words:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "");
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

/// The text of a page, without the escapes of its hyphens.
fn page(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join("man").join(format!("{name}.1"))).unwrap().replace("\\-", "-")
}

#[test]
fn every_verb_has_a_page_with_its_options_and_exit_codes() {
    let folder = manual();
    let main_page = page(folder.path(), "quorlock");
    let subcommands = subcommands();
    assert!(subcommands.len() > 5, "{subcommands:?}");
    for subcommand in &subcommands {
        assert!(main_page.contains(&format!("quorlock-{subcommand}(1)")), "{subcommand}");
        let page = page(folder.path(), &format!("quorlock-{subcommand}"));
        let help = help(&[subcommand]);
        let options = help
            .split_whitespace()
            .map(|word| word.trim_matches(|c: char| !c.is_alphanumeric() && c != '-'));
        for option in options.filter(|word| word.starts_with("--") && word.len() > 2) {
            assert!(page.contains(option), "{subcommand}: {option}");
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
fn completions_know_every_subcommand_and_no_hidden_one() {
    let folder = manual();
    for file in ["quorlock.bash", "quorlock.fish", "_quorlock"] {
        let text = fs::read_to_string(folder.path().join("completions").join(file)).unwrap();
        for subcommand in subcommands() {
            assert!(text.contains(&subcommand), "{file}: {subcommand}");
        }
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
fn folder_that_cannot_be_written_to_is_named() {
    let output = quorlock().args(["__manual", "/dev/null/here"]).output().unwrap();
    assert_error(&output, 125, "/dev/null/here");
    assert_eq!(code(quorlock().arg("__manual").output().unwrap().status), 125);
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
