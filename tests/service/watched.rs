//! A server under load, monitored through metrics, log and `stats --watch`: each of them reports every event.
//!
//! `FARCALL_WATCH_SECONDS` is the duration, 12 by default.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Instant;

use super::*;

/// Slots for memcached clients, of which the load uses two.
const PLACES: usize = 8;

/// An event that is caused at the server, and where it is reported.
struct Event {
    name: &'static str,
    /// Name in the metrics, without the common prefix.
    metric: &'static str,
    /// Label and counter in `stats --watch`.
    watched: (&'static str, &'static str),
    log: &'static str,
    /// Causes the event for the given duration.
    cause: fn(&Server, Duration),
}

/// Events in the order in which they are caused, such that no event causes a later one.
const EVENTS: [Event; 5] = [
    Event {
        name: "a client is killed",
        metric: "rpc_server_thread_connections_closed_total",
        watched: ("rpc server thread 0", "connections_closed"),
        log: "a connection ended",
        cause: |server, _| {
            let to = format!("rpc:{}", server.address("rpc"));
            let mut client = Command::new(env!("CARGO_BIN_EXE_farcall"))
                .args(["kv", "load", "-", "--server", &to])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let lines: String = (0..1000).map(|number| format!("k{number}\tv\n")).collect();
            client.stdin.as_ref().unwrap().write_all(lines.as_bytes()).unwrap();
            until("it has called", || value(server, "rpc_server_thread_calls_total") > 0.0);
            client.kill().unwrap();
            client.wait().unwrap();
        },
    },
    Event {
        name: "somebody who does not speak the protocol is refused",
        metric: "bootstrap_port_refused_total",
        watched: ("bootstrap port 0", "refused"),
        log: "NotThisProtocol",
        cause: |server, _| {
            let mut stranger = TcpStream::connect(server.address("rpc")).unwrap();
            stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            let _ = stranger.read_to_end(&mut Vec::new());
        },
    },
    Event {
        name: "more clients come than there are places",
        metric: "kv_front_end_connections_refused_total",
        watched: ("kv front end 0", "connections_refused"),
        log: "all places are taken",
        cause: |server, lasts| {
            let clients = [(); 2 * PLACES].map(|()| TcpStream::connect(server.address("tcp")).unwrap());
            sleep(lasts);
            drop(clients);
            let open = |server| {
                let [opened, closed] = ["opened", "closed"]
                    .map(|what| value(server, &format!("kv_front_end_connections_{what}_total")));
                opened - closed
            };
            until("places are free again", || open(server) <= 2.0);
        },
    },
    Event {
        name: "clients do not take their answers, and buffers are short",
        metric: "kv_front_end_connections_shed_total",
        watched: ("kv front end 0", "connections_shed"),
        log: "closed memcached connections",
        cause: |server, lasts| {
            let mut greedy = [(); PLACES - 2].map(|()| Memcached::connect(server));
            greedy[0].set("large", &[b'x'; 500_000]);
            for client in &greedy {
                client.0.get_ref().set_nonblocking(true).unwrap();
            }
            let mut ask = || {
                for client in &mut greedy {
                    // A closed or full connection is irrelevant here.
                    let _ = client.0.get_mut().write(&b"get large\r\n".repeat(100));
                }
            };
            let end = Instant::now() + lasts;
            while Instant::now() < end {
                ask();
                sleep(Duration::from_millis(10));
            }
            until("a connection is closed", || {
                ask();
                value(server, "kv_front_end_connections_shed_total") > 0.0
            });
        },
    },
    Event {
        name: "memory is full, and items are evicted",
        metric: "kv_partition_evictions_memory_full_total",
        watched: ("kv partition 0", "evictions_memory_full"),
        log: "evicts items",
        cause: |server, lasts| {
            let mut client = Memcached::connect(server);
            let end = Instant::now() + lasts;
            for number in 0.. {
                client.set(&format!("big{number}"), &[b'x'; 100_000]);
                if number > 200 && Instant::now() > end {
                    break;
                }
            }
        },
    },
];

/// Waits for a condition that becomes true soon, with a timeout that allows for a busy machine.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: not in time");
        sleep(Duration::from_millis(10));
    }
}

/// A client of the memcached front end.
struct Memcached(BufReader<TcpStream>);

