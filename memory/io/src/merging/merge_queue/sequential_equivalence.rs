//! Comparison with a model that executes requests one after another. Every read returns the same bytes, and the final
//! memory is the same, whatever is merged, chained and held back, and however devices interleave work in flight.

use super::*;
use crate::Window;
use crate::merging::Span;
use proptest::prelude::*;

const MEMORY: usize = 64;

/// Work that a device executes byte by byte, in any order and at any time.
struct InFlight {
    work: Work,
    members: Vec<Request>,
    bytes_left: Vec<u64>,
}

struct Device {
    memory: [u8; MEMORY],
    /// Bytes that each request has read.
    brought: Vec<Vec<u8>>,
    in_flight: Vec<InFlight>,
}

/// Returns the byte that request `id` writes at offset `at`.
fn byte_of(id: u32, at: u64) -> u8 {
    (id as u8).wrapping_mul(37).wrapping_add(at as u8) | 1
}

impl Device {
    /// Executes one byte of one work request. Returns the work request if this was its last byte.
    fn step(&mut self, choice: usize) -> Option<Work> {
        let which = choice % self.in_flight.len();
        let one = &mut self.in_flight[which];
        let at = one.bytes_left.swap_remove((choice / 7) % one.bytes_left.len());
        let member = one.members.iter().find(|m| (m.span.start..m.span.end).contains(&at)).expect("a member");
        match member.direction {
            Direction::Read => {
                self.brought[member.id as usize][(at - member.span.start) as usize] =
                    self.memory[at as usize];
            }
            Direction::Write => self.memory[at as usize] = byte_of(member.id, at),
        }
        one.bytes_left.is_empty().then(|| self.in_flight.swap_remove(which).work)
    }
}

fn post(queue: &mut MergeQueue, room: usize, device: &mut Device) -> Result<bool, TestCaseError> {
    let mut doorbell = Doorbell::default();
    if !queue.next(room, &mut doorbell) {
        return Ok(false);
    }
    prop_assert!(doorbell.work.len() <= room);
    let mut covered = 0;
    for work in doorbell.work {
        let members = doorbell.members[work.members.clone()].to_vec();
        // Its requests are contiguous and cover its range.
        prop_assert_eq!(work.members.start, covered);
        covered = work.members.end;
        let mut at = work.span.start;
        for member in &members {
            prop_assert_eq!((member.direction, member.span.start), (work.direction, at));
            at = member.span.end;
        }
        prop_assert_eq!(at, work.span.end);
        let bytes_left = (work.span.start..work.span.end).collect();
        device.in_flight.push(InFlight { work, members, bytes_left });
    }
    prop_assert_eq!(covered, doorbell.members.len());
    Ok(true)
}

fn limits() -> impl Strategy<Value = (Limits, u64, usize)> {
    let combining = prop::sample::select(vec![
        Combining::Single,
        Combining::Doorbell,
        Combining::Merge,
        Combining::MergeAndChain,
    ]);
    let work = (1..5_usize, 8..40_u64);
    (combining, 1..6_usize, 1..12_usize, work, 1..6_u64, 0..3_usize).prop_map(
        |(combining, chain, look_ahead, (elements, bytes), pages, pool)| {
            let work = WorkLimits { elements, bytes, pool_bytes: bytes };
            (Limits { combining, chain, look_ahead, work }, pages * 4096, 64 << pool)
        },
    )
}

/// A request (whether it reads, start, length, kind of memory), and the steps after its submission.
type Step = ((bool, u64, u64, usize), Vec<(bool, usize)>);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let request = (any::<bool>(), 0..MEMORY as u64 - 1, 1..14_u64, 0..3_usize);
    prop::collection::vec((request, prop::collection::vec((any::<bool>(), any::<usize>()), 0..12)), 1..60)
}

