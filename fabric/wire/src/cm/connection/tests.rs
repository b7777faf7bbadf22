use super::*;
use crate::cm::message::{ConnectionParams, Ece, IpRoute, PortSpace, QueuePair};

fn route(port_space: PortSpace) -> IpRoute {
    let (from, to) = ("127.0.0.1:40000".parse().unwrap(), "127.0.0.1:7174".parse().unwrap());
    IpRoute { port_space, from, to }
}

fn request() -> Request {
    Request {
        route: route(PortSpace::Tcp),
        qp: QueuePair { qp_num: 5, psn: 0 },
        ca_guid: 0,
        gid: [0; 16],
        peer_gid: [0; 16],
        qp_type: 2,
        mtu: 3,
        retry_count: 7,
        ack_timeout: 18,
        params: ConnectionParams::default(),
        ece: Ece::default(),
        private_data: Vec::new(),
    }
}

fn reply() -> Reply {
    Reply {
        qp: QueuePair { qp_num: 6, psn: 0 },
        ca_guid: 0,
        params: ConnectionParams::default(),
        ece: Ece::default(),
        private_data: vec![1, 2, 3],
    }
}

fn established() -> (Connection, Connection) {
    let (mut active, _req) = Connection::request(request());
    let mut passive = Connection::requested(&request());
    let rep = passive.accept(reply()).unwrap();
    assert_eq!(active.received(rep).event, Some(Event::Response(reply())));
    let rtu = active.ready().unwrap().unwrap();
    assert_eq!(passive.received(rtu).event, Some(Event::Established));
    assert_eq!((active.state(), passive.state()), (State::Established, State::Established));
    (active, passive)
}

#[test]
fn either_end_takes_leave() {
    for active_leaves in [true, false] {
        let (active, passive) = established();
        let (mut first, mut second) = if active_leaves { (active, passive) } else { (passive, active) };
        let dreq = first.disconnect().unwrap();
        assert_eq!(dreq, Message::Dreq { remote_qp_num: if active_leaves { 6 } else { 5 } });
        let answer = second.received(dreq);
        assert_eq!(answer.event, Some(Event::Disconnected));
        assert_eq!(second.disconnect(), None, "it is over");
        assert_eq!(first.received(answer.message.unwrap()).event, Some(Event::Disconnected));
        assert_eq!(first.peer_closed(), Step::default(), "said once");
        assert_eq!(first.timed_out().event, Some(Event::TimewaitExit));
        assert_eq!(first.timed_out(), Step::default());
        assert_eq!(first.disconnect(), None, "long over");
    }
}

#[test]
fn both_ends_take_leave_at_once() {
    let (mut a, mut b) = established();
    let (from_a, from_b) = (a.disconnect().unwrap(), b.disconnect().unwrap());
    let (at_a, at_b) = (a.received(from_b), b.received(from_a));
    assert_eq!(at_a.event, Some(Event::Disconnected));
    assert_eq!(at_b.event, Some(Event::Disconnected));
    assert_eq!(a.received(at_b.message.unwrap()), Step::default());
    assert_eq!(b.received(at_a.message.unwrap()), Step::default());
}

#[test]
fn reports_an_exited_peer_once_in_every_state() {
    let (mut active, _) = Connection::request(request());
    assert!(matches!(active.peer_closed().event, Some(Event::Rejected(_))));
    assert_eq!(active.peer_closed(), Step::default());

    let mut passive = Connection::requested(&request());
    passive.accept(reply()).unwrap();
    assert!(matches!(passive.peer_closed().event, Some(Event::Rejected(_))));

    let (mut a, _) = established();
    assert_eq!(a.peer_closed().event, Some(Event::Disconnected));
    assert_eq!(a.peer_closed(), Step::default());

    let (mut leaving, _) = established();
    leaving.disconnect().unwrap();
    assert_eq!(leaving.peer_closed().event, Some(Event::Disconnected));
}

/// The program first receives the event of the REP, then the one of the end.
#[test]
fn accepts_the_rep_of_a_peer_that_exits_afterwards() {
    let (mut active, _) = Connection::request(request());
    active.received(Message::Rep(reply()));
    assert_eq!(active.peer_closed().event, Some(Event::Disconnected));
    assert_eq!(active.ready(), Ok(None));
}

