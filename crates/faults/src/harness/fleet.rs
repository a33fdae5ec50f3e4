use std::fs;
use std::ops::RangeInclusive;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use quorlock_testkit::{Inject as _, Masters, PowerCut, Proxy, Server, ServerBuilder, WallClock};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _, seq};
use redis::{Connection, cmd, pipe};

use super::accident::{Accident, AccidentCounts, Disk};
use super::{PROGRESS_INTERVAL, info, result_of};

/// The database of the keys that make memory short.
const FILLER_DB: u32 = 9;
/// Longest sleep before [`Fleet::inject_at_random`] checks again whether to go on.
const SLEEP_MAX: Duration = Duration::from_millis(20);

pub struct Fleet {
    pub masters: Vec<Master>,
    /// The incidents under way, each with the time at which its masters recover.
    pending: Vec<(Instant, Incident)>,
}

pub struct Master {
    pub server: Server,
    /// In front of the server, one for each group of clients.
    pub networks: Vec<Proxy>,
    injectors: Option<Injectors>,
    state: State,
}

/// The controls of the faults inside a server's process.
#[derive(Clone, Debug, Default)]
pub struct Injectors {
    pub clock: WallClock,
    pub power: PowerCut,
}

/// The state of a master's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Paused,
    Down,
}

/// One accident that happens to some masters at the same time.
#[derive(Clone, Debug)]
pub struct Incident {
    pub accident: Accident,
    /// By their indices.
    pub masters: Vec<usize>,
    /// The index of the network. Only accidents of a network use it.
    pub network: usize,
    /// The time until recovery; zero for recovery at once.
    pub duration: Duration,
}

impl Fleet {
    /// Starts `n` masters without injectors. `configure` receives the index of each.
    ///
    /// # Errors
    /// When a master does not start.
    pub fn start(
        n: usize,
        networks: usize,
        configure: impl FnMut(usize, ServerBuilder) -> ServerBuilder,
    ) -> Result<Self> {
        let servers = Masters::start_with(n, configure)?;
        let masters =
            servers.into_iter().map(|server| Master::new(server, networks, None)).collect();
        Ok(Self { masters, pending: Vec::new() })
    }

    /// Starts masters as [`Fleet::start`] does, with injectors.
    ///
    /// # Errors
    /// When a master does not start.
    pub fn start_with_injectors(
        n: usize,
        networks: usize,
        mut configure: impl FnMut(usize, ServerBuilder) -> ServerBuilder,
    ) -> Result<Self> {
        let injectors: Vec<_> = (0..n).map(|_| Injectors::default()).collect();
        let mut fleet = Self::start(n, networks, |index, builder| {
            configure(index, injectors[index].attach(builder))
        })?;
        for (master, injectors) in fleet.masters.iter_mut().zip(injectors) {
            master.injectors = Some(injectors);
        }
        Ok(fleet)
    }

    /// Returns the addresses of all masters behind one network.
    pub fn urls(&self, network: usize) -> Vec<String> {
        self.masters.iter().map(|master| master.networks[network].url()).collect()
    }

