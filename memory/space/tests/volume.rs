//! Volumes: an address space whose machine has exited, and that another machine mounts.

mod support;

use farcall_link::bootstrap::Secret;
use farcall_memory::wire::{MembershipView, RefusalKind, Reply, Request as NodeRequest, VolumeRef};
use farcall_memory::*;
use farcall_verbs::{Clock, VirtualClock};
use support::Load;
use support::volumes::*;

#[test]
fn restores_all_confirmed_writes_on_the_next_mount() {
    for seed in seeds(1..30) {
        println!("seed {seed}");
        let count = 1 + seed as usize % 3;
        let (mut nodes, mut load) = (Nodes::new(count, seed * 1_000), Load::new(seed, PAGES));
        let (mut written_metadata, mut holder) = (vec![0; METADATA_BYTES as usize], 0);
        for round in 0..12 {
            // The same machine continues immediately, another one after the lease has expired.
            if load.chance(70) {
                nodes.wait_for_leases();
                holder = round;
            }
            let (mut engine, takeover) = nodes.claimed(holder);
            assert!(
                takeover.metadata.iter().all(|found| *found == written_metadata),
                "seed {seed}: other notes"
            );
            for _ in 0..load.below(300) {
                step(&mut nodes, &mut engine, &mut load);
            }
            if load.chance(50) {
                finish(&mut nodes, &mut engine, &mut load);
                let at = load.below(METADATA_BYTES - 8) as usize;
                let word = load.below(u64::MAX).to_le_bytes();
                nodes.write_metadata(&mut engine, at, &word).unwrap();
                written_metadata[at..at + 8].copy_from_slice(&word);
            }
            drop(engine);
            load.forget_in_progress();
            assert_eq!(load.failed, [], "seed {seed}");
        }
        check_all(&mut nodes, &mut load);
        assert_eq!(load.failed, [], "seed {seed}");
    }
}

#[test]
fn restores_all_confirmed_writes_while_nodes_join_and_leave() {
    for seed in seeds(1..12) {
        println!("seed {seed}");
        let (mut nodes, mut load) = (Nodes::new(3, seed * 1_000), Load::new(seed, PAGES));
        for round in 1..10 {
            nodes.wait_for_leases();
            let (mut engine, _) = nodes.claimed(round);
            // From here on one node may be lost: the other nodes have a replica of each page.
            nodes.until(&mut engine, "all is replicated", |engine| engine.status().degraded == 0);
            let lost = load.below(3) as usize;
            for turn in 0..200 {
                step(&mut nodes, &mut engine, &mut load);
                if turn == 100 && load.chance(60) {
                    nodes.nodes[lost] = None;
                }
            }
            if load.chance(50) {
                finish(&mut nodes, &mut engine, &mut load);
            }
            drop(engine);
            load.forget_in_progress();
            assert_eq!(load.failed, [], "seed {seed}");
            if nodes.nodes[lost].is_none() {
                nodes.start(lost);
            }
        }
        check_all(&mut nodes, &mut load);
        assert_eq!(load.failed, [], "seed {seed}");
    }
}

/// Runs wait until slabs are granted and their placement is committed.
#[test]
fn writes_the_first_pages_of_new_slabs_as_runs() {
    for count in 1..4 {
        let mut nodes = Nodes::new(count, 1);
        let (mut engine, _) = nodes.claimed(1);
        nodes.until(&mut engine, "all nodes are connected", |engine| {
            engine.status().nodes.iter().all(|node| node.link == LinkStatus::Up)
        });
        let bytes = fill(&mut nodes, &mut engine, 1);
        let counts = engine.status().counts;
        assert_eq!((counts.pages_together, counts.pages_written), (PAGES as u64, PAGES as u64));
        assert_eq!(nodes.read(&mut engine, 0, SIZE_BYTES), Ok(bytes));
    }
}

#[test]
fn rejects_a_second_mount_during_a_valid_lease() {
    let mut nodes = Nodes::new(2, 1);
    let (mut engine, first) = nodes.claimed(1);
    let nodes_now = vec!["0".to_owned(), "1".to_owned()];
    assert_eq!(
        first,
        Takeover { epoch: 1, is_new: true, missing: Vec::new(), nodes: nodes_now, metadata: Vec::new() }
    );
    let bytes = fill(&mut nodes, &mut engine, 1);
    for _ in 0..3 {
        let refused = nodes.claim(config(2), &volume(2)).err().unwrap();
        assert!(
            matches!(&refused, OpenError::Held(why) if why.contains("mounted by \"a mount\"")),
            "{refused}"
        );
        nodes.until(&mut engine, "it is still held", |engine| engine.exclusive_until().0 > 0);
    }
    // The refused claims have changed nothing.
    assert_eq!(nodes.read(&mut engine, 0, SIZE_BYTES), Ok(bytes));
}

