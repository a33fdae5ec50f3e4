//! Everything there is to a held lock; shared by its handle, those who watch it, and the rounds that extend it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorlock_core::quorum::{End, ExtensionVerdict, Lifetime, Moment, Standing, Tenure};
use quorlock_core::{Fence, Ttl};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::answers::report;
use crate::keys::Keys;
use crate::node::{Asked, Connection, Reached, Reply};
use crate::quorum::Shared;
use crate::reach::Reach;
use crate::token::Token;
use crate::{Answer, Coverage, Deadline, LostError, NodeError, Nodes, Ownership, clock};

/// How often it is looked whether a deadline has come. Timers stand still while a machine sleeps, and the lock's time
/// does not.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub(crate) struct Held {
    /// Tells the locks of one program apart.
    pub(crate) id: u64,
    pub(crate) shared: Arc<Shared>,
    pub(crate) keys: Keys,
    pub(crate) token: Token,
    pub(crate) owner: Option<String>,
    pub(crate) ttl: Ttl,
    pub(crate) fence: Fence,
    pub(crate) node_limit: Duration,
    max_hold: Duration,
    since: Moment,
    /// Whether the queue node of each key could have refused it.
    yielded_to_queues: bool,
    /// Whether it is, or was, extended by itself.
    kept: AtomicBool,
    reach: Reach<Connection>,
    /// Nodes that were not asked before it was won.
    reserve: Vec<usize>,
    /// Nodes that had not answered when it was decided. If they grant, they hold the lock as well; nobody waits for that,
    /// and it is looked whether they have whenever it matters.
    stragglers: Mutex<Asked>,
    state: Mutex<State>,
    /// It has ended.
    changed: Notify,
}

/// What a lock begins with.
pub(crate) struct Grant {
    pub(crate) shared: Arc<Shared>,
    pub(crate) keys: Keys,
    pub(crate) token: Token,
    pub(crate) owner: Option<String>,
    pub(crate) ttl: Ttl,
    pub(crate) fence: Fence,
    pub(crate) node_limit: Duration,
    pub(crate) max_hold: Duration,
    pub(crate) since: Moment,
    pub(crate) yielded_to_queues: bool,
    pub(crate) lifetime: Lifetime,
    pub(crate) reached: Vec<Reached>,
    /// Nodes that were not asked.
    pub(crate) reserve: Vec<usize>,
    /// Which start of its server each node was asked in.
    pub(crate) incarnations: Vec<u64>,
    pub(crate) answers: Vec<Answer>,
    pub(crate) stragglers: Asked,
}

struct State {
    tenure: Tenure,
    /// Its holder gave it back or away: what is answered from now on does not concern it.
    over: bool,
    nodes: Vec<Known>,
}

/// What is known of one node.
struct Known {
    answer: Answer,
    /// Which start of the server the answer is of.
    incarnation: u64,
    /// It has answered to something after the ACQUIRE that the lock began with.
    answered_since: bool,
}

impl Held {
    pub(crate) fn new(grant: Grant) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let Grant {
            shared,
            keys,
            token,
            owner,
            ttl,
            fence,
            node_limit,
            max_hold,
            since,
            yielded_to_queues,
            lifetime,
            reached,
            reserve,
            incarnations,
            answers,
            stragglers,
        } = grant;
        let known = |(answer, incarnation)| Known { answer, incarnation, answered_since: false };
        let nodes = answers.into_iter().zip(incarnations).map(known).collect();
        let state = State { tenure: Tenure::new(lifetime, since, max_hold), over: false, nodes };
        Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            keys,
            token,
            owner,
            ttl,
            fence,
            node_limit,
            max_hold,
            since,
            yielded_to_queues,
            kept: AtomicBool::new(false),
            reach: Reach::new(reached),
            reserve,
            stragglers: Mutex::new(stragglers),
            state: Mutex::new(state),
            changed: Notify::new(),
            shared,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How things stand; also after it was given back, when it is as good as lost.
    pub(crate) fn standing(&self) -> Standing {
        // In this order: what is decided in between is decided of a later moment.
        let now = clock::now();
        let state = self.state();
        if state.over { Standing::Lost(End::NotHeld) } else { state.tenure.standing(now) }
    }