impl Memcached {
    fn connect(server: &Server) -> Self {
        Self(BufReader::new(TcpStream::connect(server.address("tcp")).unwrap()))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    fn set(&mut self, key: &str, value: &[u8]) {
        let mut bytes = format!("set {key} 0 0 {}\r\n", value.len()).into_bytes();
        bytes.extend_from_slice(value);
        bytes.extend_from_slice(b"\r\n");
        self.0.get_mut().write_all(&bytes).unwrap();
        assert_eq!(self.line(), "STORED\r\n");
    }

    /// Returns the value, if the key exists.
    fn get(&mut self, key: &str) -> Option<String> {
        self.0.get_mut().write_all(format!("get {key}\r\n").as_bytes()).unwrap();
        (self.line() != "END\r\n").then(|| {
            let value = self.line();
            assert_eq!(self.line(), "END\r\n");
            value.trim_end().into()
        })
    }

    /// Writes and reads slowly until `is_over` is set. Returns the number of rounds.
    fn load(&mut self, name: &str, is_over: &AtomicBool) -> u64 {
        let mut rounds = 0;
        while !is_over.load(Ordering::Relaxed) {
            let (key, value) = (format!("{name}{}", rounds % 100), rounds.to_string());
            self.set(&key, value.as_bytes());
            // The value may only have been evicted in the meantime.
            assert!(self.get(&key).is_none_or(|got| got == value));
            rounds += 1;
            sleep(Duration::from_millis(1));
        }
        rounds
    }
}

/// Returns the current value of a counter in the metrics.
fn value(server: &Server, metric: &str) -> f64 {
    let metrics = get(&server.address("metrics"), "/metrics");
    let line =
        metrics.lines().find_map(|line| line.strip_prefix(&format!("farcall_{metric}{{number=\"0\"}} ")));
    line.unwrap_or_else(|| panic!("no {metric}:\n{metrics}")).parse().unwrap()
}

/// Runs `stats --watch` from the start of the server to its end, and returns its lines. They are read concurrently,
/// because they exceed the capacity of a pipe.
fn watch(server: &Server) -> JoinHandle<String> {
    let watch = Command::new(env!("CARGO_BIN_EXE_farcall"))
        .args(["stats", &server.ready["pid"].to_string(), "--watch", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::spawn(|| String::from_utf8(watch.wait_with_output().unwrap().stdout).unwrap())
}

#[test]
fn reports_events_under_load_in_metrics_log_and_watch() {
    let seconds = std::env::var("FARCALL_WATCH_SECONDS").map_or(12.0, |seconds| seconds.parse().unwrap());
    let places = PLACES.to_string();
    let door = ["kv", "serve", "--tcp", "127.0.0.1:0", "--rpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
    let limits = ["--memory-mib", "8", "--connections-max", &places, "--buffers-mib", "2", "--log", "info"];
    let server = Server::start(&[&door[..], &limits].concat());
    let watching = watch(&server);
    // An event takes half of its share of the time; the other half has no event.
    let half = Duration::from_secs_f64(seconds / 2.0 / EVENTS.len() as f64);
    let is_over = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let load = ["a", "b"].map(|name| {
            let mut client = Memcached::connect(&server);
            let is_over = &is_over;
            scope.spawn(move || client.load(name, is_over))
        });
        let end = EndOnDrop(&is_over);
        for (at, event) in EVENTS.iter().enumerate() {
            for later in &EVENTS[at..] {
                assert_eq!(value(&server, later.metric), 0.0, "{}: before it happens", later.name);
            }
            (event.cause)(&server, half);
            until(event.metric, || value(&server, event.metric) > 0.0);
            let count = value(&server, event.metric);
            println!("{}: {} {count}", event.name, event.metric);
            sleep(half);
        }
        drop(end);
        load.map(|client| client.join().unwrap())
    });
    let calls = value(&server, "kv_partition_puts_total");
    assert!(calls >= (rounds[0] + rounds[1]) as f64, "{calls} puts were told, {rounds:?} made");
    let (status, log) = server.stop();
    assert!(status.success(), "{log}");
    check_watch(&watching.join().unwrap());
    for event in &EVENTS {
        assert!(log.contains(event.log), "{}: not told in the log:\n{log}", event.name);
    }
    assert!(log.lines().count() < 20 * EVENTS.len(), "the log tells of more than happened:\n{log}");
    println!("{rounds:?} rounds of load; the log:\n{log}");
}

struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Checks that the events were reported in their order at distinct times, followed by the end.
fn check_watch(lines: &str) {
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let first = |(label, counter): (&str, &str)| {
        let is_it = |rate: &Value| rate["label"] == label && rate["counter"] == counter;
        lines.iter().position(|line| line["rates"].as_array().is_some_and(|rates| rates.iter().any(is_it)))
    };
    let mut last = 0;
    for event in &EVENTS {
        let at = first(event.watched).unwrap_or_else(|| panic!("{}: not told by watch", event.name));
        assert!(at >= last, "{}: told before what happened before it", event.name);
        println!("{} {}", lines[at]["at"].as_str().unwrap(), event.name);
        last = at;
    }
    assert_eq!(lines.last().unwrap()["alive"], false);
}
