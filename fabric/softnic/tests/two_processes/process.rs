//! Separate processes: every operation between two of them, exits, crashes, stops, invalid messages, and other users.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use crate::support::datagrams::Ud;
use crate::support::process::*;
use crate::support::*;
use farcall_verbs::{Error, Mtu, Notify, QpAttr, QpCap, QpState, Revoked, SendWr, WcOpcode, WcStatus};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

#[test]
fn child_entry() {
    let Some((role, _, mut line)) = role() else { return };
    match role.as_str() {
        "echo" => echo(&mut line),
        "holder" => holder(&mut line),
        "stranger" => stranger(&mut line),
        "host" => host(&mut line),
        "caller" => caller(&mut line),
        other => panic!("unknown role {other}"),
    }
    std::process::exit(0);
}

/// Sends every message back until its peer sends an immediate of 0.
fn echo(line: &mut Line) {
    let (mut end, _) = connect(line, QpCap::default()).unwrap();
    for i in 0..16 {
        end.recv(i, &[end.sge(i as usize * 32_768, 32_768)]);
    }
    line.say([1, 0, 0, 0]);
    loop {
        let wc = end.sleep(Notify::Any);
        if wc.opcode == WcOpcode::SEND {
            continue;
        }
        if wc.imm() == Some(0) {
            return;
        }
        let sges = [end.sge(wc.wr_id as usize * 32_768, wc.byte_len as usize)];
        end.send(&[SendWr::send(wc.wr_id, &sges).with_imm(wc.imm().unwrap()).with_flags(SIGNALED)]);
        while end.wait().opcode != WcOpcode::SEND {}
        end.recv(wc.wr_id, &[end.sge(wc.wr_id as usize * 32_768, 32_768)]);
    }
}

/// Connects, posts as many receives as requested, and then only waits.
fn holder(line: &mut Line) {
    let receives = line.hear().unwrap()[0];
    let (mut end, _) = connect(line, QpCap::default()).unwrap();
    for i in 0..receives {
        end.recv(i, &[end.sge(0, 64 << 10)]);
    }
    line.say([1, 0, 0, 0]);
    line.hear();
    // It was resumed: everything that was sent to it is here.
    for i in 0..receives {
        assert_eq!(end.wait().wr_id, i);
    }
    line.say([2, 0, 0, 0]);
    line.hear();
}

/// Runs as another user, and must not be able to connect or be connected to. Opens its socket to all users.
fn stranger(line: &mut Line) {
    let to = learn(line).unwrap();
    // SAFETY: the system calls use no memory of this process, which has no other thread that depends on its
    // credentials.
    let dropped = unsafe { libc::setgid(65534) == 0 && libc::setuid(65534) == 0 };
    assert!(dropped);
    let mut end = End::default();
    end.init();
    let error = end.qp.modify(&QpAttr::rtr(to.qpn, 0, end.path(), Mtu::Mtu4096)).unwrap_err();
    let path = farcall_softnic::rendezvous_path(end.qp.qp_num()).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).unwrap();
    line.say([u64::from(is_refused_user(&error)), 0, 0, 0]);
    tell(line, &end);
    line.hear();
}

fn is_refused_user(error: &Error) -> bool {
    matches!(error, Error::Peer { .. }) && error.to_string().contains("user")
}

/// Connects to a process of another user through a directory that both may change.
fn host(line: &mut Line) {
    let mut end = End::default();
    end.init();
    tell(line, &end);
    let theirs = learn(line).unwrap();
    let error = end.qp.modify(&QpAttr::rtr(theirs.qpn, 0, end.path(), Mtu::Mtu4096)).unwrap_err();
    assert_eq!(end.qp.state(), QpState::Init);
    line.say([u64::from(is_refused_user(&error)), 0, 0, 0]);
    line.hear();
}

/// Starts an echo process, which finds it through the common environment, and communicates with it.
fn caller(line: &mut Line) {
    let (other, mut end, _) = started("echo", None);
    end.put(0, &bytes(5000, 1));
    end.recv(7, &[end.sge(1 << 19, 5000)]);
    let sges = [end.sge(0, 5000)];
    end.send(&[SendWr::send(1, &sges).with_imm(5)]);
    assert_eq!(end.sleep(Notify::Any).wr_id, 7);
    assert!(end.get(1 << 19, 5000) == bytes(5000, 1));
    end.send(&[SendWr::send(2, &[]).with_imm(0)]);
    assert_eq!(other.wait(), ProcessState::Exited(0));
    line.say([1, (end.qp.qp_num() >> 12).into(), 0, 0]);
    line.hear();
}

