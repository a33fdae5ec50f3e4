//! The end of a lock by its token, and the handover to whoever waits for it.

use quorlock_core::node::Released;

use crate::error::CommandError;
use crate::ffi::{Access, Arg, Ctx, Key, clock};
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
    let handed_over = has_queue && hand_over(ctx, db, key, &mut mirror);
    if delete && !handed_over {
        tell::delete(ctx, key);
    }
    Ok(released)
}

/// Hands a key over to the first who waits for it, if it is free. Whether it was.
pub(crate) fn hand_over(ctx: &Ctx<'_>, db: u32, key: Arg<'_>, mirror: &mut Key<'_>) -> bool {
    let now = clock::now();
    let next = module::state().node.hand_over(now, db, &key, mirror).map(|next| {
        let (fence, waited_us) = (next.fence, next.waited_us);
        let grant = Grant { db, key: key.share(), token: next.token.share(), fence, waited_us };
        (next.ticket, grant, next.expires_at_ms)
    });
    let Some((ticket, grant, expires_at_ms)) = next else { return false };
    if !mirror.set(grant.token.lend(), expires_at_ms) {
        module::state().node.revoke(db, key.as_bytes());
        waiting::dismiss(ticket, Some(CommandError::NotWritten));
        return false;
    }
    tell::set(ctx, key, grant.token.lend(), expires_at_ms);
    waiting::grant(ticket, grant);
    true
}
