//! Expressions whose work or result would grow without bound.

use super::*;

/// (kind, expression): small trees that pass depth, nodes and nesting.
fn explosions() -> Vec<(&'static str, String)> {
    let event = |expression: String| ("HealthEvent", expression);
    let chain = |start: &str, step: &str, times: usize, end: &str| {
        format!("{start}{}{end}", step.repeat(times))
    };
    vec![
        event(chain("['x']", ".map(a, a + a)", 28, " != null")),
        event(chain("[[1, 1]]", ".map(a, a + a)", 28, " != null")),
        event(chain("'aa'", ".replace('a', 'aaaaaaaaaa')", 30, " == ''")),
        event(chain(
            "event.message",
            ".replace('', event.message)",
            1,
            " == ''",
        )),
        event(chain(
            "event.message",
            ".split('').join(event.message)",
            1,
            " == ''",
        )),
        event("event.message.split('').all(a, event.message.split('').all(b, a == b))".into()),
        event("event.message.indexOf(event.message + 'x') == 1".into()),
        event(chain(
            "event.message.split('')",
            ".map(a, event.message + a)",
            1,
            " != null",
        )),
        event(chain(
            "event",
            ".map(a, [a, a]).map(a, [a, a])",
            12,
            " != null",
        )),
        (
            "Node",
            "node.metadata.labels.all(a, node.metadata.annotations.all(b, a != b && b != a))"
                .into(),
        ),
    ]
}

#[test]
fn an_expression_that_may_cost_too_much_is_refused() {
    for (kind, expression) in explosions() {
        let found = reasons(kind, &expression);
        assert!(
            found
                .iter()
                .any(|r| r.contains("may cost") || r.contains("deeper")),
            "{expression}: {found:?}"
        );
    }
}

#[test]
fn sensible_expressions_cost_little_enough() {
    let table = [
        (
            "HealthEvent",
            "event.entitiesImpacted.exists(e, event.errorCode.exists(c, e.entityValue == c))",
        ),
        (
            "HealthEvent",
            "event.entitiesImpacted.exists(a, event.entitiesImpacted.exists(b, a.entityType == 'GPU' && b.entityType == 'NIC'))",
        ),
        (
            "HealthEvent",
            "event.metadata.exists(k, k.startsWith('x') && event.metadata[k] == 'y')",
        ),
        (
            "HealthEvent",
            "event.message.lowerAscii().split(' ').exists(w, w == 'xid')",
        ),
        (
            "HealthEvent",
            "event.errorCode.map(c, 'XID-' + c).exists(c, c == 'XID-79')",
        ),
        (
            "HealthEvent",
            "event.errorCode.join(',').matches('^(48|79)(,|$)')",
        ),
        (
            "HealthEvent",
            "event.message.replace('  ', ' ').indexOf('fell off') >= 0",
        ),
        (
            "Node",
            "node.spec.taints.exists(t, ['a', 'b', 'c'].exists(k, t.key == k))",
        ),
        (
            "Node",
            "node.metadata.labels.exists(k, k.startsWith('gpu.') && node.metadata.labels[k] == 'off')",
        ),
        (
            "Node",
            "node.status.conditions.filter(c, c.type == 'Ready').all(c, c.status == 'True')",
        ),
    ];
    for (kind, expression) in table {
        assert_eq!(
            reasons(kind, expression),
            Vec::<String>::new(),
            "{expression}"
        );
    }
}

#[test]
fn patterns_are_literal_and_small() {
    let table = [
        ("event.message.matches(event.agent)", "no literal"),
        ("event.message.matches('a' + 'b')", "no literal"),
        ("event.message.matches('(')", "bad pattern"),
        (
            "event.message.matches('(((a{100}){100}){100})')",
            "bad pattern",
        ),
        (
            "event.message.matches('((\\\\w{50}){50}){4}')",
            "bad pattern",
        ),
    ];
    for (expression, part) in table {
        let found = reasons("HealthEvent", expression);
        assert!(
            found.iter().any(|r| r.contains(part)),
            "{expression}: {found:?}"
        );
    }
    let fine = "event.message.matches('NVRM: Xid .*: (48|79),') || matches(event.agent, '^a')";
    assert_eq!(reasons("HealthEvent", fine), Vec::<String>::new());
}