proptest! {
    #[test]
    fn matches_sequential_execution((limits, window, pool) in limits(), steps in steps()) {
        let mut queue = MergeQueue::new(limits, Box::new(Window { bytes: window }), pool);
        let mut device = Device { memory: [0; MEMORY], brought: Vec::new(), in_flight: Vec::new() };
        let (mut expected, mut wanted) = ([0; MEMORY], Vec::new());
        for (id, ((reads, start, len, memory), then)) in (0_u32..).zip(&steps) {
            let end = (start + len).min(MEMORY as u64);
            let span = Span::new(0, *start, end - start).unwrap();
            let direction = if *reads { Direction::Read } else { Direction::Write };
            let range = span.start as usize..span.end as usize;
            wanted.push(match direction {
                Direction::Read => expected[range].to_vec(),
                Direction::Write => {
                    (span.start..span.end).for_each(|at| expected[at as usize] = byte_of(id, at));
                    Vec::new()
                }
            });
            device.brought.push(vec![0; wanted[id as usize].len()]);
            let local = [Memory::Pool, Memory::Registered, Memory::Alone][*memory];
            queue.push(Request { id, direction, span, memory: local });
            for (posts, choice) in then {
                if *posts {
                    post(&mut queue, 1 + choice % 4, &mut device)?;
                } else if !device.in_flight.is_empty()
                    && let Some(work) = device.step(*choice)
                {
                    queue.on_work_ended(&work);
                }
            }
        }
        // All work ends: whenever nothing is in flight, something can be posted.
        while queue.waiting() > 0 || !device.in_flight.is_empty() {
            let posted = post(&mut queue, 4, &mut device)?;
            prop_assert!(posted || !device.in_flight.is_empty(), "{} requests wait for nothing", queue.waiting());
            while !device.in_flight.is_empty() {
                if let Some(work) = device.step(device.in_flight.len() * 31 + 5) {
                    queue.on_work_ended(&work);
                }
            }
        }
        prop_assert_eq!(device.memory, expected);
        prop_assert_eq!(device.brought, wanted);
        let counts = queue.counts();
        prop_assert_eq!(counts.reads + counts.writes, steps.len() as u64);
        prop_assert_eq!(counts.read_work + counts.write_work + counts.merged, steps.len() as u64);
        prop_assert_eq!(counts.doorbells + counts.chained, counts.read_work + counts.write_work);
        prop_assert_eq!((queue.in_flight(), queue.in_flight_bytes()), (0, 0));
        if !limits.combining.merges() {
            prop_assert_eq!(counts.merged, 0);
        }
    }

    /// The result of table I for every load: chaining saves no work request.
    #[test]
    fn merges_equally_with_and_without_chaining(
        pages in Just((0..60_u64).collect::<Vec<_>>()).prop_shuffle(), count in 1..60_usize
    ) {
        let work = |combining| {
            let work = WorkLimits { elements: 64, bytes: 1 << 30, pool_bytes: 1 << 30 };
            let limits = Limits { combining, chain: 64, look_ahead: 64, work };
            let mut queue = MergeQueue::new(limits, Box::new(Window::OPEN), 1 << 20);
            for (id, page) in (0..).zip(&pages[..count]) {
                let span = Span::new(0, page * 16, 16).unwrap();
                queue.push(Request { id, direction: Direction::Read, span, memory: Memory::Pool });
            }
            let mut doorbell = Doorbell::default();
            while queue.next(64, &mut doorbell) {}
            queue.counts().read_work
        };
        prop_assert_eq!(work(Combining::Merge), work(Combining::MergeAndChain));
        prop_assert_eq!(work(Combining::Single), work(Combining::Doorbell));
        prop_assert!(work(Combining::Merge) <= work(Combining::Single));
    }
}

#[test]
fn delays_a_read_only_behind_an_overlapping_write() {
    let work = WorkLimits { elements: 4, bytes: 100, pool_bytes: 100 };
    let limits = Limits { combining: Combining::MergeAndChain, chain: 4, look_ahead: 16, work };
    let mut queue = MergeQueue::new(limits, Box::new(Window::OPEN), 1024);
    let push = |queue: &mut MergeQueue, id, direction, start| {
        let span = Span::new(0, start, 10).unwrap();
        queue.push(Request { id, direction, span, memory: Memory::Pool });
    };
    push(&mut queue, 0, Direction::Write, 0);
    push(&mut queue, 1, Direction::Read, 5);
    push(&mut queue, 2, Direction::Read, 50);
    // It overlaps the waiting read, but nothing in flight.
    push(&mut queue, 3, Direction::Write, 12);
    let mut doorbell = Doorbell::default();
    let ids = |doorbell: &Doorbell| doorbell.members.iter().map(|m| m.id).collect::<Vec<_>>();
    assert!(queue.next(8, &mut doorbell));
    assert_eq!(ids(&doorbell), [0, 2]);
    let first = doorbell.work.clone();
    assert!(!queue.next(8, &mut doorbell));
    queue.on_work_ended(&first[0]);
    assert!(queue.next(8, &mut doorbell));
    assert_eq!(ids(&doorbell), [1]);
    queue.on_work_ended(&doorbell.work[0].clone());
    assert!(queue.next(8, &mut doorbell));
    assert_eq!((ids(&doorbell), queue.counts().overlapping), (vec![3], 2));
}
