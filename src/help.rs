//! The reply of `LOCK.HELP`: the syntax and the purpose of each command.

use std::ffi::CStr;

use crate::docs;
use crate::ffi::command::{ArgKind, ArgSpec, Spec};

/// Formats the lines like the HELP of the server's own commands: descriptions are indented.
pub(crate) fn lines() -> Vec<String> {
    let mut lines = vec!["LOCK.<command> [<arg> [value] [opt] ...]. Commands are:".to_owned()];
    for spec in docs::ALL {
        lines.push(syntax(spec));
        lines.push(format!("    {}.", text(spec.summary)));
    }
    lines
}

fn syntax(spec: &Spec) -> String {
    let args = spec.args.iter().map(|arg| format!(" {}", argument(arg)));
    text(spec.name).to_uppercase() + &args.collect::<String>()
}

fn argument(ArgSpec { name, kind, option, .. }: &ArgSpec) -> String {
    match (option, kind) {
        (Some(option), ArgKind::Flag) => format!("[{}]", text(option)),
        (Some(option), _) => format!("[{} <{}>]", text(option), text(name)),
        (None, ArgKind::Keys) => format!("<{0}> [<{0}> ...]", text(name)),
        (None, _) => format!("<{}>", text(name)),
    }
}

fn text(text: &CStr) -> &str {
    text.to_str().unwrap_or_default()
}
