//! Reading and writing.

use farcall_link::PostRefused;

use super::RingStream;
use crate::error::{Broken, StreamError};
use crate::space::Space;

impl RingStream {
    /// Writes as many of these bytes as there is room for, at least one. They are on their way then.
    ///
    /// There may be no room though the peer has read everything: it must also take wake-ups, and a loaded machine lets it
    /// do so late.
    ///
    /// # Errors
    /// [`StreamError::WouldBlock`] if there is no room; others if nothing can be written any more.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        self.check_writable()?;
        self.hear_wish();
        let mut done = self.put(bytes)?;
        if done < bytes.len() {
            // There may be room that we do not know of.
            self.look_for_room()?;
            done += self.put(&bytes[done..])?;
        }
        if done == 0 && !bytes.is_empty() {
            self.counters.stalls += 1;
            return Err(StreamError::WouldBlock);
        }
        Ok(done)
    }

    /// A peer that wants to sleep is not kept from that by an end whose owner writes and does nothing else.
    #[inline]
    fn hear_wish(&mut self) {
        if !self.outlet.waker.wakes()
            && let Some(wish) = self.inlet.wish().filter(|wish| wish.is_woken)
        {
            self.outlet.waker.hear(wish);
            self.speak();
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        let put = self.outlet.put(&mut self.connection, bytes);
        put.map_err(|error| self.refused(error))
    }

    /// Lets `compose` write into the send ring itself, where at most `most` bytes have room, and sends what it put.
    /// Returns how many bytes that is. The room may be shorter than `most`: it ends where the ring does.
    ///
    /// # Errors
    /// As [`crate::Stream::write`].
    pub fn write_with(
        &mut self,
        most: usize,
        compose: impl FnOnce(&mut Space<'_>),
    ) -> Result<usize, StreamError> {
        self.check_writable()?;
        self.hear_wish();
        let (mut at, mut room) = self.outlet.place(&self.connection, most);
        if room < most {
            self.look_for_room()?;
            (at, room) = self.outlet.place(&self.connection, most);
        }
        if room == 0 {
            self.counters.stalls += 1;
            return Err(StreamError::WouldBlock);
        }
        let mut space = Space::in_ring(self.outlet.local(), at, room);
        compose(&mut space);
        let len_bytes = space.len_bytes;
        let sent = self.outlet.send(&mut self.connection, at, len_bytes);
        sent.map_err(|error| self.refused(error))?;
        Ok(len_bytes)
    }

    /// Whether a write would take at least one byte, or say that none can be written any more.
    pub fn is_writable(&self) -> bool {
        self.check_writable().is_err() || self.outlet.room(&self.connection) > 0
    }

    fn check_writable(&self) -> Result<(), StreamError> {
        match &self.broken {
            _ if self.outlet.is_finished || self.is_unread => Err(StreamError::BrokenPipe),
            None => Ok(()),
            Some(Broken::HungUp | Broken::Completion(_)) => Err(StreamError::BrokenPipe),
            Some(broken) => Err(StreamError::Reset(broken.clone())),
        }
    }

    fn look_for_room(&mut self) -> Result<(), StreamError> {
        self.poll_completions();
        self.hear();
        self.speak();
        self.check_writable()
    }

    #[cold]
    pub(super) fn refused(&mut self, error: PostRefused) -> StreamError {
        let broken = Broken::Verbs(error.to_string());
        self.break_off(broken.clone());
        StreamError::Reset(broken)
    }

    /// Reads as many bytes as there are, at least one. 0 means that the stream has ended, and that everything was read.
    ///
    /// # Errors
    /// [`StreamError::WouldBlock`] if there is nothing; [`StreamError::Reset`] if the rest of the stream is lost.
    #[inline]
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, StreamError> {
        self.check_readable()?;
        if self.lent_read < self.lent.len() {
            let len = out.len().min(self.lent.len() - self.lent_read);
            out[..len].copy_from_slice(&self.lent[self.lent_read..self.lent_read + len]);
            self.consume(len);
            return Ok(len);
        }
        if out.is_empty() {
            return Ok(0);
        }
        if self.inlet.available() == 0 && !self.look_for_bytes()? {
            return Ok(0);
        }
        let got = self.inlet.copy_out(out);
        self.give_credit();
        Ok(got)
    }

    /// What arrived can be read whatever happened, unless this end gave the stream up.
    fn check_readable(&self) -> Result<(), StreamError> {
        match &self.broken {
            Some(Broken::Reset) => Err(StreamError::Reset(Broken::Reset)),
            _ => Ok(()),
        }
    }

    /// Whether there are bytes to read; false at the end of the stream.
    #[inline]
    fn look_for_bytes(&mut self) -> Result<bool, StreamError> {
        match self.inlet.look() {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(impossible) => self.break_off(Broken::Protocol(impossible)),
        }
        if self.inlet.is_at_end() {
            return Ok(false);
        }
        match &self.broken {
            None => Err(StreamError::WouldBlock),
            // Completions that come before the flushes may bring more.
            Some(Broken::Completion(_) | Broken::HungUp) if !self.connection.is_drained() => {
                Err(StreamError::WouldBlock)
            }
            Some(broken) => Err(StreamError::Reset(broken.clone())),
        }
    }

    /// Lends at least `at_least` bytes from a private copy, more if there are; fewer only where the stream ends. What
    /// was [`crate::Stream::consume`]d is not lent again. The peer may overwrite the ring meanwhile; it cannot change what is
    /// lent.
    ///
    /// # Errors
    /// As [`crate::Stream::read`].
    ///
    /// # Panics
    /// If `at_least` exceeds the configured bound.
    pub fn fill(&mut self, at_least: usize) -> Result<&[u8], StreamError> {
        self.check_readable()?;
        let max = self.config.lent_bytes_max;
        assert!(at_least <= max, "{at_least} bytes at once exceed the bound of {max}");
        while self.lent.len() - self.lent_read < at_least.max(1) {
            if self.inlet.available() == 0 && !self.look_for_bytes()? {
                break;
            }
            self.lent.drain(..std::mem::take(&mut self.lent_read));
            let room = max - self.lent.len();
            self.inlet.append_to(&mut self.lent, room);
            self.give_credit();
        }
        Ok(&self.lent[self.lent_read..])
    }

    /// Gives back the first bytes of what [`crate::Stream::fill`] lent.
    ///
    /// # Panics
    /// If it lent fewer.
    pub fn consume(&mut self, len_bytes: usize) {
        assert!(len_bytes <= self.lent.len() - self.lent_read, "more is consumed than was lent");
        self.lent_read += len_bytes;
        if self.lent_read == self.lent.len() {
            self.lent.clear();
            self.lent_read = 0;
        }
    }

    /// Whether a read would give bytes, the end or an error.
    pub fn is_readable(&mut self) -> bool {
        self.lent_read < self.lent.len()
            || self.inlet.available() > 0
            || self.look_for_bytes() != Err(StreamError::WouldBlock)
    }

    /// Whether there are bytes that were not seen yet: one load.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.inlet.has_news()
    }
}
