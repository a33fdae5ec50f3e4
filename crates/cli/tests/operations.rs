//! The pages of docs/operations: their links, and the commands of their Kubernetes objects.
//! `make test-dist` runs the other commands of the pages.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use common::{LONG_NODE_TIMEOUT, blocks, code, quorlock, stderr};
use quorlock_testkit::Masters;
use serde_json::Value;

const PAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations");

fn pages() -> BTreeMap<PathBuf, String> {
    let paths = fs::read_dir(PAGES).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// The anchor that a heading has on a page.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_of_the_pages_have_targets() {
    let mut links = 0;
    for (path, text) in pages() {
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}", path.display());
            if !heading.is_empty() {
                let page = fs::read_to_string(&target).unwrap();
                let headings = page.lines().filter_map(|line| line.strip_prefix('#'));
                let mut anchors = headings.map(|line| anchor(line.trim_start_matches('#').trim()));
                assert!(anchors.any(|anchor| anchor == heading), "{}: {link}", path.display());
            }
            links += 1;
        }
    }
    assert!(links > 20, "{links}");
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    let contents = fs::read_to_string(Path::new(PAGES).join("README.md")).unwrap();
    for path in pages().into_keys() {
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name == "README.md" || contents.contains(&format!("({name})")), "{name}");
    }
}

/// The containers of a Kubernetes object, at any depth.
fn containers(object: &Value) -> Vec<&Value> {
    match object {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| match (name.as_str(), value.as_array()) {
                ("containers", Some(containers)) => containers.iter().collect(),
                _ => containers(value),
            })
            .collect(),
        Value::Array(values) => values.iter().flat_map(containers).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn objects_for_kubernetes_run_their_command_under_a_lock() {
    let masters = Masters::start(3);
    let jobs = fs::read_to_string(Path::new(PAGES).join("jobs.md")).unwrap();
    let mut kinds = Vec::new();
    for block in blocks(&jobs, "yaml") {
        for object in serde_saphyr::from_multiple::<Value>(block).unwrap() {
            let field = |name: &str| object[name].as_str().unwrap();
            kinds.push(format!("{} {}", field("apiVersion"), field("kind")));
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
                command.env("QUORLOCK_NODES", masters.urls().join(","));
                let output = command.output().unwrap();
                assert_eq!((words[0], code(output.status)), ("quorlock", 0), "{}", stderr(&output));
            }
        }
    }
    assert_eq!(kinds, ["batch/v1 CronJob", "v1 Secret", "apps/v1 Deployment"]);
}
