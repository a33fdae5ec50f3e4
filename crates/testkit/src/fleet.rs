use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use quorlock_localserver::in_parallel;
use redis::{Connection, cmd, pipe};

use crate::{Direction, Inject as _, PowerCut, Proxy, Server, ServerBuilder, WallClock};

/// Nodes to which accidents happen, each behind its networks.
pub struct Fleet {
    pub nodes: Vec<FleetNode>,
    /// The incidents under way, each with the time at which its nodes recover.
    pending: Vec<(Instant, Incident)>,
}

pub struct FleetNode {
    pub server: Server,
    /// In front of the server, one for each group of clients.
    pub networks: Vec<Proxy>,
    pub injectors: Injectors,
    state: State,
}

/// The controls of the faults inside a server's process.
#[derive(Clone, Debug, Default)]
pub struct Injectors {
    pub clock: WallClock,
    pub power: PowerCut,
}

/// The state of a node's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Paused,
    Down,
}

/// One accident that happens to some nodes at the same time.
#[derive(Clone, Debug)]
pub struct Incident {
    pub accident: Accident,
    /// By their indices.
    pub nodes: Vec<usize>,
    /// The index of the network. Only accidents of a network use it.
    pub network: usize,
    /// The time until recovery; zero for recovery at once.
    pub duration: Duration,
}

impl Fleet {
    /// Starts `n` nodes with injectors. `configure` receives the index of each.
    ///
    /// # Errors
    /// When a node does not start.
    pub fn start(
        n: usize,
        networks: usize,
        mut configure: impl FnMut(usize, ServerBuilder) -> ServerBuilder,
    ) -> Result<Self> {
        let builders: Vec<_> =
            (0..n).map(|index| configure(index, Server::with_module())).collect();
        let nodes = in_parallel(builders, |builder| FleetNode::start(builder, networks));
        Ok(Self { nodes: nodes.into_iter().collect::<Result<_>>()?, pending: Vec::new() })
    }

    /// Returns the addresses of all nodes behind one network.
    pub fn urls(&self, network: usize) -> Vec<String> {
        self.nodes.iter().map(|node| node.networks[network].url()).collect()
    }

    /// Injects an incident into each node whose state allows it, and returns their number.
    ///
    /// # Errors
    /// When the accident could not be injected.
    pub fn inject(&mut self, mut incident: Incident) -> Result<usize> {
        let mut hit = Vec::new();
        for &index in &incident.nodes {
            if self.nodes[index].inject(incident.accident, incident.network)? {
                hit.push(index);
            }
        }
        incident.nodes = hit;
        let hits = incident.nodes.len();
        if incident.duration.is_zero() {
            self.recover(&incident)?;
        } else {
            self.pending.push((Instant::now() + incident.duration, incident));
        }
        Ok(hits)
    }

    /// Returns whether a node has not yet recovered from an incident.
    pub fn is_affected(&self, node: usize) -> bool {
        self.pending.iter().any(|(_, incident)| incident.nodes.contains(&node))
    }

    /// Recovers from all incidents that are over at `now`.
    ///
    /// # Errors
    /// When a node does not start again.
    pub fn recover_until(&mut self, now: Instant) -> Result<()> {
        while let Some(index) = self.pending.iter().position(|&(at, _)| at <= now) {
            let (_, incident) = self.pending.swap_remove(index);
            self.recover(&incident)?;
        }
        Ok(())
    }

    /// # Errors
    /// When a node does not start again.
    pub fn recover_all(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        pending.iter().try_for_each(|(_, incident)| self.recover(incident))
    }

    /// Recovers all nodes of an incident at the same time: after kills, a majority can thus
    /// forget a lock that is still held.
    fn recover(&mut self, incident: &Incident) -> Result<()> {
        let Incident { accident, nodes, network, .. } = incident;
        let hit = self.nodes.iter_mut().enumerate().filter(|(index, _)| nodes.contains(index));
        let recovered = in_parallel(hit, |(index, node)| {
            node.recover(*accident, *network).with_context(|| format!("node {index}"))
        });
        recovered.into_iter().collect()
    }
}

impl FleetNode {
    /// Starts a node with injectors.
    ///
    /// # Errors
    /// When the server does not start.
    pub fn start(builder: ServerBuilder, networks: usize) -> Result<Self> {
        let injectors = Injectors::default();
        let builder = builder.wall_clock(&injectors.clock).power_cut(&injectors.power);
        Ok(Self::new(builder.start()?, networks, injectors))
    }

