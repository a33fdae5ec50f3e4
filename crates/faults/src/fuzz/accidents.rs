use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use quorlock_core::node::{Reason, ServerEvent};
use redis::Value;

use super::command::{Command, DBS, KEYS, Packet, Place, Step, places};
use super::episode::{Episode, Outcome, Trouble, differ};
use super::view::{Expected, View, compare, shown_keys};
use super::wire::{Wire, time_us, words};
use crate::wait_until;

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
        self.note(format!("{step:?}"));
        let from = self.now();
        let deadlines = self.model.deadlines(from);
        match step {
            Step::Pause { before, ends_wait, disconnects, postponed } => {
                return self.pause(before.as_ref(), ends_wait, disconnects, postponed);
            }
            Step::Reload => self.reload("DEBUG RELOAD")?,
            Step::LoadAppendOnlyFile => {
                wait_until(CONDITION_LIMIT, "the rewrite of the append-only file ends", || {
                    for name in ["aof_rewrite_in_progress", "aof_rewrite_scheduled"] {
                        if self.control.info("persistence", name)? != "0" {
                            return Ok(false);
                        }
                    }
                    Ok(true)
                })?;
                self.reload("DEBUG LOADAOF")?;
            }
            Step::RewriteAppendOnlyFile => {
                let _: Value = self.control.call("BGREWRITEAOF")?;
            }
            Step::Restart { keeps_data, abstains } => return self.restart(keeps_data, abstains),
            Step::Evict { policy } => self.evict(policy)?,
            Step::MoveClock { ms } => {
                self.wall.step_ms(ms);
                wait_until(CONDITION_LIMIT, "the server's clock is stepped", || {
                    let shown_us = time_us(self.control.call("TIME")?)?;
                    Ok(shown_us.abs_diff(self.now().wall_us) < 15_000)
                })?;
                // Keys may expire by the stepped clock.
                return self.settle(TOLERANCE_MS);
            }
            Step::AttachPeer => return self.attach_peer(),
            Step::DetachPeer => return self.detach_peer(),
            Step::CutLink(packet) => return self.cut_link(&packet),
            Step::ChangeRoles { unreachable_first, attach_at_once, packet } => {
                return self.change_roles(unreachable_first, attach_at_once, &packet);
            }
            Step::Packet(_) | Step::Late { .. } | Step::Disconnect { .. } | Step::Pass { .. } => {}
        }
        self.check_none_passed(&deadlines, 0)?;
        self.settle(TOLERANCE_MS)
    }

    fn expect_ok(&mut self, line: &str) -> Outcome {
        match self.control.call(line)? {
            Value::Okay => Ok(()),
            other => differ(format!("{line} was answered {other:?}")),
        }
    }

    fn reload(&mut self, line: &str) -> Outcome {
        self.expect_ok(line)?;
        let now = self.now();
        self.model.reload(now);
        Ok(())
    }

    /// Makes the server evict keys, and evicts the same keys from the model.
    fn evict(&mut self, policy: &str) -> Outcome {
        self.expect_ok(&format!("CONFIG SET maxmemory-policy {policy}"))?;
        let mut packet: Vec<_> =
            ["CONFIG SET maxmemory 1", "PING", "PING", "CONFIG SET maxmemory 0"].map(words).into();
        let before = packet.len();
        packet.extend(View::commands());
        let replies = self.control.call_all(&packet)?;
        let view = View::parse(&replies[before..])?;
        let now = self.now();
        let is_gone =
            |place: &Place| self.model.get(*place).is_some() && !view.keys.contains_key(place);
        let gone: Vec<_> = places().filter(is_gone).collect();
        // The server evicts in an unknown order, and serves waiters between two evictions.
        if gone.len() > 1 && self.model.server.node.waiters() > 0 {
            return Err(Trouble::Undecided);
        }
        for place in gone {
            self.model.evict(now, place);
        }
        Ok(())
    }

    fn pause(
        &mut self,
        before: Option<&Packet>,
        ends_wait: Option<Command>,
        disconnects: Option<usize>,
        postponed: Option<Packet>,
    ) -> Outcome {
        if let Some(before) = before {
            let from = self.now();
            self.packet(before, None)?;
            if self.now().monotonic.us_since(from.monotonic) > 25_000 {
                return Err(Trouble::Undecided);
            }
        }
        let from = self.now();
        let deadlines = self.model.deadlines(from);
        self.expect_ok("CLIENT PAUSE 100000 WRITE")?;
        self.model.server.keys.is_paused = true;
        self.check_none_passed(&deadlines, 5000)?;
        if let Some(command) = ends_wait {
            self.control.send(&[self.sent(&command)])?;
            let (reply, now) = (self.control.receive()?, self.now());
            self.execute_all((now, now), &Packet::one(0, command), &[Some(reply)])?;
        }
        if let Some(client) = disconnects {
            self.reconnect(client)?;
            self.model.disconnect(self.now(), client);
            // The server must notice the disconnection before the pause is over.
            wait_until(CONDITION_LIMIT, "the server notices", || {
                let waiters = self.model.server.node.waiters();
                Ok(self.control.info("lock", "lock_waiters")? == waiters.to_string())
            })?;
        }
        // A command that writes nothing is not postponed.
        let postponed = postponed.filter(|packet| {
            !["LOCK.INSPECT", "LOCK.SCAN"].contains(&packet.commands[0].words()[0])
        });
        if let Some(packet) = &postponed {
            let command = &packet.commands[0];
            self.note(format!("  client {}: {command}", packet.client));
            let sent = [words(&format!("SELECT {}", command.db)), self.sent(command)];
            let wire = &mut self.clients[packet.client];
            wire.send(&sent)?;
            wire.receive()?;
        }
        if before.is_some() {
            thread::sleep(PAUSE);
        } else {
            self.check_none_passed(&self.model.deadlines(from), 5000)?;
        }
        // The keys are compared after the pause. During the pause, the server keeps expired keys.
        let now = self.now();
        self.model.run_until(now);
        self.expect_ok("CLIENT UNPAUSE")?;
        self.model.server.keys.is_paused = false;
        if let Some(packet) = postponed {
            let (reply, now) = (self.clients[packet.client].receive()?, self.now());
            self.execute_all((now, now), &packet, &[Some(reply)])?;
        }
        self.settle(TOLERANCE_MS)
    }

    fn restart(&mut self, keeps_data: bool, abstains: bool) -> Outcome {
        let before = self.view()?;
        self.server.kill();
        self.server.set_arg("lock.rejoin-delay", if abstains { -1 } else { 0 });
        self.server.restart()?;
        self.control = Wire::connect(&self.server)?;
        for client in 0..self.clients.len() {
            self.reconnect(client)?;
        }
        let now = self.now();
        self.model.restart(now, abstains);
        // Fences grow across a restart, unless the wall clock was stepped back.
        if self.config.clock_steps {
            self.offsets.seen.clear();
        }
        if !keeps_data {
            return self.settle(TOLERANCE_MS);
        }
        let after = self.view()?;
        let mut left = before.keys;
        left.retain(|_, value| value.expires_at_ms.is_none_or(|at| at > self.now().wall_ms()));
        if self.config.append_only && left != after.keys {
            let (left, after) = (shown_keys(&left, now), shown_keys(&after.keys, now));
            return differ(format!("a restart:\n{left}\nhas left\n{after}"));
        }
        // The server may have loaded a snapshot that an earlier command or a replication wrote.
        self.take_over(after);
        self.settle(TOLERANCE_MS)
    }

    pub(super) fn view(&mut self) -> Outcome<View> {
        let replies = self.control.call_all(&View::commands())?;
        View::parse(&replies)
    }

    /// Makes the keys of the model those of the server.
    fn take_over(&mut self, view: View) {
        self.model.server.keys.clear();
        for (place, value) in view.keys {
            self.model.put(place, value);
        }
        self.tolerance_ms.clear();
    }

    /// The connection to the peer. Only an episode with a peer has steps that use it.
    fn peer(&mut self) -> &mut Wire {
        self.peer_wire.as_mut().unwrap_or_else(|| panic!("this episode has no peer"))
    }

    fn attach_peer(&mut self) -> Outcome {
        let line = format!("REPLICAOF 127.0.0.1 {}", self.server.port());
        let _: Value = self.peer().call(&line)?;
        self.peer_attached = true;
        self.compare_when_peer_follows()
    }

    fn compare_when_peer_follows(&mut self) -> Outcome {
        let its_port = self.server.port().to_string();
        wait_until(CONDITION_LIMIT, "the peer follows", || {
            Ok(self.peer().info("replication", "master_port")? == its_port
                && self.peer().info("replication", "master_link_status")? == "up"
                && self.control.info("replication", "slave0")?.contains("state=online"))
        })?;
        self.settle(TOLERANCE_MS)?;
        self.compare_with_peer()
    }

    fn detach_peer(&mut self) -> Outcome {
        let _: Value = self.peer().call("REPLICAOF NO ONE")?;
        self.peer_attached = false;
        wait_until(CONDITION_LIMIT, "the peer is gone", || {
            Ok(self.control.info("replication", "connected_slaves")? == "0")
        })?;
        self.settle(TOLERANCE_MS)
    }

    fn cut_link(&mut self, packet: &Packet) -> Outcome {
        let _: Value = self.control.call("CLIENT KILL TYPE replica")?;
        self.packet(packet, None)?;
        self.compare_when_peer_follows()
    }

    pub(super) fn compare_with_peer(&mut self) -> Outcome {
        let mut rounds = 0;
        loop {
            self.wait_for_quiet(100_000)?;
            // WAIT waits for the writes of its own connection, so this connection must write first.
            let packet = ["SELECT 9", "SET written last", "WAIT 1 10000"].map(words);
            let replies = self.control.call_all(&packet)?;
            if replies[2] == Value::Int(0) {
                return Err(anyhow!("the replica does not acknowledge writes").into());
            }
            let of_server = self.view()?.keys;
            let of_peer = View::parse(&self.peer().call_all(&View::commands())?)?.keys;
            rounds += 1;
            if of_server == of_peer {
                return Ok(());
            } else if rounds == 5 {
                let now = self.now();
                let [of_server, of_peer] = [of_server, of_peer].map(|keys| shown_keys(&keys, now));
                return differ(format!("the server has\n{of_server}\nits replica\n{of_peer}"));
            }
        }
    }

    fn change_roles(
        &mut self,
        unreachable_first: bool,
        attach_at_once: bool,
        packet: &Packet,
    ) -> Outcome {
        let _: Value = self.peer().call("REPLICAOF NO ONE")?;
        if !self.peer_attached {
            write_keys(self.peer(), &packet.commands)?;
        }
        self.peer_attached = false;
        if unreachable_first {
            // No server listens on this port.
            self.demote("REPLICAOF 127.0.0.1 1")?;
            thread::sleep(UNREACHABLE);
        }
        let its_port = self.peer.as_ref().context("there is no peer")?.port();
        self.demote(&format!("REPLICAOF 127.0.0.1 {its_port}"))?;
        wait_until(CONDITION_LIMIT, "the server follows", || {
            Ok(self.control.info("replication", "master_link_status")? == "up")
        })?;
        let line = format!("LOCK.ACQUIRE {} a 1000", KEYS[0]);
        let reply: Value = self.control.call(&line)?;
        let abstains = format!("ABSTAIN {}", Reason::Replica.word());
        let mut agrees = |start| compare(&Expected::error(start), &reply, &mut self.offsets);
        if !["READONLY", &abstains].into_iter().any(|start| agrees(start).is_ok()) {
            return differ(format!("a replica: {line} was answered {reply:?}"));
        }
        // On a replica, keys expire a little later than on the master.
        thread::sleep(Duration::from_millis(20));
        let _: Value = self.control.call("REPLICAOF NO ONE")?;
        let now = self.now();
        self.model.handle_event(now, &ServerEvent::Promoted);
        let view = self.view()?;
        self.take_over(view);
        self.settle(TOLERANCE_MS)?;
        self.wait_for_quiet(60_000)?;
        self.packet(packet, None)?;
        if attach_at_once { self.attach_peer() } else { Ok(()) }
    }

    /// Makes the server and the model replicas, and checks that the server has ended all waits.
    fn demote(&mut self, line: &str) -> Outcome {
        self.expect_ok(line)?;
        let now = self.now();
        for client in 0..self.clients.len() {
            if !self.model.disconnect(now, client) {
                continue;
            }
            match self.clients[client].receive() {
                Ok(Value::ServerError(error)) if error.code() == "UNBLOCKED" => {}
                Err(error) if error.is_connection_dropped() => {}
                other => {
                    return differ(format!(
                        "client {client} waited on a server that became a replica, and was not \
                         answered UNBLOCKED but {other:?}"
                    ));
                }
            }
            self.reconnect(client)?;
        }
        self.model.handle_event(now, &ServerEvent::Demoted);
        Ok(())
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
            self.accident(Step::Restart { keeps_data: true, abstains: false })?;
            self.inspect_all()?;
        }
        // The server must have no other keys than the model.
        for db in 0..DBS {
            let _: Value = self.control.call(&format!("SELECT {db}"))?;
            let size: usize = self.control.call("DBSIZE")?;
            let keys = self.model.server.keys.iter().filter(|(its_db, ..)| *its_db == db).count();
            if size != keys {
                return differ(format!("database {db} has {size} keys, in the model {keys}"));
            }
        }
        Ok(())
    }
}

/// Writes the keys that these commands extend or release, so that the commands find keys even if
/// the peer was never a replica of the server. In that case, the server may have no replication
/// backlog.
fn write_keys(peer: &mut Wire, commands: &[Command]) -> Outcome {
    let _: Value = peer.call("FLUSHALL")?;
    for (index, command) in commands.iter().enumerate() {
        let Some(lock) = command.lock() else { continue };
        let (key, token, ms) = (lock.keys[0], lock.token, 60_000 + 1000 * index);
        let _: Value = peer.call(&format!("SELECT {}", command.db))?;
        let _: Value = peer.call(&format!("SET {key} {token} PX {ms}"))?;
    }
    Ok(())
}
