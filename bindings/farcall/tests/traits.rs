//! Traits that public types implement; checked when this file is compiled.

use std::error::Error;
use std::fmt::Debug;

use farcall::{Ibv, Nic, SoftNic, grpc, kv, memory, rpc, select, stream, verbs};

fn is_debug<T: Debug + ?Sized>() {}

fn is_send<T: Debug + Send + 'static>() {}

fn is_sync<T: Debug + Send + Sync + 'static>() {}

/// An error that threads pass on, and that `Box<dyn Error + Send + Sync>` holds.
fn is_error<T: Error + Send + Sync + 'static>() {}

#[test]
fn handles_are_send() {
    is_send::<rpc::Client>();
    is_send::<rpc::Requester>();
    is_send::<kv::KvClient>();
    is_send::<kv::MemcachedClient>();
    is_send::<memory::RemoteRegion>();
    is_send::<stream::Stream>();
    is_send::<stream::StreamSocket>();
    is_send::<stream::AsyncStream>();
    is_send::<stream::StreamListener>();
    is_send::<verbs::owned::Pair>();
    is_send::<verbs::owned::AsyncPair>();
}

#[test]
fn shared_handles_are_sync() {
    is_sync::<Nic>();
    is_sync::<Ibv>();
    is_sync::<SoftNic>();
    is_sync::<grpc::Channel>();
    is_sync::<grpc::Services>();
    is_sync::<kv::KvServer>();
    is_sync::<kv::KvServerBuilder>();
    is_sync::<memory::MemoryServer>();
    is_sync::<memory::RemoteMemory>();
    is_sync::<rpc::AsyncClient>();
    is_sync::<rpc::AsyncServers>();
    is_sync::<rpc::CallOptions>();
    is_sync::<rpc::ClientOptions>();
    is_sync::<rpc::Dispatcher>();
    is_sync::<rpc::DrainHandle>();
    is_sync::<rpc::Server>();
    is_sync::<rpc::ServerBuilder>();
    is_sync::<select::SelectedNic>();
    is_sync::<verbs::owned::Buffers>();
}

#[test]
fn arguments_are_debug() {
    is_debug::<rpc::Call<'_>>();
    is_debug::<rpc::Reply<'_>>();
    is_debug::<rpc::OwnedCall>();
    is_debug::<rpc::Counters>();
    is_debug::<stream::WriteBuffer<'_>>();
    is_debug::<verbs::CqInitAttr<'_>>();
    is_debug::<verbs::QpInitAttr<'_>>();
    is_debug::<verbs::SendWr<'_>>();
    is_debug::<verbs::RecvWr<'_>>();
}

#[test]
fn errors_are_errors() {
    is_error::<kv::KvConnectError>();
    is_error::<kv::KvError>();
    is_error::<kv::KvServerError>();
    is_error::<kv::MemcachedError>();
    is_error::<memory::IoError>();
    is_error::<memory::OpenError>();
    is_error::<memory::RegionError>();
    is_error::<memory::ServeError>();
    is_error::<memory::SnapshotError>();
    is_error::<rpc::CallError>();
    is_error::<rpc::ConnectError>();
    is_error::<rpc::ServerError>();
    is_error::<rpc::service::ServiceError>();
    is_error::<rpc::tune::ProfileError>();
    is_error::<stream::OpenError>();
    is_error::<stream::StreamError>();
    is_error::<verbs::Error>();
    is_error::<verbs::PostError>();
    is_error::<verbs::owned::Refused>();
}

#[test]
fn shows_the_name_and_the_device() {
    let nic = Nic::open(&SoftNic::new()).unwrap();
    assert!(format!("{nic:?}").starts_with("Nic { provider: \"softnic\", device: "), "{nic:?}");
}
