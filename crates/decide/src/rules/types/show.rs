//! A part of an expression as a person would write it.

use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};

/// Characters at most.
const LONGEST: usize = 120;

/// The sub-expression, cut; macros are shown by what they run over.
pub(super) fn show(expression: &IdedExpr) -> String {
    let text = whole(expression);
    if text.chars().count() <= LONGEST {
        return text;
    }
    text.chars().take(LONGEST).chain("…".chars()).collect()
}

/// Recursion as deep as the tree, which the fence's walk has bounded.
fn whole(expression: &IdedExpr) -> String {
    match &expression.expr {
        Expr::Ident(name) => name.clone(),
        Expr::Literal(literal) => shown(literal),
        Expr::Select(select) if select.test => {
            format!("has({}.{})", whole(&select.operand), select.field)
        }
        Expr::Select(select) => format!("{}.{}", whole(&select.operand), select.field),
        Expr::List(list) => format!("[{}]", joined(&list.elements)),
        Expr::Map(map) => {
            let entries = map.entries.iter().map(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    format!("{}: {}", whole(&entry.key), whole(&entry.value))
                }
                EntryExpr::StructField(field) => format!("{}: …", field.field),
            });
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        Expr::Call(call) => called(call),
        Expr::Comprehension(macro_) => format!("{}.…(…)", whole(&macro_.iter_range)),
        Expr::Struct(_) | Expr::Unspecified => "…".to_owned(),
    }
}

fn joined(parts: &[IdedExpr]) -> String {
    parts.iter().map(whole).collect::<Vec<_>>().join(", ")
}

fn called(call: &CallExpr) -> String {
    let name = call.func_name.as_str();
    match (name, call.args.as_slice()) {
        (operators::INDEX, [of, key]) => format!("{}[{}]", whole(of), whole(key)),
        (operators::LOGICAL_NOT, [of]) => format!("!{}", operand(of)),
        (operators::NEGATE, [of]) => format!("-{}", operand(of)),
        (operators::CONDITIONAL, [test, yes, no]) => {
            format!("{} ? {} : {}", operand(test), operand(yes), operand(no))
        }
        (_, [left, right]) if symbol(name).is_some() => {
            let symbol = symbol(name).unwrap_or_default();
            format!("{} {symbol} {}", operand(left), operand(right))
        }
        (_, arguments) => match &call.target {
            Some(target) => format!("{}.{name}({})", operand(target), joined(arguments)),
            None => format!("{name}({})", joined(arguments)),
        },
    }
}

/// In parentheses if it is an operation itself.
fn operand(expression: &IdedExpr) -> String {
    let text = whole(expression);
    match &expression.expr {
        Expr::Call(call)
            if symbol(&call.func_name).is_some() || call.func_name == operators::CONDITIONAL =>
        {
            format!("({text})")
        }
        Expr::Call(_)
        | Expr::Comprehension(_)
        | Expr::Ident(_)
        | Expr::List(_)
        | Expr::Literal(_)
        | Expr::Map(_)
        | Expr::Select(_)
        | Expr::Struct(_)
        | Expr::Unspecified => text,
    }
}

/// `_==_` is `==`.
fn symbol(function: &str) -> Option<&str> {
    if function == operators::IN {
        return Some("in");
    }
    let symbol = function.strip_prefix('_')?.strip_suffix('_')?;
    (!symbol.contains(['[', '?'])).then_some(symbol)
}

fn shown(literal: &LiteralValue) -> String {
    match literal {
        LiteralValue::Boolean(value) => value.inner().to_string(),
        LiteralValue::Bytes(_) => "b\"…\"".to_owned(),
        LiteralValue::Double(value) => format!("{:?}", value.inner()),
        LiteralValue::Int(value) => value.inner().to_string(),
        LiteralValue::Null => "null".to_owned(),
        LiteralValue::String(value) => format!("{:?}", value.inner()),
        LiteralValue::UInt(value) => format!("{}u", value.inner()),
    }
}
