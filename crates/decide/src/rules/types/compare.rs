//! Comparisons: which kinds are never equal, have no order or are never in a list, and what to write
//! instead.

use cel::common::ast::{Expr, IdedExpr};
use health_event::{ProcessingStrategy, RecommendedAction};

use super::super::Root;
use super::super::fence::literal_text;
use super::shape::Kind;
use super::show::show;
use super::{Known, Look};

impl Look<'_> {
    pub(super) fn equals(
        &mut self,
        whole: &IdedExpr,
        parts: &[&IdedExpr],
        kinds: [Kind; 2],
        asked: bool,
    ) -> Known {
        let [a, b] = kinds;
        let with_null = a == Kind::Null || b == Kind::Null;
        // `!= null` before a use is a habit, and no mistake where it is always true.
        let both_null = self.root == Root::Event
            && parts
                .iter()
                .zip(kinds)
                .all(|(part, kind)| may_be_null(part, kind));
        if !self.never_equal(a, b) || both_null || (with_null && !asked) {
            return Known::verdict(true, true);
        }
        let (text, verdict) = (show(whole), if asked { "never" } else { "always" });
        let right = if with_null {
            let other = if a == Kind::Null { parts[1] } else { parts[0] };
            self.instead_of_null(other)
        } else {
            instead(parts, kinds)
        };
        let (a, b) = (a.name(), b.name());
        self.mistake(format!(
            "{text} compares {a} with {b}, which is {verdict} true: {right}"
        ));
        if asked { Known::FALSE } else { Known::TRUE }
    }

    fn never_equal(&self, a: Kind, b: Kind) -> bool {
        match (a, b) {
            (Kind::Any, _)
            | (_, Kind::Any)
            | (Kind::Map(_), Kind::Object(_))
            | (Kind::Object(_), Kind::Map(_) | Kind::Object(_)) => false,
            (Kind::List(a), Kind::List(b)) => match (a, b) {
                (Some(a), Some(b)) => self.never_equal(*a, *b),
                (None, Some(full)) | (Some(full), None) => *full != Kind::Any,
                (None, None) => false,
            },
            // An empty map of the event is null; labels of a node are an empty map.
            (Kind::Map(a), Kind::Map(b)) => {
                self.root == Root::Event && (a.is_none() != b.is_none())
            }
            (Kind::Null, Kind::List(_) | Kind::Map(_) | Kind::Object(_))
            | (Kind::List(_) | Kind::Map(_) | Kind::Object(_), Kind::Null) => {
                self.root != Root::Event
            }
            (a, b) => std::mem::discriminant(&a) != std::mem::discriminant(&b),
        }
    }

    fn instead_of_null(&self, other: &IdedExpr) -> String {
        let other_text = show(other);
        match (&other.expr, self.root) {
            (Expr::Select(_), Root::Node) => {
                format!("what a node does not have is absent, not null: write !has({other_text})")
            }
            (_, Root::Node) => "what a node does not have is absent, not null".to_owned(),
            (_, Root::Incoming) => {
                "of an event that comes in nothing is null: an empty text is '', an empty list has \
                 size 0, and a key of metadata that is not there is asked for with has()"
                    .to_owned()
            }
            (_, Root::Event) => {
                "of an event only lists, maps and overrides may be null; an empty text is ''"
                    .to_owned()
            }
        }
    }

    pub(super) fn is_in(
        &mut self,
        whole: &IdedExpr,
        parts: &[&IdedExpr],
        kinds: [Kind; 2],
    ) -> Known {
        let [needle, container] = kinds;
        let text = show(whole);
        match container {
            Kind::List(Some(element)) if self.never_equal(needle, *element) => {
                let right = match element {
                    Kind::Object(object) => {
                        let field = object.fields.first().map_or("", |(field, _)| *field);
                        format!("write {}.exists(e, e.{field} == …)", show(parts[1]))
                    }
                    Kind::Any
                    | Kind::Null
                    | Kind::Bool
                    | Kind::Number
                    | Kind::Text
                    | Kind::List(_)
                    | Kind::Map(_) => instead(parts, [needle, *element]),
                };
                let (needle, element) = (needle.name(), element.name());
                self.mistake(format!(
                    "{text} looks for {needle}, and each element is {element}, so it is never \
                     true: {right}"
                ));
                Known::FALSE
            }
            Kind::Map(_) | Kind::Object(_) if !matches!(needle, Kind::Text | Kind::Any) => {
                let needle = needle.name();
                self.mistake(format!(
                    "{text} looks for {needle}, and the keys are texts, so it is never true"
                ));
                Known::FALSE
            }
            Kind::Object(object) => match literal_text(parts[0]) {
                Some(name) if self.field(parts[1], object, name).is_none() => Known::FALSE,
                _ => Known::verdict(true, true),
            },
            Kind::Any | Kind::List(_) | Kind::Map(_) => Known::verdict(true, true),
            Kind::Text => {
                let (needle, of) = (show(parts[0]), show(parts[1]));
                self.fails(format!(
                    "{text} asks for an element of a text: write {of}.contains({needle})"
                ))
            }
            Kind::Null | Kind::Bool | Kind::Number => {
                let kind = container.name();
                self.fails(format!("{text} asks for an element of {kind}"))
            }
        }
    }

    pub(super) fn order(
        &mut self,
        whole: &IdedExpr,
        parts: &[&IdedExpr],
        kinds: [Kind; 2],
    ) -> Known {
        let [a, b] = kinds;
        let has_order =
            |kind: Kind| matches!(kind, Kind::Any | Kind::Bool | Kind::Number | Kind::Text);
        if has_order(a) && has_order(b) && !self.never_equal(a, b) {
            return Known::verdict(true, true);
        }
        let (text, right) = (show(whole), instead(parts, kinds));
        let (a, b) = (a.name(), b.name());
        self.fails(format!(
            "{text} puts {a} and {b} in order, which fails: {right}"
        ))
    }
}

