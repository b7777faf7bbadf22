//! Unmodified programs.

use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Running, TestDirectory, has, moved_bytes, program};

/// Timeout of a service's start, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A port on which no process listens; below those that the kernel gives to connections.
pub fn free_port() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (std::process::id() % 20_000) as u16;
    let mut ports = std::iter::repeat_with(|| first + NEXT.fetch_add(1, Ordering::Relaxed));
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap().to_string()
}

/// Waits until a process listens on a port.
pub fn wait_for(port: &str) {
    let began = Instant::now();
    while std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
        assert!(began.elapsed() < PATIENCE, "no process listens on port {port}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Output of a program.
pub fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn serves_redis_clients_during_a_save() {
    if !has("redis-server", "redis-server") {
        return;
    }
    let (directory, port) = (TestDirectory::new("redis"), free_port());
    let mut server = program("redis-server", true);
    server.args(["--port", &port, "--bind", "127.0.0.1", "--dir", &directory.path(""), "--save", ""]);
    let mut server = Running::start(server);
    wait_for(&port);
    let cli = |arguments: &[&str]| {
        let mut cli = program("redis-cli", true);
        output(cli.args(["-p", &port]).args(arguments))
    };
    let long = "v".repeat(100_000);
    assert_eq!(cli(&["set", "key", &long]).trim(), "OK");
    assert_eq!(cli(&["get", "key"]).trim(), long);
    for (clients, pipeline) in [("1", "1"), ("16", "1"), ("16", "16")] {
        let mut benchmark = program("redis-benchmark", true);
        benchmark.args(["-p", &port, "-n", "20000", "-t", "set,get,lrange_100", "-d", "300", "--csv"]);
        let table = output(benchmark.args(["-c", clients, "-P", pipeline]));
        assert!(
            table.lines().filter(|line| line.contains("GET") || line.contains("SET")).count() >= 2,
            "{table}"
        );
        // The child has all connections as well.
        let saved = cli(&["bgsave"]);
        assert!(saved.contains("Background saving") || saved.contains("already in progress"), "{saved}");
    }
    assert_eq!(cli(&["get", "key"]).trim(), long);
    let pid = server.stop();
    assert!(moved_bytes(pid).is_none_or(|bytes| bytes > 100_000));
}

/// A program in Go, which makes system calls itself: the library is loaded, and observes no call.
#[test]
fn serves_etcd_on_tcp() {
    if !has("etcd", "etcd-server") || !has("etcdctl", "etcd-client") {
        return;
    }
    let (directory, [client, peer]) = (TestDirectory::new("etcd"), [(); 2].map(|()| free_port()));
    let [clients, peers] = [&client, &peer].map(|port| format!("http://127.0.0.1:{port}"));
    let mut server = program("etcd", true);
    server.args([
        "--data-dir",
        &directory.path("data"),
        "--listen-client-urls",
        &clients,
        "--log-level",
        "error",
    ]);
    server.args(["--advertise-client-urls", &clients, "--listen-peer-urls", &peers]);
    server.args(["--initial-advertise-peer-urls", &peers, "--initial-cluster", &format!("default={peers}")]);
    let mut server = Running::start(server);
    wait_for(&client);
    let ctl = |arguments: &[&str]| {
        let mut ctl = program("etcdctl", true);
        ctl.env("ETCDCTL_API", "3").args(["--endpoints", &clients, "--command-timeout", "60s"]);
        output(ctl.args(arguments))
    };
    let long = "v".repeat(100_000);
    for value in ["first", &long] {
        assert_eq!(ctl(&["put", "key", value]).trim(), "OK");
        assert_eq!(ctl(&["get", "key", "--print-value-only"]).trim(), value);
    }
    assert!(moved_bytes(server.stop()).is_none_or(|bytes| bytes == 0));
}

#[test]
fn serves_memcached_clients() {
    if !has("memcached", "memcached") || !has("python3", "python3") {
        return;
    }
    let port = free_port();
    let mut server = program("memcached", true);
    server.args(["-p", &port, "-l", "127.0.0.1", "-t", "2"]);
    if rustix::process::geteuid().is_root() {
        // As one user: ends of different users do not pair.
        server.args(["-u", "root"]);
    }
    let mut server = Running::start(server);
    wait_for(&port);
    let client = r"
import socket, sys
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
f = bytearray()
def line():
    global f
    while b'\r\n' not in f:
        got = s.recv(65536)
        assert got
        f += got
    text, _, f = f.partition(b'\r\n')
    return bytes(text)
for i in range(2000):
    value = bytes([i % 251]) * (i * 7 % 3000)
    s.sendall(b'set k%d 0 0 %d\r\n' % (i, len(value)) + value + b'\r\n')
    assert line() == b'STORED'
for i in range(2000):
    value = bytes([i % 251]) * (i * 7 % 3000)
    s.sendall(b'get k%d\r\n' % i)
    assert line() == b'VALUE k%d 0 %d' % (i, len(value))
    while len(f) < len(value) + 7:
        f += s.recv(65536)
    assert f[:len(value)] == value and f[len(value):] == b'\r\nEND\r\n'
    f = bytearray()
print('done')
";
    assert_eq!(output(program("python3", true).args(["-c", client, &port])).trim(), "done");
    let pid = server.stop();
    assert!(moved_bytes(pid).is_none_or(|bytes| bytes > 1_000_000));
}

#[test]
fn transfers_complete_files_from_nginx_to_curl() {
    if !has("nginx", "nginx-light") || !has("curl", "curl") {
        return;
    }
    let (directory, port) = (TestDirectory::new("nginx"), free_port());
    let content: String = (0..200_000).map(|line| format!("{line}\n")).collect();
    std::fs::write(directory.path("file"), &content).unwrap();
    // As one user: ends of different users do not pair.
    let own = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let root = directory.path("");
    for sendfile in ["off", "on"] {
        let configuration = format!(
            "{own} daemon off; worker_processes 2; pid {root}/pid; error_log {root}/errors;\n\
             events {{ worker_connections 64; }}\n\
             http {{ access_log off; sendfile {sendfile}; client_body_temp_path {root}/body;\n\
             proxy_temp_path {root}/proxy; fastcgi_temp_path {root}/fastcgi; uwsgi_temp_path {root}/uwsgi;\n\
             scgi_temp_path {root}/scgi; server {{ listen 127.0.0.1:{port}; root {root}; }} }}\n"
        );
        std::fs::write(directory.path("conf"), configuration).unwrap();
        let nginx =
            if std::path::Path::new("/usr/sbin/nginx").exists() { "/usr/sbin/nginx" } else { "nginx" };
        let mut server = program(nginx, true);
        server.args(["-e", &directory.path("errors"), "-c", &directory.path("conf"), "-p", &root]);
        let mut server = Running::start(server);
        wait_for(&port);
        let url = format!("http://127.0.0.1:{port}/file");
        // One connection for many requests.
        let fetched =
            output(program("curl", true).args(["-sS", "--fail-early", "--noproxy", "*", &url, &url, &url]));
        assert!(fetched == content.repeat(3), "{} bytes fetched", fetched.len());
        server.stop();
    }
}

#[test]
fn echoes_with_asyncio() {
    if !has("python3", "python3") {
        return;
    }
    let port = free_port();
    let server = r"
import asyncio, sys
async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(echo, '127.0.0.1', int(sys.argv[1]))
    await server.serve_forever()
asyncio.run(main())
";
    let client = r"
import asyncio, os, sys
async def one(n):
    reader, writer = await asyncio.open_connection('127.0.0.1', int(sys.argv[1]))
    for i in range(100):
        data = os.urandom(1 + (i * n * 37) % 50000)
        writer.write(data)
        await writer.drain()
        assert await reader.readexactly(len(data)) == data
    writer.write_eof()
    assert await reader.read() == b''
    writer.close()
async def main():
    await asyncio.gather(*(one(n) for n in range(1, 9)))
    print('done')
asyncio.run(main())
";
    let mut command = program("python3", true);
    command.args(["-c", server, &port]);
    let mut server = Running::start(command);
    wait_for(&port);
    assert_eq!(output(program("python3", true).args(["-c", client, &port])).trim(), "done");
    let pid = server.stop();
    assert!(moved_bytes(pid).is_none_or(|bytes| bytes > 1_000_000));
}
