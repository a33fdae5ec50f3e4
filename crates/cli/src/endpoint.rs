//! One node as the user names it: a URL or its short form.

use quorlock_core::redact_url;
use url::Url;

/// The schemes that the client library connects to. [`Endpoint::parse`] also accepts schemes of
/// Sentinel and Cluster: the library says why they do not work.
const SCHEMES: [&str; 7] =
    ["redis", "rediss", "valkey", "valkeys", "redis+unix", "valkey+unix", "unix"];
const TLS_SCHEMES: [&str; 2] = ["rediss", "valkeys"];
const DEFAULT_PORT: u16 = 6379;
const EXPECTED: &str = "write redis://host:port, rediss://host:port for TLS, or redis+unix:///path";

/// One node. It has no `Debug`, since its URL may contain a password.
pub(crate) struct Endpoint {
    url: Url,
    /// Whether the user wrote the scheme.
    pub(crate) has_scheme: bool,
}

impl Endpoint {
    /// Reads a URL, or `host[:port]`, which is short for `redis://host[:port]`. The error shows no
    /// password.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.contains(char::is_whitespace) {
            return Err(
                "separate the nodes by commas, not by spaces, such as a:6379,b:6379,c:6379".into(),
            );
        }
        if text.starts_with('/') {
            let path = redact_url(text);
            return Err(format!("{path} has no scheme: write redis+unix://{path}"));
        }
        let has_scheme = text.contains("://");
        let url =
            if has_scheme { Url::parse(text) } else { Url::parse(&format!("redis://{text}")) };
        let url = url.map_err(|error| format!("{}: {error}: {EXPECTED}", redact_url(text)))?;
        let scheme = url.scheme();
        let is_known =
            SCHEMES.contains(&scheme) || scheme.contains("sentinel") || scheme.contains("cluster");
        if !is_known {
            return Err(format!("{scheme}:// is not the scheme of a node: {EXPECTED}"));
        }
        if !scheme.ends_with("unix") && url.host_str().is_none_or(str::is_empty) {
            return Err(format!("{} names no host: {EXPECTED}", redact_url(text)));
        }
        Ok(Self { url, has_scheme })
    }

    /// The URL may contain a password: never print it.
    pub(crate) fn secret_url(&self) -> &str {
        self.url.as_str()
    }

    /// The address, without user and password.
    pub(crate) fn name(&self) -> String {
        let port = self.url.port().map(|port| format!(":{port}")).unwrap_or_default();
        format!(
            "{}{port}{}",
            self.url.host_str().unwrap_or_default(),
            self.url.path().trim_end_matches('/')
        )
    }

    /// The name of the host, or its address without brackets; the path of a Unix socket.
    pub(crate) fn host(&self) -> String {
        match self.url.host_str() {
            Some(host) if !host.is_empty() => {
                let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
                address.unwrap_or(host).to_owned()
            }
            _ => self.url.path().to_owned(),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.url.port().unwrap_or(DEFAULT_PORT)
    }

    pub(crate) fn has_tls(&self) -> bool {
        TLS_SCHEMES.contains(&self.url.scheme())
    }

    pub(crate) fn has_password(&self) -> bool {
        self.url.password().is_some() || self.url.query_pairs().any(|(name, _)| name == "pass")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port_are_short_for_a_url() {
        for (text, url, host, port, name) in [
            ("a", "redis://a", "a", 6379, "a"),
            ("a:6380", "redis://a:6380", "a", 6380, "a:6380"),
            ("[::1]:6380", "redis://[::1]:6380", "::1", 6380, "[::1]:6380"),
            ("rediss://u:p@a.b:6381", "rediss://u:p@a.b:6381", "a.b", 6381, "a.b:6381"),
            ("redis+unix:///s?pass=p", "redis+unix:///s?pass=p", "/s", 6379, "/s"),
        ] {
            let Ok(endpoint) = Endpoint::parse(text) else { panic!("{text}") };
            assert_eq!(
                (endpoint.secret_url(), &*endpoint.host(), endpoint.port(), &*endpoint.name()),
                (url, host, port, name)
            );
        }
    }

    #[test]
    fn error_says_what_to_write_and_shows_no_password() {
        for (text, hint) in [
            ("a:1 b:2", "a:6379,b:6379"),
            ("/tmp/s", "write redis+unix:///tmp/s"),
            ("http://u:s3cret@a", "http:// is not the scheme"),
            ("u:s3cret@a:99999", "a:99999: invalid port"),
            ("redis://u:s3cret@:6379", "redis://host:port"),
            ("redis://u:s3cret?s3cret@a:99999", "redis://…: invalid port"),
            ("/tmp/s?pass=s3cret", "write redis+unix:///tmp/s?…"),
            ("/tmp/s?pass=@s3cret", "redis+unix://…"),
            ("redis:///0", "names no host"),
            (":6379", "redis://host:port"),
            ("", "redis://host:port"),
        ] {
            let Err(error) = Endpoint::parse(text) else { panic!("{text} is a node") };
            assert!(error.contains(hint) && !error.contains("s3cret"), "{text}: {error}");
        }
    }
}
