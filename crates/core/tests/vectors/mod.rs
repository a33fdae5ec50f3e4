//! Reads docs/protocol/vectors.json, for the tests of the core and of the client.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Reads one vector of its kind.
pub(super) type Reader = fn(Fields);

/// Passes each vector of a group to the reader of its kind. Fails if a kind has no reader or no
/// vector.
pub(super) fn read_all(group: &str, readers: &[(&str, Reader)]) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol/vectors.json");
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let groups: Vec<_> = vectors.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(groups, ["about", "decisions", "wire"], "tests read these groups, and no others");
    let kinds = vectors[group].as_object().unwrap();
    let found: BTreeSet<_> = kinds.keys().map(String::as_str).collect();
    assert_eq!(found, readers.iter().map(|(kind, _)| *kind).collect(), "every kind is read");
    for (kind, read) in readers {
        let cases = kinds[*kind].as_array().unwrap();
        assert!(!cases.is_empty(), "{kind} has no vector");
        for case in cases {
            read(Fields::of(case));
        }
    }
}

/// The fields of one vector. A reader must take all of them, so that no field is ignored.
pub(super) struct Fields {
    /// The whole vector as JSON, for error messages.
    pub(super) text: String,
    /// The fields that the reader has not taken yet.
    pub(super) left: Map<String, Value>,
}

impl Fields {
    pub(super) fn of(value: &Value) -> Self {
        Self { text: value.to_string(), left: value.as_object().unwrap().clone() }
    }

    pub(super) fn take(&mut self, name: &str) -> Value {
        self.left.remove(name).unwrap_or_else(|| panic!("no {name} in {}", self.text))
    }

    pub(super) fn number(&mut self, name: &str) -> u64 {
        self.take(name).as_u64().unwrap()
    }

    pub(super) fn text(&mut self, name: &str) -> String {
        self.take(name).as_str().unwrap().to_owned()
    }
}

impl Drop for Fields {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.left.is_empty(), "no test reads {:?} of {}", self.left, self.text);
        }
    }
}

/// Returns the bytes of a value: the UTF-8 bytes of a JSON string, or the bytes that
/// `{"hex": "…"}` spells in hexadecimal digits.
pub(super) fn bytes(value: &Value) -> Vec<u8> {
    if let Some(text) = value.as_str() {
        return text.as_bytes().to_vec();
    }
    let hex = value["hex"].as_str().unwrap();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}