    /// Injects incidents while `goes_on`, and then lets all masters recover.
    ///
    /// `draw` returns the pause before an incident, and the incident. `goes_on` and `progress`
    /// receive the elapsed time. Returns the accidents, and the number of leases that outlived
    /// their keys.
    pub(crate) fn inject_at_random(
        &mut self,
        seed: u64,
        draw: impl Fn(&mut StdRng) -> (Duration, Incident),
        goes_on: impl Fn(Duration) -> bool,
        mut progress: impl FnMut(Duration),
    ) -> Result<(AccidentCounts, u64)> {
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut counts, mut saved) = (AccidentCounts::default(), 0);
        let began = Instant::now();
        let mut report_at = began + PROGRESS_INTERVAL;
        let (pause, mut next) = draw(&mut rng);
        let mut next_at = began + pause;
        while goes_on(began.elapsed()) {
            self.recover_until(Instant::now())?;
            if Instant::now() >= next_at {
                let (pause, incident) = draw(&mut rng);
                let incident = std::mem::replace(&mut next, incident);
                saved += self.saved_before(&incident);
                counts.count(incident.accident, self.inject(incident)?);
                next_at = Instant::now() + pause;
            }
            if Instant::now() >= report_at {
                progress(began.elapsed());
                report_at += PROGRESS_INTERVAL;
            }
            let wake_at = self.next_recovery().into_iter().chain([next_at]).min();
            let sleep =
                wake_at.map_or(SLEEP_MAX, |at| at.saturating_duration_since(Instant::now()));
            thread::sleep(sleep.min(SLEEP_MAX));
        }
        self.recover_all()?;
        saved += self.masters.iter().map(Master::saved_leases).sum::<u64>();
        Ok((counts, saved))
    }

    /// Returns how many saved leases the masters have counted, if the incident resets their counts.
    fn saved_before(&self, incident: &Incident) -> u64 {
        match incident.accident {
            Accident::Kill(_) => {
                incident.masters.iter().map(|&index| self.masters[index].saved_leases()).sum()
            }
            _ => 0,
        }
    }

    /// Injects an incident into each master whose state allows it, and returns their number.
    ///
    /// # Errors
    /// When the accident could not be injected.
    pub fn inject(&mut self, mut incident: Incident) -> Result<usize> {
        let mut hit = Vec::new();
        for &index in &incident.masters {
            if self.masters[index].inject(incident.accident, incident.network)? {
                hit.push(index);
            }
        }
        incident.masters = hit;
        let hits = incident.masters.len();
        if incident.duration.is_zero() {
            self.recover(&incident)?;
        } else {
            self.pending.push((Instant::now() + incident.duration, incident));
        }
        Ok(hits)
    }

    pub fn next_recovery(&self) -> Option<Instant> {
        self.pending.iter().map(|&(at, _)| at).min()
    }

    /// Recovers from all incidents that are over at `now`.
    ///
    /// # Errors
    /// When a master does not start again.
    pub fn recover_until(&mut self, now: Instant) -> Result<()> {
        while let Some(index) = self.pending.iter().position(|&(at, _)| at <= now) {
            let (_, incident) = self.pending.swap_remove(index);
            self.recover(&incident)?;
        }
        Ok(())
    }

    /// # Errors
    /// When a master does not start again.
    pub fn recover_all(&mut self) -> Result<()> {
        if let Some(last) = self.pending.iter().map(|&(at, _)| at).max() {
            self.recover_until(last)?;
        }
        Ok(())
    }

    /// Recovers all masters of an incident at the same time: after kills, a majority can thus
    /// forget a lock that is still held.
    fn recover(&mut self, incident: &Incident) -> Result<()> {
        let Incident { accident, masters, network, .. } = incident;
        let hit = self.masters.iter_mut().enumerate().filter(|(index, _)| masters.contains(index));
        thread::scope(|scope| {
            let recovering: Vec<_> = hit
                .map(|(index, master)| {
                    scope.spawn(move || {
                        master
                            .recover(*accident, *network)
                            .with_context(|| format!("master {index}"))
                    })
                })
                .collect();
            recovering.into_iter().try_for_each(|recovering| result_of(recovering.join()))
        })
    }
}

/// Draws the indices of different masters out of `n`. Their number is in `amounts`.
pub(crate) fn some_masters(
    rng: &mut StdRng,
    n: usize,
    amounts: RangeInclusive<usize>,
) -> Vec<usize> {
    let amount = rng.random_range(amounts);
    seq::index::sample(rng, n, amount).into_vec()
}

impl Injectors {
    pub fn attach(&self, builder: ServerBuilder) -> ServerBuilder {
        builder.wall_clock(&self.clock).power_cut(&self.power)
    }
}

impl Master {
    pub fn new(server: Server, networks: usize, injectors: Option<Injectors>) -> Self {
        let networks = (0..networks).map(|_| Proxy::start(server.url())).collect();
        Self { server, networks, injectors, state: State::Running }
    }

