//! How the ends of streams wait under each way of RR-Compound.

use super::failed;
use crate::peer::PeerError;
use crate::streams::Way;
use farcall_drive::Pollers;
use farcall_link::Waiting;
use farcall_stream::StreamOptions;

/// The server's end: with pollers under BPEV, if there shall be any.
pub(super) fn serving(
    way: Way,
    pollers: usize,
    bp_timeout_us: Option<u32>,
    options: StreamOptions,
) -> Result<StreamOptions, PeerError> {
    let options = calling(way, bp_timeout_us, options);
    if way == Way::Bpev && pollers > 0 {
        return Ok(options.pollers(Pollers::start(pollers).map_err(failed)?));
    }
    Ok(options)
}

/// A client's end, which waits as the server does: the paper's clients are RR-Compound's, too.
pub(super) fn calling(way: Way, bp_timeout_us: Option<u32>, options: StreamOptions) -> StreamOptions {
    options.waiting(match way {
        Way::Bp | Way::Bpts => Waiting::Busy,
        Way::Event | Way::Tcp => Waiting::EventBatch,
        Way::Bpev => Waiting::Bpev { bp_timeout_us },
    })
}
