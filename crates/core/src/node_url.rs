//! What both the client and the program decide about the URL of a node.

/// Returns the URL without the parts that may contain a password: what is before an `@`, and what
/// is after a `?`.
///
/// If a `?` comes before an `@`, either may be a part of the password, so only the scheme remains.
/// The URL need not be valid.
pub fn redact_url(url: &str) -> String {
    let scheme = url.find("://").map_or("", |end| &url[..end + 3]);
    let rest = &url[scheme.len()..];
    let (address, query) =
        rest.split_once('?').map_or((rest, None), |(address, query)| (address, Some(query)));
    let shown = match (address.rfind('@'), query) {
        (_, Some(query)) if query.contains('@') => return format!("{scheme}…"),
        (Some(at), _) => format!("…{}", &address[at..]),
        (None, _) => address.to_owned(),
    };
    format!("{scheme}{shown}{}", if query.is_some() { "?…" } else { "" })
}

/// Returns why a URL with this scheme cannot be a node, for the schemes of Sentinel and Cluster;
/// `None` for all others.
pub fn unsupported_scheme(scheme: &str) -> Option<&'static str> {
    if scheme.contains("sentinel") {
        return Some(
            "Sentinel is not supported, since it may fail over to a replica that lacks locks: give \
             the address of each master, and switch automatic failover off",
        );
    }
    scheme.contains("cluster").then_some(
        "a Redis Cluster is not supported, since its slots move: give the addresses of independent \
         masters",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redacted_url_has_no_password() {
        for (url, redacted) in [
            ("redis://host:1/2", "redis://host:1/2"),
            ("redis://user:secret@host", "redis://…@host"),
            ("redis://:secret@host?protocol=resp3", "redis://…@host?…"),
            ("redis+unix:///tmp/x?db=x&pass=secret", "redis+unix:///tmp/x?…"),
            (":secret@host:7001", "…@host:7001"),
            ("secret@", "…@"),
            ("redis://:se?cret@host", "redis://…"),
            ("redis+unix:///tmp/x?pass=se@cret", "redis+unix://…"),
            ("redis://:se@cr?et@host", "redis://…"),
        ] {
            assert_eq!(redact_url(url), redacted);
        }
    }
}