    /// Returns false if the state of the master does not allow the accident: for example, a master
    /// that is down cannot be killed, and a paused one cannot evict keys.
    ///
    /// # Errors
    /// When the accident could not be injected.
    pub fn inject(&mut self, accident: Accident, network: usize) -> Result<bool> {
        match accident {
            Accident::Kill(_) | Accident::Shutdown if self.state == State::Down => {
                return Ok(false);
            }
            Accident::Pause | Accident::Eviction | Accident::Reload
                if self.state != State::Running =>
            {
                return Ok(false);
            }
            Accident::Kill(disk) => self.kill(disk)?,
            Accident::Shutdown => {
                self.state = State::Down;
                self.server.shutdown();
            }
            Accident::Pause => {
                self.state = State::Paused;
                self.server.pause();
            }
            Accident::ClockStep { by_s } => {
                let clock = &self.injectors()?.clock;
                clock.correct();
                clock.step_ms(by_s * 1000);
            }
            Accident::Eviction => evict(&mut self.server.try_connection()?).context("evict")?,
            Accident::Reload => {
                let connection = &mut self.server.try_connection()?;
                cmd("DEBUG").arg("RELOAD").exec(connection).context("reload")?;
            }
            Accident::Cut => self.networks[network].cut(),
            Accident::Hold(direction) => self.networks[network].hold(direction),
            Accident::Drop(direction) => self.networks[network].drop_bytes(direction),
            Accident::Delay(direction, by) => self.networks[network].delay(direction, by),
        }
        Ok(true)
    }

    /// # Errors
    /// When the master does not start again.
    pub fn recover(&mut self, accident: Accident, network: usize) -> Result<()> {
        match accident {
            Accident::Kill(_) | Accident::Shutdown => self.restart()?,
            Accident::Pause => {
                if self.state == State::Paused {
                    self.server.resume();
                    self.state = State::Running;
                }
            }
            Accident::ClockStep { .. } => self.injectors()?.clock.correct(),
            Accident::Eviction | Accident::Reload => {}
            Accident::Cut | Accident::Hold(_) | Accident::Drop(_) | Accident::Delay(..) => {
                self.networks[network].heal();
            }
        }
        Ok(())
    }

    /// # Errors
    /// When the server does not start.
    pub fn restart(&mut self) -> Result<()> {
        self.server.restart()?;
        self.state = State::Running;
        Ok(())
    }

    /// Returns how many leases outlived their keys since the server started; 0 if it does not
    /// answer.
    pub fn saved_leases(&self) -> u64 {
        let saved = || -> Result<u64> {
            let connection = &mut self.server.try_connection()?;
            Ok(info(connection, "lock", "lock_saved_from_clock_step")?
                + info(connection, "lock", "lock_saved_from_eviction")?)
        };
        if self.state == State::Running { saved().unwrap_or_default() } else { 0 }
    }

    /// # Errors
    /// When the server was started without injectors.
    pub fn injectors(&self) -> Result<&Injectors> {
        self.injectors.as_ref().context("this server was started without injectors")
    }

    /// Cuts the power of the server, and returns the number of lost bytes.
    pub(crate) fn cut_power(&mut self) -> Result<u64> {
        let power = self.injectors()?.power.clone();
        Ok(power.cut(&mut self.server))
    }

    fn kill(&mut self, disk: Disk) -> Result<()> {
        if disk == Disk::Synced {
            self.cut_power()?;
        } else {
            self.server.kill();
        }
        if disk == Disk::Emptied {
            fs::remove_dir_all(self.server.dir().join("appendonlydir"))?;
            // The file does not exist before the first snapshot.
            let _ = fs::remove_file(self.server.dir().join("dump.rdb"));
        }
        self.state = State::Down;
        Ok(())
    }
}

/// Lowers the memory limit and writes filler keys, so that the server evicts keys. Then removes the
/// limit and the filler keys.
fn evict(connection: &mut Connection) -> Result<()> {
    const ROOM_BYTES: u64 = 256 << 10;
    const BATCHES: usize = 30;
    let used_bytes = info(connection, "memory", "used_memory")?;
    cmd("CONFIG").arg("SET").arg("maxmemory").arg(used_bytes + ROOM_BYTES).exec(connection)?;
    cmd("SELECT").arg(FILLER_DB).exec(connection)?;
    for batch in 0..BATCHES {
        let mut fill = pipe();
        for n in 0..20 {
            fill.cmd("SET").arg(batch * 20 + n).arg("x".repeat(1000)).arg("EX").arg(3600).ignore();
        }
        // The server refuses writes when no key is left to evict.
        if fill.exec(connection).is_err() {
            break;
        }
    }
    cmd("CONFIG").arg("SET").arg("maxmemory").arg(0).exec(connection)?;
    Ok(cmd("FLUSHDB").exec(connection)?)
}
