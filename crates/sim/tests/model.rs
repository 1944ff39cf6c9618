//! Every history within small bounds, configuration by configuration.
//!
//! The pinned numbers of states tell when a behaviour is lost or gained: look at what changed
//! before changing a number.

use decide::quarantine::{CooperatorPolicy, Mode};
use health_event::NodeName;
use sim::world::{BrokenRule, Setup, What};

use What::*;

use crate::checked::{caught, check};

#[test]
fn an_agent_and_its_machine() {
    let limits = [(Break, 1), (Heal, 1), (Reboot, 1), (Tick, 1)];
    let taken: &[_] = &["fault_matched", "write_seen", "recovered", "needs_operator"];
    check("reboot", Setup::new(1, 1, &limits), taken, 2_414);
    let limits = [(Break, 2), (Heal, 1), (AgentRestart, 1), (Crash, 1)];
    check(
        "agent restart",
        Setup::new(1, 1, &limits),
        &["recovered", "faults_change"],
        1_264,
    );
}

#[test]
fn a_reboot_while_the_marks_change() {
    let limits = [(Break, 2), (Reboot, 1), (TimeOut, 1)];
    let taken: &[_] = &["marks_change", "replanned_write", "recovered"];
    check("reboot amid two", Setup::new(1, 2, &limits), taken, 8_649);
}

#[test]
fn two_faults_whose_writes_come_late() {
    let limits = [(Break, 3), (Heal, 2), (TimeOut, 1)];
    let taken: &[_] = &["marks_change", "replanned_write", "recovered"];
    check(
        "two faults",
        Setup::new(1, 2, &limits).with_bare_nodes(),
        taken,
        14_988,
    );
}

#[test]
fn crashes_and_late_events() {
    let limits = [(Break, 2), (Heal, 2), (Repeat, 1), (TimeOut, 1), (Crash, 2)];
    let taken: &[_] = &["fault_matched", "recovered"];
    check("crashes", Setup::new(1, 1, &limits), taken, 15_173);
}

#[test]
fn a_person_uncordons() {
    let limits = [(Break, 2), (Heal, 1), (Uncordon, 1), (Tick, 1)];
    check(
        "uncordon",
        Setup::new(1, 1, &limits),
        &["manual_uncordon", "recovered"],
        1_214,
    );
    let limits = [
        (Break, 1),
        (Heal, 1),
        (Uncordon, 1),
        (Cordon, 1),
        (Crash, 1),
        (TimeOut, 1),
    ];
    check(
        "uncordon late",
        Setup::new(1, 1, &limits),
        &["manual_uncordon", "recovered"],
        8_228,
    );
}

#[test]
fn a_person_uncordons_and_untaints_amid_two_faults() {
    let limits = [
        (Break, 2),
        (Heal, 1),
        (Uncordon, 1),
        (Untaint, 1),
        (Crash, 1),
    ];
    let taken: &[_] = &[
        "manual_uncordon",
        "manual_untaint",
        "marks_change",
        "recovered",
    ];
    check("untaint", Setup::new(1, 2, &limits), taken, 14_157);
}

#[test]
fn a_person_untaints_and_two_writes_come_late() {
    let limits = [(Break, 1), (Untaint, 1), (TimeOut, 2)];
    let taken: &[_] = &["manual_untaint", "write_seen"];
    check("untaint late", Setup::new(1, 2, &limits), taken, 202);
}

#[test]
fn a_person_asks() {
    let limits = [
        (Break, 1),
        (Heal, 1),
        (Hold, 1),
        (Release, 1),
        (Cancel, 1),
        (Crash, 1),
    ];
    let taken: &[_] = &["person_hold", "person_cancel", "recovered"];
    check("requests", Setup::new(1, 1, &limits), taken, 13_186);
}

#[test]
fn another_controller_cordons_and_taints() {
    let limits = [
        (Break, 1),
        (Heal, 1),
        (Cordon, 1),
        (Uncordon, 1),
        (ForeignTaint, 1),
        (ForeignUntaint, 1),
        (TimeOut, 1),
    ];
    let taken: &[_] = &["manual_uncordon", "recovered"];
    check(
        "another controller",
        Setup::new(1, 1, &limits),
        taken,
        7_720,
    );
}

