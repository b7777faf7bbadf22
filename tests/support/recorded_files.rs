//! Files that a program writes on a mount, and a record of the content that each may have when the mount has ended.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

const FILES: usize = 12;
/// Initial length of each file in bytes. All files together take several slabs.
const LEN: usize = 1 << 20;
/// Maximum length of a file in bytes.
const LEN_MAX: usize = 3 << 19;
const WRITE_MAX: usize = 60_000;
/// Length in bytes of the segments in which files of an incomplete volume are read.
const PIECE: usize = 64 << 10;

/// One version of a file: its content at the last sync, and the writes since.
struct Version {
    synced: Vec<u8>,
    /// Writes that were not synced, with their offsets.
    writes: Vec<(usize, Vec<u8>)>,
}

impl Version {
    const fn new(synced: Vec<u8>) -> Self {
        Self { synced, writes: Vec::new() }
    }

    fn len_max(&self) -> usize {
        self.writes.iter().map(|(offset, bytes)| offset + bytes.len()).fold(self.synced.len(), usize::max)
    }

    /// Returns whether the file may hold these bytes at an offset.
    fn may_hold(&self, at: usize, found: &[u8]) -> bool {
        let synced = self.synced.get(at..at + found.len());
        synced == Some(found)
            || (at..).zip(found).all(|(at, byte)| {
                let was_written = |(offset, bytes): &(usize, Vec<u8>)| {
                    at.checked_sub(*offset).is_some_and(|at| bytes.get(at) == Some(byte))
                };
                self.synced.get(at).copied().unwrap_or(0) == *byte || self.writes.iter().any(was_written)
            })
    }

    fn may_be(&self, found: &[u8]) -> bool {
        (self.synced.len()..=self.len_max()).contains(&found.len()) && self.may_hold(0, found)
    }
}

struct Recorded {
    /// Versions that the name may refer to: the last one, or an earlier one if its replacement was not synced.
    versions: Vec<Version>,
    /// Content as programs of the present mount see it.
    now: Vec<u8>,
}

impl Recorded {
    fn of(now: Vec<u8>) -> Self {
        Self { versions: vec![Version::new(now.clone())], now }
    }

    fn write(&mut self, offset: usize, bytes: Vec<u8>) {
        self.now.resize(self.now.len().max(offset + bytes.len()), 0);
        self.now[offset..offset + bytes.len()].copy_from_slice(&bytes);
        self.last().writes.push((offset, bytes));
    }

    fn last(&mut self) -> &mut Version {
        self.versions.last_mut().unwrap()
    }
}

/// Numbers of segments of files that are read although the volume is incomplete.
#[derive(Clone, Copy, Debug, Default)]
pub struct Left {
    pub right: usize,
    pub missing: usize,
}

pub struct RecordedFiles {
    files: Vec<Recorded>,
    /// Number of times that the record was synced.
    pub syncs: u64,
    pub bytes_checked: u64,
}

fn name(file: usize) -> String {
    format!("f{file}")
}

fn random_bytes(rng: &mut Pcg64Mcg, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes[..]);
    bytes
}

impl RecordedFiles {
    pub const fn empty() -> Self {
        Self { files: Vec::new(), syncs: 0, bytes_checked: 0 }
    }

    /// Creates the files in a directory.
    pub fn create(dir: &Path, rng: &mut Pcg64Mcg) -> Self {
        let mut files = Vec::new();
        for number in 0..FILES {
            let bytes = random_bytes(rng, LEN);
            let mut file = File::create_new(dir.join(name(number))).unwrap();
            file.write_all(&bytes).unwrap();
            file.sync_all().unwrap();
            files.push(Recorded::of(bytes));
        }
        File::open(dir).unwrap().sync_all().unwrap();
        Self { files, syncs: 0, bytes_checked: 0 }
    }

    /// Checks that files have the content that the program of this mount gave them.
    pub fn check_now(&mut self, dir: &Path) -> io::Result<()> {
        for (number, file) in self.files.iter().enumerate() {
            let found = fs::read(dir.join(name(number)))?;
            assert!(found == file.now, "{} has other bytes than its program wrote", name(number));
            self.bytes_checked += found.len() as u64;
        }
        Ok(())
    }

