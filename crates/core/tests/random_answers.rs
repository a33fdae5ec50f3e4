//! Calls whose nodes answer at random: each call ends in time, and leaves no token behind.

use std::collections::HashSet;
use std::time::Duration;

use crate::support::scripted::{ScriptedCall, Sent, TTL, down, held, ms, start, ticket};
use proptest::prelude::*;
use quorlock_core::client::{
    Acquire, Command, HoldAction, NodeError, Outcome, Release, Response, limits,
};

/// An answer of a node, to whatever it was asked.
fn response(command: Command, kind: u8, number: u8) -> Response {
    let fence = ticket(u64::from(number) % 3);
    let waited = ms(u64::from(number) * 5);
    match (command, kind) {
        (_, 0) => down(),
        (Command::Acquire { .. } | Command::Wait { .. } | Command::AcquireAny { .. }, 1) => {
            Response::Failed(NodeError::Abstains { reason: "it was restarted".into() })
        }
        (Command::Acquire { .. } | Command::AcquireAny { .. } | Command::Wait { .. }, 2 | 3) => {
            held(number.into(), kind == 2)
        }
        (Command::Acquire { .. }, _) => Response::Fence(fence),
        (Command::AcquireAny { .. }, _) => {
            Response::FenceAndKey { fence, waited: Duration::ZERO, key: usize::from(number % 2) }
        }
        (Command::Wait { .. }, 5..) => Response::FenceAfterWait { fence, waited },
        (Command::Extend { .. }, 1) => {
            Response::Failed(NodeError::ClockBehind { reason: "too far ahead".into() })
        }
        (Command::Extend { fence: Some(fence) }, 2..) => Response::Fence(fence),
        (Command::Yield, 1 | 2) | (Command::Release, 2..) => Response::Yes,
        (Command::Yield, 3..) => Response::Kept,
        _ => Response::No,
    }
}

fn response_to(sent: &Sent, kind: u8, number: u8) -> Response {
    match response(sent.request.command, kind, number) {
        Response::FenceAfterWait { fence, waited } if sent.spec.any.is_some() => {
            let key = usize::from(number) % sent.spec.keys.len();
            Response::FenceAndKey { fence, waited, key }
        }
        Response::FenceAndKey { fence, waited, key } => {
            Response::FenceAndKey { fence, waited, key: key % sent.spec.keys.len() }
        }
        other => other,
    }
}

/// Fires the timers that are due until `until`. Fails if a timer stays due.
fn pass(call: &mut ScriptedCall, until: Duration) {
    for _ in 0..1000 {
        let due = call.call.poll_timeout().map(|due| start().until(due));
        match due.filter(|due| *due <= until && call.outcome.is_none()) {
            Some(due) => {
                call.at = call.at.max(due);
                call.drive(Acquire::handle_timeout);
            }
            None if call.outcome.is_some() => return,
            None => {
                call.at = call.at.max(until);
                return;
            }
        }
    }
    panic!("a timer is always due: {:?}", call.call);
}

#[derive(Clone, Debug)]
struct Step {
    after_ms: u64,
    nth: prop::sample::Index,
    kind: u8,
    number: u8,
}

fn step() -> impl Strategy<Value = Step> {
    let after_ms = prop_oneof![4 => 0..4_u64, 2 => 4..80_u64, 1 => 80..700_u64];
    (after_ms, any::<prop::sample::Index>(), 0..8_u8, any::<u8>())
        .prop_map(|(after_ms, nth, kind, number)| Step { after_ms, nth, kind, number })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn call_ends_in_time_and_releases_every_token_but_that_of_its_lock(
        keys in 1..4_usize,
        wait_ms in prop_oneof![Just(0_u64), Just(30), Just(400), Just(3000)],
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let wait = Some(ms(wait_ms));
        let mut call =
            if keys > 1 { ScriptedCall::for_any(keys, wait) } else { ScriptedCall::new(wait) };
        let mut tokens = HashSet::new();
        let mut remember = |call: &ScriptedCall| {
            tokens.extend(call.sent.iter().map(|sent| sent.request.token));
        };
        remember(&call);
        for Step { after_ms, nth, kind, number } in steps {
            let at = call.at + ms(after_ms);
            pass(&mut call, at);
            remember(&call);
            if call.outcome.is_some() || call.sent.is_empty() {
                break;
            }
            let sent = call.sent.remove(nth.index(call.sent.len()));
            call.answer_to(sent.id, &response_to(&sent, kind, number));
            remember(&call);
        }
        while call.outcome.is_none() {
            prop_assert!(call.at < ms(10_000), "{:?}", call.call);
            let at = call.at + ms(5);
            pass(&mut call, at);
            remember(&call);
        }
        let longest = ms(wait_ms).max(TTL / limits::NODE_TIMEOUT_PER_TTL);
        prop_assert!(call.at <= longest + limits::CALL_GRACE + ms(5), "{:?}", call.at);
        let released: HashSet<_> = call.releases.iter().map(Release::token).collect();
        let own = match &call.outcome {
            Some(Outcome::Acquired(hold)) => Some(hold.token()),
            _ => None,
        };
        tokens.retain(|token| Some(*token) != own && !released.contains(token));
        prop_assert_eq!(tokens.len(), 0);
        if own.is_none() {
            return Ok(());
        }
        let mut hold = call.hold();
        hold.renew();
        if let Some(front_at) = hold.front_at() {
            call.at = call.at.max(start().until(front_at));
            hold.stand_in_front(&call.ctx());
        }
        prop_assert_eq!(hold.front_at(), None);
        let (_, release) = hold.release(&call.ctx());
        prop_assert_eq!(Some(release.token()), own);
        while let Some(action) = hold.poll() {
            if let HoldAction::Wait { id } = action {
                prop_assert_eq!(hold.handle_wait_connection(id, &call.ctx()), None);
            }
        }
    }
}
