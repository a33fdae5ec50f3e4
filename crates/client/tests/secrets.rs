//! A token is a capability: a program that knows it can release the lock. Only the text of a
//! detached lock shows it.

#![allow(clippy::format_push_string, reason = "the test appends to the shown text step by step")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{PATIENCE, net, nodes_and_voters, wait_until_all_hold};
use quorlock_client::DetachedLock;
use quorlock_testkit::{Direction, Server, eventually_async};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// All events of `tracing`, of every crate and level, as one text.
#[derive(Clone, Default)]
struct Everything(Arc<Mutex<String>>);

impl Everything {
    fn add(&self, what: &str, record: impl FnOnce(&mut dyn Visit)) {
        let mut text = self.0.lock().unwrap();
        write!(text, "\n{what}").unwrap();
        record(&mut Fields(&mut text));
    }
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Everything {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.add(span.metadata().name(), |fields| span.record(fields));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        self.add("", |fields| values.record(fields));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.add(event.metadata().target(), |fields| event.record(fields));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn token(master: &Server, key: &str) -> String {
    redis::cmd("GET").arg(key).query(&mut master.connection()).unwrap()
}

#[tokio::test]
async fn no_token_is_in_logs_errors_or_debug_output() {
    let logged = Everything::default();
    let _listening = tracing::subscriber::set_default(logged.clone());
    let net = net(3).await;
    let limit = Duration::from_millis(300);
    let builder =
        net.quorum.lock("orders/42").ttl(Duration::from_secs(20)).node_timeout(limit).owner("me");
    let mut lock = builder.acquire().await.unwrap();
    wait_until_all_hold(&net.masters, "orders/42").await;
    let mut secrets = vec![token(&net.masters[0], "orders/42")];
    let mut shown = format!("{builder:?} {lock:?} {:?} {:?}", lock.watch(), net.quorum);

    // Errors of several calls, with the answers of the nodes.
    writeln!(shown, "{:?}", builder.try_acquire().await.unwrap_err()).unwrap();
    lock.extend().await.unwrap();
    let detached = lock.detach();
    writeln!(shown, "{detached:?}").unwrap();
    let text = detached.to_secret_text();
    assert!(text.contains(&secrets[0]), "only this text shows the token");
    lock = net.quorum.attach(detached).await.unwrap();
    wait_until_all_hold(&net.masters, "orders/42").await;
    secrets.push(token(&net.masters[0], "orders/42"));
    writeln!(shown, "{:?}", net.quorum.attach(text.parse().unwrap()).await.unwrap_err()).unwrap();
    writeln!(shown, "{:?}", text.replace(':', ";").parse::<DetachedLock>().unwrap_err()).unwrap();
    for proxy in &net.proxies {
        proxy.stall(Direction::ToClient);
    }
    writeln!(shown, "{:?}", lock.extend().await.unwrap_err()).unwrap();
    for proxy in &net.proxies {
        proxy.heal();
    }
    eventually_async(PATIENCE, "all nodes answer again", async || {
        nodes_and_voters(&net.quorum).1 == 3
    })
    .await;
    for master in &net.masters {
        redis::cmd("DEL").arg("orders/42").exec(&mut master.connection()).unwrap();
    }
    let lost = lock.extend().await.unwrap_err();
    writeln!(shown, "{lost} {lost:?} {:?}", lock.lost().await).unwrap();
    drop(lock);

    // A server that quotes the arguments of a command that it does not know.
    let plain = Server::builder().start().unwrap();
    let quorum = quorlock_client::Quorum::connect([plain.url()]).await.unwrap();
    writeln!(shown, "{:?}", quorum.lock("k").try_acquire().await.unwrap_err()).unwrap();
    quorum.flush(PATIENCE).await.unwrap();
    net.quorum.flush(PATIENCE).await.unwrap();

    let logged = logged.0.lock().unwrap();
    for expected in
        ["key=orders/42", "attempts=1", "coverage=", ": granted", "granted", "the lock is lost"]
    {
        assert!(logged.contains(expected), "{expected} is not logged:\n{logged}");
    }
    for secret in secrets {
        assert_eq!(secret.len(), 32);
        assert!(!logged.contains(&secret) && !shown.contains(&secret));
    }
    // Refused attempts had tokens, too. No word looks like a token.
    for text in [logged.as_str(), &shown] {
        let words = text.split(|c: char| !c.is_ascii_hexdigit());
        assert_eq!(words.filter(|word| word.len() == 32).count(), 0, "{text}");
    }
}