fn started(role: &str, receives: Option<u64>) -> (Other, End, Address) {
    let mut other = start(role, &[]);
    if let Some(receives) = receives {
        other.line.say([receives, 0, 0, 0]);
    }
    let (end, to) = connect(&mut other.line, QpCap::default()).unwrap();
    assert_eq!(other.line.hear(), Some([1, 0, 0, 0]));
    (other, end, to)
}

#[test]
fn every_operation_between_two_processes_and_a_clean_end() {
    let (other, mut end, to) = started("echo", None);
    for (i, len) in [0, 8, 1000, 1025, 32_768].into_iter().enumerate() {
        let data = bytes(len, i as u64);
        end.put(0, &data);
        let (from, back) = ([end.sge(0, len)], [end.sge(1 << 19, len)]);
        end.send(&[
            SendWr::write(1, &from, to.addr + (1 << 19), to.rkey),
            SendWr::read(2, &back, to.addr + (1 << 19), to.rkey).with_flags(SIGNALED),
        ]);
        assert_eq!(end.wait().status, WcStatus::SUCCESS);
        assert!(end.get(1 << 19, len) == data);
        end.put(1 << 19, &vec![0; len]);
        end.recv(7, &[end.sge(1 << 19, len)]);
        end.send(&[SendWr::send(3, &from).with_imm(5)]);
        let wc = end.sleep(Notify::Any);
        assert_eq!((wc.wr_id, wc.imm(), wc.byte_len as usize), (7, Some(5), len));
        assert!(end.get(1 << 19, len) == data);
        end.recv(8, &[end.sge(1 << 19, len)]);
        end.send(&[SendWr::write(4, &from, to.addr + (1 << 18), to.rkey).with_imm(6)]);
        let wc = end.wait();
        assert_eq!((wc.status, wc.wr_id, wc.imm()), (WcStatus::SUCCESS, 8, Some(6)), "{len} bytes");
    }
    drop((end, other));

    let (other, mut end, _) = started("echo", None);
    end.send(&[SendWr::send(1, &[]).with_imm(0).with_flags(SIGNALED)]);
    assert_eq!(end.wait().status, WcStatus::SUCCESS);
    assert_eq!(other.wait(), ProcessState::Exited(0));
    end.send(&[SendWr::send(2, &[])]);
    assert_eq!((end.wait().status, end.qp.state()), (WcStatus::RETRY_EXC_ERR, QpState::Err));
}

#[test]
fn a_killed_peer_ends_what_waits_for_it() {
    for sleeps in [false, true] {
        let (other, mut end, _) = started("holder", Some(2));
        for i in 0..3 {
            end.recv(100 + i, &[end.sge(0, 8)]);
        }
        let sges = [end.sge(0, 8)];
        for i in 0..5 {
            end.send(&[SendWr::send(i, &sges).with_flags(SIGNALED)]);
        }
        assert_eq!(end.wait_n(2).iter().filter(|wc| wc.status.is_success()).count(), 2);
        assert_eq!(end.poll(), None, "no receive for the rest");
        let killed = Instant::now();
        other.kill();
        let next = |end: &mut End| if sleeps { end.sleep(Notify::Any) } else { end.wait() };
        let ends: Vec<_> = (0..6).map(|_| next(&mut end)).map(|wc| (wc.wr_id, wc.status)).collect();
        let took = killed.elapsed();
        println!(
            "peer killed, owner {}: all ended after {took:?}",
            if sleeps { "asleep" } else { "polling" }
        );
        let sends: Vec<_> = ends.iter().copied().filter(|(id, _)| *id < 100).collect();
        let flushed = WcStatus::WR_FLUSH_ERR;
        assert_eq!(sends, [(2, WcStatus::RETRY_EXC_ERR), (3, flushed), (4, flushed)]);
        assert!(ends.iter().filter(|(id, _)| *id >= 100).all(|(_, status)| *status == flushed));
        assert_eq!(end.mr.dereg(), Revoked::Now);
    }
}

