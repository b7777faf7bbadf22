//! How a stream ends: by its own end in each direction, or by a break.

use super::RingStream;
use crate::error::Broken;

impl RingStream {
    /// Ends what this end writes: the peer reads what is on its way, then the end. Reading goes on.
    pub fn finish(&mut self) {
        self.outlet.is_finished = true;
        self.speak();
    }

    /// How many bytes were written in all, once this end has ended its stream and everything is known to have arrived.
    /// The peer is to be told over the channel of the handshake before that is closed.
    pub fn ended(&mut self) -> Option<u64> {
        self.outlet.is_complete(&self.connection).then_some(self.outlet.written)
    }

    /// The peer said over the channel of the handshake that its stream ended after so many bytes, and that they
    /// arrived.
    pub fn peer_ended(&mut self, bytes: u64) {
        if let Err(impossible) = self.inlet.ends(bytes) {
            self.break_off(Broken::Protocol(impossible));
        }
    }

    /// The peer closed the channel of the handshake: it is gone. What arrived can still be read, to the end if it had
    /// ended its stream.
    pub fn hung_up(&mut self) {
        self.is_unread = true;
        self.look_once_more();
        if self.inlet.end.is_none() {
            self.break_off(Broken::HungUp);
        }
    }

    /// Gives the stream up: nothing more is read or written here, and the peer learns of it when the channel of the
    /// handshake is closed.
    pub fn reset(&mut self) {
        self.break_off(Broken::Reset);
    }

    /// Why the stream broke, if it did.
    pub fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    /// Whether nothing of ours is under way any more after a break.
    pub fn is_drained(&self) -> bool {
        self.connection.is_drained()
    }

    #[cold]
    pub(super) fn break_off(&mut self, why: Broken) {
        if self.broken.is_some() {
            return;
        }
        // From here on, what goes wrong besides changes nothing.
        self.broken = Some(why);
        self.connection.close();
        self.look_once_more();
    }

    /// What came before the end is told.
    fn look_once_more(&mut self) {
        self.poll_completions();
        // What is wrong with it now changes nothing: there is an end or a break already.
        let _ = self.inlet.look();
        let _ = self.inlet.hear();
    }
}
