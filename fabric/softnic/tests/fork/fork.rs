//! Fork while connected: the child disturbs no other process, its inherited objects report why they do not work, and
//! its descriptors do not hide its parent's exit.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::support::process::*;
use crate::support::*;
use farcall_verbs::{Access, Error, Notify, QpAttr, QpCap, QpState, Result, Revoked, SendWr, WcStatus};

#[test]
fn child_entry() {
    let Some((role, _, mut line)) = role() else { return };
    match role.as_str() {
        "forks" => forks(&mut line),
        "forks and execs" => forks_and_execs(&mut line),
        "forks and dies" => forks_and_dies(&mut line),
        other => panic!("unknown role {other}"),
    }
    std::process::exit(0);
}

/// Responds to `rounds` messages.
fn echo(end: &mut End, rounds: u64) {
    for _ in 0..rounds {
        end.recv(1, &[end.sge(0, 4096)]);
        let wc = end.sleep(Notify::Any);
        assert_eq!(wc.status, WcStatus::SUCCESS);
        let sges = [end.sge(0, wc.byte_len as usize)];
        end.send(&[SendWr::send(2, &sges).with_flags(SIGNALED)]);
        assert_eq!(end.wait().status, WcStatus::SUCCESS);
    }
}

/// The other end of [`echo`]: one round trip.
fn ask(end: &mut End, seed: u64) {
    end.put(0, &bytes(3000, seed));
    end.recv(7, &[end.sge(8192, 4096)]);
    let sges = [end.sge(0, 3000)];
    end.send(&[SendWr::send(8, &sges)]);
    let wc = end.wait();
    assert_eq!((wc.wr_id, wc.status), (7, WcStatus::SUCCESS));
    assert!(end.get(8192, 3000) == bytes(3000, seed));
}

fn refuses<T>(result: Result<T>, what: &str) {
    match result {
        Err(error @ Error::InvalidState { .. }) => {
            assert!(error.to_string().contains("fork"), "{what}: {error}")
        }
        Err(other) => panic!("{what}: {other}"),
        Ok(_) => panic!("{what} worked in the child"),
    }
}

/// Calls every operation of an inherited end.
fn inherited_objects_refuse(end: &mut End) {
    let sges = [end.sge(0, 8)];
    // SAFETY: nothing is posted.
    unsafe {
        let posted = end.qp.post_send(&[SendWr::send(1, &sges)]);
        refuses(posted.map_err(|e| *e.source), "post_send");
        let posted = end.qp.post_recv(&[farcall_verbs::RecvWr::new(1, &sges)]);
        refuses(posted.map_err(|e| *e.source), "post_recv");
        let mut word = 0_u64;
        refuses(end.pd.reg_mr((&raw mut word).cast(), 8, Access::LOCAL_WRITE), "reg_mr");
    }
    refuses(end.cq.poll(&mut [farcall_verbs::Wc::default(); 4]), "poll");
    refuses(end.cq.req_notify(Notify::Any), "req_notify");
    refuses(end.channel.poll_cq_event(), "poll_cq_event");
    refuses(end.qp.modify(&QpAttr::to(QpState::Err)), "modify");
    refuses(end.pd.alloc_mr(4096, ALL), "alloc_mr");
    refuses(end.context.alloc_pd(), "alloc_pd");
    refuses(end.context.create_comp_channel(), "create_comp_channel");
}

/// Returns the counters that this process publishes for its queue pairs.
fn counters() -> String {
    let report = farcall_stats::read_pid(std::process::id()).unwrap();
    let shown =
        report.blocks.iter().map(|block| format!("{} {} {:?}", block.label, block.live, block.counters));
    shown.collect::<Vec<_>>().join("; ")
}

