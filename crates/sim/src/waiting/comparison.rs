use std::time::Duration;

use super::{Account, Rule, Scene};

/// What shows why a rule is there.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The rule.
    pub rule: Rule,
    /// Where it matters, in words.
    pub case: &'static str,
    /// The same as a scene, in which the rule is kept.
    pub scene: Scene,
    /// What is to be looked at, in words.
    pub shows: fn(&Account) -> String,
}

/// Each rule, where it matters.
pub fn comparisons() -> [Comparison; 6] {
    let scene = Scene {
        seed: 1,
        lasts: Duration::from_secs(60),
        nodes: 5,
        clients: 16,
        cut_off: 0,
        newcomers: 0,
        begin_within_us: 1_000_000,
        queue_node_farther_us: 0,
        hold_us: 200_000..=400_000,
        rest_us: 0..=1000,
        without: None,
    };
    [
        Comparison {
            rule: Rule::NewcomersYield,
            case: "8 who queue and 8 who are new each time, held for 5 to 15 ms, for a minute",
            scene: Scene { newcomers: 8, hold_us: 5000..=15_000, rest_us: 0..=0, ..scene.clone() },
            shows: |account| {
                format!("{} to {} locks, {}", account.most(), account.fewest(), longest_wait(account))
            },
        },
        Comparison {
            rule: Rule::WaitWhereRefused,
            case: "16, of whom 15 do not reach the queue node, held for 2 to 4 s, for 10 minutes",
            scene: Scene {
                cut_off: 15,
                hold_us: 2_000_000..=4_000_000,
                lasts: Duration::from_secs(600),
                ..scene.clone()
            },
            shows: commands,
        },
        Comparison {
            rule: Rule::HearTheQueueNode,
            case: "16 who are new each time, held for 5 to 10 ms, with the queue node 2 ms farther, for a minute",
            scene: Scene {
                newcomers: 16,
                queue_node_farther_us: 2000,
                hold_us: 5000..=10_000,
                rest_us: 0..=40_000,
                ..scene.clone()
            },
            shows: locks,
        },
        Comparison {
            rule: Rule::EarlierNodesFirst,
            case: "16 that begin within a millisecond, held for 200 ms, with the queue node 0.3 ms farther, for a minute",
            scene: Scene {
                begin_within_us: 1000,
                queue_node_farther_us: 300,
                hold_us: 200_000..=200_000,
                rest_us: 0..=100,
                ..scene.clone()
            },
            shows: commands,
        },
        Comparison {
            rule: Rule::AskNoMoreThanItTakes,
            case: "16, held for 0 to 2 ms, for a minute",
            scene: Scene { hold_us: 0..=2000, ..scene.clone() },
            shows: locks,
        },
        Comparison {
            rule: Rule::StayQueued,
            case: "16, held for 200 to 400 ms, for a minute",
            scene,
            shows: |account| {
                format!("{}, {} to {} locks", longest_wait(account), account.most(), account.fewest())
            },
        },
    ]
}

fn locks(account: &Account) -> String {
    format!("{} locks, {:.1} commands each", account.locks(), account.commands_per_lock())
}

fn commands(account: &Account) -> String {
    let (per_lock, per_second) = (account.commands_per_lock(), account.commands_per_second());
    let longest_wait = longest_wait(account);
    format!("{per_lock:.1} commands per lock, {per_second:.1} per second, {longest_wait}")
}

fn longest_wait(account: &Account) -> String {
    format!("longest wait {:.1} s", account.longest_wait().as_secs_f64())
}
