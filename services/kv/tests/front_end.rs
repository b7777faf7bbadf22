//! The front end over real sockets: order, backpressure, limits, several partitions, socket files.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farcall_kv::front_end::{FrontEnd, FrontEndConfig, ListenError, Listener};
use farcall_kv::memcached::client::{Client, ClientError};
use farcall_kv::store::{Config, IndexSize, Partition, Put, Stats, VALUE_MAX_BYTES_DEFAULT};

const NOW_MS: u64 = 1_700_000_000_000;

fn partition(number: u32, of: u32) -> Partition {
    let config = Config {
        limit_bytes: 16 << 20,
        index: IndexSize::Buckets(1 << 15),
        partition: number,
        partitions: of,
        ..Config::default()
    };
    Partition::new(config, NOW_MS).unwrap()
}

/// A server of several threads. Stops on drop, and checks that its threads succeeded.
struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Stats>>,
}

impl Server {
    fn start(threads: u32, config: FrontEndConfig) -> Server {
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.tcp_address().unwrap();
        Self::over(listener, address, threads, config)
    }

    fn over(listener: Listener, address: SocketAddr, threads: u32, config: FrontEndConfig) -> Server {
        let stop = Arc::new(AtomicBool::new(false));
        let front_ends = FrontEnd::bind(vec![listener], threads, &config).unwrap();
        let run = |(number, mut front_end): (usize, FrontEnd)| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                let mut partition = partition(number as u32, threads);
                while !stop.load(Ordering::Relaxed) {
                    front_end.poll(&mut partition, || NOW_MS, Some(Duration::from_millis(20))).unwrap();
                }
                partition.stats()
            })
        };
        let threads = front_ends.into_iter().enumerate().map(run).collect();
        Server { address, stop, threads }
    }

    fn client(&self) -> Client {
        let client = Client::connect_tcp(self.address).unwrap();
        client.set_timeout(Some(Duration::from_secs(10))).unwrap();
        client
    }

    fn raw(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    fn stop(mut self) -> Vec<Stats> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).map(|thread| thread.join().unwrap()).collect()
    }
}

fn exchange(stream: &mut TcpStream, sent: &[u8], expected: &str) {
    stream.write_all(sent).unwrap();
    let mut reply = vec![0; expected.len()];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(String::from_utf8_lossy(&reply), expected);
}

#[test]
fn returns_values_of_every_size_unchanged() {
    for threads in [1, 3] {
        let server = Server::start(threads, FrontEndConfig::default());
        let mut client = server.client();
        for (number, size) in
            [0, 1, 100, 16_383, 65_536, 300_000, VALUE_MAX_BYTES_DEFAULT].into_iter().enumerate()
        {
            let key = format!("key{number}");
            let value: Vec<u8> = (0..size).map(|at| (at * 31 + number) as u8).collect();
            client.set(key.as_bytes(), &value).unwrap();
            assert_eq!(
                client.get(key.as_bytes()).unwrap().unwrap().bytes,
                value,
                "{size} bytes, {threads} threads"
            );
        }
        assert!(client.get(b"nothing").unwrap().is_none());
        assert!(matches!(
            client.set(b"huge", &vec![0; VALUE_MAX_BYTES_DEFAULT + 1]),
            Err(ClientError::Refused(_))
        ));
        assert!(client.delete(b"key1").unwrap());
        assert!(!client.delete(b"key1").unwrap());
        server.stop();
    }
}

