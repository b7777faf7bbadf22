//! `farcall mount` over one memory node.

use super::{NotMounted, directory, take_off};
use crate::experiments::ExperimentEnv;
use crate::experiments::server::ServerProcess;
use crate::nodes::Nodes;
use crate::peer::PeerLauncher;
use farcall::select::Selection;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// Timeout of unmounting.
const END_PATIENCE: Duration = Duration::from_secs(20);

/// A mounted file system, its process, and the memory node. Dropping this unmounts it.
pub(super) struct Mounted {
    dir: TempDir,
    mount: Option<ServerProcess>,
    _nodes: Nodes,
}

impl Mounted {
    /// Mounts a file system of `size_bytes` bytes.
    pub(super) fn start(nic: &Selection, env: &ExperimentEnv, size_bytes: u64) -> Result<Self, NotMounted> {
        let dir = directory()?;
        let nodes = Nodes::start(nic, 1, size_bytes, env.server_core)?;
        let place = dir.path().to_string_lossy().into_owned();
        let mut args: Vec<String> =
            ["--json", "mount", &place, "--size", &size_bytes.to_string()].map(str::to_owned).into();
        args.extend(nodes.client_args());
        args.extend(nic.args());
        let mount = ServerProcess::start(&PeerLauncher::with_args(args), &[env.server_core])?;
        Ok(Self { dir, mount: Some(mount), _nodes: nodes })
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let ended = self.mount.take().map(|mount| mount.stop(END_PATIENCE));
        if !matches!(ended, Some(Ok(()))) {
            take_off(self.dir.path());
        }
    }
}
