//! The memory of a process's counters: a System V segment. It outlives its process, no process can truncate it while it
//! is mapped, and it uses no file system that may be full. The kernel records which user created it and how many
//! processes have it attached; there is no name that another user could occupy first.

use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, SystemTime};

use crate::StatsError;
use crate::format::{AT_MAGIC, AT_USED, FIRST_BLOCK, SEGMENT_BYTES, is_magic, word};

/// List of all segments of this IPC namespace.
const LIST: &str = "/proc/sysvipc/shm";

/// Time for which segments of exited processes are kept.
const RETENTION: Duration = Duration::from_hours(24);

/// Maximum number of segments of exited processes that are kept.
const RETAINED_MAX: usize = 32;

/// A segment that may contain statistics of this user, judged by its owner, permissions and length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundSegment {
    id: i32,
    /// Pid of its creator in this pid namespace; 0 if it has none here.
    pub(crate) creator_pid: u32,
    /// Number of processes that have it attached.
    attached: u64,
    /// Time of its last change or detachment, in seconds of Unix time.
    pub(crate) changed_unix_s: u64,
}

/// Creates a segment and attaches it for writing. It stays attached until the process exits.
pub(crate) fn create() -> io::Result<NonNull<u8>> {
    let id = make()?;
    attach(id, 0).inspect_err(|_| remove(id))
}

fn make() -> io::Result<i32> {
    // SAFETY: shmget takes integers and accesses no memory of this process.
    let id = unsafe { libc::shmget(libc::IPC_PRIVATE, SEGMENT_BYTES, 0o600) };
    if id < 0 { Err(io::Error::last_os_error()) } else { Ok(id) }
}

fn attach(id: i32, flags: i32) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address that the kernel chooses aliases no existing memory.
    let base = unsafe { libc::shmat(id, std::ptr::null(), flags) };
    if base.addr() == usize::MAX {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("attached at address 0"))
}

/// Removes a segment. Processes that have it attached keep their mapping.
fn remove(id: i32) {
    // SAFETY: IPC_RMID ignores the pointer argument.
    unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
}

/// Returns the segments of this user that may contain statistics, the newest first.
///
/// # Errors
/// Returns an error if the kernel's list cannot be read.
pub(crate) fn list() -> Result<Vec<FoundSegment>, StatsError> {
    let text = std::fs::read_to_string(LIST)
        .map_err(|source| StatsError::System { operation: "read /proc/sysvipc/shm", source })?;
    Ok(found_in(&text, rustix::process::geteuid().as_raw()))
}

fn found_in(text: &str, uid: u32) -> Vec<FoundSegment> {
    let mut found: Vec<FoundSegment> = text.lines().skip(1).filter_map(|line| found(line, uid)).collect();
    found.sort_by_key(|found| std::cmp::Reverse(found.changed_unix_s));
    found
}

/// Parses a line: key, id, permissions, bytes, creator's pid, last pid, number of attachments, owner, group, creator,
/// creator's group, times of the last attachment, detachment and change. A creator may give a segment to another owner,
/// so both owner and creator must be this user.
fn found(line: &str, uid: u32) -> Option<FoundSegment> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let is_ours = *fields.get(2)? == "600"
        && number(3)? == SEGMENT_BYTES as u64
        && number(7)? == u64::from(uid)
        && number(9)? == u64::from(uid);
    is_ours.then_some(FoundSegment {
        id: fields.get(1)?.parse().ok()?,
        creator_pid: fields.get(4)?.parse().ok()?,
        attached: number(6)?,
        changed_unix_s: number(12)?.max(number(13)?),
    })
}

impl FoundSegment {
    /// Returns a copy of the statistics; `None` if the segment contains none.
    ///
    /// # Errors
    /// Returns an error if the segment cannot be attached, or EFAULT if one of its pages is lost.
    pub(crate) fn read(&self) -> io::Result<Option<Vec<u8>>> {
        let base = attach(self.id, libc::SHM_RDONLY)?;
        let bytes = copy_statistics(base);
        // SAFETY: `attach` above mapped `base`, and `copy_statistics` returned a copy that does not refer to the
        // mapping.
        unsafe { libc::shmdt(base.as_ptr().cast()) };
        bytes
    }
}

