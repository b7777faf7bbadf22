//! Packets from a peer to an end of any kind, in any order: no panic, what decodes means the same when it is sent on, and a
//! program hears of the end of a connection once.

#![no_main]

use farcall_cm::{Connection, Event, MESSAGE_BYTES_MAX, Message, Reply, State, Step};
use libfuzzer_sys::fuzz_target;

/// An end in one of the states in which a peer can be heard.
fn end(kind: u8, first: Message) -> Option<Connection> {
    let reply = || {
        let (qp, terms, ece) = Default::default();
        Reply { qp, terms, ece, private_data: Vec::new() }
    };
    match (first, kind % 4) {
        (Message::Req(request), 0) => Some(Connection::ask(request).0),
        (Message::SidrReq(request), 0) => Some(Connection::look_up(request).0),
        (Message::SidrReq(_), _) => Some(Connection::looked_up()),
        (_, kind) => {
            let mut asked = Connection::asked();
            if kind > 1 {
                asked.accept(reply()).ok()?;
            }
            if kind > 2 {
                asked.in_use().ok()?;
            }
            Some(asked)
        }
    }
}

fn is_final(step: &Step) -> bool {
    matches!(
        step.event,
        Some(Event::Disconnected | Event::Rejected(_) | Event::Service(_) | Event::Unreachable)
    )
}

fuzz_target!(|input: &[u8]| {
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
            None => connection = end(kind, message),
            Some(connection) => {
                let step = connection.heard(message);
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
        ends += u32::from(is_final(&connection.hung_up()));
        assert_eq!(connection.hung_up(), Step::default());
        assert!(ends <= 1, "the end was told {ends} times");
    }
});
