//! Fences over a quorum: real nodes and a real `Acquisition`, with answers in any order.

use std::collections::VecDeque;
use std::time::Duration;

use crate::support::{MAX_TTL_MS, Server};
use proptest::prelude::*;
use quorlock_core::client::FenceProposals;
use quorlock_core::node::{CommandError, FenceError, Reply};
use quorlock_core::quorum::{
    Acquisition, FenceAnswer, Loss, Majority, Moment, Step, Validity, Win,
};
use quorlock_core::{Fence, InvalidFence, Ttl};

const KEY: &[u8] = b"k";
const TOKEN: &[u8] = b"t";
const TTL_MS: u64 = 10_000;
const SECOND_MS: u64 = 1000;

/// The result of an attempt, and how many times the attempt asked a node to store a fence.
struct Outcome {
    verdict: Result<Win, Loss>,
    fence_requests: usize,
}

/// Runs one attempt whose requests reach the nodes in `order`. The answers arrive at once.
fn attempt(servers: &mut [Server], order: &[usize], proposal: Fence) -> Outcome {
    let majority = Majority::of(servers.len()).unwrap();
    let now = Moment::default();
    let validity = Validity::new(now, Ttl::from_ms(TTL_MS).unwrap());
    let mut acquisition = Acquisition::lasting(majority, validity, Duration::ZERO);
    let mut fence_requests = 0;
    let mut to_acquire: VecDeque<usize> = order.iter().copied().collect();
    loop {
        while let Some(step) = acquisition.poll() {
            match step {
                Step::Won(win) => return Outcome { verdict: Ok(win), fence_requests },
                Step::Lost(loss) => return Outcome { verdict: Err(loss), fence_requests },
                Step::StoreFence { node, fence } => {
                    fence_requests += 1;
                    let answer =
                        match servers[node].extend_with(&[KEY], TOKEN, TTL_MS, Some(fence), None) {
                            Ok(Reply::Extended(fence)) => FenceAnswer::Stored(fence),
                            Err(CommandError::BadFence(FenceError::TooFarAhead { .. })) => {
                                FenceAnswer::Unacceptable
                            }
                            _ => FenceAnswer::Failed,
                        };
                    acquisition.fence_answer(node, answer, now);
                }
            }
        }
        match to_acquire.pop_front() {
            Some(node) => {
                let vote = match servers[node].ask(&[KEY], TOKEN, TTL_MS, proposal.get(), 0) {
                    Ok(Reply::Granted(fence)) => Some(fence),
                    _ => None,
                };
                acquisition.vote(node, vote, now);
            }
            None => acquisition.expire(now),
        }
    }
}

fn release(servers: &mut [Server]) {
    for server in servers {
        server.release(KEY, TOKEN);
    }
}

fn pass_ms(servers: &mut [Server], ms: u64) {
    for server in servers {
        server.turn_after_ms(ms);
    }
}

/// Nodes that have been up for a while, and whose clocks are equal.
fn nodes_with_equal_clocks(n: usize) -> Vec<Server> {
    let mut servers: Vec<_> = (0..n).map(|_| Server::new()).collect();
    // The fence counters start ahead by `max_clock_skew_ms`: the clocks catch up with them here.
    pass_ms(&mut servers, 120 * SECOND_MS);
    servers
}

#[test]
fn printed_fence_is_parsed_and_invalid_text_is_refused() {
    for fence in [Fence::new(1).unwrap(), Fence::MAX] {
        assert_eq!(fence.to_string().parse(), Ok(fence));
    }
    for text in ["", "0", "-1", "9007199254740992", "7 ", "0x7"] {
        assert_eq!(text.parse::<Fence>(), Err(InvalidFence), "{text}");
    }
}

