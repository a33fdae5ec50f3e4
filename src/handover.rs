//! The end of a lock by its token, and the handover to whoever waits for it.

use quorlock_core::Fence;
use quorlock_core::node::{HandOver, Mirror as _, Next, Released, Seen, Ticket};

use crate::error::CommandError;
use crate::ffi::{Access, Arg, Ctx, Held, Key, clock};
use crate::waiting::{self, Grant};
use crate::{module, tell};

/// Gives a lock back, and hands it over to the first who waits for it. Whether the token held it.
pub(crate) fn release(ctx: &Ctx<'_>, key: Arg<'_>, token: Arg<'_>) -> Result<bool, CommandError> {
    let db = ctx.db();
    let mut mirror = Key::open(ctx, key, Access::Write);
    let (decided, has_queue) = {
        let node = &mut module::state().node;
        let decided = node.release(clock::monotonic(), db, key.as_bytes(), token.as_bytes(), &mirror);
        (decided, node.has_queue(db, key.as_bytes()))
    };
    let (released, delete) = match decided {
        Released::Released(delete) => (true, delete),
        Released::NotHeld(delete) => (false, delete),
        Released::WrongType => return Err(CommandError::WrongType),
    };
    if delete {
        mirror.delete();
    }
    // What is handed over at once is written once: a SET, and no DEL before it.
    let handed_over = has_queue && hand_over(ctx, db, key, mirror);
    if delete && !handed_over {
        tell::delete(ctx, key);
    }
    Ok(released)
}

/// Gives back whatever the token holds of these keys. Whether there was anything. Of keys that are no strings it is said
/// only when there was nothing: the others are released all the same.
pub(crate) fn release_all(ctx: &Ctx<'_>, keys: &[Arg<'_>], token: Arg<'_>) -> Result<bool, CommandError> {
    let mut nothing = Ok(false);
    let mut any = false;
    for &key in keys {
        match release(ctx, key, token) {
            Ok(released) => any |= released,
            Err(error) => nothing = Err(error),
        }
    }
    if any { Ok(true) } else { nothing }
}

/// Hands a key over to the next who waits for it, if it is free; with all other keys that it waits for. Whether the key was
/// handed over.
pub(crate) fn hand_over<'ctx>(ctx: &Ctx<'ctx>, db: u32, key: Arg<'_>, mut mirror: Key<'ctx>) -> bool {
    /// What is left of [`Next`] when the node is let go of.
    enum Turn {
        Granted(Granted),
        Several(Ticket, Vec<Held>),
    }

    let now = clock::now();
    loop {
        let turn = match module::state().node.hand_over(now, db, key.as_bytes(), &mirror) {
            Next::Nobody => return false,
            Next::Granted(next) => Turn::Granted(Granted::of(&next)),
            Next::Several { ticket, keys } => {
                Turn::Several(ticket, keys.into_iter().map(Held::share).collect())
            }
        };
        let (ticket, keys) = match turn {
            Turn::Granted(granted) => return grant(ctx, db, &[key], granted, &mut [mirror]),
            Turn::Several(ticket, keys) => (ticket, keys),
        };
        // A key is open once at a time.
        drop(mirror);
        let keys: Vec<_> = keys.iter().map(Held::lend).collect();
        let mut mirrors = Key::open_all(ctx, &keys);
        let next = module::state().node.hand_over_all(now, ticket, &mirrors).map(|next| Granted::of(&next));
        if let Some(granted) = next {
            return grant(ctx, db, &keys, granted, &mut mirrors);
        }
        drop(mirrors);
        mirror = Key::open(ctx, key, Access::Write);
    }
}

/// What is left of a [`HandOver`] when the node is let go of.
struct Granted {
    ticket: Ticket,
    token: Held,
    fence: Fence,
    waited_us: u64,
    expires_at_ms: u64,
}

impl Granted {
    fn of(next: &HandOver<'_, Held>) -> Self {
        let &HandOver { ticket, token, fence, waited_us, expires_at_ms } = next;
        Self { ticket, token: token.share(), fence, waited_us, expires_at_ms }
    }
}

/// Writes what was granted to one who waited, and tells it. Whether it could be written.
fn grant(ctx: &Ctx<'_>, db: u32, keys: &[Arg<'_>], granted: Granted, mirrors: &mut [Key<'_>]) -> bool {
    let Granted { ticket, token, fence, waited_us, expires_at_ms } = granted;
    let written = write(ctx, db, keys, token.lend(), expires_at_ms, mirrors);
    if written {
        waiting::grant(ticket, Grant { db, key: keys[0].share(), token, fence, waited_us });
    } else {
        waiting::dismiss(ticket, Some(CommandError::NotWritten));
    }
    written
}

/// Writes the keys of a lock that was granted. False, and the grant is taken back, when one cannot be written.
pub(crate) fn write(
    ctx: &Ctx<'_>,
    db: u32,
    keys: &[Arg<'_>],
    token: Arg<'_>,
    expires_at_ms: u64,
    mirrors: &mut [Key<'_>],
) -> bool {
    if !mirrors.iter_mut().all(|mirror| mirror.set(token, expires_at_ms)) {
        module::state().node.revoke(db, keys[0].as_bytes());
        for (mirror, &key) in mirrors.iter_mut().zip(keys) {
            if mirror.seen() == Seen::Text {
                mirror.delete();
                tell::delete(ctx, key);
            }
        }
        return false;
    }
    // Only when all are written: whoever is told may do something to the others.
    for &key in keys {
        tell::set(ctx, key, token, expires_at_ms);
    }
    true
}
