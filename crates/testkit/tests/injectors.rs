//! A fault that cannot be injected fails the test.

use quorlock_testkit::{Inject as _, PowerCut, Server, WallClock};

#[test]
#[should_panic(expected = "was started without this PowerCut")]
fn power_cut_of_another_server_panics() {
    let mut server = Server::builder().power_cut(&PowerCut::new()).start().unwrap();
    PowerCut::new().cut(&mut server);
}

#[test]
fn step_survives_a_restart_of_its_server_and_affects_no_other_server() {
    let (clock, other_clock) = (WallClock::new(), WallClock::new());
    let mut stepped = Server::builder().wall_clock(&clock).start().unwrap();
    let other = Server::builder().wall_clock(&other_clock).start().unwrap();
    clock.step_ms(3_600_000);
    stepped.restart().unwrap();
    let time_s = |server: &Server| {
        redis::cmd("TIME").query::<[i64; 2]>(&mut server.connection()).unwrap()[0]
    };
    let ahead_s = time_s(&stepped) - time_s(&other);
    assert!((3590..=3610).contains(&ahead_s), "{ahead_s} s");
}
