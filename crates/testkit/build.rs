//! Compiles the objects that are preloaded into servers; see `src/injector`.

use std::env;
use std::path::PathBuf;

const OBJECTS: [&str; 2] = ["wall_clock", "synced_sizes"];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    for name in OBJECTS {
        let source = format!("preload/{name}.c");
        println!("cargo::rerun-if-changed={source}");
        let mut command = cc::Build::new()
            .opt_level(2)
            .warnings(true)
            .extra_warnings(true)
            .get_compiler()
            .to_command();
        command.args(["-shared", "-fPIC", &source, "-o"]).arg(out.join(format!("{name}.so")));
        let status = command.status();
        assert!(
            status.as_ref().is_ok_and(std::process::ExitStatus::success),
            "{command:?}: {status:?}"
        );
    }
}