#[test]
fn a_stopped_peer_is_still_a_target() {
    let (mut other, mut end, to) = started("holder", Some(8));
    let sges = [end.sge(0, 4096)];
    // The region is granted while the peer runs.
    end.send(&[SendWr::write(1, &sges, to.addr + (1 << 19), to.rkey).with_flags(SIGNALED)]);
    assert_eq!(end.wait().status, WcStatus::SUCCESS);
    end.send(&[SendWr::send(2, &sges).with_flags(SIGNALED)]);
    assert_eq!(end.wait().status, WcStatus::SUCCESS);
    other.stop();
    end.send(&[
        SendWr::write(3, &sges, to.addr + (1 << 19), to.rkey).with_flags(SIGNALED),
        SendWr::read(4, &sges, to.addr + (1 << 19), to.rkey).with_flags(SIGNALED),
    ]);
    (5..12).for_each(|i| end.send(&[SendWr::send(i, &sges).with_flags(SIGNALED)]));
    assert!(end.wait_n(9).iter().all(|wc| wc.status.is_success()), "posted receives are enough");
    let start = Instant::now();
    let revoked = end.pd.alloc_mr(4096, ALL).unwrap().dereg();
    println!("dereg with a stopped peer: {revoked:?} after {:?}", start.elapsed());
    assert!(start.elapsed() < LOST);
    // No receive is left: this request waits, and must not fail while the peer exists.
    end.send(&[SendWr::send(20, &sges).with_flags(SIGNALED)]);
    assert_eq!(end.poll(), None);
    other.signal(libc::SIGCONT);
    other.line.say([0; 4]);
    assert_eq!(other.line.hear(), Some([2, 0, 0, 0]), "it found everything that came while it was stopped");
    assert_eq!((end.poll(), end.qp.state()), (None, QpState::Rts));
}

/// Verifies that no request ends, with polls over a period much longer than the retries of [`End::rts_impatient`].
fn nothing_ends(end: &mut End) {
    for _ in 0..40 {
        assert_eq!(end.poll(), None);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns a process that has one receive, and a local end that is not connected to it yet.
fn unconnected_holder() -> (Other, End, Address) {
    let mut other = start("holder", &[]);
    other.line.say([1, 0, 0, 0]);
    let mut end = End::default();
    end.init();
    tell(&mut other.line, &end);
    let to = learn(&mut other.line).unwrap();
    assert_eq!(other.line.hear(), Some([1, 0, 0, 0]));
    (other, end, to)
}

/// Retries bound the silence of a network. The time that a process waits to be scheduled does not count.
#[test]
fn a_process_that_has_yet_to_answer_is_not_taken_for_silent() {
    let (mut other, mut end, to) = unconnected_holder();
    end.rtr(to.qpn);
    end.rts_impatient();
    // Certainly connected; the region is not granted.
    end.send(&[SendWr::write(1, &[], to.addr, to.rkey).with_flags(SIGNALED)]);
    assert_eq!(end.wait().status, WcStatus::SUCCESS);
    other.stop();
    let sges = [end.sge(0, 64)];
    end.send(&[
        SendWr::write(2, &sges, to.addr, to.rkey).with_flags(SIGNALED),
        SendWr::send(3, &sges).with_flags(SIGNALED),
    ]);
    nothing_ends(&mut end);
    other.signal(libc::SIGCONT);
    for wr_id in 2..4 {
        let wc = end.wait();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::SUCCESS));
    }
    other.line.say([0; 4]);
    assert_eq!(other.line.hear(), Some([2, 0, 0, 0]));
}

/// The handshake completes when the process resumes; until then connecting to it is not refused.
#[test]
fn waits_for_a_process_that_has_not_identified_itself() {
    let (mut other, mut end, to) = unconnected_holder();
    other.stop();
    end.rtr(to.qpn);
    end.rts_impatient();
    let sges = [end.sge(0, 64)];
    end.send(&[SendWr::send(1, &sges).with_flags(SIGNALED)]);
    nothing_ends(&mut end);
    other.signal(libc::SIGCONT);
    assert_eq!(end.wait().status, WcStatus::SUCCESS);
    other.line.say([0; 4]);
    assert_eq!(other.line.hear(), Some([2, 0, 0, 0]));
}

