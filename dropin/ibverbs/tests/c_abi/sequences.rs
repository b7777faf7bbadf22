//! A thousand random sequences of calls, each compared with the reference model. A sequence runs in a process of its
//! own, so that a crash or a hang is reported like any other failure, with its seed and a minimal sequence of calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::world::{Rng, World, state};

const SEED: &str = "FARCALL_ABI_SEED";
const COUNT: &str = "FARCALL_ABI_SEQUENCES";
/// For the process that runs sequences: the first one, their number, and which calls of a single one to keep.
const CHILD: &str = "FARCALL_ABI_CHILD";

type Call = fn(&mut World, &mut Rng);

/// Every call with its weight.
const CALLS: [(Call, usize); 32] = [
    (|world, _| world.open(), 2),
    (World::close, 1),
    (World::alloc_pd, 3),
    (World::dealloc_pd, 2),
    (World::reg_mr, 8),
    (World::rereg_mr, 2),
    (World::dereg_mr, 2),
    (World::create_channel, 3),
    (World::destroy_channel, 2),
    (World::create_cq, 6),
    (World::resize_cq, 2),
    (World::destroy_cq, 2),
    (World::create_srq, 3),
    (World::modify_srq, 3),
    (World::query_srq, 2),
    (World::destroy_srq, 2),
    (World::create_ah, 3),
    (World::destroy_ah, 1),
    (World::queries, 2),
    (World::create_qp, 12),
    (World::connect, 14),
    (World::modify_qp, 14),
    (World::shut, 3),
    (World::query_qp, 3),
    (World::destroy_qp, 3),
    (World::post_recv, 18),
    (World::post_srq_recv, 8),
    (World::post_send, 40),
    (World::poll, 16),
    (World::req_notify, 8),
    (World::take_events, 6),
    (|world, _| world.settle_events(), 4),
];

/// Returns the calls of a sequence: each by its index in the table and with a seed of its own, so that any of them may
/// be left out.
fn sequence(seed: u64) -> Vec<(usize, u64)> {
    let mut rng = Rng(seed);
    let total: usize = CALLS.iter().map(|(_, weight)| weight).sum();
    let length = 60 + rng.below(140);
    // Begin with the objects that nearly everything needs.
    let mut calls: Vec<(usize, u64)> =
        [0, 2, 4, 4, 7, 9, 9, 16, 19, 19, 19, 19, 20].iter().map(|at| (*at, rng.next())).collect();
    for _ in 0..length {
        let mut at = rng.below(total);
        let call = CALLS.iter().position(|(_, weight)| {
            let is_it = at < *weight;
            at = at.wrapping_sub(*weight);
            is_it
        });
        calls.push((call.expect("within the weights"), rng.next()));
    }
    calls
}

/// Number of last calls that are printed for a failure.
const TOLD: usize = 60;

fn run(calls: &[(usize, u64)], aloud: bool) -> Result<(), String> {
    let mut world = World::new(aloud);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        for (call, seed) in calls {
            CALLS[*call].0(&mut world, &mut Rng(*seed));
            if std::mem::take(&mut world.has_failed) {
                world.settle();
            }
        }
        world.settle_events();
        tear_down(&mut world);
    }));
    outcome.map_err(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let last = &world.log[world.log.len().saturating_sub(TOLD)..];
        let before = if aloud { String::new() } else { format!("\n  {}", last.join("\n  ")) };
        said.unwrap_or_default() + &before
    })
}

/// Destroys all objects in a random order, which first tries objects that are still in use.
fn tear_down(world: &mut World) {
    let mut rng = Rng(world.next_wr);
    let steps: [Call; 8] = [
        World::dealloc_pd,
        World::destroy_channel,
        World::destroy_cq,
        World::destroy_srq,
        World::dereg_mr,
        World::destroy_ah,
        World::destroy_qp,
        World::close,
    ];
    for _ in 0..20 {
        rng.of(&steps)(world, &mut rng);
    }
    while !world.live_qps().is_empty() {
        world.destroy_qp(&mut rng);
    }
    while !world.live_srqs().is_empty() {
        world.destroy_srq(&mut rng);
    }
    while !world.live_mrs().is_empty() {
        world.dereg_mr(&mut rng);
    }
    while !world.live_ahs().is_empty() {
        world.destroy_ah(&mut rng);
    }
    while !world.live_cqs().is_empty() {
        world.destroy_cq(&mut rng);
    }
    while !world.live_channels().is_empty() {
        world.destroy_channel(&mut rng);
    }
    while !world.live_pds().is_empty() {
        world.dealloc_pd(&mut rng);
    }
    while !world.open_ctxs().is_empty() {
        world.close(&mut rng);
    }
    assert!(world.qps.iter().all(|qp| !qp.live || qp.state != state::RESET));
}

