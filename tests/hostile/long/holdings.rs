//! Resources of a server: memory, descriptors, threads.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::server::{PATIENCE, Server};

/// Allowed growth in descriptors. Memory of remaining clients may share descriptors with that of clients that have
/// left, and may therefore be spread over more descriptors.
const SPREAD: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdings {
    resident_kib: u64,
    pub descriptors: usize,
    pub threads: u64,
}

impl Holdings {
    pub fn of(server: &Server) -> Self {
        let of_process = format!("/proc/{}", server.pid());
        let status = fs::read_to_string(format!("{of_process}/status")).expect("the server lives");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
            line.split_whitespace().find_map(|word| word.parse().ok()).expect("a number")
        };
        Self {
            resident_kib: field("VmRSS:"),
            descriptors: fs::read_dir(format!("{of_process}/fd")).expect("the server lives").count(),
            threads: field("Threads:"),
        }
    }

    /// Returns the resources of an idle server, after they have not changed for some time.
    pub fn at_rest(server: &Server) -> Self {
        let mut last = Self::of(server);
        for _ in 0..100 {
            thread::sleep(Duration::from_millis(500));
            let now = Self::of(server);
            if now == last {
                return now;
            }
            last = now;
        }
        panic!("the server does not come to rest: {last:?}");
    }

    /// Fails unless the server returns to these resources: memory within five percent, descriptors within [`SPREAD`].
    pub fn assert_given_back(self, server: &Server) {
        let began = Instant::now();
        loop {
            let now = Self::of(server);
            let is_back = now.resident_kib <= self.resident_kib + self.resident_kib / 20
                && now.descriptors <= self.descriptors + SPREAD
                && now.threads <= self.threads;
            if is_back {
                println!("given back: {self:?} before, {now:?} after {:?}", began.elapsed());
                return;
            }
            assert!(began.elapsed() < PATIENCE, "not given back: {self:?} before, {now:?} now");
            thread::sleep(Duration::from_millis(50));
        }
    }
}
