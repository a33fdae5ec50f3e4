use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::Shared;
use super::meter::{Meter, RoundTrip};

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
    pub(super) fn lane(&self, direction: Direction) -> LaneFault {
        self.lanes[direction as usize]
    }

    pub(super) fn lane_mut(&mut self, direction: Direction) -> &mut LaneFault {
        &mut self.lanes[direction as usize]
    }
}

const CHUNK_MAX_BYTES: usize = 16 * 1024;

/// One direction of one connection.
pub(super) struct Lane<'a> {
    direction: Direction,
    faults: watch::Receiver<Faults>,
    meter: &'a Meter,
    round_trip: &'a RoundTrip,
}

/// Bytes that wait until they are forwarded, or until this value is dropped.
struct Chunk<'a> {
    arrived_at: Instant,
    bytes: Vec<u8>,
    is_passing: bool,
    waiting_bytes: &'a AtomicU64,
}

impl<'a> Lane<'a> {
    pub(super) fn new(direction: Direction, shared: &'a Shared, round_trip: &'a RoundTrip) -> Self {
        let faults = shared.faults.subscribe();
        Self { direction, faults, meter: &shared.meter, round_trip }
    }

    /// Forwards arriving bytes, subject to the current faults, and then the end of the connection.
    pub(super) async fn run(
        self,
        reader: impl AsyncRead + Unpin,
        writer: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let (sender, chunks) = mpsc::unbounded_channel();
        let waiting_bytes = self.meter.waiting_bytes(self.direction);
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
                chunk.is_passing = true;
                self.meter.pass(self.direction, chunk.bytes.len(), self.round_trip);
                writer.write_all(&chunk.bytes).await?;
            }
        }
        Ok((self, writer))
    }

    /// Waits until what arrived at this time is due. Returns false if the proxy drops it.
    async fn may_pass(&mut self, arrived_at: Instant) -> bool {
        loop {
            let LaneFault { delay, passage } = self.faults.borrow_and_update().lane(self.direction);
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
        let _ = sender.send(Chunk { arrived_at, bytes, is_passing: false, waiting_bytes });
    }
    Instant::now()
}

impl Drop for Chunk<'_> {
    fn drop(&mut self) {
        if !self.is_passing {
            self.waiting_bytes.fetch_sub(self.bytes.len() as u64, Relaxed);
        }
    }
}
