//! Glob-style patterns as `SCAN … MATCH` understands them.

/// A compiled pattern, which matches in time linear in the length of the key.
///
/// `*` matches any bytes, `?` one byte, `[a-c]` and `[^a-c]` one byte of a class, and `\` escapes
/// the next byte. No library offers this dialect over bytes: existing ones give `/` or braces a
/// meaning, or need text.
///
/// The matcher tracks all positions of the pattern at once, as bits, so that no pattern makes it
/// backtrack.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// For each byte, the positions that it matches.
    matches: Box<[Bits; 256]>,
    /// The positions with a `*` before them.
    stars: Bits,
    /// The last position: the whole pattern has matched.
    end: usize,
}

/// The longest pattern, in bytes.
pub const PATTERN_BYTES_MAX: usize = WORDS * 64 - 1;

const WORDS: usize = 4;

/// A set of positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bits([u64; WORDS]);

impl Bits {
    fn set(&mut self, bit: usize) {
        self.0[bit / 64] |= 1 << (bit % 64);
    }

    fn has(self, bit: usize) -> bool {
        self.0[bit / 64] & 1 << (bit % 64) != 0
    }

    fn and(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// Moves each position to the next one.
    fn next(self) -> Self {
        let carried = |word: usize| if word == 0 { 0 } else { self.0[word - 1] >> 63 };
        Self(std::array::from_fn(|word| self.0[word] << 1 | carried(word)))
    }
}

impl Pattern {
    /// Returns `None` if the pattern is longer than [`PATTERN_BYTES_MAX`].
    pub fn new(pattern: &[u8]) -> Option<Self> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return None;
        }
        let (matches, stars) = (Box::new([Bits::default(); 256]), Bits::default());
        let mut parsed = Self { matches, stars, end: 0 };
        let mut rest = pattern;
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            match byte {
                b'*' => parsed.stars.set(parsed.end),
                b'?' => parsed.push(|_| true),
                b'[' => rest = parsed.push_class(after),
                b'\\' if !after.is_empty() => {
                    parsed.push(|other| other == after[0]);
                    rest = &after[1..];
                }
                _ => parsed.push(|other| other == byte),
            }
        }
        Some(parsed)
    }

    fn push(&mut self, matches: impl Fn(u8) -> bool) {
        for byte in (0..=u8::MAX).filter(|byte| matches(*byte)) {
            self.matches[usize::from(byte)].set(self.end);
        }
        self.end += 1;
    }

    /// Parses a class after its `[`, and returns the rest after its `]`.
    /// An unclosed class ends with the pattern.
    fn push_class<'a>(&mut self, class: &'a [u8]) -> &'a [u8] {
        let (negated, mut rest) = match class {
            [b'^', rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let mut listed = [false; 256];
        loop {
            rest = match *rest {
                [b'\\', byte, ref after @ ..] => {
                    listed[usize::from(byte)] = true;
                    after
                }
                [b']', ref after @ ..] => {
                    rest = after;
                    break;
                }
                [first, b'-', last, ref after @ ..] => {
                    listed[usize::from(first.min(last))..=usize::from(first.max(last))].fill(true);
                    after
                }
                [byte, ref after @ ..] => {
                    listed[usize::from(byte)] = true;
                    after
                }
                [] => break,
            };
        }
        self.push(|byte| listed[usize::from(byte)] != negated);
        rest
    }

    /// Whether the pattern matches the whole key.
    pub fn matches(&self, key: &[u8]) -> bool {
        let mut positions = Bits::default();
        positions.set(0);
        for &byte in key {
            let stay = positions.and(self.stars);
            positions = positions.and(self.matches[usize::from(byte)]).next().or(stay);
            if positions == Bits::default() {
                return false;
            }
        }
        positions.has(self.end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, key: &str) -> bool {
        Pattern::new(pattern.as_bytes()).is_some_and(|pattern| pattern.matches(key.as_bytes()))
    }

    #[test]
    fn classes_and_escapes_follow_the_rules_of_scan() {
        for (pattern, key) in [
            ("order[a-z]/4[0-9]", "orders/42"),
            ("order[z-a]/*", "orders/42"),
            ("[^x]rders*", "orders/42"),
            ("[^]*", "orders"),
            ("\\*[\\]]", "*]"),
            ("[-a]", "-"),
            ("[a-]", "^"),
            ("a[b", "ab"),
            ("a\\", "a\\"),
        ] {
            assert!(matches(pattern, key), "{pattern} {key}");
        }
        for (pattern, key) in
            [("[^o]*", "orders"), ("[]o]", "o"), ("\\*", "a"), ("ORDERS", "orders")]
        {
            assert!(!matches(pattern, key), "{pattern} {key}");
        }
    }

    #[test]
    fn longest_pattern_is_matched_and_a_longer_one_refused() {
        let longest = "?".repeat(PATTERN_BYTES_MAX);
        assert!(matches(&longest, &"x".repeat(PATTERN_BYTES_MAX)));
        assert!(!matches(&longest, &"x".repeat(PATTERN_BYTES_MAX - 1)));
        assert!(!matches(&longest, &"x".repeat(PATTERN_BYTES_MAX + 1)));
        assert!(Pattern::new("?".repeat(PATTERN_BYTES_MAX + 1).as_bytes()).is_none());
    }

    #[test]
    fn pattern_of_many_stars_is_matched_at_once() {
        // A matcher that tries every split would never end.
        assert!(!matches(&("*a".repeat(127) + "b"), &"a".repeat(5000)));
    }

    /// Matches a pattern without classes and escapes by trying every split.
    fn matches_slowly(pattern: &[u8], key: &[u8]) -> bool {
        match (pattern, key) {
            ([], _) => key.is_empty(),
            ([b'*', rest @ ..], _) => {
                (0..=key.len()).any(|from| matches_slowly(rest, &key[from..]))
            }
            ([b'?', pattern @ ..], [_, key @ ..]) => matches_slowly(pattern, key),
            ([first, pattern @ ..], [byte, key @ ..]) => {
                first == byte && matches_slowly(pattern, key)
            }
            (_, []) => false,
        }
    }

    proptest! {
        #[test]
        fn fast_and_slow_matchers_agree(pattern in "[ab?*]{0,9}", key in "[ab]{0,9}") {
            let expected = matches_slowly(pattern.as_bytes(), key.as_bytes());
            prop_assert_eq!(matches(&pattern, &key), expected);
        }
    }
}
