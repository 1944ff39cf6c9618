//! XID 154 and its causes, from lines to what is asserted.

use std::collections::BTreeSet;

use detect::{KernelLog, KernelLogConfig, Record};
use health_event::RecommendedAction;
use proptest::prelude::*;

use super::*;

/// A line of one of two GPUs: an XID, or a 154 with its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Xid(u8, u32),
    Recovery(u8, u32),
}

impl Line {
    fn event(self) -> HealthEvent {
        let line = match self {
            Self::Xid(gpu, code) => format!("NVRM: Xid (PCI:0000:{gpu:02x}:00): {code}, x"),
            Self::Recovery(gpu, number) => format!(
                "NVRM: Xid (PCI:0000:{gpu:02x}:00): 154, GPU recovery action changed from 0x9 (?) to {number:#x} (?)"
            ),
        };
        let mut findings = Vec::new();
        KernelLog::new(KernelLogConfig::default())
            .observe(&Record::printed(line.as_bytes()), &mut findings);
        findings.remove(0).event
    }
}

/// The agent, as far as faults go: numbers what is said.
struct Agent {
    faults: Faults,
    boot: &'static str,
    number: u64,
    attaches: bool,
}

impl Agent {
    fn new(boots: &[&'static str], stored: Vec<Assertion>, number: u64) -> Self {
        Self {
            faults: faults(boots, stored),
            boot: boots[boots.len() - 1],
            number,
            attaches: true,
        }
    }

    fn read(&mut self, line: Line) {
        let event = line.event();
        let said = if self.attaches {
            self.faults.attach(event)
        } else {
            vec![event]
        };
        for event in said {
            self.say(event);
        }
    }

    fn say(&mut self, mut event: HealthEvent) {
        self.number += 1;
        let order = format!("{}/{SPOOL}/{}", self.boot, self.number);
        event.metadata.insert(keys::ORDER.to_owned(), order);
        let second = i64::try_from(self.number).unwrap();
        event.generated_at = Timestamp::from_second(second).ok();
        self.faults.apply(&event);
    }

    fn after_all_of(lines: &[Line]) -> Self {
        let mut agent = Self::new(&["b1"], Vec::new(), 0);
        for line in lines {
            agent.read(*line);
        }
        agent
    }

    fn stored(&self) -> Vec<Assertion> {
        let rows = self.faults.rows().into_iter();
        rows.filter_map(|row| row.assertion).collect()
    }

    fn open(&self) -> Vec<HealthEvent> {
        let bodies = self.faults.asserted.values();
        bodies.map(|a| a.single().unwrap()).collect()
    }

    /// What is asked for: (GPU, code, fatal, action) of faults with effects.
    fn asked(&self) -> BTreeSet<(String, String, bool, &'static str)> {
        let acts = |e: &HealthEvent| e.strategy == ProcessingStrategy::ExecuteRemediation;
        let open = self.open().into_iter().filter(acts);
        let asks = |e: &HealthEvent| e.recommended_action != RecommendedAction::None;
        open.filter(asks)
            .map(|e| {
                let (code, action) = (e.error_codes.concat(), e.recommended_action.name());
                (e.entities[0].value.clone(), code, e.is_fatal, action)
            })
            .collect()
    }

    /// Per GPU: whether anything is fatal, the strongest repair, whether a person is asked for.
    fn demand(&self, gpu: u8) -> (bool, u8, bool) {
        let pci = format!("0000:{gpu:02x}:00");
        let asked = self.asked();
        let here = asked.iter().filter(|(place, ..)| *place == pci);
        here.fold(
            (false, 0, false),
            |(fatal, repair, person), (.., f, name)| {
                let action = RecommendedAction::from_name(name).unwrap();
                let is_person = action == RecommendedAction::ContactSupport;
                let strength = if is_person { 0 } else { action.strength() };
                (fatal | f, repair.max(strength), person | is_person)
            },
        )
    }

    fn recoveries(&self) -> usize {
        let is_154 = |e: &HealthEvent| e.error_codes == [RECOVERY_ACTION];
        self.open().into_iter().filter(is_154).count()
    }
}

fn line() -> impl Strategy<Value = Line> {
    let codes = prop_oneof![
        Just(119),
        Just(79),
        Just(74),
        Just(31),
        Just(162),
        Just(999)
    ];
    prop_oneof![
        (0_u8..2, codes).prop_map(|(gpu, code)| Line::Xid(gpu, code)),
        (0_u8..2, 0_u32..7).prop_map(|(gpu, number)| Line::Recovery(gpu, number)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Against an agent that ties nothing: after every line each GPU is asked the same of.
    #[test]
    fn nothing_that_is_asked_for_is_lost_and_nothing_is_added(
        lines in proptest::collection::vec(line(), 0..24),
        restarts in proptest::collection::vec(any::<bool>(), 24),
    ) {
        let mut tied = Agent::new(&["b1"], Vec::new(), 0);
        let mut plain = Agent { attaches: false, ..Agent::new(&["b1"], Vec::new(), 0) };
        for (line, restart) in lines.into_iter().zip(restarts) {
            tied.read(line);
            plain.read(line);
            if restart {
                tied = Agent::new(&["b1"], tied.stored(), tied.number);
            }
            for gpu in 0..2 {
                prop_assert_eq!(tied.demand(gpu), plain.demand(gpu), "{:?}", line);
            }
            prop_assert!(tied.recoveries() <= 2, "one a GPU");
        }
    }

    /// Lines of one burst come in any order; the 154s of a GPU in theirs.
    #[test]
    fn in_whichever_order_cause_and_154_come_the_same_is_asked_for(
        lines in proptest::collection::vec(line(), 0..10),
        keys in proptest::collection::vec(any::<u32>(), 10),
    ) {
        let mut order: Vec<usize> = (0..lines.len()).collect();
        order.sort_by_key(|i| keys[*i]);
        let is_154 = |line: &Line| matches!(line, Line::Recovery(..));
        let mut recoveries = lines.iter().copied().filter(is_154);
        let shuffled: Vec<Line> = order
            .iter()
            .map(|i| if is_154(&lines[*i]) { recoveries.next().unwrap() } else { lines[*i] })
            .collect();
        prop_assert_eq!(
            Agent::after_all_of(&lines).asked(),
            Agent::after_all_of(&shuffled).asked()
        );
    }

    /// A crash may make the agent read the last lines once more.
    #[test]
    fn lines_that_are_read_twice_change_nothing(
        lines in proptest::collection::vec(line(), 1..10),
        again in 1_usize..10,
    ) {
        let once = Agent::after_all_of(&lines);
        let mut twice = Agent::after_all_of(&lines);
        let from = lines.len().saturating_sub(again);
        for line in &lines[from..] {
            twice.read(*line);
        }
        prop_assert_eq!(once.asked(), twice.asked());
    }
}

fn asked(asked: &[(&str, bool, &'static str)]) -> BTreeSet<(String, String, bool, &'static str)> {
    let full = |(code, fatal, action): &(&str, bool, &'static str)| {
        ("0000:00:00".to_owned(), (*code).to_owned(), *fatal, *action)
    };
    asked.iter().map(full).collect()
}

const RESET: (&str, bool, &str) = ("119", true, "COMPONENT_RESET");
const REBOOT: (&str, bool, &str) = ("154", true, "RESTART_BM");

#[test]
fn a_cause_of_an_earlier_boot_answers_for_nothing() {
    let before = Agent::after_all_of(&[Line::Xid(0, 119), Line::Recovery(0, 1)]);
    assert_eq!(before.asked(), asked(&[RESET]));
    // In the new boot the driver states what the GPU needs, and not why.
    let mut after = Agent::new(&["b1", "b2"], before.stored(), before.number);
    after.read(Line::Recovery(0, 1));
    for gone in after.faults.not_found_again() {
        after.say(gone);
    }
    assert_eq!(after.asked(), asked(&[("154", true, "COMPONENT_RESET")]));
    assert_eq!(after.recoveries(), 1);
}

#[test]
fn without_a_boot_id_nothing_is_tied() {
    let before = Agent::after_all_of(&[Line::Xid(0, 119)]);
    let mut after = Agent {
        faults: Faults::new(
            identity(""),
            Boots::new(vec![BootId::new("b1")]),
            before.stored(),
        ),
        boot: "",
        number: before.number,
        attaches: true,
    };
    after.read(Line::Recovery(0, 1));
    assert_eq!(after.asked().len(), 2);
}

#[test]
fn a_reboot_that_the_driver_asks_for_after_its_cause_is_asked_for_until_it_says_otherwise() {
    let mut lines = vec![
        Line::Xid(0, 119),
        Line::Recovery(0, 1),
        Line::Recovery(0, 2),
    ];
    assert_eq!(Agent::after_all_of(&lines).asked(), asked(&[RESET, REBOOT]));
    lines.push(Line::Recovery(0, 1));
    let back = Agent::after_all_of(&lines);
    assert_eq!(back.asked(), asked(&[RESET]));
    assert_eq!(back.recoveries(), 1);
    lines.push(Line::Recovery(0, 0));
    let none = Agent::after_all_of(&lines);
    assert_eq!(none.asked(), asked(&[RESET]), "the cause itself stays");
    assert_eq!(none.recoveries(), 0);
}

#[test]
fn another_gpus_fault_is_no_cause() {
    let agent = Agent::after_all_of(&[Line::Xid(1, 119), Line::Recovery(0, 1)]);
    assert_eq!(agent.asked().len(), 2);
}
