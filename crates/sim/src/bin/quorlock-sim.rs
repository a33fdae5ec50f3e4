//! Runs fleets: [`HELP`] has the options.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quorlock_sim::fleet::{Comparison, Kind, Mixed, Mutant, Plan, Report, comparisons, mixed, run};

const HELP: &str = "\
Runs whole fleets of clients and nodes under a virtual clock, with faults that a seed draws.

quorlock-sim [--seeds N] [--from SEED] [--kind KIND]   runs N seeds (1000) of each kind of lock
quorlock-sim --seed SEED [--kind KIND] [--trace]       runs one seed, of exclusive locks by default
quorlock-sim --mutants [--seeds N] [--kind KIND]       finds the first seed that catches each mutant
quorlock-sim --compare                                 compares runs with and without each rule of
                                                       waiting

--kind KIND     exclusive: locks of one key, and of several at once
                shared: readers and writers of the same keys, and writers that become readers
                permits: semaphores and locks of one of several keys, beside locks of these keys
--no-faults     removes all faults from the plans
--mutant NAME   breaks a rule, which the checkers must notice";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| ["--help", "-h"].contains(&arg.as_str())) {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let has = |name: &str| args.iter().any(|arg| arg == name);
    let number = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1)?.parse::<u64>().ok()
    };
    let text = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1)
    };
    let kind = text("--kind").map(|name| {
        let is_named = |kind: &Kind| kind.name() == name;
        Kind::ALL.into_iter().find(is_named).unwrap_or_else(|| panic!("there is no kind {name}"))
    });
    let mutant = text("--mutant").map(|name| {
        let is_named = |mutant: &Mutant| mutant.name() == *name;
        Mutant::all().find(is_named).unwrap_or_else(|| panic!("there is no mutant {name}"))
    });
    if has("--mutants") {
        let is_wanted = |m: &Mutant| {
            mutant.is_none_or(|only| only == *m) && kind.is_none_or(|kind| m.kind() == kind)
        };
        return first_seeds(
            number("--from").unwrap_or(0),
            number("--seeds").unwrap_or(1000),
            is_wanted,
        );
    }
    if has("--compare") {
        compare();
        return ExitCode::SUCCESS;
    }
    let plan = |kind, seed| {
        let plan = Plan::draw_of(kind, seed);
        let plan = if has("--no-faults") { plan.without_faults() } else { plan };
        match mutant {
            Some(mutant) => plan.with_mutant(mutant),
            None => plan,
        }
    };
    if let Some(seed) = number("--seed") {
        let report = run(&plan(kind.unwrap_or(Kind::Exclusive), seed), has("--trace"));
        print!("{}", report.trace);
        let is_bad = report.violation.is_some();
        println!("{:#?}", Report { trace: String::new(), ..report });
        return if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let (from, seeds) = (number("--from").unwrap_or(0), number("--seeds").unwrap_or(1000));
    let kinds = kind.map_or(Kind::ALL.to_vec(), |kind| vec![kind]);
    let bad = kinds.into_iter().filter(|&kind| !all_pass(kind, from, seeds, &plan)).count();
    if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints what each rule about waiting achieves, and what locks of several keys cost locks of one
/// key.
fn compare() {
    println!("| rule | case | with it | without it |\n|---|---|---|---|");
    for Comparison { rule, case, with, without } in comparisons() {
        println!("| {rule} | {case} | {with} | {without} |");
    }
    println!(
        "\n| clients rest for | locks of single keys alone | beside locks of two keys | locks of two keys | waits for one key | waits for two keys |"
    );
    println!("|---|---:|---:|---:|---|---|");
    for rest_ms in [0, 20, 100] {
        let Mixed { alone, beside, several, single_waits, several_waits } = mixed(rest_ms, 120);
        let waits = |(mean, longest): (Duration, Duration)| {
            let (mean, longest) = (mean.as_secs_f64() * 1000.0, longest.as_secs_f64() * 1000.0);
            format!("mean {mean:.0} ms, longest {longest:.0} ms, {:.1} ×", longest / mean)
        };
        println!(
            "| 0 to {rest_ms} ms | {alone} | {beside}, {}.{:02} × | {several} | {} | {} |",
            beside / alone,
            beside * 100 / alone % 100,
            waits(single_waits),
            waits(several_waits)
        );
    }
}

/// Prints the first seed that catches each mutant.
fn first_seeds(from: u64, seeds: u64, is_wanted: impl Fn(&Mutant) -> bool) -> ExitCode {
    println!("| rule that is broken | kind | first seed | what the checkers say |");
    println!("|---|---|---:|---|");
    let mut all_caught = true;
    for mutant in Mutant::all().filter(is_wanted) {
        let caught = |seed| Some((seed, run(&Plan::of_mutant(mutant, seed), false).violation?));
        let (name, kind) = (mutant.name(), mutant.kind().name());
        if let Some((seed, what)) = (from..from + seeds).find_map(caught) {
            println!(
                "| {name} | {kind} | {seed} | {} |",
                what.chars().take(100).collect::<String>()
            );
        } else {
            all_caught = false;
            println!("| {name} | {kind} | **none** | |");
        }
    }
    if all_caught { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs these seeds of a kind on all processors. Returns whether all pass without a violation.
fn all_pass(kind: Kind, from: u64, seeds: u64, plan: &(impl Fn(Kind, u64) -> Plan + Sync)) -> bool {
    let next = AtomicU64::new(from);
    let [bad, commands, locks] = [const { AtomicU64::new(0) }; 3];
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + seeds {
                        return;
                    }
                    let report = run(&plan(kind, seed), false);
                    commands.fetch_add(report.commands, Ordering::Relaxed);
                    locks.fetch_add(report.locks(), Ordering::Relaxed);
                    if let Some(what) = report.violation {
                        bad.fetch_add(1, Ordering::Relaxed);
                        println!(
                            "{} {seed}: {}",
                            kind.name(),
                            what.chars().take(200).collect::<String>()
                        );
                    }
                }
            });
        }
    });
    let seconds = began.elapsed().as_secs().max(1);
    let (bad, commands, locks) = (bad.into_inner(), commands.into_inner(), locks.into_inner());
    println!(
        "{}: {seeds} seeds, {} a minute: {locks} locks, {commands} commands, {bad} violations",
        kind.name(),
        seeds * 60 / seconds
    );
    bad == 0
}
