//! What an expression compares, held against the kinds of the event's and node's fields: so that
//! a rule that can never match is found before it is needed.
//!
//! # Guarantees
//! - Nothing is said about what is not known: keys of `metadata`, labels, annotations and
//!   quantities are texts whatever their name, and other parts of a node may be anything.
//! - An expression that gives `true` on any event or node may match ([`Found::may_match`]); held
//!   by a property (`tests::types`).
//! - Values are told apart by kind only: `event.componentClass == 'nonsense'` is no mistake.

mod compare;
mod shape;
mod show;

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue};
use cel::common::ast::{SelectExpr, operators};

pub(super) use shape::full_node;
use shape::{Kind, Object};
use show::show;

use super::Root;
use super::fence::literal_text;

/// What is wrong with an expression.
#[derive(Debug)]
pub(super) struct Found {
    /// In the order of the expression, each with the part that is meant and what to write instead.
    pub(super) mistakes: Vec<String>,
    /// Whether there may be an event or node that it matches all the same.
    pub(super) may_match: bool,
}

/// Looks at an expression that the walk of the fence has passed.
pub(super) fn check(root: Root, expression: &IdedExpr) -> Found {
    let mut look = Look {
        root,
        bound: Vec::new(),
        mistakes: Vec::new(),
    };
    let whole = look.expression(expression);
    Found {
        mistakes: look.mistakes,
        may_match: whole.yes,
    }
}

/// A value as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Known {
    kind: Kind,
    /// It may be true, or is no boolean.
    yes: bool,
    /// It may be false, or is no boolean.
    no: bool,
}

impl Known {
    /// It always fails at evaluation.
    const NOTHING: Self = Self {
        kind: Kind::Any,
        yes: false,
        no: false,
    };
    const TRUE: Self = Self::verdict(true, false);
    const FALSE: Self = Self::verdict(false, true);

    const fn some(kind: Kind) -> Self {
        Self {
            kind,
            yes: true,
            no: true,
        }
    }

    const fn verdict(yes: bool, no: bool) -> Self {
        Self {
            kind: Kind::Bool,
            yes,
            no,
        }
    }

    fn is_nothing(self) -> bool {
        !self.yes && !self.no
    }

    fn or(self, other: Self) -> Self {
        if self.is_nothing() {
            return other;
        }
        if other.is_nothing() {
            return self;
        }
        Self {
            kind: self.kind.or(other.kind),
            yes: self.yes || other.yes,
            no: self.no || other.no,
        }
    }
}

struct Look<'e> {
    root: Root,
    /// Names that the macros around bind, innermost last.
    bound: Vec<(&'e str, Known)>,
    mistakes: Vec<String>,
}

impl<'e> Look<'e> {
    /// A macro's step is looked at more than once, and has its mistakes once.
    fn mistake(&mut self, text: String) {
        if !self.mistakes.contains(&text) {
            self.mistakes.push(text);
        }
    }

    fn fails(&mut self, text: String) -> Known {
        self.mistake(text);
        Known::NOTHING
    }

