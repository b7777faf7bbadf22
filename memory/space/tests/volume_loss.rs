//! Volumes that have lost pages, or the nodes with the newest state. They are refused, or used in part on request.

mod support;

use farcall_memory::wire::Request as NodeRequest;
use farcall_memory::*;
use support::volumes::*;

/// Two nodes with one replica of each page.
fn with_one_replica() -> (Nodes, Vec<u8>) {
    let mut nodes = Nodes::new(2, 1);
    let one_replica = ClientConfig { replicas: 1, ..config(2) };
    let (mut engine, _) = nodes.claim(one_replica, &volume(1)).unwrap();
    let bytes = fill(&mut nodes, &mut engine, 1);
    drop(engine);
    nodes.wait_for_leases();
    (nodes, bytes)
}

#[test]
fn refuses_a_volume_with_missing_pages_and_lists_them() {
    let (mut nodes, bytes) = with_one_replica();
    let slabs =
        |nodes: &Nodes, at: usize| nodes.nodes[at].as_ref().unwrap().status(nodes.now).volumes[0].slabs;
    // A node that has slabs.
    let at = usize::from(slabs(&nodes, 0) == 0);
    let has_any = slabs(&nodes, 1 - at);
    // An empty node proves nothing.
    nodes.start(at);
    let survivor = (1 - at).to_string();
    let config = || ClientConfig { replicas: 1, ..config(2) };
    let by_survivor = |holder| volume(holder).survivor(survivor.clone());
    for holder in 2..5 {
        let refused = nodes.claim(config(), &by_survivor(holder)).err().unwrap();
        let OpenError::Incomplete { missing, .. } = &refused else { panic!("{refused}") };
        assert!(!missing.is_empty() && refused.to_string().contains("started again, empty"), "{refused}");
        nodes.wait_for_leases();
    }
    let (mut engine, takeover) = nodes.claim(config(), &by_survivor(5).read_only()).unwrap();
    let is_missing =
        |page: usize| takeover.missing.iter().any(|range| range.contains(&((page * PAGE_BYTES) as u64)));
    for page in 0..PAGES {
        let (from, to) = (page * PAGE_BYTES, (page + 1) * PAGE_BYTES);
        let expected = match is_missing(page) {
            true => Err(IoError::Lost { page: page as u64 }),
            false => Ok(bytes[from..to].to_vec()),
        };
        assert_eq!(nodes.read(&mut engine, from, PAGE_BYTES), expected);
    }
    assert!((0..PAGES).any(is_missing) && (has_any == 0 || !(0..PAGES).all(is_missing)));
    assert_eq!(nodes.write(&mut engine, 0, &[1]), Err(IoError::ReadOnly));
    assert_eq!(nodes.write_metadata(&mut engine, 0, &[1]), Err(IoError::ReadOnly));
    // A read-only mount does not make the volume complete.
    drop(engine);
    nodes.wait_for_leases();
    let refused = nodes.claim(config(), &volume(6)).err().unwrap();
    assert!(matches!(refused, OpenError::Incomplete { .. }), "{refused}");
}

#[test]
fn keeps_bytes_of_absent_nodes_while_a_volume_is_read_only() {
    let (mut nodes, bytes) = with_one_replica();
    let config = || ClientConfig { replicas: 1, ..config(2) };
    for absent in 0..2 {
        let cut = nodes.nodes[absent].take();
        let survivor = (1 - absent).to_string();
        let read_only = volume(2).survivor(survivor).read_only();
        let (mut engine, takeover) = nodes.claim(config(), &read_only).unwrap();
        assert!(!takeover.missing.is_empty());
        // The node replies again while the volume is in use.
        nodes.nodes[absent] = cut;
        nodes.tick();
        for page in 0..PAGES {
            let from = page * PAGE_BYTES;
            let is_missing = takeover.missing.iter().any(|range| range.contains(&(from as u64)));
            let expected = match is_missing {
                true => Err(IoError::Lost { page: page as u64 }),
                false => Ok(bytes[from..from + PAGE_BYTES].to_vec()),
            };
            assert_eq!(nodes.read(&mut engine, from, PAGE_BYTES), expected);
        }
        for _ in 0..12 {
            nodes.now = nodes.now + TERM / 10;
            (0..50).for_each(|_| nodes.drive_once(&mut engine));
        }
        drop(engine);
        nodes.wait_for_leases();
    }
    let (mut engine, takeover) = nodes.claim(config(), &volume(3)).unwrap();
    assert_eq!(takeover.missing, []);
    assert_eq!(nodes.read(&mut engine, 0, SIZE_BYTES), Ok(bytes));
    let refused = nodes.claim(config(), &volume(4).read_only()).err().unwrap();
    assert!(matches!(refused, OpenError::Held(_)), "{refused}");
    let mut empty = Nodes::new(2, 9);
    let refused = empty.claim(config(), &volume(1).read_only()).err().unwrap().to_string();
    assert!(refused.ends_with("has a part of it"), "{refused}");
}