/// Runs in the process that the test starts for it.
#[test]
fn child() {
    let Ok(work) = std::env::var(CHILD) else { return };
    let mut words = work.split(' ');
    let (Some(first), Some(count)) = (words.next(), words.next()) else { panic!("{CHILD}={work}") };
    let (first, count): (u64, u64) = (first.parse().unwrap(), count.parse().unwrap());
    let kept =
        words.next().map(|list| list.split(',').filter_map(|at| at.parse().ok()).collect::<Vec<usize>>());
    let aloud = words.next() == Some("aloud");
    std::panic::set_hook(Box::new(|_| {}));
    for seed in first..first + count {
        let mut calls = sequence(seed);
        if let Some(kept) = &kept {
            calls = kept.iter().filter_map(|at| calls.get(*at).copied()).collect();
        }
        if let Err(why) = run(&calls, aloud) {
            eprintln!("sequence {seed}: {why}");
            std::process::exit(1);
        }
    }
}

/// How long a sequence may take before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(90);

/// Runs sequences in a process of their own. Returns its output if it failed.
fn in_child(first: u64, count: u64, kept: Option<&[usize]>, aloud: bool) -> Option<String> {
    let mut work = format!("{first} {count}");
    if let Some(kept) = kept {
        let list: Vec<String> = kept.iter().map(usize::to_string).collect();
        work.push_str(&format!(" {}{}", list.join(","), if aloud { " aloud" } else { "" }));
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    if kept.is_some() {
        command.env("FARCALL_ABI_PATIENCE_MS", "1000");
    }
    let mut child = command
        .args(["sequences::child", "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, work)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stderr = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || std::io::read_to_string(stderr).unwrap_or_default());
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        let patience =
            if kept.is_some() { Duration::from_secs(5) } else { PATIENCE + Duration::from_secs(count) };
        if began.elapsed() > patience {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let said = reader.join().unwrap();
    match status {
        Some(status) if status.success() => None,
        Some(status) => Some(format!("{status}\n{said}")),
        None => Some(format!("it hangs\n{said}")),
    }
}

/// Leaves out calls while the sequence still fails, and returns the remaining ones.
fn shrink(seed: u64, why: String) -> String {
    let mut kept: Vec<usize> = (0..sequence(seed).len()).collect();
    let mut piece = kept.len() / 2;
    let began = Instant::now();
    while piece > 0 && began.elapsed() < PATIENCE {
        let mut at = 0;
        while at < kept.len() && began.elapsed() < PATIENCE {
            let mut fewer = kept.clone();
            fewer.drain(at..(at + piece).min(kept.len()));
            if in_child(seed, 1, Some(&fewer), false).is_some() {
                kept = fewer;
            } else {
                at += piece;
            }
        }
        piece /= 2;
    }
    let last = in_child(seed, 1, Some(&kept), true).unwrap_or(why);
    format!(
        "sequence {seed}, of which {} calls are left (run it again with {SEED}={seed}):\n{last}",
        kept.len()
    )
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Checks errno and state after each call against the specification and the man pages, and the bytes of each transfer.
#[test]
fn random_sequences_of_calls_do_what_the_specification_says() {
    let (first, count) = match number(SEED) {
        Some(seed) => (seed, number(COUNT).unwrap_or(1)),
        None => (1, number(COUNT).unwrap_or(1000)),
    };
    const BATCH: u64 = 50;
    let mut at = first;
    while at < first + count {
        let batch = BATCH.min(first + count - at);
        if let Some(together) = in_child(at, batch, None, false) {
            let all: Vec<usize> = (0..sequence(at).len().max(400)).collect();
            let failing =
                (at..at + batch).find_map(|seed| Some((seed, in_child(seed, 1, Some(&all), false)?)));
            match failing {
                Some((seed, why)) => panic!("{}", shrink(seed, why)),
                None => panic!("sequences {at} to {} fail, but none alone: {together}", at + batch - 1),
            }
        }
        at += batch;
    }
}
