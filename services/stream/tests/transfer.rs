//! Written bytes are read exactly, in order, to the end.

mod support;

use farcall_stream::{Broken, Stream, StreamConfig, StreamError};
use farcall_verbs::{Endpoint, Nanos};
use support::*;

#[test]
fn what_is_written_is_read_at_the_other_end_in_both_directions() {
    let mut ends = pair();
    assert_eq!(carry(&mut ends, 0, b"there", 100), b"there");
    assert_eq!(carry(&mut ends, 1, b"and back", 3), b"and back");
}

/// Tests writes of every length, across the end of a ring many times.
#[test]
fn a_stream_much_longer_than_its_rings_is_exact() {
    for (ring, at_once) in [(4 << 10, 61), (4 << 10, 4_095), (8 << 10, 100_000), (1 << 20, 70_001)] {
        let mut ends = pair_of([StreamConfig::default().ring_bytes(ring); 2]);
        let mut position = 0;
        for len in [1, 7, 8, 255, 256, 257, 4_096, 5_000, 33_000, 1, 50_000, 2] {
            let bytes = bytes_at(position, len);
            let from = len % 2;
            assert!(
                carry(&mut ends, from, &bytes, at_once) == bytes,
                "{len} bytes at {position}, ring {ring}"
            );
            position += len as u64;
        }
    }
}

#[test]
fn stops_a_writer_at_a_full_ring_until_it_is_read() {
    let mut ends = pair_of([StreamConfig::default().fixed_ring(32 << 10); 2]);
    // The client's first control word permits the server to write.
    carry(&mut ends, 0, b"x", 1);
    let all = bytes_at(0, 200_000);
    let mut written = 0;
    step_until(&mut ends, |ends| {
        match ends[1].write(&all[written..]) {
            Ok(count) => written += count,
            Err(error) => assert_eq!(error, StreamError::WouldBlock),
        }
        written >= 32 << 10
    });
    for _ in 0..1_000 {
        assert_eq!(ends[1].write(&all[written..]), Err(StreamError::WouldBlock), "{written} bytes written");
        assert!(!ends[1].is_writable());
        ends[1].progress(Nanos(1 << 40));
    }
    assert_eq!(written, ends[1].totals().0 as usize);
    assert_eq!(written % 4_096, 0, "the whole ring, of whole pages");
    let mut got = Vec::new();
    while got.len() < written {
        got.extend(read_some(&mut ends, 0).unwrap());
    }
    assert!(got == all[..written]);
    let rest = carry(&mut ends, 1, &all[written..], 10_000);
    assert!(rest == all[written..]);
}

#[test]
fn each_direction_ends_by_itself_and_after_all_bytes() {
    let mut ends = pair();
    assert_eq!(ends[0].write(b"the last words"), Ok(14));
    ends[0].finish();
    assert_eq!(ends[0].write(b"more"), Err(StreamError::BrokenPipe));
    assert_eq!(read_some(&mut ends, 1), Ok(b"the last words".to_vec()));
    assert_eq!(read_some(&mut ends, 1), Ok(vec![]));
    // The other direction continues independently.
    let answer = bytes_at(0, 100_000);
    assert!(carry(&mut ends, 1, &answer, 9_000) == answer);
    ends[1].finish();
    assert_eq!(read_some(&mut ends, 0), Ok(vec![]));
    step_until(&mut ends, |ends| ends[0].ended() == Some(14) && ends[1].ended() == Some(100_000));
}

#[test]
fn lends_contiguous_bytes_for_any_arrival() {
    let mut ends = pair_of([StreamConfig::default().ring_bytes(4 << 10); 2]);
    let all = bytes_at(0, 50_000);
    let (mut written, mut read) = (0, 0);
    let mut lend = 1;
    step_until(&mut ends, |ends| {
        if let Ok(count) = ends[0].write(&all[written..]) {
            written += count;
        }
        if written == all.len() {
            ends[0].finish();
        }
        let at_least = lend;
        match ends[1].fill(at_least) {
            Ok(bytes) => {
                assert!(bytes.len() >= at_least.min(all.len() - read), "{} of {at_least}", bytes.len());
                assert!(all[read..].starts_with(bytes));
                let used = bytes.len().min(at_least);
                ends[1].consume(used);
                read += used;
                lend = lend * 2 % 9_001;
            }
            Err(error) => assert_eq!(error, StreamError::WouldBlock),
        }
        read == all.len()
    });
    assert_eq!(ends[1].fill(1), Ok(&[][..]), "the end");
}

/// Tests that composed bytes arrive like written ones.
#[test]
fn messages_are_composed_in_place() {
    let mut ends = pair_of([StreamConfig::default().ring_bytes(4 << 10); 2]);
    let mut expected = Vec::new();
    let mut got = Vec::new();
    let mut piece = vec![0; 600];
    for number in 0..2_000_u32 {
        let body = bytes_at(number.into(), (number % 300) as usize);
        let message: Vec<u8> = [&(body.len() as u32).to_le_bytes()[..], &body].concat();
        let mut left = &message[..];
        step_until(&mut ends, |ends| {
            let put = ends[0].write_with(left.len(), |space| {
                // The length follows the bytes whose length it is.
                let first = left.len() == message.len() && space.room() >= 4;
                if first {
                    assert_eq!(space.put(&[0; 4]), 4);
                    space.put(&left[4..]);
                    space.put_at(0, &left[..4]);
                } else {
                    space.put(left);
                }
            });
            match put {
                Ok(count) => left = &left[count..],
                Err(error) => assert_eq!(error, StreamError::WouldBlock),
            }
            if let Ok(count) = ends[1].read(&mut piece) {
                got.extend_from_slice(&piece[..count]);
            }
            left.is_empty()
        });
        expected.extend(message);
    }
    while got.len() < expected.len() {
        got.extend(read_some(&mut ends, 1).unwrap());
    }
    assert!(got == expected);
}

