//! A relay between clients and a server's bootstrap address. Its connections can be cut, and the server behind it can
//! be replaced, while clients keep using the same address. Calls do not pass through it.
#![allow(dead_code)]

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

pub struct Relay {
    pub address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    server: SocketAddr,
    open: Vec<TcpStream>,
}

impl Relay {
    pub fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Mutex::new(Shared { server, open: Vec::new() }));
        let relaying = Arc::clone(&shared);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = relaying.lock().unwrap().server;
                // If the server has exited, the client's connection is closed at once.
                let Ok(server) = TcpStream::connect(server) else { continue };
                join(&client, &server);
                relaying.lock().unwrap().open.extend([client, server]);
            }
        });
        Self { address, shared }
    }

    /// Directs later connections to another server.
    pub fn redirect(&self, server: SocketAddr) {
        self.shared.lock().unwrap().server = server;
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        for stream in self.shared.lock().unwrap().open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Copies in both directions until either end closes, then closes both.
fn join(a: &TcpStream, b: &TcpStream) {
    for (from, to) in [(a, b), (b, a)] {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}