/// Forks children that perform every forbidden operation, and echoes in between to verify that nothing has changed.
fn forks(line: &mut Line) {
    let (mut end, _) = connect(line, QpCap::default()).unwrap();
    let mut heap = vec![7_u64; 512];
    // SAFETY: the heap memory outlives the region.
    let mr = unsafe { end.pd.reg_mr(heap.as_mut_ptr().cast(), 4096, ALL) }.unwrap();
    line.say([1, mr.addr() as u64, mr.rkey().into(), 0]);
    echo(&mut end, 1);
    // A receive is posted and the queue is armed, so the child could steal the event.
    end.put(65_536, &[1; 64]);
    let code = in_child(|| inherited_objects_refuse(&mut end));
    assert_eq!(code, 0, "inherited objects");
    line.say([2, 0, 0, 0]);
    echo(&mut end, 1);

    let counted = counters();
    // The child overwrites its copies and drops all objects.
    let End { context, pd, channel, cq, qp, mr: pool } = end;
    let (pool_addr, pool_len) = (pool.addr(), pool.len_bytes());
    let mut parts = Some((context, pd, channel, cq, qp, pool, mr));
    let code = in_child(|| {
        // SAFETY: the memory is the child's own copy of the allocated region.
        unsafe { pool_addr.write_bytes(0xEE, pool_len) };
        let (context, pd, channel, cq, qp, pool, mr) = parts.take().unwrap();
        drop(qp);
        assert_eq!(mr.dereg(), Revoked::Now);
        assert_eq!(pool.dereg(), Revoked::Now);
        drop((cq, channel, pd, context));
    });
    assert_eq!(code, 0, "drops");
    let (context, pd, channel, cq, qp, pool, mr) = parts.take().unwrap();
    let mut end = End { context, pd, channel, cq, qp, mr: pool };
    assert_eq!(end.qp.state(), QpState::Rts);
    assert!(counters() == counted, "the child counted in its parent's statistics");
    assert_eq!(end.get(65_536, 64), [1; 64], "the child wrote into its parent's pool");
    line.say([3, 0, 0, 0]);
    echo(&mut end, 1);

    let counted = counters();
    // The child opens the device again, and so does a child of its own.
    let code = in_child(|| {
        let work = || {
            let (mut a, mut b) = pair();
            a.put(0, &bytes(5000, 9));
            b.recv(1, &[b.sge(0, 5000)]);
            let sges = [a.sge(0, 5000)];
            a.send(&[SendWr::send(1, &sges).with_imm(3)]);
            assert_eq!(b.sleep(Notify::Any).imm(), Some(3));
            assert!(b.get(0, 5000) == bytes(5000, 9));
        };
        work();
        assert_eq!(in_child(work), 0);
        work();
    });
    assert_eq!(code, 0, "a new device in the child");
    assert!(counters() == counted, "the child counted in its parent's statistics");
    line.say([4, 0, 0, 0]);
    echo(&mut end, 1);
    assert_eq!(mr.dereg(), Revoked::Now);
    drop(heap);
    line.hear();
}

#[test]
fn keeps_traffic_and_opens_the_device_in_a_forked_child() {
    let mut other = start("forks", &[]);
    let (mut end, _) = connect(&mut other.line, QpCap::default()).unwrap();
    let [_, addr, key, _] = other.line.hear().unwrap();
    let key = key as u32;
    ask(&mut end, 1);
    for step in 2..=4 {
        assert_eq!(other.line.hear(), Some([step, 0, 0, 0]));
        let sges = [end.sge(0, 16)];
        end.put(0, &[step as u8; 16]);
        end.send(&[SendWr::write(9, &sges, addr, key).with_flags(SIGNALED)]);
        assert_eq!(end.wait().status, WcStatus::SUCCESS, "its private memory after step {step}");
        ask(&mut end, step);
    }
    other.line.say([0; 4]);
    assert_eq!(other.wait(), ProcessState::Exited(0));
}

fn forks_and_execs(line: &mut Line) {
    let (mut end, _) = connect(line, QpCap::default()).unwrap();
    line.say([1, 0, 0, 0]);
    for i in 0..10 {
        let mut command = Command::new("true");
        if i % 2 == 0 {
            // A `pre_exec` closure forces a fork and an exec instead of a spawn.
            // SAFETY: the closure does nothing.
            unsafe { command.pre_exec(|| Ok(())) };
        }
        assert!(command.status().unwrap().success());
        echo(&mut end, 1);
    }
    line.hear();
}

#[test]
fn fork_and_exec_while_connected_changes_nothing() {
    let mut other = start("forks and execs", &[]);
    let (mut end, _) = connect(&mut other.line, QpCap::default()).unwrap();
    other.line.hear().unwrap();
    for i in 0..10 {
        ask(&mut end, i);
    }
    other.line.say([0; 4]);
    assert_eq!(other.wait(), ProcessState::Exited(0));
}

/// Leaves a child that holds all that it inherited until it is killed.
fn forks_and_dies(line: &mut Line) {
    let (_end, _) = connect(line, QpCap::default()).unwrap();
    // SAFETY: the child only waits for its end.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        loop {
            // SAFETY: the call only sleeps. The test kills this process; otherwise it ends after the sleep.
            unsafe {
                libc::alarm(60);
                libc::pause()
            };
        }
    }
    line.say([1, pid as u64, 0, 0]);
    line.hear();
}

#[test]
fn detects_the_exit_of_a_parent_whose_children_live() {
    let mut other = start("forks and dies", &[]);
    let (mut end, to) = connect(&mut other.line, QpCap::default()).unwrap();
    let [_, child, ..] = other.line.hear().unwrap();
    // No receive is posted there, so the request waits as long as the peer exists.
    let sges = [end.sge(0, 64)];
    end.send(&[SendWr::send(1, &sges)]);
    other.kill();
    assert_eq!(end.wait().status, WcStatus::RETRY_EXC_ERR);
    assert_eq!(other.wait(), ProcessState::Killed(libc::SIGKILL));
    // Its number leads to no process, although the child exists.
    let mut late = End::default();
    late.init();
    late.rtr(to.qpn);
    late.rts_impatient();
    late.send(&[SendWr::send(1, &[])]);
    assert_eq!(late.wait().status, WcStatus::RETRY_EXC_ERR);
    // SAFETY: signal 0 only tests whether the process exists; then it is killed. It was started by this test.
    unsafe {
        assert_eq!(libc::kill(child as libc::pid_t, 0), 0, "the child was to live");
        libc::kill(child as libc::pid_t, libc::SIGKILL);
    }
}
