//! Sends the requests of all locks to one node in batches. Requests that are made before the
//! sending task runs travel in one pipeline, with one write and one wake-up for all of them.

use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, Pipeline, RedisError, Value};
use futures_util::future::{BoxFuture, FutureExt as _, ready};
use futures_util::stream::{FuturesOrdered, StreamExt as _};
use quorlock_core::client::{NodeError, Response};
use tokio::sync::Notify;
use tokio::task::unconstrained;
use tokio_util::task::AbortOnDropHandle;

use super::command::{Outgoing, read_error};
use super::ticket::Ticket;

/// The limit for one connection, in requests.
pub(super) const UNANSWERED_MAX: usize = 65_536;
/// In requests. The replies to a batch are delivered together, after the last one has arrived.
const BATCH_MAX: usize = 256;

/// The requests to one connection, in the order in which they were made.
pub(super) struct Batches {
    queue: Arc<Queue>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    /// Notifies the sending task of the first request since the last batch.
    added: Notify,
}

#[derive(Default)]
struct State {
    waiting: Vec<QueuedRequest>,
    unanswered: usize,
    /// Whether the sending task has ended.
    closed: bool,
}

/// A request, and the place for its response.
struct QueuedRequest {
    outgoing: Outgoing,
    ticket: Ticket,
}

/// A batch, and the replies to its commands.
type Answered = (Vec<QueuedRequest>, Result<Vec<Value>, RedisError>);

impl Batches {
    pub(super) fn start(wire: MultiplexedConnection) -> Self {
        let queue = Arc::new(Queue::default());
        // All other tasks wait for this one, so tokio's budget for a task does not apply to it.
        let task = tokio::spawn(unconstrained(run(wire, Closing(Arc::clone(&queue)))));
        Self { queue, _task: AbortOnDropHandle::new(task) }
    }

    /// Adds a request behind all earlier ones, unless it fails at once. Needs no runtime.
    pub(super) fn add(
        &self,
        outgoing: Outgoing,
        ticket: impl FnOnce() -> Ticket,
    ) -> Result<(), NodeError> {
        let mut state = self.queue.state();
        if state.closed {
            return Err(NodeError::connection_lost());
        }
        if state.unanswered >= UNANSWERED_MAX {
            let reason = format!("{UNANSWERED_MAX} requests have no reply yet");
            return Err(NodeError::Down { reason });
        }
        state.unanswered += 1;
        state.waiting.push(QueuedRequest { outgoing, ticket: ticket() });
        if state.waiting.len() == 1 {
            drop(state);
            self.queue.added.notify_one();
        }
        Ok(())
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fails all requests when the sending task ends, for whatever reason.
struct Closing(Arc<Queue>);

impl Drop for Closing {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.0.state();
            state.closed = true;
            mem::take(&mut state.waiting)
        };
        // Dropping a request fails it.
        drop(waiting);
    }
}

async fn run(wire: MultiplexedConnection, queue: Closing) {
    let queue = &queue.0;
    // Batches are answered in the order in which they were sent, whichever is polled first.
    let mut sent: FuturesOrdered<BoxFuture<'static, Answered>> = FuturesOrdered::new();
    loop {
        tokio::select! {
            biased;
            Some((batch, replies)) = sent.next() => {
                queue.state().unanswered -= batch.len();
                finish(batch, replies);
            }
            () = queue.added.notified() => {
                run_others().await;
                let mut waiting = mem::take(&mut queue.state().waiting).into_iter();
                while waiting.len() > 0 {
                    let batch = waiting.by_ref().take(BATCH_MAX).collect();
                    let mut sending = send(wire.clone(), batch).boxed();
                    // Sent before any later batch: a RELEASE must not overtake its ACQUIRE.
                    match poll_fn(|cx| Poll::Ready(sending.poll_unpin(cx))).await {
                        Poll::Ready(answered) => sent.push_back(ready(answered).boxed()),
                        Poll::Pending => sent.push_back(sending),
                    }
                }
            }
        }
    }
}

