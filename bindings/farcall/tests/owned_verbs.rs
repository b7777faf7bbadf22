//! Verbs in safe Rust: ownership of buffers, and their return.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use farcall::verbs::owned::{
    Address, AsyncPair, Buffer, Buffers, Completion, Pair, PostRefused, SharedMemory, Transport,
};
use farcall::verbs::{Access, WcStatus};
use farcall::{Nic, SoftNic};

/// Long enough for any machine under any load.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

fn connected(nic: &Nic, transport: Transport, buffers: &Buffers) -> [Pair; 2] {
    let mut pairs = [0, 1].map(|_| Pair::new(nic, transport, buffers).unwrap());
    let addresses = [0, 1].map(|at: usize| Address::from_bytes(&pairs[at].address().to_bytes()).unwrap());
    pairs[0].connect(&addresses[1]).unwrap();
    pairs[1].connect(&addresses[0]).unwrap();
    pairs
}

fn setup(count: u32) -> (Nic, Buffers) {
    let nic = Nic::open(&SoftNic::new()).unwrap();
    let buffers = Buffers::new(&nic, count, 256).unwrap();
    (nic, buffers)
}

fn filled(buffers: &Buffers, text: &[u8]) -> Buffer {
    let mut buffer = buffers.take().unwrap();
    buffer.write(0, text);
    buffer
}

fn done(pair: &mut Pair) -> Buffer {
    match pair.wait(PATIENCE).unwrap() {
        Some(Completion::Done(buffer)) => buffer,
        other => panic!("{other:?}"),
    }
}

/// Returns the number of free buffers.
fn free(buffers: &Buffers) -> usize {
    std::iter::from_fn(|| buffers.take()).collect::<Vec<_>>().len()
}

#[test]
fn messages_arrive_over_every_transport_and_buffers_come_back() {
    for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
        let (nic, buffers) = setup(4);
        let [mut here, mut there] = connected(&nic, transport, &buffers);
        for round in 0..10_u8 {
            there.post_receive(buffers.take().unwrap()).unwrap();
            here.send(filled(&buffers, &[round; 7]), 7).unwrap();
            let Some(Completion::Received { buffer, payload, imm: None }) = there.wait(PATIENCE).unwrap()
            else {
                panic!("{transport:?}");
            };
            assert_eq!(payload.start, if transport == Transport::Ud { 40 } else { 0 });
            assert_eq!(buffer.to_vec(payload), [round; 7]);
            done(&mut here);
        }
        assert_eq!(free(&buffers), 4);
    }
}

#[test]
fn restricts_shared_memory_to_its_grant() {
    let (nic, buffers) = setup(2);
    let [mut here, _there] = connected(&nic, Transport::Rc, &buffers);
    let shared =
        SharedMemory::new(&nic, 4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ)
            .unwrap();
    let grant = shared.grant();
    here.write(filled(&buffers, b"written"), 7, &grant, 100).unwrap();
    done(&mut here);
    let mut found = [0; 7];
    shared.read(100, &mut found);
    assert_eq!(&found, b"written");
    shared.write(0, b"to be read");
    here.read(buffers.take().unwrap(), 10, &grant, 0).unwrap();
    assert_eq!(done(&mut here).to_vec(0..10), b"to be read");
    let refused = here.write(buffers.take().unwrap(), 7, &grant, shared.len_bytes() - 6).unwrap_err();
    assert!(matches!(refused.source, PostRefused::OutsideOfGrant { .. }), "{refused}");
    drop(refused);
    assert_eq!(free(&buffers), 2, "a refusal gives the buffer back");
}

#[test]
fn buffers_of_others_and_pairs_without_a_peer_are_refused() {
    let (nic, buffers) = setup(2);
    let [mut here, _there] = connected(&nic, Transport::Rc, &buffers);
    let others = Buffers::new(&nic, 1, 256).unwrap();
    let refused = here.send(others.take().unwrap(), 1).unwrap_err();
    assert!(matches!(refused.source, PostRefused::NotAttached { .. }), "{refused}");
    assert!(here.post_receive(refused.buffer).is_err());
    assert_eq!(free(&others), 1);
    let mut alone = Pair::new(&nic, Transport::Rc, &buffers).unwrap();
    assert!(alone.send(buffers.take().unwrap(), 1).is_err());
    let mut unknown = alone.address().to_bytes();
    unknown[0] = 9;
    assert!(Address::from_bytes(&unknown).unwrap_err().to_string().contains("format 9"));
    assert!(Buffers::new(&nic, 0, 64).is_err() && Buffers::new(&nic, 2, usize::MAX).is_err());
}

