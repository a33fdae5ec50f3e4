//! The test vectors of docs/protocol.md about decisions.
//!
//! They are under `decisions` in docs/protocol/vectors.json. The client crate reads those under
//! `wire`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::process;
use std::time::Duration;

use crate::support::scripted::{self, ScriptedCall, start};
use crate::vectors::{Fields, Reader, bytes};
use quorlock_core::client::{
    Action, Command, FenceProposals, Hold, Keys, Mode, OutgoingRequest, Reason, Request, RequestId,
    Response, RoundTrips, Spec, Token, limits,
};
use quorlock_core::node_set::{Admission, AgreedSet, InvalidSet, NodeSet, SetReport, agree};
use quorlock_core::quorum::{
    Acquisition, Extension, ExtensionVerdict, FenceAnswer, KnownBefore, Loss, Majority, Moment,
    ReleaseRound, ReleaseVerdict, Step, Validity, drift,
};
use quorlock_core::{Fence, NodeError, Ttl};
use serde_json::{Map, Value};

const READERS: [(&str, Reader); 17] = [
    ("agreement", agreement),
    ("drift", clock_drift),
    ("extension", extension),
    ("fence_agreement", fence_agreement),
    ("fence_proposal", fence_proposal),
    ("keys", keys),
    ("late_grant", late_grant),
    ("limits", other_limits),
    ("node_timeout", node_timeout),
    ("release", release),
    ("request", spec),
    ("round_trip", round_trip),
    ("set", set),
    ("token", token),
    ("try", one_try),
    ("validity", validity),
    ("wait", one_wait),
];

#[test]
fn decisions_are_those_of_the_vectors() {
    crate::vectors::read_all("decisions", &READERS);
}

#[test]
fn python_of_the_page_passes_the_vectors() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/page.py");
    let output = process::Command::new("python3").arg(script).arg(root).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
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
    let round_trip = case.us("round_trip_us");
    let all = [
        ("silence_us", limits::silence(round_trip)),
        ("patience_us", limits::patience(round_trip)),
        ("tie_us", limits::tie(round_trip)),
    ];
    for (name, limit) in all {
        assert_eq!(limit, case.us(name), "{name} of {}", case.text);
    }
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
        } else if event.has("refused") {
            let number = Fence::new(event.number("refused")).unwrap_or_default();
            proposals.learn_refusal(number, event.number("wall_us"));
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
    let mut attempt = Acquisition::lasting(majority, Validity::new(NOW, ttl), Duration::ZERO);
    for event in case.list("events") {
        let mut event = Fields::of(&event);
        let (node, answer) = (event.index("node"), event.text("answer"));
        match &answer[..] {
            "granted" => {
                let granted = fence(event.number("fence"));
                if !answered.contains(&node) {
                    stored.insert(node, granted);
                }
                attempt.vote(node, Some(granted), NOW);
            }
            "refused" | "silent" => attempt.vote(node, None, NOW),
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
                    Loss::NoQuorum => "no quorum",
                    Loss::TooLate => "too late",
                };
                then.insert("lost".into(), why.into());
            }
        }
    }
    Value::Object(then)
}

// Calls.

/// A call of a client that is connected to all of its nodes.
fn call(nodes: usize, random: u64, wait: Option<Duration>) -> ScriptedCall {
    let spec = scripted::spec(Keys::from_iter(["k"]), 10_000);
    ScriptedCall::begin(scripted::Client::with_pauses(nodes, random), spec, wait)
}

/// What a node that answers each request with this word answers; `None` if it does not answer.
fn answer(word: &str, request: &Request) -> Option<Response> {
    let held = |is_older| Some(Response::Held { number: fence(7), is_older });
    let grant = |fence| Some(Response::Granted { fence, waited: Duration::ZERO, key: None });
    match (word, request.command) {
        ("granted", Command::Acquire { fence }) => grant(fence),
        ("granted", Command::Extend { .. }) => grant(fence(8)),
        ("granted", Command::Yield) => Some(Response::Kept),
        ("older", _) => held(true),
        ("younger", _) => held(false),
        ("abstains", _) => Some(Response::Failed(NodeError::Abstains { reason: "7 start".into() })),
        ("failed", _) => Some(Response::Failed(NodeError::ErrorReply("OOM".into()))),
        ("silent", _) => None,
        (word, command) => panic!("{word}: {command:?}"),
    }
}

