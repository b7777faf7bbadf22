use super::*;
use crate::measure::Cores;
use crate::peer::tests::launcher;
use std::time::Duration;

#[test]
fn every_load_is_measured_over_every_preset() {
    let (server_core, client_core) = Cores::allowed().unwrap().server_and_client();
    let plan = PairPlan {
        launcher: launcher(),
        server_core,
        server_half: None,
        client_core,
        warm_up: Duration::from_millis(1),
        duration: Duration::from_millis(20),
    };
    let chosen = Selection::softnic().choose().unwrap();
    for preset in [Preset::Tcp, Preset::Http2, Preset::Native, Preset::Direct] {
        for load in [Load::Unary, Load::Converse, Load::Window, Load::Repeat] {
            let measured = measure(preset, load, &chosen, &plan);
            let measured = measured.unwrap_or_else(|error| panic!("{preset}, {load}: {error}"));
            assert!(measured.trips.count > 0, "{preset}, {load}");
        }
    }
}
