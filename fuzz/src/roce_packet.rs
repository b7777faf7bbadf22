//! Bytes of a RoCEv2 datagram: no panic, and decoded headers encode to bytes that decode to the same headers.

use std::net::IpAddr;

use farcall_wire::codec::{
    HEADERS_BYTES_MAX, ICRC_BYTES, UDP_PORT, decode, dest_qpn_of, encode, icrc, pad_bytes,
};

/// Runs one input.
pub fn run(input: &[u8]) {
    let addresses: [IpAddr; 2] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
    let flow = icrc::Flow { src: addresses[0], dst: addresses[1], src_port: UDP_PORT, dst_port: UDP_PORT };
    let _ = icrc::is_sound(&flow, input);
    let Ok((packet, payload)) = decode(input) else { return };
    assert_eq!(dest_qpn_of(input), Some(packet.dest_qpn));
    let mut headers = [0; HEADERS_BYTES_MAX];
    let len_bytes = encode(&packet, payload.len(), &mut headers);
    assert_eq!(headers[0], input[0], "the opcode");
    let mut again = headers[..len_bytes].to_vec();
    again.extend_from_slice(payload);
    again.resize(again.len() + pad_bytes(payload.len()) + ICRC_BYTES, 0);
    icrc::seal(&flow, &mut again);
    assert!(icrc::is_sound(&flow, &again));
    assert_eq!(decode(&again), Ok((packet, payload)));
}