#[test]
fn refusals_have_reasons() {
    let (mut active, _) = Connection::request(request());
    let Some(Event::Rejected(nobody)) = active.refused().event else { panic!("refused") };
    assert_eq!(nobody.reason, reason::INVALID_SERVICE_ID);

    let (mut active, _) = Connection::request(request());
    let no = Connection::requested(&request()).reject(vec![9]).unwrap();
    let Some(Event::Rejected(refusal)) = active.received(no).event else { panic!("refused") };
    assert_eq!((refusal.reason, refusal.private_data), (reason::CONSUMER_DEFINED, vec![9]));

    let (mut active, _) = Connection::request(request());
    assert_eq!(active.timed_out().event, Some(Event::Unreachable));
}

#[test]
fn datagram_services_are_looked_up() {
    let question = || ServiceRequest { route: route(PortSpace::Udp), private_data: Vec::new() };
    let resolve = || Connection::resolve_service(question());
    let asked = || Connection::service_requested(&question());
    let service_id = question().route.service_id();
    let found = ServiceReply { status: 0, qp_num: 5, service_id, qkey: 6, private_data: vec![8] };
    let (mut active, _) = resolve();
    let answer = asked().serve(5, 6, vec![8]).unwrap();
    assert_eq!(active.received(answer).event, Some(Event::Service(found)));
    assert_eq!(active.peer_closed(), Step::default());

    let (mut active, _) = resolve();
    let Some(Event::Service(none)) = active.refused().event else { panic!("refused") };
    assert_eq!(none.status, reason::SIDR_UNSUPPORTED);

    let (mut active, _) = resolve();
    let no = asked().reject(Vec::new()).unwrap();
    let Some(Event::Service(none)) = active.received(no).event else { panic!("refused") };
    assert_eq!((none.status, none.service_id), (reason::SIDR_REJECT, service_id));
}

#[test]
fn calls_out_of_turn_change_nothing() {
    let (mut active, _) = Connection::request(request());
    assert_eq!(active.accept(reply()), Err(WrongState(State::ReqSent)));
    assert_eq!(active.ready(), Err(WrongState(State::ReqSent)));
    assert_eq!(active.disconnect(), None);
    assert_eq!(active.comm_established(), Err(WrongState(State::ReqSent)));
    assert_eq!(active.state(), State::ReqSent);
    let mut passive = Connection::requested(&request());
    passive.accept(reply()).unwrap();
    assert_eq!(passive.reject(Vec::new()), Err(WrongState(State::RepSent)));
    assert_eq!(passive.comm_established().unwrap().event, Some(Event::Established));
    assert_eq!(passive.received(Message::Rtu), Step::default(), "established already");
}

/// An unexpected message of the peer ends the connection; nothing panics, and the program receives one event.
#[test]
fn messages_out_of_turn_end_the_connection() {
    let (mut a, _) = established();
    assert_eq!(a.received(Message::Req(request())).event, Some(Event::Disconnected));
    assert_eq!(a.received(Message::Rtu), Step::default());
    let (mut active, _) = Connection::request(request());
    assert!(matches!(active.received(Message::Rtu).event, Some(Event::Rejected(_))));
}

/// An MRA announces a longer wait and changes no state.
#[test]
fn a_receipt_is_waited_for_no_less() {
    let (mut active, _) = Connection::request(request());
    let receipt = Message::Mra { received: RejectedMessage::Req, service_timeout: 20 };
    assert_eq!(active.received(receipt), Step::default());
    assert_eq!(active.received(Message::Rep(reply())).event, Some(Event::Response(reply())));
}

/// A process that ends a connection on behalf of an exited process sends what that process would have sent, and the
/// peer receives the event of the end.
#[test]
fn disconnects_in_the_name_of_an_exited_process() {
    let (active, mut passive) = established();
    let (mut speaker, dreq) = Connection::for_exited_process(active.waiting_qp_num().unwrap());
    assert_eq!(dreq, Message::Dreq { remote_qp_num: 6 });
    let answer = passive.received(dreq);
    assert_eq!((answer.event, passive.waiting_qp_num()), (Some(Event::Disconnected), None));
    assert_eq!(speaker.received(answer.message.unwrap()).event, Some(Event::Disconnected));
    assert_eq!(speaker.waiting_qp_num(), None);
}

#[test]
fn stays_half_open_until_both_ends_are_ready() {
    let mut passive = Connection::requested(&request());
    assert!(passive.is_half_open() && passive.waiting_qp_num().is_none());
    passive.accept(reply()).unwrap();
    assert!(passive.is_half_open() && passive.waiting_qp_num() == Some(5));
    passive.received(Message::Rtu);
    assert!(!passive.is_half_open() && passive.waiting_qp_num() == Some(5));
    let (active, _) = Connection::request(request());
    assert!(!active.is_half_open() && active.waiting_qp_num().is_none());
}