/// Requests that wait for it time out.
#[test]
fn a_process_that_does_not_answer_for_long_is_given_up() {
    let (other, mut end, to) = unconnected_holder();
    end.rtr(to.qpn);
    end.rts_impatient();
    other.stop();
    let sges = [end.sge(0, 64)];
    end.send(&[SendWr::write(1, &sges, to.addr, to.rkey)]);
    assert_eq!(end.wait().status, WcStatus::RETRY_EXC_ERR);
    assert_eq!(end.qp.state(), QpState::Err);
}

fn rendezvous(qpn: u32) -> OwnedFd {
    let socket =
        net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let path = farcall_softnic::rendezvous_path(qpn).unwrap();
    net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

/// The process may not be scheduled for a while. It used to be disconnected then, and each of its requests that waited
/// for a reply failed.
#[test]
fn a_peer_that_takes_its_answers_late_gets_all_of_them() {
    const PAUSES: u32 = 10;
    /// Version 8, request number 0: hello, without membarrier.
    const HELLO: [u8; 11] = *b"fcrv\x08\0\x01\0\0\0\0";
    let end = End::default();
    let socket = rendezvous(end.qp.qp_num());
    let (mut asked, mut pauses) = (0_u32, 0);
    // Until there is space for neither more requests nor more replies.
    while pauses < PAUSES {
        match net::send(&socket, &HELLO, net::SendFlags::NOSIGNAL | net::SendFlags::DONTWAIT) {
            Ok(_) => (asked, pauses) = (asked + 1, 0),
            Err(rustix::io::Errno::AGAIN) => {
                pauses += 1;
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            Err(error) => panic!("after {asked} questions: {error}"),
        }
    }
    for number in 1..=asked {
        let mut answer = [0_u8; 128];
        let (got, _) = net::recv(&socket, &mut answer[..], net::RecvFlags::empty()).unwrap();
        assert!(got > 0, "answer {number} of {asked} is the end");
    }
}

#[test]
fn the_service_survives_garbage_and_answers_others() {
    let end = End::default();
    // Version 8, request number 0: hello, without membarrier.
    let hello = *b"fcrv\x08\0\x01\0\0\0\0";
    let with = |at: usize, value: u8| {
        let mut frame = hello;
        frame[at] = value;
        frame.to_vec()
    };
    let frames: Vec<Vec<u8>> = vec![
        vec![0xFF; 80],
        vec![0],
        vec![0x5A; 60_000],
        hello[..7].to_vec(),
        hello[..10].to_vec(),
        // A valid start, but too long.
        [&hello[..], &[0]].concat(),
        with(0, b'X'),
        with(4, 1),
        with(5, 0xFF),
        with(6, 2),
        with(7, 0x80),
        with(9, 9),
        with(10, 7),
    ];
    for frame in &frames {
        let socket = rendezvous(end.qp.qp_num());
        let _ = net::send(&socket, frame, net::SendFlags::NOSIGNAL);
        assert!(
            readable(std::os::fd::AsRawFd::as_raw_fd(&socket), 5000),
            "no answer to {:02x?}",
            &frame[..1]
        );
        // A refusal or a closed socket, nothing else.
        let mut answer = [MaybeUninit::uninit(); 128];
        if let Ok(((answer, _), _)) = net::recv(&socket, &mut answer[..], net::RecvFlags::empty()) {
            // A reply whose first variant is the refusal.
            assert!(answer.is_empty() || answer[..10] == *b"fcrv\x08\0\x02\0\0\0", "{answer:02x?}");
        }
    }
    // Many connections without a request, and one that floods, delay no other peer.
    let idle: Vec<_> = (0..40).map(|_| rendezvous(end.qp.qp_num())).collect();
    let (mut a, mut b) = pair();
    b.recv(1, &[b.sge(0, 8)]);
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED)]);
    assert_eq!((a.wait().status, b.wait().status), (WcStatus::SUCCESS, WcStatus::SUCCESS));
    let (other, mut end, _) = started("echo", None);
    end.send(&[SendWr::send(1, &[]).with_imm(0)]);
    assert_eq!(other.wait(), ProcessState::Exited(0));
    drop(idle);
}

