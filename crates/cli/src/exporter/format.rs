//! The two formats of Prometheus, and which of them a client accepts.

use std::collections::HashSet;

/// How the metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// The older format, which every tool for Prometheus reads.
    Text,
    OpenMetrics,
}

impl Format {
    /// Chooses the format that the header Accept prefers. Without a preference, it is the older
    /// one, as in the libraries of Prometheus.
    pub(super) fn accepted(header: &str) -> Self {
        let quality = |types: &[&str], version: &str| {
            let qualities = header.split(',').filter_map(|entry| {
                let mut parts = entry.split(';').map(str::trim);
                let media_type = parts.next()?.to_ascii_lowercase();
                let mut quality = 1.0;
                for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                    match name.trim().to_ascii_lowercase().as_str() {
                        "q" => quality = value.trim().parse().unwrap_or(0.0),
                        "version" if value.trim().trim_matches('"') != version => return None,
                        _ => {}
                    }
                }
                types.contains(&&*media_type).then_some(quality)
            });
            qualities.fold(0.0_f64, f64::max)
        };
        let open_metrics = quality(&["application/openmetrics-text"], "1.0.0");
        let text = quality(&["text/plain", "text/*", "*/*"], "0.0.4");
        if open_metrics > 0.0 && open_metrics >= text { Self::OpenMetrics } else { Self::Text }
    }

    /// The HTTP content type.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Converts metrics in the format `OpenMetrics` to this one.
    pub(super) fn convert(self, open_metrics: &str) -> String {
        match self {
            Self::OpenMetrics => open_metrics.to_owned(),
            Self::Text => text(open_metrics),
        }
    }
}

/// The older format has no end mark and no units, and names a counter as its samples do.
fn text(open_metrics: &str) -> String {
    let types = open_metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let counters: HashSet<_> = types.filter_map(|line| line.strip_suffix(" counter")).collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), ..) => continue,
            (Some("#"), Some(kind), Some(name), Some(rest)) if counters.contains(name) => {
                text.extend(["# ", kind, " ", name, "_total ", rest]);
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_is_the_one_that_the_client_prefers() {
        // Prometheus 2.42, 3.0 and with a protocol of its own choice.
        let prometheus_2 = "application/openmetrics-text;version=1.0.0,\
             application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
             application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let text_first =
            "text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5";
        for (accept, format) in [
            (prometheus_2, Format::OpenMetrics),
            (prometheus_3, Format::OpenMetrics),
            (text_first, Format::Text),
            ("text/plain; version=0.0.4", Format::Text),
            ("application/openmetrics-text; version=1.0.0; charset=utf-8", Format::OpenMetrics),
            ("Application/OpenMetrics-Text", Format::OpenMetrics),
            ("application/openmetrics-text;version=2.0.0", Format::Text),
            ("application/openmetrics-text;q=0, text/plain;q=0", Format::Text),
            ("*/*", Format::Text),
            ("", Format::Text),
        ] {
            assert_eq!(Format::accepted(accept), format, "{accept}");
        }
    }

    #[test]
    fn older_format_names_counters_as_their_samples() {
        let open_metrics = "# HELP a_b Locks granted.\n# TYPE a_b counter\na_b_total{node=\"x y\"} 7\n\
            # HELP a_c Nodes.\n# TYPE a_c gauge\na_c{} 3.0\n# EOF\n";
        let text = "# HELP a_b_total Locks granted.\n# TYPE a_b_total counter\na_b_total{node=\"x y\"} 7\n\
            # HELP a_c Nodes.\n# TYPE a_c gauge\na_c{} 3.0\n";
        assert_eq!(Format::Text.convert(open_metrics), text);
        assert_eq!(Format::OpenMetrics.convert(open_metrics), open_metrics);
    }
}
