//! Runs the claims of a table: on the model alone, whose clocks stand still between the steps, and
//! on a real server, which the model accompanies.

use quorlock_core::node::{BlockedId, Monotonic, Now};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::command::{Command, Place, Step, Wrap};
use super::episode::{CLIENTS, Config, Episode, GUARD_US, Outcome, Trouble, Waiting, answer};
use super::model::{Expected, Flavor, Model, places};
use super::table::{
    self, Claim, Event, Fences, Line, figures_differ, is_expected, key_differs, proposal,
};

/// An answer to a client, and the command that it answers.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) client: usize,
    pub(super) command: Command,
    pub(super) expected: Expected,
}

/// How long a real server may take for the steps of a claim, in milliseconds.
const LATE_MS: u64 = 3000;
/// How often a claim is tried on a busy machine before it counts as undecided.
const TRIES: usize = 20;

/// What takes the steps of a claim.
trait Target {
    /// Largest delay of a step, in milliseconds.
    const LATE_MS: u64;

    fn now(&self) -> Now;
    fn model(&self) -> &Model;
    /// The last fence of a key: in the model, and on the server.
    fn last_fence(&self, fences: &Fences, place: Place) -> Option<(u64, u64)>;
    fn id_of(&self, client: usize) -> i64;
    fn take(&mut self, step: Step) -> Outcome;
    /// Returns the answers since the last call, in order.
    fn answers(&mut self) -> Vec<Answer>;
}

impl Claim {
    /// Takes the steps on a server in memory, with the differences between real servers.
    ///
    /// # Errors
    /// The first step with another result.
    pub fn hold_in_memory(&self) -> Result<(), String> {
        for bits in 0..8 {
            let flavor = Flavor {
                reports_removals: bits & 1 != 0,
                flushes_while_loading: bits & 2 != 0,
                defers_wakes: bits & 4 != 0,
            };
            match self.run(&mut Memory::new(self, flavor)) {
                Ok(()) => {}
                Err(Trouble::Difference(what)) => return Err(what),
                Err(Trouble::Failed(error)) => return Err(error.to_string()),
                Err(Trouble::Undecided) => unreachable!("virtual time decides every step"),
            }
        }
        Ok(())
    }

    /// Takes the steps on a real server, and compares its replies, its keys and its figures with
    /// the model.
    ///
    /// # Errors
    /// The first step with another result.
    pub fn hold_on_a_server(&self) -> Result<(), String> {
        let does_restart =
            self.lines.iter().any(|line| matches!(line.event, Event::Taken(Step::Restart)));
        let config = Config {
            limits: self.limits,
            append_only: does_restart,
            peer: false,
            roles: false,
            clock_steps: true,
            steps: u64::MAX,
        };
        for _ in 0..TRIES {
            let mut episode = match Episode::start(config, StdRng::seed_from_u64(0)) {
                Ok(episode) => episode,
                Err(error) => return Err(error.to_string()),
            };
            match self.run(&mut episode) {
                Ok(()) => return Ok(()),
                Err(Trouble::Undecided) => {}
                Err(Trouble::Difference(what)) => {
                    return Err(format!("{what}\n{}", episode.describe()));
                }
                Err(Trouble::Failed(error)) => {
                    return Err(format!("{error:#}\n{}", episode.describe()));
                }
            }
        }
        Err(format!("{}: undecided on this machine", self.name))
    }

    fn run<T: Target>(&self, target: &mut T) -> Outcome {
        let mut fences = Fences::default();
        for line in &self.lines {
            step(line, target, &mut fences).map_err(|trouble| match trouble {
                Trouble::Difference(what) => {
                    Trouble::Difference(format!("{}\n    {}\n{what}", self.name, line.text))
                }
                other => other,
            })?;
        }
        Ok(())
    }
}

fn step<T: Target>(line: &Line, target: &mut T, fences: &mut Fences) -> Outcome {
    let taken = match line.event.clone() {
        Event::Key { place, holds } => {
            let wall_ms = target.now().wall_ms();
            let differs = key_differs(target.model(), wall_ms, place, holds, T::LATE_MS);
            return differs.map_or(Ok(()), |what| Err(Trouble::Difference(what)));
        }
        Event::Stats { figures } => {
            let differs = figures_differ(target.model(), figures);
            return differs.map_or(Ok(()), |what| Err(Trouble::Difference(what)));
        }
        Event::Commands { client, commands, wrap } => {
            let now = target.now();
            let read = |(db, text)| {
                let propose = |fence: &str, place: Place| {
                    proposal(fence, now.wall_us, target.last_fence(fences, place))
                };
                (db, table::command(text, db, |client| target.id_of(client), propose))
            };
            let commands = commands.into_iter().map(read).collect();
            Step::Packet { client, commands, wrap }
        }
        Event::Taken(step) => step,
    };
    target.take(taken)?;
    let answers = target.answers();
    let mut shown: Vec<_> = answers
        .iter()
        .map(|answer| (answer.client, fences.shown(&answer.expected, &answer.command)))
        .collect();
    // The answers to waiters are compared in the order of the clients.
    let replies = line.replies().min(shown.len());
    shown[replies..].sort();
    let agree = shown.len() == line.answers.len()
        && line.answers.iter().zip(&shown).all(|((client, expected), (by, shown))| {
            client == by && is_expected(expected, shown, T::LATE_MS)
        });
    let listed: Vec<_> =
        shown.iter().map(|(client, answer)| format!("{} {answer}", client + 1)).collect();
    if agree { Ok(()) } else { Err(Trouble::Difference(format!("answers: {}", listed.join("; ")))) }
}

