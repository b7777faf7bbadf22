//! Sends the same random commands to memcached and to a session of this package, and compares the replies and
//! statistics.
//!
//! `FARCALL_MEMCACHED_SEEDS`: number of sequences, 100 by default. `FARCALL_TEST_SEED`: runs a single sequence, whose
//! number a failure prints.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farcall_kv::memcached::Session;
use farcall_kv::store::{Config, Partition};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Version of memcached with which the replies are compared. Other versions reply differently.
const VERSION: &str = "1.6.18";
const SEEDS: u64 = 100;
const COMMANDS_PER_SEED: usize = 80;

/// Statistics that must be equal after each sequence.
const COUNTERS: [&str; 18] = [
    "cmd_get",
    "cmd_set",
    "cmd_flush",
    "cmd_touch",
    "get_hits",
    "get_misses",
    "delete_hits",
    "delete_misses",
    "incr_hits",
    "incr_misses",
    "decr_hits",
    "decr_misses",
    "cas_hits",
    "cas_misses",
    "cas_badval",
    "touch_hits",
    "touch_misses",
    "store_too_large",
];

/// memcached with one thread on a Unix socket in a temporary directory; killed when dropped.
struct Memcached {
    child: Child,
    folder: PathBuf,
    socket: UnixStream,
}

