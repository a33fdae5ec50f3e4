use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use quorlock_core::node::ServerEvent;
use quorlock_core::node::memory_server::Value;

use super::command::{Command, DBS, KEYS, LockCommand, Meanwhile, Step, Wrap};
use super::episode::{Episode, Outcome, Trouble};
use super::model::{Expected, Model, is_error, places, replica_abstains};
use super::view::{View, compare};
use super::wire::{Reply, Wire, info, time_us, words};

/// Time limit for a condition, such as that a replica follows its master.
const CONDITION_LIMIT: Duration = Duration::from_secs(30);
/// Largest difference of an expiry after an accident, in milliseconds.
const TOLERANCE_MS: u64 = 300;
/// How long the server is a replica of an unreachable master: longer than the interval at which the
/// node checks whether replicas or files receive its writes.
const UNREACHABLE: Duration = Duration::from_millis(1200);
/// Time without timed events after the start of an accident, in microseconds.
const QUIET_US: u64 = 400_000;
/// Length of a pause in which near deadlines pass.
const PAUSE: Duration = Duration::from_millis(90);

impl Episode {
    pub(super) fn accident(&mut self, step: Step) -> Outcome {
        self.wait_for_quiet(QUIET_US)?;
        let kind = step.kind();
        self.note(format!("{kind}: {step:?}"));
        let from = self.now();
        let deadlines = self.deadlines(from);
        match step {
            Step::Pause { meanwhile } => return self.pause(meanwhile),
            Step::Reload => self.reload("DEBUG RELOAD")?,
            Step::LoadAppendOnlyFile => {
                self.until("the rewrite of the append-only file ends", |episode| {
                    Ok(info(&mut episode.control, "persistence", "aof_rewrite_in_progress")? == "0"
                        && info(&mut episode.control, "persistence", "aof_rewrite_scheduled")?
                            == "0")
                })?;
                self.reload("DEBUG LOADAOF")?;
            }
            Step::RewriteAppendOnlyFile => {
                self.control.call("BGREWRITEAOF")?;
            }
            Step::Restart => return self.restart(),
            Step::Evict => self.evict()?,
            Step::MoveClock { ms } => self.move_clock(ms)?,
            Step::AttachPeer => return self.attach_peer(),
            Step::DetachPeer => return self.detach_peer(),
            Step::CutLink { client, commands } => return self.cut_link(client, &commands),
            Step::ChangeRoles { unreachable_first, attach_at_once, commands } => {
                return self.change_roles(unreachable_first, attach_at_once, &commands);
            }
            Step::Packet { .. }
            | Step::Late { .. }
            | Step::Disconnect { .. }
            | Step::Pass { .. } => {}
        }
        let now = self.now();
        if kind != "clock" && deadlines.iter().any(|at| *at <= now.monotonic) {
            return Err(Trouble::Undecided);
        }
        self.settle(TOLERANCE_MS)
    }

