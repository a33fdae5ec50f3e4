use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::redis::aio::{ConnectionLike, MultiplexedConnection};
use ::redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, RedisFuture, RedisResult, Value};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rand::RngExt as _;
use tokio::sync::{Notify, watch};
use tokio::task::unconstrained;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::roll::Roll;
use crate::NodeError;

/// How many commands a connection takes before it has written the first of them. Far more than are ever on their way at
/// the same time: those that wait for a place may be overtaken by those that come when there is one, and a lock whose
/// RELEASE overtakes its ACQUIRE stays on that node until its time is over.
const QUEUE_MAX: usize = 65_536;
/// How long an attempt to connect may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// The first pause between attempts to connect; it doubles.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest pause between attempts to connect.
const PAUSE_MAX: Duration = Duration::from_millis(400);
/// The shortest pause while an earlier attempt is still on its way: it may be a long one.
const STAGGER: Duration = Duration::from_millis(250);
/// How many attempts are on their way at the same time.
const ATTEMPTS_MAX: usize = 6;
/// How often it is looked whether a connection still works: an idle one tells nobody that it has broken.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long a node may take to show that it does. After that another connection is made beside it.
const SILENCE_MAX: Duration = Duration::from_millis(400);
/// How often it is looked which server a ready connection leads to, unless there is a reason.
const READY_LOOK_EVERY: Duration = Duration::from_secs(2);

/// The way to one node. It is mended behind everybody's back: whoever asks while it is broken is told so at once.
pub(crate) struct Link {
    name: Arc<str>,
    roll: Arc<Roll>,
    state: watch::Sender<State>,
    /// Somebody found a connection broken.
    broken: Arc<Notify>,
    /// The server's run id, when it was last connected.
    identity: Mutex<Option<Arc<str>>>,
    incarnation: AtomicU64,
}

enum State {
    /// Nothing is known yet.
    New,
    Up(Connection),
    Down(NodeError),
}

/// One connection to a node; shared by all who ask it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Wire>);

struct Wire {
    way: Way,
    /// Which of a link's connections this is.
    generation: u64,
    /// Whether somebody found it broken, and who wants to know.
    broken: (AtomicBool, Arc<Notify>),
}

/// What a server says of itself.
struct Server {
    run_id: Option<Arc<str>>,
    mode: Option<String>,
}

/// Why a connection is watched over no longer.
enum Unwatched {
    Broken,
    /// This one works, beside the one that does not answer.
    Replaced(MultiplexedConnection, Server),
}

impl Link {
    /// A link through a connection that is there already, and that mends itself if it can: see
    /// [`Link::watch_ready`].
    pub(crate) fn ready(
        name: &str,
        roll: &Arc<Roll>,
        handle: impl ConnectionLike + Clone + Send + Sync + 'static,
    ) -> Self {
        let this = Self::unconnected(name, roll);
        this.state.send_replace(State::Up(this.wire(Way::Ready(Handle(Box::new(handle))), 0)));
        this
    }

    /// A link that is not connected yet: see [`Link::keep_connected`].
    pub(crate) fn unconnected(name: &str, roll: &Arc<Roll>) -> Self {
        Self {
            name: name.into(),
            roll: Arc::clone(roll),
            state: watch::Sender::new(State::New),
            broken: Arc::default(),
            identity: Mutex::default(),
            incarnation: AtomicU64::new(0),
        }
    }

    fn wire(&self, way: Way, generation: u64) -> Connection {
        let broken = (AtomicBool::new(false), Arc::clone(&self.broken));
        Connection(Arc::new(Wire { way, generation, broken }))
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(&*self.state.borrow(), State::Up(_))
    }

    pub(crate) fn connection(&self) -> Result<Connection, NodeError> {
        match &*self.state.borrow() {
            State::Up(connection) => Ok(connection.clone()),
            State::Down(error) => Err(error.clone()),
            State::New => Err(NodeError::Down { reason: "still connecting".into() }),
        }
    }

    /// Waits, for so long at most, until it is known whether the node can be reached.
    pub(crate) async fn settled(&self, limit: Duration) {
        let mut state = self.state.subscribe();
        let _ = timeout(limit, state.wait_for(|state| !matches!(state, State::New))).await;
    }