#[test]
fn a_question_about_a_ring_of_another_is_answered_at_once() {
    let (mut a, mut b) = (Ud::new(), Ud::new());
    b.recv(0, 8);
    a.send(b.qpn(), QKEY, &[7; 8]);
    a.until_counted("sent_late", |_| ());
    let (qpn, socket) = (b.qpn(), rendezvous(b.qpn()));
    // The queue pair number, seven bits per byte.
    let pair = [qpn as u8 | 0x80, (qpn >> 7) as u8 | 0x80, (qpn >> 14) as u8 | 0x80, (qpn >> 21) as u8];
    for bit in (0..8).cycle().take(1000) {
        // Request number 0: notify when any datagram is consumed from the ring at the bit; receives are irrelevant.
        let question = [b"fcrv\x08\0\x01\0\0\x08", &pair[..], &[bit, 0, 0]].concat();
        net::send(&socket, &question, net::SendFlags::NOSIGNAL).unwrap();
        assert!(readable(socket.as_raw_fd(), 20_000), "no answer about {bit}");
        let mut answer = [MaybeUninit::uninit(); 128];
        let ((answer, _), _) = net::recv(&socket, &mut answer[..], net::RecvFlags::empty()).unwrap();
        assert_eq!(answer, b"fcrv\x08\0\x02\0\0\x06");
    }
}

#[test]
fn another_user_is_refused() {
    // SAFETY: the call has no arguments.
    if unsafe { libc::geteuid() } != 0 {
        println!("needs root to become another user: nothing checked");
        return;
    }
    let directory = std::env::temp_dir().join(format!("farcall-strangers-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o1777)).unwrap();
    let shared = [("FARCALL_SOCKET_DIR", &*directory)];
    let (mut host, mut stranger) = (start_with("host", &[], &shared), start_with("stranger", &[], &shared));
    stranger.line.say(host.line.hear().unwrap());
    assert_eq!(stranger.line.hear(), Some([1, 0, 0, 0]), "a stranger got in, or got no clear error");
    host.line.say(stranger.line.hear().unwrap());
    assert_eq!(host.line.hear(), Some([1, 0, 0, 0]), "a stranger was turned to, or there was no clear error");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn what_belongs_to_a_stopped_peer_s_pair_can_be_destroyed() {
    let (other, mut end, to) = started("holder", Some(2));
    let sges = [end.sge(0, 8)];
    end.send(&[SendWr::write(1, &sges, to.addr + (1 << 19), to.rkey).with_flags(SIGNALED)]);
    assert_eq!(end.wait().status, WcStatus::SUCCESS);
    other.stop();
    (2..6).for_each(|i| end.send(&[SendWr::send(i, &sges)]));
    end.recv(9, &[end.sge(0, 8)]);
    let start = Instant::now();
    let End { qp, mr, .. } = end;
    drop(qp);
    // No access of the peer was in progress.
    assert_eq!(mr.dereg(), Revoked::Now);
    assert!(start.elapsed() < LOST, "{:?}", start.elapsed());
}

#[test]
fn replaces_stale_sockets_in_a_shared_directory() {
    let directory = std::env::temp_dir().join(format!("farcall-test-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    // Every block that a process may choose contains the socket of an exited owner.
    let socket = |block: u32| directory.join(format!("softnic-v1-{block}.sock"));
    for block in 1..4096 {
        drop(std::os::unix::net::UnixListener::bind(socket(block)).unwrap());
    }
    let mut other = start_with("caller", &[], &[("FARCALL_SOCKET_DIR", &directory)]);
    let heard = other.line.hear().expect("the two found each other");
    assert_eq!(heard[0], 1);
    assert!(heard[1] > 0 && directory.join(format!("softnic-v1-{}.lock", heard[1])).exists());
    let listed = std::fs::read_to_string("/proc/net/unix").unwrap();
    let path = socket(heard[1] as u32);
    assert!(
        !listed.lines().any(|line| line.ends_with(path.to_str().unwrap())),
        "{path:?} is listed for all users"
    );
    let bound = listed.lines().filter(|line| line.contains(directory.to_str().unwrap()));
    assert!(bound.count() > 0, "no process listens there: {listed}");
    drop(other);
    std::fs::remove_dir_all(&directory).unwrap();
}

/// What an invalid peer sends as its table of regions or as its queue pair's segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bad {
    Nothing,
    Unsealed,
    Short,
    NoMemory,
    /// Valid in form, and zeros.
    Empty,
}

fn bad_descriptor(bad: Bad) -> Option<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags};
    let memory = |len_bytes: u64, seals: SealFlags| {
        let fd = rustix::fs::memfd_create("bad", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, len_bytes).unwrap();
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let sealed = SealFlags::SHRINK | SealFlags::GROW;
    match bad {
        Bad::Nothing => None,
        Bad::Unsealed => Some(memory(64 << 20, SealFlags::GROW)),
        Bad::Short => Some(memory(64, sealed)),
        Bad::NoMemory => Some(std::fs::File::open("/dev/null").unwrap().into()),
        Bad::Empty => Some(memory(64 << 20, sealed)),
    }
}

/// Request variant that announces that a queue pair is ready to receive.
const READY: u8 = 7;

/// Replies to one client at `listener`: to its hello with `table`, to its connect request with `segment`. Returns the
/// connection, because a reply on a closed connection does not count.
fn answer_badly(listener: &OwnedFd, table: Bad, segment: Bad) -> Option<OwnedFd> {
    let client = net::accept(listener).unwrap();
    for (question, bad) in [(0_u8, table), (1, segment)] {
        let mut request = [0_u8; 80];
        loop {
            match net::recv(&client, &mut request, net::RecvFlags::empty()) {
                // A process that receives the reply before it is ready to receive announces its readiness, which is no
                // request.
                Ok((len, _)) if len > 10 && request[9] == READY => {}
                Ok((len, _)) if len > 10 && request[9] == question => break,
                _ => return None,
            }
        }
        let mut reply = request[..9].to_vec();
        reply[6] = 2;
        match question {
            // It claims the same kind of fences as the requester.
            0 => reply.extend([1, 0, request[10]]),
            _ => reply.extend([2, 0, 0, 0]),
        }
        let fd = bad_descriptor(bad);
        let fds: Vec<_> = fd.iter().map(std::os::fd::AsFd::as_fd).collect();
        let fds = fds.repeat(3);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = net::SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(net::SendAncillaryMessage::ScmRights(&fds)));
        let bytes = [std::io::IoSlice::new(&reply)];
        net::sendmsg(&client, &bytes, &mut control, net::SendFlags::NOSIGNAL).unwrap();
    }
    Some(client)
}

/// Claims a block as a process does, if it is free: its lock, and a socket at its path.
fn claim(block: u32) -> Option<(u32, OwnedFd, OwnedFd)> {
    use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open};
    let path = farcall_softnic::rendezvous_path(block << 12).unwrap();
    let lock =
        open(path.with_extension("lock"), OFlags::CREATE | OFlags::RDWR, Mode::RUSR | Mode::WUSR).ok()?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    let listener =
        net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let _ = std::fs::remove_file(&path);
    let is_bound = net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).is_ok();
    (is_bound && fstat(&lock).unwrap().st_nlink > 0).then_some((block, lock, listener))
}

