//! The gRPC service of a store.

use crate::commits::Change;
use crate::store::{OrderedStore, Page, StoreError};
use crate::v1::ordered_kv_server::OrderedKv;
use crate::v1::{
    BatchRequest, BatchResponse, CloseSnapshotRequest, CloseSnapshotResponse, DeleteRequest, DeleteResponse,
    GetRequest, GetResponse, OpenSnapshotRequest, OpenSnapshotResponse, PutRequest, PutResponse, Record,
    ScanRequest, ScanResponse, change,
};
use bytes::Bytes;
use futures_core::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::{Request, Response, Status};

/// Service that answers calls from a store.
#[derive(Debug, Clone)]
pub struct KvService {
    store: Arc<OrderedStore>,
}

impl KvService {
    /// Creates a service of `store`.
    #[must_use]
    pub fn new(store: Arc<OrderedStore>) -> Self {
        Self { store }
    }
}

impl From<StoreError> for Status {
    fn from(error: StoreError) -> Self {
        use StoreError::{Batch, Busy, Closed, Key, NoSnapshot, TooManySnapshots, Value};
        let why = error.to_string();
        match error {
            Key { .. } | Value { .. } | Batch { .. } => Self::invalid_argument(why),
            NoSnapshot(_) => Self::not_found(why),
            TooManySnapshots { .. } | Busy { .. } => Self::resource_exhausted(why),
            Closed => Self::unavailable(why),
            _ => Self::internal(why),
        }
    }
}

/// Converts a snapshot number of a request: 0 means none.
fn number(snapshot: u64) -> Option<u64> {
    (snapshot != 0).then_some(snapshot)
}

impl From<Page> for ScanResponse {
    fn from(page: Page) -> Self {
        let records = page.records.into_iter().map(|(key, value)| Record { key, value }).collect();
        Self { records, next: page.next }
    }
}

#[tonic::async_trait]
impl OrderedKv for KvService {
    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        let GetRequest { key, snapshot } = request.into_inner();
        let value = self.store.get(&key, number(snapshot))?;
        Ok(Response::new(GetResponse { value }))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let PutRequest { key, value } = request.into_inner();
        self.store.write(vec![Change::Put(key, value)]).await?;
        Ok(Response::new(PutResponse {}))
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Result<Response<DeleteResponse>, Status> {
        self.store.write(vec![Change::Delete(request.into_inner().key)]).await?;
        Ok(Response::new(DeleteResponse {}))
    }

    async fn batch(&self, request: Request<BatchRequest>) -> Result<Response<BatchResponse>, Status> {
        let changes = request.into_inner().changes.into_iter().map(|change| match change.change {
            Some(change::Change::Put(Record { key, value })) => Ok(Change::Put(key, value)),
            Some(change::Change::Delete(key)) => Ok(Change::Delete(key)),
            None => Err(Status::invalid_argument("a change of the batch is neither put nor delete")),
        });
        self.store.write(changes.collect::<Result<_, _>>()?).await?;
        Ok(Response::new(BatchResponse {}))
    }

    async fn scan(&self, request: Request<ScanRequest>) -> Result<Response<ScanResponse>, Status> {
        let ScanRequest { start, end, limit, snapshot } = request.into_inner();
        let page = self.store.scan(&start, &end, limit as usize, number(snapshot))?;
        Ok(Response::new(page.into()))
    }

    type IterateStream = Pages;

    async fn iterate(&self, request: Request<ScanRequest>) -> Result<Response<Pages>, Status> {
        let ScanRequest { start, end, limit, snapshot } = request.into_inner();
        let store = Arc::clone(&self.store);
        let (snapshot, is_own) = match number(snapshot) {
            Some(number) => (number, false),
            None => (store.open_snapshot()?, true),
        };
        let pages = Pages { store, snapshot, is_own, start: Some(start), end, limit: limit as usize };
        Ok(Response::new(pages))
    }

    async fn open_snapshot(
        &self,
        _request: Request<OpenSnapshotRequest>,
    ) -> Result<Response<OpenSnapshotResponse>, Status> {
        let snapshot = self.store.open_snapshot()?;
        let age_max_ms = self.store.limits().snapshot_age_max.as_millis() as u64;
        Ok(Response::new(OpenSnapshotResponse { snapshot, age_max_ms }))
    }

    async fn close_snapshot(
        &self,
        request: Request<CloseSnapshotRequest>,
    ) -> Result<Response<CloseSnapshotResponse>, Status> {
        self.store.close_snapshot(request.into_inner().snapshot);
        Ok(Response::new(CloseSnapshotResponse {}))
    }
}

/// The pages of a range, read from a snapshot. The snapshot can expire even if the stream is not read.
#[derive(Debug)]
pub struct Pages {
    store: Arc<OrderedStore>,
    snapshot: u64,
    /// `true` if the snapshot is closed together with this stream.
    is_own: bool,
    /// Start of the next page, if there is one.
    start: Option<Bytes>,
    end: Bytes,
    limit: usize,
}

impl Stream for Pages {
    type Item = Result<ScanResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(start) = self.start.take() else { return Poll::Ready(None) };
        let page = self.store.scan(&start, &self.end, self.limit, Some(self.snapshot));
        if let Ok(page) = &page
            && !page.next.is_empty()
        {
            self.start = Some(page.next.clone());
        }
        Poll::Ready(Some(page.map(Into::into).map_err(Into::into)))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.is_own {
            self.store.close_snapshot(self.snapshot);
        }
    }
}
