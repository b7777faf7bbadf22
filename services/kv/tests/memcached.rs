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
    // Versions start at 1, so that the tables can contain them.
    Partition::new(config, 0).unwrap()
}

/// Feeds the complete input at once, which must be consumed, and returns the replies.
fn converse(partition: &mut Partition, input: &str, now_ms: u64) -> String {
    let (mut session, mut out) = (Session::new(), Vec::new());
    let consumed = session.feed(input.as_bytes(), partition, now_ms, &mut out);
    assert!(consumed == input.len() || session.is_closed(), "{input:?}: {consumed} of {} bytes", input.len());
    String::from_utf8(out).unwrap()
}

/// Runs a conversation of (sent, expected) on an empty store.
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
        ("set nl 0 0 4\na\r\nb\r\nget nl\n", "STORED\r\nVALUE nl 0 4\r\na\r\nb\r\nEND\r\n"),
        // A data block must end with both bytes.
        ("set nl 0 0 1\r\nx\nget nl\r\n", "CLIENT_ERROR bad data chunk\r\nVALUE nl 0 4\r\na\r\nb\r\nEND\r\n"),
        (" get nl\r\n   \r\n", "VALUE nl 0 4\r\na\r\nb\r\nEND\r\nERROR\r\n"),
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
    // The line contains the length of the block, so the block is skipped, and the error is sent after it.
    check(&[("cas a 0 0 1 x\r\nx\r\nmn\r\n", "CLIENT_ERROR bad command line format\r\nMN\r\n")]);
}

const VERSION: &str = concat!("VERSION 1.6.18-farcall-", env!("CARGO_PKG_VERSION"), "\r\n");

