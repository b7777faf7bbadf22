//! Numbers of work requests and doorbells for scripted patterns: those of RDMAbox, figure 4 and table I.

use super::*;
use crate::Window;
use crate::merging::Span;

const PAGE: u64 = 4096;

fn limits(combining: Combining) -> Limits {
    let work = WorkLimits { elements: 8, bytes: 1 << 20, pool_bytes: 1 << 20 };
    Limits { combining, chain: 16, look_ahead: 64, work }
}

fn queue(combining: Combining) -> MergeQueue {
    MergeQueue::new(limits(combining), Box::new(Window::OPEN), 8 << 20)
}

fn push(queue: &mut MergeQueue, direction: Direction, page: u64) {
    let id = (queue.counts.reads + queue.counts.writes) as u32;
    let span = Span::new(0, page * PAGE, PAGE).unwrap();
    queue.push(Request { id, direction, span, memory: Memory::Pool });
}

/// Posts all that can be posted, then ends it.
fn drain(queue: &mut MergeQueue) {
    let (mut doorbell, mut ended) = (Doorbell::default(), Vec::new());
    while queue.next(16, &mut doorbell) {
        ended.append(&mut doorbell.work);
    }
    ended.iter().for_each(|work| queue.on_work_ended(work));
}

/// Checks the numbers of work requests and doorbells under each kind of combining. The pages of a group accumulate
/// before they are posted.
fn check(groups: &[&[u64]], direction: Direction, wanted: [(Combining, u64, u64); 4]) {
    for (combining, work, doorbells) in wanted {
        let mut queue = queue(combining);
        for pages in groups {
            pages.iter().for_each(|page| push(&mut queue, direction, *page));
            drain(&mut queue);
        }
        let counts = queue.counts();
        let requests = groups.iter().map(|pages| pages.len() as u64).sum::<u64>();
        assert_eq!(counts.read_work + counts.write_work, work, "{combining:?}: {groups:?}");
        assert_eq!(counts.doorbells, doorbells, "{combining:?}: {groups:?}");
        assert_eq!((counts.merged, counts.chained), (requests - work, work - doorbells));
        assert_eq!((queue.waiting(), queue.in_flight(), queue.in_flight_bytes()), (0, 0, 0));
    }
}

use Combining::{Doorbell as Chain, Merge, MergeAndChain as Hybrid, Single};

#[test]
fn figure_4() {
    // Threads 0 to 4 submit adjacent requests at the same time, threads 5 and 6 two that are not adjacent, thread 7 a
    // single one.
    for direction in [Direction::Read, Direction::Write] {
        let groups: [&[u64]; 3] = [&[10, 11, 12, 13, 14], &[30, 50], &[70]];
        check(&groups, direction, [(Single, 8, 8), (Chain, 8, 3), (Merge, 4, 4), (Hybrid, 4, 3)]);
    }
}

#[test]
fn merges_adjacent_requests_in_any_order() {
    check(
        &[&[3, 1, 4, 2, 0], &[9, 7]],
        Direction::Write,
        [(Single, 7, 7), (Chain, 7, 2), (Merge, 3, 3), (Hybrid, 3, 2)],
    );
}

#[test]
fn posts_single_requests_at_once_in_every_mode() {
    let alone: [&[u64]; 4] = [&[1], &[2], &[3], &[4]];
    check(&alone, Direction::Read, [(Single, 4, 4), (Chain, 4, 4), (Merge, 4, 4), (Hybrid, 4, 4)]);
}

/// Table I: 13.2 million requests to read result in as many work requests if they are only chained, and in 11 million
/// (0.83 of them) if they are merged, chained or not. Here, two of six accumulated requests are adjacent.
#[test]
fn reproduces_the_work_request_counts_of_table_1() {
    let six: [&[u64]; 2] = [&[0, 10, 20, 21, 30, 40], &[100, 90, 80, 70, 60, 61]];
    check(&six, Direction::Read, [(Single, 12, 12), (Chain, 12, 2), (Merge, 10, 10), (Hybrid, 10, 2)]);
}