#[test]
fn returns_all_buffers_with_the_reason_when_a_pair_fails() {
    let (nic, buffers) = setup(4);
    let [mut here, there] = connected(&nic, Transport::Rc, &buffers);
    here.post_receive(buffers.take().unwrap()).unwrap();
    here.post_receive(buffers.take().unwrap()).unwrap();
    let grant = SharedMemory::new(&nic, 64, Access::LOCAL_WRITE).unwrap().grant();
    // The grant has been revoked by now, so the peer refuses.
    here.write(buffers.take().unwrap(), 1, &grant, 0).unwrap();
    let mut back = Vec::new();
    for _ in 0..3 {
        match here.wait(PATIENCE).unwrap() {
            Some(Completion::Ended { buffer, failure: Some(WcStatus::REM_ACCESS_ERR) }) => back.push(buffer),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((here.failure(), free(&buffers)), (Some(WcStatus::REM_ACCESS_ERR), 1));
    drop((back, there));
    assert_eq!(free(&buffers), 4);
}

#[test]
fn returns_outstanding_buffers_when_a_pair_is_dropped() {
    let (nic, buffers) = setup(3);
    let [mut here, _there] = connected(&nic, Transport::Rc, &buffers);
    here.post_receive(buffers.take().unwrap()).unwrap();
    here.send(buffers.take().unwrap(), 8).unwrap();
    assert_eq!(free(&buffers), 1);
    drop(here);
    assert_eq!(free(&buffers), 3);
}

#[test]
fn the_descriptor_is_readable_after_a_completion() {
    let (nic, buffers) = setup(2);
    let [mut here, mut there] = connected(&nic, Transport::Rc, &buffers);
    there.post_receive(buffers.take().unwrap()).unwrap();
    assert!(there.wait(Some(Duration::ZERO)).unwrap().is_none(), "nothing came yet");
    there.arm().unwrap();
    assert_eq!(there.as_fd().as_raw_fd(), there.as_raw_fd());
    here.send(filled(&buffers, b"wake"), 4).unwrap();
    // `wait` relies on the same readiness that poll(2) reports here.
    let Some(Completion::Received { .. }) = there.wait(PATIENCE).unwrap() else { panic!() };
}

#[tokio::test]
async fn tasks_wait_for_completions_without_a_thread_each() {
    let (nic, buffers) = setup(8);
    let [here, there] = connected(&nic, Transport::Rc, &buffers).map(|pair| AsyncPair::new(pair).unwrap());
    let [(mut here, of_here), (mut there, of_there)] = [(here, buffers.clone()), (there, buffers.clone())];
    there.post_receive(buffers.take().unwrap()).unwrap();
    here.post_receive(buffers.take().unwrap()).unwrap();
    let answers = async move {
        let mut count = 0;
        while count < 100 {
            match there.completion().await.unwrap() {
                Completion::Received { buffer, payload, .. } => {
                    let word = buffer.to_vec(payload);
                    there.post_receive(buffer).unwrap();
                    there.send(filled(&of_there, &word), word.len()).unwrap();
                    count += 1;
                }
                Completion::Done(_) => {}
                ended => panic!("{ended:?}"),
            }
        }
        there
    };
    let asks = async move {
        for round in 0..100_u32 {
            here.send(filled(&of_here, &round.to_le_bytes()), 4).unwrap();
            loop {
                match here.completion().await.unwrap() {
                    Completion::Received { buffer, payload, .. } => {
                        assert_eq!(buffer.to_vec(payload), round.to_le_bytes());
                        here.post_receive(buffer).unwrap();
                        break;
                    }
                    Completion::Done(_) => {}
                    ended => panic!("{ended:?}"),
                }
            }
        }
        here
    };
    let both = async { tokio::join!(answers, asks) };
    let ends = tokio::time::timeout(Duration::from_secs(60), both).await.expect("no wake-up is lost");
    drop(ends);
    assert_eq!(free(&buffers), 8);
}