    pub(crate) fn ownership(&self) -> Ownership {
        let now = clock::now();
        match self.standing() {
            Standing::Held(left) => Ownership::Held(Deadline::new(now, left)),
            Standing::Uncertain(left) => Ownership::Uncertain(Deadline::new(now, left)),
            Standing::Lost(_) => Ownership::Lost,
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self.standing() {
            Standing::Held(left) | Standing::Uncertain(left) => left,
            Standing::Lost(_) => Duration::ZERO,
        }
    }

    pub(crate) fn max_hold(&self) -> Duration {
        self.max_hold
    }

    /// How long it has been held.
    pub(crate) fn held_for(&self) -> Duration {
        clock::now().since(self.since)
    }

    /// Counts the nodes that said yes last, and have not been started again since.
    pub(crate) fn coverage(&self) -> Coverage {
        Coverage { held: self.holding_nodes().len(), nodes: self.shared.nodes.len() }
    }

    /// The nodes that said yes last, and have not been started again since.
    pub(crate) fn holding_nodes(&self) -> Vec<usize> {
        self.hear_stragglers();
        let state = self.state();
        let nodes = state.nodes.iter().zip(&self.shared.nodes).enumerate();
        let holding = nodes.filter(|(_, (known, node))| {
            matches!(known.answer, Answer::Yes(_)) && known.incarnation == node.incarnation()
        });
        holding.map(|(index, _)| index).collect()
    }

    /// What each node answered last.
    pub(crate) fn report(&self) -> Nodes {
        self.hear_stragglers();
        let answers: Vec<_> = self.state().nodes.iter().map(|known| known.answer.clone()).collect();
        report(&self.shared.nodes, &answers)
    }

    /// Whether an extension could make it last longer. `Err` when it has ended.
    pub(crate) fn is_extensible(&self) -> Result<bool, LostError> {
        let now = clock::now();
        match self.standing() {
            Standing::Lost(end) => Err(self.lost_by(end)),
            Standing::Held(_) | Standing::Uncertain(_) => Ok(self.state().tenure.is_extensible(now)),
        }
    }

    /// When it is to be extended next, if it is to be.
    pub(crate) fn extend_in(&self) -> Option<Duration> {
        let now = clock::now();
        let state = self.state();
        if state.over { None } else { state.tenure.extend_in(now, self.ttl) }
    }

    /// Waits until it has ended: why it was lost, which is at its deadline at the latest; or `None` when it was given back.
    pub(crate) async fn ended(&self) -> Option<LostError> {
        loop {
            // From here on no change is missed.
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (over, standing) = {
                let now = clock::now();
                let state = self.state();
                (state.over, state.tenure.standing(now))
            };
            let left = match standing {
                _ if over => return None,
                Standing::Lost(end) => return Some(self.lost_by(end)),
                Standing::Held(left) | Standing::Uncertain(left) => left,
            };
            tokio::select! {
                () = changed => {}
                () = sleep(left.min(LOOK_EVERY)) => {}
            }
        }
    }

    /// Takes down what a round of extends came to.
    pub(crate) fn settle(&self, verdict: ExtensionVerdict) {
        let mut state = self.state();
        if state.over {
            return;
        }
        state.tenure.settle(verdict, clock::now());
        drop(state);
        if matches!(verdict, ExtensionVerdict::Lost) {
            self.changed.notify_waiters();
        }
    }

    /// Takes down what a node answered to an extension that was sent through this connection.
    pub(crate) fn heard(&self, node: usize, reply: &Reply, generation: u64) {
        let incarnation = self.shared.nodes[node].incarnation();
        // What it said before that.
        self.hear_stragglers();
        self.hear(node, reply, incarnation, |acquire| acquire.generation() == generation);
    }

    /// Takes down what a node answered to ACQUIRE when it was repaired.
    pub(crate) fn heard_of_repair(&self, node: usize, reply: &Reply) {
        self.hear(node, reply, self.shared.nodes[node].incarnation(), |_| true);
    }

    /// Takes down what nodes have answered to ACQUIRE since it was decided.
    fn hear_stragglers(&self) {
        let mut stragglers = self.stragglers.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((node, reply)) = stragglers.take_done() {
            {
                let known = &mut self.state().nodes[node];
                // Until then it is known which start of the server was asked.
                if !known.answered_since {
                    known.answer = reply.answer();
                }
            }
            if matches!(reply, Reply::No) {
                self.refused_late(node);
            }
            self.arrived(node, &reply, |_| true);
        }
    }

    /// A node refused when the lock was won already. If it is one to which that would have yielded, others wait there.
    fn refused_late(&self, node: usize) {
        if self.yielded_to_queues && self.shared.queue_nodes(&self.keys).contains(&node) {
            self.shared.slots.set_contended(&self.keys);
        }
    }

    fn hear(
        &self,
        node: usize,
        reply: &Reply,
        incarnation: u64,
        shows_arrival: impl FnOnce(&Connection) -> bool,
    ) {
        self.state().nodes[node] = Known { answer: reply.answer(), incarnation, answered_since: true };
        self.arrived(node, reply, shows_arrival);
    }

    /// With an answer that shows that the node's ACQUIRE, sent through that connection, has arrived, any connection will do
    /// for its release.
    fn arrived(&self, node: usize, reply: &Reply, shows_arrival: impl FnOnce(&Connection) -> bool) {
        if !matches!(reply, Reply::Failed(_)) {
            self.reach.arrived(node, shows_arrival);
        }
    }

    /// A node is about to be sent an ACQUIRE through this connection; `false` if there is no lock to be repaired any more.
    pub(crate) fn reach(&self, node: usize, connection: &Connection) -> bool {
        self.hear_stragglers();
        !matches!(self.standing(), Standing::Lost(_))
            && self.reach.begin(node, connection, self.ttl.duration())
    }

    /// Whether this node was left alone when the lock was acquired, and since: it does not have it.
    pub(crate) fn was_never_asked(&self, node: usize) -> bool {
        self.was_in_reserve(node) && !self.reach.has_reached(node)
    }

    /// Whether this node was left alone when the lock was acquired.
    pub(crate) fn was_in_reserve(&self, node: usize) -> bool {
        self.reserve.contains(&node)
    }

    /// Whether it is held, and not known to be on all nodes.
    pub(crate) fn is_narrow(&self) -> bool {
        let coverage = self.coverage();
        coverage.held < coverage.nodes && !self.is_over() && !matches!(self.standing(), Standing::Lost(_))
    }

    /// Whether its holder gave it back or away.
    pub(crate) fn is_over(&self) -> bool {
        self.reach.is_over()
    }

    /// Its holder gives it back or away: how things stood, and where it must be released.
    pub(crate) fn end(&self) -> (Standing, Vec<Reached>) {
        let standing = self.standing();
        self.hear_stragglers();
        // Whatever else they say is of no interest, and their connections are not kept for it.
        *self.stragglers.lock().unwrap_or_else(PoisonError::into_inner) = Asked::new();
        let reached = self.reach.end();
        self.state().over = true;
        self.changed.notify_waiters();
        (standing, reached)
    }

    /// Has it extended from now on.
    pub(crate) fn keep(this: &Arc<Self>) {
        this.kept.store(true, Ordering::Relaxed);
        this.shared.keeper.keep(this);
    }

    /// It need not be extended any more.
    pub(crate) fn forget(&self) {
        if self.kept.load(Ordering::Relaxed) {
            self.shared.keeper.forget(self);
        }
    }

    /// Takes down what the nodes answered to its release.
    pub(crate) fn heard_of_release(&self, answers: Vec<Answer>) {
        for (known, answer) in self.state().nodes.iter_mut().zip(answers) {
            known.answer = answer;
        }
    }

    /// Nodes that have not answered by the limit failed.
    pub(crate) fn time_is_up(&self, nodes: impl Iterator<Item = usize>) {
        let mut state = self.state();
        for node in nodes {
            state.nodes[node].answer = Answer::Failed(NodeError::timed_out(self.node_limit));
        }
    }

    pub(crate) fn lost_by(&self, end: End) -> LostError {
        match end {
            End::NotHeld => LostError::Ended { nodes: self.report() },
            End::Expired => LostError::Expired { nodes: self.report() },
            End::HeldTooLong => LostError::HeldTooLong { max_hold: self.max_hold },
        }
    }
}

#[cfg(test)]
mod tests {
    use quorlock_testkit::Masters;
    use tokio::time::{Duration, timeout};

