use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
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

/// One direction of one connection: a queue of chunks, each with its time of arrival.
pub(super) struct Lane<'a> {
    direction: Direction,
    faults: watch::Receiver<Faults>,
    meter: &'a Meter,
    round_trip: &'a RoundTrip,
    queue: VecDeque<Chunk>,
    /// When the sender closed its side. The close is forwarded after the last chunk.
    ended_at: Option<Instant>,
}

struct Chunk {
    arrived_at: Instant,
    bytes: Vec<u8>,
    written_bytes: usize,
    /// Whether a part of the chunk may have been written. Such a chunk is counted, and forwarded
    /// whatever the faults.
    is_passing: bool,
}

enum Event {
    FaultsChanged,
    Due,
    Read(io::Result<usize>),
    Written(io::Result<usize>),
}

impl<'a> Lane<'a> {
    pub(super) fn new(direction: Direction, shared: &'a Shared, round_trip: &'a RoundTrip) -> Self {
        Self {
            direction,
            faults: shared.faults.subscribe(),
            meter: &shared.meter,
            round_trip,
            queue: VecDeque::new(),
            ended_at: None,
        }
    }

    /// Forwards arriving bytes, subject to the current faults, and then the end of the connection.
    pub(super) async fn run(
        mut self,
        mut reader: impl AsyncRead + Unpin,
        mut writer: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK_MAX_BYTES];
        loop {
            // The fault is read after each arrival, so that it applies to all later bytes.
            let fault = self.faults.borrow_and_update().lane(self.direction);
            if fault.passage == Passage::Drop {
                self.drop_waiting();
            }
            let now = Instant::now();
            let due_at = self.due_at(fault);
            let is_due = due_at.is_some_and(|due_at| due_at <= now);
            if is_due {
                self.mark_front_passing();
            }
            let may_read = self.ended_at.is_none();
            let front =
                self.queue.front().map_or(&[][..], |chunk| &chunk.bytes[chunk.written_bytes..]);
            let event = tokio::select! {
                changed = self.faults.changed() => {
                    changed.map_err(io::Error::other)?;
                    Event::FaultsChanged
                }
                () = sleep_until(due_at.unwrap_or(now)), if due_at.is_some() && !is_due => Event::Due,
                read = reader.read(&mut buffer), if may_read => Event::Read(read),
                written = write_or_end(&mut writer, front), if is_due => Event::Written(written),
            };
            match event {
                Event::FaultsChanged | Event::Due => {}
                Event::Read(Ok(length @ 1..)) => self.arrive(&buffer[..length]),
                // The sender has closed or reset its connection, and sends nothing more.
                Event::Read(_) => self.ended_at = Some(Instant::now()),
                Event::Written(written) => match (self.queue.is_empty(), written?) {
                    (true, _) => return Ok(()),
                    (false, 0) => return Err(io::ErrorKind::WriteZero.into()),
                    (false, length) => self.advance(length),
                },
            }
        }
    }

    /// Returns when the first chunk may be forwarded. Without a chunk, returns when the end of the
    /// connection may be forwarded. Returns `None` while nothing may pass, or nothing waits.
    fn due_at(&self, fault: LaneFault) -> Option<Instant> {
        match self.queue.front() {
            Some(chunk) if chunk.is_passing => Some(chunk.arrived_at),
            _ if fault.passage != Passage::Open => None,
            Some(chunk) => chunk.arrived_at.checked_add(fault.delay),
            None => self.ended_at?.checked_add(fault.delay),
        }
    }

    fn arrive(&mut self, bytes: &[u8]) {
        let waiting_bytes = &self.meter.lane(self.direction).waiting_bytes;
        waiting_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.queue.push_back(Chunk {
            arrived_at: Instant::now(),
            bytes: bytes.to_vec(),
            written_bytes: 0,
            is_passing: false,
        });
    }

    fn mark_front_passing(&mut self) {
        if let Some(chunk) = self.queue.front_mut().filter(|chunk| !chunk.is_passing) {
            chunk.is_passing = true;
            self.meter.pass(self.direction, chunk.bytes.len(), self.round_trip);
        }
    }

    fn advance(&mut self, written_bytes: usize) {
        let Some(chunk) = self.queue.front_mut() else { return };
        chunk.written_bytes += written_bytes;
        if chunk.written_bytes == chunk.bytes.len() {
            self.queue.pop_front();
        }
    }

    fn drop_waiting(&mut self) {
        self.queue.retain(|chunk| {
            if !chunk.is_passing {
                self.meter.lane(self.direction).drop_waiting(chunk.bytes.len());
            }
            chunk.is_passing
        });
    }
}

/// Writes some of `bytes`, or forwards the end of the connection when there are none.
///
/// Cancel safe: no byte is lost when the future is dropped.
async fn write_or_end(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<usize> {
    if bytes.is_empty() {
        writer.shutdown().await?;
        return Ok(0);
    }
    writer.write(bytes).await
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        // Bytes that were in transit when the connection was cut are lost.
        self.drop_waiting();
    }
}
