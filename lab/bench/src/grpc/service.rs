//! Service of the serving process.

use farcall_echo::v1::Message;
use farcall_echo::v1::echo_server::Echo;
use tokio_stream::{StreamExt, iter};
use tonic::{Request, Response, Status, Streaming};

/// Replies with the received bytes, or with the first `times` bytes if a call or a message of a stream specifies that.
pub(super) struct Answers;

fn answer(mut message: Message) -> Message {
    if message.times > 0 {
        message.payload.truncate(message.times as usize);
    }
    message
}

type Repeated = Box<dyn Iterator<Item = Result<Message, Status>> + Send>;

#[tonic::async_trait]
impl Echo for Answers {
    async fn unary(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        Ok(Response::new(answer(request.into_inner())))
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

    type ConverseStream = tokio_stream::adapters::Map<
        Streaming<Message>,
        fn(Result<Message, Status>) -> Result<Message, Status>,
    >;

    async fn converse(
        &self,
        request: Request<Streaming<Message>>,
    ) -> Result<Response<Self::ConverseStream>, Status> {
        Ok(Response::new(request.into_inner().map(|message| message.map(answer))))
    }
}
