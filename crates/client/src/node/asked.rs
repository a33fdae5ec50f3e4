use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_util::future::BoxFuture;
use pin_project_lite::pin_project;

use super::{Connection, Question, Reply, ask};
use crate::NodeError;

/// Of which node, and what it said.
type Answered = (usize, Reply);

/// The connection to a node, or why there is none.
type Way = Result<Connection, NodeError>;

/// How many places a thread keeps for the next questions. Each is larger than what an allocator has at hand, and a lock needs
/// two for each node.
const PLACES_MAX: usize = 1024;

thread_local! {
    static PLACES: RefCell<Vec<Pin<Box<dyn Place>>>> = const { RefCell::new(Vec::new()) };
}

/// Questions on their way that are waited for together: no more than there are nodes. All that are not done are polled
/// whenever one of them wakes the task: for so few that costs less than to find out which of them it was. What is asked is
/// polled before anything is answered: so it is sent at the first poll, and in order.
pub(crate) struct Asked {
    questions: Vec<State>,
    /// Whether each has been polled.
    sent: bool,
}

enum State {
    Open(Pin<Box<dyn Place>>),
    Other(BoxFuture<'static, Answered>),
    Done(Answered),
}

/// Where a question is asked, and later another one.
trait Place: Send {
    fn ask(self: Pin<&mut Self>, node: usize, connection: Way, question: Question);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answered>;

    /// Asks nothing any more, and holds nothing.
    fn clear(self: Pin<&mut Self>);
}

pin_project! {
    struct PlaceOf<A, F> {
        ask: A,
        #[pin]
        asking: Option<F>,
    }
}

impl Asked {
    /// Waits for nothing, and allocates nothing.
    pub(crate) const fn new() -> Self {
        Self { questions: Vec::new(), sent: true }
    }

    /// Has room for so many.
    pub(crate) fn with_capacity(questions: usize) -> Self {
        Self { questions: Vec::with_capacity(questions), sent: true }
    }

    /// Asks a node through this connection, if there is one.
    pub(crate) fn ask(&mut self, node: usize, connection: Way, question: Question) {
        let place = PLACES.try_with(|places| places.borrow_mut().pop()).ok().flatten();
        let mut place = place.unwrap_or_else(new_place);
        place.as_mut().ask(node, connection, question);
        self.add(State::Open(place));
    }

    /// Waits for whatever comes of this.
    pub(crate) fn push(&mut self, answer: impl Future<Output = Answered> + Send + 'static) {
        self.add(State::Other(Box::pin(answer)));
    }

    fn add(&mut self, question: State) {
        self.questions.push(question);
        self.sent = false;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.questions.is_empty()
    }