    pub fn new(server: Server, networks: usize, injectors: Injectors) -> Self {
        let networks = (0..networks).map(|_| Proxy::start(server.url())).collect();
        Self { server, networks, injectors, state: State::Running }
    }

    /// Returns false if the state of the node does not allow the accident: for example, a node
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
                let clock = &self.injectors.clock;
                ensure!(clock.is_read_by(&self.server), "the server does not read this clock");
                clock.set_ahead_ms(by_s * 1000);
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
    /// When the node does not start again.
    pub fn recover(&mut self, accident: Accident, network: usize) -> Result<()> {
        match accident {
            Accident::Kill(_) | Accident::Shutdown => self.restart()?,
            Accident::Pause => {
                if self.state == State::Paused {
                    self.server.resume();
                    self.state = State::Running;
                }
            }
            Accident::ClockStep { .. } => self.injectors.clock.set_ahead_ms(0),
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

    /// Cuts the power of the server, and returns the number of lost bytes.
    pub fn cut_power(&mut self) -> u64 {
        self.injectors.power.cut(&mut self.server)
    }

    fn kill(&mut self, disk: Disk) -> Result<()> {
        if disk == Disk::Synced {
            self.cut_power();
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

/// Lets the server evict keys, by a memory limit that it exceeds until the limit is removed again.
/// The server executes all of it in one turn, and evicts keys before each PING.
fn evict(connection: &mut Connection) -> Result<()> {
    let limit = |bytes: u32| cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).take();
    let mut commands = pipe();
    commands.add_command(limit(1)).cmd("PING").cmd("PING").add_command(limit(0));
    Ok(commands.exec(connection)?)
}

/// Reads a number from a section of `INFO`.
///
/// # Errors
/// When the server does not answer, or the section has no such number.
pub fn info(connection: &mut Connection, section: &str, field: &str) -> Result<u64> {
    let info: String = cmd("INFO").arg(section).query(connection)?;
    let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let value = value.with_context(|| format!("INFO {section} has no {field}"))?;
    value.trim().parse().with_context(|| format!("{field} is {value}"))
}

/// How often a server has carried out a command.
///
/// # Panics
/// When the server does not answer.
pub fn calls(server: &Server, command: &str) -> u64 {
    let query = cmd("INFO").arg("commandstats").query(&mut server.connection());
    let stats: String = query.expect("the server answers");
    let start = format!("cmdstat_{command}:calls=");
    let calls = stats.lines().find_map(|line| line.strip_prefix(&start)?.split(',').next());
    // Before its first call, a command has no line.
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// What goes wrong with one node, or with one network in front of it, until recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accident {
    /// SIGKILL; recovery starts the server on what is left of its disk.
    Kill(Disk),
    /// SIGTERM; recovery starts the server.
    Shutdown,
    /// SIGSTOP: connections stay open, and no request is answered.
    Pause,
    /// The wall clock is stepped; recovery sets it right.
    ClockStep {
        /// Negative for a step back.
        by_s: i64,
    },
    /// Memory is short for a moment, so that the server evicts keys.
    Eviction,
    Reload,
    /// Open connections are reset, and so are new connections as soon as they open.
    Cut,
    /// Traffic stops, and arrives all at once at recovery.
    Hold(Direction),
    /// Traffic is lost.
    Drop(Direction),
    /// Traffic arrives late.
    Delay(Direction, Duration),
}

/// What a server finds on its disk after it was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    Kept,
    /// What the process had synced, as after a power cut.
    Synced,
    Emptied,
}

impl Accident {
    /// Returns the accident's name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill(Disk::Kept) => "kill -9, restart with the disk",
            Self::Kill(Disk::Synced) => "power cut, restart",
            Self::Kill(Disk::Emptied) => "kill -9, restart on an empty disk",
            Self::Shutdown => "shutdown, restart",
            Self::Pause => "SIGSTOP, SIGCONT",
            Self::ClockStep { by_s: 1.. } => "wall clock stepped ahead",
            Self::ClockStep { .. } => "wall clock stepped back",
            Self::Eviction => "eviction",
            Self::Reload => "DEBUG RELOAD",
            Self::Cut => "reset connections",
            Self::Hold(_) => "stalled packets",
            Self::Drop(_) => "lost packets",
            Self::Delay(..) => "late packets",
        }
    }
}