#[test]
fn another_controller_has_our_taint() {
    let limits = [
        (Break, 2),
        (Heal, 2),
        (SameTaint, 1),
        (Untaint, 1),
        (Cordon, 1),
    ];
    let taken: &[_] = &["manual_untaint", "recovered", "marks_change"];
    check("same taint", Setup::new(1, 2, &limits), taken, 15_551);
}

#[test]
fn a_cooperating_controller() {
    for policy in [CooperatorPolicy::Taint, CooperatorPolicy::Yield] {
        let limits = [
            (Break, 1),
            (Heal, 1),
            (Cooperate, 2),
            (CooperatorUncordon, 1),
            (Crash, 1),
        ];
        let mut setup = Setup::new(1, 1, &limits);
        setup.policy.cooperator_policy = policy;
        let taken: &[_] = &["cooperator_uncordon", "marks_change", "recovered"];
        check("cooperator", setup, taken, 1_321);
    }
}

#[test]
fn annotations_are_taken_off() {
    let limits = [(Break, 2), (Heal, 2), (Strip, 1), (Uncordon, 1), (Crash, 1)];
    let taken: &[_] = &["marks_restored", "recovered"];
    check("strip", Setup::new(1, 1, &limits), taken, 23_057);
    check(
        "strip, whose cordon is not told",
        Setup::new(1, 1, &limits).without_owners(),
        taken,
        9_237,
    );
}

#[test]
fn annotations_are_taken_off_while_the_marks_change() {
    let limits = [(Break, 2), (Heal, 1), (Strip, 1), (TimeOut, 1)];
    let taken: &[_] = &["marks_change", "marks_restored", "recovered"];
    check("strip amid two", Setup::new(1, 2, &limits), taken, 10_884);
}

#[test]
fn annotations_are_taken_off_while_the_agent_settles() {
    let limits = [(Break, 2), (Heal, 1), (Reboot, 1), (Strip, 1)];
    let taken: &[_] = &["marks_restored", "recovered"];
    check("strip, reboot", Setup::new(1, 1, &limits), taken, 14_898);
}

#[test]
fn any_one_of_the_annotations_is_taken_off() {
    let limits = [(Break, 2), (Heal, 1), (StripOne, 1), (Crash, 1)];
    let taken: &[_] = &["marks_change", "marks_restored", "recovered"];
    check("strip one", Setup::new(1, 2, &limits), taken, 17_616);
}

#[test]
fn annotations_are_taken_off_and_writes_come_late() {
    let limits = [
        (Break, 1),
        (Heal, 1),
        (Strip, 2),
        (TimeOut, 2),
        (Uncordon, 1),
    ];
    let taken: &[_] = &["manual_uncordon", "marks_restored", "recovered"];
    check("strip and late", Setup::new(1, 1, &limits), taken, 41_554);
}

#[test]
fn pause_and_opt_out() {
    let limits = [(Break, 2), (Heal, 1), (Pause, 2), (OptOut, 2)];
    check(
        "pause",
        Setup::new(1, 2, &limits),
        &["faults_change", "recovered"],
        4_093,
    );
}

#[test]
fn a_person_uncordons_a_node_that_has_opted_out_and_is_held() {
    let limits = [
        (Break, 1),
        (Hold, 1),
        (Release, 1),
        (Uncordon, 1),
        (OptOut, 2),
    ];
    let taken: &[_] = &["person_hold", "manual_uncordon", "recovered"];
    check(
        "opted out and held",
        Setup::new(1, 1, &limits),
        taken,
        2_509,
    );
}

#[test]
fn nodes_go_and_come() {
    let limits = [
        (Break, 2),
        (Heal, 1),
        (Delete, 2),
        (Register, 1),
        (RegisterOther, 1),
        (TimeOut, 1),
    ];
    let taken: &[_] = &["node_gone", "node_replaced", "recovered"];
    check(
        "nodes go and come",
        Setup::new(1, 1, &limits),
        taken,
        20_763,
    );
}

