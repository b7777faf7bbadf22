//! Programs of other languages, whose run times wait and write differently.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::programs::{PATIENCE, free_port, output, wait_for};
use crate::support::{Running, TestDirectory, has, library, moved_bytes, program};

/// Runs both ends of a program of one language; `arguments` of an end, before its port. Returns the bytes that its
/// server moved.
pub fn both(name: &str, server: &[&str], client: &[&str]) -> Option<u64> {
    let port = free_port();
    let mut command = program(name, true);
    command.args(server).arg(&port);
    let mut running = Running::start(command);
    wait_for(&port);
    assert_eq!(output(program(name, true).args(client).arg(&port)).trim(), "done");
    moved_bytes(running.stop())
}

#[test]
fn serves_persistent_http_connections_of_node() {
    if !has("node", "nodejs") {
        return;
    }
    let server = r"
const http = require('http'), crypto = require('crypto');
http.createServer((request, response) => {
    const hash = crypto.createHash('sha256'), parts = [];
    request.on('data', part => { hash.update(part); parts.push(part); });
    request.on('end', () => {
        response.setHeader('digest', hash.digest('hex'));
        for (const part of parts) response.write(part);
        response.end();
    });
}).listen(+process.argv[1], '127.0.0.1');
";
    let client = r"
const http = require('http'), crypto = require('crypto');
const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
let left = 200;
function one(n) {
    const body = crypto.randomBytes(1 + n * 7919 % 200000);
    const request = http.request({ port: +process.argv[1], host: '127.0.0.1', method: 'POST', agent }, response => {
        const parts = [];
        response.on('data', part => parts.push(part));
        response.on('end', () => {
            if (!Buffer.concat(parts).equals(body)) throw new Error('wrong bytes');
            if (response.headers.digest !== crypto.createHash('sha256').update(body).digest('hex')) throw new Error('digest');
            if (--left == 0) { console.log('done'); agent.destroy(); }
        });
    });
    request.end(body);
}
for (let n = 0; n < 200; n++) one(n);
";
    let moved = both("node", &["-e", server], &["-e", client]);
    assert!(moved.is_none_or(|bytes| bytes > 1_000_000), "{moved:?}");
}

#[test]
fn echoes_with_java_selectors() {
    if !has("java", "openjdk-17-jdk-headless") || !has("javac", "openjdk-17-jdk-headless") {
        return;
    }
    let directory = TestDirectory::new("java");
    let source = r#"
import java.io.*;
import java.net.*;
import java.nio.*;
import java.nio.channels.*;
import java.util.*;

public class Echo {
    static void serve(int port) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress("127.0.0.1", port)).configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (Iterator<SelectionKey> keys = selector.selectedKeys().iterator(); keys.hasNext();) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isAcceptable()) {
                    SocketChannel channel = listener.accept();
                    channel.configureBlocking(false);
                    channel.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(30000));
                    continue;
                }
                SocketChannel channel = (SocketChannel) key.channel();
                ByteBuffer buffer = (ByteBuffer) key.attachment();
                if (key.isReadable() && channel.read(buffer) < 0) {
                    channel.close();
                    continue;
                }
                buffer.flip();
                channel.write(buffer);
                boolean isLeft = buffer.hasRemaining();
                buffer.compact();
                int reads = buffer.hasRemaining() ? SelectionKey.OP_READ : 0;
                key.interestOps(reads | (isLeft ? SelectionKey.OP_WRITE : 0));
            }
        }
    }

    static void ask(int port, long seed) throws Exception {
        try (Socket socket = new Socket("127.0.0.1", port)) {
            Random random = new Random(seed);
            DataInputStream in = new DataInputStream(socket.getInputStream());
            for (int round = 0; round < 100; round++) {
                byte[] sent = new byte[1 + random.nextInt(50000)], got = new byte[sent.length];
                random.nextBytes(sent);
                Thread writer = new Thread(() -> {
                    try {
                        socket.getOutputStream().write(sent);
                    } catch (IOException e) {
                        throw new UncheckedIOException(e);
                    }
                });
                writer.start();
                in.readFully(got);
                writer.join();
                if (!Arrays.equals(sent, got)) throw new Exception("wrong bytes");
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[1]);
        if (arguments[0].equals("serve")) serve(port);
        for (int n = 0; n < 4; n++) ask(port, n);
        System.out.println("done");
    }
}
"#;
    std::fs::write(directory.path("Echo.java"), source).unwrap();
    output(Command::new("javac").arg(directory.path("Echo.java")));
    let root = directory.path("");
    let moved = both("java", &["-cp", &root, "Echo", "serve"], &["-cp", &root, "Echo", "ask"]);
    assert!(moved.is_none_or(|bytes| bytes > 1_000_000), "{moved:?}");
}