#[test]
fn returns_pipelined_replies_in_order() {
    let server = Server::start(4, FrontEndConfig::default());
    let mut clients: Vec<Client> = (0..6).map(|_| server.client()).collect();
    for (who, client) in clients.iter_mut().enumerate() {
        for number in 0..2000 {
            let text = format!("{who}-{number}");
            client.queue_store("set", text.as_bytes(), text.as_bytes(), who as u32, 0).unwrap();
            client.queue_get(text.as_bytes()).unwrap();
        }
        client.flush().unwrap();
    }
    for (who, client) in clients.iter_mut().enumerate() {
        for number in 0..2000 {
            let text = format!("{who}-{number}");
            assert!(client.read_stored().unwrap());
            let value = client.read_value().unwrap().unwrap();
            assert_eq!((value.bytes, value.flags), (text.as_bytes(), who as u32));
        }
    }
    let stats = clients[3].stats().unwrap();
    let of = |name: &str| stats.iter().find(|stat| stat.0 == name).unwrap().1.clone();
    assert_eq!(
        (of("curr_items").as_str(), of("get_hits").as_str(), of("threads").as_str()),
        ("12000", "12000", "4")
    );
    clients[1].flush_all().unwrap();
    for (who, client) in clients.iter_mut().enumerate() {
        assert!(client.get(format!("{who}-77").as_bytes()).unwrap().is_none());
    }
    let stats = server.stop();
    assert!(stats.iter().all(|stats| stats.puts > 2500), "every partition stored its share: {stats:?}");
}

#[test]
fn one_command_with_keys_of_all_partitions() {
    let server = Server::start(3, FrontEndConfig::default());
    let mut stream = server.raw();
    let names: Vec<String> = (0..500).map(|number| format!("k{number}")).collect();
    let sets: String =
        names.iter().map(|name| format!("set {name} 0 0 {} noreply\r\n{name}\r\n", name.len())).collect();
    let gets = format!("get {} missing\r\n", names.join(" "));
    let values: String =
        names.iter().map(|name| format!("VALUE {name} 0 {}\r\n{name}\r\n", name.len())).collect();
    exchange(&mut stream, format!("{sets}{gets}").as_bytes(), &format!("{values}END\r\n"));
    let meta = "ms YWJj 2 b T0\r\nhi\r\nmg YWJj b v k\r\nmg abc v\r\nma n N0 J5 v\r\nme none\r\nmn\r\n";
    exchange(
        &mut stream,
        meta.as_bytes(),
        "HD\r\nVA 2 kYWJj b\r\nhi\r\nVA 2\r\nhi\r\nVA 1\r\n5\r\nEN\r\nMN\r\n",
    );
    server.stop();
}

#[test]
fn metadump_lists_the_items_of_all_partitions() {
    for threads in [1, 3] {
        let server = Server::start(threads, FrontEndConfig::default());
        let mut stream = server.raw();
        let stores = (0..3000).map(|n| format!("set key{n} 0 0 1 noreply\r\nx\r\n")).collect::<String>();
        exchange(&mut stream, format!("{stores}mn\r\n").as_bytes(), "MN\r\n");
        // Another client is served in the meantime, and commands after the listing wait for its end.
        stream.write_all(b"lru_crawler metadump all\r\nmn\r\n").unwrap();
        exchange(&mut server.raw(), b"get key7\r\n", "VALUE key7 0 1\r\nx\r\nEND\r\n");
        let mut listed: Vec<String> = BufReader::new(stream)
            .lines()
            .map(Result::unwrap)
            .take_while(|line| line != "MN")
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect();
        assert_eq!(listed.pop().unwrap(), "END");
        listed.sort_unstable();
        let mut keys: Vec<String> = (0..3000).map(|n| format!("key=key{n}")).collect();
        keys.sort_unstable();
        assert!(listed == keys, "{threads} threads: {} items listed", listed.len());
        server.stop();
    }
}

#[test]
fn the_memory_limit_can_be_lowered_and_raised_again() {
    let server = Server::start(3, FrontEndConfig::default());
    let mut stream = server.raw();
    let limit = |client: &mut Client| {
        client.stats().unwrap().into_iter().find(|stat| stat.0 == "limit_maxbytes").unwrap().1
    };
    let mut client = server.client();
    assert_eq!(limit(&mut client), (48 << 20).to_string());
    exchange(&mut stream, b"cache_memlimit 30\r\n", "OK\r\n");
    assert_eq!(limit(&mut client), (30 << 20).to_string());
    let failed = "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n";
    exchange(
        &mut stream,
        b"cache_memlimit 49\r\ncache_memlimit 8 noreply\r\ncache_memlimit 8\r\n",
        &failed.repeat(2),
    );
    exchange(&mut stream, b"cache_memlimit 48\r\n", "OK\r\n");
    assert_eq!(limit(&mut client), (48 << 20).to_string());
    server.stop();
}