    use crate::clock::tests::sleep_through;
    use crate::{LostError, Ownership, Quorum};

    const SOON: Duration = Duration::from_secs(3);

    #[tokio::test]
    async fn a_machine_that_slept_through_the_deadline_has_lost_the_lock_when_it_wakes() {
        let masters = Masters::start(3);
        let quorum = Quorum::builder().nodes(masters.urls()).node_limit(SOON).connect().await.unwrap();
        let lock = quorum.lock("k").ttl(Duration::from_secs(30)).acquire().await.unwrap();
        let watch = lock.watch();
        let waiting = tokio::spawn(async move { watch.lost().await });
        // It has armed its timer before the machine sleeps.
        tokio::task::yield_now().await;
        sleep_through(Duration::from_secs(30));
        assert_eq!(lock.ownership(), Ownership::Lost);
        let lost = timeout(SOON, waiting).await.expect("it is noticed without the timer").unwrap();
        assert!(matches!(lost, LostError::Expired { .. }), "{lost}");
    }

    #[tokio::test]
    async fn a_kept_lock_is_extended_as_soon_as_the_machine_wakes() {
        let masters = Masters::start(3);
        let quorum = Quorum::builder().nodes(masters.urls()).node_limit(SOON).connect().await.unwrap();
        let mut lock = quorum.lock("k").ttl(Duration::from_secs(60)).acquire().await.unwrap();
        lock.keep_alive();
        tokio::task::yield_now().await;
        sleep_through(Duration::from_secs(40));
        assert!(lock.remaining() < Duration::from_secs(20));
        quorlock_testkit::eventually_async(SOON, "it is extended", async || {
            lock.remaining() > Duration::from_secs(55)
        })
        .await;
    }
}