#[test]
fn a_broken_peer_is_refused_before_its_memory_is_touched() {
    let bad = [Bad::Nothing, Bad::Unsealed, Bad::Short, Bad::NoMemory];
    let tables = bad.map(|table| (table, Bad::Nothing));
    let segments = [bad[0], bad[1], bad[2], bad[3], Bad::Empty].map(|segment| (Bad::Empty, segment));
    for (case, (table, segment)) in (1..).zip(tables.into_iter().chain(segments)) {
        // A block of its own each time, because a peer is cached while its process, this one, exists.
        let (block, _lock, listener) = (case * 100..).find_map(claim).expect("a free block");
        net::listen(&listener, 1).unwrap();
        let broken = std::thread::spawn(move || answer_badly(&listener, table, segment));
        let mut end = End::default();
        end.init();
        // A reply that has arrived already is reported immediately, any other by the first request.
        let rtr = QpAttr::rtr(block << 12 | 5, 0, end.path(), Mtu::Mtu4096);
        if end.qp.modify(&rtr).is_ok() {
            end.rts_impatient();
            end.send(&[SendWr::write(1, &[], 0, 0)]);
            assert_eq!(end.wait().status, WcStatus::RETRY_EXC_ERR, "table {table:?}, segment {segment:?}");
        }
        // Only a valid table causes the second request.
        assert_eq!(broken.join().unwrap().is_some(), table == Bad::Empty);
    }
}
