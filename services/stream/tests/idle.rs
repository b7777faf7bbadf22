//! CPU time of idle open streams. The only test of its process, whose CPU time it reads.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::thread;
use std::time::Duration;

use farcall_drive::Pollers;
use farcall_link::WaitStrategy;
use farcall_stream::{StreamListener, StreamOptions, StreamSet, StreamSocket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use support::nic;

const STREAMS: usize = 1_000;
/// Maximum CPU time in percent of one core, in an idle second.
const IDLE_PERCENT_MAX: f64 = 0.5;
const SECOND: Duration = Duration::from_secs(1);
/// Maximum number of seconds measured until an idle one is found: earlier work must end first.
const SECONDS_MAX: u32 = 60;

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Sends a message over each stream and waits for all replies.
fn call_all(clients: &mut StreamSet) {
    for at in 0..STREAMS {
        assert_eq!(clients.socket(at).unwrap().write(b"x").unwrap(), 1);
    }
    let (mut ready, mut left) = (Vec::new(), STREAMS);
    while left > 0 {
        clients.wait(&mut ready, None).unwrap();
        for at in ready.iter().copied() {
            match clients.socket(at).unwrap().read(&mut [0; 2]) {
                Ok(count) => left -= count,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }
}

/// Echoes received bytes until every stream has ended.
fn serve(mut set: StreamSet) {
    let (mut ready, mut bytes) = (Vec::new(), [0; 64]);
    while !set.is_empty() {
        set.wait(&mut ready, None).unwrap();
        for at in ready.iter().copied() {
            let socket = set.socket(at).unwrap();
            let is_over = loop {
                match socket.read(&mut bytes) {
                    Ok(0) => break true,
                    Ok(count) => assert_eq!(socket.write(&bytes[..count]).unwrap(), count),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break false,
                    Err(error) => panic!("{error}"),
                }
            };
            if is_over {
                set.remove(at);
            }
        }
    }
}

#[test]
fn uses_no_processor_time_for_a_thousand_idle_streams() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let pollers = Pollers::start(2).unwrap();
    let options = StreamOptions::default().pollable().pollers(pollers.clone());
    let nic = nic();
    let mut listener = StreamListener::bind(&nic, "127.0.0.1:0", options.clone()).unwrap();
    let address = listener.address().unwrap();
    let [mut servers, mut clients] =
        [(); 2].map(|()| StreamSet::new(WaitStrategy::Bpev { bp_timeout_us: None }).unwrap());
    thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            for _ in 0..STREAMS {
                clients.insert(StreamSocket::connect(&nic, address, options.clone()).unwrap()).unwrap();
            }
        });
        for _ in 0..STREAMS {
            servers.insert(listener.accept().unwrap()).unwrap();
        }
        connecting.join().unwrap();
    });
    // Each stream is used once. Then the servers wait, and the client thread does not drive its sockets.
    let servers = thread::spawn(move || serve(servers));
    call_all(&mut clients);
    let mut idle = 0;
    loop {
        let before = processor_time();
        thread::sleep(SECOND);
        let percent = (processor_time() - before).div_duration_f64(SECOND) * 100.0;
        if percent < IDLE_PERCENT_MAX {
            break;
        }
        idle += 1;
        assert!(idle < SECONDS_MAX, "{STREAMS} idle streams take {percent:.2} % of a core, without end");
    }
    assert!(pollers.are_asleep());
    // The streams are still open.
    call_all(&mut clients);
    drop(clients);
    servers.join().unwrap();
}
