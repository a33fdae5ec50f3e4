//! Runs fleets: `quorlock-sim [--seeds N] [--from SEED] [--seed SEED [--trace]] [--no-faults]`.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use quorlock_sim::fleet::{Plan, run};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1)?.parse::<u64>().ok()
    };
    let has = |name: &str| args.iter().any(|arg| arg == name);
    let plan = |seed| {
        let plan = Plan::draw(seed);
        if has("--no-faults") { plan.without_faults() } else { plan }
    };
    if let Some(seed) = number("--seed") {
        let report = run(&plan(seed), has("--trace"));
        print!("{}", report.trace);
        println!("{:#?}", quorlock_sim::fleet::Report { trace: String::new(), ..report });
        return ExitCode::SUCCESS;
    }
    let (from, seeds) = (number("--from").unwrap_or(0), number("--seeds").unwrap_or(1000));
    let next = AtomicU64::new(from);
    let bad = Mutex::new(Vec::new());
    let (events, commands, locks) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let began = Instant::now();
    let stop = number("--stop").unwrap_or(20) as usize;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + seeds || bad.lock().unwrap().len() >= stop {
                        return;
                    }
                    let t = Instant::now();
                    let report = run(&plan(seed), false);
                    if has("--times") && t.elapsed().as_millis() > 200 {
                        println!(
                            "seed {seed}: {} ms, {} events, {} commands, {:?}",
                            t.elapsed().as_millis(),
                            report.events,
                            report.commands,
                            report.lasted
                        );
                    }
                    events.fetch_add(report.events, Ordering::Relaxed);
                    commands.fetch_add(report.commands, Ordering::Relaxed);
                    locks.fetch_add(report.locks(), Ordering::Relaxed);
                    if let Some(what) = report.violation {
                        let what: String = what.chars().take(230).collect();
                        println!("seed {seed}: {what}");
                        bad.lock().unwrap().push(seed);
                    }
                }
            });
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    let ran = next.load(Ordering::Relaxed).min(from + seeds) - from;
    println!(
        "{ran} seeds in {seconds:.1} s, {:.0} a minute, {} events, {} commands, {} locks, {} violations",
        ran as f64 / seconds * 60.0,
        events.into_inner(),
        commands.into_inner(),
        locks.into_inner(),
        bad.lock().unwrap().len()
    );
    ExitCode::SUCCESS
}
