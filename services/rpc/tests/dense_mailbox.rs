//! Requests announced by a byte: the server polls only the bytes, and trusts none of them.

mod support;

use farcall_link::Plan;
use farcall_rpc::*;
use farcall_verbs::Endpoint;
use support::rogue::Rogue;
use support::*;

type L5 = WithDoorbellByte<ServerReply>;

fn turns(world: &mut World) {
    for _ in 0..100 {
        let now = world.now();
        world.server.progress(now);
    }
}

fn executed(world: &mut World) -> u64 {
    world.server.handler().executed
}

#[test]
fn executes_an_unannounced_message_only_after_a_wake_up() {
    let mut world = World::new();
    let mut client = Rogue::connect(&mut world, "l5");
    assert_eq!(executed(&mut world), 1, "one that was told of");
    client.send(client.header().encode(), true);
    turns(&mut world);
    assert_eq!(executed(&mut world), 1, "the mailbox is not polled");
    client.kick();
    world.serve(2);
}

#[test]
fn retains_an_early_announcement_until_its_message_arrives() {
    let mut world = World::new();
    let mut client = Rogue::connect(&mut world, "l5");
    client.tell(0, &[client.seq.0 as u8]);
    turns(&mut world);
    assert_eq!(executed(&mut world), 1, "nothing is there yet");
    client.send(client.header().encode(), true);
    world.serve(2);
}

/// On one host, and with the key also on any RNIC, a client that may write one byte can also write those of others.
#[test]
fn loses_no_call_for_announcements_forged_by_a_client() {
    let mut world = World::new();
    let mut rogue = Rogue::connect(&mut world, "l5");
    let mut honest: Vec<Caller<L5>> = (0..9).map(|_| world.client()).collect();
    for round in 0..20_u8 {
        // Also in words without a byte of any connection.
        rogue.tell(0, &[round.wrapping_mul(37); 64]);
        for client in &mut honest {
            let now = world.now();
            client.submit(ECHO, &[round], CallContext::default(), now).unwrap();
            // As if the byte had arrived after the message.
            rogue.tell(0, &[round; 64]);
            assert_eq!(world.finish(client).1.unwrap(), [round]);
        }
    }
    assert_eq!(executed(&mut world), 1 + 9 * 20);
    assert_eq!(world.server.counters().violations.get(), 0);
}

#[test]
fn returns_each_client_its_own_reply_while_others_come_and_go() {
    let mut world = World::new();
    let mut clients: Vec<(ConnectionId, Caller<L5>)> = Vec::new();
    let mut plain = world.client::<ServerReply>();
    for round in 0..60_u8 {
        for _ in 0..3 {
            let mut client = Caller::new(world.nic.clone(), CallerConfig::default()).unwrap();
            clients.push((world.connect(&mut client).unwrap(), client));
        }
        if round % 2 == 1 {
            let (id, _) = clients.remove(usize::from(round) % clients.len());
            let now = world.now();
            world.server.hang_up(id, false, now);
        }
        for (at, (_, client)) in clients.iter_mut().enumerate() {
            let said = [round, at as u8];
            assert_eq!(world.call(client, ECHO, &said).unwrap(), said);
        }
        assert_eq!(world.call(&mut plain, ECHO, &[round]).unwrap(), [round]);
    }
}

#[test]
fn never_repeats_a_doorbell_byte_within_a_window() {
    let mut world = World::new();
    let mut plan = L5::plan(Plan::default());
    plan.geometry.window = 256;
    let mut client = world.client_with::<L5>(CallerConfig::default().plan(plan));
    let mut under_way = 0;
    let now = world.now();
    while client.submit(ECHO, b"x", CallContext::default(), now).is_ok() {
        under_way += 1;
    }
    assert!(under_way >= 128, "{under_way}");
    for _ in 0..under_way {
        assert_eq!(world.finish(&mut client).1.unwrap(), b"x");
    }
}