#[test]
fn accepts_a_lone_node_only_as_named_survivor() {
    let mut nodes = Nodes::new(2, 1);
    let (mut engine, _) = nodes.claimed(1);
    let bytes = fill(&mut nodes, &mut engine, 1);
    drop(engine);
    nodes.wait_for_leases();
    let second = nodes.nodes[1].take();
    let refused = nodes.claim(config(2), &volume(2)).err().unwrap().to_string();
    assert!(refused.contains("1 of its 2 nodes answer"), "{refused}");
    let refused = nodes.claim(config(2), &volume(2).survivor("1".to_owned())).err().unwrap().to_string();
    assert!(refused.contains("the survivor 1 does not answer"), "{refused}");
    let (mut engine, _) = nodes.claim(config(2), &volume(2).survivor("0".to_owned())).unwrap();
    assert_eq!(nodes.read(&mut engine, 0, SIZE_BYTES), Ok(bytes));
    let newer = fill(&mut nodes, &mut engine, 2);
    drop(engine);
    // The state of the other node is older from now on.
    nodes.nodes[1] = second;
    nodes.wait_for_leases();
    let (mut engine, _) = nodes.claimed(3);
    assert_eq!(nodes.read(&mut engine, 0, SIZE_BYTES), Ok(newer));
}

#[test]
fn repeats_a_claim_when_a_node_restarts_after_its_look() {
    for restarted in 0..3 {
        let mut nodes = Nodes::new(3, 1);
        let (mut engine, _) = nodes.claimed(1);
        let bytes = fill(&mut nodes, &mut engine, 1);
        nodes.write_metadata(&mut engine, 0, b"told").unwrap();
        drop(engine);
        nodes.wait_for_leases();
        let (mut is_restarted, now) = (false, nodes.now);
        let call = |at: usize, request: &NodeRequest| {
            if at == restarted && matches!(request, NodeRequest::Claim { .. }) && !is_restarted {
                is_restarted = true;
                nodes.start(at);
            }
            nodes.call_node(at, &request.to_bytes())
        };
        let (mut engine, takeover) = Engine::claim(&nic(77), config(3), &volume(2), call, || now).unwrap();
        assert!(takeover.metadata.iter().all(|metadata| metadata.starts_with(b"told")), "node {restarted}");
        assert_eq!(nodes.read(&mut engine, 0, SIZE_BYTES), Ok(bytes));
    }
}

#[test]
fn keeps_the_last_replica_of_a_node_that_is_out_of_reach() {
    let mut nodes = Nodes::new(3, 1);
    let one_replica = ClientConfig { replicas: 1, ..config(3) };
    let (mut engine, _) = nodes.claim(one_replica, &volume(1)).unwrap();
    let bytes = fill(&mut nodes, &mut engine, 1);
    let at = (0..3).find(|at| engine.status().nodes[*at].replicas > 0).unwrap();
    let cut = nodes.nodes[at].take();
    // The lease of the node expires, and the others continue.
    for _ in 0..30 {
        nodes.now = nodes.now + TERM / 10;
        (0..50).for_each(|_| nodes.drive_once(&mut engine));
    }
    assert_eq!(engine.status().nodes[at].link, LinkStatus::Down);
    nodes.nodes[at] = cut;
    nodes.tick();
    nodes.until(&mut engine, "the node is a member again", |engine| {
        engine.status().nodes.iter().all(|node| node.link == LinkStatus::Up)
    });
    assert_eq!(nodes.read(&mut engine, 0, SIZE_BYTES), Ok(bytes));
}

#[test]
fn writes_nothing_to_an_extent_of_which_no_replica_is_left() {
    let mut nodes = Nodes::new(2, 1);
    let one_replica = ClientConfig { replicas: 1, ..config(2) };
    let (mut engine, _) = nodes.claim(one_replica, &volume(1)).unwrap();
    fill(&mut nodes, &mut engine, 1);
    let at = (0..2).find(|at| engine.status().nodes[*at].replicas > 0).unwrap();
    let link = |engine: &Engine| engine.status().nodes[at].link;
    nodes.start(at);
    nodes.until(&mut engine, "the node is missed", |engine| link(engine) == LinkStatus::Down);
    nodes.until(&mut engine, "the node is a member again", |engine| link(engine) == LinkStatus::Up);
    assert!(engine.status().lost > 0);
    let lost = |page: usize| Err(IoError::Lost { page: page as u64 });
    let pages = (0..PAGES).map(|page| (page, nodes.write(&mut engine, page * PAGE_BYTES, &[1; PAGE_BYTES])));
    let refused = pages.filter(|(page, result)| *result == lost(*page)).count();
    assert!(refused >= SLAB_BYTES / PAGE_BYTES / 2, "{refused} writes were refused");
}
