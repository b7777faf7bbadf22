//! Arbitrary words as headers, notices and immediate data of calls: no panic, and accepted words encode to themselves.

use farcall_rpc::wire::{
    FirstWord, Imm, RequestFlags, RequestHeader, ResponseHeader, Seq, Slots, Status, TailKey,
};

/// Returns the first `N` words of the bytes, or `None` if there are fewer.
fn words<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let mut words = [0; N];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
        *word = u64::from_le_bytes(chunk.try_into().ok()?);
    }
    (bytes.len() >= 8 * N).then_some(words)
}

fn request(words: &[u64; 6]) {
    let Ok(header) = RequestHeader::decode(words) else { return };
    let own = ..header.form.request_words();
    assert_eq!(header.encode()[own], words[own], "nothing of an accepted header is ignored");
    let mode = header.flags & (RequestFlags::REPLY | RequestFlags::NOTIFY);
    assert_eq!(header.mode().flags(), mode);
    let covered = RequestHeader::checked_words(words);
    let crc = TailKey(7).checksum(&covered, b"");
    let signed = RequestHeader { crc, ..header }.encode();
    assert_eq!(RequestHeader::with_crc(words, crc)[own], signed[own], "a CRC has one place");
    assert_eq!(
        TailKey(7).checksum(&RequestHeader::checked_words(&signed), b""),
        crc,
        "a checksum does not cover itself"
    );
}

fn response(words: &[u64; 3]) {
    let Ok(header) = ResponseHeader::decode(words) else { return };
    assert_eq!(&header.encode(), words, "nothing of an accepted header is ignored");
    let _ = (header.time_ns(), header.status.meaning(), header.status.executed());
    let sleeping = [words[0], words[1] | ResponseHeader::SLEEPING_BIT, words[2]];
    assert!(ResponseHeader::decode(&sleeping).is_ok(), "a sleeper's mark spoils no header");
    let covered = ResponseHeader::checked_words(words);
    assert_eq!(covered, ResponseHeader::checked_words(&sleeping), "a sleeper's mark spoils no checksum");
}

fn immediate(word: u64) {
    let imm = Imm::decode(word as u32);
    assert_eq!(Imm::decode(imm.encode()), imm);
    let (next, window) = (Seq((word >> 32) as u32), 1 << (word >> 28 & 7));
    if let Imm::Push { oldest_low, count } = imm
        && let Some((from, end)) = Imm::push_range(oldest_low, count, next, window)
    {
        assert!(end.distance_from(from) <= u32::from(window), "never more than a window");
        assert!(next.distance_from(from) <= u32::from(window), "never older than a window");
    }
}

fn notice(word: u64) {
    let Some(first) = FirstWord::decode(word) else { return };
    assert_eq!(first.encode(), word, "nothing of an accepted notice is ignored");
}

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let Some(first) = words::<1>(bytes) else { return };
    immediate(first[0]);
    notice(first[0]);
    let seq = Seq(first[0] as u32);
    let slots = Slots::new(1 << (first[0] >> 32 & 7), 4_224, 48);
    assert!(slots.offset(seq) + slots.slot_bytes() <= 128 * 4_224);
    assert_ne!(TailKey(first[0]).tail(seq), TailKey(first[0]).tail(seq.next()));
    let _ = Status(first[0] as u16).meaning();
    words::<3>(bytes).iter().for_each(response);
    words::<6>(bytes).iter().for_each(request);
}
