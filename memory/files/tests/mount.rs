//! A mounted file system, as programs see it. Its blocks are in memory of this process, so that tests can make them
//! unreadable. Needs root and /dev/fuse.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use farcall_files::{BLOCK_BYTES, restore_from, save};
use rustix::fs::{AtFlags, CWD, StatxFlags, XattrFlags, statx};
use rustix::io::Errno;
use support::{BLOCKS, Bytes, Mounted};

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn preserves_files_directories_and_links() {
    let Some(mounted) = Mounted::new("names") else { return };
    let path = |name| mounted.path(name);
    fs::create_dir_all(path("a/b")).unwrap();
    fs::write(path("a/b/file"), vec![7; 3_000_000]).unwrap();
    assert_eq!(fs::read(path("a/b/file")).unwrap(), vec![7; 3_000_000]);
    fs::hard_link(path("a/b/file"), path("again")).unwrap();
    assert_eq!(fs::metadata(path("again")).unwrap().nlink(), 2);
    symlink("a/b", path("link")).unwrap();
    assert_eq!(fs::read_link(path("link")).unwrap(), Path::new("a/b"));
    assert_eq!(fs::read(path("link/file")).unwrap().len(), 3_000_000);
    assert_eq!(fs::remove_dir(path("a")).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    fs::rename(path("a/b"), path("c")).unwrap();
    fs::set_permissions(path("c/file"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::metadata(path("again")).unwrap().mode() & 0o777, 0o640);
    let mut names: Vec<_> = fs::read_dir(&mounted.dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["a", "again", "c", "link"]);
    // An open file exists after its last name was removed.
    let mut held = File::open(path("again")).unwrap();
    fs::remove_file(path("again")).unwrap();
    fs::remove_dir_all(path("c")).unwrap();
    let mut bytes = Vec::new();
    held.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), 3_000_000);
    drop(held);
    mounted.unmount();
}

#[test]
fn reads_zeros_where_nothing_was_written() {
    let Some(mounted) = Mounted::new("zeros") else { return };
    let file = open(&mounted.path("file"));
    file.write_all_at(b"end", 1_000_000).unwrap();
    let mut bytes = vec![1; 1_000_003];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes[..1_000_000].iter().all(|byte| *byte == 0));
    assert_eq!(&bytes[1_000_000..], b"end");
    assert!(fs::metadata(mounted.path("file")).unwrap().blocks() < 100, "the hole takes room");
    // Truncated data does not reappear.
    file.write_all_at(&[5; 10_000], 0).unwrap();
    file.set_len(4_100).unwrap();
    file.set_len(10_000).unwrap();
    let mut bytes = vec![1; 10_000];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes[..4_100].iter().all(|byte| *byte == 5) && bytes[4_100..].iter().all(|byte| *byte == 0));
    drop(file);
    mounted.unmount();
}

#[test]
fn appends_concurrently_without_overwriting() {
    let Some(mounted) = Mounted::new("append") else { return };
    let path = mounted.path("log");
    File::create(&path).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4_u8 {
            let mut log = OpenOptions::new().append(true).open(&path).unwrap();
            scope.spawn(move || (0..200).for_each(|_| log.write_all(&[writer; 100]).unwrap()));
        }
    });
    let bytes = fs::read(&path).unwrap();
    for writer in 0..4 {
        assert_eq!(bytes.chunks(100).filter(|line| line.iter().all(|byte| *byte == writer)).count(), 200);
    }
    mounted.unmount();
}