#[test]
fn renews_leases_during_a_long_claim() {
    let mut nodes = Nodes::new(2, 1);
    let (mut engine, _) = nodes.claimed(1);
    let bytes = fill(&mut nodes, &mut engine, 1);
    drop(engine);
    // Metadata must be written to two more nodes; each call takes a twentieth of a term.
    nodes.nodes.resize_with(4, || None);
    (2..4).for_each(|at| nodes.start(at));
    let (clock, mut calls) = (VirtualClock::default(), 0);
    let slow = |at, request: &NodeRequest| {
        calls += 1;
        nodes.now = nodes.now + TERM / 20;
        nodes.tick();
        clock.advance(TERM / 20);
        nodes.call_node(at, &request.to_bytes())
    };
    let (mut engine, _) = Engine::claim(&nic(9), config(4), &volume(1), slow, || clock.now()).unwrap();
    assert!(calls > 20, "{calls} calls");
    assert_eq!(nodes.read(&mut engine, 0, SIZE_BYTES), Ok(bytes));
}

#[test]
fn fences_a_mount_that_was_stopped_beyond_its_lease() {
    let mut nodes = Nodes::new(2, 1);
    let (mut old, _) = nodes.claimed(1);
    let bytes = fill(&mut nodes, &mut old, 1);
    // The client is stopped while it writes.
    old.submit(Request { token: 1, offset: 0, work: Work::Write(vec![1; SIZE_BYTES].into()) }, nodes.now)
        .unwrap();
    old.submit(Request { token: 2, offset: 0, work: Work::WriteMetadata(vec![1; 100]) }, nodes.now).unwrap();
    nodes.wait_for_leases();
    let (mut new, takeover) = nodes.claimed(2);
    assert_eq!(takeover.epoch, 2);
    let again = nodes.read(&mut new, 0, SIZE_BYTES).unwrap();
    nodes.write(&mut new, 0, &vec![2; SIZE_BYTES]).unwrap();
    nodes.write_metadata(&mut new, 0, &[2; 100]).unwrap();
    // The stopped client has at most posted pages to the redo log. The next client replays these.
    for (at, (found, before)) in again.chunks(PAGE_BYTES).zip(bytes.chunks(PAGE_BYTES)).enumerate() {
        assert!(found == before || found == [1; PAGE_BYTES], "page {at} is neither");
    }
    assert!(old.exclusive_until() <= nodes.now, "it must not believe that it has the volume");
    for _ in 0..2_000 {
        nodes.drive_once(&mut old);
    }
    let mut ended = Vec::new();
    ended.extend(std::iter::from_fn(|| old.next_completed()).map(|ended| ended.result));
    assert_eq!(ended, [Err(IoError::Fenced), Err(IoError::Fenced)]);
    assert_eq!(nodes.read(&mut old, 0, 10), Err(IoError::Fenced));
    assert_eq!(nodes.write(&mut old, 0, &vec![3; SLAB_BYTES]), Err(IoError::Fenced));
    assert_eq!(nodes.read(&mut new, 0, SIZE_BYTES), Ok(vec![2; SIZE_BYTES]));
    drop((old, new));
    nodes.wait_for_leases();
    assert!(nodes.claimed(3).1.metadata.iter().all(|metadata| metadata.starts_with(&[2; 100])));
}

