//! The commands of the Kubernetes objects in docs/operations. `make test-dist` runs the other
//! commands of these pages.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use common::{LONG_NODE_TIMEOUT, blocks, code, quorlock, stderr};
use quorlock_testkit::Masters;
use serde_json::Value;

const JOBS: &str = include_str!("../../../docs/operations/jobs.md");

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
    let mut kinds = Vec::new();
    for block in blocks(JOBS, "yaml") {
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
