use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::Shared;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Requests.
    ToServer,
    /// Answers.
    ToClient,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) cut: bool,
    lanes: [LaneFault; 2],
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LaneFault {
    pub(super) delay: Duration,
    pub(super) passage: Passage,
}

/// What happens to bytes that have not been forwarded yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Passage {
    #[default]
    Open,
    Hold,
    Drop,
}

impl Faults {
    pub(super) fn lane_mut(&mut self, direction: Direction) -> &mut LaneFault {
        &mut self.lanes[direction as usize]
    }
}

const CHUNK_MAX_BYTES: usize = 16 * 1024;

/// One direction of one connection.
pub(super) struct Lane<'a> {
    direction: Direction,
    faults: watch::Receiver<Faults>,
    shared: &'a Shared,
    /// Whether bytes of the connection went to the server, and no bytes to the client since.
    is_asked: &'a AtomicBool,
}

/// Bytes that wait until they are forwarded, or until this value is dropped.
struct Chunk<'a> {
    arrived_at: Instant,
    bytes: Vec<u8>,
    waiting_bytes: &'a AtomicU64,
}

impl<'a> Lane<'a> {
    pub(super) fn new(direction: Direction, shared: &'a Shared, is_asked: &'a AtomicBool) -> Self {
        Self { direction, faults: shared.faults.subscribe(), shared, is_asked }
    }

    /// Forwards arriving bytes, subject to the current faults, and then the end of the connection.
    pub(super) async fn run(
        self,
        reader: impl AsyncRead + Unpin,
        writer: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let (sender, chunks) = mpsc::unbounded_channel();
        let waiting_bytes = &self.shared.waiting_bytes[self.direction as usize];
        let received = async { Ok(receive(reader, waiting_bytes, sender).await) };
        let (ended_at, (mut lane, mut writer)) =
            tokio::try_join!(received, self.forward(chunks, writer))?;
        while !lane.may_pass(ended_at).await {
            // The end of a connection is not lost: it waits until the proxy is healed.
            lane.faults.changed().await.map_err(io::Error::other)?;
        }
        writer.shutdown().await
    }

    async fn forward<W: AsyncWrite + Unpin>(
        mut self,
        mut chunks: mpsc::UnboundedReceiver<Chunk<'a>>,
        mut writer: W,
    ) -> io::Result<(Self, W)> {
        while let Some(mut chunk) = chunks.recv().await {
            if self.may_pass(chunk.arrived_at).await {
                // Counts before it writes, so that a client that has an answer finds it counted.
                let bytes = chunk.take();
                let was_asked = self.is_asked.swap(self.direction == Direction::ToServer, Relaxed);
                if was_asked && self.direction == Direction::ToClient {
                    self.shared.round_trips.fetch_add(1, Relaxed);
                }
                writer.write_all(&bytes).await?;
            }
        }
        Ok((self, writer))
    }

    /// Waits until what arrived at this time is due. Returns false if the proxy drops it.
    async fn may_pass(&mut self, arrived_at: Instant) -> bool {
        loop {
            let faults = *self.faults.borrow_and_update();
            let LaneFault { delay, passage } = faults.lanes[self.direction as usize];
            let due = async {
                match (passage, arrived_at.checked_add(delay)) {
                    // A timer of tokio rounds a time that has come up to the next millisecond.
                    (Passage::Open, Some(due_at)) if due_at <= Instant::now() => {}
                    (Passage::Open, Some(due_at)) => sleep_until(due_at).await,
                    _ => pending().await,
                }
            };
            if passage == Passage::Drop {
                return false;
            }
            tokio::select! {
                biased;
                _ = self.faults.changed() => {}
                () = due => return true,
            }
        }
    }
}

/// Reads until the sender has closed or reset its connection. Returns when that was.
async fn receive<'a>(
    mut reader: impl AsyncRead + Unpin,
    waiting_bytes: &'a AtomicU64,
    sender: mpsc::UnboundedSender<Chunk<'a>>,
) -> Instant {
    let mut buffer = vec![0; CHUNK_MAX_BYTES];
    while let Ok(length @ 1..) = reader.read(&mut buffer).await {
        let (arrived_at, bytes) = (Instant::now(), buffer[..length].to_vec());
        waiting_bytes.fetch_add(length as u64, Relaxed);
        // A writer that has failed receives nothing more, and its connection ends.
        let _ = sender.send(Chunk { arrived_at, bytes, waiting_bytes });
    }
    Instant::now()
}

impl Chunk<'_> {
    /// Takes the bytes, which wait no longer.
    fn take(&mut self) -> Vec<u8> {
        self.waiting_bytes.fetch_sub(self.bytes.len() as u64, Relaxed);
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Chunk<'_> {
    fn drop(&mut self) {
        self.take();
    }
}