    /// One that is answered; `None` when there are none to wait for.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Option<Answered> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// One that is answered already.
    pub(crate) fn take_done(&mut self) -> Option<Answered> {
        match self.poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answered) => answered,
            Poll::Pending => None,
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Answered>> {
        let is_done = |state: &State| matches!(state, State::Done(_));
        if !self.sent || !self.questions.iter().any(is_done) {
            self.poll_all(cx);
        }
        match self.questions.iter().position(is_done).map(|index| self.questions.remove(index)) {
            Some(State::Done(answered)) => Poll::Ready(Some(answered)),
            // There was one, and it was done.
            Some(State::Open(_) | State::Other(_)) => unreachable!(),
            None if self.questions.is_empty() => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    fn poll_all(&mut self, cx: &mut Context<'_>) {
        for state in &mut self.questions {
            let answered = match state {
                State::Open(place) => place.as_mut().poll(cx),
                State::Other(answer) => answer.as_mut().poll(cx),
                State::Done(_) => Poll::Pending,
            };
            if let Poll::Ready(answered) = answered
                && let State::Open(place) = std::mem::replace(state, State::Done(answered))
            {
                keep(place);
            }
        }
        self.sent = true;
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        for state in self.questions.drain(..) {
            if let State::Open(place) = state {
                keep(place);
            }
        }
    }
}

fn new_place() -> Pin<Box<dyn Place>> {
    let asking = |node, connection, question| async move { (node, ask(connection, &question).await) };
    Box::pin(PlaceOf { ask: asking, asking: None })
}

impl<A, F> Place for PlaceOf<A, F>
where
    A: Fn(usize, Way, Question) -> F + Send,
    F: Future<Output = Answered> + Send,
{
    fn ask(self: Pin<&mut Self>, node: usize, connection: Way, question: Question) {
        let mut this = self.project();
        let asking = (this.ask)(node, connection, question);
        this.asking.set(Some(asking));
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answered> {
        let asking = self.project().asking.as_pin_mut();
        asking.expect("it is asked before it is polled, and not after that").poll(cx)
    }

    fn clear(self: Pin<&mut Self>) {
        self.project().asking.set(None);
    }
}

/// Keeps a place for another question.
fn keep(mut place: Pin<Box<dyn Place>>) {
    place.as_mut().clear();
    let _ = PLACES.try_with(|places| {
        let mut places = places.borrow_mut();
        if places.len() < PLACES_MAX {
            places.push(place);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ::redis::aio::ConnectionLike;
    use ::redis::{Cmd, Pipeline, RedisFuture, Value};
    use tokio::sync::oneshot;
    use tokio::task::yield_now;

    use super::super::Link;
    use super::*;
    use crate::token::Token;

    #[tokio::test]
    async fn all_are_asked_in_order_when_the_first_is_answered() {
        let begun = Arc::new(AtomicUsize::new(0));
        let mut asked = Asked::new();
        for node in 0..3 {
            let begun = Arc::clone(&begun);
            asked.push(async move {
                assert_eq!(begun.fetch_add(1, Ordering::Relaxed), node);
                (node, Reply::No)
            });
        }
        assert_eq!(asked.next().await.map(|(node, _)| node), Some(0));
        assert_eq!(begun.load(Ordering::Relaxed), 3);
        assert_eq!(asked.next().await.map(|(node, _)| node), Some(1));
        assert_eq!(asked.next().await.map(|(node, _)| node), Some(2));
        assert!(asked.is_empty());
        assert!(asked.next().await.is_none());
    }

    #[tokio::test]
    async fn an_answer_is_there_whether_or_not_anybody_has_waited_for_it() {
        let (tell, told) = oneshot::channel();
        let mut asked = Asked::new();
        asked.push(async { (0, told.await.unwrap()) });
        assert!(asked.take_done().is_none());
        tell.send(Reply::No).unwrap();
        assert!(matches!(asked.take_done(), Some((0, Reply::No))));
    }

    /// Says 1 to everything.
    #[derive(Clone)]
    struct Agreeable(#[expect(dead_code, reason = "it is counted")] Arc<()>);

    impl ConnectionLike for Agreeable {
        fn req_packed_command<'a>(&'a mut self, _: &'a Cmd) -> RedisFuture<'a, Value> {
            Box::pin(async {
                yield_now().await;
                Ok(Value::Int(1))
            })
        }

        fn req_packed_commands<'a>(
            &'a mut self,
            _: &'a Pipeline,
            _: usize,
            _: usize,
        ) -> RedisFuture<'a, Vec<Value>> {
            unreachable!("one question at a time")
        }

        fn get_db(&self) -> i64 {
            0
        }
    }

    #[tokio::test]
    async fn a_place_is_used_again_and_keeps_nothing_of_what_was_asked_there() {
        let places = || PLACES.with_borrow(Vec::len);
        let (used, roll) = (Arc::new(()), Arc::default());
        let (keys, token) = (["a"].into_iter().collect(), Token::random().unwrap());
        for before in [0, 1] {
            let link = Link::ready("a", &roll, Agreeable(Arc::clone(&used)));
            assert_eq!(places(), before);
            let mut asked = Asked::new();
            asked.ask(0, link.connection(), Question::release(&keys, &token));
            assert_eq!(places(), 0);
            assert!(matches!(asked.next().await, Some((0, Reply::Yes(None)))));
            drop(link);
            assert_eq!((places(), Arc::strong_count(&used)), (1, 1));
            // So it is where it was not answered.
            let link = Link::ready("a", &roll, Agreeable(Arc::clone(&used)));
            asked.ask(0, link.connection(), Question::release(&keys, &token));
            assert!(asked.take_done().is_none());
            drop((asked, link));
            assert_eq!((places(), Arc::strong_count(&used)), (1, 1));
        }
    }
}
