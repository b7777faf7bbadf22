//! The six calls of the paper's interface.

mod support;

use farcall_link::Nic;
use farcall_rpc::six::{ClientPort, ServerPort};
use farcall_rpc::*;
use farcall_softnic::SoftNic;
use farcall_verbs::Clock;
use support::{Time, pattern};

const BUFFER_BYTES: usize = 20_000;

/// Sends, receives, answers reversed, receives.
fn round<P: Path>(sizes: &[usize]) {
    let (nic, time) = (Nic::open(&SoftNic::new()).unwrap(), Time::default());
    let now = time.now();
    let mut server =
        ServerPort::new(nic.clone(), ResponderConfig::default(), 1, time.clone(), BUFFER_BYTES).unwrap();
    let mut client = ClientPort::<P>::new(nic, CallerConfig::default(), BUFFER_BYTES).unwrap();
    let (_, welcome) = server.accept(&client.hello().unwrap(), now).unwrap();
    client.welcome(welcome, now).unwrap();
    let mut request = client.malloc_buf(BUFFER_BYTES).unwrap();
    let mut result = client.malloc_buf(BUFFER_BYTES).unwrap();
    let mut taken = server.malloc_buf(BUFFER_BYTES).unwrap();
    for size in sizes.iter().copied() {
        let mut bytes = pattern(size);
        request.put(0, &bytes);
        let sent = client.client_send(7, &request, size, now).unwrap();
        let (held, len) = loop {
            assert!(client.client_recv(&mut result, now).is_none());
            if let Some(received) = server.server_recv(&mut taken, now) {
                break received;
            }
        };
        assert_eq!((held.method, len), (7, size));
        assert!(server.server_recv(&mut taken, now).is_none(), "held until it is answered");
        let mut got = Vec::new();
        taken.append_to(len, &mut got);
        assert_eq!(got, bytes);
        bytes.reverse();
        taken.put(0, &bytes);
        assert!(server.server_send(held.connection, &taken, size));
        assert!(!server.server_send(held.connection, &taken, size), "answered once");
        let (call, received) = loop {
            if let Some(received) = client.client_recv(&mut result, now) {
                break received;
            }
            assert!(server.server_recv(&mut taken, now).is_none());
        };
        assert_eq!((call, received.unwrap()), (sent, size));
        let mut got = Vec::new();
        result.append_to(size, &mut got);
        assert_eq!(got, bytes);
    }
    client.free_buf(request);
    server.free_buf(taken);
}

#[test]
fn the_six_calls_carry_requests_and_results() {
    round::<FetchThenReply>(&[0, 1, 64, 4_096, 20_000]);
    round::<ServerReply>(&[0, 1, 64, 4_096, 20_000]);
}

#[test]
fn buffers_are_bounded_and_come_back() {
    let nic = Nic::open(&SoftNic::new()).unwrap();
    let port = ClientPort::<ServerReply>::new(nic, CallerConfig::default(), 100).unwrap();
    let buffers: Vec<_> = std::iter::from_fn(|| port.malloc_buf(100).ok()).collect();
    assert_eq!(buffers.len(), 64);
    drop(buffers);
    assert!(port.malloc_buf(100).is_ok());
    assert!(port.malloc_buf(1_000).is_err());
}
