//! Random operations on a region, compared with a vector.

use farcall_link::SplitMix64;
use farcall_memory::PAGE_BYTES;
use farcall_region::*;

use crate::support::*;

const PAGES: usize = 600;
const RESIDENT: usize = 64;

/// Fills, reads, changes, hints, snapshots.
fn step(rng: &mut SplitMix64, region: &mut RemoteRegion, model: &mut [u8], file: &TestFile) {
    let all = model.len();
    let longest = [40, PAGE_BYTES, 40 * PAGE_BYTES][rng.below(3) as usize] as u64;
    let start = rng.below(all as u64) as usize;
    let end = all.min(start + 1 + rng.below(longest) as usize);
    match rng.below(100) {
        0..40 => assert!(region.bytes()[start..end] == model[start..end], "{start}..{end}"),
        40..75 => {
            // Half of all writes store zeros or the present contents, so that pages become equal to their stored
            // versions.
            let byte = if rng.below(2) == 0 { 0 } else { rng.next_u64() as u8 };
            region.bytes_mut()[start..end].fill(byte);
            model[start..end].fill(byte);
        }
        75..80 => {
            let word = start / 8..end / 8;
            let mut stream = SplitMix64::new(rng.next_u64());
            for (place, value) in region.view_mut::<u64>(word.clone()).iter_mut().zip(word) {
                *place = stream.next_u64();
                model[value * 8..value * 8 + 8].copy_from_slice(&place.to_ne_bytes());
            }
        }
        80..88 => region.handle().will_need(start..end),
        88..98 => region.handle().dont_need(start..end),
        _ => {
            region.handle().snapshot(&file.0).unwrap();
            let mut found = vec![0; all];
            let mut reader = &*std::fs::read(&file.0).unwrap();
            read_snapshot(&mut reader, all as u64, |page, bytes| {
                let first = page as usize * PAGE_BYTES;
                found[first..first + PAGE_BYTES].copy_from_slice(bytes);
            })
            .unwrap();
            assert!(found == model, "the snapshot is another");
        }
    }
}

#[test]
fn matches_a_plain_vector_under_eviction() {
    let seed = seed();
    let (mut rng, file) = (SplitMix64::new(seed), TestFile::new("model"));
    let (_nodes, addresses) = nodes_here(2);
    let config = config(addresses, PAGES, RESIDENT);
    let mut region = RemoteRegion::open(&nic(), config.clone()).unwrap();
    let mut model = vec![0; PAGES * PAGE_BYTES];
    for _ in 0..1_000 {
        step(&mut rng, &mut region, &mut model, &file);
        if rng.below(50) == 0 {
            let status = region.handle().status();
            assert!(status.resident_bytes <= status.resident_limit_bytes, "{status:?}");
        }
    }
    assert!(region.bytes() == model);
    let counts = region.handle().status().counts;
    println!("{counts:?}");
    // Whether a fault finds a staged page depends on the speed of the node's thread:
    // `restores_a_page_that_is_not_stored_yet` constructs that case.
    let all_happened = [counts.remote, counts.zeros, counts.read_ahead, counts.evicted_clean, counts.stored];
    assert!(all_happened.iter().all(|count| *count > 0), "{counts:?}");
    assert_eq!((counts.poisoned, counts.not_stored), (0, 0));
    region.handle().snapshot(&file.0).unwrap();
    drop(region);
    let again = RemoteRegion::open_snapshot(&nic(), config, &file.0).unwrap();
    assert!(again.bytes() == model, "what is opened from a snapshot is what it was");
}

#[test]
fn views_values_of_any_plain_type() {
    let (_nodes, addresses) = nodes_here(1);
    let mut region = RemoteRegion::open(&nic(), config(addresses, 128, 64)).unwrap();
    region.view_mut::<[f32; 3]>(1..3)[1] = [1.5, 2.5, -1.0];
    assert_eq!(region.view::<f32>(6..9), [1.5, 2.5, -1.0]);
    assert!(region.view::<u32>(0..6).iter().all(|word| *word == 0));
    for range in [0..128 * 1_024 + 1, usize::MAX - 1..usize::MAX, std::ops::Range { start: 7, end: 6 }] {
        let panicked =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| region.view::<u32>(range).len()));
        let text = *panicked.unwrap_err().downcast::<String>().unwrap();
        assert!(text.contains("are outside of a region of 524288 bytes"), "{text}");
    }
}

#[test]
fn reads_ahead_and_prefetches_hinted_pages() {
    let (_nodes, addresses) = nodes_here(1);
    let mut region = RemoteRegion::open(&nic(), config(addresses, 1_024, 512)).unwrap();
    region.bytes_mut().fill(7);
    let handle = region.handle();
    until_gone(handle, 1_024 * PAGE_BYTES);
    handle.will_need(0..100 * PAGE_BYTES);
    until("they are here", || handle.status().resident_bytes == 100 * PAGE_BYTES as u64);
    let before = handle.status().counts;
    assert_eq!(before.read_ahead, 100);
    assert!(region.bytes()[..100 * PAGE_BYTES].iter().all(|byte| *byte == 7));
    assert_eq!(region.handle().status().counts.remote, before.remote, "nobody asked for them");
    assert!(region.bytes()[500 * PAGE_BYTES..800 * PAGE_BYTES].iter().all(|byte| *byte == 7));
    let after = region.handle().status().counts;
    assert!(after.faults - before.faults < 60, "{after:?}");
}

#[test]
fn rejects_damaged_snapshots_and_invalid_sizes() {
    let (_nodes, addresses) = nodes_here(1);
    let open = |config| RemoteRegion::open(&nic(), config).err().unwrap().to_string();
    let text = open(config(addresses.clone(), 100, 63));
    assert!(text.contains("resident_limit_bytes is 258048: from 262144"), "{text}");
    let file = TestFile::new("damaged");
    let mut region = RemoteRegion::open(&nic(), config(addresses.clone(), 100, 64)).unwrap();
    region.bytes_mut().fill(3);
    region.handle().snapshot(&file.0).unwrap();
    let text = region.handle().snapshot("/proc/no/such/folder").unwrap_err().to_string();
    assert!(text.contains("snapshot file"), "{text}");
    let small = config(addresses.clone(), 99, 64);
    let text = RemoteRegion::open_snapshot(&nic(), small, &file.0).err().unwrap().to_string();
    assert!(text.contains("is of a region of 409600 bytes, and this one has 405504"), "{text}");
    let mut bytes = std::fs::read(&file.0).unwrap();
    bytes[50_000] ^= 1;
    std::fs::write(&file.0, bytes).unwrap();
    let text = RemoteRegion::open_snapshot(&nic(), config(addresses, 100, 64), &file.0).err().unwrap();
    assert!(text.to_string().contains("the checksum of a page is wrong"), "{text}");
}
