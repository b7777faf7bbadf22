//! Sending rate of queue pairs whose packets are marked as having met congestion.

use std::time::Duration;

use crate::support::*;
use farcall_sim::{Bottleneck, Config, Faults, RecordKind, World};
use farcall_verbs::*;
use farcall_wire::{Dcqcn, RateBounds, RateControl};

/// Length that counts for a packet in addition to its payload.
const HEADERS_BYTES: u64 = 64;
const MTU_BYTES: u64 = 1024;
const PACKET_BYTES: u64 = MTU_BYTES + HEADERS_BYTES;
const MESSAGE_PACKETS: u64 = 4;
const LEN_BYTES: usize = (MESSAGE_PACKETS * MTU_BYTES) as usize;
/// Number of messages that a sender keeps posted.
const POSTED: usize = 64;

const BOUNDS: RateBounds = RateBounds { min_bytes_per_s: 10_000_000, max_bytes_per_s: 1_000_000_000 };

fn bounded(now_ns: u64) -> Box<dyn RateControl> {
    Box::new(Dcqcn::new(BOUNDS, now_ns))
}

fn config() -> Config {
    let mut config = Config::new(3);
    config.params.rate_control = bounded;
    config.keep_records = 1 << 21;
    config
}

/// A sender that always has requests posted, and the number of completed ones.
struct Flow {
    end: End,
    to: (u64, u32),
    posted: usize,
    packets: u64,
}

impl Flow {
    fn new(end: End, to: &End) -> Self {
        end.put(0, &pattern(1, LEN_BYTES));
        let to = (to.addr(), to.mr.rkey());
        Self { end, to, posted: 0, packets: 0 }
    }

    fn go_on(&mut self) {
        while let Some(wc) = self.end.poll() {
            assert_eq!(wc.status, WcStatus::SUCCESS);
            self.posted -= 1;
            self.packets += MESSAGE_PACKETS;
        }
        let sges = [self.end.sge(0, LEN_BYTES)];
        let wr = SendWr::write(1, &sges, self.to.0, self.to.1).with_flags(SIGNALED);
        let missing = POSTED - self.posted;
        self.posted = POSTED;
        self.end.send(&vec![wr; missing]);
    }
}

/// Runs flows for a time; returns the number of packets of each that have completed by then.
fn run(world: &mut World, flows: &mut [Flow], time: Duration) -> Vec<u64> {
    let (until, before) = (world.now() + time, flows.iter().map(|flow| flow.packets).collect::<Vec<_>>());
    while world.now() < until {
        world.run_for(Duration::from_micros(10));
        flows.iter_mut().for_each(Flow::go_on);
    }
    flows.iter().zip(before).map(|(flow, before)| flow.packets - before).collect()
}

fn count(world: &World, is_meant: impl Fn(&RecordKind) -> bool) -> usize {
    world.last_records().iter().filter(|record| is_meant(&record.kind)).count()
}

fn assert_nothing_was_sent_twice(world: &World) {
    let is_wrong = |what: &RecordKind| {
        matches!(what, RecordKind::GoBack | RecordKind::Timeout | RecordKind::Ignore | RecordKind::Drop)
    };
    assert_eq!(count(world, is_wrong), 0);
}

fn marks(ppm: u32) -> Faults {
    Faults { mark_ppm: ppm, ..Faults::NONE }
}

/// Returns the bytes that DCQCN permits in `periods` periods of 55 us after the last notification, which left the
/// minimum rate: four periods at this rate, then R_T grows by 5 MB/s in each, and R_C by half of the distance to it.
fn bytes_of_recovery(periods: u32) -> f64 {
    let (mut target, mut current, mut bytes) = (10e6, 10e6, 0.0);
    for nth in 1..=periods {
        bytes += current * 55e-6;
        target += if nth >= 5 { 5e6 } else { 0.0 };
        current = f64::midpoint(current, target);
    }
    bytes
}