    /// Checks that files have what was synced, after the mount of their program has ended. What they have is synced
    /// then.
    pub fn check_synced(&mut self, dir: &Path) -> io::Result<()> {
        for (number, file) in self.files.iter_mut().enumerate() {
            let found = fs::read(dir.join(name(number)))?;
            let is_one = file.versions.iter().any(|version| version.may_be(&found));
            assert!(
                is_one,
                "{} lacks bytes that were synced, or has others: {}",
                name(number),
                explain(file, &found)
            );
            self.bytes_checked += found.len() as u64;
            *file = Recorded::of(found);
        }
        for number in 0..FILES {
            let _ = fs::remove_file(dir.join(temporary(number)));
        }
        let count = fs::read_dir(dir)?.count();
        assert_eq!(count, FILES, "names in the directory");
        for number in 0..FILES {
            File::open(dir.join(name(number)))?.sync_all()?;
        }
        File::open(dir)?.sync_all()
    }

    /// Checks that files of an incomplete volume hold what was synced, where they can be read.
    pub fn check_left(&self, dir: &Path) -> io::Result<Left> {
        let mut left = Left::default();
        for (number, file) in self.files.iter().enumerate() {
            let opened = File::open(dir.join(name(number)))?;
            let len = opened.metadata()?.len() as usize;
            let versions = || {
                file.versions
                    .iter()
                    .filter(|version| (version.synced.len()..=version.len_max()).contains(&len))
            };
            assert!(versions().next().is_some(), "{} has {len} bytes", name(number));
            for at in (0..len).step_by(PIECE) {
                let mut bytes = vec![0; PIECE.min(len - at)];
                match opened.read_exact_at(&mut bytes, at as u64) {
                    Ok(()) => {
                        let is_right = versions().any(|version| version.may_hold(at, &bytes));
                        assert!(is_right, "{} has other bytes at {at}", name(number));
                        left.right += 1;
                    }
                    Err(error) if error.raw_os_error() == Some(libc::EIO) => left.missing += 1,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(left)
    }
}

/// Describes in which way a file is none of its versions.
fn explain(file: &Recorded, found: &[u8]) -> String {
    let describe = |version: &Version| {
        let wrong: Vec<usize> =
            (0..found.len()).filter(|at| !version.may_hold(*at, &found[*at..=*at])).collect();
        format!(
            "{} bytes, not {} to {}; {} wrong bytes from {:?} to {:?}",
            found.len(),
            version.synced.len(),
            version.len_max(),
            wrong.len(),
            wrong.first(),
            wrong.last()
        )
    };
    file.versions.iter().map(describe).collect::<Vec<_>>().join("; ")
}

fn temporary(file: usize) -> String {
    format!("new{file}")
}

pub type SharedFiles = Arc<Mutex<RecordedFiles>>;

/// Directory and seed for the process that writes.
const DIR: &str = "FARCALL_WRITER_DIR";
const SEED: &str = "FARCALL_WRITER_SEED";

/// A step of the process that writes. It is sent before the step if it changes a file, and after a sync.
#[derive(Serialize, Deserialize)]
enum Step {
    Write {
        file: usize,
        offset: usize,
        len: usize,
        seed: u64,
    },
    Synced {
        file: usize,
    },
    /// The name stands for another file now, or for the former one.
    Replace {
        file: usize,
        len: usize,
        seed: u64,
    },
    Replaced {
        file: usize,
    },
    Failed {
        errno: i32,
    },
}

/// A process that writes, syncs, replaces and reads files until it is stopped or an operation fails. The test itself
/// has no file open on the mount: processes that it starts would wait for the mount when they close such a file.
pub struct Writer {
    process: Child,
    /// Applies the steps of the process to the record.
    thread: JoinHandle<io::Result<()>>,
}

impl Writer {
    /// Starts the process. `test` is the name of a test that calls [`write_files`].
    pub fn start(dir: &Path, files: &SharedFiles, seed: u64, test: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture"]);
        command.env(DIR, dir).env(SEED, seed.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (steps, files) = (BufReader::new(process.stderr.take().unwrap()), Arc::clone(files));
        let thread = std::thread::spawn(move || {
            let mut failed = Ok(());
            for line in steps.lines() {
                let line = line.unwrap();
                match serde_json::from_str(&line) {
                    Ok(Step::Failed { errno }) => failed = Err(io::Error::from_raw_os_error(errno)),
                    Ok(step) => files.lock().unwrap_or_else(PoisonError::into_inner).apply(step),
                    Err(_) => eprintln!("{line}"),
                }
            }
            failed
        });
        Self { process, thread }
    }

    /// Waits until the process has ended. Returns the error of the operation that failed.
    pub fn end(mut self) -> io::Result<()> {
        drop(self.process.stdin.take());
        let status = self.process.wait().unwrap();
        let failed = self.thread.join().unwrap();
        assert!(status.success(), "the program that writes found other bytes, or has ended: {status}");
        failed
    }
}

impl RecordedFiles {
    fn apply(&mut self, step: Step) {
        match step {
            Step::Write { file, offset, len, seed } => {
                self.files[file].write(offset, random_bytes(&mut Pcg64Mcg::seed_from_u64(seed), len));
            }
            Step::Synced { file } => {
                let file = &mut self.files[file];
                let now = file.now.clone();
                *file.last() = Version::new(now);
                self.syncs += 1;
            }
            Step::Replace { file, len, seed } => {
                let file = &mut self.files[file];
                file.now = random_bytes(&mut Pcg64Mcg::seed_from_u64(seed), len);
                file.versions.push(Version::new(file.now.clone()));
            }
            Step::Replaced { file } => {
                let versions = &mut self.files[file].versions;
                versions.drain(..versions.len() - 1);
                self.syncs += 1;
            }
            Step::Failed { .. } => {}
        }
    }
}

/// Writes files in the process that [`Writer`] starts. Does nothing in another one.
pub fn write_files() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let stop = Arc::new(AtomicBool::new(false));
    let is_stopped = Arc::clone(&stop);
    std::thread::spawn(move || {
        // It is closed by the test, or when the test ends.
        let _ = io::stdin().read(&mut [0]);
        is_stopped.store(true, Ordering::SeqCst);
    });
    let seed = std::env::var(SEED).unwrap().parse().unwrap();
    let program =
        File::open(dir).map(|root| Program { now: Vec::new(), rng: Pcg64Mcg::seed_from_u64(seed), root });
    if let Err(error) = program.and_then(|program| program.run(&stop)) {
        send(&Step::Failed { errno: error.raw_os_error().unwrap_or(libc::EIO) });
    }
}

fn send(step: &Step) {
    let line = serde_json::to_string(step).unwrap() + "\n";
    io::stderr().write_all(line.as_bytes()).unwrap();
}

struct Program {
    /// Present content of the files.
    now: Vec<Vec<u8>>,
    rng: Pcg64Mcg,
    root: File,
}

impl Program {
    fn run(mut self, stop: &AtomicBool) -> io::Result<()> {
        for file in 0..FILES {
            self.now.push(fs::read(self.path(&name(file)))?);
        }
        while !stop.load(Ordering::SeqCst) {
            let file = self.rng.random_range(0..FILES);
            match self.rng.random_range(0..8) {
                0..5 => self.write(file)?,
                5 => self.replace(file)?,
                _ => self.read(file)?,
            }
        }
        Ok(())
    }

    /// Returns the path of a file by the open directory: without the mount, names are those of another file system.
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.root.as_raw_fd()))
    }

