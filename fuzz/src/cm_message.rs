//! Packets from a peer to a connection in any state, in any order: no panic, what decodes encodes to the same message,
//! and the end of a connection is reported once.

use farcall_wire::cm::{Connection, Event, MESSAGE_BYTES_MAX, Message, Reply, State, Step};

/// A connection in one of the states in which messages of the peer are handled.
fn connection_in(kind: u8, first: Message) -> Option<Connection> {
    let reply = || {
        let (qp, terms, ece) = Default::default();
        Reply { qp, terms, ece, private_data: Vec::new() }
    };
    match (first, kind % 4) {
        (Message::Req(request), 0) => Some(Connection::request(request).0),
        (Message::SidrReq(request), 0) => Some(Connection::resolve_service(request).0),
        (Message::SidrReq(_), _) => Some(Connection::service_requested()),
        (_, kind) => {
            let mut passive = Connection::requested();
            if kind > 1 {
                passive.accept(reply()).ok()?;
            }
            if kind > 2 {
                passive.comm_established().ok()?;
            }
            Some(passive)
        }
    }
}

fn is_final(step: &Step) -> bool {
    matches!(
        step.event,
        Some(Event::Disconnected | Event::Rejected(_) | Event::Service(_) | Event::Unreachable)
    )
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((&kind, mut rest)) = input.split_first() else { return };
    let mut connection: Option<Connection> = None;
    let mut ends = 0;
    while let Some((&len, packet)) = rest.split_first() {
        let (packet, after) = packet.split_at(packet.len().min(usize::from(len)));
        rest = after;
        let Ok(message) = Message::decode(packet) else { continue };
        let again = message.encode();
        assert!(again.len() <= MESSAGE_BYTES_MAX);
        assert_eq!(Message::decode(&again).as_ref(), Ok(&message));
        match &mut connection {
            None => connection = connection_in(kind, message),
            Some(connection) => {
                let step = connection.received(message);
                ends += u32::from(is_final(&step));
                if connection.state() == State::RepReceived && kind & 0x80 != 0 {
                    assert!(connection.ready().is_ok());
                }
                if kind & 0x40 != 0 {
                    let _ = connection.disconnect();
                }
            }
        }
    }
    if let Some(mut connection) = connection {
        ends += u32::from(is_final(&connection.peer_closed()));
        assert_eq!(connection.peer_closed(), Step::default());
        assert!(ends <= 1, "the end was told {ends} times");
    }
}
