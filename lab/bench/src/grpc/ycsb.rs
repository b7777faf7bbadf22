//! The YCSB core workloads against the ordered key-value service (RR-Compound, section V-E). A process serves a store
//! in a directory of its own; one thread of this process runs all clients, each with a connection of its own.

use super::transport::{Connected, Transport};
use super::{Preset, failed, open, runtime};
use crate::load::Ledger;
use crate::measure::{LatencyRecorder, pin_thread};
use crate::peer::{self, BothEnds, Meter, PairPlan, PeerError, PeerPlace, PeerTask};
use crate::workload::{Op, OpKind, OpStream, RecordShape, StreamConfig, Workload};
use bytes::Bytes;
use farcall::grpc::Channel;
use farcall::select::{SelectedNic, Selection};
use farcall_grpc_kv::v1::ordered_kv_client::OrderedKvClient;
use farcall_grpc_kv::v1::ordered_kv_direct::OrderedKvDirectClient;
use farcall_grpc_kv::v1::{
    BatchRequest, Change, GetRequest, GetResponse, PutRequest, PutResponse, Record, ScanRequest,
    ScanResponse, change,
};
use farcall_grpc_kv::{
    Durability, LsmServer, OrderedStore, ServerOptions, StoreOptions, Transport as Served,
};
use rand::RngExt;
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::LocalSet;
use tonic::{Response, Status};

/// Length of YCSB's keys: "user" and a hash.
const KEY_LEN_BYTES: usize = 23;
/// Ten fields of 100 bytes.
const VALUE_LEN_BYTES: usize = 1_000;
/// Maximum length of a scan in workload E.
const SCAN_LEN_MAX: u32 = 100;
/// Records per batch while loading.
const LOAD_BATCH: u64 = 500;

/// Configuration of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct YcsbTask {
    /// Transport of the calls.
    pub preset: Preset,
    /// Workload.
    pub workload: Workload,
    /// Number of clients, each with one connection and one operation at a time.
    pub clients: usize,
    /// Number of records loaded before.
    pub records: u64,
    /// Number of operations of all clients.
    pub operations: u64,
}

impl fmt::Display for YcsbTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "YCSB {} over {}, {} clients", self.workload, self.preset, self.clients)
    }
}

/// Task of the serving process.
#[derive(Debug, Serialize, Deserialize)]
pub struct YcsbServer {
    preset: Preset,
    selection: Selection,
    folder: PathBuf,
}

impl PeerTask for YcsbServer {
    const KIND: &'static str = "grpc-ycsb";

    fn run(self, place: PeerPlace) -> Result<(), PeerError> {
        let options = StoreOptions { durability: Durability::Process, ..StoreOptions::default() };
        let store = Arc::new(OrderedStore::open(&self.folder, options).map_err(failed)?);
        let nic = || open(&self.selection);
        let transport = match self.preset {
            Preset::Tcp => Served::Tcp,
            Preset::Http2 => Served::Http2(nic()?, self.preset.serving()?),
            Preset::Native | Preset::Direct | Preset::Waits(_) => {
                Served::Native(nic()?, self.preset.serving()?)
            }
        };
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server =
            LsmServer::start(store, ServerOptions { transport, listen, threads: 1 }).map_err(failed)?;
        place.ready()?;
        peer::send(place.control(), &server.address())?;
        while server.is_serving() {
            std::thread::sleep(Duration::from_millis(100));
        }
        server.stop().map_err(failed)
    }
}

/// Results of a measurement.
#[derive(Debug, Clone)]
pub struct Ycsb {
    /// Operations a second of all clients.
    pub per_second: f64,
    /// Latencies of reads and scans.
    pub reads: LatencyRecorder,
    /// Latencies of updates, inserts and complete read-modify-writes.
    pub writes: LatencyRecorder,
    /// Cores used by the server and by the clients.
    pub cores: BothEnds,
}

/// Client of the service's methods.
trait Caller: Clone + 'static {
    async fn get(&mut self, request: GetRequest) -> Result<GetResponse, Status>;
    async fn put(&mut self, request: PutRequest) -> Result<PutResponse, Status>;
    async fn scan(&mut self, request: ScanRequest) -> Result<ScanResponse, Status>;
    async fn load(&mut self, request: BatchRequest) -> Result<(), Status>;
}

