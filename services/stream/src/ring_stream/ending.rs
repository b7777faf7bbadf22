//! End of a stream: an orderly end of each direction, or a break.

use super::RingStream;
use crate::error::Broken;

impl RingStream {
    /// Ends the outgoing direction: the peer reads the bytes in flight, then the end. Reading continues.
    pub fn finish(&mut self) {
        self.send_half.is_finished = true;
        self.send_words();
    }

    /// Returns the total number of bytes written, once this end has ended its stream and all bytes are known to have
    /// arrived. The peer must then be notified over the handshake channel before that is closed.
    pub fn ended(&mut self) -> Option<u64> {
        self.send_half.is_complete(&self.connection).then_some(self.send_half.written)
    }

    /// Handles the peer's notice on the handshake channel that its stream ended after `bytes` bytes and that they
    /// arrived.
    pub fn peer_ended(&mut self, bytes: u64) {
        if let Err(violation) = self.recv_half.ends(bytes) {
            self.mark_broken(Broken::Protocol(violation));
        }
    }

    /// Handles the closing of the handshake channel by the peer, which has exited. Bytes that arrived can still be
    /// read, up to the end if the peer had ended its stream.
    pub fn hung_up(&mut self) {
        self.is_unread = true;
        self.poll_once_more();
        if self.recv_half.end.is_none() {
            self.mark_broken(Broken::HungUp);
        }
    }

    /// Resets the stream: no more bytes are read or written at this end, and the peer is notified when the handshake
    /// channel closes.
    pub fn reset(&mut self) {
        self.mark_broken(Broken::Reset);
    }

    /// Returns the reason why the stream broke, if it did.
    pub fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    /// Returns whether no request of this end is outstanding any more after a break.
    pub fn is_drained(&self) -> bool {
        self.connection.is_drained()
    }

    #[cold]
    pub(super) fn mark_broken(&mut self, why: Broken) {
        if self.broken.is_some() {
            return;
        }
        // The first reason is kept; later errors do not change it.
        self.broken = Some(why);
        self.connection.close();
        self.poll_once_more();
    }

    /// Polls once more, so that bytes and control words that arrived before the end are seen.
    fn poll_once_more(&mut self) {
        self.poll_completions();
        // Errors are ignored: the stream has already ended or broken.
        let _ = self.recv_half.poll();
        let _ = self.recv_half.read_words();
    }
}
