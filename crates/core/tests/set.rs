//! Sets of nodes: what errors say, and that clients with different lists exclude each other. The
//! vectors of the protocol say what `lock.set` accepts, and which nodes a client admits.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use quorlock_core::node_set::{
    Admission, AgreedSet, InvalidSet, NodeSet, NotAdmitted, SetReport, agree,
};

type Ids = BTreeSet<u16>;

/// The MEMBERS of each node, by its ID.
type Nodes = BTreeMap<u16, String>;

fn parse(text: &str) -> Result<NodeSet, InvalidSet> {
    text.parse()
}

fn set(text: &str) -> NodeSet {
    parse(text).unwrap()
}

fn list(ids: &Ids) -> String {
    ids.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
}

/// Reports of nodes: an empty text for a node without a set.
fn reports<'t>(texts: impl IntoIterator<Item = &'t str>) -> Vec<SetReport> {
    let report =
        |text: &str| if text.is_empty() { SetReport::Unset } else { SetReport::Set(set(text)) };
    texts.into_iter().map(report).collect()
}

mod text {
    use super::*;

    #[test]
    fn error_says_what_to_write_instead() {
        for (text, says) in [
            ("", "lock.set needs three words, NAME ID MEMBERS, but has 0; write"),
            ("eu-locks 2", "but has 2; write, for example, lock.set \"eu-locks 2 1,2,4,5,6\""),
            ("eu/locks 2 1,2", "NAME \"eu/locks\" in lock.set is not valid; write 1 to 64 letters"),
            ("eu\u{e9} 2 1,2", "NAME \"eu\\u{e9}\" in lock.set is not valid"),
            ("eu -1 1,2", "ID \"-1\" in lock.set is not valid; write this node's own ID"),
            ("eu 1 1-3", "member \"1-3\" in lock.set is not valid; write MEMBERS as whole numbers"),
            ("eu 1 1,2,1", "MEMBERS in lock.set has ID 1 more than once; write each ID once"),
            ("eu 3 1,2", "ID 3 in lock.set is not one of MEMBERS; write this node's own ID"),
            ("eu 1 1,2>1,2", "adds 0 and removes 0 members; write a change that adds one or"),
            ("eu 1 1,2,3>1,2,4", "adds 1 and removes 1 members"),
            ("eu 1 1>1,2>1,2,3", "MEMBERS in lock.set has more than one \">\"; write one change"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn error_repeats_only_a_short_printable_part() {
        let name = format!("\u{1b}[31m{}", "x".repeat(10_000));
        let error = parse(&format!("{name} 1 1")).unwrap_err().to_string();
        assert!(error.contains("NAME \"\\u{1b}[31mxxx") && error.contains("x...\""), "{error}");
        assert!(error.len() < 200, "{error}");
        assert!(!error.contains(char::is_control), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in ".{0,80}", words in "[a1,>+ ]{0,20}") {
            for text in [text, format!("eu 1 {words}")] {
                if let Ok(set) = parse(&text) {
                    prop_assert_eq!(parse(&set.to_string()).unwrap(), set);
                }
            }
        }
    }
}

#[test]
fn refusal_says_what_to_do() {
    let unset = "its lock.set is empty, but ";
    let of_one = "its lock.set is \"eu 1 1,2,3\"";
    for (expected, nodes, node, begins, says) in [
        (
            None,
            "eu 1 1,2,3;eu 2 1,2,3;us 3 1,2,3",
            2,
            "its lock.set is \"us 3 1,2,3\", but most of the client's nodes belong to eu with the ",
            "members 1,2,3; correct its lock.set and restart it, or take it off",
        ),
        (None, "eu 1 1,2,3;us 2 1,2,3;", 0, of_one, ", and no majority of the client's nodes"),
        (None, "eu 1 1,2,3;us 2 1,2,3;", 2, "its lock.set is empty", ", and no majority"),
        (None, "eu 1 1,2,3;eu 2 1,2,3", 0, of_one, ", but the client was given 2 nodes; give the"),
        (None, "eu 1 1,2,3", 0, of_one, ", but the client was given 1 node; give the client every"),
        (
            None,
            "eu 1 1,2,3;eu 1 1,2,3;",
            0,
            of_one,
            ", and node 2 of the client's list has the same",
        ),
        (
            None,
            "eu 1 1,2,3;;eu 3 1,2,3",
            1,
            unset,
            "most of the client's nodes belong to eu with the members 1,2,3; write lock.set \"eu ID \
             1,2,3\" into its redis.conf",
        ),
        (None, ";;eu 1 1,2,3", 2, of_one, ", but most of the client's nodes have none; write"),
        (Some("us"), "eu 1 1,2,3;;", 0, of_one, ", but the program expects the set us; give"),
        (
            Some("eu"),
            ";;",
            0,
            unset,
            "the program expects the set eu; write lock.set \"eu ID MEMBERS",
        ),
        (
            None,
            "eu 1 1,2,3>1,2,3,4;eu 2 1,2,3>1,2,3,4;eu 4 1,2,3>1,2,3,4",
            2,
            "its lock.set is \"eu 4 1,2,3>1,2,3,4\", and ID 4 is not one of the 3 members 1,2,3; ",
            "give the client exactly",
        ),
    ] {
        let agreement = agree(expected, &reports(nodes.split(';')));
        let Admission::Refused(reason) = &agreement.nodes[node] else { panic!("{nodes}: {node}") };
        assert!(reason.to_string().starts_with(&format!("{begins}{says}")), "{nodes}: {reason}");
    }
}

mod exclusion {
    use super::*;

    const HIGHEST_ID: u16 = 6;

    fn ids(ids: impl IntoIterator<Item = u16>) -> Ids {
        ids.into_iter().collect()
    }

    fn is_same_or_neighbour(a: &Ids, b: &Ids) -> bool {
        a.symmetric_difference(b).count() <= 1
    }

    /// A client, the list that a majority of its nodes agree on, and the nodes that it admits.
    struct Client {
        node_count: usize,
        agreed: Option<Ids>,
        admitted: Ids,
    }

    impl Client {
        fn new(nodes: &Nodes, given: &Ids, unheard: &Ids) -> Self {
            let report = |id: &u16| match nodes.get(id) {
                Some(members) if !unheard.contains(id) => {
                    SetReport::Set(set(&format!("eu {id} {members}")))
                }
                _ => SetReport::Unheard,
            };
            let agreement = agree(None, &given.iter().map(report).collect::<Vec<_>>());
            let admitted = given.iter().zip(&agreement.nodes);
            let admitted = admitted.filter(|(_, admission)| **admission == Admission::Admitted);
            let agreed = agreement.agreed.map(|agreed| match agreed {
                AgreedSet::Set { members, .. } => members.ids().iter().map(|id| id.get()).collect(),
                AgreedSet::Unset => panic!("every node has a set"),
            });
            let admitted = admitted.map(|(id, _)| *id).collect();
            Self { node_count: given.len(), agreed, admitted }
        }

        fn majority(&self) -> usize {
            self.node_count / 2 + 1
        }

        fn can_win(&self) -> bool {
            self.admitted.len() >= self.majority()
        }
    }

    /// Whether both clients can win at the same time, if each node grants to only one of them.
    fn can_both_win(a: &Client, b: &Client) -> bool {
        let shared = a.admitted.intersection(&b.admitted).count();
        let from_shared = |client: &Client| {
            let own = client.admitted.len() - shared;
            client.majority().saturating_sub(own)
        };
        a.can_win() && b.can_win() && from_shared(a) + from_shared(b) <= shared
    }

    fn one_or_more_ids() -> impl Strategy<Value = Ids> {
        subsequence((1..=HIGHEST_ID).collect::<Vec<_>>(), 1..=usize::from(HIGHEST_ID)).prop_map(ids)
    }

    fn up_to_two_ids() -> impl Strategy<Value = Ids> {
        subsequence((1..=HIGHEST_ID).collect::<Vec<_>>(), 0..=2).prop_map(ids)
    }

    /// A list, and the same list with one member more or one fewer.
    fn neighbours() -> impl Strategy<Value = (Ids, Ids)> {
        (one_or_more_ids(), 1..=HIGHEST_ID).prop_filter_map("a list has a member", |(list, id)| {
            let other: Ids = list.symmetric_difference(&ids([id])).copied().collect();
            (!other.is_empty()).then_some((list, other))
        })
    }

    /// The MEMBERS that nodes may have during a change between two lists: each of the two lists, or
    /// the change in either direction.
    fn forms((a, b): (&Ids, &Ids)) -> Vec<String> {
        let (a, b) = (list(a), list(b));
        vec![format!("{a}>{b}"), format!("{b}>{a}"), a, b]
    }

    /// Assigns each ID one of the MEMBERS in `forms` that contain it. Omits an ID that is in none.
    fn nodes(forms: &[Vec<String>], picks: &[Index]) -> Nodes {
        let ids = (1..=HIGHEST_ID).zip(picks);
        let node = |(id, pick): (u16, &Index)| {
            let is_own = |form: &&String| parse(&format!("eu {id} {form}")).is_ok();
            let own: Vec<_> = forms.iter().flatten().filter(is_own).collect();
            (!own.is_empty()).then(|| (id, (*pick.get(&own)).clone()))
        };
        ids.filter_map(node).collect()
    }

    fn picks() -> impl Strategy<Value = Vec<Index>> {
        proptest::collection::vec(any::<Index>(), usize::from(HIGHEST_ID))
    }

    /// A client's list: one of the given lists, perhaps with one ID too many or too few.
    fn client_list(lists: Vec<Ids>) -> impl Strategy<Value = Ids> {
        (select(lists), prop_oneof![4 => Just(0), 1 => 1..=HIGHEST_ID]).prop_map(
            |(mut list, id)| {
                if id != 0 && !list.remove(&id) {
                    list.insert(id);
                }
                list
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn clients_with_agreed_lists_that_differ_by_two_share_no_node(
            pairs in proptest::collection::vec(neighbours(), 1..4),
            picks in picks(),
            given in (one_or_more_ids(), one_or_more_ids()),
            unheard in (up_to_two_ids(), up_to_two_ids()),
        ) {
            let forms: Vec<_> = pairs.iter().map(|(a, b)| forms((a, b))).collect();
            let nodes = nodes(&forms, &picks);
            let lists: Vec<_> = pairs.into_iter().flat_map(|(a, b)| [a, b]).collect();
            for first in lists.iter().chain([&given.0]) {
                for second in lists.iter().chain([&given.1]) {
                    let a = Client::new(&nodes, first, &unheard.0);
                    let b = Client::new(&nodes, second, &unheard.1);
                    let (Some(of_a), Some(of_b)) = (&a.agreed, &b.agreed) else { continue };
                    prop_assert!(a.admitted.is_subset(of_a) && b.admitted.is_subset(of_b));
                    if is_same_or_neighbour(of_a, of_b) {
                        prop_assert!(!can_both_win(&a, &b), "{nodes:?} {first:?} {second:?}");
                    } else {
                        prop_assert!(a.admitted.is_disjoint(&b.admitted), "{nodes:?}");
                    }
                }
            }
        }

        #[test]
        fn two_clients_never_both_win_while_one_change_is_under_way(
            ((nodes, given), unheard) in (neighbours(), picks()).prop_flat_map(|((a, b), picks)| {
                let nodes = nodes(&[forms((&a, &b))], &picks);
                let list = client_list(vec![a, b]);
                let given = (list, one_or_more_ids(), one_or_more_ids()).prop_map(<[_; 3]>::from);
                (Just(nodes), given)
            }).prop_flat_map(|case| (Just(case), proptest::collection::vec(up_to_two_ids(), 3)))
        ) {
            let clients: Vec<_> = given
                .iter()
                .zip(&unheard)
                .map(|(given, unheard)| Client::new(&nodes, given, unheard))
                .collect();
            for a in &clients {
                for b in &clients {
                    prop_assert!(!can_both_win(a, b), "{nodes:?} {given:?}");
                    if let (true, true, Some(of_a), Some(of_b)) =
                        (a.can_win(), b.can_win(), &a.agreed, &b.agreed)
                    {
                        prop_assert!(is_same_or_neighbour(of_a, of_b), "{nodes:?} {given:?}");
                    }
                }
            }
        }

        #[test]
        fn one_more_report_never_admits_a_refused_node(
            words in proptest::collection::vec((0..5_usize, 1..4_u16), 1..6),
            at in any::<Index>(),
        ) {
            let word = |(form, id): &(usize, u16)| match form {
                0 => String::new(),
                1 => format!("us {id} 1,2,3"),
                2 => format!("eu {id} 1,2,3>1,2,3,4"),
                _ => format!("eu {id} 1,2,3"),
            };
            let texts: Vec<_> = words.iter().map(word).collect();
            let mut all = reports(texts.iter().map(String::as_str));
            let later = agree(None, &all);
            let newcomer = at.index(all.len());
            all[newcomer] = SetReport::Unheard;
            let earlier = agree(None, &all);
            let nodes = earlier.nodes.iter().zip(&later.nodes).enumerate();
            for (_, (earlier, later)) in nodes.filter(|(node, _)| *node != newcomer) {
                match (earlier, later) {
                    (Admission::Refused(_), Admission::Refused(_))
                    | (Admission::Unknown, _)
                    | (Admission::Admitted, Admission::Admitted) => {}
                    (Admission::Admitted, Admission::Refused(reason)) => {
                        let has_same_id = matches!(reason,
                            NotAdmitted::DuplicateId { other, .. } if *other == newcomer);
                        prop_assert!(has_same_id, "{texts:?}: {reason}");
                    }
                    other => prop_assert!(false, "{texts:?}: {other:?}"),
                }
            }
            prop_assert!(earlier.agreed.is_none() || earlier.agreed == later.agreed);
        }
    }

    /// Checks that each client can win while any one of the nodes restarts.
    fn assert_available(nodes: &Nodes, clients: &[Ids]) {
        for given in clients {
            for restarting in nodes.keys() {
                let client = Client::new(nodes, given, &ids([*restarting]));
                assert!(client.can_win(), "{nodes:?}: {given:?} without {restarting}");
            }
        }
    }

    fn step(nodes: &mut Nodes, id: u16, members: &str, client: &Ids) {
        nodes.insert(id, members.to_owned());
        assert_available(nodes, std::slice::from_ref(client));
    }

    #[test]
    fn every_step_of_replacing_a_node_leaves_a_majority() {
        let old = ids([1, 2, 3]);
        let all = ids([1, 2, 3, 4]);
        let new = ids([1, 2, 4]);
        let mut nodes: Nodes = old.iter().map(|id| (*id, list(&old))).collect();

        // Adds node 4: it starts with the new list, and the other nodes restart with both lists.
        step(&mut nodes, 4, "1,2,3,4", &old);
        for id in [1, 2, 3] {
            step(&mut nodes, id, "1,2,3>1,2,3,4", &old);
        }
        assert_available(&nodes, &[old, all.clone()]);
        for id in [1, 2, 3] {
            step(&mut nodes, id, "1,2,3,4", &all);
        }

        // Removes node 3: the other nodes restart with both lists, and later with the new list.
        for id in [1, 2, 4] {
            step(&mut nodes, id, "1,2,3,4>1,2,4", &all);
        }
        assert_available(&nodes, &[all, new.clone()]);
        for id in [1, 2, 4] {
            step(&mut nodes, id, "1,2,4", &new);
        }
        nodes.remove(&3);
        assert_available(&nodes, &[new]);
    }

    #[test]
    fn two_clients_both_win_unless_a_set_has_one_change_at_a_time_by_one_member() {
        let (three, five) = (ids(1..=3), ids(1..=5));
        let next = "1,2,3,4>1,2,3,4,5";
        let two_at_once = ["1,2,3", "1,2,3", "1,2,3,4,5", "1,2,3,4,5", "1,2,3,4,5"];
        let overlapping = ["1,2,3>1,2,3,4", "1,2,3>1,2,3,4", next, next, "1,2,3,4,5"];
        let one_after_the_other = ["1,2,3,4", "1,2,3,4", next, next, "1,2,3,4,5"];
        let begun_together = ["1,2>1,2,3", "1,2>1,2,4", "1,2,3", "1,2,4"];
        for (members, lists, both_win) in [
            (&two_at_once[..], [&three, &five], true),
            (&overlapping, [&three, &five], true),
            (&one_after_the_other, [&three, &five], false),
            (&begun_together, [&three, &ids([1, 2, 4])], true),
        ] {
            let nodes = (1..).zip(members.iter().map(ToString::to_string)).collect();
            let [a, b] = lists.map(|given| Client::new(&nodes, given, &Ids::new()));
            assert_eq!(can_both_win(&a, &b), both_win, "{members:?}");
        }
    }
}