#[test]
fn reports_a_reset_after_received_bytes_if_a_peer_hangs_up() {
    let mut ends = pair();
    carry(&mut ends, 0, b"x", 1);
    step_until(&mut ends, |ends| ends[1].write(b"arrived").is_ok());
    step_until(&mut ends, |ends| ends[0].has_work());
    ends[0].hung_up();
    assert_eq!(ends[0].write(b"x"), Err(StreamError::BrokenPipe));
    assert_eq!(read_some(&mut ends, 0), Ok(b"arrived".to_vec()));
    assert_eq!(read_some(&mut ends, 0), Err(StreamError::Reset(Broken::HungUp)));
}

#[test]
fn a_peer_that_hangs_up_after_its_end_is_the_end() {
    let mut ends = pair();
    ends[0].write(b"all").unwrap();
    ends[0].finish();
    step_until(&mut ends, |ends| ends[0].ended() == Some(3));
    ends[1].peer_ended(3);
    ends[1].hung_up();
    assert_eq!(ends[1].write(b"x"), Err(StreamError::BrokenPipe));
    assert_eq!(read_some(&mut ends, 1), Ok(b"all".to_vec()));
    assert_eq!(read_some(&mut ends, 1), Ok(vec![]));
}

#[test]
fn rejects_reads_and_writes_after_a_local_reset() {
    let mut ends = pair();
    ends[0].write(b"all").unwrap();
    step_until(&mut ends, |ends| ends[1].is_readable());
    ends[1].reset();
    assert_eq!(ends[1].write(b"x"), Err(StreamError::Reset(Broken::Reset)));
    assert_eq!(read_some(&mut ends, 1), Err(StreamError::Reset(Broken::Reset)));
    step_until(&mut ends, |ends| ends[1].is_drained());
}
#[test]
fn grows_a_full_ring_and_releases_it_when_idle() {
    let mut ends = pair_of([StreamConfig::default().ring_bytes(4 << 10).ring_bytes_max(128 << 10); 2]);
    let mut position = 0;
    // The ring of the other direction keeps its length.
    while ends[1].ring_bytes() < 128 << 10 {
        let bytes = bytes_at(position, 300_000);
        assert!(carry(&mut ends, 0, &bytes, 9_000) == bytes, "at {position}");
        position += 300_000;
    }
    assert_eq!((ends[0].ring_bytes(), ends[1].counters().rings_offered), (4 << 10, 3));
    let bytes = bytes_at(position, 200_000);
    assert!(carry(&mut ends, 0, &bytes, 70_000) == bytes);
    // Simulates hours without received bytes.
    let mut now = Nanos(1 << 42);
    step_until(&mut ends, |ends| {
        now = now + std::time::Duration::from_secs(3_600);
        ends[1].arm().unwrap();
        ends[1].progress(now);
        ends[1].ring_bytes() == 4 << 10
    });
    assert_eq!(ends[0].counters().rings_taken, 4);
    assert!(carry(&mut ends, 0, &bytes, 70_000) == bytes);
    assert_eq!(carry(&mut ends, 1, b"and back", 3), b"and back");
}

#[test]
fn an_empty_stream_has_an_end_and_nothing_else() {
    let mut ends = pair();
    ends[0].finish();
    assert_eq!(read_some(&mut ends, 1), Ok(vec![]));
    // The end is reported again by later reads.
    assert_eq!(read_some(&mut ends, 1), Ok(vec![]));
    assert_eq!(ends[0].write(b"x"), Err(StreamError::BrokenPipe));
    assert_eq!(ends[0].write(b""), Err(StreamError::BrokenPipe));
    step_until(&mut ends, |ends| ends[0].ended() == Some(0));
}

#[test]
fn wakes_a_requesting_peer_while_only_writing() {
    let write: fn(&mut Stream) -> usize = |end| end.write(b"a message").unwrap();
    let compose: fn(&mut Stream) -> usize =
        |end| end.write_with(9, |space| assert_eq!(space.put(b"a message"), 9)).unwrap();
    for send in [write, compose] {
        let mut ends = pair();
        // The reader polls until it requests that wake-ups stop.
        let mut position = 0;
        while ends[0].counters().wishes == 0 {
            let bytes = bytes_at(position, 8);
            assert_eq!(carry(&mut ends, 1, &bytes, 8), bytes);
            position += 8;
        }
        step_until(&mut ends, |ends| ends[0].read(&mut [0; 1]) == Err(StreamError::WouldBlock));
        let sent = ends[1].counters().wakes_sent;
        assert_eq!(send(&mut ends[1]), 9);
        assert_eq!(ends[1].counters().wakes_sent, sent);
        assert_eq!(read_some(&mut ends, 0).unwrap(), b"a message");
        // Now it goes to sleep, while the application at the other end only writes.
        ends[0].arm().unwrap();
        assert_eq!(send(&mut ends[1]), 9);
        assert!(ends[1].counters().wakes_sent > sent);
        assert_eq!(read_some(&mut ends, 0).unwrap(), b"a message");
    }
}
