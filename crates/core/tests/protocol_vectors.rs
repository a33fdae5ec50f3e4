//! The test vectors of docs/protocol.md about decisions.
//!
//! They are under `decisions` in docs/protocol/vectors.json. The client crate reads those under
//! `wire`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod vectors;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use quorlock_core::client::{
    Admission, AgreedSet, FenceProposals, InvalidSet, Keys, Mode, NodeError, NodeSet, NodeStatus,
    RoundTrips, SetReport, Spec, Token, Topology, agree, limits,
};
use quorlock_core::quorum::{
    Acquisition, Extension, ExtensionVerdict, FenceAnswer, Loss, Majority, Moment, ReleaseRound,
    ReleaseVerdict, Step, Validity, Vote, drift, order,
};
use quorlock_core::{Fence, Ttl};
use serde_json::{Map, Value};
use vectors::{Fields, Reader, bytes};

const READERS: [(&str, Reader); 16] = [
    ("agreement", agreement),
    ("drift", clock_drift),
    ("extension", extension),
    ("fence_agreement", fence_agreement),
    ("fence_proposal", fence_proposal),
    ("hash", hash),
    ("keys", keys),
    ("limits", other_limits),
    ("node_timeout", node_timeout),
    ("order", order_of_nodes),
    ("release", release),
    ("request", spec),
    ("round_trip", round_trip),
    ("set", set),
    ("token", token),
    ("validity", validity),
];

#[test]
fn decisions_are_those_of_the_vectors() {
    vectors::read_all("decisions", &READERS);
}

impl Fields {
    fn has(&self, name: &str) -> bool {
        self.left.contains_key(name)
    }

    fn index(&mut self, name: &str) -> usize {
        usize::try_from(self.number(name)).unwrap()
    }

    fn us(&mut self, name: &str) -> Duration {
        Duration::from_micros(self.number(name))
    }

    fn us_or_null(&mut self, name: &str) -> Option<Duration> {
        self.take(name).as_u64().map(Duration::from_micros)
    }

    fn ttl(&mut self) -> Ttl {
        Ttl::from_ms(self.number("ttl_ms")).unwrap()
    }

    fn list(&mut self, name: &str) -> Vec<Value> {
        self.take(name).as_array().unwrap().clone()
    }

    fn indexes(&mut self, name: &str) -> Vec<usize> {
        let index = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
        self.list(name).iter().map(index).collect()
    }

    fn expect<T: PartialEq + Debug>(&mut self, name: &str, actual: &T, read: impl Fn(&Value) -> T) {
        let expected = self.take(name);
        assert_eq!(*actual, read(&expected), "{name} of {}", self.text);
    }
}

fn fence(value: u64) -> Fence {
    Fence::new(value).unwrap()
}

fn majority(fields: &mut Fields) -> Majority {
    Majority::of(fields.index("nodes")).unwrap()
}

const NOW: Moment = Moment { boot: Duration::from_secs(7), raw: Duration::from_secs(3) };

// The order of nodes.

/// The hash is not public. The order shows it: the identity with the larger hash comes first.
fn hash(mut case: Fields) {
    let (identity, key) = (bytes(&case.take("identity")), bytes(&case.take("key")));
    case.expect("hash", &specified_hash(&identity, &key), |hash| {
        u64::from_str_radix(hash.as_str().unwrap(), 16).unwrap()
    });
    for other in [&b"eu-locks 7"[..], b"x", b""].into_iter().filter(|other| *other != identity) {
        let first = usize::from(specified_hash(other, &key) > specified_hash(&identity, &key));
        assert_eq!(order(&key, [&identity[..], other])[0], first, "{}", case.text);
    }
}

/// The hash as docs/protocol.md specifies it.
fn specified_hash(identity: &[u8], key: &[u8]) -> u64 {
    let mut input = (identity.len() as u64).to_le_bytes().to_vec();
    input.extend_from_slice(identity);
    input.extend_from_slice(key);
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211);
    let mut hash = input.iter().fold(14_695_981_039_346_656_037, fnv);
    for factor in [0xff51_afd7_ed55_8ccd_u64, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ (hash >> 33)).wrapping_mul(factor);
    }
    hash ^ (hash >> 33)
}

