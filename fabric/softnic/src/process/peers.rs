//! The peers of this process that are connected.

use std::collections::HashMap;
use std::sync::Arc;

use farcall_shm::Mutex;
use farcall_verbs::Result;

use super::peer::Peer;
use super::service_thread::Service;

/// Peers by block of queue pair numbers.
#[derive(Default)]
pub(super) struct Peers(Mutex<HashMap<u32, Arc<Peer>>>);

impl Peers {
    /// Returns the process that owns a block, if it is connected and has not exited.
    pub(super) fn get(&self, block: u32) -> Option<Arc<Peer>> {
        self.0.lock().get(&block).filter(|peer| !peer.liveness.has_exited()).cloned()
    }

    /// Adds a process with which a handshake has completed, unless another handshake has added it, and has `service`
    /// watch it. Returns the connected one.
    ///
    /// # Errors
    /// Returns an error if its descriptors cannot be watched.
    pub(super) fn add(&self, service: &Service, block: u32, peer: Peer) -> Result<Arc<Peer>> {
        let peer = Arc::new(peer);
        let mut peers = self.0.lock();
        if let Some(known) = peers.get(&block).filter(|known| !known.liveness.has_exited()) {
            return Ok(known.clone());
        }
        service.watch(&peer)?;
        // If the peer has exited in the meantime, the service thread still detects it, because it watches the pidfd.
        peers.insert(block, peer.clone());
        Ok(peer)
    }

    /// Removes an exited peer, so that its descriptors and mappings are released with its last queue pair.
    pub(super) fn forget(&self, peer: &Arc<Peer>) {
        self.0.lock().retain(|_, known| !Arc::ptr_eq(known, peer));
    }
}