/// Methods of [`Caller`] by those of a generated client, which have the same names.
macro_rules! generated_methods {
    () => {
        async fn get(&mut self, request: GetRequest) -> Result<GetResponse, Status> {
            Self::get(self, request).await.map(Response::into_inner)
        }

        async fn put(&mut self, request: PutRequest) -> Result<PutResponse, Status> {
            Self::put(self, request).await.map(Response::into_inner)
        }

        async fn scan(&mut self, request: ScanRequest) -> Result<ScanResponse, Status> {
            Self::scan(self, request).await.map(Response::into_inner)
        }

        async fn load(&mut self, request: BatchRequest) -> Result<(), Status> {
            self.batch(request).await.map(drop)
        }
    };
}

impl<T: Transport> Caller for OrderedKvClient<T> {
    generated_methods!();
}

impl Caller for OrderedKvDirectClient {
    generated_methods!();
}

/// Measures a workload against a new server with new records. Pins the calling thread.
///
/// # Errors
/// Returns an error if the other end cannot be started, if a call fails, or if a value is wrong.
pub fn ycsb(task: YcsbTask, chosen: &SelectedNic, plan: &PairPlan, seed: u64) -> Result<Ycsb, PeerError> {
    pin_thread(plan.client_core)?;
    let folder = tempfile::tempdir().map_err(PeerError::system("mkdtemp"))?;
    let server = YcsbServer {
        preset: task.preset,
        selection: chosen.selection.clone(),
        folder: folder.path().join("store"),
    };
    let server = plan.launcher.start(&server, plan.server_core, &[])?;
    let address: SocketAddr = peer::receive(server.control())?;
    let measuring = async {
        let mut clients = Vec::new();
        for _ in 0..task.clients {
            clients.push(connect(task.preset, chosen, address).await?);
        }
        let shape = RecordShape::new(KEY_LEN_BYTES, VALUE_LEN_BYTES).map_err(failed)?;
        let first = clients.first_mut().ok_or_else(|| failed("there is no client"))?;
        first.load(&shape, task.records).await?;
        let ledger = Rc::new(RefCell::new(Ledger::new(task.records)));
        let scripts: Vec<Vec<Op>> = (0..task.clients).map(|client| script(task, client, seed)).collect();
        let (meter, start) = (Meter::start(&server)?, Instant::now());
        let running: Vec<_> = clients
            .into_iter()
            .zip(scripts)
            .enumerate()
            .map(|(number, (client, script))| {
                let rng = Pcg64::new(seed.into(), number as u128);
                let user = User { shape, ledger: Rc::clone(&ledger), rng, timed: Timed::default() };
                tokio::task::spawn_local(client.run(user, script))
            })
            .collect();
        let mut timed = Timed::default();
        for client in running {
            let one = client.await.map_err(failed)??;
            timed.reads.add(&one.reads);
            timed.writes.add(&one.writes);
        }
        let (elapsed, cores) = (start.elapsed(), meter.stop()?);
        let count = timed.reads.count() + timed.writes.count();
        Ok(Ycsb {
            per_second: count as f64 / elapsed.as_secs_f64(),
            reads: timed.reads,
            writes: timed.writes,
            cores,
        })
    };
    runtime()?.block_on(LocalSet::new().run_until(measuring))
}

/// Returns the operations of one client, its share of all.
fn script(task: YcsbTask, client: usize, seed: u64) -> Vec<Op> {
    let clients = task.clients as u64;
    let config = StreamConfig {
        workload: task.workload,
        distribution: task.workload.distribution(),
        records: task.records,
        seed,
        stream: client as u64,
        streams: clients,
    };
    OpStream::new(config).script(task.operations.div_ceil(clients) as usize)
}

/// A client over any transport.
enum Client {
    Http2(OrderedKvClient<tonic::transport::Channel>),
    Native(OrderedKvClient<Channel>),
    Direct(OrderedKvDirectClient),
}

async fn connect(preset: Preset, chosen: &SelectedNic, address: SocketAddr) -> Result<Client, PeerError> {
    Ok(match preset.connect(&chosen.nic, address, preset.calling()).await? {
        Connected::Http2(channel) => Client::Http2(OrderedKvClient::new(channel)),
        Connected::Native(channel) if preset == Preset::Direct => {
            Client::Direct(OrderedKvDirectClient::new(channel))
        }
        Connected::Native(channel) => Client::Native(OrderedKvClient::new(channel)),
    })
}

impl Client {
    async fn load(&mut self, shape: &RecordShape, records: u64) -> Result<(), PeerError> {
        match self {
            Self::Http2(client) => load(client, shape, records).await,
            Self::Native(client) => load(client, shape, records).await,
            Self::Direct(client) => load(client, shape, records).await,
        }
    }

