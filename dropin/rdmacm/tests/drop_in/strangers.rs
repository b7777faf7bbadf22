//! Clients that send requests without limit: a process on another host that has queue pair 1 to itself, and sends
//! arbitrary messages.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use farcall_softnic::Management;
use farcall_wire::cm::{
    ConnectionParams, IpRoute, MESSAGE_BYTES, Mad, Message, PortSpace, QueuePair, RejectedMessage, Request,
    reason,
};

use crate::hosts::on_two_hosts;
use crate::meeting::{compile, folder};

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// Address of the requesting process.
const STRANGER: &str = "FARCALL_TEST_STRANGER";
/// Maximum number of requests of one host that may wait for a reply.
const HALF_OPEN_MAX: usize = 128;
const REQUESTS: u32 = 200;
const LOST: Duration = Duration::from_secs(60);

fn mad(local_comm_id: u32, message: Message) -> Mad {
    Mad { transaction_id: local_comm_id.into(), local_comm_id, remote_comm_id: 0, message }
}

fn request(from: Ipv4Addr, local_comm_id: u32) -> Mad {
    let at = |ip: Ipv4Addr, port| SocketAddr::from((ip, port));
    let gid = |ip: Ipv4Addr| ip.to_ipv6_mapped().octets();
    let request = Request {
        route: IpRoute { port_space: PortSpace::Tcp, from: at(from, 40_000), to: at(SERVER, 7174) },
        qp: QueuePair { qp_num: local_comm_id, psn: 0 },
        ca_guid: 1,
        gid: gid(from),
        peer_gid: gid(SERVER),
        qp_type: 2,
        mtu: 3,
        retry_count: 7,
        ack_timeout: 18,
        params: ConnectionParams::default(),
        ece: Default::default(),
        private_data: Vec::new(),
    };
    mad(local_comm_id, Message::Req(request))
}

fn say(stranger: &Management, mad: &Mad) {
    stranger.send(SERVER.to_ipv6_mapped(), &mad.encode()).unwrap();
}

/// Returns the counters of the server's processes.
fn refused() -> u64 {
    let reports = farcall_stats::read_all().unwrap();
    let counters = reports.iter().flat_map(|report| &report.blocks).flat_map(|block| &block.counters);
    counters.filter(|(name, _)| name == "connections_refused").map(|(_, count)| count).sum()
}

/// Repeats requests until each has a reply, if only an MRA.
fn ask_without_end(stranger: &Management, from: Ipv4Addr) -> HashMap<u32, Message> {
    let (mut answers, began) = (HashMap::new(), Instant::now());
    while answers.len() < REQUESTS as usize {
        assert!(began.elapsed() < LOST, "{} answers", answers.len());
        for id in (1..=REQUESTS).filter(|id| !answers.contains_key(id)).collect::<Vec<_>>() {
            say(stranger, &request(from, id));
            std::thread::sleep(Duration::from_millis(1));
            while let Some(came) = stranger.take() {
                let answer = Mad::decode(&came.bytes).unwrap();
                if (1..=REQUESTS).contains(&answer.remote_comm_id) {
                    answers.insert(answer.remote_comm_id, answer.message);
                }
            }
        }
    }
    answers
}

fn be_strange(from: Ipv4Addr) {
    let stranger = Management::open().unwrap();
    assert!(stranger.claim().unwrap());
    // Messages without a connection, and bytes that are not a message.
    for message in [Message::Rtu, Message::Drep, Message::Dreq { remote_qp_num: 1 }] {
        for remote_comm_id in [0, 1, u32::MAX] {
            say(&stranger, &Mad { remote_comm_id, ..mad(REQUESTS + 1, message.clone()) });
        }
    }
    stranger.send(SERVER.to_ipv6_mapped(), &[0xFF; MESSAGE_BYTES]).unwrap();
    let answers = ask_without_end(&stranger, from);
    let is_wait = |answer: &&Message| matches!(answer, Message::Mra { received: RejectedMessage::Req, .. });
    let is_no = |answer: &&Message| matches!(answer, Message::Rej(rejection) if rejection.reason == reason::NO_RESOURCES);
    let requests = || (1..=REQUESTS).map(|id| &answers[&id]);
    assert_eq!(requests().filter(is_wait).count(), HALF_OPEN_MAX);
    assert_eq!(requests().filter(is_no).count(), REQUESTS as usize - HALF_OPEN_MAX);
    assert!(refused() >= u64::from(REQUESTS) - HALF_OPEN_MAX as u64);
}

