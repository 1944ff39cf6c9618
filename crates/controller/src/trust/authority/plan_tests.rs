use super::*;
use crate::trust::Certificates;

fn day(n: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap() + DAY * i32::try_from(n).unwrap()
}

/// A look on that day, with everything published.
fn moved(from: &Authorities, on: i64) -> Authorities {
    from.advance(day(on), &from.bundle()).unwrap()
}

#[test]
fn a_successor_is_published_a_day_before_it_signs_and_the_old_one_stays_trusted() {
    let first = Authorities::new(day(0)).unwrap();
    assert_eq!(
        first.advance(day(300), "").unwrap(),
        first,
        "nothing is due"
    );

    let announced = first.advance(day(306), &first.bundle()).unwrap();
    assert_eq!(announced.present, first.present);
    let next = announced.next.clone().unwrap().authority;
    assert!(announced.bundle().contains(&next.certificate), "published");
    assert_eq!(
        announced
            .advance(day(306) + DAY / 2, &announced.bundle())
            .unwrap(),
        announced,
        "not a day yet"
    );

    let changed = announced.advance(day(307), &announced.bundle()).unwrap();
    assert_eq!(changed.present, next);
    assert!(
        changed.bundle().contains(&first.present.certificate),
        "still trusted"
    );

    let later = changed.advance(day(366), &changed.bundle()).unwrap();
    assert!(
        !later.bundle().contains(&first.present.certificate),
        "it has ended"
    );
}

/// The ConfigMap could not be written, or somebody took the successor out of it.
#[test]
fn a_successor_that_agents_can_not_know_does_not_sign() {
    let first = Authorities::new(day(0)).unwrap();
    let announced = moved(&first, 306);
    let next = announced.next.clone().unwrap().authority;
    let unpublished = announced.advance(day(320), &first.bundle()).unwrap();
    assert_eq!(unpublished.present, first.present);
    assert_eq!(unpublished.next.clone().unwrap().authority, next);
    // Its day begins when it is seen in the bundle.
    assert_eq!(moved(&unpublished, 320).present, first.present);
    assert_eq!(moved(&unpublished, 321).present, next);
}

/// The controller was off for months: nobody believes the old one, so that there is nothing to keep.
#[test]
fn an_authority_that_is_over_gives_way_at_once() {
    let first = Authorities::new(day(0)).unwrap();
    let anew = first.advance(day(365), &first.bundle()).unwrap();
    assert_ne!(anew.present, first.present);
    assert_eq!((&anew.next, &anew.last), (&None, &None));
    let announced = first.advance(day(306), "").unwrap();
    let next = announced.next.clone().unwrap().authority;
    let late = announced.advance(day(366), "").unwrap();
    assert_eq!(late.present, next, "the one that is waiting comes first");
    assert!(
        !moved(&late, 367)
            .bundle()
            .contains(&first.present.certificate)
    );
}

#[test]
fn the_authorities_survive_their_secret_and_show_no_key() {
    let first = Authorities::new(day(0)).unwrap();
    for authorities in [
        first.clone(),
        moved(&first, 310),
        moved(&moved(&first, 310), 312),
    ] {
        let data = authorities.to_data();
        assert_eq!(Authorities::from_data(&data).unwrap(), authorities);
        let shown = format!("{authorities:?}");
        assert!(!shown.contains("PRIVATE") && !shown.contains(&authorities.present.key));
        assert!(!authorities.bundle().contains("PRIVATE"));
    }
    let mut data = first.to_data();
    data.remove("ca.key");
    assert_eq!(Authorities::from_data(&data).unwrap_err(), "no key ca.key");
}

#[test]
fn a_leaf_is_renewed_at_two_thirds_and_never_outlives_its_authority() {
    let authorities = Authorities::new(day(0)).unwrap();
    let names = [
        "warden-controller.warden.svc".to_owned(),
        "127.0.0.1".to_owned(),
    ];
    let leaf = authorities.present.issue(&names, day(0)).unwrap();
    assert_eq!(leaf.not_after, day(30));
    assert!(!leaf.is_due(&authorities, day(20) - SignedDuration::from_secs(1)));
    assert!(leaf.is_due(&authorities, day(20)));
    let late = authorities.present.issue(&names, day(350)).unwrap();
    assert_eq!(late.not_after, authorities.present.not_after);
    let others = Authorities::new(day(0)).unwrap();
    assert!(leaf.is_due(&others, day(1)), "another authority signs now");
    Certificates::new("test", &leaf.certificate, &leaf.key).unwrap();
    let error = Certificates::new("test", &leaf.certificate, &others.present.key).unwrap_err();
    assert_eq!(error.code(), "certificate_unusable");
}
