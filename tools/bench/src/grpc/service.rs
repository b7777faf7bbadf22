//! What the serving process answers.

use farcall_echo::v1::Message;
use farcall_echo::v1::echo_server::Echo;
use tokio_stream::iter;
use tonic::{Request, Response, Status, Streaming};

/// Answers with what it gets.
pub(super) struct Answers;

type Repeated = Box<dyn Iterator<Item = Result<Message, Status>> + Send>;

#[tonic::async_trait]
impl Echo for Answers {
    async fn unary(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    async fn collect(&self, request: Request<Streaming<Message>>) -> Result<Response<Message>, Status> {
        let mut messages = request.into_inner();
        let mut last = Message::default();
        while let Some(message) = messages.message().await? {
            last = message;
        }
        Ok(Response::new(last))
    }

    type RepeatStream = tokio_stream::Iter<Repeated>;

    async fn repeat(&self, request: Request<Message>) -> Result<Response<Self::RepeatStream>, Status> {
        let message = request.into_inner();
        let repeated: Repeated = Box::new((0..message.times).map(move |_| Ok(message.clone())));
        Ok(Response::new(iter(repeated)))
    }

    type ConverseStream = Streaming<Message>;

    async fn converse(
        &self,
        request: Request<Streaming<Message>>,
    ) -> Result<Response<Streaming<Message>>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}
