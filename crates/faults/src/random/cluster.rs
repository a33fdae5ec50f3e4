use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use quorlock_testkit::{Inject as _, PowerCut, Proxy, Server, WallClock};
use rand::rngs::StdRng;
use redis::{Connection, RedisResult, cmd, pipe};

use super::accident::{Accident, Disk};
use super::clients::Counts;
use crate::Protected;

pub(super) const MASTERS: usize = 5;
/// Groups of clients, each with a network of its own.
pub(super) const GROUPS: usize = 2;
/// What masters grant at most, and for how long they abstain.
pub(super) const MAX_TTL: Duration = Duration::from_secs(1);

/// The database where memory is filled with what nobody needs.
const FILLER_DB: u32 = 9;
/// How often progress is reported.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// How long the driver sleeps at most before it looks around.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The masters, each behind one proxy for every group of clients.
pub(super) struct Cluster {
    masters: Vec<Master>,
    /// What is over at some time.
    pending: Vec<(Instant, End)>,
    saved: u64,
}

struct Master {
    server: Server,
    clock: WallClock,
    power: PowerCut,
    proxies: Vec<Proxy>,
    state: State,
}

/// What a master can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Paused,
    Down,
}

/// How something ends that lasts.
#[derive(Clone, Debug)]
enum End {
    SetClockRight(usize),
    Resume(usize),
    Start(Vec<usize>),
    Heal { master: usize, group: usize },
}

impl Cluster {
    pub(super) fn start(protected: Protected) -> Result<Self> {
        let fsync = ["no", "everysec", "always"];
        let policy = ["volatile-ttl", "allkeys-lru"];
        let masters = (0..MASTERS).map(|index| {
            let (clock, power) = (WallClock::new(), PowerCut::new());
            let builder = Server::with_module().wall_clock(&clock).power_cut(&power);
            let builder = builder
                .arg("lock.max-ttl", MAX_TTL.as_millis())
                .arg("appendonly", "yes")
                .arg("appendfsync", fsync[index % fsync.len()])
                .arg("maxmemory-policy", policy[index % policy.len()]);
            let mut server = builder.start()?;
            // From now on it is not brand-new.
            let rejoin_delay_ms = if protected == Protected::Yes { -1 } else { 0 };
            server.set_arg("lock.rejoin-delay", rejoin_delay_ms);
            let proxies = (0..GROUPS).map(|_| Proxy::start(server.url())).collect();
            Ok(Master { server, clock, power, proxies, state: State::Running })
        });
        Ok(Self { masters: masters.collect::<Result<_>>()?, pending: Vec::new(), saved: 0 })
    }

    /// The addresses of all masters, for each group of clients.
    pub(super) fn urls(&self) -> Vec<Vec<String>> {
        (0..GROUPS)
            .map(|group| self.masters.iter().map(|master| master.proxies[group].url()).collect())
            .collect()
    }

    /// Leases that outlived their keys, as far as the masters could be asked before they were killed.
    pub(super) fn saved(&self) -> u64 {
        self.saved
    }

