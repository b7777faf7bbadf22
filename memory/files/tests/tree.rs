//! Tests the tree over a memory that fails at random and keeps old contents: whatever its blocks contained before, a
//! file shows only written data or zeros.

use std::collections::BTreeMap;

use farcall_files::{BLOCK_BYTES, Caller, DIRECTORY, Exchange, REGULAR, ROOT, Time, Tree, WritePlan};
use proptest::prelude::*;

const BLOCKS: u64 = 24;
const NAMES: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
const NOW: Time = Time { seconds: 1, nanos: 2 };

/// A step. Offsets and lengths are in eighths of a block, so that block boundaries are both hit and missed.
#[derive(Clone, Debug)]
enum Step {
    Make { name: usize },
    Write { name: usize, offset: u64, len: usize, byte: u8, fails_at: Option<usize> },
    Resize { name: usize, len: u64, fails: bool },
    Unlink { name: usize },
    Rename { from: usize, to: usize, exchange: bool },
    Link { from: usize, to: usize },
    Save,
}

const EIGHTH: u64 = BLOCK_BYTES / 8;

fn step() -> impl Strategy<Value = Step> {
    let name = 0..NAMES.len();
    let range = (0..48_u64, 0..32_usize);
    prop_oneof![
        3 => name.clone().prop_map(|name| Step::Make { name }),
        10 => (name.clone(), range.clone(), 1..=255_u8, prop::option::weighted(0.3, 0..3_usize)).prop_map(
            |(name, (offset, len), byte, fails_at)| Step::Write { name, offset, len, byte, fails_at }
        ),
        5 => (name.clone(), 0..64_u64, prop::bool::weighted(0.3))
            .prop_map(|(name, len, fails)| Step::Resize { name, len, fails }),
        2 => name.clone().prop_map(|name| Step::Unlink { name }),
        2 => (name.clone(), name.clone(), any::<bool>())
            .prop_map(|(from, to, exchange)| Step::Rename { from, to, exchange }),
        1 => (name.clone(), name).prop_map(|(from, to)| Step::Link { from, to }),
        1 => Just(Step::Save),
    ]
}

/// The tree, its memory, and the expected contents of files.
struct World {
    tree: Tree,
    memory: Vec<u8>,
    /// Expected inode by name, and expected data by inode.
    names: BTreeMap<usize, u64>,
    files: BTreeMap<u64, Vec<u8>>,
}

impl World {
    fn new() -> Self {
        // All blocks initially contain other data.
        let memory = vec![0xee; (BLOCKS * BLOCK_BYTES) as usize];
        let tree = Tree::new(BLOCKS, Caller::default(), NOW);
        Self { tree, memory, names: BTreeMap::new(), files: BTreeMap::new() }
    }

    /// Executes a plan. If it fails, executes its first `fails_at` stores completely and half of the next.
    fn store(&mut self, plan: WritePlan, bytes: &[u8], fails_at: Option<usize>) -> bool {
        for (at, store) in plan.stores.iter().enumerate() {
            let mut stored = vec![0; store.zeros_before];
            stored.extend_from_slice(&bytes[store.data.clone()]);
            stored.resize(stored.len() + store.zeros_after, 0);
            let fails = fails_at == Some(at);
            let len = if fails { stored.len() / 2 } else { stored.len() };
            let to = store.at as usize;
            self.memory[to..to + len].copy_from_slice(&stored[..len]);
            if fails {
                let _ = self.tree.finish_write(plan, false, NOW);
                return false;
            }
        }
        self.tree.finish_write(plan, true, NOW).is_ok()
    }

    fn read(&self, ino: u64) -> Vec<u8> {
        let size = self.tree.attributes(ino).unwrap().size as usize;
        let mut bytes = Vec::new();
        for load in self.tree.plan_read(ino, 0, size + 10).unwrap() {
            match load.at {
                Some(at) => bytes.extend_from_slice(&self.memory[at as usize..at as usize + load.len_bytes]),
                None => bytes.resize(bytes.len() + load.len_bytes, 0),
            }
        }
        assert_eq!(bytes.len(), size);
        bytes
    }