#[test]
fn a_node_is_registered_anew_in_any_state() {
    let limits = [
        (Break, 1),
        (Heal, 1),
        (Uncordon, 1),
        (Cancel, 1),
        (Delete, 1),
        (Register, 1),
        (TimeOut, 1),
    ];
    let taken: &[_] = &["node_gone", "node_replaced", "recovered"];
    check("registered anew", Setup::new(1, 1, &limits), taken, 6_525);
    let limits = [
        (Break, 2),
        (Heal, 1),
        (Delete, 1),
        (RegisterCopy, 1),
        (TimeOut, 1),
    ];
    let taken: &[_] = &["node_gone", "recovered"];
    check("copied", Setup::new(1, 2, &limits), taken, 10_372);
}

#[test]
fn the_store_is_lost() {
    let limits = [(Break, 2), (Heal, 1), (Reboot, 1), (LoseStore, 1)];
    check(
        "store lost",
        Setup::new(1, 1, &limits),
        &["adopted", "recovered"],
        24_984,
    );
    let limits = [(Break, 1), (Heal, 1), (Uncordon, 1), (LoseStore, 1)];
    check(
        "store lost, uncordon",
        Setup::new(1, 1, &limits),
        &["adopted", "manual_uncordon"],
        816,
    );
}

#[test]
fn the_store_is_lost_while_a_person_holds_the_node() {
    let limits = [
        (Break, 1),
        (Heal, 1),
        (Hold, 1),
        (Release, 1),
        (LoseStore, 1),
    ];
    let taken: &[_] = &["adopted", "person_hold", "hold_released", "recovered"];
    check("store lost, hold", Setup::new(1, 1, &limits), taken, 7_941);
}

#[test]
fn the_store_is_lost_and_a_held_node_is_registered_anew() {
    let limits = [
        (Break, 1),
        (Heal, 1),
        (Hold, 1),
        (LoseStore, 1),
        (Delete, 1),
        (Register, 1),
    ];
    let taken: &[_] = &["adopted", "person_hold", "node_gone", "recovered"];
    check("store lost, anew", Setup::new(1, 1, &limits), taken, 11_019);
}

#[test]
fn the_store_is_lost_and_another_controller_has_our_taint() {
    let limits = [
        (Break, 1),
        (Heal, 1),
        (SameTaint, 1),
        (Untaint, 1),
        (LoseStore, 1),
    ];
    let taken: &[_] = &["adopted", "manual_untaint", "recovered"];
    check(
        "store lost, same taint",
        Setup::new(1, 2, &limits),
        taken,
        3_851,
    );
}

#[test]
fn the_store_is_lost_and_the_node_does_not_name_its_faults() {
    let limits = [
        (Break, 2),
        (Heal, 1),
        (StripOne, 1),
        (Tick, 1),
        (LoseStore, 1),
    ];
    let taken: &[_] = &["adopted", "needs_operator", "recovered"];
    // Without its mark it is any node: that cordon stays until a person or a fault comes.
    let mut setup = Setup::new(1, 1, &limits);
    setup.strips = 1;
    check("store lost, strip", setup, taken, 26_734);
}

#[test]
fn the_store_is_lost_after_a_person_gave_the_node_back() {
    let limits = [
        (Break, 2),
        (Heal, 1),
        (Uncordon, 1),
        (AgentRestart, 1),
        (LoseStore, 1),
    ];
    let taken: &[_] = &["adopted", "manual_uncordon", "recovered"];
    check(
        "store lost, given back",
        Setup::new(1, 1, &limits),
        taken,
        18_070,
    );
}

#[test]
fn two_nodes_and_room_for_one() {
    let limits = [(Break, 2), (Heal, 1), (Reset, 1), (Drop, 1), (Crash, 1)];
    let taken: &[_] = &[
        "breaker_withholds",
        "paced",
        "permitted",
        "person_drop",
        "recovered",
    ];
    check(
        "breaker",
        Setup::new(2, 1, &limits).with_level(1),
        taken,
        7_118,
    );
}

#[test]
fn late_writes_beside_a_node_that_waits() {
    let limits = [(Break, 3), (Heal, 1), (TimeOut, 1), (Strip, 1)];
    let taken: &[_] = &["breaker_withholds", "recovered"];
    check(
        "breaker and late",
        Setup::new(2, 1, &limits).with_level(1),
        taken,
        15_842,
    );
}

