//! Arbitrary bytes, split arbitrarily, to a memcached session: no panic, bounded waiting, and the same replies as for
//! unsplit bytes.
use farcall_kv::memcached::{LINE_MAX_BYTES, Session};
use farcall_kv::store::{Config, IndexSize, Partition};

const NOW_MS: u64 = 1_700_000_000_000;
const VALUE_MAX_BYTES: usize = 4096;

fn store() -> Partition {
    let config = Config {
        limit_bytes: 128 << 10,
        value_max_bytes: VALUE_MAX_BYTES,
        index: IndexSize::Buckets(64),
        ..Config::default()
    };
    Partition::new(config, NOW_MS).expect("the configuration is sound")
}

/// Removes the lines with the processor time of this process, which differ between two runs.
fn without_processor_times(replies: &[u8]) -> Vec<u8> {
    let is_time = |line: &&[u8]| line.starts_with(b"STAT rusage_");
    replies.split_inclusive(|byte| *byte == b'\n').filter(|line| !is_time(line)).flatten().copied().collect()
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((&pace, bytes)) = input.split_first() else { return };

    let (mut whole_store, mut whole, mut expected) = (store(), Session::new(), Vec::new());
    let consumed = whole.feed(bytes, &mut whole_store, NOW_MS, &mut expected);
    assert!(consumed <= bytes.len());

    let (mut part_store, mut parts, mut replies, mut pending) =
        (store(), Session::new(), Vec::new(), Vec::new());
    for piece in bytes.chunks(usize::from(pace) + 1) {
        pending.extend_from_slice(piece);
        if pending.len() >= parts.wants_bytes() && !parts.is_closed() {
            let consumed = parts.feed(&pending, &mut part_store, NOW_MS, &mut replies);
            pending.drain(..consumed);
            assert!(parts.wants_bytes() <= LINE_MAX_BYTES + VALUE_MAX_BYTES + 4);
        }
    }
    assert_eq!(parts.is_closed(), whole.is_closed());
    let is_alike = without_processor_times(&replies) == without_processor_times(&expected);
    assert!(is_alike, "pieces and the whole are answered alike");

    let stats = part_store.stats();
    assert!(stats.reserved_bytes <= stats.limit_bytes);
    assert!(stats.item_bytes <= stats.reserved_bytes);
    assert!(stats.items <= stats.slots);
}
