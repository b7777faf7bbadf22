use super::*;
use crate::peer::tests::plan;
use farcall::select::Selection;

const COMBININGS: [Combining; 4] =
    [Combining::Single, Combining::Doorbell, Combining::Merge, Combining::MergeAndChain];

fn measured(task: RemioTask) -> Sample {
    let chosen = Selection::softnic().open().unwrap();
    measure(&chosen, &Task::Remio(small(task)), &plan(3), 5).unwrap_or_else(|error| panic!("{task}: {error}"))
}

/// Uses little memory, so that pages are read and written repeatedly.
fn small(task: RemioTask) -> RemioTask {
    RemioTask { region_bytes: 1 << 20, ..task }
}

#[test]
fn runs_every_workload_correctly_with_every_combining() {
    for workload in Workload::ALL {
        for combining in COMBININGS {
            let sample =
                measured(RemioTask { window_bytes: Some(32 << 10), ..RemioTask::of(workload, combining) });
            assert!(sample.per_second > 0.0 && sample.per_second.is_finite());
            assert!(sample.latency.count > 0 && sample.cpu_us_per_request > 0.0);
            let counts = sample.counts;
            assert_eq!(counts.reads > 0, workload.reads_percent > 0, "{workload:?}");
            assert_eq!(counts.writes > 0, workload.reads_percent < 100, "{workload:?}");
            let merges = matches!(combining, Combining::Merge | Combining::MergeAndChain);
            assert!(merges || counts.merged == 0);
            let chains = matches!(combining, Combining::Doorbell | Combining::MergeAndChain);
            assert!(chains || counts.chained == 0);
        }
    }
}

#[test]
fn every_memory_and_every_way_of_waiting_is_measured() {
    let usual = RemioTask::of(Workload::MIXED, Combining::MergeAndChain);
    for memory in [LocalMemory::Copied, LocalMemory::RegisteredEach, LocalMemory::RegisteredOnce] {
        let sample = measured(RemioTask { memory, burst: 8, ..usual });
        assert!(sample.per_second > 0.0, "{memory:?}");
    }
    for polling in Polling::ALL {
        let threads = if polling == Polling::Inline { 1 } else { 3 };
        let sample = measured(RemioTask { polling, threads, burst: 4, ..usual });
        assert!(sample.polls.completions > 0 && sample.polls.polls > sample.polls.empty_polls, "{polling:?}");
        assert!(
            sample.polls.sleeps == 0 || !matches!(polling, Polling::Inline | Polling::Busy),
            "{polling:?}"
        );
    }
}

#[test]
fn several_donors_are_used_through_fewer_completion_queues() {
    let usual = RemioTask::of(Workload::MIXED, Combining::Single);
    for pollers in [1, 2, 3] {
        let task = RemioTask { peers: 3, pollers, burst: 4, connections: 1, ..usual };
        assert!(measured(task).per_second > 0.0);
    }
}

/// Number of work requests and doorbells of held-back bursts: the first request of a burst is posted alone, the others
/// are combined.
#[test]
fn bursts_that_stack_up_make_exactly_so_many_work_requests() {
    use Combining::{Doorbell, Merge, MergeAndChain, Single};
    let cases = [
        // 31 adjacent requests are merged into one. Of 31 that are not adjacent, 16 have one doorbell, and 15 the
        // next.
        (
            Workload::ADJACENT_WRITES,
            32,
            [(Single, 32, 32), (Doorbell, 32, 3), (Merge, 2, 2), (MergeAndChain, 2, 2)],
        ),
        (
            Workload::ADJACENT_READS,
            32,
            [(Single, 32, 32), (Doorbell, 32, 3), (Merge, 2, 2), (MergeAndChain, 2, 2)],
        ),
        // Of six requests two are adjacent.
        (Workload::TABLE_1, 6, [(Single, 6, 6), (Doorbell, 6, 2), (Merge, 5, 5), (MergeAndChain, 5, 2)]),
    ];
    for (workload, burst, wanted) in cases {
        for (combining, work, doorbells) in wanted {
            let sample = measured(RemioTask { burst, ..RemioTask::of(workload, combining).stacked() });
            let bursts = (sample.counts.reads + sample.counts.writes) / u64::from(burst);
            let found = (sample.counts.read_work + sample.counts.write_work, sample.counts.doorbells);
            assert_eq!(found, (work * bursts, doorbells * bursts), "{workload:?}, {combining:?}");
        }
    }
}

#[test]
fn bare_verbs_do_the_same_one_at_a_time_and_with_a_window() {
    let chosen = Selection::softnic().open().unwrap();
    for workload in Workload::ALL {
        for window in [1, 16] {
            let task = VerbsTask { workload, window, len_bytes: 4096, region_bytes: 1 << 20 };
            let sample = measure(&chosen, &Task::Verbs(task), &plan(3), 5).unwrap();
            assert!(sample.per_second > 0.0 && sample.latency.count > 0);
            assert_eq!(sample.work_per_request(), 1.0);
        }
    }
}

/// The memory server contains the bytes of another run.
#[test]
fn wrong_bytes_end_a_measurement() {
    let chosen = Selection::softnic().open().unwrap();
    let task = small(RemioTask::of(Workload::RANDOM_READS, Combining::MergeAndChain));
    let servers = memory_server::start(&chosen, &plan(3), task.pages(6), 1, task.connections).unwrap();
    let error = sessions::measure(&chosen, &task, &plan(3), 5, &servers).unwrap_err().to_string();
    assert!(error.starts_with("wrong bytes: a READ of page"), "{error}");
    // Wrong pages that are only written are detected by the memory server.
    let task = small(RemioTask::of(Workload::RANDOM_WRITES, Combining::MergeAndChain));
    let servers = memory_server::start(&chosen, &plan(3), task.pages(6), 1, task.connections).unwrap();
    let error = sessions::measure(&chosen, &task, &plan(3), 5, &servers).unwrap_err().to_string();
    assert!(error.starts_with("wrong bytes: page"), "{error}");
    let task =
        VerbsTask { workload: Workload::RANDOM_READS, window: 4, len_bytes: 4096, region_bytes: 1 << 20 };
    let servers = memory_server::start(&chosen, &plan(3), task.pages(6), 1, 1).unwrap();
    let error = verbs::measure(&chosen, &task, &plan(3), 5, &servers[0]).err().unwrap().to_string();
    assert!(error.starts_with("wrong bytes: a READ of page"), "{error}");
}

#[test]
fn what_cannot_be_measured_is_refused_in_words() {
    let usual = RemioTask::of(Workload::MIXED, Combining::Single);
    let refusal = |task: RemioTask| task.check().unwrap_err().to_string();
    assert!(refusal(RemioTask { polling: Polling::Inline, ..usual }).contains("one thread"));
    assert!(refusal(RemioTask { arrival: Arrival::Stacked, ..usual }).contains("inline"));
    assert!(refusal(RemioTask { pollers: 2, ..usual }).contains("2 completion queues for 1 sessions"));
    assert!(usual.stacked().check().is_ok());
}
