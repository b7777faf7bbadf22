//! The response path as a type: what differs between the presets, decided when the program is compiled.

use farcall_link::ResponsePath;

/// How results come back.
pub trait Path: Send + 'static {
    /// The axis' value.
    const AXIS: ResponsePath;
    /// Whether results are fetched by READ, as long as calls are quick.
    const FETCHES: bool;
    /// Whether methods with slow calls turn to server-reply.
    const SWITCHES: bool;
}

/// `rf-rpc`: fetched, and written by the server for methods that take long.
#[derive(Debug)]
pub struct FetchThenReply;

impl Path for FetchThenReply {
    const AXIS: ResponsePath = ResponsePath::FetchThenReply;
    const FETCHES: bool = true;
    const SWITCHES: bool = true;
}

/// `server-reply`: always written by the server.
#[derive(Debug)]
pub struct ServerReply;

impl Path for ServerReply {
    const AXIS: ResponsePath = ResponsePath::Write;
    const FETCHES: bool = false;
    const SWITCHES: bool = false;
}