#[test]
fn keeps_a_half_written_page_old_or_new_after_a_crash() {
    for turns in 0..60 {
        let mut nodes = Nodes::new(2, 1);
        let (mut engine, _) = nodes.claimed(1);
        nodes.write(&mut engine, 0, &[1; PAGE_BYTES]).unwrap();
        let before = pages_of_nodes(&nodes);
        engine
            .submit(Request { token: 1, offset: 0, work: Work::Write(vec![2; PAGE_BYTES].into()) }, nodes.now)
            .unwrap();
        (0..turns).for_each(|_| nodes.drive_once(&mut engine));
        // Make the replica that was written last a torn one.
        let after = pages_of_nodes(&nodes);
        let changed: Vec<usize> = (0..2).filter(|at| after[*at] != before[*at]).collect();
        let is_told = engine.next_completed().is_some();
        if let ([torn], false) = (&changed[..], is_told) {
            put_page(&nodes, *torn, &[[2; PAGE_BYTES / 2], [1; PAGE_BYTES / 2]].concat());
        }
        drop(engine);
        nodes.wait_for_leases();
        let (mut engine, _) = nodes.claimed(2);
        let found = nodes.read(&mut engine, 0, PAGE_BYTES).unwrap();
        let is_new = found == [2; PAGE_BYTES];
        assert!(is_new || (found == [1; PAGE_BYTES] && !is_told), "{turns} turns: neither");
        assert!(
            pages_of_nodes(&nodes).iter().all(|page| *page == found),
            "{turns} turns: a replica has others"
        );
        // The content stays, even if it is written over immediately.
        nodes.write(&mut engine, 10, &[3; 10]).unwrap();
        drop(engine);
        nodes.wait_for_leases();
        let (mut engine, _) = nodes.claimed(3);
        let page = nodes.read(&mut engine, 0, PAGE_BYTES).unwrap();
        assert!(page[..10] == found[..10] && page[10..20] == [3; 10] && page[20..] == found[20..]);
    }
}

#[test]
fn reads_volume_pages_in_one_run_once_they_are_settled() {
    // Only reads determine the content of uncertain pages, not the periodic scrub.
    let unscrubbed = || ClientConfig { scrub_pages_per_s: 0, ..config(2) };
    for turns in 0..60 {
        let mut nodes = Nodes::new(2, 1);
        let (mut engine, _) = nodes.claim(unscrubbed(), &volume(1)).unwrap();
        let bytes: Vec<u8> = (0..SLAB_BYTES).map(|at| (at / PAGE_BYTES) as u8 + 1).collect();
        nodes.write(&mut engine, 0, &bytes).unwrap();
        let together = |engine: &Engine| engine.status().counts.pages_together;
        let before = together(&engine);
        assert_eq!(nodes.read(&mut engine, 0, SLAB_BYTES).as_ref(), Ok(&bytes));
        assert_eq!(together(&engine) - before, 8);
        // These are written to the same slots of the redo log, so that the next client does not read the pages of the
        // first slab in order to replay them.
        let others: Vec<u8> = bytes.iter().map(|byte| byte + 50).collect();
        nodes.write(&mut engine, SLAB_BYTES, &others).unwrap();
        let work = Work::Write(vec![99; PAGE_BYTES].into());
        engine.submit(Request { token: 1, offset: 0, work }, nodes.now).unwrap();
        (0..turns).for_each(|_| nodes.drive_once(&mut engine));
        drop(engine);
        nodes.wait_for_leases();
        let (mut engine, _) = nodes.claim(unscrubbed(), &volume(2)).unwrap();
        // This read waits for the sessions.
        nodes.read(&mut engine, SLAB_BYTES - PAGE_BYTES, PAGE_BYTES).unwrap();
        let found = nodes.read(&mut engine, 0, SLAB_BYTES).unwrap();
        assert_eq!(together(&engine), 0);
        let (first, rest) = found.split_at(PAGE_BYTES);
        assert!(first == [99; PAGE_BYTES] || first == &bytes[..PAGE_BYTES], "{turns} turns: neither");
        assert!(rest == &bytes[PAGE_BYTES..]);
        assert!(
            pages_of_nodes(&nodes).iter().all(|page| page == first),
            "{turns} turns: a replica has others"
        );
        assert_eq!((nodes.read(&mut engine, 0, SLAB_BYTES), together(&engine)), (Ok(found), 8));
    }
}