    fn write(&mut self, ino: u64, offset: u64, bytes: &[u8], fails_at: Option<usize>) {
        let old = self.files[&ino].clone();
        let is_done = match self.tree.plan_write(ino, offset, bytes.len()) {
            Ok(plan) => self.store(plan, bytes, fails_at),
            Err(error) => {
                assert_eq!(error, rustix::io::Errno::NOSPC);
                return;
            }
        };
        let mut new = old.clone();
        new.resize(old.len().max(offset as usize + bytes.len()), 0);
        new[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        if !is_done {
            // The length is unchanged; each overwritten byte has its old or its new value.
            new.truncate(old.len());
            let found = self.read(ino);
            assert_eq!(found.len(), old.len());
            assert!(
                found
                    .iter()
                    .zip(old.iter().zip(&new))
                    .all(|(found, (old, new))| found == old || found == new)
            );
            new = found;
        }
        self.files.insert(ino, new);
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Make { name } => {
                let made = self.tree.create(ROOT, NAMES[name], REGULAR | 0o644, 0, Caller::default(), NOW);
                assert_eq!(made.is_ok(), !self.names.contains_key(&name));
                if let Ok(made) = made {
                    self.names.insert(name, made.ino);
                    self.files.insert(made.ino, Vec::new());
                }
            }
            Step::Write { name, offset, len, byte, fails_at } => {
                let Some(&ino) = self.names.get(&name) else { return };
                let bytes = vec![byte; len * EIGHTH as usize + 1];
                self.write(ino, offset * EIGHTH, &bytes, fails_at);
            }
            Step::Resize { name, len, fails } => {
                let Some(&ino) = self.names.get(&name) else { return };
                let plan = self.tree.plan_resize(ino, len * EIGHTH).unwrap();
                let is_done = self.store(plan, &[], fails.then_some(0));
                let file = self.files.get_mut(&ino).unwrap();
                if is_done || len * EIGHTH < file.len() as u64 {
                    file.resize((len * EIGHTH) as usize, 0);
                }
            }
            Step::Unlink { name } => {
                let outcome = self.tree.unlink(ROOT, NAMES[name], NOW);
                assert_eq!(outcome.is_ok(), self.names.remove(&name).is_some());
            }
            Step::Rename { from, to, exchange } => self.rename(from, to, exchange),
            Step::Link { from, to } => {
                let Some(&ino) = self.names.get(&from) else { return };
                let outcome = self.tree.link(ino, ROOT, NAMES[to], NOW);
                assert_eq!(outcome.is_ok(), !self.names.contains_key(&to));
                self.names.entry(to).or_insert(ino);
            }
            Step::Save => self.tree = Tree::from_image(&self.tree.to_image(), BLOCKS).unwrap(),
        }
    }

    fn rename(&mut self, from: usize, to: usize, exchange: bool) {
        let how = if exchange { Exchange::Exchange } else { Exchange::Replace };
        let outcome = self.tree.rename((ROOT, NAMES[from]), (ROOT, NAMES[to]), how, NOW);
        let (moved, target) = (self.names.get(&from).copied(), self.names.get(&to).copied());
        assert_eq!(outcome.is_ok(), moved.is_some() && (!exchange || target.is_some()));
        let Some(moved) =
            moved.filter(|_| outcome.is_ok() && Some(*self.names.get(&from).unwrap()) != target)
        else {
            return;
        };
        self.names.insert(to, moved);
        match target.filter(|_| exchange) {
            Some(target) => drop(self.names.insert(from, target)),
            None => drop(self.names.remove(&from)),
        }
    }

