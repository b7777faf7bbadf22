//! Other users: refused, unless a group is configured and they are its members. Then all operations work, although no
//! process passes its address space to another. Needs root to become other users; without it the tests print a message
//! and pass.

use std::path::{Path, PathBuf};

use crate::support::process::*;
use crate::support::*;
use farcall_verbs::{AtomicTarget, Error, Mtu, QpAttr, QpCap, RawMr, SendWr, WcStatus, WrOpcode};

const GROUP: u32 = 4242;

#[test]
fn child_entry() {
    let Some((role, args, mut line)) = role() else { return };
    become_user(args[0] as u32, args[1] as u32, &[args[2] as u32]);
    match role.as_str() {
        "owner" => owner(&mut line),
        "user" => user(&mut line),
        "refused" => refused(&mut line),
        other => panic!("unknown role {other}"),
    }
    std::process::exit(0);
}

fn become_user(uid: u32, gid: u32, groups: &[u32]) {
    // SAFETY: the system calls access only arrays that outlive them.
    unsafe {
        assert_eq!(libc::setgroups(groups.len(), groups.as_ptr()), 0);
        assert!(libc::setgid(gid) == 0 && libc::setuid(uid) == 0);
        // The change of the user has reset the signal on the parent's exit.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
}

fn is_root() -> bool {
    // SAFETY: the call has no arguments.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        println!("skipped: only root can become other users");
    }
    is_root
}

/// Starts `role` as `uid`, with `gid` and one more group.
fn start_as(role: &str, uid: u64, gid: u64, also: u32, environment: &[(&str, &Path)]) -> Other {
    start_with(role, &[uid, gid, also.into()], environment)
}

fn with_heap(end: &End, heap: &mut [u64]) -> Box<dyn RawMr> {
    // SAFETY: the heap memory outlives its region.
    unsafe { end.pd.reg_mr(heap.as_mut_ptr().cast(), size_of_val(heap), ALL) }.unwrap()
}

/// Has an allocated and a heap region, receives one message in the heap, and reports what it received.
fn owner(line: &mut Line) {
    let (mut end, _) = connect(line, QpCap::default()).unwrap();
    let mut heap = vec![0_u64; 40_000];
    let mr = with_heap(&end, &mut heap);
    let sge = farcall_verbs::Sge { addr: mr.addr() as u64 + 8192, length: 300_000, lkey: mr.lkey() };
    end.recv(1, &[sge]);
    line.say([mr.addr() as u64, mr.rkey().into(), 0, 0]);
    let wc = end.wait();
    // SAFETY: the words are inside the heap memory, which the peer no longer accesses.
    let (first, last) = unsafe {
        let word = |at: usize| mr.addr().add(at).cast::<u64>().read();
        (word(0), word(8192 + 299_992))
    };
    line.say([u64::from(wc.status.0), wc.byte_len.into(), first, last]);
    line.hear();
}

/// Performs all operations on the other's memory.
fn user(line: &mut Line) {
    let (mut end, to) = connect(line, QpCap::default()).unwrap();
    let [addr, key, ..] = line.hear().unwrap();
    let key = key as u32;
    for (addr, key) in [(to.addr, to.rkey), (addr, key)] {
        end.put(0, &bytes(300_000, 1));
        let (from, back) = ([end.sge(0, 300_000)], [end.sge(400_000, 300_000)]);
        end.send(&[
            SendWr::write(1, &from, addr, key),
            SendWr::read(2, &back, addr, key).with_flags(SIGNALED),
        ]);
        let wc = end.wait();
        assert_eq!((wc.wr_id, wc.status), (2, WcStatus::SUCCESS));
        assert!(end.get(400_000, 300_000) == bytes(300_000, 1));
        end.put(0, &41_u64.to_ne_bytes());
        let word = [end.sge(0, 8)];
        let add = AtomicTarget { remote_addr: addr, compare_add: 1, swap: 0, rkey: key };
        end.send(&[
            SendWr::write(3, &word, addr, key),
            SendWr::atomic(WrOpcode::ATOMIC_FETCH_AND_ADD, 4, &word, add).with_flags(SIGNALED),
        ]);
        assert_eq!(end.wait().status, WcStatus::SUCCESS);
        assert_eq!(end.get(0, 8), 41_u64.to_ne_bytes());
    }
    end.put(0, &bytes(300_000, 2));
    let from = [end.sge(0, 300_000)];
    end.send(&[SendWr::send(5, &from).with_flags(SIGNALED)]);
    assert_eq!(end.wait().status, WcStatus::SUCCESS);
    line.say([1, 0, 0, 0]);
    line.hear();
}

