//! A node that gives the answers of a history.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use super::history::{Answer, Connection, Output, run_id};

/// The socket of a node. Its functions never block: the test calls `receive` until nothing arrives.
pub(super) struct ScriptedNode {
    index: usize,
    path: PathBuf,
    listener: Option<UnixListener>,
    accepted: usize,
    connections: BTreeMap<Connection, Lane>,
    outputs: Vec<Output>,
}

/// An open connection.
struct Lane {
    stream: UnixStream,
    received: Vec<u8>,
    /// The names of the commands without an answer.
    unanswered: VecDeque<String>,
}

impl ScriptedNode {
    pub(super) fn new(index: usize, path: PathBuf) -> Self {
        let (connections, outputs) = (BTreeMap::new(), Vec::new());
        let mut this = Self { index, path, listener: None, accepted: 0, connections, outputs };
        this.listen();
        this
    }

    pub(super) fn url(&self) -> String {
        format!("redis+unix://{}", self.path.display())
    }

    pub(super) fn listen(&mut self) {
        let listener = UnixListener::bind(&self.path).unwrap();
        listener.set_nonblocking(true).unwrap();
        self.listener = Some(listener);
    }

    pub(super) fn stop_listening(&mut self) {
        self.listener = None;
        std::fs::remove_file(&self.path).unwrap();
    }

    /// Closes a connection.
    pub(super) fn lose(&mut self, name: Connection) {
        assert!(self.connections.remove(&name).is_some(), "there is no connection {name}");
    }

    /// Answers the oldest command on this connection.
    pub(super) fn answer(&mut self, name: Connection, answer: Answer) {
        let lane = self.connections.get_mut(&name);
        let lane = lane.unwrap_or_else(|| panic!("there is no connection {name}"));
        let command =
            lane.unanswered.pop_front().unwrap_or_else(|| panic!("{name} has no request"));
        let reply = match (answer, &command[..]) {
            (Answer::Fence(fence), _) => format!(":{fence}\r\n"),
            (Answer::Waited(fence, waited), _) => {
                format!("*2\r\n:{fence}\r\n:{}\r\n", waited.as_micros())
            }
            (Answer::Yes, "LOCK.RELEASE") => ":1\r\n".to_owned(),
            (Answer::Yes, "PING") => "+PONG\r\n".to_owned(),
            (Answer::Yes, _) => "*0\r\n".to_owned(),
            (Answer::No, "LOCK.RELEASE") => ":0\r\n".to_owned(),
            (Answer::No, _) => "$-1\r\n".to_owned(),
            (Answer::Abstain, _) => "-ABSTAIN 500 restarted\r\n".to_owned(),
        };
        lane.stream.write_all(reply.as_bytes()).unwrap();
    }

    /// What the client has done on this node since the last call.
    pub(super) fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// Accepts connections and reads what has arrived. Returns whether the client did anything.
    pub(super) fn receive(&mut self) -> bool {
        let mut has_activity = false;
        while let Some(Ok((stream, _))) = self.listener.as_ref().map(UnixListener::accept) {
            has_activity = true;
            stream.set_nonblocking(true).unwrap();
            self.accepted += 1;
            let name = Connection { node: self.index, number: self.accepted };
            self.outputs.push(Output::Connects(name));
            let lane = Lane { stream, received: Vec::new(), unanswered: VecDeque::new() };
            self.connections.insert(name, lane);
        }
        let mut closed = Vec::new();
        for (name, lane) in &mut self.connections {
            let is_open = lane.receive(&mut has_activity);
            for command in lane.take_commands() {
                if let Some(reply) = greeting(self.index, &command) {
                    lane.stream.write_all(reply.as_bytes()).unwrap();
                } else {
                    lane.unanswered.push_back(command[0].clone());
                    self.outputs.push(Output::Sends(*name, command));
                }
            }
            if !is_open {
                closed.push(*name);
            }
        }
        for name in closed {
            self.connections.remove(&name);
            self.outputs.push(Output::Closes(name));
            has_activity = true;
        }
        has_activity
    }
}

impl Lane {
    /// Sets `has_activity` if anything has arrived. Returns whether the connection is still open.
    fn receive(&mut self, has_activity: &mut bool) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(bytes) => self.received.extend_from_slice(&buffer[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) => panic!("{error}"),
            }
            *has_activity = true;
        }
    }

    fn take_commands(&mut self) -> Vec<Vec<String>> {
        let text = String::from_utf8(std::mem::take(&mut self.received)).unwrap();
        let mut rest = &text[..];
        let mut commands = Vec::new();
        while let Some((command, after)) = read_command(rest) {
            commands.push(command);
            rest = after;
        }
        self.received = rest.as_bytes().to_vec();
        commands
    }
}

/// Returns the first command and the bytes after it; `None` while a part of the command is missing.
fn read_command(text: &str) -> Option<(Vec<String>, &str)> {
    let (count, mut rest) = text.strip_prefix('*')?.split_once("\r\n")?;
    let mut command = Vec::new();
    for _ in 0..count.parse().ok()? {
        let (length, after) = rest.strip_prefix('$')?.split_once("\r\n")?;
        let (argument, after) = after.split_at_checked(length.parse().ok()?)?;
        rest = after.strip_prefix("\r\n")?;
        command.push(argument.to_owned());
    }
    Some((command, rest))
}

/// The reply to a command that a client sends only on a new connection; `None` for other commands.
fn greeting(node: usize, command: &[String]) -> Option<String> {
    match &command[0][..] {
        "HELLO" => Some("%1\r\n+proto\r\n:3\r\n".to_owned()),
        "CLIENT" => Some("+OK\r\n".to_owned()),
        "INFO" => {
            let run_id = run_id(node);
            let info = format!(
                "run_id:{run_id}\r\nredis_mode:standalone\r\nrole:master\r\nlock_version:1\r\n"
            );
            Some(format!("${}\r\n{info}\r\n", info.len()))
        }
        _ => None,
    }
}