#[test]
fn reports_unavailable_bytes_and_a_full_file_system() {
    let Some(mounted) = Mounted::new("lost") else { return };
    fs::write(mounted.path("file"), [3; 10_000]).unwrap();
    let mut file = open(&mounted.path("file"));
    mounted.memory.is_lost.store(true, Ordering::SeqCst);
    let mut bytes = [0; 100];
    assert_eq!(file.read_exact_at(&mut bytes, 0).unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    assert_eq!(file.write_at(&[4; 100], 0).unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    mounted.memory.is_lost.store(false, Ordering::SeqCst);
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, [3; 10_000]);
    let mut large = File::create(mounted.path("large")).unwrap();
    let full = (0..100).try_for_each(|_| large.write_all(&vec![1; 1 << 20])).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    assert_eq!(fs::read(mounted.path("file")).unwrap(), [3; 10_000]);
    drop((file, large));
    mounted.unmount();
}

/// Stored capabilities: version 2, CAP_NET_RAW.
const CAPABILITIES: [u8; 20] = [0, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Runs a command of the shell as a user without privileges.
fn run_as_other_user(dir: &Path, command: &str) {
    const USER: u32 = 65_534;
    let mut shell = Command::new("sh");
    let output = shell.args(["-c", command]).current_dir(dir).uid(USER).gid(USER).output().unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
}

#[test]
fn removes_privileges_when_another_user_changes_a_file() {
    let Some(mounted) = Mounted::new("privileges") else { return };
    let path = mounted.path("program");
    let mode = || {
        // Requests only this field, because the kernel may cache it.
        let status = statx(CWD, &path, AtFlags::empty(), StatxFlags::MODE).unwrap();
        status.stx_mode & 0o7_777
    };
    let capabilities = || rustix::fs::getxattr(&path, "security.capability", &mut [0; 64][..]);
    let privileged = |mode| {
        fs::write(&path, [1; 10_000]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        rustix::fs::setxattr(&path, "security.capability", &CAPABILITIES, XattrFlags::empty()).unwrap();
    };
    let changes = [
        "echo more >> program",
        "echo changed 1<> program",
        "truncate -s 100 program",
        "truncate -s 20000 program",
        "fallocate -l 40000 program",
        ": > program",
        "dd if=/dev/zero of=program bs=4096 count=1 conv=notrunc status=none",
        "dd if=/dev/zero of=program bs=4096 count=1 conv=notrunc oflag=direct status=none",
    ];
    for change in changes {
        privileged(0o6_777);
        assert_eq!((mode(), capabilities()), (0o6_777, Ok(CAPABILITIES.len())), "{change}");
        run_as_other_user(&mounted.dir, change);
        assert_eq!((mode(), capabilities()), (0o777, Err(Errno::NODATA)), "{change}");
    }
    // Without execute permission of the group, set-group-ID is not a privilege.
    privileged(0o6_767);
    run_as_other_user(&mounted.dir, "echo more >> program");
    assert_eq!((mode(), capabilities()), (0o2_767, Err(Errno::NODATA)));
    // A writer with CAP_FSETID keeps the bits; the capabilities are still removed.
    privileged(0o6_777);
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap();
    assert_eq!((mode(), capabilities()), (0o6_777, Err(Errno::NODATA)));
    privileged(0o6_777);
    chown(&path, Some(1), Some(1)).unwrap();
    assert_eq!((mode(), capabilities()), (0o777, Err(Errno::NODATA)));
    // The owner changes the group to one of its own groups.
    privileged(0o6_777);
    chown(&path, Some(65_534), None).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6_777)).unwrap();
    run_as_other_user(&mounted.dir, "chgrp 65534 program");
    assert_eq!((mode(), capabilities()), (0o777, Err(Errno::NODATA)));
    mounted.unmount();
}

/// Test generic/736 of xfstests.
#[test]
fn ends_readdir_while_every_name_it_reads_is_renamed() {
    const FILES: usize = 2_000;
    let Some(mounted) = Mounted::new("readdir") else { return };
    (0..FILES).for_each(|number| drop(File::create(mounted.path(&number.to_string())).unwrap()));
    let temporary = mounted.path("temporary");
    let mut seen = 0;
    for entry in fs::read_dir(&mounted.dir).unwrap() {
        let path = entry.unwrap().path();
        fs::rename(&path, &temporary).unwrap();
        fs::rename(&temporary, &path).unwrap();
        seen += 1;
        assert!(seen <= FILES, "it reads names again");
    }
    assert_eq!(seen, FILES);
    mounted.unmount();
}

#[test]
fn restores_everything_from_a_snapshot() {
    let Some(mounted) = Mounted::new("snapshot") else { return };
    fs::create_dir(mounted.path("dir")).unwrap();
    fs::write(mounted.path("dir/file"), [9; 100_000]).unwrap();
    open(&mounted.path("sparse")).set_len(1 << 30).unwrap();
    let (volume, _) = mounted.unmount();
    let mut image = std::env::temp_dir();
    image.push(format!("farcall-image-{}", std::process::id()));
    save(&volume, &image).unwrap();
    let memory = Arc::new(Bytes {
        bytes: Mutex::new(vec![0xEE; (BLOCKS * BLOCK_BYTES) as usize]),
        is_lost: AtomicBool::new(false),
    });
    let tree = restore_from(&mut File::open(&image).unwrap(), &*memory, BLOCKS).unwrap();
    let mounted = Mounted::over("restored", tree, memory).unwrap();
    assert_eq!(fs::read(mounted.path("dir/file")).unwrap(), [9; 100_000]);
    assert_eq!(fs::metadata(mounted.path("sparse")).unwrap().len(), 1 << 30);
    mounted.unmount();
    fs::remove_file(image).unwrap();
}

/// Tests the use by an independent program: a git repository with its history, verified by its checksums.
#[test]
fn clones_a_repository() {
    let Some(mounted) = Mounted::new("git") else { return };
    let git = |arguments: &[&str]| {
        let output = Command::new("git").current_dir(&mounted.dir).args(arguments).output();
        output.inspect(|output| assert!(output.status.success(), "{arguments:?}: {output:?}")).is_ok()
    };
    if git(&["init", "--quiet", "one"]) {
        for number in 0..40 {
            fs::write(mounted.path(&format!("one/{number}")), vec![number; 1_000 * usize::from(number)])
                .unwrap();
        }
        let who = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
        git(&["-C", "one", "add", "."]);
        git(&[&["-C", "one"][..], &who, &["commit", "--quiet", "-m", "all"]].concat());
        git(&["clone", "--quiet", "--no-local", "one", "two"]);
        git(&["-C", "two", "fsck", "--strict"]);
        assert_eq!(fs::read(mounted.path("two/39")).unwrap(), vec![39; 39_000]);
    } else {
        println!("SKIPPED: there is no git");
    }
    mounted.unmount();
}
