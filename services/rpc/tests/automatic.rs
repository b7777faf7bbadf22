//! Clients that leave the choice of verbs to the library.

use farcall_link::Nic;
use farcall_link::{PRESETS, Preset};
use farcall_rpc::tune::{LinkProfile, Posting, ReadCost};
use farcall_rpc::*;
use farcall_softnic::SoftNic;

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

fn preset(name: &str) -> &'static Preset {
    PRESETS.iter().find(|preset| preset.name == name).unwrap()
}

/// Starts a server that offers only these presets.
fn server_of(presets: &[&str]) -> Server {
    let presets = presets.iter().map(|name| preset(name)).collect();
    let echo = |call: &Call<'_>, reply: &mut Reply<'_>| {
        reply.extend_from_slice(call.payload());
        Ok(())
    };
    let config = ResponderConfig::default().presets(presets);
    Server::builder().config(config).start(&nic(), move |_| echo).unwrap()
}

fn server() -> Server {
    server_of(&PRESETS.iter().map(|preset| preset.name).collect::<Vec<_>>())
}

fn connect(server: &Server, options: ClientOptions) -> Result<Client, ConnectError> {
    Client::connect(&nic(), server.address().to_string(), options)
}

fn echoes(client: &mut Client) {
    for payload in [&b"x"[..], &[7; 20_000]] {
        let mut reply = Vec::new();
        client.call(1, payload, &mut reply).unwrap();
        assert_eq!(reply, payload);
    }
}

/// Returns costs for which `rf-rpc` is chosen because a READ is cheaper, or `server-reply` because a reply is cheaper.
fn profile_for(preset: &str) -> LinkProfile {
    let reply_ns = if preset == "rf-rpc" { 700 } else { 50 };
    let reads = [(64, 100), (256, 100), (4_096, 900)];
    let cost = |(len_bytes, ns)| ReadCost { len_bytes, alone_ns: ns, each_ns: ns };
    LinkProfile::new(reads.map(cost).to_vec(), reply_ns).unwrap()
}

#[test]
fn chooses_a_preset_by_itself_and_reports_the_reason() {
    let server = server();
    let mut client = connect(&server, ClientOptions::default()).unwrap();
    let decision = client.decision().unwrap();
    assert!(PRESETS.iter().any(|preset| preset.name == decision.preset()), "{decision}");
    // The reason names either a profile of the current user, or the default costs.
    assert!(decision.because.contains("costs"), "{decision}");
    echoes(&mut client);
}

#[test]
fn chooses_a_preset_by_the_given_profile() {
    let server = server();
    for name in ["rf-rpc", "server-reply"] {
        let posting = Posting { inline_max_bytes: 64, signal_every: 4, idle_turn_ns: 10, wake_ns: 10_000 };
        let profile = profile_for(name).with_posting(posting).unwrap();
        let bounds = (profile.retries_bound(), profile.low_bytes());
        let mut client = connect(&server, ClientOptions::default().profile(Some(profile))).unwrap();
        let decision = client.decision().unwrap();
        assert_eq!((decision.preset(), client.tuning()), (name, bounds), "{decision}");
        assert!(decision.because.contains("the profile given"), "{decision}");
        let memory = decision.plan.memory;
        assert_eq!((memory.inline_max_bytes, memory.signal_every), (64, 4));
        echoes(&mut client);
        // On a busy machine rf-rpc may switch to server-reply; server-reply never fetches.
        let fetched = client.counters().fetched.get();
        assert!(name == "rf-rpc" || fetched == 0, "{fetched} results fetched");
    }
}

#[test]
fn falls_back_to_the_nearest_preset_that_the_server_offers() {
    let fallbacks = [
        ("rf-rpc", &["send-send", "fetch"][..], "fetch"),
        ("rf-rpc", &["rdma-memcached", "server-reply"], "server-reply"),
        ("server-reply", &["ud-rpc", "uc-rpc"], "uc-rpc"),
        ("server-reply", &["ud-rpc"], "ud-rpc"),
    ];
    for (chosen, offered, taken) in fallbacks {
        let server = server_of(offered);
        let options = ClientOptions::default().profile(Some(profile_for(chosen)));
        let mut client = connect(&server, options).unwrap();
        let decision = client.decision().unwrap();
        assert_eq!(decision.preset(), taken, "{decision}");
        assert!(decision.because.contains(&format!("{chosen} cannot be had")), "{decision}");
        echoes(&mut client);
    }
}

#[test]
fn refuses_clients_with_a_reason_if_no_preset_is_offered() {
    let refused = connect(&server_of(&[]), ClientOptions::default()).err().unwrap();
    assert!(refused.to_string().contains("is not offered here"), "{refused}");
}

#[test]
fn a_preset_that_was_named_is_taken_or_refused() {
    let server = server_of(&["server-reply"]);
    let mut client = connect(&server, ClientOptions::preset("server-reply").unwrap()).unwrap();
    assert_eq!(client.decision(), None);
    echoes(&mut client);
    let refused = connect(&server, ClientOptions::preset("fetch").unwrap()).err().unwrap().to_string();
    assert!(refused.contains("fetch is not offered here; there are: server-reply"), "{refused}");
    // Other failures do not cause an attempt with another preset.
    let nobody = ClientOptions::default().thread(9);
    assert!(connect(&server, nobody).err().unwrap().to_string().contains("thread 9"));
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_task_chooses_as_a_thread_does() {
    for (offered, taken) in [(&["rf-rpc", "server-reply"][..], "rf-rpc"), (&["send-write"], "send-write")] {
        let server = server_of(offered);
        let options = ClientOptions::default().profile(Some(profile_for("rf-rpc")));
        let client = AsyncClient::connect(&nic(), server.address().to_string(), options).await.unwrap();
        assert_eq!(client.decision().unwrap().preset(), taken);
        assert_eq!(client.call(1, b"x").await.unwrap(), b"x");
    }
}