#[test]
fn lowers_the_rate_while_marked_and_recovers_by_the_formulas() {
    let Pair { mut world, a, b } = Pair::new(config(), QpType::Rc);
    let mut flow = [Flow::new(a, &b)];
    // Only the window limits it: 64 packets in flight for some 2 us.
    let [unbounded] = run(&mut world, &mut flow, Duration::from_millis(1))[..] else { unreachable!() };
    assert!(unbounded * PACKET_BYTES > 2 * BOUNDS.max_bytes_per_s / 1_000, "{unbounded} packets in 1 ms");
    world.set_faults(marks(1_000_000));
    run(&mut world, &mut flow, Duration::from_millis(2));
    let [slow] = run(&mut world, &mut flow, Duration::from_millis(100))[..] else { unreachable!() };
    let at_least_rate = BOUNDS.min_bytes_per_s / 10 / PACKET_BYTES;
    assert!(slow.abs_diff(at_least_rate) <= MESSAGE_PACKETS, "{slow} packets in 100 ms, not {at_least_rate}");

    world.set_faults(Faults::NONE);
    let [recovering] = run(&mut world, &mut flow, Duration::from_micros(55 * 100))[..] else {
        unreachable!()
    };
    let (bytes, expected) = ((recovering * PACKET_BYTES) as f64, bytes_of_recovery(100));
    assert!((bytes - expected).abs() < expected / 50.0, "{bytes} bytes in 100 periods, not {expected}");
    // (1 GB/s - 10 MB/s) / 5 MB/s = 198 periods of additive increase, and the first four: 11.1 ms. After that there is
    // no limit.
    run(&mut world, &mut flow, Duration::from_micros(55 * 104));
    let [again] = run(&mut world, &mut flow, Duration::from_millis(1))[..] else { unreachable!() };
    assert!(again * 10 >= unbounded * 9, "{again} packets in 1 ms, {unbounded} before");
    assert_eq!(b.get(0, LEN_BYTES), pattern(1, LEN_BYTES));
    assert_nothing_was_sent_twice(&world);
}

#[test]
fn a_read_is_slowed_down_where_its_data_comes_from() {
    let mut p = Pair::new(config(), QpType::Rc);
    p.b.put(0, &pattern(7, 200 * MTU_BYTES as usize));
    p.world.set_faults(marks(1_000_000));
    let sges = [p.a.sge(0, 200 * MTU_BYTES as usize)];
    p.a.send(&[SendWr::read(1, &sges, p.b.addr(), p.b.mr.rkey()).with_flags(SIGNALED)]);
    let began = p.world.now();
    assert_eq!(p.wait_a().status, WcStatus::SUCCESS);
    let took_ns = p.world.now().0 - began.0;
    // At 1 GB/s it would be 218 us. About half of the packets are sent before the minimum rate is reached.
    let slowest_ns = 200 * PACKET_BYTES * 1_000_000_000 / BOUNDS.min_bytes_per_s;
    assert!((slowest_ns / 4..slowest_ns).contains(&took_ns), "{took_ns} ns, at most {slowest_ns}");
    assert_eq!(p.a.get(0, 200 * MTU_BYTES as usize), pattern(7, 200 * MTU_BYTES as usize));
    assert_nothing_was_sent_twice(&p.world);
}

/// Two senders to one node behind a bottleneck; the second begins when the first uses all of it. Returns the completed
/// packets of the first alone in 5 ms, and of each in 60 ms.
fn share(bytes_per_s: u64) -> (u64, Vec<u64>) {
    let mut config = config();
    config.params.rate_control = farcall_wire::dcqcn;
    let mut world = World::new(config);
    let hosts = [(); 3].map(|()| world.add_node());
    // K_min, K_max and P_max of the paper (section 5.2).
    let bottleneck =
        Bottleneck { bytes_per_s, mark_min_bytes: 5_000, mark_max_bytes: 200_000, mark_max_ppm: 10_000 };
    world.add_bottleneck(hosts[2].id(), bottleneck);
    let mut receivers = Vec::new();
    let mut flows = [0, 1].map(|at| {
        let [mut from, mut to] = [&hosts[at], &hosts[2]].map(|host| End::new(host, QpType::Rc, None));
        let (to_from, to_to) = ((from.path(), from.qp.qp_num()), (to.path(), to.qp.qp_num()));
        for (end, (path, dest)) in [(&mut from, to_to), (&mut to, to_from)] {
            end.init();
            end.rtr(path, dest, Mtu::Mtu1024);
            end.rts();
        }
        let flow = Flow::new(from, &to);
        receivers.push(to);
        flow
    });
    run(&mut world, &mut flows[..1], Duration::from_millis(5));
    let alone = run(&mut world, &mut flows[..1], Duration::from_millis(5))[0];
    run(&mut world, &mut flows, Duration::from_millis(20));
    let shares = run(&mut world, &mut flows, Duration::from_millis(60));
    assert_nothing_was_sent_twice(&world);
    (alone, shares)
}

#[test]
fn two_flows_over_one_bottleneck_come_to_fair_shares() {
    // Links of 1 and 8 Gbit/s.
    for bytes_per_s in [125_000_000, 1_000_000_000] {
        let (alone, shares) = share(bytes_per_s);
        let all = bytes_per_s * 6 / 100 / PACKET_BYTES;
        assert!(alone * 12 > all * 9 / 10, "{alone} in 5 ms, {all} in 60");
        for share in &shares {
            assert!((all * 45 / 100..all * 55 / 100).contains(share), "{shares:?} of {all}");
        }
    }
}
