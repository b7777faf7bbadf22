//! Compares the transition table with a second copy of the InfiniBand specification's (volume 1, 10.3.1 and table 91,
//! with Linux' optional attributes), for all states, transports and attributes.

use farcall_verbs::{QpAttrMask, QpState, QpType, Transition};

/// Transports, from, to; `+` required, `-` optional.
const TABLE: &str = "
RC|UC  RESET INIT +PKEY_INDEX +PORT +ACCESS_FLAGS
UD     RESET INIT +PKEY_INDEX +PORT +QKEY
RC|UC  INIT INIT -PKEY_INDEX -PORT -ACCESS_FLAGS
UD     INIT INIT -PKEY_INDEX -PORT -QKEY
RC     INIT RTR +AV +PATH_MTU +DEST_QPN +RQ_PSN +MAX_DEST_RD_ATOMIC +MIN_RNR_TIMER -ALT_PATH -ACCESS_FLAGS -PKEY_INDEX
UC     INIT RTR +AV +PATH_MTU +DEST_QPN +RQ_PSN -ALT_PATH -ACCESS_FLAGS -PKEY_INDEX
UD     INIT RTR -PKEY_INDEX -QKEY
RC     RTR RTS +SQ_PSN +TIMEOUT +RETRY_CNT +RNR_RETRY +MAX_QP_RD_ATOMIC \
       -CUR_STATE -ACCESS_FLAGS -MIN_RNR_TIMER -ALT_PATH -PATH_MIG_STATE
UC     RTR RTS +SQ_PSN -CUR_STATE -ACCESS_FLAGS -ALT_PATH -PATH_MIG_STATE
UD     RTR RTS +SQ_PSN -CUR_STATE -QKEY
RC     RTS|SQD RTS -CUR_STATE -ACCESS_FLAGS -MIN_RNR_TIMER -ALT_PATH -PATH_MIG_STATE
UC     RTS|SQD RTS -CUR_STATE -ACCESS_FLAGS -ALT_PATH -PATH_MIG_STATE
UD     RTS|SQD RTS -CUR_STATE -QKEY
RC|UC|UD RTS SQD -EN_SQD_ASYNC_NOTIFY
RC     SQD SQD -PORT -AV -TIMEOUT -RETRY_CNT -RNR_RETRY -MAX_QP_RD_ATOMIC -MAX_DEST_RD_ATOMIC -ALT_PATH \
       -ACCESS_FLAGS -PKEY_INDEX -MIN_RNR_TIMER -PATH_MIG_STATE
UC     SQD SQD -AV -ALT_PATH -ACCESS_FLAGS -PKEY_INDEX -PATH_MIG_STATE
UD     SQD SQD -PKEY_INDEX -QKEY
UC     SQE RTS -CUR_STATE -ACCESS_FLAGS
UD     SQE RTS -CUR_STATE -QKEY
RC|UC|UD RESET|INIT|RTR|RTS|SQD|SQE|ERR RESET
RC|UC|UD RESET|INIT|RTR|RTS|SQD|SQE|ERR ERR
";

fn expected(qp_type: &str, from: &str, to: &str) -> Option<Transition> {
    let table = TABLE.replace("\\\n", " ");
    let mut found = None;
    for line in table.lines() {
        let mut words = line.split_whitespace();
        let mut is = |wanted| words.next().is_some_and(|word| word.split('|').any(|one| one == wanted));
        if is(qp_type) && is(from) && is(to) {
            let (mut required, mut optional) = (QpAttrMask::empty(), QpAttrMask::empty());
            for word in words {
                let (kind, name) = word.split_at(1);
                let bit = QpAttrMask::from_name(name).expect("a name of the mask");
                if kind == "+" { required |= bit } else { optional |= bit }
            }
            assert_eq!(found.replace(Transition { required, optional }), None, "{qp_type}: {from} to {to}");
        }
    }
    found
}

#[test]
fn transitions_are_those_of_the_specification() {
    let states = (0..7).map(|number| QpState::from_raw(number).unwrap());
    let mut rows = 0;
    for (qp_type, name) in [(QpType::Rc, "RC"), (QpType::Uc, "UC"), (QpType::Ud, "UD")] {
        for (from, to) in states.clone().flat_map(|from| states.clone().map(move |to| (from, to))) {
            let expected = expected(name, &from.to_string(), &to.to_string());
            assert_eq!(Transition::of(qp_type, from, to), expected, "{name}: {from} to {to}");
            rows += usize::from(expected.is_some());
        }
    }
    assert_eq!(rows, 3 * (2 * 7 + 9) - 1);
}

#[test]
fn each_missing_and_each_surplus_attribute_is_found() {
    let row = Transition::of(QpType::Rc, QpState::Rtr, QpState::Rts).unwrap();
    let whole = row.required | row.optional | QpAttrMask::STATE;
    assert_eq!(row.faults(row.required), (QpAttrMask::empty(), QpAttrMask::empty()));
    for bit in QpAttrMask::all().iter() {
        let (missing, surplus) = row.faults(whole - bit);
        assert_eq!((missing, surplus), (row.required & bit, QpAttrMask::empty()));
        let (missing, surplus) = row.faults(whole | bit);
        assert_eq!((missing, surplus), (QpAttrMask::empty(), bit - whole));
    }
}