/// The call of a client that does not wait. Each node gives the same answer to each request. The
/// nodes answer at once, in the order of the vector, and a WAIT at its end.
fn one_try(mut case: Fields) {
    case.text("name");
    let mut call = call(case.index("nodes"), 0, Some(Duration::ZERO));
    let read = |answer: &Value| {
        let mut answer = Fields::of(answer);
        (answer.index("node"), answer.text("answer"))
    };
    let words: Vec<_> = case.list("answers").iter().map(read).collect();
    let mut in_flight: Vec<(Duration, usize, RequestId, Response)> = Vec::new();
    let mut stands = false;
    while call.outcome.is_none() {
        for OutgoingRequest { id, request, .. } in std::mem::take(&mut call.sent) {
            let wait = match request.command {
                Command::Wait { wait, .. } => Some(wait),
                _ => None,
            };
            stands |= wait.is_some();
            if let Some(place) = words.iter().position(|(node, _)| *node == id.node)
                && let Some(response) = answer(&words[place].1, &request)
            {
                in_flight.push((call.at + wait.unwrap_or_default(), place, id, response));
            }
        }
        let timeout = call.call.poll_timeout().map(|at| start().until(at));
        in_flight.sort_by_key(|(at, place, ..)| (*at, *place));
        match in_flight.first().map(|(at, ..)| *at) {
            Some(at) if timeout.is_none_or(|timeout| at <= timeout) => {
                call.at = call.at.max(at);
                let (_, _, id, response) = in_flight.remove(0);
                call.answer_to(id, &response);
            }
            _ => call.fire_timer(),
        }
    }
    let result = match call.failed() {
        None => "granted",
        Some(Reason::Held) => "held",
        Some(Reason::NoQuorum) => "no quorum",
        Some(other) => panic!("{other:?}: {}", case.text),
    };
    case.expect("result", &result.to_owned(), |it| it.as_str().unwrap().to_owned());
    case.expect("stands_in_line", &stands, |stands| stands.as_bool().unwrap());
}

/// The time of the first WAIT of a call whose only node refuses it.
fn one_wait(mut case: Fields) {
    let mut call = call(1, case.number("random_us"), case.us_or_null("left_us"));
    call.answer(0, &Response::Held { number: fence(7), is_older: true });
    let Command::Wait { wait, .. } = call.take_sent(0).request.command else {
        panic!("{}", case.text)
    };
    case.expect("wait_ms", &wait.as_millis(), |wait| u128::from(wait.as_u64().unwrap()));
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
    let before = |node| match node {
        _ if known.contains(&node) => KnownBefore::Held,
        _ if missing.contains(&node) => KnownBefore::Missing,
        _ => KnownBefore::Nothing,
    };
    let mut round = Extension::new(majority(&mut case), NOW, ttl, before);
    let mut verdict = None;
    for (node, held) in answers(&mut case) {
        verdict = verdict.or(round.answer(node, held, NOW));
    }
    let word = verdict_word(verdict.or_else(|| round.expire()).unwrap());
    assert_eq!(word, case.text("verdict"), "{}", case.text);
    let repaired: Vec<_> = std::iter::from_fn(|| round.next_repair()).collect();
    assert_eq!(repaired, case.indexes("repair"), "{}", case.text);
}

fn verdict_word(verdict: ExtensionVerdict) -> &'static str {
    match verdict {
        ExtensionVerdict::Extended(_) => "extended",
        ExtensionVerdict::Lost => "lost",
        ExtensionVerdict::Uncertain => "uncertain",
    }
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

/// Extensions of a lock that some nodes granted after the time limit of a node.
fn late_grant(mut case: Fields) {
    case.text("name");
    let mut call = call(case.index("nodes"), 0, Some(Duration::ZERO));
    let sent: Vec<_> = call.sent.iter().map(|sent| sent.id).collect();
    let granted = scripted::granted();
    for node in case.indexes("granted") {
        call.answer_to(sent[node], &granted);
    }
    let mut hold = call.hold();
    call.at = limits::node_timeout(Duration::ZERO, hold.spec().ttl) + Duration::from_micros(1);
    for node in case.indexes("granted_late") {
        hold.handle_response(sent[node], &granted, &call.ctx());
    }
    for round in case.list("rounds") {
        let mut round = Fields::of(&round);
        let number = hold.extend(&call.ctx()).unwrap();
        let mut decided = Vec::new();
        let mut verdicts = |hold: &mut Hold| {
            while let Some(action) = hold.poll() {
                if let Action::Decided { round, verdict } = action
                    && round == number
                {
                    decided.push(verdict);
                }
            }
        };
        for (node, held) in answers(&mut round) {
            let response = match held {
                Some(true) => granted.clone(),
                Some(false) => Response::No,
                None => continue,
            };
            let id = RequestId { round: number, node };
            hold.handle_response(id, &response, &call.ctx());
            verdicts(&mut hold);
        }
        if let Some(at) = hold.poll_timeout() {
            call.at = start().until(at);
            hold.handle_timeout(&call.ctx());
        }
        verdicts(&mut hold);
        let last = verdict_word(*decided.last().unwrap());
        assert_eq!(last, round.text("verdict"), "{}", case.text);
    }
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
