use std::time::Duration;

/// What became of the clients of a scene.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    lasted: Duration,
    commands: u64,
    /// How many locks each client had.
    locks: Vec<u64>,
    /// Since when each client that has not got the lock wants it, in microseconds.
    wanted_since_us: Vec<Option<u64>>,
    longest_wait_us: u64,
}

impl Account {
    pub(super) fn new(lasted: Duration, clients: usize) -> Self {
        Self {
            lasted,
            commands: 0,
            locks: vec![0; clients],
            wanted_since_us: vec![None; clients],
            longest_wait_us: 0,
        }
    }

    pub(super) fn command(&mut self) {
        self.commands += 1;
    }

    pub(super) fn wants(&mut self, client: usize, now_us: u64) {
        self.wanted_since_us[client] = Some(now_us);
    }

    pub(super) fn has(&mut self, client: usize, now_us: u64) {
        self.locks[client] += 1;
        self.stop_waiting(client, now_us);
    }

    /// Those who still wait have waited until now.
    pub(super) fn close(&mut self, now_us: u64) {
        for client in 0..self.locks.len() {
            self.stop_waiting(client, now_us);
        }
    }

    fn stop_waiting(&mut self, client: usize, now_us: u64) {
        if let Some(since_us) = self.wanted_since_us[client].take() {
            self.longest_wait_us = self.longest_wait_us.max(now_us - since_us);
        }
    }

    /// How many locks were had.
    pub fn locks(&self) -> u64 {
        self.locks.iter().sum()
    }

    /// How many locks the client had that had the most.
    pub fn most(&self) -> u64 {
        self.locks.iter().copied().max().unwrap_or_default()
    }

    /// How many locks the client had that had the fewest.
    pub fn fewest(&self) -> u64 {
        self.locks.iter().copied().min().unwrap_or_default()
    }

    /// How many clients had less than a tenth of what the same share for everybody would have been.
    pub fn starved(&self) -> usize {
        let clients = self.locks.len() as u64;
        self.locks.iter().filter(|&&locks| locks * clients * 10 < self.locks()).count()
    }

    /// The longest time that a client wanted the lock and did not have it.
    pub fn longest_wait(&self) -> Duration {
        Duration::from_micros(self.longest_wait_us)
    }

    /// How many commands the nodes had to carry out for each lock.
    #[expect(clippy::cast_precision_loss, reason = "for people to read, and far below 2^52")]
    pub fn commands_per_lock(&self) -> f64 {
        self.commands as f64 / self.locks() as f64
    }

    /// How many commands the nodes had to carry out in each second.
    #[expect(clippy::cast_precision_loss, reason = "for people to read, and far below 2^52")]
    pub fn commands_per_second(&self) -> f64 {
        self.commands as f64 / self.lasted.as_secs_f64()
    }
}
