//! Reading and writing. The methods are documented at [`crate::Stream`].

use farcall_link::PostRefused;
use farcall_verbs::with_sources;

use super::RingStream;
use crate::error::{Broken, StreamError};
use crate::write_buffer::WriteBuffer;

impl RingStream {
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        self.check_writable()?;
        self.poll_wake_request();
        let mut done = self.put(bytes)?;
        if done < bytes.len() {
            // The peer may have returned space that this end has not read yet.
            self.poll_for_room()?;
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
    fn poll_wake_request(&mut self) {
        if !self.send_half.wake_sender.wakes()
            && let Some(request) = self.recv_half.wake_request().filter(|request| request.is_woken)
        {
            self.send_half.wake_sender.on_request(request);
            self.send_words();
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        let put = self.send_half.put(&mut self.connection, bytes);
        put.map_err(|error| self.refused(error))
    }

    pub fn write_with(
        &mut self,
        most: usize,
        compose: impl FnOnce(&mut WriteBuffer<'_>),
    ) -> Result<usize, StreamError> {
        self.check_writable()?;
        self.poll_wake_request();
        let (mut at, mut room) = self.send_half.reserve(&self.connection, most);
        if room < most {
            self.poll_for_room()?;
            (at, room) = self.send_half.reserve(&self.connection, most);
        }
        if room == 0 {
            self.counters.stalls += 1;
            return Err(StreamError::WouldBlock);
        }
        let mut buffer = WriteBuffer::in_ring(self.send_half.local(), at, room);
        compose(&mut buffer);
        let len_bytes = buffer.len_bytes;
        let sent = self.send_half.send(&mut self.connection, at, len_bytes);
        sent.map_err(|error| self.refused(error))?;
        Ok(len_bytes)
    }

    pub fn is_writable(&self) -> bool {
        self.check_writable().is_err() || self.send_half.room(&self.connection) > 0
    }

    fn check_writable(&self) -> Result<(), StreamError> {
        match &self.broken {
            _ if self.send_half.is_finished || self.is_unread => Err(StreamError::BrokenPipe),
            None => Ok(()),
            Some(Broken::HungUp | Broken::Completion(_)) => Err(StreamError::BrokenPipe),
            Some(broken) => Err(StreamError::Reset(broken.clone())),
        }
    }

    fn poll_for_room(&mut self) -> Result<(), StreamError> {
        self.poll_completions();
        self.read_words();
        self.send_words();
        self.check_writable()
    }

    #[cold]
    pub(super) fn refused(&mut self, error: PostRefused) -> StreamError {
        let broken = Broken::Verbs(with_sources(&error));
        self.mark_broken(broken.clone());
        StreamError::Reset(broken)
    }

    #[inline]
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, StreamError> {
        self.check_readable()?;
        if !self.receive_buffer.rest().is_empty() {
            return Ok(self.receive_buffer.take(out));
        }
        if out.is_empty() {
            return Ok(0);
        }
        if self.recv_half.available() == 0 && !self.poll_for_bytes()? {
            return Ok(0);
        }
        let got = self.recv_half.copy_out(out);
        self.send_credit();
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
    fn poll_for_bytes(&mut self) -> Result<bool, StreamError> {
        match self.recv_half.poll() {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(violation) => self.mark_broken(Broken::Protocol(violation)),
        }
        if self.recv_half.is_at_end() {
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
        while self.receive_buffer.rest().len() < at_least.max(1) {
            if self.recv_half.available() == 0 && !self.poll_for_bytes()? {
                break;
            }
            let receive_buffer = self.receive_buffer.appended();
            let room = max - receive_buffer.len();
            self.recv_half.append_to(receive_buffer, room);
            self.send_credit();
        }
        Ok(self.receive_buffer.rest())
    }

    #[inline]
    pub fn consume(&mut self, len_bytes: usize) {
        self.receive_buffer.consume(len_bytes);
    }

    pub fn is_readable(&mut self) -> bool {
        !self.receive_buffer.rest().is_empty()
            || self.recv_half.available() > 0
            || self.poll_for_bytes() != Err(StreamError::WouldBlock)
    }

    #[inline]
    pub fn has_work(&self) -> bool {
        self.recv_half.has_work()
    }
}
