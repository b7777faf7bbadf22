//! Allocations of a typed service compared with those of calls of bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use farcall::rpc::{Call, Client, ClientOptions, HandlerError, Reply, Server, WaitStrategy};
use farcall::{Nic, SoftNic};
use serde::{Deserialize, Serialize};

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

/// Counts the allocations of both ends, which are in this process.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed to `System` unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of `GlobalAlloc::alloc`, which is also that of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller fulfils the contract of `GlobalAlloc::dealloc`; `memory` came from `System`, as `alloc`
        // above forwards to it.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A value of 64 B.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Line([f64; 8]);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Never;

#[farcall::service]
trait Lines {
    fn sum(&self, line: Line) -> Result<f64, Never>;
    fn reverse(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Never>;
}

#[derive(Clone)]
struct Adder;

impl Lines for Adder {
    fn sum(&self, line: Line) -> Result<f64, Never> {
        Ok(line.0.iter().sum())
    }

    fn reverse(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>, Never> {
        bytes.reverse();
        Ok(bytes)
    }
}

/// Returns the number of allocations of 1,000 calls, after all reusable memory has been allocated.
fn of_a_thousand(mut call: impl FnMut()) -> u64 {
    (0..2_000).for_each(|_| call());
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (0..1_000).for_each(|_| call());
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// Maximum number of allocations by rare events in other threads: fewer than one in a hundred calls.
const OTHERS_MAX: u64 = 10;

/// One test, because a process has one counter.
#[test]
fn a_call_with_types_allocates_what_its_values_own() {
    allocate_what_values_own(WaitStrategy::Adaptive { max_retry: 2_000 });
    // Ends that sleep for each message, as all do while threads compete for the processors.
    allocate_what_values_own(WaitStrategy::EventBatch);
}

fn allocate_what_values_own(waiting: WaitStrategy) {
    let echo = |_| {
        |call: &Call<'_>, reply: &mut Reply<'_>| -> Result<(), HandlerError> {
            reply.extend_from_slice(&call.payload()[..8]);
            Ok(())
        }
    };
    let options = || ClientOptions::default().wait_by(waiting);
    let bytes = Server::builder().waiting(waiting).start(&nic(), echo).unwrap();
    let mut client = Client::connect(&nic(), bytes.address().to_string(), options()).unwrap();
    let (request, mut reply) = ([1; 64], Vec::new());
    let of_bytes = of_a_thousand(|| {
        reply.clear();
        client.call(1, &request, &mut reply).unwrap();
    });
    assert!(of_bytes <= OTHERS_MAX, "{waiting:?}: {of_bytes} for bytes");

    let typed = Server::builder().waiting(waiting).serve(&nic(), LinesServer::new(Adder)).unwrap();
    let mut client = LinesClient::connect(&nic(), typed.address().to_string(), options()).unwrap();
    let line = Line([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let of_values = of_a_thousand(|| assert_eq!(client.sum(line).unwrap(), 36.0));
    assert!(of_values <= OTHERS_MAX, "{waiting:?}: {of_values} for values that own nothing");

    // A vector allocates: the one that is sent, the one of the server, the one that is returned.
    let of_vectors = of_a_thousand(|| assert_eq!(client.reverse(vec![7; 64]).unwrap(), [7; 64]));
    assert!((3_000..=3_000 + OTHERS_MAX).contains(&of_vectors), "{waiting:?}: {of_vectors} for vectors");
}