#[test]
fn counters() {
    check(&[
        ("incr n 1\r\ndecr n 1\r\n", "NOT_FOUND\r\nNOT_FOUND\r\n"),
        ("set n 3 0 1\r\n9\r\nincr n 1\r\nget n\r\n", "STORED\r\n10\r\nVALUE n 3 2\r\n10\r\nEND\r\n"),
        ("decr n 1\r\nget n\r\n", "9\r\nVALUE n 3 2\r\n9 \r\nEND\r\n"),
        ("incr n 1\r\ndecr n 1\r\nincr n 0\r\ndecr n 100\r\n", "10\r\n9\r\n9\r\n0\r\n"),
        ("incr n 18446744073709551615\r\nincr n 2\r\n", "18446744073709551615\r\n1\r\n"),
        ("incr n x\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n"),
        ("incr n -1\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n"),
        ("incr n\r\n", "ERROR\r\n"),
        (
            "set w 0 0 1\r\nw\r\nincr w 1\r\n",
            "STORED\r\nCLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
        ),
        ("incr n 1 noreply\r\nget n\r\n", "VALUE n 3 20\r\n2                   \r\nEND\r\n"),
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
fn noreply_silences_refusals_as_memcached_does() {
    let long = "k".repeat(251);
    check(&[
        ("set a x 0 1 noreply\r\nx\r\nset a 0 x 1 noreply\r\nx\r\nmn\r\n", "MN\r\n"),
        ("cas a 0 0 1 x noreply\r\nx\r\nset a 0 0 1 noreply\r\nxyz\r\nmn\r\n", "MN\r\n"),
        ("set a 0 0 -1 noreply\r\nset a 0 0 x noreply\r\nmn\r\n", "MN\r\n"),
        (&format!("set {long} 0 0 1 noreply\r\nx\r\ndelete {long} noreply\r\nmn\r\n"), "MN\r\n"),
        ("delete a 5 noreply\r\ntouch a x noreply\r\nincr a x noreply\r\nmn\r\n", "MN\r\n"),
        ("set w 0 0 1\r\nw\r\nincr w 1 noreply\r\nmn\r\n", "STORED\r\nMN\r\n"),
        ("flush_all x noreply\r\nflush_all noreply noreply\r\nverbosity x noreply\r\nmn\r\n", "MN\r\n"),
        // A wrong number of fields is reported.
        ("set noreply\r\ndelete noreply 0 0 noreply\r\nincr noreply\r\n", "ERROR\r\nERROR\r\nERROR\r\n"),
        ("set a 0 0 1 noreply more\r\nverbosity\r\n", "ERROR\r\nERROR\r\n"),
        // The meta commands have no such field, and a quiet command reports its faults.
        (
            "mg a noreply\r\nms a 1 q q\r\nx\r\nmn\r\n",
            "CLIENT_ERROR invalid flag\r\nCLIENT_ERROR duplicate flag\r\nMN\r\n",
        ),
    ]);
}

#[test]
fn http_ends_the_connection_before_anything_of_it_is_executed() {
    for request in
        ["POST / HTTP/1.1", "GET / HTTP/1.0", "PRI * HTTP/2.0", "DELETE HTTP/1.1", "SET x HTTP/1.1 "]
    {
        let (mut partition, sent) = (store(), format!("mn\r\n{request}\r\nset evil 0 0 1\r\nx\r\n"));
        assert_eq!(converse(&mut partition, &sent, NOW_MS), "MN\r\n", "{request}");
        assert_eq!(converse(&mut partition, "get evil\r\n", NOW_MS), "END\r\n", "{request}");
    }
    check(&[("POST /\r\nget HTTP/1.1\r\n", "ERROR\r\nEND\r\n")]);
}

#[test]
fn refuses_the_binary_protocol_in_its_format() {
    let (mut session, mut out) = (Session::new(), Vec::new());
    let get = [&[0x80, 0x0C, 0, 1][..], &[0; 8], b"same", &[0; 8], b"k"].concat();
    assert_eq!(session.feed(&get[..23], &mut store(), NOW_MS, &mut out), 0);
    session.feed(&get, &mut store(), NOW_MS, &mut out);
    let text = b"SERVER_ERROR the binary protocol is not spoken here: use the text protocol";
    let header =
        [&[0x81, 0x0C, 0, 0, 0, 0, 0, 0x83, 0, 0, 0, text.len() as u8][..], b"same", &[0; 8]].concat();
    assert_eq!(out, [&header[..], text].concat());
    assert!(session.is_closed());
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
    assert_eq!(at(0, "gat 1\r\ngat 1 \r\n"), "END\r\nEND\r\n");
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
        ("set a 0 0 -1\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("set a 0 0 2147483646\r\nmn\r\n", "CLIENT_ERROR bad command line format\r\nMN\r\n"),
        ("set a 0 0 1\r\nxyz\r\nmn\r\n", "CLIENT_ERROR bad data chunk\r\nMN\r\n"),
        ("set a 0 0 18446744073709551616\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("touch a\r\n", "ERROR\r\n"),
        ("verbosity\r\n", "ERROR\r\n"),
        ("verbosity x\r\nverbosity 1\r\n", "CLIENT_ERROR bad command line format\r\nOK\r\n"),
        ("slabs automove 1\r\nslabs automove 3\r\nslabs\r\n", "OK\r\nERROR\r\nERROR\r\n"),
        ("slabs automove x\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("slabs reassign 1 2\r\n", "CLIENT_ERROR slab reassignment disabled\r\n"),
        ("cache_memlimit 7\r\n", "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n"),
        ("cache_memlimit 64\r\n", "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n"),
        ("cache_memlimit 64 noreply\r\ncache_memlimit x\r\n", "ERROR\r\n"),
        ("cache_memlimit 1000000001\r\n", "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n"),
        ("lru_crawler enable\r\nlru_crawler metadump 2\r\n", "ERROR\r\nBADCLASS invalid class id\r\n"),
        // A line of keys is refused completely.
        (&format!("get a {long}\r\nmn\r\n"), "CLIENT_ERROR bad command line format\r\nMN\r\n"),
        ("stats nonsense\r\n", "ERROR\r\n"),
        (
            "shutdown\r\nshutdown graceful\r\n",
            "ERROR: shutdown not enabled\r\nERROR: shutdown not enabled\r\n",
        ),
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
fn discards_an_oversized_value_and_the_one_it_replaces() {
    const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";
    let mut partition = store();
    let (most, more) = ("m".repeat(VALUE_MAX_BYTES), "M".repeat(VALUE_MAX_BYTES + 1));
    let most_len = most.len();
    let mut check = |sent: String, expected: &str| {
        assert_eq!(converse(&mut partition, &sent, NOW_MS), expected, "after {:.40}", sent);
    };
    check(
        format!("set a 0 0 {most_len}\r\n{most}\r\nappend a 0 0 1\r\nx\r\n"),
        &format!("STORED\r\n{TOO_LARGE}"),
    );
    for refused in ["add a 0 0", "replace a 0 0", "append a 0 0"] {
        check(format!("{refused} {}\r\n{more}\r\n", more.len()), TOO_LARGE);
    }
    check(format!("cas a 0 0 {} 1\r\n{more}\r\n", more.len()), TOO_LARGE);
    check("get a\r\n".into(), &format!("VALUE a 0 {most_len}\r\n{most}\r\nEND\r\n"));
    check(format!("set a 0 0 {}\r\n{more}\r\nget a\r\n", more.len()), &format!("{TOO_LARGE}END\r\n"));
    check("set b 0 0 1\r\nx\r\n".into(), "STORED\r\n");
    check(format!("set b 0 0 {} noreply\r\n{more}\r\nget b\r\n", more.len()), "END\r\n");
    check("set YQ== 0 0 1\r\nx\r\nset a 0 0 1\r\nx\r\n".into(), "STORED\r\nSTORED\r\n");
    check(
        format!("ms YQ== {} b\r\n{more}\r\nget YQ==\r\nget a\r\n", more.len()),
        &format!("{TOO_LARGE}VALUE YQ== 0 1\r\nx\r\nEND\r\nEND\r\n"),
    );
}

#[test]
fn skips_a_line_that_is_longer_than_a_command() {
    let junk = "x".repeat(LINE_MAX_BYTES + 100);
    check(&[(&format!("{junk}\r\nmn\r\n{junk} noreply\r\nmn\r\n"), "ERROR\r\nMN\r\nERROR\r\nMN\r\n")]);
    let (mut partition, sent) = (store(), format!("GET /{junk} HTTP/1.1\r\nset evil 0 0 1\r\nx\r\n"));
    for chunk_bytes in [sent.len(), 1, 100, 2047] {
        let (mut session, mut out, mut pending) = (Session::new(), Vec::new(), Vec::new());
        for chunk in sent.as_bytes().chunks(chunk_bytes) {
            pending.extend_from_slice(chunk);
            let consumed = session.feed(&pending, &mut partition, NOW_MS, &mut out);
            pending.drain(..consumed);
            assert!(pending.len() <= LINE_MAX_BYTES + chunk_bytes);
        }
        assert!(session.is_closed() && out.is_empty(), "{chunk_bytes}");
    }
    assert_eq!(converse(&mut partition, "get evil\r\n", NOW_MS), "END\r\n");
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
    assert_eq!(converse(&mut partition, "stats items\r\n", NOW_MS), "END\r\n");
    let sent = "set a 0 0 1\r\nx\r\nget a b\r\nstats\r\nstats items\r\nstats slabs\r\nstats settings\r\nstats sizes\r\n";
    let reply = converse(&mut partition, sent, NOW_MS);
    for line in [
        "STAT get_hits 1\r\n",
        "STAT get_misses 1\r\n",
        "STAT incr_hits 0\r\n",
        "STAT decr_misses 0\r\n",
        "STAT rusage_user 0.",
        "STAT curr_items 1\r\n",
        "STAT limit_maxbytes 262144\r\n",
        "STAT items:1:number 1\r\n",
        "STAT 1:used_chunks 1\r\n",
        "STAT maxbytes 262144\r\n",
        "STAT sizes_status disabled\r\n",
    ] {
        assert!(reply.contains(line), "{line} in {reply}");
    }
    assert_eq!(reply.matches("END\r\n").count(), 6);
    let reply = converse(&mut partition, "stats reset\r\nstats\r\n", NOW_MS);
    for line in
        ["RESET\r\n", "STAT get_hits 0\r\n", "STAT curr_items 1\r\n", "STAT limit_maxbytes 262144\r\n"]
    {
        assert!(reply.contains(line), "{line} in {reply}");
    }
}

/// Replies as from memcached 1.6.18 to the same lines, except for the order of its prefixes.
#[test]
fn what_commands_do_to_each_prefix_of_keys_is_counted_on_demand() {
    const USAGE: &str = "CLIENT_ERROR usage: stats detail on|off|dump\r\n";
    check(&[
        ("stats detail\r\nstats detail foo\r\n", &USAGE.repeat(2)),
        ("get a:1\r\nstats detail dump\r\nstats detail on\r\n", "END\r\nEND\r\nOK\r\n"),
        (
            "set a:1 0 0 1\r\nx\r\nget a:1 a:2 b:1 none :x a:b:c\r\n",
            "STORED\r\nVALUE a:1 0 1\r\nx\r\nEND\r\n",
        ),
        (
            "stats detail dump\r\n",
            "PREFIX  get 1 hit 0 set 0 del 0\r\nPREFIX a get 3 hit 1 set 1 del 0\r\n\
             PREFIX b get 1 hit 0 set 0 del 0\r\nEND\r\n",
        ),
        // Sets and deletes count with any result; counters, touches and meta commands do not.
        ("stats reset\r\ndelete q:1\r\nadd a:1 0 0 1\r\nx\r\n", "RESET\r\nNOT_FOUND\r\nNOT_STORED\r\n"),
        ("cas c:1 0 0 1 1\r\nx\r\ngat 0 a:1 g:1\r\n", "NOT_FOUND\r\nVALUE a:1 0 1\r\nx\r\nEND\r\n"),
        ("incr i:1 1\r\ntouch t:1 0\r\nmg a:9 v\r\nmd m:1\r\n", "NOT_FOUND\r\nNOT_FOUND\r\nEN\r\nNF\r\n"),
        (
            &format!("set big:1 0 0 9999\r\n{}\r\n", "x".repeat(9999)),
            "SERVER_ERROR object too large for cache\r\n",
        ),
        ("stats detail off\r\nget a:1 z:1\r\n", "OK\r\nVALUE a:1 0 1\r\nx\r\nEND\r\n"),
        (
            "stats detail dump\r\n",
            "PREFIX a get 1 hit 1 set 1 del 0\r\nPREFIX big get 0 hit 0 set 1 del 0\r\n\
             PREFIX c get 0 hit 0 set 1 del 0\r\nPREFIX g get 1 hit 0 set 0 del 0\r\n\
             PREFIX q get 0 hit 0 set 0 del 1\r\nEND\r\n",
        ),
    ]);
}

#[test]
fn prefixes_beyond_a_bound_are_counted_together() {
    let mut partition = store();
    converse(&mut partition, "stats detail on\r\n", NOW_MS);
    for number in 0..3_000 {
        converse(&mut partition, &format!("get {number}:1\r\n"), NOW_MS);
    }
    converse(&mut partition, "get 7:1\r\n", NOW_MS);
    let reply = converse(&mut partition, "stats detail dump\r\n", NOW_MS);
    assert_eq!(reply.lines().count(), 1024 + 2);
    assert!(reply.contains("PREFIX 7 get 2 hit") && reply.contains("PREFIX * get 1976 hit"), "{reply}");
}

#[test]
fn metadump_lists_every_live_item_once() {
    let mut partition = store();
    partition.set_wall(NOW_MS + 5_000, NOW_MS);
    let stores = (0..500).map(|n| format!("set key{n} 0 0 1 noreply\r\nx\r\n")).collect::<String>();
    converse(&mut partition, &format!("{stores}set gone 0 -1 1\r\nx\r\nset a%b 0 60 1\r\nx\r\n"), NOW_MS);
    let reply = converse(&mut partition, "lru_crawler metadump all\r\nmn\r\n", NOW_MS);
    let short = converse(&mut partition, "stats cachedump 1 3\r\n", NOW_MS);
    assert!(short.starts_with("ITEM key") && short.contains(" [1 b; 0 s]\r\n"), "{short}");
    assert_eq!((short.lines().count(), short.lines().last()), (4, Some("END")));
    assert_eq!(converse(&mut partition, "stats cachedump 1 0\r\n", NOW_MS).lines().count(), 502);
    let refused = converse(
        &mut partition,
        "stats cachedump 1\r\nstats cachedump 1 x\r\nstats cachedump 64 1\r\n",
        NOW_MS,
    );
    assert_eq!(refused.matches("CLIENT_ERROR").count(), 3);
    let mut lines: Vec<&str> = reply.lines().collect();
    assert_eq!(lines.split_off(lines.len() - 2), ["END", "MN"]);
    lines.sort_unstable();
    let now_s = NOW_MS / 1000 + 5;
    assert_eq!(lines[0], format!("key=a%25b exp={} la={now_s} cas=502 fetch=no cls=1 size=64", now_s + 60));
    let mut keys: Vec<String> = (0..500).map(|n| format!("key=key{n}")).collect();
    keys.sort_unstable();
    assert_eq!(lines[1..].iter().map(|line| line.split(' ').next().unwrap()).collect::<Vec<_>>(), keys);
}

#[test]
fn expires_nothing_when_the_wall_clock_is_set() {
    let mut partition = store();
    let stored = "set relative 0 60 1\r\nx\r\nset absolute 0 10000060 1\r\nx\r\nset endless 0 0 1\r\nx\r\n";
    let (now_ms, hour_ms) = (10_000_000_000, 3_600_000);
    converse(&mut partition, stored, now_ms);
    let get = "get relative absolute\r\n";
    let both = "VALUE relative 0 1\r\nx\r\nVALUE absolute 0 1\r\nx\r\nEND\r\n";
    for wall_ms in [now_ms + hour_ms, now_ms - hour_ms] {
        partition.set_wall(wall_ms, now_ms);
        assert_eq!(converse(&mut partition, get, now_ms + 59_999), both);
        // An expiration time given as a Unix time refers to the wall clock.
        let unix_s = wall_ms / 1000 + 10;
        let told = converse(&mut partition, &format!("ms told 1 T{unix_s}\r\nx\r\nmg told t\r\n"), now_ms);
        assert_eq!(told, "HD\r\nHD t10\r\n");
        assert!(converse(&mut partition, "stats\r\n", now_ms).contains("STAT curr_items 4\r\n"));
    }
    assert_eq!(
        converse(&mut partition, &format!("flush_all {}\r\n", now_ms / 1000 - 3500), now_ms),
        "OK\r\n"
    );
    assert_eq!(converse(&mut partition, get, now_ms + 59_999), both);
    assert_eq!(converse(&mut partition, "mg endless\r\n", now_ms + 99_999), "HD\r\n");
    assert_eq!(converse(&mut partition, "mg endless\r\n", now_ms + 100_000), "EN\r\n");
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
        ("mg YQ== b k v\r\n", "VA 3 kYQ== b\r\nabc\r\n"),
        ("mg YQ== b O1 k v\r\nmg Zg== k O1 b\r\n", "VA 3 O1 kYQ== b\r\nabc\r\nEN kZg== b O1\r\n"),
        ("mg YQ= b v\r\n", "CLIENT_ERROR error decoding key\r\n"),
        ("mg YR== b v k\r\n", "VA 3 kYQ== b\r\nabc\r\n"),
        ("mg = b v\r\n", "CLIENT_ERROR error decoding key\r\n"),
        (&format!("mg {} b v\r\n", "A".repeat(336)), "CLIENT_ERROR bad command line format\r\n"),
        ("mg a v Pignored Lalso\r\n", "VA 3\r\nabc\r\n"),
        ("mg a v v\r\n", "CLIENT_ERROR duplicate flag\r\n"),
        ("mg a !\r\n", "CLIENT_ERROR invalid flag\r\n"),
        ("mg a T\r\n", "CLIENT_ERROR bad token in command line format\r\n"),
        ("mg\r\nme\r\n", "ERROR\r\nCLIENT_ERROR bad command line format\r\n"),
        (
            "mg a C1 D1 F1 I J1 MX\r\nmg a E1\r\nmg a Dx\r\n",
            "HD\r\nCLIENT_ERROR invalid flag\r\nCLIENT_ERROR invalid numeric delta value\r\n",
        ),
        ("mg a b c f h k l q s t u v C1 F1 I O1 P L R1\r\n", "CLIENT_ERROR options flags are too long\r\n"),
        ("mg a O1234567890123456789012345678901\r\n", "HD O1234567890123456789012345678901\r\n"),
        ("mg a O12345678901234567890123456789012\r\n", "CLIENT_ERROR opaque token too long\r\n"),
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
        ("ms a 2 q\r\nho\r\nms a 1 ME q c\r\nx\r\n", "NS c0\r\n"),
        (
            "ms a 1 Me\r\nx\r\nms a 1 MEE\r\nx\r\n",
            "CLIENT_ERROR invalid mode for ms M token\r\nCLIENT_ERROR incorrect length for M token\r\n",
        ),
        (
            "ms a 1 S100\r\nx\r\nmd a v v\r\n",
            "CLIENT_ERROR invalid flag\r\nCLIENT_ERROR invalid or duplicate flag\r\n",
        ),
        ("ms a 1 MA\r\n!\r\nms a 1 MP\r\n>\r\nmg a v\r\n", "HD\r\nHD\r\nVA 4\r\n>ho!\r\n"),
        ("ms z 1 MR\r\nx\r\nms z 1 MX\r\nx\r\n", "NS\r\nCLIENT_ERROR invalid mode for ms M token\r\n"),
        ("ms a 1 C1\r\nx\r\nms z 1 C1\r\nx\r\n", "EX\r\nNF\r\n"),
        (
            "ms a 1 C1 ME\r\nx\r\nms z 1 C1 MA\r\nx\r\nms z 1 C1 ME\r\nx\r\nmd z\r\n",
            "NS\r\nNS\r\nHD\r\nHD\r\n",
        ),
        ("ms a x\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("ms a 1 E5\r\nx\r\nmn\r\n", "CLIENT_ERROR invalid flag\r\nMN\r\n"),
        ("md a C1\r\nmd a q\r\nmd a q\r\nmd a O9 k\r\nmn\r\n", "EX\r\nNF\r\nNF O9 ka\r\nMN\r\n"),
        (
            "ma n\r\nma n q\r\nma n N0 J13 v\r\nma n v t c\r\n",
            "NF\r\nNF\r\nVA 2\r\n13\r\nVA 2 t-1 c7\r\n14\r\n",
        ),
        (
            "ma n MD D5 v\r\nma n M- D50 v\r\nma n M+ q\r\nma n v\r\n",
            "VA 1\r\n9\r\nVA 1\r\n0\r\nVA 1\r\n2\r\n",
        ),
        (
            "ma n C1\r\nma n MQ\r\nma n T30 t\r\n",
            "EX\r\nCLIENT_ERROR invalid mode for ma M token\r\nHD t30\r\n",
        ),
        ("ma n C0 t T0 q\r\nma n C0 t T9\r\nma n\r\n", "HD t-1\r\nHD\r\n"),
        ("ma new N60 J7 q v t\r\nma new N60 J7 v\r\n", "VA 1 t60\r\n7\r\nVA 1\r\n8\r\n"),
        ("ma other t N60 q v\r\nma late N60 T30 t\r\n", "VA 1 t-1\r\n0\r\nHD t30\r\n"),
        (
            "ms z 1 C0\r\nx\r\nset z 0 0 1\r\nx\r\nms z 1 C0 MA\r\ny\r\nms z 1 C0\r\ny\r\n",
            "NF\r\nSTORED\r\nHD\r\nEX\r\n",
        ),
    ]);
}

#[test]
fn stale_items_and_one_winner() {
    check(&[
        ("set a 0 0 1\r\nx\r\nmd a I T30\r\n", "STORED\r\nHD\r\n"),
        ("mg a v c t\r\nmg a v\r\n", "VA 1 c2 t30 X W\r\nx\r\nVA 1 Z X\r\nx\r\n"),
        // The winner of an older version may store a value, but the item stays stale, keeps its time, and has no
        // further winner.
        ("ms a 1 C1 I T90\r\ny\r\nmg a v t\r\n", "HD\r\nVA 1 t30 Z X\r\ny\r\n"),
        ("ms a 1 C1 I MA\r\ny\r\nms a 1 C9 I\r\ny\r\n", "EX\r\nEX\r\n"),
        ("ms a 1 C3\r\nz\r\nmg a v t\r\n", "HD\r\nVA 1 t-1\r\nz\r\n"),
        // If no caller was instructed to refresh it, one still will be.
        ("md a I\r\nms a 1 C4 I\r\n5\r\nmg a\r\nmg a\r\n", "HD\r\nHD\r\nHD X W\r\nHD Z X\r\n"),
        ("incr a 1\r\nmg a\r\nincr a 100\r\nma a\r\nmg a\r\n", "6\r\nHD Z X\r\n106\r\nHD\r\nHD Z X\r\n"),
        ("mg new v t N30 t\r\nmg new v\r\n", "CLIENT_ERROR duplicate flag\r\nEN\r\n"),
        ("mg new v N30 t\r\nmg new v T60\r\n", "VA 0 t30 W\r\n\r\nVA 0 Z\r\n\r\n"),
        ("mg old t N30\r\nmg old t T90\r\nmg old t\r\n", "HD t-1 W\r\nHD t30 Z\r\nHD t90 Z\r\n"),
        (
            "set soon 0 10 1\r\nx\r\nmg soon R5\r\nmg soon R30\r\nmg soon R30\r\n",
            "STORED\r\nHD\r\nHD W\r\nHD Z\r\n",
        ),
    ]);
}

/// Generates lines that form relevant streams when joined.
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
        "lru_crawler metadump all\r\n",
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

/// Feeds `input` in chunks, and passes in unconsumed bytes again only as `wants_bytes` requires.
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