fn order_of_nodes(mut case: Fields) {
    let key = bytes(&case.take("key"));
    let node = |identity: Value| NodeStatus {
        link: Ok(1),
        admission: Ok(()),
        incarnation: 0,
        identity: identity.as_str().map(Into::into),
    };
    let topology = Topology::new(case.list("identities").into_iter().map(node).collect());
    let expected = case.indexes("order");
    assert_eq!(topology.order(&key)[..], expected[..], "{}", case.text);
}

fn keys(mut case: Fields) {
    let given: Keys = case.list("given").iter().map(bytes).collect();
    let sent: Vec<_> = given.iter().map(<[u8]>::to_vec).collect();
    case.expect("sent", &sent, |sent| sent.as_array().unwrap().iter().map(bytes).collect());
}

fn token(mut case: Fields) {
    let token = Token::of_bits(case.text("bits").parse().unwrap());
    case.expect("token", &token.as_str().to_owned(), |token| token.as_str().unwrap().to_owned());
}

// Times.

fn clock_drift(mut case: Fields) {
    let drift = drift(case.us("measured_us"));
    case.expect("drift_us", &Some(drift), |us| us.as_u64().map(Duration::from_micros));
}

fn validity(mut case: Fields) {
    let (ttl, waited) = (case.ttl(), case.us("waited_us"));
    let now = Moment {
        boot: NOW.boot + case.us("elapsed_boot_us"),
        raw: NOW.raw + case.us("elapsed_raw_us"),
    };
    let validity = Validity::after_wait(NOW, waited, ttl);
    let left = validity.and_then(|validity| validity.remaining(now));
    case.expect("validity_us", &left, |us| us.as_u64().map(Duration::from_micros));
    if waited.is_zero() {
        assert_eq!(Validity::new(NOW, ttl), validity, "a lock without a wait");
    }
}

fn node_timeout(mut case: Fields) {
    let (round_trip, ttl) = (case.us("round_trip_us"), case.ttl());
    assert_eq!(limits::node_timeout(round_trip, ttl), case.us("node_timeout_us"), "{}", case.text);
    assert_eq!(
        limits::ttl_needed(round_trip, ttl),
        case.us_or_null("ttl_needed_us"),
        "{}",
        case.text
    );
}

fn other_limits(mut case: Fields) {
    let (round_trip, node_timeout) = (case.us("round_trip_us"), case.us("node_timeout_us"));
    assert_eq!(limits::liveness(round_trip), case.us("liveness_us"), "{}", case.text);
    assert_eq!(limits::silence(round_trip), case.us("silence_us"), "{}", case.text);
    assert_eq!(limits::settle(round_trip), case.us("settle_us"), "{}", case.text);
    assert_eq!(limits::patience(round_trip, node_timeout), case.us("patience_us"), "{}", case.text);
}

fn round_trip(mut case: Fields) {
    let estimates = RoundTrips::new(1);
    for event in case.list("events") {
        let mut event = Fields::of(&event);
        if event.has("timeout") {
            event.take("timeout");
            estimates.timed_out(0);
        } else {
            estimates.sample(0, event.us("sample_us"));
        }
        assert_eq!(estimates.of(0), event.us("estimate_us"), "{} of {}", event.text, case.text);
    }
}

fn spec(mut case: Fields) {
    let spec = Spec {
        keys: Keys::from_iter(["k"]),
        ttl: case.ttl(),
        mode: Mode::Exclusive,
        any: None,
        min_validity: case.us("min_validity_us"),
        node_timeout: case.us_or_null("node_timeout_us"),
        max_hold: None,
        owner: None,
    };
    case.expect("valid", &spec.check().is_ok(), |valid| valid.as_bool().unwrap());
}

