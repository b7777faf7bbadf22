//! Operations over networks with and without faults.

use crate::support::*;
use farcall_sim::{Config, Faults};
use farcall_verbs::*;

fn configs() -> Vec<Config> {
    let mut configs = vec![Config::new(1)];
    for seed in 2..12 {
        let mut config = Config::new(seed);
        config.faults = Faults::BAD;
        config.params.placement_in_order = seed % 2 == 0;
        configs.push(config);
    }
    configs
}

const SIZES: [usize; 8] = [0, 1, 8, 1_023, 1_024, 1_025, 5_000, 70_000];

#[test]
fn writes_and_reads_arrive_whole_over_a_bad_network() {
    for config in configs() {
        let mut p = Pair::new(config, QpType::Rc);
        for (id, len) in SIZES.into_iter().enumerate() {
            let bytes = pattern(id as u64, len);
            p.a.put(0, &bytes);
            let (sges, to) = ([p.a.sge(0, len)], (p.b.addr() + 64, p.b.mr.rkey()));
            p.a.send(&[SendWr::write(id as u64, &sges, to.0, to.1).with_flags(SIGNALED)]);
            let wc = p.wait_a();
            assert_eq!(
                (wc.wr_id, wc.status, wc.opcode),
                (id as u64, WcStatus::SUCCESS, WcOpcode::RDMA_WRITE)
            );
            assert_eq!(p.b.get(64, len), bytes);
            assert_eq!(p.b.get(64 + len, 8), [0; 8]);
            p.b.put(64, &vec![0; len]);

            p.b.put(200_000, &bytes);
            let sges = [p.a.sge(300_000, len)];
            let from = (p.b.addr() + 200_000, p.b.mr.rkey());
            p.a.send(&[SendWr::read(99, &sges, from.0, from.1).with_flags(SIGNALED)]);
            let wc = p.wait_a();
            assert_eq!((wc.wr_id, wc.status, wc.opcode), (99, WcStatus::SUCCESS, WcOpcode::RDMA_READ));
            assert_eq!(p.a.get(300_000, len), bytes);
        }
    }
}

#[test]
fn sends_meet_receives_in_order_over_a_bad_network() {
    for config in configs() {
        let mut p = Pair::new(config, QpType::Rc);
        for (id, len) in SIZES.into_iter().enumerate() {
            p.b.recv(100 + id as u64, &[p.b.sge(100_000 * id, 30), p.b.sge(100_000 * id + 30, 70_000)]);
            p.a.put(100_000 * id, &pattern(id as u64, len));
        }
        for (id, len) in SIZES.into_iter().enumerate() {
            let sges = [p.a.sge(100_000 * id, len)];
            let flags = if id == SIZES.len() - 1 { SIGNALED } else { SendFlags::empty() };
            p.a.send(&[SendWr::send(id as u64, &sges).with_imm(id as u32).with_flags(flags)]);
        }
        for (id, len) in SIZES.into_iter().enumerate() {
            let wc = p.wait_b();
            assert_eq!((wc.wr_id, wc.status, wc.byte_len), (100 + id as u64, WcStatus::SUCCESS, len as u32));
            assert_eq!((wc.opcode, wc.imm()), (WcOpcode::RECV, Some(id as u32)));
            assert_eq!(p.b.get(100_000 * id, len), pattern(id as u64, len));
        }
        assert_eq!(p.wait_a().wr_id, SIZES.len() as u64 - 1);
        assert_eq!((p.a.poll(), p.b.poll()), (None, None));
    }
}

#[test]
fn atomics_are_executed_once_over_a_bad_network() {
    for config in configs() {
        let mut p = Pair::new(config, QpType::Rc);
        p.b.put(0, &5u64.to_ne_bytes());
        for i in 0..30 {
            let sges = [p.a.sge(8 * i, 8)];
            let at = AtomicTarget { remote_addr: p.b.addr(), compare_add: 3, swap: 0, rkey: p.b.mr.rkey() };
            let wr = SendWr::atomic(WrOpcode::ATOMIC_FETCH_AND_ADD, i as u64, &sges, at);
            p.a.send(&[wr.with_flags(SIGNALED)]);
        }
        for i in 0..30 {
            let wc = p.wait_a();
            assert_eq!((wc.wr_id, wc.status, wc.opcode), (i, WcStatus::SUCCESS, WcOpcode::FETCH_ADD));
            assert_eq!(p.a.word(8 * i as usize), 5 + 3 * i);
        }
        for (compare, found, after) in [(1, 95, 95), (95, 95, 7), (95, 7, 7)] {
            let sges = [p.a.sge(0, 8)];
            let at =
                AtomicTarget { remote_addr: p.b.addr(), compare_add: compare, swap: 7, rkey: p.b.mr.rkey() };
            p.a.send(&[SendWr::atomic(WrOpcode::ATOMIC_CMP_AND_SWP, 1, &sges, at).with_flags(SIGNALED)]);
            assert_eq!(p.wait_a().opcode, WcOpcode::COMP_SWAP);
            assert_eq!((p.a.word(0), p.b.word(0)), (found, after));
        }
    }
}

