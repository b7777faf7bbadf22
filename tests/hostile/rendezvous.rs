//! Attacks by another user on the rendezvous of a user's processes: the attacker occupies queue pair numbers, does not
//! reply, and requests a server to connect to them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use farcall::verbs::Gid;
use farcall_link::bootstrap::{
    BootstrapError, Features, Grants, Hello, Initiator, QpInfo, RefusalKind, VersionRange,
};
use farcall_link::{Plan, RemoteRegion};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;

use crate::server::{PATIENCE, Server, binary};

/// Blocks of queue pair numbers that the attacker occupies.
const BLOCKS: std::ops::Range<u32> = 1..21;

/// Executes `work` as another user: the objects that it creates belong to that user, as the kernel reports.
fn as_stranger<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let become_stranger_and_work = || {
        let (keep, nobody): (libc::c_long, libc::c_long) = (-1, 65534);
        // SAFETY: the calls take only integers. Unlike the library functions, the system calls change the user of the
        // calling thread only, which ends after `work`.
        let results = unsafe {
            [
                libc::syscall(libc::SYS_setresgid, keep, nobody, keep),
                libc::syscall(libc::SYS_setresuid, keep, nobody, keep),
            ]
        };
        assert_eq!(results, [0, 0], "needs root");
        work()
    };
    std::thread::scope(|scope| scope.spawn(become_stranger_and_work).join().unwrap())
}

fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// Binds an address with access for all users, and never accepts: its backlog is full. Returns `None` if the address
/// is not available.
fn squat(address: &SocketAddrUnix, path: Option<&Path>) -> Option<Vec<OwnedFd>> {
    let listener = socket();
    net::bind(&listener, address).ok()?;
    if let Some(path) = path {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    net::listen(&listener, 0).unwrap();
    let mut held = vec![listener];
    loop {
        let visitor = socket();
        if net::connect(&visitor, address).is_err() {
            return Some(held);
        }
        held.push(visitor);
    }
}

/// Returns the GID at which processes with this environment reach each other.
fn gid(environment: &[(&str, &Path)]) -> Gid {
    let devices = Command::new(binary())
        .args(["--json", "devices"])
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let devices: Value = serde_json::from_slice(&devices.stdout).unwrap();
    let text = devices["devices"][0]["ports"][0]["gids"][0]["gid"].as_str().unwrap();
    let groups = text.split(':').flat_map(|group| u16::from_str_radix(group, 16).unwrap().to_be_bytes());
    Gid(groups.collect::<Vec<_>>().try_into().unwrap())
}

/// Requests a connection to a queue pair. Returns the server's reply.
fn say_hello(server: &Server, qp_num: u32, gid: Gid) -> Result<(), RefusalKind> {
    let plan = Plan::named("server-reply").unwrap();
    let messages = RemoteRegion { addr: 1 << 20, len_bytes: 1 << 30, rkey: 7 };
    let hello = Hello {
        provider: "softnic".into(),
        qp: QpInfo { qp_num, psn: 0, gid: gid.0, lid: 0, mtu_log2: 12 },
        grants: Grants { messages, ..Grants::default() },
        plan,
        features: Features::KICK,
        thread: 0,
        resume: None,
        datagrams: None,
    };
    let mut stream = TcpStream::connect(server.place("rpc")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut conversation = Initiator::new(VersionRange::CURRENT);
    stream.write_all(&conversation.hello(&hello)).unwrap();
    loop {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "neither a welcome nor a refusal");
        match conversation.feed_welcome(&byte) {
            Ok((_, Some(_))) => return Ok(()),
            Ok((_, None)) => {}
            Err(BootstrapError::Refused(refusal)) => return Err(refusal.kind),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Attacks a server whose processes use the rendezvous directory `shared`, or the default one.
fn attack(name: &str, shared: Option<PathBuf>) {
    let variable = shared.iter().map(|path| format!("FARCALL_SOCKET_DIR={}", path.display()));
    let words: Vec<String> = std::iter::once("env".into()).chain(variable).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let server = Server::start_by(&words, name, &[]);
    let environment: Vec<_> = shared.iter().map(|path| ("FARCALL_SOCKET_DIR", path.as_path())).collect();
    let gid = gid(&environment);
    let own = PathBuf::from(format!("/tmp/farcall-{}", rustix::process::geteuid().as_raw()));
    let held: Vec<_> = as_stranger(|| {
        let squat_all = |block: u32| {
            let path = shared.as_ref().unwrap_or(&own).join(format!("softnic-v1-{block}.sock"));
            let name = format!("farcall/softnic/v1/{block}");
            let unnamed = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
            [squat(&unnamed, None), squat(&SocketAddrUnix::new(&path).unwrap(), Some(&path))]
        };
        BLOCKS.flat_map(squat_all).flatten().collect()
    });
    assert!(!held.is_empty(), "he has taken nothing");
    // A single request first; then concurrent ones, as from the server's clients.
    let ask = |block: u32| say_hello(&server, block << 12 | 5, gid);
    assert_eq!(ask(BLOCKS.start), Err(RefusalKind::Resources));
    let answers: Vec<_> = std::thread::scope(|scope| {
        let asking: Vec<_> = BLOCKS.map(|block| scope.spawn(move || ask(block))).collect();
        asking.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let welcomes = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(welcomes, 0, "{welcomes} of {} let in", answers.len());
    server.assert_serves();
}

/// The attacker may have guessed the number of a queue pair of the server's user: its own user identity is decisive.
#[test]
#[ignore = "needs root, to become another user"]
fn rejects_another_user_whatever_number_it_names() {
    let server = Server::start("rendezvous-guessed", &[]);
    let gid = gid(&[]);
    let ask = || say_hello(&server, BLOCKS.start << 12 | 5, gid);
    assert_ne!(ask(), Err(RefusalKind::NotAdmitted), "our own user is judged by the number");
    assert_eq!(as_stranger(ask), Err(RefusalKind::NotAdmitted));
    server.assert_serves();
}

#[test]
#[ignore = "needs root, to become another user"]
fn rejects_another_user_at_the_rendezvous_without_delay() {
    attack("rendezvous-own", None);
    let shared = std::env::temp_dir().join(format!("farcall-rendezvous-{}", std::process::id()));
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o1777)).unwrap();
    attack("rendezvous-shared", Some(shared.clone()));
    std::fs::remove_dir_all(&shared).unwrap();
}