// Fences.

fn fence_proposal(mut case: Fields) {
    let (proposals, mut proposed) = (FenceProposals::default(), Fence::ZERO);
    case.text("name");
    for event in case.list("events") {
        let mut event = Fields::of(&event);
        if event.has("agreed") {
            proposals.learn(proposed, fence(event.number("agreed")));
        } else {
            proposed = proposals.propose(event.number("wall_us"));
            assert_eq!(proposed.get(), event.number("proposed"), "{} of {}", event.text, case.text);
        }
    }
}

fn fence_agreement(mut case: Fields) {
    case.text("name");
    let (majority, ttl) = (majority(&mut case), Ttl::from_ms(10_000).unwrap());
    let (mut stored, mut answered) = (BTreeMap::new(), BTreeSet::new());
    let mut attempt = if case.has("granted_after_wait") {
        let mut granted = Fields::of(&case.take("granted_after_wait"));
        let (node, fence) = (granted.index("node"), fence(granted.number("fence")));
        stored.insert(node, fence);
        answered.insert(node);
        let validity = Validity::after_wait(NOW, Duration::ZERO, ttl);
        Acquisition::after_wait(majority, node, fence, validity, Duration::ZERO)
    } else {
        Acquisition::new(majority, NOW, ttl, Duration::ZERO)
    };
    for event in case.list("events") {
        let mut event = Fields::of(&event);
        let (node, answer) = (event.index("node"), event.text("answer"));
        match &answer[..] {
            "granted" => {
                let granted = fence(event.number("fence"));
                if !answered.contains(&node) {
                    stored.insert(node, granted);
                }
                attempt.vote(node, Vote::Granted(granted), NOW);
            }
            "refused" => attempt.vote(node, Vote::Refused, NOW),
            "silent" => attempt.vote(node, Vote::Silent, NOW),
            "stored" => {
                let now_stored = fence(event.number("fence"));
                stored.insert(node, now_stored);
                attempt.fence_answer(node, FenceAnswer::Stored(now_stored), NOW);
            }
            "unacceptable" => attempt.fence_answer(node, FenceAnswer::Unacceptable, NOW),
            "failed" => attempt.fence_answer(node, FenceAnswer::Failed, NOW),
            other => panic!("{other}"),
        }
        answered.insert(node);
        let then = what_follows(&mut attempt, &stored);
        assert_eq!(then, event.take("then"), "after {} of {}", event.text, case.text);
    }
}

/// The fence and the nodes that are asked to store it, or the result of the attempt.
fn what_follows(attempt: &mut Acquisition, stored: &BTreeMap<usize, Fence>) -> Value {
    let mut then = Map::new();
    while let Some(step) = attempt.poll() {
        match step {
            Step::StoreFence { node, fence } => {
                let before = then.insert("fence".into(), fence.get().into());
                assert!(before.is_none_or(|before| before == fence.get()));
                let nodes = then.entry("store").or_insert_with(|| Value::Array(Vec::new()));
                nodes.as_array_mut().unwrap().push(node.into());
            }
            Step::Won(win) => {
                let counted = stored.iter().filter(|(_, fence)| **fence == win.fence);
                then.insert("won".into(), win.fence.get().into());
                then.insert("counted".into(), counted.map(|(node, _)| *node).collect());
            }
            Step::Lost(loss) => {
                let why = match loss {
                    Loss::Held => "held",
                    Loss::NoQuorum => "no quorum",
                    Loss::TooLate => "too late",
                };
                then.insert("lost".into(), why.into());
            }
        }
    }
    Value::Object(then)
}

// Extending and releasing.

fn answers(case: &mut Fields) -> Vec<(usize, Option<bool>)> {
    let read = |answer: &Value| {
        let mut answer = Fields::of(answer);
        let held = match &answer.text("answer")[..] {
            "held" => Some(true),
            "not held" => Some(false),
            "silent" => None,
            other => panic!("{other}"),
        };
        (answer.index("node"), held)
    };
    case.list("answers").iter().map(read).collect()
}