/// Must be refused. Reports 1 if the error names the remedy, and 2 if no process was found.
fn refused(line: &mut Line) {
    let to = learn(line).unwrap();
    let mut end = End::default();
    end.init();
    let verdict = match end.qp.modify(&QpAttr::rtr(to.qpn, 0, end.path(), Mtu::Mtu4096)) {
        Err(error @ Error::Peer { .. }) => error.to_string().contains("FARCALL_GROUP").into(),
        Err(error) => panic!("{error}"),
        Ok(()) => {
            end.rts_impatient();
            end.send(&[SendWr::write(1, &[], to.addr, to.rkey)]);
            assert_eq!(end.wait().status, WcStatus::RETRY_EXC_ERR);
            2
        }
    };
    line.say([verdict, 0, 0, 0]);
    line.hear();
}

/// Connects two processes by forwarding their addresses, and returns the owner's report.
fn all_operations(mut owner: Other, mut user: Other) {
    let (of_owner, of_user) = (owner.line.hear().unwrap(), user.line.hear().unwrap());
    owner.line.say(of_user);
    user.line.say(of_owner);
    user.line.say(owner.line.hear().unwrap());
    assert_eq!(user.hear_in_the_end(), Some([1, 0, 0, 0]), "the user's part");
    let last = u64::from_ne_bytes(bytes(300_000, 2)[299_992..].try_into().unwrap());
    assert_eq!(owner.line.hear(), Some([u64::from(WcStatus::SUCCESS.0), 300_000, 42, last]));
}

/// Creates a directory with this mode that belongs to the group.
fn directory(name: &str, mode: u32) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let directory = std::env::temp_dir().join(format!("farcall-{name}-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    std::os::unix::fs::chown(&directory, None, Some(GROUP)).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(mode)).unwrap();
    directory
}

#[test]
fn allows_all_operations_between_members_of_a_group() {
    if !is_root() {
        return;
    }
    let directory = directory("group", 0o2770);
    let environment = [("FARCALL_GROUP", Path::new("4242")), ("FARCALL_SOCKET_DIR", &*directory)];
    // For one the group is its primary group, for the other a supplementary one.
    let owner = start_as("owner", 65_001, GROUP.into(), GROUP, &environment);
    let user = start_as("user", 65_002, 65_002, GROUP, &environment);
    all_operations(owner, user);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn rejects_other_users_and_names_the_remedy() {
    if !is_root() {
        return;
    }
    let directory = directory("anybody", 0o1777);
    let shared = ("FARCALL_SOCKET_DIR", &*directory);
    let group = ("FARCALL_GROUP", Path::new("4242"));
    // Each in a directory of its own, both in one, and one of them open to a group of which the other is no member.
    let cases: [(&[_], &[_], u64); 3] =
        [(&[], &[], 2), (&[shared], &[shared], 1), (&[shared, group], &[shared], 1)];
    for (theirs, ours, verdict) in cases {
        let mut owner = start_as("owner", 65_001, 65_001, GROUP, theirs);
        let mut stranger = start_as("refused", 65_002, 65_002, 65_002, ours);
        stranger.line.say(owner.line.hear().unwrap());
        assert_eq!(stranger.line.hear(), Some([verdict, 0, 0, 0]), "{theirs:?}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
