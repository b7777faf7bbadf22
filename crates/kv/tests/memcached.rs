//! The memcached protocols: conformance tables, chunked feeding, bounds, garbage.

use farcall_kv::memcached::{LINE_MAX_BYTES, Session};
use farcall_kv::store::{Config, IndexSize, Partition};
use proptest::prelude::*;

const NOW_MS: u64 = 1_700_000_000_000;
const VALUE_MAX_BYTES: usize = 4096;

fn store() -> Partition {
    let config = Config {
        limit_bytes: 256 << 10,
        value_max_bytes: VALUE_MAX_BYTES,
        index: IndexSize::Buckets(256),
        ..Config::default()
    };
    // Versions start at 1, so that tables can name them.
    Partition::new(config, 0).unwrap()
}

/// Feeds everything at once; the replies. The whole input must be consumed.
fn converse(partition: &mut Partition, input: &str, now_ms: u64) -> String {
    let (mut session, mut out) = (Session::new(), Vec::new());
    let consumed = session.feed(input.as_bytes(), partition, now_ms, &mut out);
    assert!(consumed == input.len() || session.is_closed(), "{input:?}: {consumed} of {} bytes", input.len());
    String::from_utf8(out).unwrap()
}

/// Plays a conversation of (sent, expected) on a fresh store.
fn check(table: &[(&str, &str)]) {
    let mut partition = store();
    for (sent, expected) in table {
        assert_eq!(converse(&mut partition, sent, NOW_MS), *expected, "after {sent:?}");
    }
}