/// A limited number of requests of each host may wait; the others are refused and counted.
#[test]
fn a_host_that_asks_without_end_is_refused() {
    if let Ok(from) = std::env::var(STRANGER) {
        return be_strange(from.parse().unwrap());
    }
    let folder = folder("strangers");
    let Some(program) = compile("ends.c", &folder) else { return };
    let server = format!("exec {program} hoard 7174 192.0.2.2");
    let tests = std::env::current_exe().unwrap();
    let stranger =
        format!("{} --exact strangers::a_host_that_asks_without_end_is_refused --nocapture", tests.display());
    let client = format!(
        "until grep -q -e :7174.sock /proc/$server/net/unix; do kill -0 $server; sleep 0.02; done
        {STRANGER}=192.0.2.1 {stranger}
        ip addr del 192.0.2.1/24 dev here
        ip addr add 192.0.2.3/24 dev here
        {STRANGER}=192.0.2.3 {stranger}
        kill -0 $server
        kill $server"
    );
    let Some(said) = on_two_hosts("strangers-two", "", &server, &client) else { return };
    assert_eq!(said.matches("1 passed").count(), 2, "{said}");
}

/// Repeats a request until an accepted reply arrives.
fn ask(stranger: &Management, question: &Mad, is_wanted: impl Fn(&Message) -> bool) -> Mad {
    let began = Instant::now();
    while began.elapsed() < LOST {
        say(stranger, question);
        std::thread::sleep(Duration::from_millis(20));
        let came = std::iter::from_fn(|| stranger.take()).map(|came| Mad::decode(&came.bytes).unwrap());
        if let Some(answer) = came.into_iter().find(|answer| is_wanted(&answer.message)) {
            return answer;
        }
    }
    panic!("no answer to {question:?}");
}

fn be_late(from: Ipv4Addr) {
    let stranger = Management::open().unwrap();
    assert!(stranger.claim().unwrap());
    let question = request(from, 5);
    let answer = ask(&stranger, &question, |message| matches!(message, Message::Rep(_)));
    let more = |message| Mad { remote_comm_id: answer.local_comm_id, ..mad(5, message) };
    say(&stranger, &more(Message::Rtu));
    for _ in 0..3 {
        say(&stranger, &question);
    }
    let Message::Rep(reply) = &answer.message else { unreachable!("wanted above") };
    let dreq = more(Message::Dreq { remote_qp_num: reply.qp.qp_num });
    ask(&stranger, &dreq, |message| *message == Message::Drep);
}

/// The network may delay a request until its connection is established: the program does not receive it again.
#[test]
fn a_request_that_comes_late_is_no_second_one() {
    if let Ok(from) = std::env::var(STRANGER) {
        return be_late(from.parse().unwrap());
    }
    let folder = folder("late");
    let Some(program) = compile("ends.c", &folder) else { return };
    let server = format!("exec {program} serve 7174 192.0.2.2");
    let tests = std::env::current_exe().unwrap();
    let client = format!(
        "until grep -q -e :7174.sock /proc/$server/net/unix; do kill -0 $server; sleep 0.02; done
        {STRANGER}=192.0.2.1 {} --exact strangers::a_request_that_comes_late_is_no_second_one --nocapture
        wait $server",
        tests.display()
    );
    let Some(said) = on_two_hosts("late-two", "", &server, &client) else { return };
    assert!(said.contains("ok"), "{said}");
}

/// Sends requests from an address of the server's own host, to be forwarded by the process that owns queue pair 1.
fn be_at_home(own: Ipv4Addr) {
    let stranger = Management::open().unwrap();
    for id in 1..=50 {
        say(&stranger, &request(own, id));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The process that owns queue pair 1 may admit a request that the listener's own configuration does not permit: then
/// no program receives it, because it could not accept it and would exit.
#[test]
fn a_request_from_an_own_address_reaches_no_program() {
    if let Ok(own) = std::env::var(STRANGER) {
        return be_at_home(own.parse().unwrap());
    }
    let tests = std::env::current_exe().unwrap();
    let server = format!(
        "rping -s -C 5 -a 192.0.2.2 -p 7175 & holder=$!
        until grep -q process-0.sock /proc/net/unix; do kill -0 $holder; sleep 0.02; done
        FARCALL_TRANSPORT=auto rping -s -C 5 -a 192.0.2.2 -p 7174 & listener=$!
        until grep -q process-1.sock /proc/net/unix; do kill -0 $listener; sleep 0.02; done
        {STRANGER}=192.0.2.2 {} --exact strangers::a_request_from_an_own_address_reaches_no_program --nocapture
        kill $listener
        wait $listener || [ $? = 143 ] || exit 1
        kill $holder",
        tests.display()
    );
    let Some(said) = on_two_hosts("asked-at-home", "", &server, "wait $server") else { return };
    assert!(said.contains("1 passed") && !said.contains("accept"), "{said}");
}