#[test]
fn resets_counters_in_all_partitions() {
    let server = Server::start(3, FrontEndConfig::default());
    let mut client = server.client();
    let stat = |client: &mut Client, name: &str| {
        let stats = client.stats().unwrap();
        stats.into_iter().find(|stat| stat.0 == name).unwrap().1
    };
    for n in 0..30 {
        client.set(format!("key{n}").as_bytes(), b"x").unwrap();
    }
    assert_eq!(stat(&mut client, "cmd_set"), "30");
    exchange(&mut server.raw(), b"stats reset\r\n", "RESET\r\n");
    assert_eq!(stat(&mut client, "cmd_set"), "0");
    assert_eq!(stat(&mut client, "curr_items"), "30");
    server.stop();
}

/// Sends a command and reads the reply up to `END`.
fn report(client: &mut BufReader<TcpStream>, question: &str) -> String {
    client.get_mut().write_all(question.as_bytes()).unwrap();
    let mut reply = String::new();
    while !reply.ends_with("END\r\n") {
        assert_ne!(client.read_line(&mut reply).unwrap(), 0, "{reply}");
    }
    reply
}

#[test]
fn prefixes_are_counted_over_all_partitions() {
    for threads in [1, 3] {
        let server = Server::start(threads, FrontEndConfig::default());
        let mut stream = server.raw();
        exchange(&mut stream, b"stats detail on\r\n", "OK\r\n");
        for number in 0..100 {
            exchange(&mut stream, format!("set a:{number} 0 0 1\r\nx\r\n").as_bytes(), "STORED\r\n");
            exchange(&mut stream, format!("get b:{number}\r\n").as_bytes(), "END\r\n");
        }
        // Requested from every thread.
        for _ in 0..threads {
            let mut other = BufReader::new(server.raw());
            assert_eq!(
                report(&mut other, "stats detail dump\r\n"),
                "PREFIX a get 0 hit 0 set 100 del 0\r\nPREFIX b get 100 hit 0 set 0 del 0\r\nEND\r\n"
            );
            assert!(report(&mut other, "stats settings\r\n").contains("STAT detail_enabled yes\r\n"));
        }
        exchange(&mut stream, b"stats reset\r\nstats detail dump\r\n", "RESET\r\nEND\r\n");
        server.stop();
    }
}

#[test]
fn connections_of_all_threads_are_listed() {
    for threads in [1, 3] {
        let server = Server::start(threads, FrontEndConfig::default());
        let mut streams: Vec<TcpStream> = (0..200).map(|_| server.raw()).collect();
        for stream in &mut streams {
            exchange(stream, b"get a\r\n", "END\r\n");
        }
        streams[0].write_all(b"set half 0 0 6\r\n").unwrap();
        let mut asking = BufReader::new(server.raw());
        let own = asking.get_ref().local_addr().unwrap();
        let half = streams[0].local_addr().unwrap();
        // The thread of the other connection may not have read the command yet.
        let reply = loop {
            let reply = report(&mut asking, "stats conns\r\n");
            if reply.contains("conn_nread") {
                break reply;
            }
        };
        assert_eq!(reply.matches(":addr tcp:").count(), 202, "{reply}");
        assert_eq!(reply.matches(&format!(":listen_addr tcp:{}\r\n", server.address)).count(), 201);
        assert_eq!(reply.matches(":state conn_read\r\n").count(), 199);
        assert_eq!(reply.matches(":secs_since_last_cmd 0\r\n").count(), 201, "all but the listener's");
        for (address, state) in [(server.address, "listening"), (own, "parse_cmd"), (half, "nread")] {
            let at = reply.find(&format!(":addr tcp:{address}\r\n")).unwrap();
            let after = &reply[at..];
            let listed = &after[..after.find(":secs_since").unwrap()];
            assert!(listed.contains(&format!(":state conn_{state}\r\n")), "{state}: {listed}");
        }
        // Closed connections are removed from the list, whichever thread they belonged to.
        drop(streams);
        while report(&mut asking, "stats conns\r\n").matches(":addr tcp:").count() > 2 {
            std::thread::yield_now();
        }
        server.stop();
    }
}

