//! Runs the claims of a table: on the model alone, whose clocks stand still between the steps, and
//! on a real server, which the model accompanies.

use quorlock_core::node::{Monotonic, Now};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::command::{Packet, Place, Step, places};
use super::episode::{Config, Episode, GUARD_US, Outcome, Trouble, differ};
use super::model::{Flavor, Model};
use super::table::{Claim, Event, Fences, Line, has_fields, is_expected, shown_figures};
use super::view::shown_value;

/// How long a real server may take for the steps of a claim, in milliseconds.
const LATE_MS: u64 = 3000;
/// How often a claim is tried on a busy machine before it counts as undecided.
const TRIES: usize = 20;

/// What takes the steps of a claim.
trait Target {
    /// Largest delay of a step, in milliseconds.
    const LATE_MS: u64;

    fn now(&self) -> Now;
    fn model(&mut self) -> &mut Model;
    /// The last fence of a key: in the model, and on the server.
    fn last_fence(&self, fences: &Fences, place: Place) -> Option<(u64, u64)>;
    fn take(&mut self, step: Step) -> Outcome;
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
                Err(_) => unreachable!("virtual time decides every step"),
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
        let needs_file = |line: &Line| {
            matches!(
                line.event,
                Event::Taken(Step::Restart { keeps_data: true, .. } | Step::LoadAppendOnlyFile)
            )
        };
        let config = Config {
            limits: self.limits,
            append_only: self.lines.iter().any(needs_file),
            peer: false,
            clock_steps: true,
            steps: u64::MAX,
        };
        for _ in 0..TRIES {
            let mut episode = Episode::start(config, StdRng::seed_from_u64(0))
                .map_err(|error| error.to_string())?;
            let what = match self.run(&mut episode) {
                Ok(()) => return Ok(()),
                Err(Trouble::Undecided) => continue,
                Err(Trouble::Difference(what)) => what,
                Err(Trouble::Failed(error)) => format!("{error:#}"),
            };
            return Err(format!("{what}\n{}", episode.describe()));
        }
        Err(format!("{}: undecided on this machine", self.name))
    }

    fn run<T: Target>(&self, target: &mut T) -> Outcome {
        let mut fences = Fences::default();
        for line in &self.lines {
            let what = match step(line, target, &mut fences) {
                Ok(None) => continue,
                Ok(Some(what)) | Err(Trouble::Difference(what)) => what,
                Err(other) => return Err(other),
            };
            return differ(format!("{}\n    {}\n{what}", self.name, line.text));
        }
        Ok(())
    }
}

/// Takes a step. Returns the difference between its result and what the table says.
fn step<T: Target>(line: &Line, target: &mut T, fences: &mut Fences) -> Outcome<Option<String>> {
    let now = target.now();
    let mut taken = match &line.event {
        Event::Fields(place, fields) => {
            let shown = match place {
                Some(place) => shown_value(target.model().get(*place), now),
                None => shown_figures(target.model()),
            };
            // An expiry is a whole number of milliseconds.
            return Ok((!has_fields(fields, &shown, T::LATE_MS + 1)).then_some(shown));
        }
        Event::Taken(step) => step.clone(),
    };
    let mut replies = 0;
    if let Step::Packet(packet) = &mut taken {
        replies = packet.commands.len();
        for command in &mut packet.commands {
            command.propose(now.wall_us, |place| target.last_fence(fences, place));
        }
    }
    target.take(taken)?;
    let answers = std::mem::take(&mut target.model().answered);
    let mut shown: Vec<_> = answers
        .iter()
        .map(|answer| (answer.client, fences.shown(&answer.expected, &answer.command)))
        .collect();
    // The answers to waiters are compared in the order of the clients.
    shown[replies..].sort();
    let agree = shown.len() == line.answers.len()
        && line.answers.iter().zip(&shown).all(|((client, expected), (by, shown))| {
            client == by && is_expected(expected, shown, T::LATE_MS)
        });
    let listed = shown.iter().map(|(client, answer)| format!("{} {answer}", client + 1));
    Ok((!agree).then(|| format!("answers: {}", listed.collect::<Vec<_>>().join("; "))))
}

/// The model and its clients, in virtual time.
struct Memory {
    model: Model,
    now: Now,
}

impl Memory {
    fn new(claim: &Claim, flavor: Flavor) -> Self {
        let now =
            Now { monotonic: Monotonic::from_us(1_000_000_000), wall_us: 1_700_000_000_000_000 };
        Self { model: Model::new(claim.limits, flavor, now, false), now }
    }

    fn pass_us(&mut self, us: u64) {
        self.now.monotonic = self.now.monotonic.plus_us(us);
        self.now.wall_us += us;
    }
}

impl Target for Memory {
    const LATE_MS: u64 = 0;

    fn now(&self) -> Now {
        self.now
    }

    fn model(&mut self) -> &mut Model {
        &mut self.model
    }

    fn last_fence(&self, fences: &Fences, place: Place) -> Option<(u64, u64)> {
        fences.largest.get(&place).map(|&fence| (fence, fence))
    }

    fn take(&mut self, step: Step) -> Outcome {
        match step {
            Step::Packet(Packet { client, commands, wrap, .. }) => {
                assert!(self.model.waiting[client].is_none(), "client {} still waits", client + 1);
                let began = wrap.is_atomic().then_some(self.now);
                for command in &commands {
                    self.model.execute(self.now, began, client, command);
                    if let Some((waiter, how)) = command.ended_wait() {
                        let answer = self.model.end_wait(self.now, waiter, how);
                        self.model.answered.extend(answer);
                    }
                }
            }
            Step::Pass { ms } => self.pass_us(ms * 1000),
            Step::MoveClock { ms } => {
                self.now.wall_us = self.now.wall_us.saturating_add_signed(ms * 1000);
            }
            Step::Disconnect { client } => {
                self.model.disconnect(self.now, client);
            }
            Step::Evict { .. } => {
                for place in places() {
                    self.model.evict(self.now, place);
                }
            }
            Step::Reload | Step::LoadAppendOnlyFile => self.model.reload(self.now),
            Step::Restart { keeps_data, abstains } => {
                // A start takes time, and so a counter of fences begins with a larger number.
                self.pass_us(1000);
                let keys = std::mem::take(&mut self.model.server.keys);
                self.model.restart(self.now, abstains);
                if keeps_data {
                    self.model.server.keys = keys;
                }
            }
            other => unreachable!("no table has {other:?}"),
        }
        self.model.run_until(self.now);
        let answers = self.model.answers();
        self.model.answered.extend(answers);
        Ok(())
    }
}

impl Target for Episode {
    const LATE_MS: u64 = LATE_MS;

    fn now(&self) -> Now {
        self.now()
    }

    fn model(&mut self) -> &mut Model {
        &mut self.model
    }

    fn last_fence(&self, _fences: &Fences, place: Place) -> Option<(u64, u64)> {
        self.offsets.last(place)
    }

    fn take(&mut self, step: Step) -> Outcome {
        self.wait_for_quiet(GUARD_US)?;
        self.take(step)
    }
}
