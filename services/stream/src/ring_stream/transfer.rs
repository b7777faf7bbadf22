//! Reading and writing. The methods are documented at [`crate::Stream`].

use farcall_link::PostRefused;

use super::RingStream;
use crate::error::{Broken, StreamError};
use crate::space::Space;

impl RingStream {
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        self.check_writable()?;
        self.hear_wish();
        let mut done = self.put(bytes)?;
        if done < bytes.len() {
            // The peer may have returned space that this end has not read yet.
            self.look_for_room()?;
            done += self.put(&bytes[done..])?;
        }
        if done == 0 && !bytes.is_empty() {
            self.counters.stalls += 1;
            return Err(StreamError::WouldBlock);
        }
        Ok(done)
    }

    /// Reads the peer's wake request, so that an application that only writes does not prevent the peer from sleeping.
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

    #[inline]
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, StreamError> {
        self.check_readable()?;
        if !self.lent.rest().is_empty() {
            return Ok(self.lent.take(out));
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

    /// Returns an error only if this end reset the stream: received bytes can be read after any other break.
    fn check_readable(&self) -> Result<(), StreamError> {
        match &self.broken {
            Some(Broken::Reset) => Err(StreamError::Reset(Broken::Reset)),
            _ => Ok(()),
        }
    }

    /// Returns whether there are bytes to read; `false` at the end of the stream.
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
            // Completions that precede the flushed ones may announce more bytes.
            Some(Broken::Completion(_) | Broken::HungUp) if !self.connection.is_drained() => {
                Err(StreamError::WouldBlock)
            }
            Some(broken) => Err(StreamError::Reset(broken.clone())),
        }
    }

    pub fn fill(&mut self, at_least: usize) -> Result<&[u8], StreamError> {
        self.check_readable()?;
        let max = self.config.lent_bytes_max;
        assert!(at_least <= max, "{at_least} bytes at once exceed the bound of {max}");
        while self.lent.rest().len() < at_least.max(1) {
            if self.inlet.available() == 0 && !self.look_for_bytes()? {
                break;
            }
            let lent = self.lent.appended();
            let room = max - lent.len();
            self.inlet.append_to(lent, room);
            self.give_credit();
        }
        Ok(self.lent.rest())
    }

    #[inline]
    pub fn consume(&mut self, len_bytes: usize) {
        self.lent.consume(len_bytes);
    }

    pub fn is_readable(&mut self) -> bool {
        !self.lent.rest().is_empty()
            || self.inlet.available() > 0
            || self.look_for_bytes() != Err(StreamError::WouldBlock)
    }

    #[inline]
    pub fn has_work(&self) -> bool {
        self.inlet.has_work()
    }
}