/// The model and its clients, in virtual time.
struct Memory {
    model: Model,
    flavor: Flavor,
    claim: Claim,
    now: Now,
    waiting: [Option<Waiting>; CLIENTS],
    blocked_ids: u64,
    answers: Vec<Answer>,
}

impl Memory {
    fn new(claim: &Claim, flavor: Flavor) -> Self {
        let now =
            Now { monotonic: Monotonic::from_us(1_000_000_000), wall_us: 1_700_000_000_000_000 };
        Self {
            model: Model::new(claim.limits, flavor, now),
            flavor,
            claim: claim.clone(),
            now,
            waiting: Default::default(),
            blocked_ids: 0,
            answers: Vec::new(),
        }
    }

    /// Lets time pass. Each command takes a microsecond, so that fences of the clock differ.
    fn pass_us(&mut self, us: u64) {
        self.now.monotonic = self.now.monotonic.plus_us(us);
        self.now.wall_us += us;
    }

    fn run_turns(&mut self) {
        self.model.run_until(self.now);
        for (blocked_id, reply) in self.model.answers() {
            let waits = |waiting: &Option<Waiting>| {
                waiting.as_ref().is_some_and(|waiting| waiting.blocked_id == blocked_id)
            };
            let Some(client) = self.waiting.iter().position(waits) else { continue };
            if let Some(waiting) = self.waiting[client].take() {
                let expected = answer(&waiting, reply);
                self.answers.push(Answer { client, command: waiting.command, expected });
            }
        }
    }

    fn execute(&mut self, client: usize, db: u32, command: Command, may_block: bool) {
        let now = self.now;
        let mut of_waiter = None;
        let expected = match &command {
            Command::Unblock { client: waiter, with_error, .. } => {
                if let Some(waiting) = self.waiting[*waiter].take() {
                    let expected = waiting.unblock(&mut self.model, now, *with_error);
                    of_waiter =
                        Some(Answer { client: *waiter, command: waiting.command, expected });
                }
                Expected::Int(1)
            }
            Command::Kill { client: waiter, .. } => {
                self.disconnect(*waiter);
                Expected::Int(1)
            }
            _ => {
                self.blocked_ids += 1;
                let blocked_id = BlockedId(self.blocked_ids);
                let began = (!may_block).then_some(now);
                let id = may_block.then_some(blocked_id);
                let expected = self.model.execute(now, began, db, &command, id);
                if expected == Expected::Blocked {
                    self.waiting[client] = Waiting::of(&command, db, blocked_id, now);
                }
                expected
            }
        };
        self.answers.push(Answer { client, command, expected });
        self.answers.extend(of_waiter);
    }

    fn disconnect(&mut self, client: usize) {
        if let Some(waiting) = self.waiting[client].take() {
            waiting.disconnect(&mut self.model, self.now);
        }
    }
}

impl Target for Memory {
    const LATE_MS: u64 = 0;

    fn now(&self) -> Now {
        self.now
    }

    fn model(&self) -> &Model {
        &self.model
    }

    fn last_fence(&self, fences: &Fences, place: Place) -> Option<(u64, u64)> {
        fences.last(place).map(|fence| (fence, fence))
    }

    fn id_of(&self, _client: usize) -> i64 {
        0
    }

    fn take(&mut self, step: Step) -> Outcome {
        match step {
            Step::Packet { client, commands, wrap } => {
                assert!(self.waiting[client].is_none(), "client {} still waits", client + 1);
                let may_block = !matches!(wrap, Wrap::Multi { .. } | Wrap::Script { .. });
                for (db, command) in commands {
                    self.execute(client, db, command, may_block);
                }
            }
            Step::Pass { ms } => self.pass_us(ms * 1000),
            Step::MoveClock { ms } => {
                self.now.wall_us = self.now.wall_us.saturating_add_signed(ms * 1000);
            }
            Step::Disconnect { client } => self.disconnect(client),
            Step::Evict => {
                for place in places() {
                    self.model.evict(self.now, place);
                }
            }
            Step::Reload => self.model.reload(self.now),
            Step::Restart => {
                // A start takes time, and so a counter of fences begins with a larger number.
                self.pass_us(1000);
                let keys = std::mem::take(&mut self.model.server.keys);
                self.model = Model::new(self.claim.limits, self.flavor, self.now);
                self.model.server.keys = keys;
                self.waiting = Default::default();
            }
            other => unreachable!("no table has {other:?}"),
        }
        self.run_turns();
        Ok(())
    }

    fn answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }
}

impl Target for Episode {
    const LATE_MS: u64 = LATE_MS;

    fn now(&self) -> Now {
        self.now()
    }

    fn model(&self) -> &Model {
        &self.model
    }

    fn last_fence(&self, _fences: &Fences, place: Place) -> Option<(u64, u64)> {
        self.offsets.last(place)
    }

    fn id_of(&self, client: usize) -> i64 {
        self.clients[client].wire.id
    }

    fn take(&mut self, step: Step) -> Outcome {
        self.wait_for_quiet(GUARD_US)?;
        self.take(step)
    }

    fn answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }
}
