//! Other implementations of gRPC. Messages are bytes, so that no code is generated.

use std::path::Path;
use std::process::Command;

use crate::languages::both;
use crate::programs::output;
use crate::support::{TestDirectory, has};

#[test]
fn serves_grpc_of_the_c_core() {
    // Debian's modules belong to Debian's interpreter, which need not be the first in the path.
    let python = "/usr/bin/python3";
    let imports = Command::new(python).args(["-c", "import grpc"]).output();
    if !imports.is_ok_and(|imports| imports.status.success()) {
        eprintln!("SKIPPED: no gRPC for {python} on this machine (Debian: apt-get install python3-grpcio)");
        return;
    }
    let server = r"
import grpc, sys
from concurrent import futures
def one(request, context):
    return request
def both(requests, context):
    yield from requests
def many(request, context):
    for i in range(int(request)):
        yield bytes([i % 251]) * (i * 37 % 20000)
server = grpc.server(futures.ThreadPoolExecutor(8))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler('Echo', {
    'One': grpc.unary_unary_rpc_method_handler(one),
    'Both': grpc.stream_stream_rpc_method_handler(both),
    'Many': grpc.unary_stream_rpc_method_handler(many)}),))
server.add_insecure_port('127.0.0.1:' + sys.argv[1])
server.start()
server.wait_for_termination()
";
    let client = r"
import grpc, os, sys
from concurrent import futures
channel = grpc.insecure_channel('127.0.0.1:' + sys.argv[1])
one, both = channel.unary_unary('/Echo/One'), channel.stream_stream('/Echo/Both')
many = channel.unary_stream('/Echo/Many')
def work(n):
    for i in range(50):
        data = os.urandom(1 + i * n * 997 % 100000)
        assert one(data, wait_for_ready=True) == data
    sent = [os.urandom(1 + i * 31 % 5000) for i in range(100)]
    assert list(both(iter(sent))) == sent
    assert list(many(b'200')) == [bytes([i % 251]) * (i * 37 % 20000) for i in range(200)]
with futures.ThreadPoolExecutor(4) as threads:
    list(threads.map(work, range(1, 5)))
print('done')
";
    let moved = both(python, &["-c", server], &["-c", client]);
    assert!(moved.is_none_or(|bytes| bytes > 1_000_000), "{moved:?}");
}

/// Debian's libraries of gRPC and their dependencies; `None` if one is not installed.
fn java_libraries() -> Option<String> {
    let libraries =
        ["grpc-api", "grpc-context", "grpc-core", "grpc-stub", "grpc-netty", "guava", "perfmark-api"];
    let netty =
        ["buffer", "codec", "codec-http", "codec-http2", "common", "handler", "resolver", "transport"];
    let netty = netty.map(|part| format!("netty-{part}"));
    let all = libraries.map(str::to_owned).into_iter().chain(netty);
    let paths: Vec<String> = all.map(|name| format!("/usr/share/java/{name}.jar")).collect();
    paths.iter().all(|path| Path::new(path).exists()).then(|| paths.join(":"))
}

#[test]
fn serves_grpc_of_java() {
    if !has("java", "openjdk-17-jdk-headless") || !has("javac", "openjdk-17-jdk-headless") {
        return;
    }
    let Some(libraries) = java_libraries() else {
        eprintln!(
            "SKIPPED: no gRPC for Java (Debian: apt-get install libgrpc-java libnetty-java libperfmark-java)"
        );
        return;
    };
    let directory = TestDirectory::new("grpc-java");
    let source = format!("{}/tests/preload/GrpcEcho.java", env!("CARGO_MANIFEST_DIR"));
    output(Command::new("javac").args(["-cp", &libraries, "-d", &directory.path(""), &source]));
    let path = format!("{libraries}:{}", directory.path(""));
    let moved = both("java", &["-cp", &path, "GrpcEcho", "server"], &["-cp", &path, "GrpcEcho", "client"]);
    assert!(moved.is_none_or(|bytes| bytes > 1_000_000), "{moved:?}");
}

#[test]
fn serves_grpc_of_node() {
    let imports = Command::new("node").args(["-e", "require('@grpc/grpc-js')"]).output();
    if !imports.is_ok_and(|imports| imports.status.success()) {
        eprintln!(
            "SKIPPED: no gRPC for Node (npm install @grpc/grpc-js, and NODE_PATH names its node_modules)"
        );
        return;
    }
    let service = r"
const grpc = require('@grpc/grpc-js'), crypto = require('crypto');
const same = bytes => bytes;
const method = (path, streams) => ({ path, requestStream: streams, responseStream: streams, requestSerialize: same,
    requestDeserialize: same, responseSerialize: same, responseDeserialize: same });
const echo = { one: method('/Echo/One', false), both: method('/Echo/Both', true) };
const place = '127.0.0.1:' + process.argv[1];
";
    let server = format!(
        "{service}{}",
        r"
const server = new grpc.Server();
server.addService(echo, {
    one: (call, answer) => answer(null, call.request),
    both: call => { call.on('data', part => call.write(part)); call.on('end', () => call.end()); },
});
server.bindAsync(place, grpc.ServerCredentials.createInsecure(), error => { if (error) throw error; });
"
    );
    let client = format!(
        "{service}{}",
        r"
const Client = grpc.makeGenericClientConstructor(echo, 'Echo');
const client = new Client(place, grpc.credentials.createInsecure());
let left = 200;
function unary(n) {
    const sent = crypto.randomBytes(1 + n * 7919 % 100000);
    client.one(sent, (error, got) => {
        if (error) throw error;
        if (!got.equals(sent)) throw new Error('wrong bytes');
        if (--left == 0) stream();
    });
}
function stream() {
    const sent = [], got = [], call = client.both();
    call.on('data', part => got.push(part));
    call.on('end', () => {
        if (!Buffer.concat(got).equals(Buffer.concat(sent))) throw new Error('wrong bytes');
        console.log('done');
        client.close();
    });
    for (let n = 0; n < 200; n++) { sent.push(crypto.randomBytes(1 + n * 31 % 5000)); call.write(sent[n]); }
    call.end();
}
for (let n = 0; n < 200; n++) unary(n);
"
    );
    let moved = both("node", &["-e", &server], &["-e", &client]);
    assert!(moved.is_none_or(|bytes| bytes > 1_000_000), "{moved:?}");
}

#[test]
fn serves_asynchronous_grpc_of_cpp() {
    if !has("g++", "g++") || !has("pkg-config", "pkg-config") {
        return;
    }
    let flags = Command::new("pkg-config").args(["--cflags", "--libs", "grpc++"]).output().unwrap();
    if !flags.status.success() {
        eprintln!("SKIPPED: no gRPC for C++ on this machine (Debian: apt-get install libgrpc++-dev)");
        return;
    }
    let flags = String::from_utf8(flags.stdout).unwrap();
    let directory = TestDirectory::new("grpc-cpp");
    let echo = directory.path("grpc_echo");
    let source = format!("{}/tests/preload/grpc_echo.cc", env!("CARGO_MANIFEST_DIR"));
    output(
        Command::new("g++").args(["-std=c++17", "-O1", "-o", &echo, &source]).args(flags.split_whitespace()),
    );
    let moved = both(&echo, &["server"], &["client"]);
    assert!(moved.is_none_or(|bytes| bytes > 1_000_000), "{moved:?}");
}
