use super::*;
use crate::peer::tests::plan;
use farcall::select::Selection;
use record::Writes;

const MEDIA: [Medium; 3] = [Medium::Stream, Medium::Tcp, Medium::Unix];

fn chosen() -> SelectedNic {
    Selection::softnic().open().unwrap()
}

#[test]
fn round_trips_and_writes_are_measured_over_every_medium() {
    let (chosen, plan) = (chosen(), plan(10));
    for medium in MEDIA {
        let trips = round_trips(medium, &chosen, &plan).unwrap_or_else(|error| panic!("{medium}: {error}"));
        assert!(trips.count >= 1 && trips.per_second > 0.0, "{medium}");
        for len_bytes in [*WRITE_LENS_BYTES.start(), 4_099, 1 << 20] {
            let result = one_way(medium, len_bytes, &chosen, &plan);
            let result = result.unwrap_or_else(|error| panic!("{medium}, {len_bytes} B: {error}"));
            assert!(result.writes >= 1 && result.writes_per_second > 0.0, "{medium}, {len_bytes} B");
        }
    }
}

/// Requests at a server half may come from untrusted hosts.
#[test]
fn writes_of_no_length_that_is_measured_are_refused() {
    for len_bytes in [0, 15, 1 << 40] {
        let server = Server { end: ServingEnd::Inherit(Medium::Unix), job: Job::Take { len_bytes } };
        assert!(server.job.check().unwrap_err().to_string().contains("16..=67108864"), "{len_bytes}");
    }
}

#[test]
fn the_other_end_says_which_byte_it_found_wrong() {
    let (chosen, plan) = (chosen(), plan(10));
    for medium in MEDIA {
        let wrong = with_peer(medium, Job::Take { len_bytes: 100 }, &chosen, &plan, |opened| {
            let mut bytes = Writes::new(100).next_whole(true).to_vec();
            bytes[50] ^= 1;
            opened.stream.write_all(&bytes).map_err(PeerError::system("write"))?;
            opened.stream.read_exact(&mut [0; 8]).map_err(PeerError::system("read"))
        });
        let told = wrong.unwrap_err().to_string();
        assert_eq!(told, "wrong bytes arrived, in write 1 of 100 B", "{medium}");
        let wrong = with_peer(medium, Job::Answer, &chosen, &plan, |opened| {
            opened.stream.write_all(&[7; MESSAGE_LEN_BYTES]).map_err(PeerError::system("write"))?;
            opened.stream.read_exact(&mut [0; 8]).map_err(PeerError::system("read"))
        });
        assert_eq!(wrong.unwrap_err().to_string(), "wrong bytes arrived, in message 1", "{medium}");
    }
}

#[test]
fn a_server_of_several_clients_waits_in_every_way() {
    let (chosen, plan) = (chosen(), plan(10));
    for mode in [WaitMode::Tcp, WaitMode::Bp, WaitMode::Bpts, WaitMode::Event, WaitMode::Bpev] {
        for (interval_us, pollers) in [(0, 1), (500, 0)] {
            let interval = Duration::from_micros(interval_us);
            let load = Load { clients: 3, interval, pollers, bp_timeout_us: None };
            let served = serve(mode, load, &chosen, &plan).unwrap_or_else(|error| panic!("{mode}: {error}"));
            let count = served.latencies.count();
            assert!((count > 0) == (served.per_second > 0.0), "{mode}: {count}");
            assert!(
                served.idle_cores.is_finite() && served.cores.client >= 0.0 && served.cores.server >= 0.0,
                "{mode}"
            );
        }
    }
}
