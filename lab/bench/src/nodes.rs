//! Memory nodes of this host, as processes.

use crate::experiments::server::{ServerError, ServerProcess};
use crate::peer::PeerLauncher;
use farcall::select::Selection;

/// What is granted at once.
const SLAB_BYTES: u64 = 16 << 20;

/// Running memory nodes; dropping them ends them.
pub(crate) struct Nodes {
    nodes: Vec<ServerProcess>,
}

impl Nodes {
    /// Starts so many, each with room for so many bytes and what clients need besides, on one core: they sleep.
    ///
    /// # Errors
    /// When one does not serve.
    pub(crate) fn start(
        nic: &Selection,
        count: usize,
        size_bytes: u64,
        core: usize,
    ) -> Result<Self, ServerError> {
        let size = (size_bytes.next_multiple_of(SLAB_BYTES) + 2 * SLAB_BYTES).to_string();
        let slab = SLAB_BYTES.to_string();
        // On the machine of the program that it pages. Who may page or mount may lock.
        let args = ["--json", "memory", "serve", "--lock", "--listen", "127.0.0.1:0", "--size", &size];
        let args: Vec<String> =
            args.into_iter().chain(["--slab", &slab]).map(str::to_owned).chain(nic.args()).collect();
        let start = |_| ServerProcess::start(&PeerLauncher::with_args(&args), &[core]);
        Ok(Self { nodes: (0..count).map(start).collect::<Result<_, _>>()? })
    }

    /// What a client of all of them is told: where they are, and how much to ask for at once.
    pub(crate) fn client_args(&self) -> Vec<String> {
        let addresses: Vec<&str> = self.nodes.iter().filter_map(|node| node.ready().rpc.as_deref()).collect();
        let (count, slab) = (self.nodes.len().to_string(), SLAB_BYTES.to_string());
        ["--nodes", &addresses.join(","), "--replicas", &count, "--slab", &slab].map(str::to_owned).into()
    }
}