/// Lists, maps and objects of an event are null when they are empty.
fn may_be_null(part: &IdedExpr, kind: Kind) -> bool {
    let is_built = matches!(part.expr, Expr::List(_) | Expr::Map(_));
    !is_built && matches!(kind, Kind::List(_) | Kind::Map(_) | Kind::Object(_))
}

/// What to write instead of comparing two parts of these kinds: the literal gives way.
fn instead(parts: &[&IdedExpr], [a, b]: [Kind; 2]) -> String {
    let literal = |part: &IdedExpr| match &part.expr {
        Expr::Literal(literal) => Some(literal.clone()),
        Expr::Call(_)
        | Expr::Comprehension(_)
        | Expr::Ident(_)
        | Expr::List(_)
        | Expr::Map(_)
        | Expr::Select(_)
        | Expr::Struct(_)
        | Expr::Unspecified => None,
    };
    let (part, other, is, wanted) = if literal(parts[0]).is_some() {
        (parts[0], parts[1], a, b)
    } else {
        (parts[1], parts[0], b, a)
    };
    let (given, other_text) = (show(part), show(other));
    match (wanted, is) {
        (Kind::Bool, Kind::Text) if matches!(literal_text(part), Some("true" | "false")) => {
            format!("write {}", given.trim_matches('"'))
        }
        (Kind::Bool, _) => "write true or false".to_owned(),
        (Kind::Text, Kind::Number | Kind::Bool) if other_text.contains("capacity") => {
            format!("quantities are texts: write '{given}', or int({other_text})")
        }
        (Kind::Text, Kind::Number | Kind::Bool) if literal(part).is_some() => {
            format!("write '{given}'")
        }
        (Kind::Number, Kind::Text) => match literal_text(part).and_then(number_of) {
            Some(number) => format!("write {number}"),
            None => "write a number".to_owned(),
        },
        (Kind::List(Some(Kind::Text)), Kind::Text) => format!("write {given} in {other_text}"),
        (Kind::List(Some(Kind::Text)), Kind::Number) => format!("write '{given}' in {other_text}"),
        (Kind::List(_) | Kind::Map(_), Kind::List(_) | Kind::Map(_)) => {
            "an empty one is null or absent".to_owned()
        }
        (wanted, _) => format!("{other_text} is {}", wanted.name()),
    }
}

/// The number of an enum's name, or that a text spells.
fn number_of(text: &str) -> Option<i32> {
    use ProcessingStrategy::{ExecuteRemediation, StoreAndAnalyse, StoreOnly};
    let strategies = [ExecuteRemediation, StoreAndAnalyse, StoreOnly];
    let strategy = || {
        let found = strategies.into_iter().find(|s| s.name() == text);
        found.map(ProcessingStrategy::number)
    };
    RecommendedAction::from_name(text)
        .map(RecommendedAction::number)
        .or_else(strategy)
        .or_else(|| text.parse().ok())
}