#[test]
fn transfers_complete_tls_streams() {
    if !has("python3", "python3") || !has("openssl", "openssl") {
        return;
    }
    let directory = TestDirectory::new("tls");
    let (key, certificate) = (directory.path("key"), directory.path("certificate"));
    let subject = ["-subj", "/CN=localhost", "-days", "2", "-nodes"];
    let mut openssl = Command::new("openssl");
    openssl
        .args(["req", "-x509", "-newkey", "rsa:2048", "-keyout", &key, "-out", &certificate])
        .args(subject);
    output(&mut openssl);
    let server = r"
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
listener = socket.create_server(('127.0.0.1', int(sys.argv[3])))
while True:
    plain, _ = listener.accept()
    try:
        with context.wrap_socket(plain, server_side=True) as connection:
            while data := connection.recv(70000):
                connection.sendall(data)
    except OSError:
        pass
";
    let client = r"
import os, socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[1])
context.check_hostname = False
plain = socket.create_connection(('127.0.0.1', int(sys.argv[2])))
with context.wrap_socket(plain) as connection:
    for size in range(1, 60000, 611):
        data = os.urandom(size)
        connection.sendall(data)
        got = b''
        while len(got) < size:
            got += connection.recv(size - len(got))
        assert got == data
print('done')
";
    let moved = both("python3", &["-c", server, &certificate, &key], &["-c", client, &certificate]);
    assert!(moved.is_none_or(|bytes| bytes > 1_000_000), "{moved:?}");
}

/// A command of an unprivileged user: the database refuses the superuser.
fn as_user(name: &str, library: &str) -> Command {
    let is_root = rustix::process::geteuid().is_root();
    let mut command = Command::new(if is_root { "setpriv" } else { "env" });
    if is_root {
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "env"]);
    }
    if !library.is_empty() {
        command.arg(format!("LD_PRELOAD={library}"));
    }
    command.arg(name);
    command
}

/// Directory of the newest PostgreSQL that Debian has.
fn postgresql() -> Option<String> {
    let mut versions: Vec<u32> = std::fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    versions.sort_unstable();
    Some(format!("/usr/lib/postgresql/{}/bin", versions.last()?))
}

#[test]
fn keeps_postgresql_accounts_balanced() {
    let Some(programs) = postgresql() else {
        eprintln!("SKIPPED: no PostgreSQL on this machine (Debian: apt-get install postgresql)");
        return;
    };
    let directory = TestDirectory::reachable("postgresql");
    let (data, copy, port) = (&directory.path("data"), &directory.path("library.so"), free_port());
    // The user cannot read the build directory.
    std::fs::copy(library(), copy).unwrap();
    if rustix::process::geteuid().is_root() {
        output(Command::new("chown").args(["-R", "postgres", &directory.path("")]));
    }
    let bin = |name: &str| format!("{programs}/{name}");
    output(as_user(&bin("initdb"), "").args(["-D", data, "-A", "trust"]));
    let mut server = as_user(&bin("postgres"), copy);
    server.args(["-D", data, "-p", &port, "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]);
    server.args(["-c", "unix_socket_directories="]);
    let mut server = Running::start(server);
    let began = Instant::now();
    let mut ready = as_user(&bin("pg_isready"), "");
    ready.args(["-q", "-h", "127.0.0.1", "-p", &port]);
    while !ready.status().unwrap().success() {
        assert!(began.elapsed() < PATIENCE, "PostgreSQL does not start");
        std::thread::sleep(Duration::from_millis(50));
    }
    let bench = |arguments: &[&str]| {
        let mut bench = as_user(&bin("pgbench"), copy);
        output(bench.args(["-h", "127.0.0.1", "-p", &port]).args(arguments).arg("postgres"))
    };
    bench(&["-i", "-s", "1"]);
    let printed = bench(&["-c", "4", "-j", "2", "-t", "100"]);
    assert!(printed.contains("400/400"), "{printed}");
    let mut query = as_user(&bin("psql"), copy);
    let sums =
        "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)";
    let printed = output(query.args(["-h", "127.0.0.1", "-p", &port, "-t", "-A", "-c", sums, "postgres"]));
    assert_eq!(printed.trim(), "t");
    server.stop();
}
