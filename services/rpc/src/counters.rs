//! What happened, in numbers: one writer, any number of readers.

farcall_stats::counters! {
    /// Counters of one endpoint. Its owner is the only writer; `farcall stats` reads them, also after it died.
    pub struct Counters {
        /// Calls submitted (client) or executed (server).
        calls,
        /// Messages sent (client) or taken in (server); a long call takes several.
        messages,
        /// Messages of compact form that were sent (client) or taken in (server).
        compact,
        /// Messages that carried a batch of calls.
        batches,
        /// Payload bytes of requests.
        request_bytes,
        /// Payload bytes of results.
        result_bytes,
        /// Results fetched by READ (client) or left for it (server).
        fetched,
        /// Results that came (client) or went (server) by WRITE or SEND.
        replied,
        /// Results that came or went by WRITE with a wake-up.
        notified,
        /// READs posted.
        reads,
        /// READs that found no result yet.
        failed_fetches,
        /// Second READs, for results longer than the fetch size.
        second_reads,
        /// Methods that turned to server-reply.
        switches_to_reply,
        /// Methods that turned back to fetching.
        switches_to_fetch,
        /// Wake-ups sent (client) or received (server).
        kicks,
        /// How often the owner was about to sleep.
        arms,
        /// Calls that failed with the server's error.
        errors,
        /// Handlers that panicked.
        panics,
        /// Calls whose deadline passed.
        deadlines_exceeded,
        /// Calls given up by their caller.
        cancelled,
        /// Calls whose outcome is unknown.
        outcomes_unknown,
        /// Messages sent again: after a reconnect, or over UC and UD when no response came.
        resent,
        /// Sessions that went on after a reconnect.
        sessions_resumed,
        /// Connections opened.
        connections_opened,
        /// Connections closed.
        connections_closed,
        /// Connections closed because the peer broke the protocol.
        violations,
        /// Messages not taken in because the send queue had no room for the answer.
        stalls,
        /// Datagrams with a result (client) that has come before, or a request (server) that was executed before.
        repeated,
        /// Datagrams that no server (client) or client (server) of a session here sent, or not so: dropped.
        strangers,
        /// SENDs that told of results, to be fetched.
        notices,
        /// Calls that were answered later.
        deferred,
        /// Calls whose handler would answer later and was refused.
        deferrals_refused,
        /// Messages that asked for answers that came later.
        collects,
        /// Wake-ups for such answers: sent (server) or received (client).
        answers_told,
    }
}

impl Counters {
    /// Round trips of a client's calls: every verb of either end for them. That is each request and wake-up of the
    /// client, each READ, those that found no result included, and each result, or notice of one, that the server wrote
    /// or sent, and each wake-up of the server for an answer that came later.
    pub fn verbs(&self) -> u64 {
        let requests = self.messages.get() + self.resent.get() + self.kicks.get();
        let wakes = self.notices.get() + self.answers_told.get();
        requests + self.reads.get() + self.replied.get() + self.notified.get() + wakes
    }

    /// READs that brought no result.
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
