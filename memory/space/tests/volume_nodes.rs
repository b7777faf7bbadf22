//! Nodes that join a volume, leave it and return while it is in use.

mod support;

use farcall_memory::wire::{Request as NodeRequest, VolumeMembership};
use farcall_memory::*;
use farcall_verbs::Endpoint;
use support::Load;
use support::volumes::*;

fn are_all_up(engine: &Engine) -> bool {
    engine.status().nodes.iter().all(|node| node.link == LinkStatus::Up)
}

/// Disconnects a node and calls `step` until the volume no longer depends on the node. Returns the node.
fn lose(
    nodes: &mut Nodes,
    engine: &mut Engine,
    lost: usize,
    mut step: impl FnMut(&mut Nodes, &mut Engine),
) -> Option<Node> {
    let was = nodes.nodes[lost].take();
    for turns in 1..STEPS_MAX {
        let node = &engine.status().nodes[lost];
        if (node.link, node.replicas) == (LinkStatus::Down, 0) {
            return was;
        }
        step(nodes, engine);
        if turns % 200 == 0 {
            // The other nodes are called in this time.
            nodes.now = nodes.now + TERM / 10;
        }
    }
    panic!("not in time: it is without the node; {:?}", engine.status())
}

fn drive_once(nodes: &mut Nodes, engine: &mut Engine) {
    nodes.drive_once(engine);
}

#[test]
fn copies_a_volume_in_use_to_a_joining_node() {
    let mut nodes = Nodes::new(3, 1);
    let known = ClientConfig { nodes_max: 3, ..config(2) };
    let (mut engine, _) = nodes.claim(known, &volume(1)).unwrap();
    let bytes = fill(&mut nodes, &mut engine, 1);
    nodes.write_metadata(&mut engine, 5, b"noted").unwrap();
    assert!(engine.join("2").unwrap());
    nodes.until(&mut engine, "all nodes are there", are_all_up);
    let volumes = nodes.nodes[2].as_ref().unwrap().status(nodes.now).volumes;
    assert!(volumes.len() == 1 && volumes[0].is_held, "it has no part of it: {volumes:?}");
    nodes.write_metadata(&mut engine, 10, b" later").unwrap();
    // With this node and one other the volume continues, in this client and in that of another machine.
    lose(&mut nodes, &mut engine, 0, drive_once);
    nodes.until(&mut engine, "all is replicated", |engine| engine.status().degraded == 0);
    assert_eq!(nodes.read(&mut engine, 0, SIZE_BYTES), Ok(bytes.clone()));
    drop(engine);
    nodes.wait_for_leases();
    let (mut engine, takeover) = nodes.claimed(2);
    assert!(takeover.metadata.iter().all(|metadata| metadata[5..16] == *b"noted later"));
    assert_eq!(nodes.read(&mut engine, 0, SIZE_BYTES), Ok(bytes));
}

#[test]
fn readmits_a_lost_node_as_full_member() {
    for is_empty in [true, false] {
        let mut nodes = Nodes::new(2, 1);
        let (mut engine, _) = nodes.claimed(1);
        fill(&mut nodes, &mut engine, 1);
        nodes.write_metadata(&mut engine, 0, b"before").unwrap();
        let cut = lose(&mut nodes, &mut engine, 1, drive_once);
        let bytes = fill(&mut nodes, &mut engine, 2);
        nodes.write_metadata(&mut engine, 0, b"behind").unwrap();
        if is_empty {
            nodes.start(1);
        } else {
            nodes.nodes[1] = cut;
        }
        let is_whole = |engine: &Engine| are_all_up(engine) && engine.status().degraded == 0;
        nodes.until(&mut engine, "it is a member again", is_whole);
        nodes.write_metadata(&mut engine, 2, b"hold").unwrap();
        // The node has everything, so the other one may exit.
        lose(&mut nodes, &mut engine, 0, drive_once);
        assert_eq!(nodes.read(&mut engine, 0, SIZE_BYTES), Ok(bytes.clone()));
        drop(engine);
        nodes.wait_for_leases();
        let (mut engine, takeover) = nodes.claimed(2);
        assert!(takeover.metadata.iter().all(|metadata| metadata.starts_with(b"behold")));
        assert_eq!(nodes.read(&mut engine, 0, SIZE_BYTES), Ok(bytes));
    }
}

