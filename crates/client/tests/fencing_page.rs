//! The SQL and the script of docs/fencing.md refuse late writers, and no others.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use quorlock_testkit::Server;
use rusqlite::Connection;

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

#[test]
fn column_beside_the_data_refuses_a_late_writer() {
    let sql = block("sql", "ALTER TABLE stock");
    let database = Connection::open_in_memory().unwrap();
    database.execute_batch("CREATE TABLE stock (name TEXT, apples INTEGER)").unwrap();
    database.execute("INSERT INTO stock VALUES ('shop', 10)", []).unwrap();
    database.execute_batch(statement(sql, "ALTER TABLE")).unwrap();
    let write = |apples: i64, fence: i64| {
        let values: [(&str, &dyn rusqlite::ToSql); 3] =
            [(":apples", &apples), (":fence", &fence), (":name", &"shop")];
        database.execute(statement(sql, "UPDATE"), &values).unwrap()
    };
    assert_eq!(write(9, 33), 1);
    assert_eq!(write(8, 33), 1, "the same holder writes again");
    assert_eq!(write(7, 34), 1);
    assert_eq!(write(6, 33), 0, "too late");
    let left: i64 = database.query_row("SELECT apples FROM stock", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 7);
}

#[test]
fn table_of_fences_refuses_a_late_writer() {
    let sql = block("sql", "CREATE TABLE fences");
    let database = Connection::open_in_memory().unwrap();
    database.execute_batch(statement(sql, "CREATE TABLE")).unwrap();
    let pass = |key: &str, fence: i64| {
        let values: [(&str, &dyn rusqlite::ToSql); 2] = [(":key", &key), (":fence", &fence)];
        database.execute(statement(sql, "INSERT INTO fences"), &values).unwrap()
    };
    assert_eq!([pass("a", 33), pass("a", 33), pass("a", 34), pass("a", 33)], [1, 1, 1, 0]);
    assert_eq!(pass("b", 33), 1, "another lock has fences of its own");
}

#[test]
fn script_refuses_a_late_writer() {
    // `LATE` and `LATE + 1` are the largest fences. Lua compares them as floating-point numbers.
    const LATE: u64 = (1 << 53) - 2;
    let server = Server::builder().start().unwrap();
    let mut connection = server.connection();
    let script = block("lua", "redis.call");
    let mut write = |fence: u64, value: &str| -> u64 {
        let mut eval = redis::cmd("EVAL");
        eval.arg(&[script, "1", "stock/apples"]).arg(fence).arg(value);
        eval.query(&mut connection).unwrap()
    };
    assert_eq!(write(LATE, "9"), 1);
    assert_eq!(write(LATE, "8"), 1, "the same holder writes again");
    assert_eq!(write(LATE + 1, "7"), 1);
    assert_eq!(write(LATE, "6"), 0, "too late");
    let mut read = redis::cmd("HGET");
    let left: String =
        read.arg(&["stock/apples", "value"]).query(&mut server.connection()).unwrap();
    assert_eq!(left, "7");
}
