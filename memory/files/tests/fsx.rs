//! Random operations on the data of a file, compared with a vector: reads, writes, lengths, holes, reservations,
//! mappings. Needs root and /dev/fuse.

mod support;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use farcall_link::SplitMix64;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use support::Mounted;

const FILE_BYTES_MAX: usize = 300_000;

struct Program {
    file: File,
    model: Vec<u8>,
    rng: SplitMix64,
}

impl Program {
    fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }

    /// Returns a range, mostly inside the file, sometimes at block boundaries.
    fn range(&mut self) -> (usize, usize) {
        let longest = [100, 5_000, 70_000][self.below(3)];
        let (offset, len_bytes) = (self.below(FILE_BYTES_MAX), 1 + self.below(longest));
        let offset = if self.below(4) == 0 { offset / 4096 * 4096 } else { offset };
        (offset, len_bytes.min(FILE_BYTES_MAX - offset))
    }

    fn random(&mut self, len_bytes: usize) -> Vec<u8> {
        (0..len_bytes).map(|_| self.rng.next_u64() as u8).collect()
    }

    fn grow(&mut self, end: usize) {
        let len_bytes = self.model.len().max(end);
        self.model.resize(len_bytes, 0);
    }

    fn step(&mut self) -> String {
        let (offset, len_bytes) = self.range();
        let kind = self.below(12);
        match kind {
            0..3 => {
                let bytes = self.random(len_bytes);
                self.file.write_all_at(&bytes, offset as u64).unwrap();
                self.grow(offset + len_bytes);
                self.model[offset..offset + len_bytes].copy_from_slice(&bytes);
            }
            3 => {
                self.file.set_len(offset as u64).unwrap();
                self.model.resize(offset, 0);
            }
            4 => self.allocate(offset, len_bytes, FallocateFlags::empty()),
            5 => self.allocate(offset, len_bytes, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE),
            6 => self.allocate(offset, len_bytes, FallocateFlags::ZERO_RANGE),
            7 => self.allocate(offset, len_bytes, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE),
            8 => self.allocate(offset, len_bytes, FallocateFlags::KEEP_SIZE),
            9 => self.map(offset, len_bytes),
            10 => self.seek(offset),
            _ => self.read(offset, len_bytes),
        }
        format!("{kind} at {offset}, {len_bytes} bytes")
    }

    fn allocate(&mut self, offset: usize, len_bytes: usize, flags: FallocateFlags) {
        fallocate(&self.file, flags, offset as u64, len_bytes as u64).unwrap();
        if !flags.contains(FallocateFlags::KEEP_SIZE) {
            self.grow(offset + len_bytes);
        }
        if !flags.difference(FallocateFlags::KEEP_SIZE).is_empty() {
            let (from, to) = (offset.min(self.model.len()), (offset + len_bytes).min(self.model.len()));
            self.model[from..to].fill(0);
        }
    }

    fn read(&self, offset: usize, len_bytes: usize) {
        let mut bytes = vec![1; len_bytes];
        let found = self.file.read_at(&mut bytes, offset as u64).unwrap();
        let end = self.model.len().min(offset + len_bytes);
        assert!(bytes[..found] == *self.model.get(offset..end).unwrap_or_default(), "other bytes are read");
    }

    /// Reads the file and writes a part of it through a mapping.
    fn map(&mut self, offset: usize, len_bytes: usize) {
        let all = self.model.len();
        let (offset, end) = (offset.min(all), (offset + len_bytes).min(all));
        if all == 0 {
            return;
        }
        let written = self.random(end - offset);
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint lets the kernel choose an unused range, so no existing mapping is replaced. Only this
        // test uses the file, so it is not truncated while it is mapped.
        let mapped =
            unsafe { mmap(std::ptr::null_mut(), all, prot, MapFlags::SHARED, &self.file, 0).unwrap() };
        // SAFETY: `mapped` is a mapping of `all` bytes of the file, made above and unmapped below, and no other
        // reference into it exists.
        let bytes = unsafe { std::slice::from_raw_parts_mut(mapped.cast::<u8>(), all) };
        let is_same = bytes == self.model;
        bytes[offset..end].copy_from_slice(&written);
        // SAFETY: the range is the mapping made above, and `bytes` is not used after this point.
        unsafe {
            msync(mapped, all, MsyncFlags::SYNC).unwrap();
            munmap(mapped, all).unwrap();
        }
        assert!(is_same, "a mapping holds other bytes");
        self.model[offset..end].copy_from_slice(&written);
    }

    /// Checks that reported holes contain zeros.
    fn seek(&self, offset: usize) {
        let Ok(hole) = seek(&self.file, SeekFrom::Hole(offset as u64)) else {
            assert!(offset >= self.model.len(), "no hole, though the end is one");
            return;
        };
        let data = seek(&self.file, SeekFrom::Data(hole)).map_or(self.model.len(), |data| data as usize);
        assert!(
            self.model[hole as usize..data].iter().all(|byte| *byte == 0),
            "a hole at {hole} holds bytes"
        );
    }
}

#[test]
fn matches_a_plain_vector_for_every_file_operation() {
    let seed = std::env::var("FARCALL_SEED").map_or(3, |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let Some(mounted) = Mounted::new("fsx") else { return };
    std::thread::scope(|scope| {
        for number in 0..3 {
            let path = mounted.path(&format!("file {number}"));
            scope.spawn(move || {
                let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
                let mut program = Program { file, model: Vec::new(), rng: SplitMix64::new(seed + number) };
                for step in 0..1_500 {
                    let done = program.step();
                    assert_eq!(
                        program.file.metadata().unwrap().len(),
                        program.model.len() as u64,
                        "{step}: {done}"
                    );
                    if step % 16 == 0 {
                        program.read(0, FILE_BYTES_MAX);
                    }
                }
                program.read(0, FILE_BYTES_MAX);
            });
        }
    });
    mounted.unmount();
}
