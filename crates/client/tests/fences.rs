//! What a fence costs, and how programs use it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;

use crate::common::{
    Net, net_of, nodes_with_equal_fences, patiently, quorum, until_held_on, wait_until_all_hold,
    wait_until_free,
};
use quorlock_client::{Fence, FenceGate, Quorum};
use quorlock_testkit::{Inject as _, Nodes, Proxy, Server, WallClock, calls};
use rusqlite::{Connection, ToSql};

#[tokio::test]
async fn uncontended_lock_costs_one_round_trip() {
    let Net { nodes, proxies, quorum } = net_of(nodes_with_equal_fences()).await;
    let mut counted = 0;
    for _ in 0..20 {
        let before: Vec<_> = proxies.iter().map(Proxy::round_trips).collect();
        let lock = patiently(&quorum, "k").try_acquire().await.unwrap();
        wait_until_all_hold(&nodes, "k").await;
        until_held_on(&lock, 3).await;
        let after: Vec<_> = proxies.iter().map(Proxy::round_trips).collect();
        let round_trips: Vec<_> =
            after.iter().zip(&before).map(|(after, before)| after - before).collect();
        // A check of a connection counts as a round trip too.
        counted += u32::from(round_trips == [1, 1, 1]);
        lock.release().await.unwrap();
        wait_until_free(&nodes, "k").await;
    }
    assert!(counted >= 10, "{counted} of 20 locks took one round trip");
    for node in &nodes {
        assert_eq!(calls(node, "lock.acquire"), 20);
        assert_eq!(calls(node, "lock.extend"), 0, "all nodes granted the same fence");
    }
}

#[tokio::test]
async fn new_nodes_cost_a_client_at_most_two_extra_rounds() {
    // The fences of each node begin a minute above its own clock.
    let (nodes, quorum) = quorum(3).await;
    let mut last = None;
    let mut second_rounds = 0;
    for _ in 0..10 {
        let extends = || nodes.iter().map(|node| calls(node, "lock.extend")).sum::<u64>();
        let before = extends();
        let lock = patiently(&quorum, "k").acquire().await.unwrap();
        assert!(Some(lock.fence()) > last, "{} after {last:?}", lock.fence());
        last = Some(lock.fence());
        lock.release().await.unwrap();
        wait_until_free(&nodes, "k").await;
        second_rounds += u32::from(extends() > before);
    }
    assert!(second_rounds <= 2, "{second_rounds}");
}

#[tokio::test]
async fn client_goes_on_with_a_key_after_all_clocks_were_ahead() {
    let clock = WallClock::new();
    // A node's fences begin above the clock that it reads at its start.
    clock.step_ms(3_600_000);
    let nodes = Nodes::start_with(3, |_, builder| builder.wall_clock(&clock)).unwrap();
    let quorum = Quorum::connect(nodes.urls()).await.unwrap();
    let mut last = None;
    for step_ms in [0, -3_600_000, 0] {
        clock.step_ms(step_ms);
        let lock = patiently(&quorum, "k").try_acquire().await.unwrap();
        assert!(Some(lock.fence()) > last, "{} after {last:?}", lock.fence());
        last = Some(lock.fence());
        lock.release().await.unwrap();
        wait_until_free(&nodes, "k").await;
    }
}

const PAGE: &str = include_str!("../../../docs/fencing.md");

/// The page's code block in this language that contains these words.
fn block(language: &str, words: &str) -> &'static str {
    let blocks =
        PAGE.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix(language));
    blocks.into_iter().find(|block| block.contains(words)).unwrap()
}

/// The block's statement that begins with these words.
fn statement(block: &'static str, begin: &str) -> &'static str {
    let from = &block[block.find(begin).unwrap()..];
    &from[..=from.find(';').unwrap()]
}

/// This and the next one are the largest fences. Lua compares them as floating-point numbers.
const LATE: u64 = (1 << 53) - 2;

/// Asserts that a resource refuses writes of an earlier holder. `write` returns the number of
/// writes with this fence that were accepted.
fn assert_refuses_a_late_writer(mut write: impl FnMut(u64) -> u64) {
    assert_eq!(write(LATE), 1);
    assert_eq!(write(LATE), 1, "the same holder writes again");
    assert_eq!(write(LATE + 1), 1);
    assert_eq!(write(LATE), 0, "too late");
}

#[test]
fn column_beside_the_data_refuses_a_late_writer() {
    let sql = block("sql", "ALTER TABLE stock");
    let database = Connection::open_in_memory().unwrap();
    database.execute_batch("CREATE TABLE stock (name TEXT, apples INTEGER)").unwrap();
    database.execute("INSERT INTO stock VALUES ('shop', 10)", []).unwrap();
    database.execute_batch(statement(sql, "ALTER TABLE")).unwrap();
    assert_refuses_a_late_writer(|fence| {
        let values: [(&str, &dyn ToSql); 3] =
            [(":apples", &7), (":fence", &fence), (":name", &"shop")];
        database.execute(statement(sql, "UPDATE"), &values).unwrap() as u64
    });
}

#[test]
fn table_of_fences_refuses_a_late_writer() {
    let sql = block("sql", "CREATE TABLE fences");
    let database = Connection::open_in_memory().unwrap();
    database.execute_batch(statement(sql, "CREATE TABLE")).unwrap();
    // The fences of another lock are unrelated.
    for key in ["a", "b"] {
        assert_refuses_a_late_writer(|fence| {
            let values: [(&str, &dyn ToSql); 2] = [(":key", &key), (":fence", &fence)];
            database.execute(statement(sql, "INSERT INTO fences"), &values).unwrap() as u64
        });
    }
}

#[test]
fn script_refuses_a_late_writer() {
    let server = Server::builder().start().unwrap();
    let mut connection = server.connection();
    let script = block("lua", "redis.call");
    assert_refuses_a_late_writer(|fence| {
        let mut eval = redis::cmd("EVAL");
        eval.arg(&[script, "1", "stock/apples"]).arg(fence).arg(fence);
        eval.query(&mut connection).unwrap()
    });
    let mut read = redis::cmd("HGET");
    let last: u64 = read.arg(&["stock/apples", "value"]).query(&mut connection).unwrap();
    assert_eq!(last, LATE + 1, "the late value is not written");
}

fn fence(n: u64) -> Fence {
    Fence::new(n).unwrap()
}

#[test]
fn gate_continues_from_the_stored_fence() {
    let gate = FenceGate::resume(fence(40));
    let stale = gate.check(fence(39)).unwrap_err().to_string();
    assert!(stale.contains("39") && stale.contains("40"), "{stale}");
    assert!(gate.check(fence(40)).is_ok());
}

#[test]
fn fence_of_work_that_panics_is_remembered() {
    let gate = FenceGate::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| gate.pass(fence(5), || panic!("half-way"))));
    assert!(panicked.is_err());
    assert!(gate.check(fence(4)).is_err(), "the work may have written something");
    assert!(gate.check(fence(5)).is_ok());
}

#[test]
fn fences_of_writes_inside_a_gate_never_decrease() {
    let gate = FenceGate::new();
    let written = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for writer in 0..8_u64 {
            let (gate, written) = (&gate, &written);
            scope.spawn(move || {
                for n in 0..2000 {
                    let mine = fence(1 + n * 8 + (writer * 5 + n) % 8);
                    // The mutex protects the vector only. The gate keeps the order.
                    let _ = gate.pass(mine, || written.lock().unwrap().push(mine));
                }
            });
        }
    });
    let written = written.into_inner().unwrap();
    assert!(written.is_sorted());
    assert_eq!(written.last(), Some(&gate.largest()));
}
