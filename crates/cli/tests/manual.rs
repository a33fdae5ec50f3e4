//! Man pages and completions, which the program writes for the packages.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{assert_error, code, quorlock, stderr, stdout};
use tempfile::TempDir;

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
