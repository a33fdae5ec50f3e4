use std::thread;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use redis::{Value, cmd};

use super::outcome::Deed;
use super::{Doing, Shared};

/// How long to leave everybody alone.
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// Does bad things to clients until all of them have ended.
pub(super) fn reign(shared: &Shared<'_>) {
    let mut dice = SmallRng::seed_from_u64(!shared.stress.seed);
    let mut connection = shared.server.connection();
    while !shared.is_over() {
        let victim = dice.random_range(0..shared.stress.clients);
        if let Some(Doing { client_id, key, token }) = shared.doing(victim) {
            let unblock = |how: &str| cmd("CLIENT").arg("UNBLOCK").arg(client_id).arg(how).take();
            let (deed, command) = match dice.random_range(0..100) {
                0..40 => (Deed::Kill, cmd("CLIENT").arg("KILL").arg("ID").arg(client_id).take()),
                40..55 => (Deed::Unblock, unblock("TIMEOUT")),
                55..70 => (Deed::Unblock, unblock("ERROR")),
                70..85 => (Deed::Withdraw, cmd("LOCK.RELEASE").arg(&key).arg(&token).take()),
                _ => (Deed::Delete, cmd("DEL").arg(&key).take()),
            };
            let done = command.query::<Value>(&mut connection).expect("nobody kills this client");
            // A withdrawal of one who waits is answered 0, and is the only one of them that is.
            if deed == Deed::Withdraw || done == Value::Int(1) {
                shared.tally.did(deed);
            }
        }
        thread::sleep(dice.random_range(Duration::ZERO..=PAUSE_MAX));
    }
}