#[test]
fn preserves_pages_while_nodes_are_lost_and_readmitted() {
    for seed in seeds(1..13) {
        println!("seed {seed}");
        let count = 2 + seed as usize % 2;
        let (mut nodes, mut load) = (Nodes::new(count, seed * 1_000), Load::new(seed, PAGES));
        let mut written_metadata = vec![0; METADATA_BYTES as usize];
        for round in 1..6 {
            nodes.wait_for_leases();
            let (mut engine, takeover) = nodes.claimed(round);
            assert!(
                takeover.metadata.iter().all(|found| *found == written_metadata),
                "seed {seed}: other notes"
            );
            for _ in 0..1 + load.below(3) {
                let is_whole = |engine: &Engine| are_all_up(engine) && engine.status().degraded == 0;
                nodes.until(&mut engine, "all is replicated", is_whole);
                let lost = load.below(count as u64) as usize;
                let cut = lose(&mut nodes, &mut engine, lost, |nodes, engine| step(nodes, engine, &mut load));
                if load.chance(50) {
                    nodes.start(lost);
                } else {
                    nodes.nodes[lost] = cut;
                }
                // Any operation may be in progress when the mount ends, or when the next node is lost.
                for _ in 0..load.below(400) {
                    step(&mut nodes, &mut engine, &mut load);
                }
                let at = load.below(METADATA_BYTES - 8) as usize;
                let word = load.below(u64::MAX).to_le_bytes();
                finish(&mut nodes, &mut engine, &mut load);
                nodes.write_metadata(&mut engine, at, &word).unwrap();
                written_metadata[at..at + 8].copy_from_slice(&word);
            }
            for _ in 0..load.below(200) {
                step(&mut nodes, &mut engine, &mut load);
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
fn restores_confirmed_metadata_while_a_node_joins() {
    let (mut believed, mut refused) = ([0; 4], 0);
    for turns in 0..40 {
        // The set of nodes that reply.
        for (others, believed) in believed.iter_mut().enumerate().skip(1) {
            let mut nodes = Nodes::new(2, 1);
            let (mut engine, _) = nodes.claimed(1);
            fill(&mut nodes, &mut engine, 1);
            let cut = lose(&mut nodes, &mut engine, 1, drive_once);
            if turns % 2 == 0 {
                nodes.start(1);
            } else {
                nodes.nodes[1] = cut;
            }
            let bytes = fill(&mut nodes, &mut engine, 2);
            nodes.write_metadata(&mut engine, 0, b"told").unwrap();
            let last = [turns as u8; PAGE_BYTES];
            nodes.write(&mut engine, 0, &last).unwrap();
            nodes.write_metadata(&mut engine, METADATA_BYTES as usize - 4, b"last").unwrap();
            if turns > 0 {
                nodes.until(&mut engine, "it is being taken in", is_being_taken_in);
            }
            (0..turns).for_each(|_| nodes.drive_once(&mut engine));
            drop(engine);
            nodes.wait_for_leases();
            for at in (0..2).filter(|at| others & 1 << at == 0) {
                nodes.nodes[at] = None;
            }
            let Ok((mut engine, takeover)) = nodes.claim(config(2), &volume(2)) else {
                refused += 1;
                continue;
            };
            *believed += 1;
            assert!(!takeover.is_new && takeover.metadata.iter().all(|metadata| metadata.ends_with(b"last")));
            assert!(takeover.metadata.iter().all(|metadata| metadata.starts_with(b"told")));
            let found = nodes.read(&mut engine, 0, SIZE_BYTES).unwrap();
            assert!(
                found[..PAGE_BYTES] == last && found[PAGE_BYTES..] == bytes[PAGE_BYTES..],
                "{turns} {others}"
            );
        }
    }
    let [_, first, second, both] = believed;
    println!("the first {first} times, the second {second}, both {both}, none {refused}");
    assert!(both == 40 && second == 0, "both together know it, the second alone cannot know that it does");
    assert!((1..40).contains(&first), "the first alone does until the second counts");
}

#[test]
fn continues_a_mount_or_admits_another_but_never_both() {
    let (mut goes_on, mut believed) = (0, 0);
    for turns in 0..30 {
        let mut nodes = Nodes::new(2, 1);
        let (mut engine, _) = nodes.claimed(1);
        fill(&mut nodes, &mut engine, 1);
        let lost = lose(&mut nodes, &mut engine, 1, drive_once);
        if turns % 2 == 0 {
            nodes.start(1);
        } else {
            nodes.nodes[1] = lost;
        }
        if turns > 0 {
            nodes.until(&mut engine, "it is being taken in", is_being_taken_in);
        }
        (0..turns).for_each(|_| nodes.drive_once(&mut engine));
        // The node that had everything is disconnected.
        let cut = nodes.nodes[0].take();
        for _ in 0..12 {
            nodes.now = nodes.now + TERM / 10;
            (0..50).for_each(|_| nodes.drive_once(&mut engine));
        }
        let is_stored = nodes.write_metadata(&mut engine, 0, b"alone").is_ok();
        drop(engine);
        nodes.wait_for_leases();
        nodes.nodes = vec![cut, None];
        nodes.tick();
        let is_believed = nodes.claim(config(2), &volume(2)).is_ok();
        assert!(!is_stored || !is_believed, "{turns} turns: both");
        goes_on += u32::from(is_stored);
        believed += u32::from(is_believed);
    }
    assert!(goes_on > 0 && believed > 0, "{goes_on} {believed}");
}

#[test]
fn writes_metadata_to_a_named_node_without_a_view() {
    let mut nodes = Nodes::new(2, 1);
    let (mut engine, _) = nodes.claimed(1);
    let bytes = fill(&mut nodes, &mut engine, 1);
    lose(&mut nodes, &mut engine, 1, drive_once);
    nodes.start(1);
    nodes.until(&mut engine, "it is being taken in", is_being_taken_in);
    // The client exits when the first node has the view that names the second node, and the second one does not.
    while !turn_without_a_mark(&mut nodes, &mut engine, 1) {}
    drop(engine);
    nodes.wait_for_leases();
    let (mut engine, _) = nodes.claimed(2);
    let is_whole = |engine: &Engine| are_all_up(engine) && engine.status().degraded == 0;
    nodes.until(&mut engine, "all is replicated", is_whole);
    lose(&mut nodes, &mut engine, 0, drive_once);
    nodes.write_metadata(&mut engine, 0, b"without it").unwrap();
    drop(engine);
    nodes.wait_for_leases();
    let (mut engine, _) = nodes.claimed(3);
    assert_eq!(nodes.read(&mut engine, 0, SIZE_BYTES), Ok(bytes));
}

/// Like [`Nodes::drive_once`], but returns whether a node was about to be sent a membership view.
fn turn_without_a_mark(nodes: &mut Nodes, engine: &mut Engine, node: usize) -> bool {
    nodes.now = nodes.now + STEP_TIME;
    while let Some((at, bytes)) = engine.next_call(nodes.now) {
        if at == node && matches!(NodeRequest::parse(&bytes), Ok(NodeRequest::StoreView { .. })) {
            return true;
        }
        let reply = nodes.call_node(at, &bytes).map(|reply| reply.to_bytes());
        engine.on_reply(at, reply, nodes.now);
    }
    engine.progress(nodes.now);
    nodes.tick();
    std::thread::yield_now();
    false
}

fn membership(nodes: &Nodes, at: usize) -> Option<VolumeMembership> {
    nodes.nodes[at].as_ref().and_then(|node| node.status(nodes.now).memberships.first().copied())
}

/// The status of each node shows whether it has all metadata, and how many nodes do.
#[test]
fn shows_that_a_witness_is_joining_again() {
    for is_empty in [true, false] {
        let mut nodes = Nodes::with_witness(3, Some(2), 1);
        let (mut engine, _) = nodes.claimed(1);
        fill(&mut nodes, &mut engine, 1);
        let whole = VolumeMembership { nodes: 3, members: 3, is_member: true };
        assert_eq!([0, 1, 2].map(|at| membership(&nodes, at)), [Some(whole); 3]);
        let cut = lose(&mut nodes, &mut engine, 2, drive_once);
        let without = VolumeMembership { members: 2, ..whole };
        while membership(&nodes, 0) != Some(without) {
            nodes.drive_once(&mut engine);
        }
        if is_empty {
            nodes.start(2);
        } else {
            nodes.nodes[2] = cut;
            nodes.tick();
        }
        let mut seen = Vec::new();
        while seen.last() != Some(&Some(whole)) || membership(&nodes, 0) != Some(whole) {
            nodes.drive_once(&mut engine);
            let found = membership(&nodes, 2);
            if seen.last() != Some(&found) {
                seen.push(found);
            }
        }
        // The view of an earlier membership counts until the client claims the node again.
        let (before, joining) = match is_empty {
            true => (None, VolumeMembership::default()),
            false => (Some(whole), VolumeMembership { is_member: false, ..whole }),
        };
        assert_eq!(seen, [before, Some(joining), Some(whole)]);
    }
}

fn is_being_taken_in(engine: &Engine) -> bool {
    engine.status().nodes[1].problem.as_ref().is_some_and(|problem| problem.contains("being taken"))
}

#[test]
fn allows_drained_nodes_to_leave_together() {
    let mut nodes = Nodes::new(4, 1);
    let (mut engine, _) = nodes.claimed(1);
    let bytes = fill(&mut nodes, &mut engine, 1);
    for at in 0..2 {
        nodes.call_node(at, &NodeRequest::Drain { is_wanted: true }.to_bytes()).unwrap();
    }
    nodes.until(&mut engine, "nothing is at the nodes that drain", |engine| {
        let status = engine.status();
        status.degraded == 0 && status.nodes[..2].iter().all(|node| node.replicas == 0)
    });
    // The nodes are sent the new view with the next renewal, at the latest.
    for _ in 0..20 {
        nodes.now = nodes.now + TERM / 10;
        (0..50).for_each(|_| nodes.drive_once(&mut engine));
    }
    (nodes.nodes[0], nodes.nodes[1]) = (None, None);
    for _ in 0..20 {
        nodes.now = nodes.now + TERM / 10;
        (0..50).for_each(|_| nodes.drive_once(&mut engine));
    }
    nodes.write_metadata(&mut engine, 0, b"without them").unwrap();
    drop(engine);
    nodes.wait_for_leases();
    let (mut engine, takeover) = nodes.claimed(2);
    assert!(takeover.metadata.iter().all(|metadata| metadata.starts_with(b"without them")));
    assert_eq!(nodes.read(&mut engine, 0, SIZE_BYTES), Ok(bytes));
}
