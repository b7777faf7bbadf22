//! The handshake: bytes in, bytes out.
//!
//! The client prepares its queue pair and memory and sends a [`Hello`]; the server answers with a [`Welcome`] or a
//! [`Refusal`]. Afterwards the same channel carries [`Notice`]s, and its hang-up says that the peer went.
//!
//! Every frame has the same 16-byte head: magic, the range of versions its sender speaks, kind, length. Versions
//! negotiate to the highest that both speak; each build speaks N and N−1. Bodies are postcard; a later version may only
//! append fields, so a reader of any version ignores what follows the fields it knows.
//!
//! Nothing here trusts its input: frames are bounded before they are buffered, and everything wrong is one [`Refusal`].

mod body;
mod frame;
mod machine;
mod refusal;

pub use body::{Features, Grants, Hello, Notice, QpInfo, Resume, Resumed, SessionId, Welcome};
pub use frame::{FRAME_BYTES_MAX, Frame, FrameKind, FrameReader, HEAD_BYTES, VersionRange, encode_frame};
pub use machine::{Acceptor, BootstrapError, Initiator};
pub use refusal::{Refusal, RefusalKind};