/// Three nodes, one of which exits together with the client.
#[test]
fn keeps_pages_written_together_when_node_and_client_exit() {
    let unscrubbed = || ClientConfig { scrub_pages_per_s: 0, ..config(3) };
    let bytes_of =
        |round: u8| (0..SLAB_BYTES).map(|at| (at / PAGE_BYTES) as u8 + round * 10).collect::<Vec<u8>>();
    let mut seen = std::collections::BTreeSet::new();
    for turns in 0..12 {
        let (mut nodes, mut before) = (Nodes::new(3, turns + 1), Vec::new());
        for round in 1..5 {
            let (mut engine, _) = nodes.claim(unscrubbed(), &volume(round)).unwrap();
            nodes.until(&mut engine, "all is replicated", |engine| {
                let status = engine.status();
                status.degraded == 0 && status.nodes.iter().all(|node| node.link == LinkStatus::Up)
            });
            if round > 1 {
                // After this read the content of each page is certain.
                let found = nodes.read(&mut engine, 0, SLAB_BYTES).unwrap();
                let page_of = |bytes: &[u8], page: usize| bytes[page * PAGE_BYTES..][..PAGE_BYTES].to_vec();
                for page in 0..SLAB_BYTES / PAGE_BYTES {
                    let is = page_of(&found, page);
                    let was = [page_of(&before, page), page_of(&bytes_of(round - 1), page)];
                    assert!(was.contains(&is), "{turns} turns, round {round}: page {page} is neither");
                }
                before = found;
                // No client before this one knows which content was written last, and whether that write was complete.
                nodes.write(&mut engine, 0, &before).unwrap();
            } else {
                before = vec![0; SLAB_BYTES];
                nodes.write(&mut engine, 0, &before).unwrap();
                assert_eq!(engine.status().counts.pages_together, 8);
            }
            let work = Work::Write(bytes_of(round).into());
            engine.submit(Request { token: 1, offset: 0, work }, nodes.now).unwrap();
            let new =
                |nodes: &Nodes| pages_of_nodes(nodes).iter().filter(|page| page[0] == round * 10).count();
            seen.insert(new(&nodes));
            for _ in 0..turns {
                nodes.drive_once(&mut engine);
                seen.insert(new(&nodes));
            }
            drop(engine);
            let lost = (turns + u64::from(round)) as usize % 3;
            nodes.nodes[lost] = None;
            nodes.wait_for_leases();
            let (mut engine, _) = nodes.claim(unscrubbed(), &volume(round + 100)).unwrap();
            nodes.read(&mut engine, 0, SLAB_BYTES).unwrap();
            drop(engine);
            nodes.start(lost);
            nodes.wait_for_leases();
        }
    }
    // Both replicas at once, after the entries were committed.
    assert_eq!(seen, [0, 2].into());
}

/// Returns the first page of the only slab of each node, read directly from its memory.
fn pages_of_nodes(nodes: &Nodes) -> Vec<Vec<u8>> {
    let page = |node: &Node| {
        let mut bytes = vec![0; PAGE_BYTES];
        node.granted().next()?.1.copy_out(0, &mut bytes);
        Some(bytes)
    };
    nodes.nodes.iter().flatten().filter_map(page).collect()
}

fn put_page(nodes: &Nodes, at: usize, bytes: &[u8]) {
    nodes.nodes[at].as_ref().unwrap().granted().next().unwrap().1.copy_in(0, bytes);
}

#[test]
fn continues_without_a_node_and_rejects_that_node_alone() {
    let mut nodes = Nodes::new(2, 1);
    let (mut engine, _) = nodes.claimed(1);
    fill(&mut nodes, &mut engine, 1);
    // The second node is disconnected. The mount continues with the first one and writes.
    let cut = nodes.nodes[1].take();
    nodes.until(&mut engine, "it is without the node", |engine| {
        engine.status().nodes[1].link == LinkStatus::Down
    });
    let bytes = fill(&mut nodes, &mut engine, 2);
    drop(engine);
    nodes.wait_for_leases();
    let first = nodes.nodes[0].take();
    nodes.nodes[1] = cut;
    nodes.tick();
    let refused = nodes.claim(config(2), &volume(2)).err().unwrap().to_string();
    assert!(refused.contains("1 of its 2 nodes answer, and another may know newer files"), "{refused}");
    // The first node suffices alone, and both together do.
    nodes.nodes[0] = first;
    let cut = nodes.nodes[1].take();
    let (mut engine, takeover) = nodes.claimed(2);
    assert!(takeover.epoch > 1);
    assert_eq!(nodes.read(&mut engine, 0, SIZE_BYTES), Ok(bytes.clone()));
    drop(engine);
    nodes.nodes[1] = cut;
    nodes.wait_for_leases();
    let (mut engine, _) = nodes.claimed(3);
    assert_eq!(nodes.read(&mut engine, 0, SIZE_BYTES), Ok(bytes));
}

