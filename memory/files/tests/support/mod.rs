//! A mounted file system. Its blocks are in memory of this process, so that tests can make them unreadable.

#![allow(dead_code, reason = "each test file uses a part")]

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farcall_files::{BLOCK_BYTES, Caller, Memory, Mount, Time, Tree, Volume};
use rustix::io::Errno;

pub const BLOCKS: u64 = 16 << 10;
/// Timeout of a test. Not a measurement.
const LOST: Duration = Duration::from_secs(60);

/// Memory whose bytes can be read until the test makes them unreadable.
#[derive(Default)]
pub struct Bytes {
    pub bytes: Mutex<Vec<u8>>,
    pub is_lost: AtomicBool,
}

impl Memory for Bytes {
    fn read(&self, at: u64, len_bytes: usize, bytes: &mut Vec<u8>) -> Result<(), Errno> {
        if self.is_lost.load(Ordering::SeqCst) {
            return Err(Errno::IO);
        }
        bytes.extend_from_slice(&self.bytes.lock().unwrap()[at as usize..at as usize + len_bytes]);
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        if self.is_lost.load(Ordering::SeqCst) {
            return Err(Errno::IO);
        }
        self.bytes.lock().unwrap()[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

pub struct Mounted {
    pub dir: PathBuf,
    pub memory: Arc<Bytes>,
    volume: Arc<Volume>,
    mount: Mount,
}

impl Mounted {
    pub fn new(name: &str) -> Option<Self> {
        let now = Time { seconds: 1, nanos: 0 };
        Self::of(name, Tree::new(BLOCKS, Caller::default(), now))
    }

    /// Mounts a file system; if mounting is not permitted, prints the reason and returns `None`.
    fn of(name: &str, tree: Tree) -> Option<Self> {
        // Old contents, as in the memory of a node.
        let old = vec![0xEE; (BLOCKS * BLOCK_BYTES) as usize];
        Self::over(name, tree, Arc::new(Bytes { bytes: Mutex::new(old), is_lost: AtomicBool::new(false) }))
    }

    pub fn over(name: &str, tree: Tree, memory: Arc<Bytes>) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || OpenOptions::new().read(true).open("/dev/fuse").is_err() {
            println!("SKIPPED: mounting needs root and /dev/fuse");
            return None;
        }
        let dir = std::env::temp_dir().join(format!("farcall-{name}-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let volume = Arc::new(Volume::new(tree, Box::new(Arc::clone(&memory))));
        let mount = match Mount::start(&dir, Arc::clone(&volume)) {
            Ok(mount) => mount,
            Err(error) => {
                println!("SKIPPED: this machine does not mount: {error}");
                fs::remove_dir(&dir).unwrap();
                return None;
            }
        };
        Some(Self { dir, memory, volume, mount })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn unmount(mut self) -> (Arc<Volume>, Arc<Bytes>) {
        // A child that another test has forked inherits our descriptors until it has executed its program.
        let begun = Instant::now();
        while let Err(busy) = self.mount.unmount() {
            assert!(begun.elapsed() < LOST, "{busy}");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.mount.wait();
        fs::remove_dir(&self.dir).unwrap();
        (self.volume, self.memory)
    }
}