fn extension(mut case: Fields) {
    case.text("name");
    let ttl = Ttl::from_ms(10_000).unwrap();
    let known = case.indexes("known_to_hold");
    let missing = case.indexes("known_to_miss");
    let mut round =
        Extension::new(majority(&mut case), NOW, ttl).known_to_hold(known).known_to_miss(missing);
    let mut verdict = None;
    for (node, held) in answers(&mut case) {
        verdict = verdict.or(round.answer(node, held, NOW));
    }
    let word = match verdict.or_else(|| round.expire()).unwrap() {
        ExtensionVerdict::Extended(_) => "extended",
        ExtensionVerdict::Lost => "lost",
        ExtensionVerdict::Uncertain => "uncertain",
    };
    assert_eq!(word, case.text("verdict"), "{}", case.text);
    let repaired: Vec<_> = std::iter::from_fn(|| round.next_repair()).collect();
    assert_eq!(repaired, case.indexes("repair"), "{}", case.text);
}

fn release(mut case: Fields) {
    case.text("name");
    let mut release = ReleaseRound::new(majority(&mut case));
    let mut verdict = None;
    for (node, held) in answers(&mut case) {
        verdict = verdict.or(release.answer(node, held));
    }
    let word = match verdict.unwrap_or_else(|| release.expire()) {
        ReleaseVerdict::Released => "released",
        ReleaseVerdict::AlreadyOver => "already over",
        ReleaseVerdict::Unconfirmed => "unconfirmed",
    };
    assert_eq!(word, case.text("verdict"), "{}", case.text);
}

// Sets of nodes.

fn set(mut case: Fields) {
    let (field, found) = match case.text("text").parse::<NodeSet>() {
        Ok(set) => ("canonical", set.to_string()),
        Err(invalid) => ("invalid", why(&invalid).to_owned()),
    };
    assert!(case.has(field), "{found}: {}", case.text);
    assert_eq!(found, case.text(field), "{}", case.text);
}

fn why(invalid: &InvalidSet) -> &'static str {
    match invalid {
        InvalidSet::WordCount { .. } => "word count",
        InvalidSet::Name { .. } => "name",
        InvalidSet::Id { .. } => "id",
        InvalidSet::Member { .. } => "member",
        InvalidSet::RepeatedMember { .. } => "repeated member",
        InvalidSet::TooManyMembers { .. } => "too many members",
        InvalidSet::SeveralChanges => "several changes",
        InvalidSet::NotOneMember { .. } => "not one member",
        InvalidSet::NotAMember { .. } => "not a member",
    }
}

fn agreement(mut case: Fields) {
    let expected = case.take("expected");
    let report = |report: &Value| match report.as_str() {
        None => SetReport::Unheard,
        Some("") => SetReport::Unset,
        Some(set) => SetReport::Set(set.parse().unwrap()),
    };
    let reports: Vec<_> = case.list("reports").iter().map(report).collect();
    let agreement = agree(expected.as_str(), &reports);
    let agreed = agreement.agreed.map(|agreed| match agreed {
        AgreedSet::Unset => "unset".to_owned(),
        AgreedSet::Set { name, members } => format!("{name} {members}"),
    });
    case.expect("agreed", &agreed, |agreed| agreed.as_str().map(str::to_owned));
    let admission = |admission: &Admission| match admission {
        Admission::Admitted => "yes",
        Admission::Refused(reason) => {
            assert!(NodeError::NotAdmitted { reason: reason.to_string() }.is_permanent());
            "no"
        }
        Admission::Unknown => "unknown",
    };
    let admitted: Vec<_> = agreement.nodes.iter().map(admission).map(str::to_owned).collect();
    let words = |words: &Value| {
        let word = |word: &Value| word.as_str().unwrap().to_owned();
        words.as_array().unwrap().iter().map(word).collect()
    };
    case.expect("admitted", &admitted, words);
}
