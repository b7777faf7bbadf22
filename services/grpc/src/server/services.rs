//! Several services at one server, selected by name.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower_service::Service;

use crate::body::IncomingBody;

type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// A type-erased service.
trait Erased: Send + Sync {
    fn answer(&self, request: Request<IncomingBody>) -> Answering;
}

impl<S> Erased for S
where
    S: Service<Request<IncomingBody>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync,
    S::Future: Send + 'static,
{
    fn answer(&self, request: Request<IncomingBody>) -> Answering {
        // Generated servers are always ready.
        Box::pin(self.clone().call(request))
    }
}

/// Generated servers, selected by the names of their services. Calls of other services return `Unimplemented`.
#[derive(Clone, Default)]
pub struct Services {
    by_name: Arc<HashMap<&'static str, Arc<dyn Erased>>>,
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services").field("by_name", &self.by_name.keys()).finish_non_exhaustive()
    }
}

impl Services {
    /// Creates an empty set of services.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a generated server, or one with an interceptor.
    #[must_use]
    pub fn add_service<S>(mut self, service: S) -> Self
    where
        S: Service<Request<IncomingBody>, Response = Response<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        let mut by_name = HashMap::clone(&self.by_name);
        by_name.insert(S::NAME, Arc::new(service));
        self.by_name = Arc::new(by_name);
        self
    }
}

impl Service<Request<IncomingBody>> for Services {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<IncomingBody>) -> Answering {
        let path = request.uri().path();
        let name = path.strip_prefix('/').and_then(|path| path.split_once('/')).map(|(name, _)| name);
        match name.and_then(|name| self.by_name.get(name)) {
            Some(service) => service.answer(request),
            None => {
                let why = Status::unimplemented(format!("no service here has the method {path}"));
                Box::pin(std::future::ready(Ok(why.into_http())))
            }
        }
    }
}
