//! A client that was connected before an attack, and must get every reply.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::door::{Client, Door, Outcome};
use crate::server::Server;

/// More records than the store of a server with default options can hold.
const RECORDS: u32 = 6_000;

pub struct Neighbour {
    client: Client,
    key: Vec<u8>,
    pub answers: u64,
}

impl Neighbour {
    /// Connects one client to each front end.
    pub fn one_of_each(server: &Server) -> Vec<Self> {
        let doors = [
            Door::Tcp(server.place("tcp").into()),
            Door::Unix(server.place("unix").into()),
            Door::Rpc(server.place("rpc").into()),
        ];
        let neighbour = |(at, door)| {
            let key = format!("neighbour-{at}").into_bytes();
            let mut neighbour = Self { client: Client::new(door), key, answers: 0 };
            neighbour.work_once();
            neighbour
        };
        doors.into_iter().enumerate().map(neighbour).collect()
    }

    /// Fills the store, so that all of its memory is allocated.
    pub fn fill_store(&mut self) {
        for record in 0..RECORDS {
            let outcome =
                self.client.set(format!("record-{record}").as_bytes(), &[b'r'; 16_000], Duration::ZERO);
            assert!(matches!(outcome, Outcome::Known(())), "record {record}: {outcome:?}");
        }
    }

    /// Stores a value and reads it back.
    pub fn work_once(&mut self) {
        let value = self.answers.to_le_bytes();
        let stored = self.client.set(&self.key, &value, Duration::ZERO);
        assert!(matches!(stored, Outcome::Known(())), "{}: {stored:?}", String::from_utf8_lossy(&self.key));
        match self.client.get(&self.key) {
            Outcome::Known(Some((found, _))) => assert_eq!(found, value),
            // The store may have evicted it.
            Outcome::Known(None) => {}
            other => panic!("{}: {other:?}", String::from_utf8_lossy(&self.key)),
        }
        self.answers += 1;
    }

    pub fn work_until(&mut self, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Relaxed) {
            self.work_once();
            thread::sleep(Duration::from_millis(2));
        }
    }
}