    fn write(&mut self, number: usize) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.path(&name(number)))?;
        for _ in 0..self.rng.random_range(1..4) {
            let (len, seed) = (self.rng.random_range(1..WRITE_MAX), self.rng.next_u64());
            let offset = self.rng.random_range(0..=self.now[number].len().min(LEN_MAX - len));
            let bytes = random_bytes(&mut Pcg64Mcg::seed_from_u64(seed), len);
            send(&Step::Write { file: number, offset, len, seed });
            file.write_all_at(&bytes, offset as u64)?;
            let now = &mut self.now[number];
            now.resize(now.len().max(offset + len), 0);
            now[offset..offset + len].copy_from_slice(&bytes);
        }
        if self.rng.random_range(0..4) > 0 {
            file.sync_all()?;
            send(&Step::Synced { file: number });
        }
        Ok(())
    }

    /// Replaces a file by a new one.
    fn replace(&mut self, number: usize) -> io::Result<()> {
        let (at, to) = (self.path(&temporary(number)), self.path(&name(number)));
        let (len, seed) = (self.rng.random_range(1..LEN / 4), self.rng.next_u64());
        let bytes = random_bytes(&mut Pcg64Mcg::seed_from_u64(seed), len);
        let mut file = File::create_new(&at)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        send(&Step::Replace { file: number, len, seed });
        fs::rename(at, to)?;
        self.now[number] = bytes;
        self.root.sync_all()?;
        send(&Step::Replaced { file: number });
        Ok(())
    }

    fn read(&mut self, number: usize) -> io::Result<()> {
        let file = File::open(self.path(&name(number)))?;
        let now = &self.now[number];
        let at = self.rng.random_range(0..now.len());
        let mut bytes = vec![0; self.rng.random_range(1..=(now.len() - at).min(WRITE_MAX))];
        file.read_exact_at(&mut bytes, at as u64)?;
        assert!(now[at..at + bytes.len()] == bytes[..], "{} has other bytes than were written", name(number));
        Ok(())
    }
}