#[test]
fn stops_reading_from_a_client_that_does_not_read() {
    for threads in [1, 2] {
        let server = Server::start(threads, FrontEndConfig::default());
        server.client().set(b"big", &vec![b'v'; 100_000]).unwrap();
        let stream = server.raw();
        stream.set_nonblocking(true).unwrap();
        let (request, mut sent) = (b"get big\r\n".repeat(1000), 0usize);
        // The server must stop reading requests long before their replies of 50 GB accumulate.
        loop {
            match (&stream).write(&request[sent % 9..]) {
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // Other clients are served in the meantime.
                    assert_eq!(server.client().get(b"big").unwrap().unwrap().bytes.len(), 100_000);
                    match (&stream).write(&request[sent % 9..]) {
                        Ok(bytes) => sent += bytes,
                        Err(_) => break,
                    }
                }
                Err(error) => panic!("{error}"),
            }
            assert!(sent < 64 << 20, "the server takes requests without end");
        }
        stream.set_nonblocking(false).unwrap();
        let requests = sent / 9;
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut all = std::io::BufReader::new(&stream);
        let one = [&b"VALUE big 0 100000\r\n"[..], &vec![b'v'; 100_000], b"\r\nEND\r\n"].concat();
        let mut reply = vec![0; one.len()];
        // Reading all replies would take long; the first ones, in order, are sufficient.
        for _ in 0..requests.min(200) {
            all.read_exact(&mut reply).unwrap();
            assert!(reply == one);
        }
        server.stop();
    }
}

/// Unix sockets deliver sent data at once, so that one round finds all of it, independent of scheduling.
#[test]
fn bounds_the_delay_of_a_command_behind_others() {
    const OTHERS: u64 = 20;
    let scratch = Scratch::new("round");
    let path = scratch.path().join("kv.sock");
    let listeners = vec![Listener::unix(&path).unwrap()];
    let mut front_end = FrontEnd::bind(listeners, 1, &FrontEndConfig::default()).unwrap().remove(0);
    let mut partition = partition(0, 1);
    let key = partition.key(b"big").unwrap();
    partition.put(&key, &Put { value: &vec![b'v'; 1_000_000], ..Put::default() }, NOW_MS).unwrap();
    for ask in [&b"get big\r\n"[..], b"mg big v\r\n"] {
        partition.reset_stats();
        let connect = || UnixStream::connect(&path).unwrap();
        let others: Vec<UnixStream> = (0..OTHERS).map(|_| connect()).collect();
        others.iter().for_each(|mut other| other.write_all(&ask.repeat(50)).unwrap());
        let mut client = connect();
        client.write_all(b"set small 0 0 1\r\ns\r\nget small\r\n").unwrap();
        front_end.poll(&mut partition, || NOW_MS, Some(Duration::ZERO)).unwrap();
        let expected = b"STORED\r\nVALUE small 0 1\r\ns\r\nEND\r\n";
        let mut reply = vec![0; expected.len()];
        client.set_nonblocking(true).unwrap();
        client.read_exact(&mut reply).unwrap();
        assert_eq!(reply, expected);
        // A few long values and the short one; all others are in later rounds.
        let hits = partition.stats().get_hits;
        assert!((2..=4).contains(&hits), "{hits} values in one round");
        while front_end.poll(&mut partition, || NOW_MS, Some(Duration::ZERO)).unwrap() > 0 {}
        assert!(partition.stats().get_hits > OTHERS, "others got nothing");
    }
}

#[test]
fn half_closed_connections_get_all_their_replies() {
    let server = Server::start(2, FrontEndConfig::default());
    let mut stream = server.raw();
    stream.write_all(b"set a 0 0 1\r\nx\r\nget a b c\r\nset cut 0 0 10\r\nabc").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    server.stop();
}