    /// Lets accidents happen for so long, unless it is enough before. At the end, everything is well again.
    pub(super) fn have_accidents(
        &mut self,
        mut rng: StdRng,
        duration: Duration,
        counts: &Counts,
        enough: impl Fn() -> bool,
        mut progress: impl FnMut(Duration, u64),
    ) -> Result<BTreeMap<&'static str, u32>> {
        let began = Instant::now();
        let mut happened = BTreeMap::new();
        let mut report_at = began + PROGRESS_EVERY;
        let (apart, mut next) = Accident::next(&mut rng);
        let mut next_at = began + apart;
        while began.elapsed() < duration && !enough() {
            self.end_what_is_over(Instant::now())?;
            if Instant::now() >= next_at {
                if self.happens(&next)? {
                    *happened.entry(next.name()).or_default() += u32::try_from(next.times())?;
                }
                let (apart, another) = Accident::next(&mut rng);
                (next, next_at) = (another, Instant::now() + apart);
            }
            if Instant::now() >= report_at {
                progress(began.elapsed(), counts.grants());
                report_at += PROGRESS_EVERY;
            }
            let soonest = self.pending.iter().map(|&(at, _)| at).chain([next_at]).min();
            let sleep = soonest.map_or(LOOK_EVERY, |at| at.saturating_duration_since(Instant::now()));
            thread::sleep(sleep.min(LOOK_EVERY));
        }
        while let Some(last) = self.pending.iter().map(|&(at, _)| at).max() {
            self.end_what_is_over(last)?;
        }
        for index in 0..MASTERS {
            self.count_saved(index);
        }
        Ok(happened)
    }

    /// False where the master is in no state for it.
    fn happens(&mut self, accident: &Accident) -> Result<bool> {
        match accident {
            Accident::ClockStep { masters, by_s, lasts } => {
                for &index in masters {
                    let clock = &self.masters[index].clock;
                    clock.set_right();
                    clock.step_ms(by_s * 1000);
                    self.later(*lasts, End::SetClockRight(index));
                }
            }
            Accident::Eviction { master } => {
                let master = &self.masters[*master];
                if master.state != State::Running {
                    return Ok(false);
                }
                evict(&mut master.connection()?).context("evict")?;
            }
            Accident::Restart { masters, disk, down } => {
                let masters: Vec<_> = masters
                    .iter()
                    .copied()
                    .filter(|&index| self.masters[index].state != State::Down)
                    .collect();
                if masters.is_empty() {
                    return Ok(false);
                }
                for &index in &masters {
                    self.count_saved(index);
                    self.masters[index].kill(*disk)?;
                }
                if down.is_zero() {
                    self.start_again(&masters)?;
                } else {
                    self.later(*down, End::Start(masters));
                }
            }
            Accident::Pause { masters, lasts } => {
                for &index in masters {
                    let master = &mut self.masters[index];
                    if master.state == State::Running {
                        master.server.pause();
                        master.state = State::Paused;
                        self.later(*lasts, End::Resume(index));
                    }
                }
            }
            Accident::Reload { master } => {
                let master = &self.masters[*master];
                if master.state != State::Running {
                    return Ok(false);
                }
                cmd("DEBUG").arg("RELOAD").exec(&mut master.connection()?).context("reload")?;
            }
            Accident::Delay { master, group, direction, by, lasts } => {
                self.masters[*master].proxies[*group].delay(*direction, *by);
                self.later(*lasts, End::Heal { master: *master, group: *group });
            }
            Accident::Hold { master, group, direction, lasts } => {
                self.masters[*master].proxies[*group].hold(*direction);
                self.later(*lasts, End::Heal { master: *master, group: *group });
            }
        }
        Ok(true)
    }

    fn later(&mut self, after: Duration, end: End) {
        self.pending.push((Instant::now() + after, end));
    }

    fn end_what_is_over(&mut self, now: Instant) -> Result<()> {
        while let Some(index) = self.pending.iter().position(|&(at, _)| at <= now) {
            match self.pending.swap_remove(index).1 {
                End::SetClockRight(index) => self.masters[index].clock.set_right(),
                End::Resume(index) => {
                    let master = &mut self.masters[index];
                    if master.state == State::Paused {
                        master.server.resume();
                        master.state = State::Running;
                    }
                }
                End::Start(masters) => self.start_again(&masters)?,
                End::Heal { master, group } => self.masters[master].proxies[group].heal(),
            }
        }
        Ok(())
    }

    /// All at once: that more than half of them forget within one ttl is the accident.
    fn start_again(&mut self, which: &[usize]) -> Result<()> {
        let down = self.masters.iter_mut().enumerate().filter(|(index, _)| which.contains(index));
        thread::scope(|scope| {
            let starting: Vec<_> = down
                .map(|(index, master)| {
                    master.state = State::Running;
                    scope.spawn(move || master.server.restart().with_context(|| format!("master {index}")))
                })
                .collect();
            starting.into_iter().try_for_each(|starting| match starting.join() {
                Ok(started) => started,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    /// A master forgets its counters when it is killed. One that stands still is not asked.
    fn count_saved(&mut self, index: usize) {
        if self.masters[index].state == State::Running {
            self.saved += self.masters[index].saved().unwrap_or_default();
        }
    }
}

impl Master {
    fn connection(&self) -> RedisResult<Connection> {
        self.server.try_connection()
    }

    fn kill(&mut self, disk: Disk) -> Result<()> {
        self.state = State::Down;
        match disk {
            Disk::Kept => self.server.kill(),
            Disk::Cut => drop(self.power.cut(&mut self.server)),
            Disk::Emptied => {
                self.server.kill();
                fs::remove_dir_all(self.server.dir().join("appendonlydir"))?;
                let _ = fs::remove_file(self.server.dir().join("dump.rdb"));
            }
        }
        Ok(())
    }

    fn saved(&self) -> RedisResult<u64> {
        let mut connection = self.connection()?;
        Ok(number(&mut connection, "lock", "lock_saved_from_clock_step")?
            + number(&mut connection, "lock", "lock_saved_from_eviction")?)
    }
}

/// Fills the memory that is left with what nobody needs until the server has evicted, and takes it away again.
fn evict(connection: &mut Connection) -> RedisResult<()> {
    const ROOM_BYTES: u64 = 256 << 10;
    const BATCHES: usize = 30;
    let used_bytes = number(connection, "memory", "used_memory")?;
    cmd("CONFIG").arg("SET").arg("maxmemory").arg(used_bytes + ROOM_BYTES).exec(connection)?;
    cmd("SELECT").arg(FILLER_DB).exec(connection)?;
    for batch in 0..BATCHES {
        let mut fill = pipe();
        for n in 0..20 {
            fill.cmd("SET").arg(batch * 20 + n).arg("x".repeat(1000)).arg("EX").arg(3600).ignore();
        }
        // It is refused when there is nothing left to evict.
        if fill.exec(connection).is_err() {
            break;
        }
    }
    cmd("CONFIG").arg("SET").arg("maxmemory").arg(0).exec(connection)?;
    cmd("FLUSHDB").exec(connection)
}

fn number(connection: &mut Connection, section: &str, field: &str) -> RedisResult<u64> {
    let info: String = cmd("INFO").arg(section).query(connection)?;
    let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(value.and_then(|value| value.trim().parse().ok()).unwrap_or_default())
}