#[test]
fn needs_two_of_three_nodes() {
    for alone in 0..3 {
        let mut nodes = Nodes::new(3, 1);
        let (mut engine, _) = nodes.claimed(1);
        let bytes = fill(&mut nodes, &mut engine, 1);
        drop(engine);
        nodes.wait_for_leases();
        let mut off: Vec<_> = (0..3).map(|at| nodes.nodes[at].take_if(|_| at != alone)).collect();
        let refused = nodes.claim(config(3), &volume(2)).err().unwrap().to_string();
        assert!(refused.contains("1 of its 3 nodes answer"), "{refused}");
        let second = (alone + 1) % 3;
        nodes.nodes[second] = off[second].take();
        nodes.tick();
        let (mut engine, _) = nodes.claimed(2);
        assert_eq!(nodes.read(&mut engine, 0, SIZE_BYTES), Ok(bytes));
    }
    let mut nodes = Nodes::new(3, 1);
    let (mut engine, _) = nodes.claimed(1);
    fill(&mut nodes, &mut engine, 1);
    (nodes.nodes[0], nodes.nodes[2]) = (None, None);
    // Two other nodes may belong to another mount.
    assert_eq!(nodes.write(&mut engine, 0, &[1]), Err(IoError::Fenced));
}

#[test]
fn keeps_one_key_and_geometry_per_volume_until_forgotten() {
    let mut nodes = Nodes::new(2, 1);
    let (mut engine, _) = nodes.claimed(1);
    fill(&mut nodes, &mut engine, 1);
    drop(engine);
    let of = |key| VolumeRef { name: "files".to_owned(), key: Secret(key) };
    let right: [u8; 16] = std::array::from_fn(|at| at as u8);
    let forget = |nodes: &mut Nodes, key| {
        let request = NodeRequest::Forget { volume: of(key) }.to_bytes();
        (0..2).map(|at| nodes.call_node(at, &request).err()).collect::<Vec<_>>()
    };
    let kind = |refused: &Option<NodeCallError>| match refused {
        Some(NodeCallError::Refused(refusal)) => Some(refusal.kind),
        _ => None,
    };
    assert_eq!(kind(&forget(&mut nodes, right)[0]), Some(RefusalKind::Held), "it is mounted");
    nodes.wait_for_leases();
    let other = VolumeConfig::new("files".to_owned(), [7; 32], [2; 16], METADATA_BYTES);
    let refused = nodes.claim(config(2), &other).err().unwrap().to_string();
    assert!(refused.contains("has another key"), "{refused}");
    assert_eq!(kind(&forget(&mut nodes, [7; 16])[1]), Some(RefusalKind::OtherVolume));
    let shape = ClientConfig { size_bytes: SIZE_BYTES as u64 * 2, ..config(2) };
    let refused = nodes.claim(shape, &volume(2)).err().unwrap().to_string();
    assert!(refused.contains("another --size or --slab"), "{refused}");
    let used = |nodes: &Nodes| nodes.nodes[0].as_ref().unwrap().status(nodes.now);
    assert_eq!(used(&nodes).volumes.len(), 1);
    assert_eq!(forget(&mut nodes, right), [None, None]);
    assert_eq!((used(&nodes).volumes.len(), used(&nodes).room.free), (0, 16));
    assert!(nodes.claimed(3).1.is_new);
}

#[test]
fn bounds_and_counts_stored_volumes() {
    let mut nodes = Nodes::new(1, 1);
    let named =
        |name: &str, metadata_bytes| VolumeConfig::new(name.to_owned(), [7; 32], [1; 16], metadata_bytes);
    let refused = nodes.claim(config(1), &named("large", 1 << 21)).err().unwrap().to_string();
    assert!(refused.contains("bytes of notes") && refused.contains("--notes"), "{refused}");
    let (mut engine, _) = nodes.claim(config(1), &named("one", METADATA_BYTES)).unwrap();
    fill(&mut nodes, &mut engine, 1);
    drop((engine, nodes.claim(config(1), &named("two", METADATA_BYTES)).unwrap()));
    let refused = nodes.claim(config(1), &named("three", METADATA_BYTES)).err().unwrap().to_string();
    assert!(refused.contains("2 volumes are kept"), "{refused}");
    nodes.wait_for_leases();
    let status = nodes.nodes[0].as_ref().unwrap().status(nodes.now);
    let volumes: Vec<_> = status.volumes.iter().map(|of| (&*of.name, of.slabs, of.is_held)).collect();
    assert_eq!(volumes, [("one", 3, false), ("two", 0, false)]);
    assert!(status.volumes.iter().all(|of| of.metadata_bytes > METADATA_BYTES && of.epoch == 1));
    assert_eq!((status.room.free, status.expired, status.volumes_max), (13, 2, 2));
    for name in ["", &"x".repeat(65)] {
        let refused = nodes.claim(config(1), &named(name, METADATA_BYTES)).err().unwrap().to_string();
        assert!(refused.contains("from 1 to 64"), "{refused}");
    }
}

