//! The door over real sockets: order, backpressure, limits, several partitions, socket files.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use farcall_kv::door::{Door, DoorConfig, ListenError, Listener};
use farcall_kv::memcached::client::{Client, ClientError};
use farcall_kv::store::{Config, IndexSize, Partition, Stats};

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

/// A server of several threads that stops, and checks that its threads ended well, on drop.
struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Stats>>,
}

impl Server {
    fn start(threads: u32, config: DoorConfig) -> Server {
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.tcp_address().unwrap();
        Self::over(listener, address, threads, config)
    }

    fn over(listener: Listener, address: SocketAddr, threads: u32, config: DoorConfig) -> Server {
        let stop = Arc::new(AtomicBool::new(false));
        let doors = Door::bind(vec![listener], threads, &config).unwrap();
        let run = |(number, mut door): (usize, Door)| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                let mut partition = partition(number as u32, threads);
                while !stop.load(Ordering::Relaxed) {
                    door.poll(&mut partition, || NOW_MS, Some(Duration::from_millis(20))).unwrap();
                }
                partition.stats()
            })
        };
        let threads = doors.into_iter().enumerate().map(run).collect();
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
fn values_of_every_size_survive_the_way() {
    for threads in [1, 3] {
        let server = Server::start(threads, DoorConfig::default());
        let mut client = server.client();
        for (number, size) in [0, 1, 100, 16_383, 65_536, 300_000, 1 << 20].into_iter().enumerate() {
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
        assert!(matches!(client.set(b"huge", &vec![0; (1 << 20) + 1]), Err(ClientError::Refused(_))));
        assert!(client.delete(b"key1").unwrap());
        assert!(!client.delete(b"key1").unwrap());
        server.stop();
    }
}

#[test]
fn pipelined_replies_come_in_order_from_all_partitions() {
    let server = Server::start(4, DoorConfig::default());
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
    let server = Server::start(3, DoorConfig::default());
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
        "HD b\r\nVA 2 b kYWJj\r\nhi\r\nVA 2\r\nhi\r\nVA 1\r\n5\r\nEN\r\nMN\r\n",
    );
    server.stop();
}

#[test]
fn a_client_that_does_not_read_is_not_read_from_and_loses_nothing() {
    for threads in [1, 2] {
        let server = Server::start(threads, DoorConfig::default());
        server.client().set(b"big", &vec![b'v'; 100_000]).unwrap();
        let stream = server.raw();
        stream.set_nonblocking(true).unwrap();
        let (request, mut sent) = (b"get big\r\n".repeat(1000), 0usize);
        // The server must stop taking requests long before their 50 GB of replies pile up.
        loop {
            match (&stream).write(&request[sent % 9..]) {
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // Others are served meanwhile.
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
        // Reading everything would take long: the first replies, in order, are enough.
        for _ in 0..requests.min(200) {
            all.read_exact(&mut reply).unwrap();
            assert!(reply == one);
        }
        server.stop();
    }
}

#[test]
fn half_closed_connections_get_all_their_replies() {
    let server = Server::start(2, DoorConfig::default());
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
    let server = Server::start(1, DoorConfig::default());
    for (sent, expected) in [
        ("set a 0 0 1\r\nx\r\nquit\r\n".to_owned(), "STORED\r\n"),
        ("z".repeat(2048), "CLIENT_ERROR line too long\r\n"),
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
fn connections_over_the_limit_are_told_so() {
    let server = Server::start(1, DoorConfig { connections_max: 2, ..DoorConfig::default() });
    let (mut first, mut second) = (server.client(), server.client());
    first.set(b"a", b"x").unwrap();
    second.set(b"a", b"x").unwrap();
    let mut third = server.raw();
    let mut reply = String::new();
    third.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "SERVER_ERROR too many open connections\r\n");
    drop(second);
    // The place becomes free once the server has seen the end.
    let served = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        server.client().get(b"a").is_ok_and(|value| value.is_some())
    });
    assert!(served);
    server.stop();
}

#[test]
fn the_doors_descriptor_tells_when_to_poll() {
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.tcp_address().unwrap();
    let mut door = Door::bind(vec![listener], 1, &DoorConfig::default()).unwrap().remove(0);
    let mut store = partition(0, 1);
    let readable = |door: &Door, timeout_ms: i32| {
        // SAFETY: the door is alive while its descriptor is borrowed.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(door.as_raw_fd()) };
        let mut set = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: i64::from(timeout_ms) * 1_000_000 };
        rustix::event::poll(&mut set, Some(&timeout)).unwrap() == 1
    };
    assert!(!readable(&door, 0));
    let mut client = TcpStream::connect(address).unwrap();
    assert!(readable(&door, 900));
    while readable(&door, 0) {
        door.poll(&mut store, || NOW_MS, Some(Duration::ZERO)).unwrap();
    }
    assert_eq!(door.connections(), 1);
    client.write_all(b"mn\r\n").unwrap();
    assert!(readable(&door, 900));
    while readable(&door, 0) {
        door.poll(&mut store, || NOW_MS, Some(Duration::ZERO)).unwrap();
    }
    assert!(door.is_drained());
    let mut reply = [0; 4];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"MN\r\n");
}

/// A directory of its own, removed on drop.
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
    let path = scratch.path().join("door");
    let listener = Listener::unix(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(Listener::unix(&path), Err(ListenError::InUse { .. })));

    let server = Server::over(listener, "0.0.0.0:0".parse().unwrap(), 2, DoorConfig::default());
    let mut client = Client::connect_unix(&path).unwrap();
    client.set(b"a", b"over unix").unwrap();
    assert_eq!(client.get(b"a").unwrap().unwrap().bytes, b"over unix");
    server.stop();
    assert!(!path.exists(), "a clean exit removes the file");

    // A dead server's file is replaced: closing the listener alone leaves it behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists() && UnixStream::connect(&path).is_err());
    let listener = Listener::unix(&path).unwrap();
    assert!(UnixStream::connect(&path).is_ok());

    // What a later server has put there is not removed by an earlier one's exit.
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
    let server = Server::start(1, DoorConfig::default());
    let mut client = server.client();
    assert!(matches!(client.get(b"a b"), Err(ClientError::KeyByte { byte: b' ' })));
    assert!(matches!(client.get(b"a\r\nflush_all"), Err(ClientError::KeyByte { byte: b'\r' })));
    assert!(matches!(client.get(b""), Err(ClientError::Key(_))));
    assert!(matches!(client.get(&[b'k'; 251]), Err(ClientError::Key(_))));
    server.stop();
}