/// A region of zero bytes can be registered and permits no access; peers address regions only by the simulator's remote
/// addresses.
#[test]
fn registers_a_region_of_no_bytes() {
    let mut p = Pair::new(Config::new(1), QpType::Rc);
    let mut memory = [0_u8; 64];
    // SAFETY: the memory outlives its region.
    let empty = unsafe { p.b.pd.reg_mr(memory.as_mut_ptr(), 0, ALL) }.unwrap();
    let nothing = [p.a.sge(0, 0)];
    p.a.send(&[SendWr::write(1, &nothing, empty.remote_addr(), empty.rkey()).with_flags(SIGNALED)]);
    assert_eq!(p.wait_a().status, WcStatus::SUCCESS);
    let one = [p.a.sge(0, 1)];
    p.a.send(&[SendWr::write(2, &one, empty.remote_addr(), empty.rkey()).with_flags(SIGNALED)]);
    assert_eq!(p.wait_a().status, WcStatus::REM_ACCESS_ERR);
    assert!(p.b.pd.alloc_mr(0, ALL).is_err(), "there is no memory of no bytes");
    let zero_based = MrMemory::new(memory.as_mut_ptr(), 64).named_from(0);
    // SAFETY: the call is refused, so the memory is not registered.
    let refused = unsafe { p.b.pd.reg_mr_at(zero_based, ALL) };
    assert!(refused.is_err_and(|error| error.to_string().contains("reg_mr_at")));
}

#[test]
fn an_unreliable_message_comes_whole_or_not_at_all() {
    let mut lost = 0;
    for config in configs() {
        let is_well = config.faults == Faults::NONE;
        let mut p = Pair::new(config, QpType::Uc);
        for i in 0..20 {
            p.b.recv(i, &[p.b.sge(10_000 * i as usize, 10_000)]);
        }
        for i in 0..20 {
            p.a.put(0, &pattern(i, 2_500));
            let sges = [p.a.sge(0, 2_500)];
            p.a.send(&[SendWr::send(i, &sges).with_imm(i as u32).with_flags(SIGNALED)]);
            assert_eq!(p.wait_a().status, WcStatus::SUCCESS);
        }
        p.settle();
        let mut next = 0;
        while let Some(wc) = p.b.poll() {
            assert_eq!((wc.wr_id, wc.status, wc.byte_len), (next, WcStatus::SUCCESS, 2_500));
            let imm = u64::from(wc.imm().unwrap());
            assert!(imm >= next);
            assert_eq!(p.b.get(10_000 * next as usize, 2_500), pattern(imm, 2_500));
            next += 1;
        }
        lost += 20 - next;
        assert!(!is_well || next == 20);
    }
    assert!(lost > 0, "the bad networks lost nothing");
}

#[test]
fn a_fence_waits_for_earlier_reads() {
    let mut changed = 0;
    for (seed, fence) in (0..40).flat_map(|seed| [(seed, true), (seed, false)]) {
        let mut p = Pair::new(Config::new(seed), QpType::Rc);
        p.b.put(0, &[1; 20_000]);
        p.a.put(50_000, &[2; 20_000]);
        let (read, write) = ([p.a.sge(0, 20_000)], [p.a.sge(50_000, 20_000)]);
        let to = (p.b.addr(), p.b.mr.rkey());
        let flags = if fence { SendFlags::FENCE | SIGNALED } else { SIGNALED };
        p.a.send(&[
            SendWr::read(1, &read, to.0, to.1).with_flags(SIGNALED),
            SendWr::write(2, &write, to.0, to.1).with_flags(flags),
        ]);
        assert_eq!((p.wait_a().wr_id, p.wait_a().wr_id), (1, 2));
        let is_old = p.a.get(0, 20_000) == [1; 20_000];
        assert!(is_old || !fence, "a fenced write overtook a read");
        changed += u32::from(!is_old);
        assert_eq!(p.b.get(0, 20_000), [2; 20_000]);
    }
    assert!(changed > 0, "without a fence, no write ever overtook a read");
}

#[test]
fn the_final_byte_comes_last_only_where_that_is_promised() {
    let mut early = 0;
    for (seed, in_order) in (0..60).flat_map(|seed| [(seed, true), (seed, false)]) {
        let mut config = Config::new(seed);
        config.params.placement_in_order = in_order;
        let mut p = Pair::new(config, QpType::Rc);
        assert_eq!(p.b.qp.places_in_order(&*p.b.mr), in_order);
        p.a.put(0, &[9; 2_000]);
        let (sges, to) = ([p.a.sge(0, 2_000)], (p.b.addr(), p.b.mr.rkey()));
        p.a.send(&[SendWr::write(1, &sges, to.0, to.1).with_flags(SIGNALED)]);
        let b = &p.b;
        assert!(p.world.run_while_not(LOST, |_| b.get(1_999, 1) == [9]));
        let is_whole = p.b.get(0, 2_000) == [9; 2_000];
        assert!(is_whole || !in_order);
        early += u32::from(!is_whole);
        p.wait_a();
        assert_eq!(p.b.get(0, 2_000), [9; 2_000], "whole when acknowledged");
    }
    assert!(early > 0, "the final byte never came early");
}

#[test]
fn a_source_is_read_when_the_device_gets_to_it() {
    let mut p = Pair::rc();
    p.a.put(0, &[1; 8]);
    let (sges, to) = ([p.a.sge(0, 8)], (p.b.addr(), p.b.mr.rkey()));
    p.a.send(&[
        SendWr::write(1, &sges, to.0, to.1).with_flags(SIGNALED),
        SendWr::write(2, &sges, to.0 + 8, to.1).with_flags(SendFlags::INLINE | SIGNALED),
    ]);
    // Too early: the payload of the first request has not been read yet, that of the inline one has.
    p.a.put(0, &[2; 8]);
    assert_eq!((p.wait_a().wr_id, p.wait_a().wr_id), (1, 2));
    assert_eq!((p.b.get(0, 8), p.b.get(8, 8)), (vec![2; 8], vec![1; 8]));
}
