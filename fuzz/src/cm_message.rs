//! Packets from a peer to a connection in any state, in any order: no panic, a decoded message encodes to itself, and
//! the end of a connection is reported once.

use farcall_wire::cm::{
    CommunicationIds, Connection, Event, MESSAGE_BYTES, Mad, Message, Reply, State, Step,
};

/// Local identifier of the connection, which the packets of the seeds use.
const LOCAL_COMM_ID: u32 = 1;

/// Creates a connection in one of the states in which messages of the peer are handled.
fn connection_in(kind: u8, first: Message) -> Option<Connection> {
    let reply = || {
        let (qp, ca_guid, params, ece) = Default::default();
        Reply { qp, ca_guid, params, ece, private_data: Vec::new() }
    };
    match (first, kind % 4) {
        (Message::Req(request), 0) => Some(Connection::request(request).0),
        (Message::SidrReq(request), 0) => Some(Connection::resolve_service(request).0),
        (Message::SidrReq(request), _) => Some(Connection::service_requested(&request)),
        (Message::Req(request), kind) => {
            let mut passive = Connection::requested(&request);
            if kind > 1 {
                passive.accept(reply()).ok()?;
            }
            if kind > 2 {
                passive.comm_established().ok()?;
            }
            Some(passive)
        }
        _ => None,
    }
}

fn is_final(step: &Step) -> bool {
    matches!(
        step.event,
        Some(Event::Disconnected | Event::Rejected(_) | Event::Service(_) | Event::Unreachable)
    )
}

/// Runs one input: a byte that selects the state, then packets.
pub fn run(input: &[u8]) {
    let Some((&kind, packets)) = input.split_first() else { return };
    let mut connection: Option<(CommunicationIds, Connection)> = None;
    let mut ends = 0;
    for packet in packets.chunks(MESSAGE_BYTES) {
        let Ok(mad) = Mad::decode(packet) else { continue };
        assert_eq!(Mad::decode(&mad.encode()).as_ref(), Ok(&mad));
        match &mut connection {
            None => {
                let ids = CommunicationIds::for_responder(LOCAL_COMM_ID, &mad);
                connection = connection_in(kind, mad.message).map(|connection| (ids, connection));
            }
            Some((ids, connection)) => {
                if !ids.matches(&mad) {
                    continue;
                }
                let step = connection.received(mad.message);
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
    if let Some((_, mut connection)) = connection {
        ends += u32::from(is_final(&connection.peer_closed()));
        assert_eq!(connection.peer_closed(), Step::default());
        assert!(ends <= 1, "the end was told {ends} times");
    }
}