#[test]
fn client_whose_clock_was_corrected_agrees_in_one_round() {
    let mut servers = nodes_with_equal_clocks(3);
    servers[1].wall_ms += 1;
    let proposals = FenceProposals::default();
    let wrong = proposals.propose(servers[0].now().wall_us + 90 * SECOND_MS * 1000);
    let Outcome { verdict, fence_requests } = attempt(&mut servers, &[0, 1, 2], wrong);
    assert!(fence_requests > 0, "no node accepted the proposal, so each granted its own fence");
    proposals.learn(wrong, verdict.unwrap().fence);
    release(&mut servers);
    pass_ms(&mut servers, 2);
    let proposal = proposals.propose(servers[0].now().wall_us);
    assert_eq!(attempt(&mut servers, &[0, 1, 2], proposal).fence_requests, 0);
}

#[test]
fn fences_grow_while_one_node_after_the_other_restarts_and_abstains() {
    let mut servers = nodes_with_equal_clocks(3);
    let mut last = Fence::ZERO;
    for restarted in [0, 1, 2, 0, 1, 2] {
        servers[restarted].restart(MAX_TTL_MS);
        for _ in 0..70 {
            pass_ms(&mut servers, SECOND_MS);
            let proposal = Fence::of_wall_us(servers[0].now().wall_us);
            // The restarted node answers first, so that each majority contains it once it grants.
            let order = [restarted, (restarted + 1) % 3, (restarted + 2) % 3];
            let win = attempt(&mut servers, &order, proposal).verdict.unwrap();
            assert!(win.fence > last);
            last = win.fence;
            release(&mut servers);
        }
    }
}

/// An event between two locks.
#[derive(Clone, Debug)]
enum Between {
    Pass {
        ms: u64,
    },
    /// Only for nodes that never restart.
    MoveWallClock {
        node: usize,
        ms: i64,
    },
    /// Only for nodes whose clock is never stepped.
    Restart {
        node: usize,
    },
}

fn between() -> impl Strategy<Value = Between> {
    prop_oneof![
        2 => (1..100_000_u64).prop_map(|ms| Between::Pass { ms }),
        2 => (0..2_usize, -7_200_000..7_200_000_i64).prop_map(|(node, ms)| Between::MoveWallClock { node, ms }),
        2 => (2..5_usize).prop_map(|node| Between::Restart { node }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Random reachable nodes, clock errors of nodes and clients, and restarts between locks.
    #[test]
    fn every_fence_is_larger_than_the_one_before(
        rounds in prop::collection::vec(
            (between(), Just(vec![0, 1, 2, 3, 4]).prop_shuffle(), 3..=5_usize, -7_200_000..7_200_000_i64, any::<bool>()),
            1..40,
        ),
        offsets_ms in prop::collection::vec(-90_000..90_000_i64, 5),
    ) {
        let mut servers = nodes_with_equal_clocks(5);
        for (server, offset_ms) in servers.iter_mut().zip(offsets_ms) {
            server.wall_ms = server.wall_ms.saturating_add_signed(offset_ms);
            server.restart(0);
        }
        let mut last = Fence::ZERO;
        for (between, order, reachable, client_offset_ms, released) in rounds {
            match between {
                Between::Pass { ms } => pass_ms(&mut servers, ms),
                Between::MoveWallClock { node, ms } => servers[node].wall_ms = servers[node].wall_ms.saturating_add_signed(ms),
                // A start takes at least 1 ms.
                Between::Restart { node } => {
                    pass_ms(&mut servers, 1);
                    servers[node].restart(0);
                }
            }
            let proposal = Fence::of_wall_us(servers[4].now().wall_us.saturating_add_signed(client_offset_ms * 1000));
            if let Ok(win) = attempt(&mut servers, &order[..reachable], proposal).verdict {
                prop_assert!(win.fence > last, "{:?} after {last}", win.fence);
                last = win.fence;
            }
            if !released {
                // The lock ends by its deadline.
                pass_ms(&mut servers, TTL_MS);
            }
            release(&mut servers);
        }
    }
}