#[test]
fn rejects_calls_after_the_volume_is_lost() {
    let mut nodes = Nodes::new(1, 1);
    let claim = |holder, epoch| NodeRequest::Claim {
        volume: VolumeRef { name: "files".to_owned(), key: Secret([1; 16]) },
        name: String::new(),
        holder: Secret([holder; 16]),
        epoch,
        node: 5,
        metadata_bytes: 8_192,
    };
    let lease = |reply| match reply {
        Ok(Reply::Claimed { lease, .. }) => lease,
        other => panic!("{other:?}"),
    };
    let kind = |reply: Result<Reply, NodeCallError>| match reply {
        Err(NodeCallError::Refused(refusal)) => refusal.kind,
        other => panic!("{other:?}"),
    };
    let old = lease(nodes.call_node(0, &claim(1, 4).to_bytes()));
    let bytes = vec![9; 100];
    let view = |epoch| MembershipView { volume: 1, epoch, change: 0, nodes: vec![5], members: vec![5] };
    nodes
        .call_node(
            0,
            &NodeRequest::WriteMetadata { lease: old, offset: 8_000, bytes: bytes.clone() }.to_bytes(),
        )
        .unwrap();
    nodes.call_node(0, &NodeRequest::StoreView { lease: old, view: view(4) }.to_bytes()).unwrap();
    for offset in [8_093, u64::MAX] {
        let beyond = NodeRequest::WriteMetadata { lease: old, offset, bytes: bytes.clone() };
        assert_eq!(kind(nodes.call_node(0, &beyond.to_bytes())), RefusalKind::Limit);
        let beyond = NodeRequest::ReadMetadata { lease: old, offset, len_bytes: 100 };
        assert_eq!(kind(nodes.call_node(0, &beyond.to_bytes())), RefusalKind::Limit);
    }
    assert_eq!(kind(nodes.call_node(0, &claim(1, 3).to_bytes())), RefusalKind::Overtaken);
    let new = lease(nodes.call_node(0, &claim(1, 5).to_bytes()));
    let write = NodeRequest::WriteMetadata { lease: old, offset: 8_000, bytes: vec![1; 100] };
    assert_eq!(kind(nodes.call_node(0, &write.to_bytes())), RefusalKind::UnknownLease);
    let late = NodeRequest::StoreView { lease: new, view: view(4) };
    assert_eq!(kind(nodes.call_node(0, &late.to_bytes())), RefusalKind::Overtaken);
    let long = NodeRequest::StoreView { lease: new, view: MembershipView { nodes: vec![0; 257], ..view(5) } };
    assert_eq!(kind(nodes.call_node(0, &long.to_bytes())), RefusalKind::Limit);
    let read = NodeRequest::ReadMetadata { lease: new, offset: 8_000, len_bytes: 100 };
    assert_eq!(nodes.call_node(0, &read.to_bytes()), Ok(Reply::Metadata { bytes }));
}

#[test]
fn creates_a_volume_only_if_all_nodes_reply() {
    let mut nodes = Nodes::new(2, 1);
    let off = nodes.nodes[1].take();
    let refused = nodes.claim(config(2), &volume(1)).err().unwrap().to_string();
    assert!(refused.contains("one that does not may have it: node 1 is off"), "{refused}");
    drop(nodes.claim(config(1), &volume(1)).unwrap());
    nodes.nodes[1] = off;
    nodes.nodes.swap(0, 1);
    drop(nodes.claim(config(1), &volume(1)).unwrap());
    nodes.wait_for_leases();
    let refused = nodes.claim(config(2), &volume(2)).err().unwrap().to_string();
    assert!(refused.contains("nodes keep two different ones"), "{refused}");
}
