//! Invalid bytes on every port: each gets one clear reply, and the service continues.

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use crate::server::{PATIENCE, Server, read_to_end};

/// Returns a handshake frame: magic, range of versions, length of the body, body.
fn frame(min: u16, max: u16, len_bytes: u32, body: &[u8]) -> Vec<u8> {
    let mut frame = b"FCL1".to_vec();
    frame.extend(min.to_le_bytes());
    frame.extend(max.to_le_bytes());
    frame.extend(len_bytes.to_le_bytes());
    frame.extend(body);
    frame
}

#[test]
fn rejects_garbage_in_a_handshake_and_keeps_serving() {
    let server = Server::start("handshake", &[]);
    // A silent connection must not affect the others.
    let _silent = server.bootstrap();
    let attempts: [(&str, Vec<u8>, &str); 6] = [
        ("another protocol", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), "magic"),
        ("a version of the future", frame(900, 901, 1, &[0]), "version"),
        ("a frame of 4 GiB", frame(1, 1, u32::MAX, &[]), "allowed"),
        ("a message of no kind", frame(1, 1, 4, &[77; 4]), "the body of a frame"),
        ("a hello of garbage", frame(1, 1, 64, &[&[0][..], &[0xFF; 63]].concat()), ""),
        ("a welcome to the server", frame(1, 1, 4, &[1, 0, 0, 0]), ""),
    ];
    for (what, bytes, says) in attempts {
        let mut stream = server.bootstrap();
        stream.write_all(&bytes).unwrap();
        let answer = read_to_end(&mut stream);
        let text = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(b"FCL1") && text.contains(says), "{what}: {text:?}");
        server.assert_serves();
    }
    // Half of a header, then the end of the connection.
    server.bootstrap().write_all(b"FCL1\x01").unwrap();
    server.assert_serves();
}

#[test]
fn rejects_garbage_at_memcached_front_ends_and_keeps_serving() {
    let server = Server::start("memcached", &[]);
    let binary_protocol = [&[0x80, 0][..], &[0; 22]].concat();
    let long_key = [b"get ", &[b'k'; 251][..], b"\r\n"].concat();
    let endless = vec![b'x'; 1 << 20];
    let attempts: [(&str, &[u8]); 6] = [
        ("the binary protocol", &binary_protocol),
        ("a line without end", &endless),
        ("unknown commands", b"frobnicate\r\nslabs automove 1\r\n"),
        ("impossible numbers", b"set k 0 0 -1\r\nset k 0 0 99999999999999999999\r\nincr k x\r\n"),
        ("a key of 251 bytes", &long_key),
        ("half a value", b"set k 0 0 100\r\nhalf"),
    ];
    for (what, bytes) in attempts {
        let mut tcp = TcpStream::connect(server.place("tcp")).unwrap();
        let mut unix = UnixStream::connect(server.place("unix")).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        unix.set_read_timeout(Some(PATIENCE)).unwrap();
        // The server may close the connection before it has received all bytes.
        let _ = tcp.write_all(bytes).and_then(|()| tcp.shutdown(std::net::Shutdown::Write));
        let _ = unix.write_all(bytes).and_then(|()| unix.shutdown(std::net::Shutdown::Write));
        for answer in [read_to_end(&mut tcp), read_to_end(&mut unix)] {
            let text = String::from_utf8_lossy(&answer);
            assert!(answer.is_empty() || text.contains("ERROR"), "{what}: {text:?}");
        }
        server.assert_serves();
    }
    let stored = server.kv(&["get", "k"]);
    assert_eq!(stored.status.code(), Some(3), "nothing of it was stored: {stored:?}");
}
