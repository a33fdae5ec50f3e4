//! A token is a capability: any program that has it can release the lock. The client shows it only
//! in the text of a detached lock.

use std::fmt::Write as _;
use std::time::Duration;

use crate::common::{PATIENCE, Recorder, connect, delete, net, until_voting, wait_until_all_hold};
use quorlock_client::DetachedLock;
use quorlock_testkit::{Direction, Server, eventually_async};
use tracing::Level;

fn token(node: &Server, key: &str) -> String {
    redis::cmd("GET").arg(key).query(&mut node.connection()).unwrap()
}

#[tokio::test]
async fn no_token_is_in_logs_errors_or_debug_output() {
    let logged = Recorder::new(Level::TRACE);
    let _listening = logged.listen();
    let net = net(3).await;
    let limit = Duration::from_millis(300);
    let builder =
        net.quorum.lock("orders/42").ttl(Duration::from_secs(20)).node_timeout(limit).owner("me");
    let mut lock = builder.acquire().await.unwrap();
    wait_until_all_hold(&net.nodes, "orders/42").await;
    let mut secrets = vec![token(&net.nodes[0], "orders/42")];
    let mut shown = format!("{builder:?} {lock:?} {:?} {:?}", lock.watch(), net.quorum);

    writeln!(shown, "{:?}", builder.try_acquire().await.unwrap_err()).unwrap();
    lock.extend().await.unwrap();
    let detached = lock.detach();
    writeln!(shown, "{detached:?}").unwrap();
    let text = detached.to_secret_text();
    assert!(text.contains(&secrets[0]), "only this text shows the token");
    lock = net.quorum.attach(detached).await.unwrap();
    eventually_async(PATIENCE, "the first node has the new token", async || {
        token(&net.nodes[0], "orders/42") != secrets[0]
    })
    .await;
    secrets.push(token(&net.nodes[0], "orders/42"));
    writeln!(shown, "{:?}", net.quorum.attach(text.parse().unwrap()).await.unwrap_err()).unwrap();
    writeln!(shown, "{:?}", text.replace(':', ";").parse::<DetachedLock>().unwrap_err()).unwrap();
    net.hold(Direction::ToClient);
    writeln!(shown, "{:?}", lock.extend().await.unwrap_err()).unwrap();
    net.heal();
    until_voting(&net.quorum, 3).await;
    delete(&net.nodes, "orders/42");
    let lost = lock.extend().await.unwrap_err();
    writeln!(shown, "{lost} {lost:?} {:?}", lock.lost().await).unwrap();
    drop(lock);

    // A server quotes the arguments of an unknown command, such as those of LOCK.ACQUIRE once the
    // module is unloaded.
    let server = Server::with_module().start().unwrap();
    let quorum = connect([server.url()]).await;
    redis::cmd("MODULE").arg("UNLOAD").arg("lock").exec(&mut server.connection()).unwrap();
    let error = quorum.lock("k").try_acquire().await.unwrap_err();
    assert!(format!("{error:?}").contains("NoModule"), "{error:?}");
    writeln!(shown, "{error:?}").unwrap();
    quorum.flush(PATIENCE).await.unwrap();
    net.quorum.flush(PATIENCE).await.unwrap();

    // What could have shown a token: the report of each node, a grant and a loss.
    let logged = logged.text();
    for expected in [
        "key: orders/42",
        "attempts: 1",
        "coverage: ",
        ": granted",
        "message: granted",
        "the lock is lost",
    ] {
        assert!(logged.contains(expected), "{expected} is not logged:\n{logged}");
    }
    for secret in secrets {
        assert_eq!(secret.len(), 32);
        assert!(!logged.contains(&secret) && !shown.contains(&secret));
    }
    // The tokens of refused attempts are unknown. So no word may have the form of a token.
    for text in [logged.as_str(), &shown] {
        let words = text.split(|c: char| !c.is_ascii_hexdigit());
        assert_eq!(words.filter(|word| word.len() == 32).count(), 0, "{text}");
    }
}