    /// Which start of the server this is, as far as this client has seen.
    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Acquire)
    }

    pub(crate) fn identity(&self) -> Option<Arc<str>> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Connects, and connects again whenever the connection breaks or does not answer, until told to stop.
    pub(crate) async fn keep_connected(&self, client: &Client, stop: CancellationToken) {
        tokio::select! {
            () = self.mend(client) => {}
            () = stop.cancelled() => {}
        }
    }

    async fn mend(&self, client: &Client) {
        let mut generation = 0;
        loop {
            let down = |reason| {
                self.state.send_replace(State::Down(NodeError::Down { reason }));
            };
            let mut connected = connect(client, down).await;
            loop {
                let (connection, server) = connected;
                if let Err(error) = self.admit(&server) {
                    self.state.send_replace(State::Down(error));
                    // Whoever runs it may put this right.
                    sleep(PAUSE_MAX).await;
                    break;
                }
                generation += 1;
                let up = self.wire(Way::Own(connection.clone()), generation);
                self.state.send_replace(State::Up(up.clone()));
                match self.watch_over(connection, &up, client).await {
                    Unwatched::Broken => {
                        down("the connection was lost".into());
                        break;
                    }
                    Unwatched::Replaced(new, server) => {
                        tracing::debug!(node = %self.name, "did not answer, and does so on a new connection");
                        connected = (new, server);
                    }
                }
            }
            self.roll.leave(&self.name);
        }
    }

    /// Whether this server can have this node's vote. If so, it is known from now on by its run id.
    fn admit(&self, server: &Server) -> Result<(), NodeError> {
        if let Some(mode) = server.mode.clone().filter(|mode| mode != "standalone") {
            return Err(NodeError::NotAMaster { mode });
        }
        // One that does not tell is known by its address.
        let Some(run_id) = &server.run_id else { return Ok(()) };
        if let Err(other) = self.roll.enter(&self.name, run_id) {
            tracing::warn!(node = %self.name, same = %other, "two addresses lead to one server: it has one vote");
            return Err(NodeError::SameServer { node: other.to_string() });
        }
        let mut identity = self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        let before = identity.replace(Arc::clone(run_id));
        if before.is_some_and(|before| before != *run_id) {
            tracing::warn!(node = %self.name, "was started again: what it said before need not hold any more");
            self.incarnation.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// Returns when the connection is broken, or when it does not answer and another one does.
    async fn watch_over(
        &self,
        mut connection: MultiplexedConnection,
        up: &Connection,
        client: &Client,
    ) -> Unwatched {
        let broken = async {
            while !up.is_broken() {
                self.broken.notified().await;
            }
        };
        tokio::pin!(broken);
        loop {
            tokio::select! {
                () = &mut broken => return Unwatched::Broken,
                () = sleep(LOOK_EVERY) => {}
            }
            let ping = ::redis::cmd("PING");
            let answered = connection.send_packed_command(&ping);
            tokio::pin!(answered);
            let another = async {
                sleep(SILENCE_MAX).await;
                // Whatever else were asked would be kept until it is answered, and that might be without end.
                self.state.send_replace(State::Down(NodeError::timed_out(SILENCE_MAX)));
                connect(client, |_| ()).await
            };
            tokio::select! {
                biased;
                answered = &mut answered => match answered {
                    Err(error) if error.is_unrecoverable_error() || error.is_io_error() => {
                        return Unwatched::Broken;
                    }
                    Ok(_) | Err(_) => {
                        self.state.send_if_modified(|state| {
                            let was_silent = matches!(state, State::Down(_));
                            if was_silent {
                                *state = State::Up(up.clone());
                            }
                            was_silent
                        });
                    }
                },
                () = &mut broken => return Unwatched::Broken,
                (another, server) = another => return Unwatched::Replaced(another, server),
            }
        }
    }

    /// Looks, until told to stop, whether the server that a ready connection leads to can have a vote.
    pub(crate) async fn watch_ready(&self, stop: CancellationToken) {
        let Ok(connection) = self.connection() else { return };
        let Way::Ready(handle) = &connection.0.way else { return };
        let looking = async {
            loop {
                if let Ok(Ok(server)) = timeout(CONNECT_LIMIT, identify(&mut handle.clone())).await {
                    let state = match self.admit(&server) {
                        Ok(()) => State::Up(connection.clone()),
                        Err(error) => State::Down(error),
                    };
                    self.state.send_replace(state);
                }
                let _ = timeout(READY_LOOK_EVERY, self.broken.notified()).await;
                sleep(PAUSE_MIN).await;
            }
        };
        tokio::select! {
            () = looking => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Connects, however often it takes. An attempt on its way does not keep later ones from being made: a network that
/// swallowed its first byte may be back long before it is given up.
async fn connect(client: &Client, failed: impl Fn(String)) -> (MultiplexedConnection, Server) {
    let mut attempts = FuturesUnordered::new();
    let mut pause = PAUSE_MIN;
    let mut next = Instant::now();
    loop {
        tokio::select! {
            biased;
            Some(connected) = attempts.next(), if !attempts.is_empty() => match connected {
                Ok(connected) => return connected,
                Err(reason) => failed(reason),
            },
            () = sleep_until(next), if attempts.len() < ATTEMPTS_MAX => {
                let stagger = if attempts.is_empty() { Duration::ZERO } else { STAGGER };
                attempts.push(attempt(client));
                // Not all clients of a node that comes back at the same time.
                let pause_now = pause.max(stagger).mul_f64(rand::rng().random_range(0.75..1.0));
                next = Instant::now() + pause_now;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

/// One attempt. A connection on which nothing is answered is none.
async fn attempt(client: &Client) -> Result<(MultiplexedConnection, Server), String> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_LIMIT))
        // Every question has a time limit of its own; a second one would only cut waits short.
        .set_response_timeout(None)
        .set_pipeline_buffer_size(QUEUE_MAX);
    let connecting = async {
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let server = identify(&mut connection).await?;
        Ok((connection, server))
    };
    match timeout(CONNECT_LIMIT, connecting).await {
        Ok(connected) => connected.map_err(|error: ::redis::RedisError| error.to_string()),
        Err(_) => Err(format!("connecting took longer than {} ms", CONNECT_LIMIT.as_millis())),
    }
}

/// Asks a server what it is. One that may not say so to this user is just not known; but it must answer.
async fn identify(connection: &mut impl ConnectionLike) -> Result<Server, ::redis::RedisError> {
    let info = match ::redis::cmd("INFO").arg("server").query_async::<String>(connection).await {
        Ok(info) => info,
        Err(error) if error.is_unrecoverable_error() || error.is_io_error() => return Err(error),
        Err(_) => String::new(),
    };
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Ok(Server { run_id: field("run_id:").map(Into::into), mode: field("redis_mode:").map(str::to_owned) })
}

/// What a connection goes through.
enum Way {
    /// What this client has made.
    Own(MultiplexedConnection),
    /// What the caller handed in.
    Ready(Handle),
}

impl Connection {
    /// Which of a link's connections this is.
    pub(crate) fn generation(&self) -> u64 {
        self.0.generation
    }

    /// It was found to be broken. Its link makes another one.
    pub(super) fn broken(&self) {
        let (broken, tell) = &self.0.broken;
        broken.store(true, Ordering::Release);
        tell.notify_one();
    }

    fn is_broken(&self) -> bool {
        self.0.broken.0.load(Ordering::Acquire)
    }

    /// Asks a question. It is sent at the first poll, however much else its task has done in this turn: what tokio held up
    /// there might be sent after what undoes it.
    pub(super) async fn send(&self, question: &Cmd) -> RedisResult<Value> {
        match &self.0.way {
            Way::Own(connection) => unconstrained(connection.clone().send_packed_command(question)).await,
            Way::Ready(handle) => unconstrained(handle.clone().req_packed_command(question)).await,
        }
    }

    /// Asks many questions at once, likewise.
    pub(super) async fn send_all(&self, questions: &Pipeline) -> RedisResult<Vec<Value>> {
        let count = questions.len();
        match &self.0.way {
            Way::Own(connection) => {
                unconstrained(connection.clone().send_packed_commands(questions, 0, count)).await
            }
            Way::Ready(handle) => {
                unconstrained(handle.clone().req_packed_commands(questions, 0, count)).await
            }
        }
    }
}

/// Any connection that can be shared.
struct Handle(Box<dyn Shared>);

trait Shared: ConnectionLike + Send + Sync {
    fn share(&self) -> Box<dyn Shared>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Shared for C {
    fn share(&self) -> Box<dyn Shared> {
        Box::new(self.clone())
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self(self.0.share())
    }
}

impl ConnectionLike for Handle {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.0.req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.0.req_packed_commands(commands, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}
