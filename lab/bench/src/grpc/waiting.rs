//! Wait strategies of the streams' ends for each strategy of RR-Compound.

use super::failed;
use crate::peer::PeerError;
use crate::streams::WaitMode;
use farcall::stream::StreamOptions;
use farcall_drive::Pollers;
use farcall_link::WaitStrategy;

/// Returns the options of the server's end; under BPEV with pollers, if `pollers` is not 0.
pub(super) fn serving(
    mode: WaitMode,
    pollers: usize,
    bp_timeout_us: Option<u32>,
    options: StreamOptions,
) -> Result<StreamOptions, PeerError> {
    let options = calling(mode, bp_timeout_us, options);
    if mode == WaitMode::Bpev && pollers > 0 {
        return Ok(options.pollers(Pollers::start(pollers).map_err(failed)?));
    }
    Ok(options)
}

/// Returns the options of a client's end, which uses the server's strategy: the paper's clients use RR-Compound as
/// well.
pub(super) fn calling(mode: WaitMode, bp_timeout_us: Option<u32>, options: StreamOptions) -> StreamOptions {
    options.waiting(match mode {
        WaitMode::Bp | WaitMode::Bpts => WaitStrategy::Busy,
        WaitMode::Event | WaitMode::Tcp => WaitStrategy::EventBatch,
        WaitMode::Bpev => WaitStrategy::Bpev { bp_timeout_us },
    })
}