/// Copies the statistics that are mapped at `base`; returns `None` if there are none. Pages that no block uses are not
/// read, because a read would allocate them.
fn copy_statistics(base: NonNull<u8>) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = copy(base.as_ptr(), FIRST_BLOCK)?;
    let head = |at| word(&bytes, at).unwrap_or(0);
    if !is_magic(head(AT_MAGIC)) {
        return Ok(None);
    }
    let used = head(AT_USED).clamp(FIRST_BLOCK as u64, SEGMENT_BYTES as u64) as usize;
    // Pairs with the release store of `Page::publish`: the contents of blocks below `used` are at least as new as when
    // they were published.
    fence(Ordering::Acquire);
    // In bounds: `found` only accepts segments of `SEGMENT_BYTES`.
    bytes.extend(copy(base.as_ptr().wrapping_add(FIRST_BLOCK), used - FIRST_BLOCK)?);
    Ok(Some(bytes))
}

/// Copies memory of an untrusted mapping through a pipe. For a lost page (of a huge page that is not available, one
/// that could not be read back from swap, or a damaged one) the kernel returns EFAULT, where a load would terminate
/// this process by SIGBUS. A pipe needs no permission that a container may lack.
fn copy(base: *const u8, len_bytes: usize) -> io::Result<Vec<u8>> {
    // An empty pipe has space for this many bytes, whatever the user's limit is.
    const CHUNK_BYTES: usize = libc::PIPE_BUF;
    let (mut from, to) = io::pipe()?;
    let mut bytes = vec![0; len_bytes];
    for (index, chunk) in bytes.chunks_mut(CHUNK_BYTES).enumerate() {
        let source = base.wrapping_add(index * CHUNK_BYTES);
        // SAFETY: `write` only reads memory, and the kernel checks each address.
        let written = unsafe { libc::write(to.as_raw_fd(), source.cast(), chunk.len()) };
        match usize::try_from(written) {
            Ok(written) if written == chunk.len() => from.read_exact(chunk)?,
            Ok(_) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(bytes)
}

/// Removes the segments of processes that exited long ago, and all but the newest segments of exited processes, because
/// they occupy memory.
pub(crate) fn remove_stale_segments() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    for found in stale_segments(&list().unwrap_or_default(), now.as_secs()) {
        if matches!(found.read(), Ok(Some(_))) {
            remove(found.id);
        }
    }
}

/// Returns the segments to remove, from a list with the newest first.
fn stale_segments(list: &[FoundSegment], now_unix_s: u64) -> impl Iterator<Item = &FoundSegment> {
    let dead = list.iter().filter(|found| found.attached == 0).enumerate();
    let is_old =
        move |found: &FoundSegment| now_unix_s.saturating_sub(found.changed_unix_s) > RETENTION.as_secs();
    dead.filter(move |(at, found)| *at >= RETAINED_MAX || is_old(found)).map(|(_, found)| found)
}

/// Checks whether this system permits statistics, for `farcall doctor`.
///
/// # Errors
/// Returns the reason if it does not.
pub fn probe() -> Result<(), StatsError> {
    remove(make().map_err(|source| StatsError::System { operation: "shmget", source })?);
    list().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      \
                        atime      dtime      ctime                   rss                  swap\n";

    fn line(perms: u32, len_bytes: usize, uid: u32, made_by: u32) -> String {
        format!("0 7 {perms} {len_bytes} 4711 4712 1 {uid} 0 {made_by} 0 30 20 10 4096 0\n")
    }

    #[test]
    fn reads_only_segments_created_and_owned_by_this_user() {
        let found = |perms, len_bytes, uid, made_by| {
            found_in(&format!("{HEAD}{}", line(perms, len_bytes, uid, made_by)), 1000)
        };
        let ours = FoundSegment { id: 7, creator_pid: 4711, attached: 1, changed_unix_s: 20 };
        assert_eq!(found(600, SEGMENT_BYTES, 1000, 1000), [ours]);
        assert_eq!(found(600, SEGMENT_BYTES, 1000, 1001), [], "a stranger made it and gave it to us");
        assert_eq!(found(600, SEGMENT_BYTES, 1001, 1001), []);
        assert_eq!(found(666, SEGMENT_BYTES, 1000, 1000), []);
        assert_eq!(found(1600, SEGMENT_BYTES, 1000, 1000), [], "removed, and still attached");
        assert_eq!(found(600, 4096, 1000, 1000), []);
        assert_eq!(found_in("", 1000), []);
        assert_eq!(found_in(&format!("{HEAD}garbage\n0 7 600\n"), 1000), []);
    }

    #[test]
    fn copies_no_lost_page_and_survives_it() {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, SEGMENT_BYTES as u64).unwrap();
        let mut head = [0; FIRST_BLOCK];
        head[AT_MAGIC..][..8].copy_from_slice(&crate::format::MAGIC.to_le_bytes());
        head[AT_USED..][..8].copy_from_slice(&(3 * FIRST_BLOCK as u64).to_le_bytes());
        rustix::io::pwrite(&file, &head, 0).unwrap();
        let (prot, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses aliases no existing memory.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), SEGMENT_BYTES, prot, flags, &file, 0) };
        let base = NonNull::new(base.unwrap().cast()).unwrap();
        let read = || copy_statistics(base).map_err(|error| error.raw_os_error());
        assert_eq!(read().unwrap().unwrap().len(), 3 * FIRST_BLOCK);
        for left in [2 * FIRST_BLOCK, 0] {
            rustix::fs::ftruncate(&file, left as u64).unwrap();
            assert_eq!(read(), Err(Some(libc::EFAULT)), "{left} bytes are left");
        }
        // SAFETY: the mapping was created above, and no reference to it exists.
        unsafe { rustix::mm::munmap(base.as_ptr().cast(), SEGMENT_BYTES) }.unwrap();
    }

    /// Creates a segment of huge pages that the machine does not have: it can be created and attached, but each access
    /// fails.
    fn make_without_pages() -> Option<i32> {
        let flags = 0o600 | libc::SHM_HUGETLB | libc::SHM_NORESERVE;
        // SAFETY: shmget takes integers and accesses no memory of this process.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, SEGMENT_BYTES, flags) };
        (id >= 0).then_some(id)
    }

    #[test]
    fn survives_segments_without_pages() {
        let Some(id) = make_without_pages() else {
            eprintln!("SKIPPED: this user may make no segments of huge pages");
            return;
        };
        let found = list().unwrap().into_iter().find(|found| found.id == id).unwrap();
        let read = found.read().map_err(|error| error.raw_os_error());
        let own = crate::read_pid(std::process::id());
        remove(id);
        assert!(matches!(read, Err(Some(libc::EFAULT)) | Ok(None)), "{read:?}");
        // Another test of this process may have statistics, too.
        assert!(
            matches!(
                own,
                Ok(_)
                    | Err(StatsError::Malformed { why: "a page of them is lost", .. }
                        | StatsError::NotFound { .. })
            ),
            "{own:?}"
        );
    }

    #[test]
    fn retains_live_segments_and_the_newest_of_exited_processes() {
        let segment =
            |id, attached, changed_unix_s| FoundSegment { id, creator_pid: 1, attached, changed_unix_s };
        let day = RETENTION.as_secs();
        let mut list: Vec<FoundSegment> =
            (0..40).map(|id| segment(id, u64::from(id % 8 == 0), 2 * day)).collect();
        list.extend([segment(100, 0, day - 1), segment(101, 1, 1)]);
        let ids: Vec<i32> = stale_segments(&list, 2 * day).map(|found| found.id).collect();
        assert_eq!(ids, [37, 38, 39, 100], "35 dead of today, one of the day before yesterday");
        let ids: Vec<i32> = stale_segments(&list[40..], 2 * day).map(|found| found.id).collect();
        assert_eq!(ids, [100]);
    }
}
