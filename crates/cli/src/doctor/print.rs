//! Prints the findings as text for people, or as JSON for programs.

use std::io::{Write as _, stdout};

use anyhow::Context as _;
use serde::Serialize;

use super::findings::{Finding, Severity};
use crate::fleet::Report;
use crate::fleet::text::wrap;
use crate::output::{escape, with_plural};

const COLUMNS: usize = 100;
/// The width of the labels, and the indentation of the other lines.
const INDENT: usize = 9;

#[derive(Serialize)]
struct Json<'a> {
    errors: u64,
    warnings: u64,
    voting: usize,
    nodes: usize,
    findings: &'a [Finding],
}

pub(super) fn print(findings: &[Finding], report: &Report, json: bool) -> anyhow::Result<()> {
    let text = if json { as_json(findings, report)? } else { as_text(findings, report) };
    stdout().write_all(text.as_bytes()).context("cannot print the findings")
}

fn as_json(findings: &[Finding], report: &Report) -> anyhow::Result<String> {
    let json = Json {
        errors: count(findings, Severity::Error),
        warnings: count(findings, Severity::Warning),
        voting: report.voting(),
        nodes: report.nodes.len(),
        findings,
    };
    Ok(serde_json::to_string(&json)? + "\n")
}

fn as_text(findings: &[Finding], report: &Report) -> String {
    let mut lines = Vec::new();
    for finding in findings {
        let label = match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let nodes = match &finding.nodes[..] {
            [] => String::new(),
            nodes => format!("{}: ", escape(&nodes.join(", "))),
        };
        let what = wrap(&format!("{nodes}{}", escape(&finding.what)), COLUMNS - INDENT);
        let todo = wrap(&format!("> {}", escape(&finding.todo)), COLUMNS - INDENT);
        for (index, line) in what.iter().chain(&todo).enumerate() {
            let label = if index == 0 { label } else { "" };
            lines.push(format!("{label:INDENT$}{line}\n"));
        }
        lines.push("\n".into());
    }
    let (errors, warnings) = (count(findings, Severity::Error), count(findings, Severity::Warning));
    let (voting, nodes) = (report.voting(), report.nodes.len());
    lines.push(match (errors, warnings) {
        (0, 0) => format!("Nothing was found. {voting} of {nodes} nodes vote.\n"),
        _ => format!(
            "{}, {}. {voting} of {nodes} nodes vote.\n",
            with_plural(errors, "error"),
            with_plural(warnings, "warning")
        ),
    });
    lines.concat()
}

fn count(findings: &[Finding], severity: Severity) -> u64 {
    findings.iter().filter(|finding| finding.severity == severity).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::report::tests::voting;
    use crate::fleet::text::width;

    #[test]
    fn findings_fit_100_columns_and_cannot_control_the_terminal() {
        let finding =
            Finding::error("x", "word ".repeat(50), "do \x1b[2J that").about(&"n".repeat(200));
        let text = as_text(&[finding], &Report::new(voting(3)));
        assert!(
            text.lines().all(|line| width(line) <= COLUMNS) && !text.contains('\x1b'),
            "{text}"
        );
        assert!(text.starts_with("error    nnn"), "{text}");
        assert!(text.ends_with("1 error, 0 warnings. 3 of 3 nodes vote.\n"), "{text}");
    }
}