#[test]
fn merges_reads_and_writes_separately_with_one_doorbell() {
    let mut queue = queue(Hybrid);
    for (direction, page) in
        [(Direction::Read, 0), (Direction::Write, 1), (Direction::Read, 2), (Direction::Write, 3)]
    {
        push(&mut queue, direction, page);
    }
    drain(&mut queue);
    let counts = queue.counts();
    assert_eq!((counts.read_work, counts.write_work, counts.doorbells), (2, 2, 1));
}

#[test]
fn limits_the_chain_length() {
    let mut queue = queue(Hybrid);
    (0..40).for_each(|page| push(&mut queue, Direction::Read, 2 * page));
    drain(&mut queue);
    let counts = queue.counts();
    assert_eq!((counts.read_work, counts.doorbells), (40, 3), "16, 16 and 8");
}

#[test]
fn limits_the_size_of_a_work_request() {
    let mut limits = limits(Hybrid);
    limits.work = WorkLimits { elements: 3, bytes: 8 * PAGE, pool_bytes: 4 * PAGE };
    let lens = |memory: fn(u64) -> Memory| {
        let mut queue = MergeQueue::new(limits, Box::new(Window::OPEN), 1 << 20);
        for page in 0..12 {
            let span = Span::new(0, page * PAGE, PAGE).unwrap();
            let memory = memory(page);
            queue.push(Request { id: page as u32, direction: Direction::Read, span, memory });
        }
        let mut doorbell = Doorbell::default();
        assert!(queue.next(16, &mut doorbell));
        doorbell.work.iter().map(|work| work.members.len()).collect::<Vec<_>>()
    };
    assert_eq!(lens(|_| Memory::Pool), [4, 4, 4], "bytes of the pool");
    assert_eq!(lens(|_| Memory::Registered), [3, 3, 3, 3], "elements");
    // Pages of the pool that are side by side take one element: 0, 1 with 2, 3; then 4 with 5, 6, 7 with 8; and so on.
    assert_eq!(lens(|page| if page % 3 == 0 { Memory::Registered } else { Memory::Pool }), [4, 5, 3]);
}

#[test]
fn posts_requests_registered_on_demand_singly() {
    let mut queue = queue(Hybrid);
    for page in 0..5 {
        let span = Span::new(0, page * PAGE, PAGE).unwrap();
        let memory = if page == 2 { Memory::Alone } else { Memory::Pool };
        queue.push(Request { id: page as u32, direction: Direction::Write, span, memory });
    }
    drain(&mut queue);
    let counts = queue.counts();
    assert_eq!((counts.write_work, counts.doorbells), (3, 3), "two merged, one alone, two merged");
}

#[test]
fn merges_requests_held_back_by_the_window() {
    let mut queue = MergeQueue::new(limits(Hybrid), Box::new(Window { bytes: 4 * PAGE }), 1 << 20);
    let mut doorbell = Doorbell::default();
    (0..4).for_each(|page| push(&mut queue, Direction::Write, 10 * page));
    assert!(queue.next(16, &mut doorbell));
    assert_eq!((doorbell.work.len(), queue.in_flight_bytes()), (4, 4 * PAGE));
    // The window is full. These eight requests, which are not adjacent in this order, become two work requests.
    for page in [100, 102, 101, 103, 200, 201, 203, 202] {
        push(&mut queue, Direction::Write, page);
        let mut nothing = Doorbell::default();
        assert!(!queue.next(16, &mut nothing));
    }
    assert_eq!(queue.counts().window_stalls, 8);
    doorbell.work.iter().for_each(|work| queue.on_work_ended(work));
    assert!(queue.next(16, &mut doorbell));
    assert_eq!((doorbell.work.len(), doorbell.members.len(), queue.waiting()), (1, 4, 4));
    doorbell.work.iter().for_each(|work| queue.on_work_ended(work));
    drain(&mut queue);
    assert_eq!((queue.counts().write_work, queue.counts().merged), (6, 6));
}

