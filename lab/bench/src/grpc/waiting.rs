//! Wait strategies of the streams' ends for each strategy of RR-Compound.

use super::failed;
use crate::peer::PeerError;
use crate::streams::Way;
use farcall_drive::Pollers;
use farcall_link::WaitStrategy;
use farcall_stream::StreamOptions;

/// Returns the options of the server's end; under BPEV with pollers, if `pollers` is not 0.
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

/// Returns the options of a client's end, which uses the server's strategy: the paper's clients use RR-Compound as
/// well.
pub(super) fn calling(way: Way, bp_timeout_us: Option<u32>, options: StreamOptions) -> StreamOptions {
    options.waiting(match way {
        Way::Bp | Way::Bpts => WaitStrategy::Busy,
        Way::Event | Way::Tcp => WaitStrategy::EventBatch,
        Way::Bpev => WaitStrategy::Bpev { bp_timeout_us },
    })
}