    fn check(&mut self) {
        let names = &self.names;
        self.files.retain(|ino, _| names.values().any(|named| named == ino));
        for (name, ino) in &self.names {
            let links = self.names.values().filter(|named| *named == ino).count() as u32;
            let found = self.tree.lookup(ROOT, NAMES[*name]).unwrap();
            assert_eq!((found.ino, found.nlink), (*ino, links));
            assert!(self.read(*ino) == self.files[ino], "file {ino} holds other bytes");
        }
        let listed = self.tree.entries(ROOT, 0).unwrap().count();
        assert_eq!(listed, self.names.len() + 2);
        let held: u64 = self.files.keys().map(|ino| self.tree.attributes(*ino).unwrap().blocks / 8).sum();
        assert_eq!(self.tree.usage().blocks_free, BLOCKS - held, "every block is of one file, or free");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn reads_written_bytes_or_zeros(steps in prop::collection::vec(step(), 1..40)) {
        let mut world = World::new();
        for step in &steps {
            world.run(step);
            world.check();
        }
    }
}

#[test]
fn keeps_directories_a_tree() {
    let mut tree = Tree::new(BLOCKS, Caller::default(), NOW);
    let make = |tree: &mut Tree, parent, name: &[u8]| {
        tree.create(parent, name, DIRECTORY | 0o755, 0, Caller::default(), NOW).unwrap().ino
    };
    let upper = make(&mut tree, ROOT, b"upper");
    let lower = make(&mut tree, upper, b"lower");
    let into_itself = tree.rename((ROOT, b"upper"), (lower, b"x"), Exchange::Replace, NOW);
    assert_eq!(into_itself, Err(rustix::io::Errno::INVAL));
    assert_eq!(tree.rmdir(ROOT, b"upper", NOW), Err(rustix::io::Errno::NOTEMPTY));
    assert_eq!(tree.attributes(ROOT).unwrap().nlink, 3);
    tree.rename((upper, b"lower"), (ROOT, b"lower"), Exchange::Replace, NOW).unwrap();
    assert_eq!((tree.attributes(ROOT).unwrap().nlink, tree.attributes(upper).unwrap().nlink), (4, 2));
    assert_eq!(tree.lookup(lower, b"..").unwrap().ino, ROOT);
    // While open, it exists without a name, and no inode can be created in it.
    tree.open(upper).unwrap();
    tree.rmdir(ROOT, b"upper", NOW).unwrap();
    let made = tree.create(upper, b"late", REGULAR, 0, Caller::default(), NOW);
    assert_eq!(made, Err(rustix::io::Errno::NOENT));
    tree.close(upper);
    assert_eq!(tree.attributes(upper), Err(rustix::io::Errno::NOENT));
}

#[test]
fn reads_every_name_once_while_others_are_removed() {
    let mut tree = Tree::new(BLOCKS * 100, Caller::default(), NOW);
    for number in 0..100 {
        let name = format!("{number}");
        tree.create(ROOT, name.as_bytes(), REGULAR, 0, Caller::default(), NOW).unwrap();
    }
    let (mut position, mut seen) = (0, Vec::new());
    loop {
        let lines: Vec<(u64, Vec<u8>)> = tree
            .entries(ROOT, position)
            .unwrap()
            .take(7)
            .map(|line| (line.position, line.name.to_vec()))
            .collect();
        let Some((last, _)) = lines.last() else { break };
        position = *last;
        for (_, name) in lines {
            // Removes the entries read, like `rm -r`.
            let _ = tree.unlink(ROOT, &name, NOW);
            seen.push(name);
        }
    }
    assert_eq!(seen.len(), 102);
    assert_eq!(tree.entries(ROOT, 0).unwrap().count(), 2);
}

/// Reads a directory several entries at a time, like `readdir`, and calls `then` for each name.
fn scan(tree: &mut Tree, mut then: impl FnMut(&mut Tree, &[u8])) -> Vec<Vec<u8>> {
    let (mut position, mut seen) = (0, Vec::new());
    while seen.len() < 1_000 {
        let lines = tree.entries(ROOT, position).unwrap().take(3);
        let lines: Vec<(u64, Vec<u8>)> = lines.map(|line| (line.position, line.name.to_vec())).collect();
        let Some((last, _)) = lines.last() else { return seen };
        position = *last;
        for (_, name) in lines {
            if name != b"." && name != b".." {
                then(tree, &name);
                seen.push(name);
            }
        }
    }
    panic!("the scan does not end: {} names", seen.len());
}

#[test]
fn ends_a_scan_whatever_happens_to_the_names_it_has_read() {
    let mut tree = Tree::new(BLOCKS * 100, Caller::default(), NOW);
    let make = |tree: &mut Tree, name: &[u8], kind| {
        tree.create(ROOT, name, kind, 0, Caller::default(), NOW).unwrap().ino
    };
    for number in 0..50 {
        make(&mut tree, format!("{number}").as_bytes(), REGULAR);
    }
    let names = scan(&mut tree, |_, _| ());
    let rename = |tree: &mut Tree, from: (u64, &[u8]), to: (u64, &[u8])| {
        tree.rename(from, to, Exchange::Replace, NOW).unwrap();
    };
    let within = scan(&mut tree, |tree, name| {
        rename(tree, (ROOT, name), (ROOT, b"temporary"));
        rename(tree, (ROOT, b"temporary"), (ROOT, name));
    });
    assert_eq!(within, names);
    let recreated = scan(&mut tree, |tree, name| {
        tree.unlink(ROOT, name, NOW).unwrap();
        make(tree, name, REGULAR);
    });
    assert_eq!(recreated, names);
    let other = make(&mut tree, b"other", DIRECTORY | 0o755);
    let mut through_another = scan(&mut tree, |tree, name| {
        if name != b"other" {
            rename(tree, (ROOT, name), (other, name));
            rename(tree, (other, name), (ROOT, name));
        }
    });
    assert_eq!(through_another.pop().as_deref(), Some(&b"other"[..]));
    assert_eq!(through_another, names);
}

#[test]
fn reads_a_name_once_while_it_is_renamed_or_replaced() {
    let mut tree = Tree::new(BLOCKS, Caller::default(), NOW);
    for name in NAMES {
        tree.create(ROOT, name, REGULAR, 0, Caller::default(), NOW).unwrap();
    }
    let mut has_begun = false;
    let seen = scan(&mut tree, |tree, _| {
        if !std::mem::replace(&mut has_begun, true) {
            // The scan has read only `a`. `c` is renamed, and `d` is replaced by another file.
            tree.rename((ROOT, b"c"), (ROOT, b"moved"), Exchange::Replace, NOW).unwrap();
            tree.create(ROOT, b"new", REGULAR, 0, Caller::default(), NOW).unwrap();
            tree.rename((ROOT, b"new"), (ROOT, b"d"), Exchange::Replace, NOW).unwrap();
        }
    });
    assert_eq!(seen, [&b"a"[..], b"b", b"moved", b"d"]);
}

proptest! {
    #[test]
    fn rejects_damaged_images_or_reads_valid_trees(
        steps in prop::collection::vec(step(), 1..20),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut world = World::new();
        steps.iter().for_each(|step| world.run(step));
        let mut image = world.tree.to_image();
        for (at, byte) in damage {
            let at = at.index(image.len());
            image[at] = byte;
        }
        if let Ok(tree) = Tree::from_image(&image, BLOCKS) {
            let again = Tree::from_image(&tree.to_image(), BLOCKS).unwrap();
            prop_assert_eq!(again.usage(), tree.usage());
        }
    }
}