#[test]
fn storage_and_retrieval() {
    check(&[
        ("get a\r\n", "END\r\n"),
        ("set a 5 0 3\r\nabc\r\n", "STORED\r\n"),
        ("get a\r\n", "VALUE a 5 3\r\nabc\r\nEND\r\n"),
        ("gets a\r\n", "VALUE a 5 3 1\r\nabc\r\nEND\r\n"),
        ("add a 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("add b 4294967295 0 0\r\n\r\n", "STORED\r\n"),
        ("get  b   a nope \r\n", "VALUE b 4294967295 0\r\n\r\nVALUE a 5 3\r\nabc\r\nEND\r\n"),
        ("replace c 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("replace a 1 0 1\r\nx\r\n", "STORED\r\n"),
        (
            "append a 9 9 2\r\nyz\r\nprepend a 9 9 2\r\nvw\r\nget a\r\n",
            "STORED\r\nSTORED\r\nVALUE a 1 5\r\nvwxyz\r\nEND\r\n",
        ),
        ("append c 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("set nl 0 0 4\na\r\nb\nget nl\n", "STORED\r\nVALUE nl 0 4\r\na\r\nb\r\nEND\r\n"),
        ("delete a\r\ndelete a\r\n", "DELETED\r\nNOT_FOUND\r\n"),
        ("delete b 0\r\n", "DELETED\r\n"),
        ("delete b 5\r\n", "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n"),
    ]);
}

#[test]
fn compare_and_swap() {
    check(&[
        ("cas a 0 0 1 1\r\nx\r\n", "NOT_FOUND\r\n"),
        ("set a 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("cas a 0 0 1 2\r\ny\r\n", "EXISTS\r\n"),
        ("cas a 7 0 1 1\r\ny\r\n", "STORED\r\n"),
        ("gets a\r\n", "VALUE a 7 1 2\r\ny\r\nEND\r\n"),
        ("touch a 0\r\ngets a\r\n", "TOUCHED\r\nVALUE a 7 1 2\r\ny\r\nEND\r\n"),
    ]);
    // Without a version the line tells the block's length, so the block is skipped and the error follows it.
    check(&[("cas a 0 0 1\r\nx\r\nmn\r\n", "CLIENT_ERROR bad command line format\r\nMN\r\n")]);
}

const VERSION: &str = concat!("VERSION 1.6.18-farcall-", env!("CARGO_PKG_VERSION"), "\r\n");

#[test]
fn counters() {
    check(&[
        ("incr n 1\r\ndecr n 1\r\n", "NOT_FOUND\r\nNOT_FOUND\r\n"),
        ("set n 3 0 1\r\n9\r\nincr n 1\r\nget n\r\n", "STORED\r\n10\r\nVALUE n 3 2\r\n10\r\nEND\r\n"),
        ("decr n 1\r\ndecr n 100\r\n", "9\r\n0\r\n"),
        ("incr n 18446744073709551615\r\nincr n 2\r\n", "18446744073709551615\r\n1\r\n"),
        ("incr n x\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n"),
        ("incr n -1\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n"),
        ("incr n\r\n", "ERROR\r\n"),
        (
            "set w 0 0 1\r\nw\r\nincr w 1\r\n",
            "STORED\r\nCLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
        ),
        ("incr n 1 noreply\r\nget n\r\n", "VALUE n 3 1\r\n2\r\nEND\r\n"),
    ]);
}

#[test]
fn noreply_silences_outcomes() {
    check(&[
        ("set a 0 0 1 noreply\r\nx\r\nadd a 0 0 1 noreply\r\ny\r\nget a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n"),
        ("touch a 0 noreply\r\ndelete a noreply\r\ndelete a noreply\r\nget a\r\n", "END\r\n"),
        ("flush_all noreply\r\nverbosity 1 noreply\r\nmn\r\n", "MN\r\n"),
        ("set a 0 0 99999 noreply\r\n", ""),
    ]);
}

#[test]
fn time_expires_items() {
    let mut partition = store();
    let mut at = |seconds: u64, sent: &str| converse(&mut partition, sent, NOW_MS + 1000 * seconds);
    let absolute = NOW_MS / 1000 + 50;
    at(
        0,
        &format!(
            "set rel 0 10 1\r\nx\r\nset abs 0 {absolute} 1\r\nx\r\nset neg 0 -1 1\r\nx\r\nset old 0 2592001 1\r\nx\r\n"
        ),
    );
    assert_eq!(at(0, "get neg old\r\n"), "END\r\n");
    assert_eq!(at(9, "get rel\r\n"), "VALUE rel 0 1\r\nx\r\nEND\r\n");
    assert_eq!(at(10, "get rel\r\n"), "END\r\n");
    assert_eq!(at(49, "gat 100 abs\r\n"), "VALUE abs 0 1\r\nx\r\nEND\r\n");
    assert_eq!(at(148, "gats 0 abs\r\n"), "VALUE abs 0 1 2\r\nx\r\nEND\r\n");
    assert_eq!(at(9999, "touch abs 1\r\n"), "TOUCHED\r\n");
    assert_eq!(at(10_000, "touch abs 1\r\n"), "NOT_FOUND\r\n");
    assert_eq!(at(0, "gat\r\n"), "ERROR\r\n");
    assert_eq!(at(0, "gat 1\r\n"), "ERROR\r\n");
    assert_eq!(at(0, "gat x a\r\nmn\r\n"), "CLIENT_ERROR invalid exptime argument\r\nMN\r\n");
    assert_eq!(at(0, "touch a x\r\n"), "CLIENT_ERROR invalid exptime argument\r\n");
}

#[test]
fn flush_all_now_and_later() {
    let mut partition = store();
    let mut at = |seconds: u64, sent: &str| converse(&mut partition, sent, NOW_MS + 1000 * seconds);
    at(0, "set a 0 0 1\r\nx\r\n");
    assert_eq!(at(0, "flush_all\r\nget a\r\n"), "OK\r\nEND\r\n");
    assert_eq!(
        at(0, "set a 0 0 1\r\nx\r\nflush_all 10\r\nget a\r\n"),
        "STORED\r\nOK\r\nVALUE a 0 1\r\nx\r\nEND\r\n"
    );
    at(5, "set b 0 0 1\r\ny\r\n");
    assert_eq!(at(10, "get a b\r\n"), "END\r\n");
    assert_eq!(at(10, "set a 0 0 1\r\nz\r\nget a\r\n"), "STORED\r\nVALUE a 0 1\r\nz\r\nEND\r\n");
    assert_eq!(at(10, "flush_all x\r\n"), "CLIENT_ERROR invalid exptime argument\r\n");
}

#[test]
fn malformed_lines() {
    let long = "k".repeat(251);
    let whole = "k".repeat(250);
    check(&[
        ("\r\n", "ERROR\r\n"),
        ("foo\r\n", "ERROR\r\n"),
        ("GET a\r\n", "ERROR\r\n"),
        ("get\r\n", "ERROR\r\n"),
        ("get \r\n", "ERROR\r\n"),
        ("set a 0 0\r\n", "ERROR\r\n"),
        ("set a x 0 1\r\n1\r\nmn\r\n", "CLIENT_ERROR bad command line format\r\nMN\r\n"),
        ("set a 4294967296 0 1\r\n1\r\nmn\r\n", "CLIENT_ERROR bad command line format\r\nMN\r\n"),
        ("set a 0 0 x\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("set a 0 0 -1\r\n", "CLIENT_ERROR bad data chunk\r\n"),
        ("set a 0 0 1\r\nxyz\r\nmn\r\n", "CLIENT_ERROR bad data chunk\r\nMN\r\n"),
        ("set a 0 0 18446744073709551616\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("touch a\r\n", "ERROR\r\n"),
        ("verbosity\r\n", "ERROR\r\n"),
        ("stats nonsense\r\n", "ERROR\r\n"),
        ("version\r\n", VERSION),
        ("quit\r\nget a\r\n", ""),
        (&format!("get {long}\r\nmn\r\n"), "CLIENT_ERROR bad command line format\r\nMN\r\n"),
        (
            &format!("set {long} 0 0 9\r\nflush_all\r\nmn\r\n"),
            "CLIENT_ERROR bad command line format\r\nMN\r\n",
        ),
        (
            &format!("set {whole} 0 0 1\r\nx\r\nget {whole}\r\n"),
            &format!("STORED\r\nVALUE {whole} 0 1\r\nx\r\nEND\r\n"),
        ),
    ]);
}

#[test]
fn a_value_over_the_limit_is_swallowed_and_the_old_one_stays() {
    let mut partition = store();
    let (most, more) = ("m".repeat(VALUE_MAX_BYTES), "M".repeat(VALUE_MAX_BYTES + 1));
    let sent = format!(
        "set a 0 0 {}\r\n{most}\r\nset a 0 0 {}\r\n{more}\r\nappend a 0 0 1\r\nx\r\nget a\r\n",
        most.len(),
        more.len()
    );
    let too_large = "SERVER_ERROR object too large for cache\r\n";
    let expected = format!("STORED\r\n{too_large}{too_large}VALUE a 0 {}\r\n{most}\r\nEND\r\n", most.len());
    assert_eq!(converse(&mut partition, &sent, NOW_MS), expected);
}

#[test]
fn an_endless_line_closes_the_connection() {
    let mut partition = store();
    let (mut session, mut out) = (Session::new(), Vec::new());
    session.feed(&vec![b'x'; LINE_MAX_BYTES - 1], &mut partition, NOW_MS, &mut out);
    assert!(!session.is_closed());
    session.feed(&vec![b'x'; LINE_MAX_BYTES], &mut partition, NOW_MS, &mut out);
    assert!(session.is_closed());
    assert_eq!(out, b"CLIENT_ERROR line too long\r\n");
}

#[test]
fn a_retrieval_may_have_any_number_of_keys() {
    let mut partition = store();
    let keys = (0..20_000).map(|n| format!(" key{n}")).collect::<String>();
    let reply = converse(&mut partition, &format!("set key19999 0 0 1\r\nx\r\nget{keys}\r\n"), NOW_MS);
    assert_eq!(reply, "STORED\r\nVALUE key19999 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn stats_under_memcached_names() {
    let mut partition = store();
    let reply = converse(&mut partition, "set a 0 0 1\r\nx\r\nget a b\r\nstats\r\nstats items\r\n", NOW_MS);
    for line in [
        "STAT get_hits 1\r\n",
        "STAT get_misses 1\r\n",
        "STAT curr_items 1\r\n",
        "STAT limit_maxbytes 262144\r\n",
    ] {
        assert!(reply.contains(line), "{line} in {reply}");
    }
    assert!(reply.ends_with("END\r\nEND\r\n"));
}

#[test]
fn meta_get() {
    check(&[
        ("mn\r\n", "MN\r\n"),
        ("mg a v\r\n", "EN\r\n"),
        ("mg a v k O7\r\n", "EN ka O7\r\n"),
        ("mg a v q\r\nmn\r\n", "MN\r\n"),
        ("set a 7 0 3\r\nabc\r\n", "STORED\r\n"),
        ("mg a\r\n", "HD\r\n"),
        ("mg a v\r\n", "VA 3\r\nabc\r\n"),
        ("mg a s v f c k Oxyz t\r\n", "VA 3 s3 f7 c1 ka Oxyz t-1\r\nabc\r\n"),
        ("mg a T60 t\r\n", "HD t60\r\n"),
        ("set b 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("mg b h u\r\nmg b h\r\nmg b h l\r\n", "HD h0\r\nHD h0\r\nHD h1 l0\r\n"),
        ("mg YQ== b k v\r\n", "VA 3 b kYQ==\r\nabc\r\n"),
        ("mg YQ= b v\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("mg a v Pignored Lalso\r\n", "VA 3\r\nabc\r\n"),
        ("mg a v v\r\n", "CLIENT_ERROR duplicate flag\r\n"),
        ("mg a !\r\n", "CLIENT_ERROR invalid flag\r\n"),
        ("mg a T\r\n", "CLIENT_ERROR bad token in command line format\r\n"),
        ("mg\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("mg a O123456789012345678901234567890123\r\n", "CLIENT_ERROR opaque token too long\r\n"),
        ("me nope\r\n", "EN\r\n"),
        ("me b\r\n", "ME b exp=-1 la=0 cas=2 fetch=yes cls=0 size=64\r\n"),
    ]);
}

#[test]
fn meta_set_delete_arithmetic() {
    check(&[
        ("ms a 2 T0 F5 c k O1\r\nhi\r\n", "HD c1 ka O1\r\n"),
        ("mg a v f\r\n", "VA 2 f5\r\nhi\r\n"),
        ("ms a 2 q\r\nho\r\nms a 1 ME q\r\nx\r\n", "NS\r\n"),
        ("ms a 1 MA\r\n!\r\nms a 1 MP\r\n>\r\nmg a v\r\n", "HD\r\nHD\r\nVA 4\r\n>ho!\r\n"),
        ("ms z 1 MR\r\nx\r\nms z 1 MX\r\nx\r\n", "NS\r\nCLIENT_ERROR invalid mode for ms\r\n"),
        ("ms a 1 C1\r\nx\r\nms z 1 C1\r\nx\r\n", "EX\r\nNF\r\n"),
        ("ms a x\r\n", "CLIENT_ERROR bad data chunk\r\n"),
        ("ms a 1 E5\r\nx\r\nmn\r\n", "CLIENT_ERROR invalid flag\r\nMN\r\n"),
        ("md a C1\r\nmd a q\r\nmd a q\r\nmd a O9 k\r\nmn\r\n", "EX\r\nNF\r\nNF O9 ka\r\nMN\r\n"),
        (
            "ma n\r\nma n q\r\nma n N0 J13 v\r\nma n v t c\r\n",
            "NF\r\nNF\r\nVA 2\r\n13\r\nVA 2 t-1 c6\r\n14\r\n",
        ),
        (
            "ma n MD D5 v\r\nma n M- D50 v\r\nma n M+ q\r\nma n v\r\n",
            "VA 1\r\n9\r\nVA 1\r\n0\r\nVA 1\r\n2\r\n",
        ),
        ("ma n C1\r\nma n MQ\r\nma n T30 t\r\n", "EX\r\nCLIENT_ERROR invalid mode for ma\r\nHD t30\r\n"),
    ]);
}

#[test]
fn stale_items_and_one_winner() {
    check(&[
        ("set a 0 0 1\r\nx\r\nmd a I T30\r\n", "STORED\r\nHD\r\n"),
        ("mg a v c t\r\nmg a v\r\n", "VA 1 c2 t30 W X\r\nx\r\nVA 1 X Z\r\nx\r\n"),
        // The winner of an older version may store, but leaves the item stale.
        (
            "ms a 1 C1 I\r\ny\r\nmg a v\r\nms a 1 C3\r\nz\r\nmg a v\r\n",
            "HD\r\nVA 1 W X\r\ny\r\nHD\r\nVA 1\r\nz\r\n",
        ),
        ("mg new v N30 t\r\nmg new v\r\n", "VA 0 t30 W\r\n\r\nVA 0 Z\r\n\r\n"),
        (
            "set soon 0 10 1\r\nx\r\nmg soon R5\r\nmg soon R30\r\nmg soon R30\r\n",
            "STORED\r\nHD\r\nHD W\r\nHD Z\r\n",
        ),
    ]);
}

/// Lines that make interesting streams when joined.
fn any_piece() -> impl Strategy<Value = Vec<u8>> {
    let fixed = prop::sample::select(vec![
        "get a b\r\n",
        "gets a\r\n",
        "get a",
        " b c\r\n",
        "gat 10 a\r\n",
        "set a 1 0 3\r\nabc\r\n",
        "set b 0 1 2\r\nxy\r\n",
        "set a 0 0 5000\r\n",
        "set a 0 0 3 noreply\r\nabc\r\n",
        "add c 0 0 1\r\n1\r\n",
        "incr c 5\r\n",
        "append a 0 0 2\r\nzz\r\n",
        "cas a 0 0 1 3\r\nq\r\n",
        "delete a\r\n",
        "touch a 5\r\n",
        "flush_all\r\n",
        "mg a v c k\r\n",
        "ms a 3 T9\r\nabc\r\n",
        "md a I\r\n",
        "ma c N0 J5 v\r\n",
        "me a\r\n",
        "mn\r\n",
        "set a 0 0 3\r\nabcdef\r\n",
        "set a 0 0 x\r\n",
        "\r\n",
        "\n",
        "\r",
        "nonsense\r\n",
        "stats items\r\n",
        "verbosity 1\r\n",
        "set a 0 0 1\nx\n",
        "set a 0 0 1\r\nx\r",
        "get \r\n",
        "gat x y\r\n",
    ]);
    prop_oneof![
        8 => fixed.prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 1..40),
        1 => (200usize..300).prop_map(|len| [&b"get "[..], &vec![b'k'; len], b"\r\n"].concat()),
        1 => (1usize..6000).prop_map(|len| vec![b'v'; len]),
    ]
}

/// Feeds `input` in chunks, offering unconsumed bytes again only as `wants_bytes` asks.
fn feed_chunks(input: &[u8], mut chunk_bytes: impl FnMut() -> usize) -> (Vec<u8>, bool) {
    let (mut partition, mut session, mut out, mut pending) =
        (store(), Session::new(), Vec::new(), Vec::new());
    let mut rest = input;
    while !rest.is_empty() && !session.is_closed() {
        let (chunk, later) = rest.split_at(chunk_bytes().clamp(1, rest.len()));
        pending.extend_from_slice(chunk);
        rest = later;
        if pending.len() >= session.wants_bytes() {
            let consumed = session.feed(&pending, &mut partition, NOW_MS, &mut out);
            pending.drain(..consumed);
        }
        assert!(
            pending.len() <= LINE_MAX_BYTES + VALUE_MAX_BYTES + 8,
            "a session keeps no more than one command waiting"
        );
    }
    (out, session.is_closed())
}

proptest! {
    #[test]
    fn bytes_one_by_one_mean_the_same_as_all_at_once(
        pieces in prop::collection::vec(any_piece(), 1..30), sizes in prop::collection::vec(1usize..200, 1..20)
    ) {
        let input = pieces.concat();
        let at_once = {
            let (mut partition, mut session, mut out) = (store(), Session::new(), Vec::new());
            session.feed(&input, &mut partition, NOW_MS, &mut out);
            (out, session.is_closed())
        };
        prop_assert_eq!(&feed_chunks(&input, || 1), &at_once);
        let mut turn = sizes.iter().cycle();
        prop_assert_eq!(&feed_chunks(&input, || *turn.next().unwrap()), &at_once);
    }
}
