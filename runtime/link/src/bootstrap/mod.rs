//! The handshake: bytes in, bytes out.
//!
//! The client prepares its queue pair and memory and sends a [`Hello`]; the server answers with a [`Welcome`] or a
//! [`Refusal`]. For a byte stream both sides send a [`StreamEnd`] instead. Afterwards the same channel carries
//! [`Notice`]s, and its hang-up says that the peer went; or it carries the stream itself, if the server answers so.
//!
//! Every frame has the same 12-byte head: magic, the range of versions its sender speaks, length. Versions negotiate to
//! the highest that both speak; each build speaks N and N−1. The body is one message in postcard; a later version may
//! only append fields, so a reader of any version ignores what follows the fields it knows.
//!
//! Nothing here trusts its input: frames are bounded before they are buffered, and everything wrong is one [`Refusal`].

mod conversation;
mod frame;
mod message;
mod refusal;
mod stream;

pub use conversation::{Acceptor, BootstrapError, Initiator};
pub use frame::{FRAME_BYTES_MAX, VersionRange};
pub use message::{Features, Grants, Hello, Notice, QpInfo, Resume, Resumed, Secret, SessionId, Welcome};
pub use refusal::{Refusal, RefusalKind};
pub use stream::{StreamAnswer, StreamEnd};