#[test]
fn keeps_order_at_the_window_without_starvation() {
    let mut queue = MergeQueue::new(limits(Hybrid), Box::new(Window { bytes: 2 * PAGE }), 1 << 20);
    let mut doorbell = Doorbell::default();
    push(&mut queue, Direction::Read, 0);
    assert!(queue.next(16, &mut doorbell));
    // This request is longer than the window: it is posted alone, and the short one behind it waits.
    let span = Span::new(0, 100 * PAGE, 5 * PAGE).unwrap();
    queue.push(Request { id: 99, direction: Direction::Read, span, memory: Memory::Pool });
    push(&mut queue, Direction::Read, 50);
    let mut second = Doorbell::default();
    assert!(!queue.next(16, &mut second));
    queue.on_work_ended(&doorbell.work[0]);
    assert!(queue.next(16, &mut second));
    assert_eq!((second.work.len(), second.members[0].id, queue.waiting()), (1, 99, 1));
}

#[test]
fn consults_a_user_policy_that_cannot_stall_the_queue() {
    use std::sync::{Arc, Mutex};
    struct Policy(Arc<Mutex<Vec<(&'static str, u64)>>>);
    impl Admission for Policy {
        fn admits(&mut self, in_flight_bytes: u64, _bytes: u64) -> bool {
            self.0.lock().unwrap().push(("asked", in_flight_bytes));
            false
        }
        fn posted(&mut self, bytes: u64) {
            self.0.lock().unwrap().push(("posted", bytes));
        }
        fn ended(&mut self, bytes: u64) {
            self.0.lock().unwrap().push(("ended", bytes));
        }
    }
    let calls = Arc::new(Mutex::new(Vec::new()));
    let mut queue = MergeQueue::new(limits(Single), Box::new(Policy(calls.clone())), 1 << 20);
    push(&mut queue, Direction::Read, 0);
    push(&mut queue, Direction::Read, 9);
    drain(&mut queue);
    drain(&mut queue);
    let wanted = [("posted", PAGE), ("asked", PAGE), ("ended", PAGE), ("posted", PAGE), ("ended", PAGE)];
    assert_eq!(*calls.lock().unwrap(), wanted);
}

#[test]
fn posts_held_back_requests_when_the_policy_admits_them() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    struct Gate(Arc<AtomicBool>);
    impl Admission for Gate {
        fn admits(&mut self, _in_flight_bytes: u64, _bytes: u64) -> bool {
            self.0.load(Relaxed)
        }
    }
    let is_open = Arc::new(AtomicBool::new(false));
    let mut queue = MergeQueue::new(limits(Hybrid), Box::new(Gate(is_open.clone())), 1 << 20);
    let mut doorbell = Doorbell::default();
    push(&mut queue, Direction::Write, 0);
    assert!(queue.next(16, &mut doorbell));
    for page in [10, 11, 12] {
        push(&mut queue, Direction::Write, page);
        assert!(!queue.next(16, &mut doorbell));
    }
    is_open.store(true, Relaxed);
    push(&mut queue, Direction::Write, 13);
    // Posted although no work request has ended.
    assert!(queue.next(16, &mut doorbell));
    assert_eq!((doorbell.work.len(), doorbell.members.len(), queue.counts().window_stalls), (1, 4, 3));
}

#[test]
fn waits_for_pool_space_until_work_ends() {
    let mut queue = MergeQueue::new(limits(Hybrid), Box::new(Window::OPEN), 4 * PAGE as usize);
    (0..10).for_each(|page| push(&mut queue, Direction::Write, page));
    let mut doorbell = Doorbell::default();
    assert!(queue.next(16, &mut doorbell));
    assert_eq!(doorbell.work.len(), 1);
    assert_eq!((doorbell.members.len(), queue.counts().pool_stalls), (4, 1));
    assert!(!queue.next(16, &mut Doorbell::default()));
    queue.on_work_ended(&doorbell.work[0]);
    drain(&mut queue);
    drain(&mut queue);
    assert_eq!((queue.waiting(), queue.counts().write_work), (0, 3));
}

#[test]
#[should_panic(expected = "longer than the pool")]
fn rejects_requests_longer_than_the_pool() {
    let mut queue = MergeQueue::new(limits(Hybrid), Box::new(Window::OPEN), 1024);
    push(&mut queue, Direction::Write, 0);
}
