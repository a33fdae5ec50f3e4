//! Connections to nodes: addresses, users, certificates, and distant nodes.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::common::{
    PATIENCE, connect, first_failure, locker_rules, net, patiently, set_user, until_voting,
};
use quorlock_client::{AcquireError, ConnectError, NodeError, Quorum, Released};
use quorlock_core::client::limits;
use quorlock_testkit::{Direction, Nodes, Proxy, ReservedPort, Server, eventually_async};
use tokio::time::Instant;

/// Starts a node that accepts TLS, and is its own authority. Also returns its TLS port and its
/// certificate.
fn tls_node(dir: &Path) -> (Server, ReservedPort, String) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (dir.join("node.pem"), dir.join("node.key"));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let reserved = ReservedPort::new(None).unwrap();
    let server = Server::with_module()
        .tcp()
        .arg("tls-port", reserved.number())
        .arg("tls-cert-file", certificate.display())
        .arg("tls-key-file", key.display())
        .arg("tls-ca-cert-file", certificate.display())
        .arg("tls-auth-clients", "no");
    (server.start().unwrap(), reserved, made.cert.pem())
}

async fn assert_works(quorum: &Quorum) {
    let mut lock = quorum.lock("k").acquire().await.unwrap();
    lock.extend().await.unwrap();
    assert_eq!(lock.release().await.unwrap(), Released::Released);
}

#[tokio::test]
async fn scheme_that_does_not_fit_the_port_is_a_permanent_error() {
    let dir = tempfile::tempdir().unwrap();
    let (node, reserved, authority) = tls_node(dir.path());
    for (url, hint) in [
        (format!("rediss://127.0.0.1:{}", node.port()), "write redis://"),
        (format!("redis://127.0.0.1:{}", reserved.number()), "write rediss://"),
    ] {
        let builder = Quorum::builder().node(url).root_certificates(authority.clone());
        let quorum = builder.connect().await.unwrap();
        // A call that waits for ever ends when no node can ever vote.
        let error = quorum.lock("k").wait(PATIENCE * 10).acquire().await.unwrap_err();
        let NodeError::Misconfigured { reason } = first_failure(&error) else { panic!("{error}") };
        assert!(
            reason.starts_with("is this port plain or TLS?") && reason.contains(hint),
            "{reason}"
        );
    }
}

/// The probe of a port must not blame one that only answers slowly.
#[tokio::test]
async fn slow_port_with_tls_is_not_taken_for_a_plain_one() {
    let dir = tempfile::tempdir().unwrap();
    let (_node, reserved, authority) = tls_node(dir.path());
    let proxy = Proxy::start(format!("redis://127.0.0.1:{}", reserved.number()));
    // A handshake takes two of these round trips, longer than the wait for the probe.
    proxy.delay(Direction::ToServer, limits::PORT_PROBE_AFTER);
    let url = proxy.url().replace("redis://", "rediss://");
    let builder = Quorum::builder().node(url).root_certificates(authority).node_timeout(PATIENCE);
    let quorum = builder.connect().await.unwrap();
    until_voting(&quorum, 1).await;
}

#[tokio::test]
async fn user_needs_only_the_documented_rights() {
    let nodes = Nodes::start_with(3, |_, builder| builder.tcp()).unwrap();
    // The test has another password, for the URL, and another key.
    let rules = locker_rules().replace("a-long-password", "s3cret/@").replace("~orders/*", "~k");
    for node in &nodes {
        set_user(node, "locks", &rules);
    }
    let with_user = |url: String| url.replace("redis://", "redis://locks:s3cret%2F%40@");
    let quorum = connect(nodes.urls().into_iter().map(with_user)).await;
    assert_works(&quorum).await;
    let refused = patiently(&quorum, "other").try_acquire().await;
    let Err(AcquireError::NoQuorum { nodes: answers }) = refused else {
        panic!("the user may not use this key")
    };
    let is_told = |(_, error): (_, &NodeError)| error.to_string().starts_with("NOPERM");
    assert!(answers.failed().all(is_told), "{answers}");
}