    /// Recursion as deep as the tree, which the fence's walk has bounded.
    fn expression(&mut self, expression: &'e IdedExpr) -> Known {
        match &expression.expr {
            Expr::Literal(literal) => of_literal(literal),
            Expr::Ident(name) => self.ident(name),
            Expr::Select(select) => self.select(select),
            Expr::List(list) => {
                let kinds: Vec<Kind> = list
                    .elements
                    .iter()
                    .map(|element| self.expression(element).kind)
                    .collect();
                let element = kinds.into_iter().reduce(Kind::or);
                Known::some(element.map_or(Kind::List(None), Kind::listed))
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.expression(&entry.key);
                        self.expression(&entry.value);
                    }
                }
                let none = map.entries.is_empty();
                Known::some(if none { Kind::Map(None) } else { Kind::Any })
            }
            Expr::Call(call) => self.call(expression, call),
            Expr::Comprehension(macro_) => self.comprehension(macro_),
            // Refused by the walk.
            Expr::Struct(_) | Expr::Unspecified => Known::some(Kind::Any),
        }
    }

    fn ident(&self, name: &str) -> Known {
        let bound = self.bound.iter().rev().find(|(n, _)| *n == name);
        bound.map_or_else(|| Known::some(shape::of(self.root)), |(_, known)| *known)
    }

    fn select(&mut self, select: &'e SelectExpr) -> Known {
        let operand = self.expression(&select.operand);
        if operand.is_nothing() {
            return Known::NOTHING;
        }
        let (of, field) = (&select.operand, select.field.as_str());
        let kind = match operand.kind {
            Kind::Any => Kind::Any,
            Kind::Map(value) => value.copied().unwrap_or(Kind::Any),
            Kind::Object(object) => match self.field(of, object, field) {
                Some(kind) => kind,
                None if select.test => return Known::FALSE,
                None => return Known::NOTHING,
            },
            Kind::List(_) => {
                let of = show(of);
                return self.fails(format!(
                    "{of} is a list and has no field {field}: write {of}.exists(e, e.{field} …)"
                ));
            }
            Kind::Null | Kind::Bool | Kind::Number | Kind::Text => {
                let (of, kind) = (show(of), operand.kind.name());
                return self.fails(format!("{of} is {kind} and has no field {field}"));
            }
        };
        if select.test {
            return Known::verdict(true, true);
        }
        Known::some(kind)
    }

    /// A field by name; none if it can't be there.
    fn field(&mut self, of: &IdedExpr, object: &Object, name: &str) -> Option<Kind> {
        if let Some(kind) = object.field(name) {
            return Some(kind);
        }
        let of = show(of);
        let right = object.meant(name).map_or_else(
            || {
                let names: Vec<&str> = object.fields.iter().map(|(field, _)| *field).collect();
                format!("its fields are {}", names.join(", "))
            },
            |meant| format!("write {of}.{meant}"),
        );
        self.mistake(format!("{of} has no field {name}: {right}"));
        object.grows.then_some(Kind::Any)
    }

    fn comprehension(&mut self, c: &'e ComprehensionExpr) -> Known {
        let range = self.expression(&c.iter_range);
        if range.is_nothing() {
            return Known::NOTHING;
        }
        let element = match range.kind {
            Kind::Any | Kind::List(None) => Kind::Any,
            Kind::List(Some(element)) => *element,
            Kind::Map(_) | Kind::Object(_) => Kind::Text,
            Kind::Null | Kind::Bool | Kind::Number | Kind::Text => {
                let (of, kind) = (show(&c.iter_range), range.kind.name());
                return self.fails(format!("{of} is {kind} and has no elements"));
            }
        };
        let names = self.bound.len();
        let second = c.iter_var2.as_deref();
        self.bound.push((&c.iter_var, Known::some(element)));
        let any = Known::some(Kind::Any);
        self.bound.extend(second.map(|name| (name, any)));
        let mut sum = self.expression(&c.accu_init);
        // What is known of the sum only gets less at each turn: kind, then true, then false.
        for _ in 0..4 {
            self.bound.push((&c.accu_var, sum));
            let step = self.expression(&c.loop_step);
            self.bound.pop();
            let next = sum.or(step);
            if next == sum {
                break;
            }
            sum = next;
        }
        self.bound.push((&c.accu_var, sum));
        let result = self.expression(&c.result);
        self.bound.truncate(names);
        result
    }

    fn call(&mut self, whole: &'e IdedExpr, call: &'e CallExpr) -> Known {
        let target = call.target.as_deref();
        let parts: Vec<&IdedExpr> = target.into_iter().chain(&call.args).collect();
        let known: Vec<Known> = parts.iter().map(|part| self.expression(part)).collect();
        match (call.func_name.as_str(), known.as_slice()) {
            (operators::LOGICAL_AND, [a, b]) => {
                let (a, b) = (self.boolean(parts[0], *a), self.boolean(parts[1], *b));
                Known::verdict(a.yes && b.yes, a.no || b.no)
            }
            (operators::LOGICAL_OR, [a, b]) => {
                let (a, b) = (self.boolean(parts[0], *a), self.boolean(parts[1], *b));
                Known::verdict(a.yes || b.yes, a.no && b.no)
            }
            (operators::LOGICAL_NOT, [a]) => {
                let a = self.boolean(parts[0], *a);
                Known::verdict(a.no, a.yes)
            }
            (operators::CONDITIONAL, [test, yes, no]) => {
                let test = self.boolean(parts[0], *test);
                let reached = |branch: &Known, is: bool| if is { *branch } else { Known::NOTHING };
                reached(yes, test.yes).or(reached(no, test.no))
            }
            (operators::NOT_STRICTLY_FALSE, _) => Known::verdict(true, true),
            _ if known.iter().any(|part| part.is_nothing()) => Known::NOTHING,
            (operators::EQUALS, [a, b]) => self.equals(whole, &parts, [a.kind, b.kind], true),
            (operators::NOT_EQUALS, [a, b]) => self.equals(whole, &parts, [a.kind, b.kind], false),
            (operators::IN, [a, b]) => self.is_in(whole, &parts, [a.kind, b.kind]),
            (operators::INDEX, [of, key]) => self.index(&parts, [of.kind, key.kind]),
            (
                operators::LESS
                | operators::LESS_EQUALS
                | operators::GREATER
                | operators::GREATER_EQUALS,
                [a, b],
            ) => self.order(whole, &parts, [a.kind, b.kind]),
            (name, [of, rest @ ..]) => self.function(whole, name, &parts, of.kind, rest),
            (_, []) => Known::some(Kind::Any),
        }
    }

    /// What stands where a boolean must.
    fn boolean(&mut self, part: &IdedExpr, known: Known) -> Known {
        if known.is_nothing() || matches!(known.kind, Kind::Bool | Kind::Any) {
            return known;
        }
        let (part, kind) = (show(part), known.kind.name());
        self.fails(format!("{part} is {kind}; here it must be a boolean"))
    }

    fn index(&mut self, parts: &[&IdedExpr], kinds: [Kind; 2]) -> Known {
        let of = parts[0];
        let (kind, wanted) = match kinds {
            [Kind::Any, _] => return Known::some(Kind::Any),
            [Kind::List(element), Kind::Number | Kind::Any] => (element.copied(), ""),
            [Kind::Map(value), Kind::Text | Kind::Any] => (value.copied(), ""),
            [Kind::Object(object), Kind::Text | Kind::Any] => match literal_text(parts[1]) {
                Some(name) => match self.field(of, object, name) {
                    Some(kind) => (Some(kind), ""),
                    None => return Known::NOTHING,
                },
                None => (None, ""),
            },
            [Kind::List(_), _] => (None, "a list, and its index must be a number"),
            [Kind::Map(_) | Kind::Object(_), _] => (None, "a map, and its keys are texts"),
            [Kind::Null | Kind::Bool | Kind::Number | Kind::Text, _] => {
                (None, "neither list nor map, and has no elements")
            }
        };
        if wanted.is_empty() {
            return Known::some(kind.unwrap_or(Kind::Any));
        }
        let (of, key) = (show(of), show(parts[1]));
        self.fails(format!("{of}[{key}]: {of} is {wanted}"))
    }

    fn function(
        &mut self,
        whole: &IdedExpr,
        name: &str,
        parts: &[&IdedExpr],
        of: Kind,
        rest: &[Known],
    ) -> Known {
        let kind = match name {
            operators::ADD => match (of, rest.first().map(|r| r.kind)) {
                (Kind::Number, Some(Kind::Number)) => Kind::Number,
                (Kind::Text, Some(Kind::Text)) => Kind::Text,
                (Kind::List(_), Some(Kind::List(_))) => Kind::Any.listed(),
                _ => Kind::Any,
            },
            "contains" | "endsWith" | "matches" | "startsWith" => {
                for (kind, part) in [(of, 0), (rest.first().map_or(Kind::Any, |r| r.kind), 1)] {
                    if !matches!(kind, Kind::Text | Kind::Any) {
                        return self.no_text(whole, name, parts, part, kind);
                    }
                }
                Kind::Bool
            }
            "charAt" | "lowerAscii" | "replace" | "reverse" | "substring" | "trim"
            | "upperAscii" | "indexOf" | "lastIndexOf" | "split"
                if !matches!(of, Kind::Text | Kind::Any) =>
            {
                return self.no_text(whole, name, parts, 0, of);
            }
            "charAt" | "join" | "lowerAscii" | "replace" | "reverse" | "string" | "substring"
            | "trim" | "upperAscii" => Kind::Text,
            "double" | "indexOf" | "int" | "lastIndexOf" | "size" => Kind::Number,
            "split" => Kind::Text.listed(),
            _ => Kind::Any,
        };
        Known::some(kind)
    }

    fn no_text(
        &mut self,
        whole: &IdedExpr,
        name: &str,
        parts: &[&IdedExpr],
        wrong: usize,
        kind: Kind,
    ) -> Known {
        let (text, part, kind_name) = (show(whole), show(parts[wrong]), kind.name());
        let right = match (name, kind, parts) {
            ("contains", Kind::List(_), [list, needle]) => {
                format!(": write {} in {}", show(needle), show(list))
            }
            (_, Kind::List(_), [list, needle]) if wrong == 0 => {
                format!(
                    ": write {}.exists(e, e.{name}({}))",
                    show(list),
                    show(needle)
                )
            }
            _ => String::new(),
        };
        self.fails(format!(
            "{text}: {name} is for texts, and {part} is {kind_name}{right}"
        ))
    }
}

fn of_literal(literal: &LiteralValue) -> Known {
    match literal {
        LiteralValue::Boolean(value) if *value.inner() => Known::TRUE,
        LiteralValue::Boolean(_) => Known::FALSE,
        LiteralValue::Double(_) | LiteralValue::Int(_) | LiteralValue::UInt(_) => {
            Known::some(Kind::Number)
        }
        LiteralValue::String(_) => Known::some(Kind::Text),
        LiteralValue::Null => Known::some(Kind::Null),
        LiteralValue::Bytes(_) => Known::some(Kind::Any),
    }
}
