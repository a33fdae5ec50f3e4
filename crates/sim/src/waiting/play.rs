use std::collections::BTreeMap;

use quorlock_core::quorum::order;

use super::client::{Alarm, Client, Effect};
use super::network::{Kind, Network, Way};
use super::server::{Caller, KEY, Reply, Request, Server};
use super::{Account, Scene};

/// Plays a scene to its end. The same scene always comes to the same.
///
/// # Panics
/// When two clients hold the lock at the same time.
pub fn play(scene: &Scene) -> Account {
    Play::new(scene).run()
}

/// A scene that is being played.
struct Play {
    now_us: u64,
    ends_us: u64,
    /// What happens when; of what happens at the same time, what was brought about first.
    agenda: BTreeMap<(u64, u64), Event>,
    brought_about: u64,
    network: Network,
    servers: Vec<Server>,
    /// When each server is to have its turn next.
    turns_us: Vec<Option<u64>>,
    clients: Vec<Client>,
    holder: Option<usize>,
    account: Account,
}

#[derive(Clone, Copy)]
enum Event {
    Command { node: usize, from: Caller, request: Request },
    Reply { node: usize, reply: Reply },
    Alarm { client: usize, alarm: Alarm },
    Turn { node: usize },
}

impl Play {
    fn new(scene: &Scene) -> Self {
        let identities: Vec<_> = (0..scene.nodes).map(|node| format!("node {node}")).collect();
        let queue_node = order(KEY, identities.iter().map(String::as_bytes))[0];
        let client = |number: usize| {
            let cut_from = (number < scene.cut_off).then_some(queue_node);
            Client::new(index(number), scene, &identities, cut_from)
        };
        let mut this = Self {
            now_us: 0,
            ends_us: u64::try_from(scene.lasts.as_micros()).unwrap_or(u64::MAX),
            agenda: BTreeMap::new(),
            brought_about: 0,
            network: Network::new(scene, queue_node),
            servers: (0..scene.nodes).map(|_| Server::new(scene.clients)).collect(),
            turns_us: vec![None; scene.nodes],
            clients: (0..scene.clients).map(client).collect(),
            holder: None,
            account: Account::new(scene.lasts, scene.clients),
        };
        for client in 0..scene.clients {
            let begins = this.clients[client].begin();
            this.carry_out(client, vec![begins]);
        }
        this
    }

    fn run(mut self) -> Account {
        while let Some(((at_us, _), event)) = self.agenda.pop_first()
            && at_us < self.ends_us
        {
            self.now_us = at_us;
            self.happen(event);
        }
        self.account.close(self.ends_us);
        self.account
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Command { node, from, request } => {
                self.account.command();
                let replies = self.servers[node].execute(self.now_us, from, request);
                self.answer(node, replies);
            }
            Event::Turn { node } => {
                // Another turn may have been taken or come up since.
                if self.turns_us[node] == Some(self.now_us) {
                    self.turns_us[node] = None;
                    let replies = self.servers[node].turn(self.now_us);
                    self.answer(node, replies);
                }
            }
            Event::Reply { node, reply } => {
                let client = reply.to.client as usize;
                let effects = self.clients[client].hear(self.now_us, node, reply);
                self.carry_out(client, effects);
            }
            Event::Alarm { client, alarm } => {
                let effects = self.clients[client].called(self.now_us, alarm);
                self.carry_out(client, effects);
            }
        }
    }

    fn answer(&mut self, node: usize, replies: Vec<Reply>) {
        for reply in replies {
            let kind = if reply.waited { Kind::ForWaiting } else { Kind::Shared };
            let way = Way { client: reply.to.client as usize, node, kind, back: true };
            let at_us = self.network.arrival_us(self.now_us, way);
            self.bring_about(at_us, Event::Reply { node, reply });
        }
        let next_us = self.servers[node].next_turn_us().map(|at_us| at_us.max(self.now_us + 1));
        if next_us != self.turns_us[node] {
            self.turns_us[node] = next_us;
            if let Some(at_us) = next_us {
                self.bring_about(at_us, Event::Turn { node });
            }
        }
    }

    fn carry_out(&mut self, client: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Wants => self.account.wants(client, self.now_us),
                Effect::Ask { node, from, request } => {
                    let waits = matches!(request, Request::Wait { .. });
                    let kind = if waits { Kind::ForWaiting } else { Kind::Shared };
                    let way = Way { client, node, kind, back: false };
                    let at_us = self.network.arrival_us(self.now_us, way);
                    self.bring_about(at_us, Event::Command { node, from, request });
                }
                Effect::Call { at_us, alarm } => self.bring_about(at_us, Event::Alarm { client, alarm }),
                Effect::Has => {
                    let other = self.holder.replace(client);
                    assert_eq!(other, None, "{client} has the lock, and somebody else, too");
                    self.account.has(client, self.now_us);
                }
                Effect::Gives => self.holder = None,
            }
        }
    }

    fn bring_about(&mut self, at_us: u64, event: Event) {
        self.brought_about += 1;
        self.agenda.insert((at_us, self.brought_about), event);
    }
}

fn index(number: usize) -> u32 {
    u32::try_from(number).expect("a scene has a few clients")
}