    fn until(
        &mut self,
        what: &str,
        mut holds: impl FnMut(&mut Self) -> anyhow::Result<bool>,
    ) -> Outcome {
        let started = Instant::now();
        while !holds(self)? {
            if started.elapsed() > CONDITION_LIMIT {
                let limit_s = CONDITION_LIMIT.as_secs();
                return Err(Trouble::Failed(anyhow!("not within {limit_s} s: {what}")));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn expect_ok(&mut self, line: &str) -> Outcome {
        match self.control.call(line)? {
            Reply::Status(status) if status == "OK" => Ok(()),
            other => Err(Trouble::Difference(format!("{line} was answered {other:?}"))),
        }
    }

    fn reload(&mut self, line: &str) -> Outcome {
        self.expect_ok(line)?;
        let now = self.now();
        self.model.reload(now);
        Ok(())
    }

    /// Makes the server evict keys, and evicts the same keys from the model.
    fn evict(&mut self) -> Outcome {
        let mut packet: Vec<_> =
            ["CONFIG SET maxmemory 1", "PING", "PING", "CONFIG SET maxmemory 0"].map(words).into();
        let before = packet.len();
        packet.extend(View::key_commands());
        let replies = self.control.call_all(&packet)?;
        let view = View::parse(&replies[before..]).map_err(Trouble::Difference)?;
        let now = self.now();
        let mut gone: Vec<_> = places().filter(|place| !view.keys.contains_key(place)).collect();
        gone.retain(|&place| self.model.get(place).is_some());
        // The server evicts in an unknown order, and serves waiters between two evictions.
        if gone.len() > 1 && self.model.server.node.waiters() > 0 {
            return Err(Trouble::Undecided);
        }
        for place in gone {
            self.model.evict(now, place);
        }
        Ok(())
    }

    fn move_clock(&mut self, ms: i64) -> Outcome {
        self.wall.step_ms(ms);
        self.until("the server's clock is stepped", |episode| {
            let shown_us = time_us(&episode.control.call("TIME")?).context("no TIME")?;
            Ok(shown_us.abs_diff(episode.now().wall_us) < 15_000)
        })
    }

    fn pause(&mut self, meanwhile: Vec<Meanwhile>) -> Outcome {
        let mut time_passes = false;
        let mut postponed = Vec::new();
        let (before_pause, in_pause): (Vec<_>, Vec<_>) =
            meanwhile.into_iter().partition(|event| matches!(event, Meanwhile::TimePasses { .. }));
        for event in before_pause {
            if let Meanwhile::TimePasses { client, db, before } = event {
                let from = self.now();
                self.packet(client, &[(db, before)], Wrap::None, None)?;
                if self.now().monotonic.us_since(from.monotonic) > 25_000 {
                    return Err(Trouble::Undecided);
                }
                time_passes = true;
            }
        }
        let from = self.now();
        let deadlines = self.deadlines(from);
        self.expect_ok("CLIENT PAUSE 100000 WRITE")?;
        self.model.server.keys.is_paused = true;
        if deadlines.iter().any(|at| *at <= self.now().monotonic.plus_us(5000)) {
            return Err(Trouble::Undecided);
        }
        for event in in_pause {
            match event {
                Meanwhile::EndWait(command) => {
                    let reply = self.control.call_all(&[command.words()])?.remove(0);
                    let now = self.now();
                    self.execute((now, now), 0, 0, &command, Some(&reply), Wrap::None)?;
                }
                Meanwhile::Disconnect(client) => {
                    if let Some(waiting) = self.clients[client].waiting.take() {
                        self.reconnect(client)?;
                        let now = self.now();
                        self.model
                            .handle_event(now, &ServerEvent::Disconnected(waiting.blocked_id));
                        // The server must notice the disconnection before the pause is over.
                        self.until("the server notices", |episode| {
                            let waiters = episode.model.server.node.waiters();
                            Ok(info(&mut episode.control, "lock", "lock_waiters")?
                                == waiters.to_string())
                        })?;
                    }
                }
                Meanwhile::Postponed { client, db, command } => {
                    // A command that writes nothing is not postponed.
                    if command.is_readonly() {
                        continue;
                    }
                    self.note(format!("  client {client}: [{db}] {}", command.shown()));
                    let select = words(&format!("SELECT {db}"));
                    let wire = &mut self.clients[client].wire;
                    wire.send(&[select, command.words()])?;
                    wire.receive()?;
                    postponed.push((client, db, command));
                }
                Meanwhile::TimePasses { .. } => {}
            }
        }
        if time_passes {
            thread::sleep(PAUSE);
        }
        if !time_passes
            && self.deadlines(from).iter().any(|at| *at <= self.now().monotonic.plus_us(5000))
        {
            return Err(Trouble::Undecided);
        }
        // The keys are compared after the pause. During the pause, the server keeps expired keys.
        let now = self.now();
        self.model.run_until(now);
        self.expect_ok("CLIENT UNPAUSE")?;
        self.model.server.keys.is_paused = false;
        for (client, db, command) in postponed {
            let reply = self.clients[client].wire.receive()?;
            let now = self.now();
            self.execute((now, now), client, db, &command, Some(&reply), Wrap::None)?;
        }
        self.settle(TOLERANCE_MS)
    }

    fn restart(&mut self) -> Outcome {
        let before = self.view()?;
        self.server.shutdown();
        self.server.restart()?;
        self.control = Wire::connect(&self.server)?;
        for client in 0..self.clients.len() {
            self.reconnect(client)?;
        }
        let now = self.now();
        self.model = Model::new(self.config.limits, self.flavor, now);
        // Fences grow across a restart, unless the wall clock was stepped back.
        if self.config.clock_steps {
            self.offsets.forget();
        }
        let after = self.view()?;
        if self.config.append_only {
            let gone = |at: u64| at <= self.now().wall_ms();
            for place in places() {
                let left =
                    before.keys.get(&place).filter(|seen| !seen.expires_at_ms.is_some_and(gone));
                if left != after.keys.get(&place) {
                    return Err(Trouble::Difference(format!(
                        "a restart with an append-only file: {} {} was {left:?} and is {:?}",
                        place.0,
                        KEYS[place.1],
                        after.keys.get(&place)
                    )));
                }
            }
        }
        // The server may have loaded a snapshot that an earlier command or a replication wrote.
        self.take_over(&after);
        self.forget_tolerances();
        self.settle(TOLERANCE_MS)
    }

    pub(super) fn view(&mut self) -> Outcome<View> {
        let replies = self.control.call_all(&View::commands())?;
        View::parse(&replies).map_err(Trouble::Difference)
    }

    /// Makes the keys of the model those of the server.
    fn take_over(&mut self, view: &View) {
        self.model.server.keys.clear();
        for (place, seen) in &view.keys {
            let value = match &seen.text {
                Some(text) => Value::text(text, seen.expires_at_ms),
                None => Value { text: None, expires_at_ms: seen.expires_at_ms },
            };
            self.model.put(*place, value);
        }
    }

    fn attach_peer(&mut self) -> Outcome {
        let Some(mut peer) = self.peer_wire.take() else { return Ok(()) };
        let line = format!("REPLICAOF 127.0.0.1 {}", self.server.port());
        peer.call(&line)?;
        self.wait_until_peer_follows(&mut peer)?;
        self.peer_wire = Some(peer);
        self.peer_attached = true;
        self.settle(TOLERANCE_MS)?;
        self.compare_with_peer()
    }

    fn wait_until_peer_follows(&mut self, peer: &mut Wire) -> Outcome {
        let its_port = self.server.port().to_string();
        self.until("the peer follows", |episode| {
            Ok(info(peer, "replication", "master_port")? == its_port
                && info(peer, "replication", "master_link_status")? == "up"
                && info(&mut episode.control, "replication", "slave0")?.contains("state=online"))
        })
    }

    fn detach_peer(&mut self) -> Outcome {
        if let Some(peer) = &mut self.peer_wire {
            peer.call("REPLICAOF NO ONE")?;
        }
        self.peer_attached = false;
        self.until("the peer is gone", |episode| {
            Ok(info(&mut episode.control, "replication", "connected_slaves")? == "0")
        })?;
        self.settle(TOLERANCE_MS)
    }

    fn cut_link(&mut self, client: usize, commands: &[(u32, Command)]) -> Outcome {
        self.control.call("CLIENT KILL TYPE replica")?;
        self.packet(client, commands, Wrap::Batch { sleep_ms: 0 }, None)?;
        let Some(mut peer) = self.peer_wire.take() else { return Ok(()) };
        self.wait_until_peer_follows(&mut peer)?;
        self.peer_wire = Some(peer);
        self.settle(TOLERANCE_MS)?;
        self.compare_with_peer()
    }

    pub(super) fn compare_with_peer(&mut self) -> Outcome {
        let Some(mut peer) = self.peer_wire.take() else { return Ok(()) };
        let mut rounds = 0;
        let differs = loop {
            self.wait_for_quiet(100_000)?;
            // WAIT waits for the writes of its own connection, so this connection must write first.
            let packet = ["SELECT 9", "SET written last", "WAIT 1 10000"].map(words);
            let replies = self.control.call_all(&packet)?;
            if replies[2] == Reply::Int(0) {
                return Err(Trouble::Failed(anyhow!("the replica does not acknowledge writes")));
            }
            let of_server = self.view()?;
            let of_peer =
                View::parse(&peer.call_all(&View::key_commands())?).map_err(Trouble::Difference)?;
            if of_server.keys == of_peer.keys {
                break None;
            }
            rounds += 1;
            if rounds == 5 {
                break Some(format!(
                    "the server has {:?}, its replica {:?}",
                    of_server.keys, of_peer.keys
                ));
            }
        };
        self.peer_wire = Some(peer);
        differs.map_or(Ok(()), |what| Err(Trouble::Difference(what)))
    }

    fn change_roles(
        &mut self,
        unreachable_first: bool,
        attach_at_once: bool,
        commands: &[(u32, Command)],
    ) -> Outcome {
        let Some(mut peer) = self.peer_wire.take() else { return Ok(()) };
        peer.call("REPLICAOF NO ONE")?;
        if !self.peer_attached {
            Self::write_keys(&mut peer, commands)?;
        }
        self.peer_attached = false;
        if unreachable_first {
            // No server listens on this port.
            self.control.call("REPLICAOF 127.0.0.1 1")?;
            self.handle_demotion()?;
            thread::sleep(UNREACHABLE);
        }
        let its_port = self.peer.as_ref().context("there is no peer")?.port();
        self.control.call(&format!("REPLICAOF 127.0.0.1 {its_port}"))?;
        self.handle_demotion()?;
        self.until("the server follows", |episode| {
            Ok(info(&mut episode.control, "replication", "master_link_status")? == "up")
        })?;
        self.check_replica_grants_nothing()?;
        // On a replica, keys expire a little later than on the master.
        thread::sleep(Duration::from_millis(20));
        self.control.call("REPLICAOF NO ONE")?;
        let now = self.now();
        self.model.handle_event(now, &ServerEvent::Promoted);
        let view = self.view()?;
        self.take_over(&view);
        self.forget_tolerances();
        self.settle(TOLERANCE_MS)?;
        self.wait_for_quiet(60_000)?;
        self.packet(0, commands, Wrap::Batch { sleep_ms: 0 }, None)?;
        self.peer_wire = Some(peer);
        if attach_at_once { self.attach_peer() } else { Ok(()) }
    }

    /// Writes to the peer the keys that these commands extend or release, so that the commands find
    /// keys even if the peer was never a replica of the server. In that case, the server may have
    /// no replication backlog.
    fn write_keys(peer: &mut Wire, commands: &[(u32, Command)]) -> Outcome {
        peer.call("FLUSHALL")?;
        for (index, (db, command)) in commands.iter().enumerate() {
            let Command::Lock(
                LockCommand::Extend { keys, token, .. } | LockCommand::Release { keys, token },
            ) = command
            else {
                continue;
            };
            let (key, ms) = (KEYS[keys.in_node_order()[0]], 60_000 + 1000 * index);
            peer.call(&format!("SELECT {db}"))?;
            peer.call(&format!("SET {key} {token} PX {ms}"))?;
        }
        Ok(())
    }

    /// Makes the model a replica, and checks that the server has ended all waits.
    fn handle_demotion(&mut self) -> Outcome {
        let now = self.now();
        for client in 0..self.clients.len() {
            let Some(waiting) = self.clients[client].waiting.take() else { continue };
            self.model.handle_event(now, &ServerEvent::Disconnected(waiting.blocked_id));
            match self.clients[client].wire.receive()? {
                Reply::Error(error) if error.starts_with("UNBLOCKED") => {}
                Reply::Closed => {}
                other => {
                    return Err(Trouble::Difference(format!(
                        "client {client} waited on a server that became a replica, and was not \
                         answered UNBLOCKED but {other:?}"
                    )));
                }
            }
            self.reconnect(client)?;
        }
        self.model.handle_event(now, &ServerEvent::Demoted);
        Ok(())
    }

    fn check_replica_grants_nothing(&mut self) -> Outcome {
        let line = format!("LOCK.ACQUIRE {} a 1000", KEYS[0]);
        let reply = self.control.call(&line)?;
        match &reply {
            Reply::Error(error)
                if error.starts_with("READONLY") || is_error(&replica_abstains(), error) =>
            {
                Ok(())
            }
            other => Err(Trouble::Difference(format!("a replica: {line} was answered {other:?}"))),
        }
    }

    /// Compares everything once more at the end of an episode.
    pub(super) fn finish(&mut self) -> Outcome {
        self.wait_for_quiet(QUIET_US)?;
        if self.peer_attached {
            self.compare_with_peer()?;
            self.detach_peer()?;
        }
        if self.config.append_only {
            self.accident(Step::LoadAppendOnlyFile)?;
            self.inspect_all()?;
            self.accident(Step::Restart)?;
            self.inspect_all()?;
        }
        // The server must have no other keys than the model.
        for db in 0..DBS {
            self.control.call(&format!("SELECT {db}"))?;
            let size = self.control.call("DBSIZE")?;
            let keys = self.model.server.keys.iter().filter(|(its_db, ..)| *its_db == db).count();
            let expected = Expected::Int(i64::try_from(keys).unwrap_or(i64::MAX));
            compare(&expected, &size, &mut self.offsets)
                .map_err(|why| Trouble::Difference(format!("DBSIZE of {db}: {why}")))?;
        }
        Ok(())
    }
}