    async fn run(self, user: User, script: Vec<Op>) -> Result<Timed, PeerError> {
        match self {
            Self::Http2(client) => user.run(client, script).await,
            Self::Native(client) => user.run(client, script).await,
            Self::Direct(client) => user.run(client, script).await,
        }
    }
}

async fn load(client: &mut impl Caller, shape: &RecordShape, records: u64) -> Result<(), PeerError> {
    let mut record = 0;
    while record < records {
        let until = records.min(record + LOAD_BATCH);
        let change = |record| Change {
            change: Some(change::Change::Put(Record {
                key: key(shape, record),
                value: value(shape, record, 0),
            })),
        };
        let changes = (record..until).map(change).collect();
        client.load(BatchRequest { changes }).await.map_err(failed)?;
        record = until;
    }
    Ok(())
}

fn key(shape: &RecordShape, record: u64) -> Bytes {
    Bytes::copy_from_slice(shape.key(record, &mut [0; KEY_LEN_BYTES]))
}

fn value(shape: &RecordShape, record: u64, version: u64) -> Bytes {
    Bytes::copy_from_slice(shape.value(record, version, &mut [0; VALUE_LEN_BYTES]))
}

#[derive(Default)]
struct Timed {
    reads: LatencyRecorder,
    writes: LatencyRecorder,
}

/// Operations and expected results of one client.
struct User {
    shape: RecordShape,
    ledger: Rc<RefCell<Ledger>>,
    rng: Pcg64,
    timed: Timed,
}

impl User {
    async fn run(mut self, mut client: impl Caller, script: Vec<Op>) -> Result<Timed, PeerError> {
        for Op { kind, record } in script {
            let start = Instant::now();
            match kind {
                OpKind::Read => self.read(&mut client, record).await?,
                OpKind::Update | OpKind::Insert => self.write(&mut client, record).await?,
                OpKind::ReadModifyWrite => {
                    self.read(&mut client, record).await?;
                    self.write(&mut client, record).await?;
                }
                OpKind::Scan => self.scan(&mut client, record).await?,
            }
            let timed = match kind {
                OpKind::Read | OpKind::Scan => &mut self.timed.reads,
                _ => &mut self.timed.writes,
            };
            timed.record_ns(start.elapsed().as_nanos() as u64);
        }
        Ok(self.timed)
    }

    async fn read(&mut self, client: &mut impl Caller, record: u64) -> Result<(), PeerError> {
        let oldest = self.ledger.borrow().oldest(record);
        let request = GetRequest { key: key(&self.shape, record), snapshot: 0 };
        let found = client.get(request).await.map_err(failed)?.value;
        let found = found.ok_or_else(|| failed(format!("record {record} is not there")))?;
        let (oldest, newest) = self.ledger.borrow().expected(record, oldest).into_inner();
        self.shape.verify_between(record, &found, oldest, newest).map(drop).map_err(failed)
    }

    async fn write(&mut self, client: &mut impl Caller, record: u64) -> Result<(), PeerError> {
        let version = self.ledger.borrow_mut().begin_write(record);
        let request =
            PutRequest { key: key(&self.shape, record), value: value(&self.shape, record, version) };
        let written = client.put(request).await;
        self.ledger.borrow_mut().end_write(record, version, written.is_ok());
        written.map(drop).map_err(failed)
    }

    async fn scan(&mut self, client: &mut impl Caller, record: u64) -> Result<(), PeerError> {
        let limit = self.rng.random_range(1..=SCAN_LEN_MAX);
        let start = key(&self.shape, record);
        let request = ScanRequest { start: start.clone(), limit, ..ScanRequest::default() };
        let page = client.scan(request).await.map_err(failed)?;
        let (Some(first), true) = (page.records.first(), page.records.len() <= limit as usize) else {
            return Err(failed(format!("a scan of {limit} gave {} records", page.records.len())));
        };
        if first.key != start || !page.records.is_sorted_by(|a, b| a.key < b.key) {
            return Err(failed(format!("a scan from record {record} gave others, or in another order")));
        }
        for Record { key, value } in &page.records {
            let digits = std::str::from_utf8(&key[1..]).ok().and_then(|digits| digits.parse().ok());
            let record = digits.ok_or_else(|| failed("a scan returned a key that was not written"))?;
            self.shape.verify(record, value).map_err(failed)?;
        }
        Ok(())
    }
}