/// Lets the tasks that are ready run first. They may add requests.
async fn run_others() {
    let mut ran = false;
    poll_fn(|cx| {
        if mem::replace(&mut ran, true) {
            return Poll::Ready(());
        }
        // `yield_now` would also wait for a poll of all sockets and timers.
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Sends a batch at the first poll. Returns it with its replies.
async fn send(mut wire: MultiplexedConnection, batch: Vec<QueuedRequest>) -> Answered {
    // A single command is sent without a copy.
    if let [request] = &batch[..] {
        let reply = wire.send_packed_command(&request.outgoing.packet).await;
        return (batch, reply.map(|reply| vec![reply]));
    }
    let mut pipeline = Pipeline::with_capacity(batch.len());
    for request in &batch {
        pipeline.add_command(Cmd::clone(&request.outgoing.packet));
    }
    let replies = wire.send_packed_commands(&pipeline, 0, batch.len()).await;
    (batch, replies)
}

fn finish(batch: Vec<QueuedRequest>, replies: Result<Vec<Value>, RedisError>) {
    let error = match replies {
        Ok(replies) if replies.len() == batch.len() => {
            for (QueuedRequest { outgoing, ticket }, reply) in batch.into_iter().zip(replies) {
                ticket.answer(outgoing.read(Ok(reply)));
            }
            return;
        }
        Ok(_) => NodeError::UnexpectedReply,
        Err(error) => read_error(&error),
    };
    for request in batch {
        request.ticket.answer(Response::Failed(error.clone()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, Weak};
    use std::time::Duration;

    use quorlock_core::Ttl;
    use quorlock_core::client::{Command, Keys, NodeError, Request, Response, Spec, Token};
    use quorlock_testkit::Server;
    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::{BATCH_MAX, UNANSWERED_MAX};
    use crate::transport::{Connection, Endpoint, Inbox, Outgoing, Ticket, open};

    const SOON: Duration = Duration::from_secs(30);

    async fn connect(server: &Server) -> Arc<Connection> {
        let client = ::redis::Client::open(server.url()).unwrap();
        let endpoint = Endpoint::new(&client).unwrap();
        Arc::new(open(&endpoint, 1, || {}).await.unwrap().0)
    }

    fn request(key: &str, command: Command) -> Outgoing {
        let spec = Spec::exclusive(Keys::from_iter([key]), Ttl::from_ms(60_000).unwrap());
        Outgoing::new(&spec, &Request { token: Token::of_bits(1), command })
    }

    /// The inbox of one response.
    struct Asker(Mutex<Option<oneshot::Sender<Response>>>);

    impl Inbox for Asker {
        fn put(self: Arc<Self>, _: usize, _: u64, response: Response) {
            self.0.lock().unwrap().take().unwrap().send(response).unwrap();
        }
    }

    struct Asked {
        response: oneshot::Receiver<Response>,
        _inbox: Arc<Asker>,
    }

    fn ask(connection: &Arc<Connection>, outgoing: Outgoing) -> Asked {
        let (sender, response) = oneshot::channel();
        let inbox = Arc::new(Asker(Mutex::new(Some(sender))));
        let weak: Weak<Asker> = Arc::downgrade(&inbox);
        if let Err(error) = connection.ask(outgoing, || Ticket::new(weak, 0, 0)) {
            Arc::clone(&inbox).put(0, 0, Response::Failed(error));
        }
        Asked { response, _inbox: inbox }
    }

    async fn response(asked: &mut Asked) -> Response {
        timeout(SOON, &mut asked.response).await.expect("the request was not answered").unwrap()
    }

    fn assert_failed_at_once(asked: &mut Asked) {
        assert_down(&asked.response.try_recv().expect("the request has not failed"));
    }

    fn assert_down(response: &Response) {
        assert!(matches!(response, Response::Failed(NodeError::Down { .. })), "{response:?}");
    }

    fn reads(server: &Server) -> u64 {
        let info: String =
            ::redis::cmd("INFO").arg("stats").query(&mut server.connection()).unwrap();
        info.lines()
            .find_map(|line| line.strip_prefix("total_reads_processed:")?.parse().ok())
            .unwrap()
    }

    #[tokio::test]
    async fn requests_made_together_travel_together_and_in_order() {
        let server = Server::with_module().start().unwrap();
        let connection = connect(&server).await;
        let before = reads(&server);
        let fence = quorlock_core::Fence::new(7).unwrap();
        let mut asked: Vec<_> = (0..BATCH_MAX)
            .map(|key| {
                let key = format!("k{key}");
                let acquire = ask(&connection, request(&key, Command::Acquire { fence }));
                (acquire, ask(&connection, request(&key, Command::Release)))
            })
            .collect();
        for (acquire, release) in &mut asked {
            assert!(matches!(response(acquire).await, Response::Fence(_)));
            assert_eq!(response(release).await, Response::Yes);
        }
        let reads = reads(&server) - before;
        assert!(reads < 20, "{reads} reads for {} requests", 2 * BATCH_MAX);
    }

    #[tokio::test]
    async fn requests_beyond_the_limit_fail_at_once() {
        let server = Server::with_module().start().unwrap();
        let connection = connect(&server).await;
        let ping = request("k", Command::Ping);
        let mut asked: Vec<_> =
            (0..UNANSWERED_MAX).map(|_| ask(&connection, ping.clone())).collect();
        assert_failed_at_once(&mut ask(&connection, ping.clone()));
        for in_flight in &mut asked {
            assert_eq!(response(in_flight).await, Response::Yes);
        }
        assert_eq!(response(&mut ask(&connection, ping)).await, Response::Yes);
    }

    #[tokio::test]
    async fn lost_connection_fails_all_requests() {
        let mut server = Server::with_module().start().unwrap();
        let connection = connect(&server).await;
        server.pause();
        let ping = request("k", Command::Ping);
        let mut asked: Vec<_> =
            (0..2 * BATCH_MAX).map(|_| ask(&connection, ping.clone())).collect();
        // Some of the requests are sent, and some are not.
        tokio::task::yield_now().await;
        asked.extend((0..BATCH_MAX).map(|_| ask(&connection, ping.clone())));
        server.kill();
        asked.push(ask(&connection, ping));
        for in_flight in &mut asked {
            assert_down(&response(in_flight).await);
        }
    }

    #[test]
    fn requests_fail_when_the_runtime_ends() {
        let server = Server::with_module().start().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let connection = runtime.block_on(connect(&server));
        server.pause();
        let ping = request("k", Command::Ping);
        let mut before = ask(&connection, ping.clone());
        drop(runtime);
        assert_failed_at_once(&mut before);
        assert_failed_at_once(&mut ask(&connection, ping));
        server.resume();
    }
}
