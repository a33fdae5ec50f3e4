//! Sends the requests of all locks to one node in batches. Requests that are made before the
//! sending task runs travel in one pipeline, with one write and one wake-up for all of them.

use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, Pipeline, RedisError, Value};
use futures_util::future::{BoxFuture, FutureExt as _, ready};
use futures_util::stream::{FuturesOrdered, StreamExt as _};
use quorlock_core::NodeError;
use quorlock_core::client::Response;
use tokio::sync::Notify;
use tokio::task::unconstrained;
use tokio_util::task::AbortOnDropHandle;

use super::command::{Outgoing, read_error};

/// The limit for one connection, in requests.
pub(super) const UNANSWERED_MAX: usize = 65_536;
/// In requests. The replies to a batch are delivered together, after the last one has arrived.
const BATCH_MAX: usize = 256;

/// The requests to one connection, in the order in which they were made.
pub(crate) struct Batches {
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
    pub(crate) fn add(
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

/// Receives the responses of a client.
pub(crate) trait Inbox: Send + Sync {
    /// Takes the response to the request of this shard with this number.
    fn put(self: Arc<Self>, shard: usize, number: u64, response: Response);
}

/// The place for one response. Reports a lost connection when it is dropped unanswered.
pub(crate) struct Ticket {
    inbox: Weak<dyn Inbox>,
    shard: usize,
    number: u64,
    is_answered: bool,
}

impl Ticket {
    pub(crate) fn new(inbox: Weak<dyn Inbox>, shard: usize, number: u64) -> Self {
        Self { inbox, shard, number, is_answered: false }
    }

    pub(crate) fn answer(mut self, response: Response) {
        self.put(response);
    }

    fn put(&mut self, response: Response) {
        self.is_answered = true;
        // Without a client, no call awaits the response.
        if let Some(inbox) = self.inbox.upgrade() {
            inbox.put(self.shard, self.number, response);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_answered {
            self.put(Response::Failed(NodeError::connection_lost()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use quorlock_core::NodeError;
    use quorlock_core::Ttl;
    use quorlock_core::client::{Command, Keys, Request, Response, Spec, Token};
    use quorlock_testkit::Server;
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
    use tokio::time::timeout;

    use super::{BATCH_MAX, UNANSWERED_MAX};
    use crate::transport::{Connection, Endpoint, Inbox, Outgoing, Ticket, open};

    const SOON: Duration = Duration::from_secs(30);

    impl Inbox for UnboundedSender<Response> {
        fn put(self: Arc<Self>, _: usize, _: u64, response: Response) {
            self.send(response).unwrap();
        }
    }

    /// A connection, and the responses to its requests.
    struct Asker {
        connection: Connection,
        inbox: Arc<UnboundedSender<Response>>,
        responses: UnboundedReceiver<Response>,
    }

    impl Asker {
        async fn connect(server: &Server) -> Self {
            let client = ::redis::Client::open(server.url()).unwrap();
            let endpoint = Endpoint::new(&client).unwrap();
            let (connection, ..) = open(&endpoint, 1, || {}).await.unwrap();
            let (inbox, responses) = unbounded_channel();
            Self { connection, inbox: Arc::new(inbox), responses }
        }

        fn ask(&self, key: &str, command: Command) -> Result<(), NodeError> {
            let spec = Spec::exclusive(Keys::from_iter([key]), Ttl::from_ms(60_000).unwrap());
            let outgoing = Outgoing::new(&spec, &Request { token: Token::of_bits(1), command });
            self.connection.batches.add(outgoing, || {
                let inbox = Arc::downgrade(&self.inbox);
                Ticket::new(inbox, 0, 0)
            })
        }

        fn ping(&self) -> Result<(), NodeError> {
            self.ask("k", Command::Ping)
        }

        async fn response(&mut self) -> Response {
            let response = timeout(SOON, self.responses.recv()).await;
            response.expect("a request was not answered").unwrap()
        }
    }

    fn is_down(response: &Response) -> bool {
        matches!(response, Response::Failed(NodeError::Down { .. }))
    }

    fn reads(server: &Server) -> u64 {
        quorlock_testkit::info(&mut server.connection(), "stats", "total_reads_processed").unwrap()
    }

    #[tokio::test]
    async fn requests_made_together_travel_together_and_in_order() {
        let server = Server::with_module().start().unwrap();
        let mut asker = Asker::connect(&server).await;
        let before = reads(&server);
        let fence = quorlock_core::Fence::new(7).unwrap();
        for key in 0..BATCH_MAX {
            let key = format!("k{key}");
            asker.ask(&key, Command::Acquire { fence }).unwrap();
            asker.ask(&key, Command::Release).unwrap();
        }
        for _ in 0..BATCH_MAX {
            assert!(matches!(asker.response().await, Response::Granted { .. }));
            assert_eq!(asker.response().await, Response::Yes);
        }
        let reads = reads(&server) - before;
        assert!(reads < 20, "{reads} reads for {} requests", 2 * BATCH_MAX);
    }

    #[tokio::test]
    async fn requests_beyond_the_limit_fail_at_once() {
        let server = Server::with_module().start().unwrap();
        let mut asker = Asker::connect(&server).await;
        for _ in 0..UNANSWERED_MAX {
            asker.ping().unwrap();
        }
        assert!(matches!(asker.ping(), Err(NodeError::Down { .. })));
        for _ in 0..UNANSWERED_MAX {
            assert_eq!(asker.response().await, Response::Yes);
        }
        asker.ping().unwrap();
        assert_eq!(asker.response().await, Response::Yes);
    }

    #[tokio::test]
    async fn lost_connection_fails_all_requests() {
        let mut server = Server::with_module().start().unwrap();
        let mut asker = Asker::connect(&server).await;
        server.pause();
        for _ in 0..2 * BATCH_MAX {
            asker.ping().unwrap();
        }
        // Some of the requests are sent, and some are not.
        tokio::task::yield_now().await;
        for _ in 0..BATCH_MAX {
            asker.ping().unwrap();
        }
        server.kill();
        for _ in 0..3 * BATCH_MAX {
            let response = asker.response().await;
            assert!(is_down(&response), "{response:?}");
        }
        asker.ping().unwrap();
        assert!(is_down(&asker.response().await));
    }

    #[test]
    fn requests_fail_when_the_runtime_ends() {
        let server = Server::with_module().start().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let mut asker = runtime.block_on(Asker::connect(&server));
        server.pause();
        asker.ping().unwrap();
        drop(runtime);
        assert!(is_down(&asker.responses.try_recv().expect("the request has not failed")));
        assert!(matches!(asker.ping(), Err(NodeError::Down { .. })));
        server.resume();
    }
}