#[tokio::test]
async fn credentials_apply_to_urls_without_a_password() {
    const PASSWORD: &str = "s3cret/@%";
    let nodes = Nodes::start_with(3, |_, builder| builder.tcp()).unwrap();
    for node in &nodes {
        for user in ["locks", "other"] {
            set_user(node, user, &format!("on >{PASSWORD} >own ~* +@all"));
        }
        set_user(node, "default", "off");
    }
    let url = |index: usize, start: &str| nodes[index].url().replace("redis://", start);
    let urls = [url(0, "redis://"), url(1, "redis://other@"), url(2, "redis://other:own@")];
    let builder = Quorum::builder().nodes(urls).node_timeout(PATIENCE);
    let builder = builder.credentials("locks", PASSWORD);
    assert!(!format!("{builder:?}").contains(PASSWORD), "{builder:?}");
    let quorum = builder.connect().await.unwrap();
    until_voting(&quorum, 3).await;
    assert_works(&quorum).await;
    for (index, user) in ["locks", "other", "other"].into_iter().enumerate() {
        let admin = nodes[index].url().replace("redis://", "redis://locks:own@");
        let mut connection = redis::Client::open(admin).unwrap().get_connection().unwrap();
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut connection).unwrap();
        assert!(list.contains(&format!(" user={user} ")), "{user}: {list}");
    }

    let node = Server::with_module().tcp().arg("requirepass", PASSWORD).start().unwrap();
    let builder = Quorum::builder().node(node.url()).node_timeout(PATIENCE);
    assert_works(&builder.credentials("default", PASSWORD).connect().await.unwrap()).await;
}

#[tokio::test]
async fn sentinel_and_cluster_are_refused_with_an_explanation() {
    for url in
        ["redis-sentinel://a/mymaster", "redis+cluster://user:secret@a", "rediss-cluster://a"]
    {
        let error = Quorum::connect([url]).await.unwrap_err();
        assert!(matches!(error, ConnectError::InvalidUrl { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("is not supported, since") && !text.contains("secret"), "{text}");
    }
}

#[tokio::test]
async fn two_addresses_of_one_server_are_refused() {
    let nodes = Nodes::start(2);
    let again = Proxy::start(nodes[1].url());
    let urls = [nodes[0].url(), nodes[1].url(), again.url()];
    let mut named = Vec::new();
    // A client may be ready before it has reached the third address.
    eventually_async(PATIENCE, "one server would have two votes", async || {
        let Err(ConnectError::SameServer { nodes: same }) = Quorum::connect(&urls).await else {
            return false;
        };
        named.extend(same);
        true
    })
    .await;
    let addresses = [&nodes[1].url(), &again.url()];
    for node in &named {
        assert!(addresses.iter().any(|url| url.contains(node)), "{named:?}");
    }
}

#[tokio::test]
async fn server_found_later_to_have_two_addresses_has_one_vote() {
    let nodes = Nodes::start(2);
    let again = Proxy::start(nodes[1].url());
    again.cut();
    let urls = [nodes[0].url(), nodes[1].url(), again.url()];
    let quorum = Quorum::builder().nodes(urls).node_timeout(PATIENCE).connect().await.unwrap();
    until_voting(&quorum, 2).await;
    let mut lock = quorum.lock("k").acquire().await.unwrap();
    again.heal();
    eventually_async(PATIENCE, "the client knows that both addresses are one server", async || {
        lock.extend().await.unwrap();
        let error = format!("{:?}", quorum.lock("k").try_acquire().await);
        error.contains("SameServer")
    })
    .await;
    assert_eq!(lock.coverage().held, 2);
    until_voting(&quorum, 2).await;
}

/// `make test-distant` runs this test for a minute.
#[tokio::test]
async fn every_lock_is_acquired_on_nodes_that_are_200_ms_away() {
    let seconds = std::env::var("QUORLOCK_DISTANT_S").map_or(2, |seconds| seconds.parse().unwrap());
    let net = net(3).await;
    net.delay(Direction::ToServer, Duration::from_millis(100));
    net.delay(Direction::ToClient, Duration::from_millis(100));
    // A client that measures the round trips by itself.
    let quorum = Quorum::connect(net.proxies.iter().map(Proxy::url)).await.unwrap();
    let until = Instant::now() + Duration::from_secs(seconds);
    let callers = (0..4).map(|caller| {
        let quorum = quorum.clone();
        tokio::spawn(async move {
            let mut locks = 0;
            while Instant::now() < until {
                let lock = quorum.lock(format!("k{caller}")).acquire().await;
                let mut lock = lock.unwrap_or_else(|error| panic!("after {locks} locks: {error}"));
                lock.extend().await.unwrap();
                lock.release().await.unwrap();
                locks += 1;
            }
            locks
        })
    });
    let locks: u32 =
        futures_util::future::join_all(callers).await.into_iter().map(Result::unwrap).sum();
    println!("{locks} locks in {seconds} s, none refused");
    assert!(locks > 0);
}
