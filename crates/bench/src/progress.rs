use indicatif::{ProgressBar, ProgressStyle};

/// How far the run has come: a bar on stderr, and nothing where that is not a terminal but for a line for each part.
#[derive(Clone)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Begins a run of so many steps.
    pub(crate) fn new(steps: u64) -> Self {
        let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {elapsed:>4}  {msg}")
            .expect("the template is right");
        Self { bar: ProgressBar::new(steps).with_style(style) }
    }

    /// Says what is measured from now on.
    pub(crate) fn begin(&self, what: &'static str) {
        if self.bar.is_hidden() {
            eprintln!("{what} …");
        }
        self.bar.set_message(what);
    }

    /// One more step is done.
    pub(crate) fn step(&self) {
        self.bar.inc(1);
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
