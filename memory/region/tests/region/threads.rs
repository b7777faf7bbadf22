//! Threads that share a region, with concurrent snapshots.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use farcall_link::SplitMix64;
use farcall_memory::PAGE_BYTES;
use farcall_region::*;

use crate::support::*;

const WORDS_A_PAGE: usize = PAGE_BYTES / 8;

#[test]
fn keeps_the_writes_of_each_thread() {
    const PAGES: usize = 512;
    let seed = seed();
    let (_nodes, addresses) = nodes_here(2);
    let mut region = RemoteRegion::open(&nic(), config(addresses, PAGES, 64)).unwrap();
    let (words, handle) = region.split_mut::<u64>();
    let is_over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut rng = SplitMix64::new(seed);
            while !is_over.load(Ordering::Relaxed) {
                let start = rng.below((PAGES * PAGE_BYTES) as u64) as usize;
                handle.dont_need(start..(start + 20 * PAGE_BYTES).min(PAGES * PAGE_BYTES));
                std::thread::yield_now();
            }
        });
        // Each thread has a part of every page.
        let mut parts: Vec<Vec<&mut [u64]>> = (0..8).map(|_| Vec::new()).collect();
        for page in words.chunks_mut(WORDS_A_PAGE) {
            for (part, words) in parts.iter_mut().zip(page.chunks_mut(WORDS_A_PAGE / 8)) {
                part.push(words);
            }
        }
        let threads: Vec<_> = (1..)
            .zip(parts)
            .map(|(thread, mut part)| {
                scope.spawn(move || {
                    let mut rng = SplitMix64::new(seed + thread);
                    let mut model = vec![0; PAGES];
                    for turn in 1..1_000 {
                        let page = rng.below(PAGES as u64) as usize;
                        assert!(part[page].iter().all(|word| *word == model[page]), "page {page}");
                        if rng.below(2) == 0 {
                            model[page] = thread << 32 | turn;
                            part[page].fill(model[page]);
                        }
                    }
                })
            })
            .collect();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
}

/// A thread repeatedly writes a number to the last page and then to the first one. Whatever is saved between the two
/// writes, the last page is ahead of the first by at most one.
#[test]
fn snapshots_distant_pages_at_one_moment() {
    const PAGES: usize = 200;
    let (_nodes, addresses) = nodes_here(1);
    let mut region = RemoteRegion::open(&nic(), config(addresses, PAGES, 256)).unwrap();
    let file = TestFile::new("apart");
    let (words, handle) = region.split_mut::<u64>();
    words.chunks_mut(WORDS_A_PAGE).for_each(|page| page[5] = 1);
    let is_over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for turn in 1.. {
                words[(PAGES - 1) * WORDS_A_PAGE] = turn;
                std::sync::atomic::fence(Ordering::SeqCst);
                words[0] = turn;
                std::sync::atomic::fence(Ordering::SeqCst);
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut check = || {
            // On a busy machine the other thread may not write during a snapshot.
            let by = Instant::now() + LOST;
            let mut left = 20;
            while left > 0 || (handle.status().counts.protected == 0 && Instant::now() < by) {
                left = i32::max(left - 1, 0);
                handle.snapshot(&file.0).unwrap();
                let (mut later, mut earlier) = (0, 0);
                let mut reader = &*std::fs::read(&file.0).unwrap();
                read_snapshot(&mut reader, (PAGES * PAGE_BYTES) as u64, |page, bytes| {
                    let word = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                    match page as usize {
                        0 => later = word,
                        at if at == PAGES - 1 => earlier = word,
                        _ => {}
                    }
                })
                .unwrap();
                assert!(earlier == later || earlier == later + 1, "{earlier} beside {later}");
            }
        };
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut check));
        is_over.store(true, Ordering::Relaxed);
        checked.unwrap();
    });
    assert!(region.handle().status().counts.protected > 0, "nobody wrote meanwhile");
}

#[test]
fn snapshots_at_one_moment_while_a_thread_writes() {
    const PAGES: usize = 200;
    let (_nodes, addresses) = nodes_here(1);
    let mut region = RemoteRegion::open(&nic(), config(addresses, PAGES, 128)).unwrap();
    let file = TestFile::new("moment");
    let (words, handle) = region.split_mut::<u64>();
    let is_over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for turn in 1.. {
                for page in words.chunks_mut(WORDS_A_PAGE) {
                    page[3] = turn;
                    std::sync::atomic::compiler_fence(Ordering::SeqCst);
                }
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let (mut found, mut largest) = (vec![0; PAGES], 0);
        let mut check = || {
            let mut left = 12;
            // On a busy machine the other thread may not write during a snapshot.
            let by = Instant::now() + LOST;
            while left > 0 || (handle.status().counts.protected == 0 && Instant::now() < by) {
                left = i32::max(left - 1, 0);
                handle.snapshot(&file.0).unwrap();
                found.fill(0);
                let mut reader = &*std::fs::read(&file.0).unwrap();
                read_snapshot(&mut reader, (PAGES * PAGE_BYTES) as u64, |page, bytes| {
                    found[page as usize] = u64::from_le_bytes(bytes[24..32].try_into().unwrap());
                })
                .unwrap();
                assert!(found.is_sorted_by(|before, after| before >= after), "{found:?}");
                assert!(found[0] - found[PAGES - 1] <= 1 && found[0] >= largest, "{found:?}");
                largest = found[0];
            }
        };
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut check));
        is_over.store(true, Ordering::Relaxed);
        checked.unwrap();
    });
    assert!(region.handle().status().counts.protected > 0, "nobody wrote meanwhile");
}
