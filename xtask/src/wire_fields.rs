//! The numbers of the wire's messages and enums, which an older or newer peer relies on: a list in
//! the repository that only grows. Programs of neighbouring versions talk to each other, so a
//! number, once given, keeps its name, its type and whether it repeats, for ever.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use prost_types::field_descriptor_proto::Label;
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto};

/// The list.
pub(crate) const LIST: &str = "crates/wire/proto/numbers.txt";

const HEAD: &str = "# Numbers of the wire, once given never changed or given again (wire-agent 1).
# `make generate` adds lines; `make test` fails where one is missing.
";

/// The list with what is new in the .proto files; lines that are there stay.
///
/// # Errors
/// The .proto files can't be read.
pub(crate) fn page(root: &Path) -> anyhow::Result<String> {
    let mut lines = listed(root);
    lines.extend(present(root)?);
    let lines: Vec<String> = lines.into_iter().collect();
    Ok(format!("{HEAD}{}\n", lines.join("\n")))
}

/// What is wrong: a number that changed or went, or one that is not in the list yet.
///
/// # Errors
/// The .proto files can't be read.
pub(crate) fn faults(root: &Path) -> anyhow::Result<Vec<String>> {
    Ok(compare(&listed(root), &present(root)?))
}

fn compare(listed: &BTreeSet<String>, present: &BTreeSet<String>) -> Vec<String> {
    let gone = listed.difference(present).map(|line| {
        format!(
            "{LIST}: {line:?} is not in the .proto files any more: programs of another version \
             still read it so; put it back and give what is new a number of its own"
        )
    });
    let new = present.difference(listed);
    gone.chain(new.map(|line| format!("{LIST}: {line:?} is missing; run make generate")))
        .collect()
}

fn listed(root: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root.join(LIST)).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

fn present(root: &Path) -> anyhow::Result<BTreeSet<String>> {
    let folder = root.join("crates/wire/proto");
    let files = [
        "health_event.proto",
        "warden/v1/agent.proto",
        "janitor/csp_provider.proto",
    ];
    let set = protox::compile(files, [&folder]).context("compiling the .proto files")?;
    let ours = set
        .file
        .iter()
        .filter(|file| !file.package().starts_with("google."));
    let mut lines = BTreeSet::new();
    for file in ours {
        for message in &file.message_type {
            of_message(file.package(), message, &mut lines);
        }
        for kind in &file.enum_type {
            of_enum(file.package(), kind, &mut lines);
        }
    }
    Ok(lines)
}

fn of_message(scope: &str, message: &DescriptorProto, lines: &mut BTreeSet<String>) {
    let name = format!("{scope}.{}", message.name());
    for field in &message.field {
        lines.insert(format!("{name} {}", of_field(field)));
    }
    for nested in &message.nested_type {
        of_message(&name, nested, lines);
    }
    for kind in &message.enum_type {
        of_enum(&name, kind, lines);
    }
}

fn of_field(field: &FieldDescriptorProto) -> String {
    let repeated = if field.label() == Label::Repeated {
        "repeated "
    } else {
        ""
    };
    let kind = match field.type_name() {
        "" => field
            .r#type()
            .as_str_name()
            .trim_start_matches("TYPE_")
            .to_lowercase(),
        name => name.trim_start_matches('.').to_owned(),
    };
    format!("{} {repeated}{kind} {}", field.number(), field.name())
}

fn of_enum(scope: &str, kind: &EnumDescriptorProto, lines: &mut BTreeSet<String>) {
    for value in &kind.value {
        lines.insert(format!(
            "{scope}.{} {} {}",
            kind.name(),
            value.number(),
            value.name()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(lines: &[&str]) -> BTreeSet<String> {
        lines.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_number_that_changes_goes_or_is_new_is_told() {
        let listed = set(&["p.M 1 string a", "p.M 2 uint32 b"]);
        assert_eq!(compare(&listed, &listed), Vec::<String>::new());
        let table = [
            (set(&["p.M 1 string a"]), 1),
            (set(&["p.M 1 bytes a", "p.M 2 uint32 b"]), 2),
            (
                set(&["p.M 1 string a", "p.M 2 uint32 b", "p.M 3 bool c"]),
                1,
            ),
        ];
        for (present, count) in table {
            assert_eq!(compare(&listed, &present).len(), count, "{present:?}");
        }
    }

    #[test]
    fn fields_and_values_of_both_files_are_read() {
        let root = crate::root().unwrap();
        let present = present(&root).unwrap();
        for want in [
            "datamodels.HealthEvent 10 repeated datamodels.Entity entitiesImpacted",
            "datamodels.RecommendedAction 24 RESTART_BM",
            "datamodels.HealthEvent.MetadataEntry 1 string key",
        ] {
            assert!(present.contains(want), "{want} is not in {present:#?}");
        }
        assert!(
            present
                .iter()
                .any(|line| line.starts_with("warden.v1.ReportRequest 1 "))
        );
    }
}