#[test]
fn quit_and_protocol_violations_close_the_connection() {
    let server = Server::start(1, FrontEndConfig::default());
    for (sent, expected) in [
        ("set a 0 0 1\r\nx\r\nquit\r\n".to_owned(), "STORED\r\n"),
        (format!("GET /{} HTTP/1.1\r\n", "z".repeat(2048)), ""),
    ] {
        let mut stream = server.raw();
        stream.write_all(sent.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert_eq!(reply, expected);
    }
    server.stop();
}

#[test]
fn reports_the_connection_limit_to_further_clients() {
    let server = Server::start(1, FrontEndConfig { connections_max: 2, ..FrontEndConfig::default() });
    let (mut first, mut second) = (server.client(), server.client());
    first.set(b"a", b"x").unwrap();
    second.set(b"a", b"x").unwrap();
    let mut third = server.raw();
    let mut reply = String::new();
    third.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "ERROR Too many open connections\r\n");
    drop(second);
    // The slot becomes free once the server has detected the end of the connection.
    let given_up = Instant::now() + Duration::from_secs(60);
    while !server.client().get(b"a").is_ok_and(|value| value.is_some()) {
        assert!(Instant::now() < given_up, "the place of who left is not free");
        std::thread::sleep(Duration::from_millis(10));
    }
    server.stop();
}

#[test]
fn signals_on_its_descriptor_when_to_poll() {
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.tcp_address().unwrap();
    let mut front_end = FrontEnd::bind(vec![listener], 1, &FrontEndConfig::default()).unwrap().remove(0);
    let mut store = partition(0, 1);
    let readable = |front_end: &FrontEnd, timeout_ms: i32| {
        // SAFETY: the front end, which owns the descriptor, is alive while it is borrowed.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(front_end.as_raw_fd()) };
        let mut set = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: i64::from(timeout_ms) * 1_000_000 };
        rustix::event::poll(&mut set, Some(&timeout)).unwrap() == 1
    };
    assert!(!readable(&front_end, 0));
    let mut client = TcpStream::connect(address).unwrap();
    assert!(readable(&front_end, 900));
    while readable(&front_end, 0) {
        front_end.poll(&mut store, || NOW_MS, Some(Duration::ZERO)).unwrap();
    }
    assert_eq!(front_end.connections(), 1);
    client.write_all(b"mn\r\n").unwrap();
    assert!(readable(&front_end, 900));
    while readable(&front_end, 0) {
        front_end.poll(&mut store, || NOW_MS, Some(Duration::ZERO)).unwrap();
    }
    assert!(front_end.is_drained());
    let mut reply = [0; 4];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"MN\r\n");
}

/// A temporary directory, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("farcall-kv-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_unix_socket_is_private_exclusive_and_cleaned_up() {
    let scratch = Scratch::new("socket");
    let path = scratch.path().join("socket");
    let listener = Listener::unix(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(Listener::unix(&path), Err(ListenError::InUse { .. })));

    let server = Server::over(listener, "0.0.0.0:0".parse().unwrap(), 2, FrontEndConfig::default());
    let mut client = Client::connect_unix(&path).unwrap();
    client.set(b"a", b"over unix").unwrap();
    assert_eq!(client.get(b"a").unwrap().unwrap().bytes, b"over unix");
    server.stop();
    assert!(!path.exists(), "a clean exit removes the file");

    // The file of a server that has exited is replaced: closing the listener alone leaves the file.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists() && UnixStream::connect(&path).is_err());
    let listener = Listener::unix(&path).unwrap();
    assert!(UnixStream::connect(&path).is_ok());

    // A file created by a later server is not removed when an earlier one exits.
    std::fs::remove_file(&path).unwrap();
    let later = Listener::unix(&path).unwrap();
    drop(listener);
    assert!(path.exists());
    drop(later);
    assert!(!path.exists());

    std::fs::write(&path, "a file").unwrap();
    assert!(matches!(Listener::unix(&path), Err(ListenError::NotASocket { .. })));
    assert!(path.exists());
}

#[test]
fn keys_the_protocol_cannot_carry_are_refused_by_the_client() {
    let server = Server::start(1, FrontEndConfig::default());
    let mut client = server.client();
    assert!(matches!(client.get(b"a b"), Err(ClientError::KeyByte { byte: b' ' })));
    assert!(matches!(client.get(b"a\r\nflush_all"), Err(ClientError::KeyByte { byte: b'\r' })));
    assert!(matches!(client.get(b""), Err(ClientError::Key(_))));
    assert!(matches!(client.get(&[b'k'; 251]), Err(ClientError::Key(_))));
    server.stop();
}
