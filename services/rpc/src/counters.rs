//! Counters of an endpoint: one writer, any number of readers.

farcall_stats::counters! {
    /// Counters of one endpoint. Its driver thread is the only writer; `farcall stats` reads them, also after the
    /// process has exited.
    pub struct Counters {
        /// Calls submitted (client) or executed (server).
        calls,
        /// Messages sent (client) or accepted (server); a long call takes several.
        messages,
        /// Messages of compact form that were sent (client) or accepted (server).
        compact,
        /// Messages that carried a batch of calls.
        batches,
        /// Payload bytes of requests.
        request_bytes,
        /// Payload bytes of results.
        result_bytes,
        /// Results fetched by READ (client) or stored for fetching (server).
        fetched,
        /// Results received (client) or sent (server) by WRITE or SEND.
        replied,
        /// Results received or sent by WRITE with a wake-up.
        notified,
        /// READs posted.
        reads,
        /// READs that found no result.
        failed_fetches,
        /// Second READs, for results longer than the fetch size.
        second_reads,
        /// Methods that switched to server-reply.
        switches_to_reply,
        /// Methods that switched back to fetching.
        switches_to_fetch,
        /// Wake-ups sent (client) or received (server).
        kicks,
        /// Times that the endpoint was armed before sleeping.
        arms,
        /// Calls that failed with the server's error.
        errors,
        /// Handlers that panicked.
        panics,
        /// Calls whose deadline passed.
        deadlines_exceeded,
        /// Calls cancelled by their caller.
        cancelled,
        /// Calls whose outcome is unknown.
        outcomes_unknown,
        /// Messages sent again: after a reconnect, or over UC and UD when no response came.
        resent,
        /// Sessions that were resumed after a reconnect.
        sessions_resumed,
        /// Connections opened.
        connections_opened,
        /// Connections closed.
        connections_closed,
        /// Connections closed because the peer violated the protocol.
        violations,
        /// Messages not accepted because the send queue had no free slot for the response.
        stalls,
        /// Duplicate datagrams: results received before (client), or requests executed before (server).
        repeated,
        /// Datagrams dropped because they do not belong to a session of this endpoint, or are malformed.
        strangers,
        /// SENDs that announced results to be fetched.
        notices,
        /// Deferred calls.
        deferred,
        /// Calls whose handler wanted to defer and was refused.
        deferrals_refused,
        /// Messages that requested deferred answers.
        collects,
        /// Wake-ups for deferred answers: sent (server) or received (client).
        answers_told,
    }
}

impl Counters {
    /// Returns the number of verbs that both ends issued for a client's calls. These are the requests and wake-ups of
    /// the client, its READs, including those that found no result, the results and notices of results that the server
    /// wrote or sent, and the server's wake-ups for deferred answers.
    pub fn verbs(&self) -> u64 {
        let requests = self.messages.get() + self.resent.get() + self.kicks.get();
        let wakes = self.notices.get() + self.answers_told.get();
        requests + self.reads.get() + self.replied.get() + self.notified.get() + wakes
    }

    /// Returns the number of READs that found no result.
    pub fn empty_reads(&self) -> u64 {
        self.reads.get().saturating_sub(self.fetched.get() + self.second_reads.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_of_a_call_counts_and_empty_reads_too() {
        let counters = Counters::default();
        counters.messages.add(10);
        counters.kicks.add(1);
        counters.reads.add(25);
        counters.fetched.add(8);
        counters.second_reads.add(1);
        counters.replied.add(2);
        counters.notices.add(3);
        assert_eq!((counters.verbs(), counters.empty_reads()), (10 + 1 + 25 + 2 + 3, 16));
    }

    #[test]
    fn names_and_values_are_in_one_order() {
        let counters = Counters::default();
        counters.kicks.add(3);
        let at = Counters::NAMES.iter().position(|name| *name == "kicks").unwrap();
        assert_eq!(counters.values()[at], 3);
        assert_eq!(size_of::<Counters>(), Counters::NAMES.len() * 8);
    }
}
