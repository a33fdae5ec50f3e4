//! Threads of one program that meet in every order: many random schedules of the parts that they share, which are compiled
//! here with locks that let the scheduler choose.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]
#![allow(dead_code, reason = "the parts have more than is tested here")]

use std::collections::HashSet;
use std::time::Duration;

use shuttle::sync::mpsc::{Receiver, Sender, channel};
use shuttle::{check_random, future, thread};
use sync::{Arc, Mutex};

#[path = "../src/reach.rs"]
mod reach;
#[path = "../src/slots.rs"]
mod slots;

mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicBool, Ordering};
    pub(crate) use shuttle::sync::{Arc, Mutex};
    pub(crate) use std::sync::PoisonError;
}

use reach::{Reach, Reached};
use slots::Slots;

const SCHEDULES: usize = 2000;
/// Longer than a schedule takes.
const LONG: Duration = Duration::from_secs(60);

#[derive(Debug)]
enum Command {
    Acquire(Sender<bool>),
    Release,
}

/// A node that carries out what comes through its one connection, in that order. Ends when nobody can send any more.
fn node(commands: &Receiver<Command>) -> bool {
    let mut held = false;
    while let Ok(command) = commands.recv() {
        match command {
            Command::Acquire(answer) => {
                let _ = answer.send(!std::mem::replace(&mut held, true));
            }
            Command::Release => held = false,
        }
    }
    held
}

/// A node that missed a lock is repaired while the holder of the lock gives it back. Returns whether it is left there.
fn repair_against_release(undoes_itself: bool) -> bool {
    let (connection, commands) = channel();
    let node = thread::spawn(move || node(&commands));
    let reach = Arc::new(Reach::new(vec![Reached::No]));
    let repairing = {
        let (reach, connection) = (Arc::clone(&reach), connection.clone());
        thread::spawn(move || {
            if !reach.begin(0, &connection, LONG) {
                return;
            }
            let (answer, answered) = channel();
            connection.send(Command::Acquire(answer)).unwrap();
            assert!(answered.recv().unwrap(), "nobody else wants it");
            if undoes_itself && reach.is_over() {
                connection.send(Command::Release).unwrap();
            }
        })
    };
    let releasing = thread::spawn(move || {
        for reached in reach.end() {
            match reached {
                Reached::No => {}
                Reached::Through(connection) => connection.send(Command::Release).unwrap(),
                Reached::Somehow => unreachable!("it has not been told of any answer"),
            }
        }
    });
    repairing.join().unwrap();
    releasing.join().unwrap();
    drop(connection);
    node.join().unwrap()
}

#[test]
fn a_lock_that_is_given_back_while_it_is_repaired_is_left_nowhere() {
    check_random(|| assert!(!repair_against_release(true)), SCHEDULES);
}

#[test]
#[should_panic(expected = "it is left there")]
fn the_harm_if_a_repair_did_not_look_again() {
    check_random(|| assert!(!repair_against_release(false), "it is left there"), SCHEDULES);
}

#[test]
fn nothing_is_sent_for_a_lock_that_is_over() {
    check_random(
        || {
            let reach = Arc::new(Reach::new(vec![Reached::No, Reached::Somehow]));
            let ended = Arc::new(Mutex::new(false));
            let ending = {
                let (reach, ended) = (Arc::clone(&reach), Arc::clone(&ended));
                thread::spawn(move || {
                    let reached = reach.end();
                    *ended.lock().unwrap() = true;
                    reached
                })
            };
            let was_ended = *ended.lock().unwrap();
            let began = reach.begin(0, &(), LONG);
            assert!(!(was_ended && began));
            let reached = ending.join().unwrap();
            assert_eq!(began, matches!(reached[0], Reached::Through(())), "either knows of the other");
            assert!(matches!(reached[1], Reached::Somehow));
        },
        SCHEDULES,
    );
}

#[test]
fn a_node_is_asked_once_as_long_as_the_question_may_be_on_its_way() {
    check_random(
        || {
            let reach = Arc::new(Reach::new(vec![Reached::No]));
            let asking: Vec<_> = (0..3)
                .map(|connection| {
                    let reach = Arc::clone(&reach);
                    thread::spawn(move || reach.begin(0, &connection, LONG))
                })
                .collect();
            let asked =
                asking.into_iter().map(|asking| asking.join().unwrap()).filter(|asked| *asked).count();
            assert_eq!(asked, 1);
            assert!(reach.begin(0, &9, Duration::ZERO), "one that was given up is not in the way");
            reach.arrived(0, |&connection| connection == 9);
            assert!(reach.begin(0, &10, LONG), "nor one that has arrived");
        },
        SCHEDULES,
    );
}

#[test]
fn callers_of_a_key_take_turns_while_others_come_and_go_and_keys_are_forgotten() {
    check_random(
        || {
            let slots = Arc::new(Slots::default());
            let inside = Arc::new(Mutex::new(HashSet::new()));
            let callers: Vec<_> = (0..4_u8)
                .map(|caller| {
                    let (slots, inside) = (Arc::clone(&slots), Arc::clone(&inside));
                    future::spawn(async move {
                        for round in 0..2 {
                            // More keys than are remembered, and some of them the same.
                            let key: std::sync::Arc<[u8]> =
                                std::sync::Arc::from([(caller + round) % 3].as_slice());
                            let turn = slots.turn(&key).await;
                            assert!(inside.lock().unwrap().insert(key.clone()), "two at once");
                            turn.set_contended(true);
                            future::yield_now().await;
                            assert!(inside.lock().unwrap().remove(&key));
                            drop(turn);
                        }
                    })
                })
                .collect();
            future::block_on(async {
                for caller in callers {
                    caller.await.unwrap();
                }
            });
        },
        SCHEDULES,
    );
}

#[test]
fn a_caller_that_goes_away_while_it_queues_is_nobodys_turn() {
    check_random(
        || {
            let slots = Arc::new(Slots::default());
            let key: std::sync::Arc<[u8]> = std::sync::Arc::from(b"k".as_slice());
            let callers: Vec<_> = (0..3)
                .map(|_| {
                    let (slots, key) = (Arc::clone(&slots), key.clone());
                    future::spawn(async move { drop(slots.turn(&key).await) })
                })
                .collect();
            callers[1].abort();
            future::block_on(async {
                for caller in callers {
                    let _ = caller.await;
                }
                // It is free: nobody holds it who is not there.
                drop(slots.turn(&key).await);
            });
        },
        SCHEDULES,
    );
}
