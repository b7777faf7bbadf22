//! Arbitrary bytes as a batch of calls, as its results, and as deferred results: no panic, and accepted bytes encode
//! to themselves.

use farcall_rpc::wire::CollectedResult;
use farcall_rpc::wire::batch::{BATCH_HEAD_BYTES, BatchedCalls, batch_head, push_entry, take_entry};
use farcall_rpc::wire::collected::{push_collected, take_collected};

/// Runs one input.
pub fn run(bytes: &[u8]) {
    if let Ok(calls) = BatchedCalls::decode(bytes) {
        let mut again = batch_head(calls.len() as u16).to_vec();
        let count = calls.len();
        assert_eq!(
            calls.inspect(|(method, payload)| push_entry(&mut again, *method, payload)).count(),
            count
        );
        assert_eq!(again.len(), bytes.len());
        // Only the padding may differ.
        assert_eq!(
            BatchedCalls::decode(&again).map(Iterator::collect::<Vec<_>>).ok(),
            BatchedCalls::decode(bytes).map(Iterator::collect).ok()
        );
    }
    let mut rest = bytes.get(BATCH_HEAD_BYTES..).unwrap_or_default();
    while let Ok((_, entry)) = take_entry(&mut rest) {
        assert!(entry.len() + rest.len() <= bytes.len(), "an entry lies within its batch");
    }
    let mut rest = bytes;
    while let Ok(collected) = take_collected(&mut rest) {
        let mut again = Vec::new();
        push_collected(&mut again, &collected);
        assert_eq!(take_collected(&mut &again[..]), Ok(collected));
        if let CollectedResult::Here(result) = collected.result {
            assert!(result.len() + rest.len() <= bytes.len(), "a result lies within its message");
        }
    }
}