impl Memcached {
    /// Starts memcached. Returns `None` and prints the reason if it is not installed, or is another version.
    fn start(name: &str) -> Option<Self> {
        let version = match Command::new("memcached").arg("-V").output() {
            Err(error) if error.kind() == ErrorKind::NotFound => "none".to_owned(),
            found => String::from_utf8_lossy(&found.unwrap().stdout).trim().to_owned(),
        };
        if version != format!("memcached {VERSION}") {
            eprintln!("SKIPPED: memcached {VERSION} is not installed; found: {version}");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("farcall-kv-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("socket");
        let mut command = Command::new("memcached");
        // Without the threads that walk the items: while one holds an item, `incr` does not pad numbers.
        let options = ["-m", "64", "-t", "1", "-o", "no_lru_maintainer,no_lru_crawler"];
        command.arg("-s").arg(&path).args(options).stdin(Stdio::null());
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        let child = command.spawn().unwrap();
        let begun = Instant::now();
        let socket = loop {
            match UnixStream::connect(&path) {
                Ok(socket) => break socket,
                Err(error) => assert!(begun.elapsed() < Duration::from_secs(60), "memcached: {error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut memcached = Self { child, folder, socket };
        // No later item has version 1.
        assert_eq!(memcached.ask(b"set a 0 0 0\r\n\r\ndelete a\r\n"), b"STORED\r\nDELETED\r\n");
        Some(memcached)
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A command and its reply, which is unique: it follows the replies to all earlier commands.
const MARK: (&[u8], &[u8]) = (b"mg no-such-key O~mark~\r\n", b"EN O~mark~\r\n");

trait Server {
    fn ask(&mut self, sent: &[u8]) -> Vec<u8>;

    fn counters(&mut self) -> HashMap<String, u64> {
        let text = String::from_utf8(self.ask(b"stats\r\n")).unwrap();
        let counters = text.lines().filter_map(|line| {
            let (name, value) = line.strip_prefix("STAT ")?.split_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        counters.collect()
    }
}

impl Server for Memcached {
    fn ask(&mut self, sent: &[u8]) -> Vec<u8> {
        self.socket.write_all(&[sent, MARK.0].concat()).unwrap();
        let (mut reply, mut part) = (Vec::new(), [0; 1 << 16]);
        while !reply.ends_with(MARK.1) {
            let got = self.socket.read(&mut part).unwrap_or_else(|error| panic!("{}: {error}", show(sent)));
            assert!(got > 0, "memcached closed the connection after {}", show(sent));
            reply.extend_from_slice(&part[..got]);
        }
        reply.truncate(reply.len() - MARK.1.len());
        reply
    }
}

struct Ours {
    partition: Partition,
    session: Session,
}

impl Ours {
    fn new() -> Self {
        let config = Config { limit_bytes: 64 << 20, ..Config::default() };
        Self { partition: Partition::new(config, now_ms()).unwrap(), session: Session::new() }
    }
}

impl Server for Ours {
    fn ask(&mut self, sent: &[u8]) -> Vec<u8> {
        let (all, mut out) = ([sent, MARK.0].concat(), Vec::new());
        let used = self.session.feed(&all, &mut self.partition, now_ms(), &mut out);
        assert!(used == all.len() && out.ends_with(MARK.1), "after {}: {}", show(sent), show(&out));
        out.truncate(out.len() - MARK.1.len());
        out
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn show(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(300)];
    format!("{:?} ({} bytes)", String::from_utf8_lossy(shown), bytes.len())
}

const KEYS: [&str; 8] = ["a", "b", "c", "d", "Zm9v", "enM=", "key\x01", "kéy"];

/// Valid and invalid base64 keys; decoded, they differ from all others. Characters outside the alphabet are left out:
/// see `DELIBERATE`.
const BASE64_KEYS: [&str; 7] = ["Zm9v", "enM=", "enN=", "eg==", "eg", "e", "="];

const VALUES: [&str; 20] = [
    "",
    "0",
    "1",
    "9",
    "10",
    "99 ",
    "99  ",
    " 5",
    "5x",
    "007",
    "abc",
    "1 1",
    "5\r\n",
    "x\ny",
    "~",
    "18446744073709551615",
    "18446744073709551616",
    "0000000000000000000000001",
    "1111111111111111111111111",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
];

/// Lines that are complete commands.
const LINES: [&str; 40] = [
    "",
    "foo",
    "get",
    "gets",
    "gat",
    "gat x",
    "gat x a",
    "gat 0",
    "gats 1000",
    "set",
    "incr",
    "touch",
    "touch a",
    "delete",
    "cas",
    "mg",
    "ms",
    "md",
    "ma",
    "me",
    "ms a",
    "ms a x",
    "ms a -1",
    "mn",
    "m",
    "GET a",
    " get a",
    "get\ta",
    "stats x",
    "stats detail x",
    "stats cachedump",
    "verbosity",
    "verbosity x",
    "verbosity 1 x",
    "verbosity 1 noreply",
    "cache_memlimit",
    "cache_memlimit x",
    "slabs",
    "lru_crawler",
    "shutdown",
];

struct Generator {
    random: ChaCha8Rng,
}

impl Generator {
    fn pick(&mut self, from: &[&str]) -> String {
        (*from.choose(&mut self.random).unwrap()).to_owned()
    }

    fn one_in(&mut self, of: u32) -> bool {
        self.random.random_range(0..of) == 0
    }

    fn key(&mut self) -> String {
        match self.random.random_range(0..40) {
            0 => "k".repeat(250),
            1 => "k".repeat(251),
            _ => self.pick(&KEYS),
        }
    }

    /// Returns a key of valid length. The refusal of a storage line is a deliberate difference; and memcached counts
    /// the valid keys of a refused line.
    fn legal_key(&mut self) -> String {
        let key = self.key();
        if key.len() > 250 { "a".to_owned() } else { key }
    }

    fn number(&mut self) -> String {
        self.pick(&[
            "0",
            "1",
            "5",
            "7",
            "10",
            "100",
            "18446744073709551615",
            "18446744073709551616",
            "x",
            "01",
            "1x",
        ])
    }

    fn expiry(&mut self) -> String {
        if self.one_in(10) {
            return (now_ms() / 1000 + 5_000).to_string();
        }
        self.pick(&["0", "0", "0", "1000", "2592000", "2592001", "-1", "-100"])
    }

    fn noreply(&mut self) -> &'static str {
        if self.one_in(8) { " noreply" } else { "" }
    }

    /// Generates one command with its data; `{cas}` is a placeholder for a version.
    fn command(&mut self) -> Vec<u8> {
        let end = if self.one_in(10) { "\n" } else { "\r\n" };
        let line = match self.random.random_range(0..20) {
            0..4 => return self.store(end),
            4..7 => {
                let (verb, keys) = (self.pick(&["get", "gets"]), self.random.random_range(1..5));
                (0..keys).fold(verb, |line, _| line + " " + &self.legal_key())
            }
            7 => {
                let verb = self.pick(&["gat", "gats"]) + " " + &self.expiry();
                (0..self.random.random_range(0..3)).fold(verb, |line, _| line + " " + &self.legal_key())
            }
            8 => {
                let more = self.pick(&["", "", "", " 0", " 5", " noreply", " 0 noreply", " x", " 0 0"]);
                format!("delete {}{more}", self.key())
            }
            9 | 10 => {
                let verb = self.pick(&["incr", "decr"]);
                format!("{verb} {} {}{}", self.key(), self.number(), self.noreply())
            }
            11 => {
                let time = if self.one_in(8) { "x".to_owned() } else { self.expiry() };
                format!("touch {} {time}{}", self.key(), self.noreply())
            }
            12 if self.one_in(4) => self.pick(&["flush_all", "flush_all 0", "flush_all noreply"]),
            12 => self.pick(&LINES),
            _ => return self.meta(end),
        };
        (line + end).into_bytes()
    }

    fn store(&mut self, end: &str) -> Vec<u8> {
        let verb = self.pick(&["set", "set", "add", "replace", "append", "prepend", "cas"]);
        let flags = self.pick(&["0", "0", "5", "4294967295"]);
        let key = self.legal_key();
        let version = match &*verb {
            "cas" => " ".to_owned() + &self.version(),
            _ => String::new(),
        };
        let value = self.value();
        let mut sent = format!("{verb} {key} {flags} {} {}{version}", self.expiry(), value.len());
        let _ = write!(sent, "{}{end}{value}\r\n", self.noreply());
        sent.into_bytes()
    }

    fn value(&mut self) -> String {
        if self.one_in(60) { "z".repeat(1 << 21) } else { self.pick(&VALUES) }
    }

    fn version(&mut self) -> String {
        self.pick(&["{cas}", "{cas}", "{cas}", "0", "1"])
    }

    fn meta(&mut self, end: &str) -> Vec<u8> {
        let verb = self.pick(&["mg", "mg", "mg", "ms", "ms", "md", "ma", "ma", "me"]);
        let mut letters: Vec<u8> = match &*verb {
            "mg" => b"bcfhklOqstuvNRTPL".to_vec(),
            "ms" => b"bcCFIkOqTMPL".to_vec(),
            "md" => b"bCIkOqTPL".to_vec(),
            "ma" => b"bcCDJkMNOqtTvPL".to_vec(),
            _ => Vec::new(),
        };
        if verb != "me" && self.one_in(12) {
            letters = b"bcfhklOqstuvNRTPLCFIMDJESz!".to_vec();
        }
        let mut flags: Vec<String> = Vec::new();
        let count = self.random.random_range(0..7.min(letters.len() + 1));
        let chosen: Vec<u8> = letters.sample(&mut self.random, count).copied().collect();
        for letter in chosen {
            let flag = self.flag(&verb, letter);
            flags.push(flag);
        }
        if !flags.is_empty() && self.one_in(20) {
            let again = flags.choose(&mut self.random).unwrap().clone();
            flags.push(again);
        }
        let is_base64 = flags.iter().any(|flag| flag.starts_with('b'));
        // In memcached an item created by a lookup has no base64 mark: see `DELIBERATE`.
        flags.retain(|flag| !is_base64 || !flag.starts_with('N'));
        let key = match &*verb {
            _ if is_base64 => self.pick(&BASE64_KEYS),
            "ms" => self.legal_key(),
            _ => self.key(),
        };
        let (mut length, mut block) = (String::new(), String::new());
        if verb == "ms" {
            let value = self.value();
            (length, block) = (format!(" {}", value.len()), value + "\r\n");
        }
        let flags: String = flags.iter().map(|flag| format!(" {flag}")).collect();
        format!("{verb} {key}{length}{flags}{end}{block}").into_bytes()
    }

    fn flag(&mut self, verb: &str, letter: u8) -> String {
        let argument = match letter {
            b'N' => self.pick(&["0", "30", "1000", "x"]),
            b'T' => self.pick(&["0", "30", "1000", "1000", "x", ""]),
            // Different from all times that items have, because a comparison would depend on the fraction of the
            // clock.
            b'R' => self.pick(&["0", "20", "600", "x", ""]),
            b'C' => self.version(),
            b'F' => self.pick(&["0", "7", "4294967295", "x"]),
            b'D' | b'J' => self.number(),
            b'M' if verb == "ma" => self.pick(&["I", "D", "+", "-", "i", "E", "", "II"]),
            b'M' => self.pick(&["E", "A", "P", "R", "S", "S", "e", "I", "", "SS"]),
            b'O' => self.pick(&["1", "abc", "", "opaque-token-of-31-bytes-length"]),
            b'P' | b'L' => self.pick(&["", "x"]),
            _ => String::new(),
        };
        format!("{}{argument}", char::from(letter))
    }
}

/// Pairs of versions that both servers gave to the same item.
#[derive(Default)]
struct Versions {
    pairs: Vec<[String; 2]>,
    ours: HashMap<String, String>,
}

impl Versions {
    /// Returns whether `theirs` and `ours` are the same version, if they are versions. `ours` are large numbers.
    fn agree(&mut self, theirs: &str, ours: &str) -> bool {
        let is_version = |text: &str, from| text.parse::<u64>().is_ok_and(|number| number >= from);
        if !is_version(theirs, 1) || !is_version(ours, 1 << 59) {
            return false;
        }
        let known = self.ours.entry(theirs.to_owned()).or_insert_with(|| {
            self.pairs.push([theirs.to_owned(), ours.to_owned()]);
            ours.to_owned()
        });
        known == ours
    }
}

/// Returns whether two replies are equivalent: versions correspond, and remaining times differ by no more than the
/// time between the requests.
fn same(theirs: &[u8], ours: &[u8], versions: &mut Versions) -> bool {
    let text = [theirs, ours].map(String::from_utf8_lossy);
    let is_gap = |c: char| matches!(c, ' ' | '\r' | '\n');
    let [theirs, ours] = text.each_ref().map(|text| text.split_inclusive(is_gap).collect::<Vec<_>>());
    theirs.len() == ours.len()
        && theirs.iter().zip(&ours).all(|(theirs, ours)| theirs == ours || same_token(theirs, ours, versions))
}

fn same_token(theirs: &str, ours: &str, versions: &mut Versions) -> bool {
    let [theirs, ours] = [theirs, ours].map(|token| token.trim_end_matches([' ', '\r', '\n']));
    // In the reply to `me`, sizes and classes depend on the memory layout; see `DELIBERATE` for the time.
    for of_layout in ["size=", "cls=", "exp="] {
        if theirs.starts_with(of_layout) && ours.starts_with(of_layout) {
            return true;
        }
    }
    for prefix in ["", "c", "cas="] {
        if let (Some(theirs), Some(ours)) = (theirs.strip_prefix(prefix), ours.strip_prefix(prefix))
            && versions.agree(theirs, ours)
        {
            return true;
        }
    }
    for prefix in ["t", "l", "la="] {
        if let (Some(Ok(theirs)), Some(Ok(ours))) =
            (theirs.strip_prefix(prefix).map(str::parse::<i64>), ours.strip_prefix(prefix).map(str::parse))
        {
            // memcached displays a time in the past as a large number.
            return theirs.abs_diff(ours) <= 120 || (theirs > i64::from(i32::MAX) && ours == 0);
        }
    }
    false
}

fn run_seed(seed: u64, memcached: &mut Memcached, ours: &mut Ours, versions: &mut Versions) {
    let mut generator = Generator { random: ChaCha8Rng::seed_from_u64(seed) };
    let keys = KEYS.iter().chain(&BASE64_KEYS).map(|key| (*key).to_owned());
    let decoded = ["foo", "zs", "z"].map(str::to_owned);
    let clear: String =
        keys.chain(decoded).chain(["k".repeat(250)]).map(|key| format!("delete {key} noreply\r\n")).collect();
    versions.pairs.clear();
    for server in [memcached as &mut dyn Server, ours] {
        assert_eq!(server.ask(clear.as_bytes()), b"", "seed {seed}");
        assert_eq!(server.ask(b"stats reset\r\n"), b"RESET\r\n", "seed {seed}");
    }
    let mut sent_before: Vec<String> = Vec::new();
    for step in 0..COMMANDS_PER_SEED {
        let template = generator.command();
        let unknown = [String::from("1"), String::from("1")];
        let pair = versions.pairs.choose(&mut generator.random).unwrap_or(&unknown).clone();
        let fill = |version: &String| {
            // A value may contain any bytes, but none of these has braces.
            String::from_utf8(template.clone()).unwrap().replace("{cas}", version).into_bytes()
        };
        let [theirs, own] = [memcached.ask(&fill(&pair[0])), ours.ask(&fill(&pair[1]))];
        sent_before.push(show(&template));
        let (last, all) =
            (sent_before.len().saturating_sub(12), std::env::var_os("FARCALL_TEST_SEED").is_some());
        assert!(
            same(&theirs, &own, versions),
            "seed {seed}, step {step} (FARCALL_TEST_SEED={seed}):\nmemcached {}\nours      {}\nafter\n{}",
            show(&theirs),
            show(&own),
            sent_before[if all { 0 } else { last }..].join("\n")
        );
    }
    let [theirs, own] = [memcached.counters(), ours.counters()];
    for name in COUNTERS {
        assert_eq!(
            theirs.get(name),
            own.get(name),
            "{name} after seed {seed} (FARCALL_TEST_SEED={seed}); sent:\n{}",
            sent_before.join("\n")
        );
    }
}

#[test]
fn replies_as_memcached_does() {
    let Some(mut memcached) = Memcached::start("differential") else { return };
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = match number("FARCALL_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FARCALL_MEMCACHED_SEEDS").unwrap_or(SEEDS),
    };
    let (mut ours, mut versions) = (Ours::new(), Versions::default());
    for seed in seeds.clone() {
        run_seed(seed, &mut memcached, &mut ours, &mut versions);
    }
    eprintln!("seeds {seeds:?}, {COMMANDS_PER_SEED} commands each: no difference");
}

/// Intended differences from memcached 1.6.18: the sent line, memcached's reply, and the reply here. The documentation
/// of `farcall_kv::memcached` gives the reasons.
const DELIBERATE: [(&str, &str, &str, &str); 16] = [
    (
        "the data of a refused storage line is no command",
        "set a x 0 9\r\nflush_all\r\n",
        "CLIENT_ERROR bad command line format\r\nOK\r\n",
        "CLIENT_ERROR bad command line format\r\n",
    ),
    (
        "so with a key that is too long",
        "set {long} 0 0 2\r\nmn\r\n",
        "CLIENT_ERROR bad command line format\r\nMN\r\n",
        "CLIENT_ERROR bad command line format\r\n",
    ),
    ("and with its reply unwanted", "set a x 0 2 noreply\r\nmn\r\n", "MN\r\n", ""),
    (
        "what follows data of a wrong length is no command",
        "set a 0 0 1\r\nxmn\r\n",
        "CLIENT_ERROR bad data chunk\r\nERROR\r\n",
        "CLIENT_ERROR bad data chunk\r\n",
    ),
    (
        "numbers have no sign",
        "incr none +1\r\n",
        "NOT_FOUND\r\n",
        "CLIENT_ERROR invalid numeric delta argument\r\n",
    ),
    ("numbers do not wrap", "verbosity 4294967296\r\n", "OK\r\n", "CLIENT_ERROR bad command line format\r\n"),
    (
        "flags do not wrap",
        "set f 4294967296 0 1\r\nx\r\nget f\r\n",
        "STORED\r\nVALUE f 0 1\r\nx\r\nEND\r\n",
        "CLIENT_ERROR bad command line format\r\nEND\r\n",
    ),
    (
        "times do not wrap",
        "set t 0 4000000000 1\r\nx\r\nget t\r\n",
        "STORED\r\nEND\r\n",
        "STORED\r\nVALUE t 0 1\r\nx\r\nEND\r\n",
    ),
    (
        "a negative value is no number",
        "set m 0 0 21\r\n-18446744073709551615\r\nincr m 1\r\n",
        "STORED\r\n2\r\n",
        "STORED\r\nCLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
    ),
    (
        "base64 has its own characters only",
        "mg Y.Q== b k\r\n",
        "EN kYQ== b\r\n",
        "CLIENT_ERROR error decoding key\r\n",
    ),
    (
        "base64 ends with its padding",
        "mg YQ==YQ== b k\r\n",
        "EN kYQ== b\r\n",
        "CLIENT_ERROR error decoding key\r\n",
    ),
    (
        "a key is returned as the request wrote it",
        "set a 0 0 1\r\nx\r\nmg YQ== b k\r\n",
        "STORED\r\nHD ka\r\n",
        "STORED\r\nHD kYQ== b\r\n",
    ),
    (
        "a refused opaque token changes nothing",
        "set n 0 0 1\r\n1\r\nma n Oopaque-token-of-32-bytes-length-\r\nget n\r\n",
        "STORED\r\nCLIENT_ERROR opaque token too long\r\nVALUE n 0 1\r\n2\r\nEND\r\n",
        "STORED\r\nCLIENT_ERROR opaque token too long\r\nVALUE n 0 1\r\n1\r\nEND\r\n",
    ),
    ("an item is not made for the past", "mg past N-1\r\n", "HD W\r\n", "EN\r\n"),
    ("a line is no command behind a zero byte", "mn\0x\r\n", "MN\r\n", "ERROR\r\n"),
    ("a long line is no command", "set a 0 0 1{spaces}\r\nx\r\n", "STORED\r\n", "ERROR\r\nERROR\r\n"),
];

#[test]
fn deliberate_differences_are_as_listed() {
    let Some(mut memcached) = Memcached::start("deliberate") else { return };
    let mut ours = Ours::new();
    for (name, sent, theirs, own) in DELIBERATE {
        let sent = sent.replace("{long}", &"k".repeat(251)).replace("{spaces}", &" ".repeat(3000));
        assert_eq!(String::from_utf8_lossy(&memcached.ask(sent.as_bytes())), theirs, "memcached: {name}");
        assert_eq!(String::from_utf8_lossy(&ours.ask(sent.as_bytes())), own, "ours: {name}");
    }
}

/// Values that the Prometheus exporter (github.com/prometheus/memcached_exporter 0.13) reads and requires.
#[test]
fn statistics_are_those_that_the_exporter_scrapes() {
    let mut ours = Ours::new();
    ours.ask(b"set a 0 0 1\r\nx\r\n");
    let (general, slabs) = (ours.ask(b"stats\r\n"), String::from_utf8(ours.ask(b"stats slabs\r\n")).unwrap());
    let items = String::from_utf8(ours.ask(b"stats items\r\n")).unwrap();
    let settings = String::from_utf8(ours.ask(b"stats settings\r\n")).unwrap();
    let general = String::from_utf8(general).unwrap();
    let has = |text: &str, name: &str| text.contains(&format!("STAT {name} "));
    for name in [
        "uptime",
        "time",
        "version",
        "cas_badval",
        "cmd_flush",
        "cmd_set",
        "get_hits",
        "get_misses",
        "delete_hits",
        "delete_misses",
        "incr_hits",
        "incr_misses",
        "decr_hits",
        "decr_misses",
        "cas_hits",
        "cas_misses",
        "touch_hits",
        "touch_misses",
        "rusage_user",
        "rusage_system",
        "bytes",
        "limit_maxbytes",
        "curr_items",
        "total_items",
        "bytes_read",
        "bytes_written",
        "curr_connections",
        "total_connections",
        "rejected_connections",
        "conn_yields",
        "listen_disabled_num",
        "evictions",
        "reclaimed",
        "lru_crawler_starts",
        "crawler_items_checked",
        "crawler_reclaimed",
        "moves_to_cold",
        "moves_to_warm",
        "moves_within_lru",
        "total_malloced",
        "accepting_conns",
    ] {
        assert!(has(&general, name), "{name} in {general}");
        assert_eq!(general.matches(&format!("STAT {name} ")).count(), 1, "{name} once in {general}");
    }
    for name in [
        "get_hits",
        "cmd_set",
        "delete_hits",
        "incr_hits",
        "decr_hits",
        "cas_hits",
        "cas_badval",
        "touch_hits",
        "chunk_size",
        "chunks_per_page",
        "total_pages",
        "total_chunks",
        "used_chunks",
        "free_chunks",
        "free_chunks_end",
    ] {
        assert!(has(&slabs, &format!("1:{name}")), "{name} in {slabs}");
    }
    for name in ["number", "age", "evicted", "outofmemory", "mem_requested"] {
        assert!(has(&items, &format!("items:1:{name}")), "{name} in {items}");
    }
    // The exporter makes one metric of both reports, and refuses two samples of it.
    assert!(!has(&slabs, "1:mem_requested"), "{slabs}");
    assert!(has(&settings, "maxconns"), "{settings}");
}
