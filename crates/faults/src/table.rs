use std::fmt;

use anyhow::Result;

use crate::{Protected, Scenario, Tally, Twin, scenarios};

/// What every accident has done, with the protection and without it. Displayed, it is a table in Markdown.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    fault: &'static str,
    twin: Twin,
    with: Tally,
    /// None where there is no twin.
    without: Option<Tally>,
}

/// Runs all scenarios, each so many times, and says which one it is at.
///
/// # Errors
/// When a fault could not be injected.
pub fn table(rounds: u32, mut progress: impl FnMut(&Scenario)) -> Result<Table> {
    let mut table = Table::default();
    for scenario in scenarios::ALL {
        progress(scenario);
        let with = scenario.run(Protected::Yes, rounds)?;
        let without = match scenario.twin {
            Twin::Harmed(_) | Twin::Unharmed(_) => Some(scenario.run(Protected::No, rounds)?),
            Twin::None(_) => None,
        };
        table.rows.push(Row { fault: scenario.fault, twin: scenario.twin, with, without });
    }
    Ok(table)
}

impl Table {
    /// What is not as it should be: harm in spite of the protection, and none where it should have been seen.
    pub fn complaints(&self) -> Vec<String> {
        self.rows.iter().flat_map(Row::complaints).collect()
    }
}

impl Row {
    fn complaints(&self) -> Vec<String> {
        let fault = self.fault;
        let mut complaints: Vec<_> = self.with.harms.iter().map(|harm| format!("{fault}: {harm}")).collect();
        if self.with.injected == 0 {
            complaints.push(format!("{fault}: was not injected"));
        }
        let harms = self.without.as_ref().map_or(0, |without| without.harms.len());
        match self.twin {
            Twin::Harmed(with) if harms == 0 => {
                complaints
                    .push(format!("{fault}: does no harm with {with} either, so that nothing is shown"));
            }
            Twin::Unharmed(why) if harms > 0 => complaints.push(format!("{fault}: did harm, but: {why}")),
            _ => {}
        }
        complaints
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| fault | times injected | harm without protection | harm with |")?;
        writeln!(f, "|---|---|---|---|")?;
        self.rows.iter().try_for_each(|row| {
            let Row { fault, with, without, .. } = row;
            let without = match (row.twin, without) {
                (Twin::Harmed(how) | Twin::Unharmed(how), Some(tally)) => {
                    format!("{} of {} ({how})", tally.harms.len(), tally.injected)
                }
                (Twin::None(why) | Twin::Harmed(why) | Twin::Unharmed(why), _) => format!("– ({why})"),
            };
            writeln!(f, "| {fault} | {} | {without} | {} |", with.injected, with.harms.len())
        })
    }
}
