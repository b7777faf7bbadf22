//! End of a stream: an orderly end of each direction, or a break.

use super::RingStream;
use crate::error::Broken;

impl RingStream {
    /// Ends the outgoing direction: the peer reads the bytes in flight, then the end. Reading continues.
    pub fn finish(&mut self) {
        self.outlet.is_finished = true;
        self.speak();
    }

    /// Returns the total number of bytes written, once this end has ended its stream and all bytes are known to have
    /// arrived. The peer must then be notified over the handshake channel before that is closed.
    pub fn ended(&mut self) -> Option<u64> {
        self.outlet.is_complete(&self.connection).then_some(self.outlet.written)
    }

    /// Handles the peer's notice on the handshake channel that its stream ended after `bytes` bytes and that they
    /// arrived.
    pub fn peer_ended(&mut self, bytes: u64) {
        if let Err(impossible) = self.inlet.ends(bytes) {
            self.break_off(Broken::Protocol(impossible));
        }
    }

    /// Handles the closing of the handshake channel by the peer, which has exited. Bytes that arrived can still be
    /// read, up to the end if the peer had ended its stream.
    pub fn hung_up(&mut self) {
        self.is_unread = true;
        self.look_once_more();
        if self.inlet.end.is_none() {
            self.break_off(Broken::HungUp);
        }
    }

    /// Resets the stream: no more bytes are read or written at this end, and the peer is notified when the handshake
    /// channel closes.
    pub fn reset(&mut self) {
        self.break_off(Broken::Reset);
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
    pub(super) fn break_off(&mut self, why: Broken) {
        if self.broken.is_some() {
            return;
        }
        // The first reason is kept; later errors do not change it.
        self.broken = Some(why);
        self.connection.close();
        self.look_once_more();
    }

    /// Polls once more, so that bytes and control words that arrived before the end are seen.
    fn look_once_more(&mut self) {
        self.poll_completions();
        // Errors are ignored: the stream has already ended or broken.
        let _ = self.inlet.look();
        let _ = self.inlet.hear();
    }
}