#[test]
fn the_store_is_lost_and_there_is_room_for_one() {
    let limits = [(Break, 2), (LoseStore, 1)];
    let taken: &[_] = &["breaker_withholds", "adopted"];
    let setup = Setup::new(2, 1, &limits).with_level(1);
    check("store lost, breaker", setup, taken, 1_396);
}

#[test]
fn a_breaker_that_resumes_by_itself() {
    let limits = [(Break, 2), (Heal, 1), (Tick, 1), (Crash, 1)];
    let mut setup = Setup::new(2, 1, &limits).with_level(1);
    setup.breaker.auto_resume = true;
    let taken: &[_] = &["breaker_withholds", "permitted", "recovered"];
    check("auto resume", setup, taken, 33_214);
}

#[test]
fn the_first_action_waits() {
    let limits = [(Break, 2), (Hold, 1), (Tick, 1)];
    let mut setup = Setup::new(2, 1, &limits).with_level(2);
    setup.policy.first_action_until = Some(setup.now(1));
    let taken: &[_] = &["first_action_delay", "paced", "permitted", "person_hold"];
    check("first action", setup, taken, 12_438);
}

#[test]
fn dry_run_off_refused_and_back() {
    let table: [(_, &[_], _); 5] = [
        (
            [Mode::DryRun, Mode::Enforce, Mode::DryRun],
            &["dry_run", "permitted", "recovered"],
            945,
        ),
        (
            [Mode::Enforce, Mode::DryRun, Mode::Enforce],
            &["dry_run", "permitted", "recovered"],
            2_678,
        ),
        (
            [Mode::Enforce, Mode::Off, Mode::Enforce],
            &["off", "permitted", "recovered", "manual_uncordon"],
            2_398,
        ),
        (
            [Mode::Enforce, Mode::Refused, Mode::Enforce],
            &["other_quarantine", "permitted", "recovered"],
            2_683,
        ),
        (
            [Mode::Refused, Mode::Enforce, Mode::Refused],
            &["other_quarantine", "permitted", "recovered"],
            980,
        ),
    ];
    for (modes, taken, states) in table {
        let limits = [
            (Break, 1),
            (Heal, 1),
            (Uncordon, 1),
            (Cancel, 1),
            (SwitchMode, 2),
        ];
        let setup = Setup::new(1, 1, &limits).with_modes(modes.to_vec());
        check(&format!("{modes:?}"), setup, taken, states);
    }
}

#[test]
fn a_write_that_is_late_where_nothing_is_written_any_more() {
    for (mode, states) in [
        (Mode::Off, 17_404),
        (Mode::DryRun, 22_888),
        (Mode::Refused, 22_495),
    ] {
        let limits = [(Break, 2), (Heal, 1), (TimeOut, 1), (SwitchMode, 2)];
        let modes = vec![Mode::Enforce, mode, Mode::Enforce];
        let setup = Setup::new(1, 2, &limits).with_modes(modes);
        let taken: &[_] = &["write_seen", "marks_change", "recovered"];
        check(&format!("late, {mode:?}"), setup, taken, states);
    }
}

#[test]
fn a_protected_node() {
    let limits = [(Break, 2), (Heal, 1), (Hold, 1), (Release, 1), (Cordon, 1)];
    let mut setup = Setup::new(1, 2, &limits);
    let name = NodeName::new(&setup.template(0, 0).event.node_name).unwrap();
    setup.policy.protected_nodes.insert(name);
    check("protected", setup, &["protected_node", "recovered"], 2_814);
}

#[test]
fn decisions_that_break_a_rule_are_caught() {
    let limits = [(Break, 1), (Delete, 1), (RegisterOther, 1)];
    caught(
        Setup::new(1, 1, &limits).breaking(BrokenRule::AnotherMachine),
        "what another machine or boot has takes nothing out",
    );
    for (what, rule) in [(OptOut, BrokenRule::OptOut), (Pause, BrokenRule::Pause)] {
        caught(
            Setup::new(1, 1, &[(Break, 1), (what, 1)]).breaking(rule),
            "a node that is paused or has opted out is left alone",
        );
    }
    let mut setup = Setup::new(1, 1, &[(Break, 1)]).breaking(BrokenRule::FirstAction);
    setup.policy.first_action_until = Some(setup.now(1));
    caught(setup, "the first action waits");
}
