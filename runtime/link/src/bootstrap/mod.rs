//! The handshake: bytes in, bytes out.
//!
//! The client prepares its queue pair and memory and sends a [`Hello`]. The server replies with a [`Welcome`] or a
//! [`Refusal`]. For a byte stream both sides send a [`StreamEnd`] instead. Afterwards the same channel carries
//! [`PostHandshakeMessage`]s, and its hang-up indicates that the peer process has exited or closed. If the server's
//! reply requests it, the channel carries the stream itself instead.
//!
//! Every frame has the same 12-byte header: magic, the range of versions that its sender supports, length. The two
//! sides use the highest version that both support; each build supports N and N−1. The body is one message in
//! postcard. A later version may only append fields, so a reader of any version ignores what follows the fields that
//! it knows.
//!
//! Input is untrusted: frames are bounded before they are buffered, and every fault results in one [`Refusal`].

mod conversation;
mod frame;
mod message;
mod refusal;
mod stream;

pub use conversation::{Acceptor, BootstrapError, Initiator};
pub use frame::{FRAME_BYTES_MAX, VersionRange};
pub use message::{
    Features, Grants, Hello, PostHandshakeMessage, QpInfo, Resumed, Secret, SessionId, SessionResumption,
    StreamEnd, Welcome,
};
pub use refusal::{Refusal, RefusalKind};
pub use stream::StreamReply;
