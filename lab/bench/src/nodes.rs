//! Memory nodes of this host, run as processes.

use crate::experiments::server::{ServerError, ServerProcess};
use crate::peer::PeerLauncher;
use farcall::select::Selection;

/// Bytes of one slab, the unit of a grant.
const SLAB_BYTES: u64 = 16 << 20;

/// Running memory nodes; dropping this ends them.
pub(crate) struct Nodes {
    nodes: Vec<ServerProcess>,
}

impl Nodes {
    /// Starts `count` nodes on one core, each with capacity for `size_bytes` bytes and for the slabs that clients need
    /// in addition. The nodes sleep while they are idle.
    ///
    /// # Errors
    /// Returns an error if a node does not start to serve.
    pub(crate) fn start(
        nic: &Selection,
        count: usize,
        size_bytes: u64,
        core: usize,
    ) -> Result<Self, ServerError> {
        let size = (size_bytes.next_multiple_of(SLAB_BYTES) + 2 * SLAB_BYTES).to_string();
        let slab = SLAB_BYTES.to_string();
        // `--lock`: the nodes run on the same host as the program whose memory they hold, and must not be paged out
        // themselves. A user with the right to page or mount may also lock memory.
        let args = ["--json", "memory", "serve", "--lock", "--listen", "127.0.0.1:0", "--size", &size];
        let args: Vec<String> =
            args.into_iter().chain(["--slab", &slab]).map(str::to_owned).chain(nic.args()).collect();
        let start = |_| ServerProcess::start(&PeerLauncher::with_args(&args), &[core]);
        Ok(Self { nodes: (0..count).map(start).collect::<Result<_, _>>()? })
    }

    /// Returns the arguments of a client of all nodes: their addresses, the number of replicas and the slab size.
    pub(crate) fn client_args(&self) -> Vec<String> {
        let addresses: Vec<&str> = self.nodes.iter().filter_map(|node| node.ready().rpc.as_deref()).collect();
        let (count, slab) = (self.nodes.len().to_string(), SLAB_BYTES.to_string());
        ["--nodes", &addresses.join(","), "--replicas", &count, "--slab", &slab].map(str::to_owned).into()
    }
}
