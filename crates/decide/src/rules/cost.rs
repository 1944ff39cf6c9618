//! The most that one evaluation of an expression can cost, known before it is ever evaluated.
//!
//! Depth, nodes and nesting don't bound the work: `['x'].map(a, a + a).map(b, b + b)…` doubles at
//! each step, and `replace` multiplies. So every value gets an upper bound of its size, from the
//! bounds of an event that is taken in (`wire::validate`) and of a node object, and each
//! operation a number of units, one unit being about a step of the engine or 32 copied bytes
//! (some 100 ns). What may cost more than [`COST_LIMIT`] is refused; as copies count, this bounds
//! memory too, at 64 MiB.
//!
//! # Assumptions
//! Lists and maps of a node have at most 1,024 entries of 4 KiB. On a larger node the rules cost
//! in proportion.

use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators,
};

use super::Root;

/// Most units of one evaluation, some 0.2 s. The costliest sensible rules, a macro over the 256
/// entities of an event inside another, take two thirds of it.
pub(super) const COST_LIMIT: u64 = 2_000_000;
/// Most bytes of a compiled regular expression. It is compiled at each evaluation, which at this
/// size takes some milliseconds.
const REGEX_LIMIT: usize = 256 * 1024;
/// Units of compiling a regular expression of the usual size.
const REGEX_COST: u64 = 1_000;
/// Bytes that are copied in one unit; allocations make it so few.
const COPIED_A_UNIT: u64 = 32;
/// Bytes that are compared in one unit.
const COMPARED_A_UNIT: u64 = 1_024;
/// Bytes that are searched in one unit.
const SEARCHED_A_UNIT: u64 = 64;

/// What a value is at most.
#[derive(Debug, Clone, Copy)]
struct Bound {
    /// Elements of a list or map; bytes of a text.
    count: u64,
    /// Bytes of one element.
    each: u64,
    /// Bytes of all.
    size: u64,
    /// Made by the expression, so that a copy copies its bytes; parts of event and node are only
    /// referred to.
    owned: bool,
}

impl Bound {
    const SCALAR: Self = Self::text(8);

    const fn text(bytes: u64) -> Self {
        Self {
            count: bytes,
            each: 4,
            size: bytes,
            owned: false,
        }
    }

    const fn list(count: u64, each: u64) -> Self {
        Self {
            count,
            each,
            size: count.saturating_mul(each),
            owned: false,
        }
    }

    /// An element, which may be a container itself.
    const fn element(self) -> Self {
        let each = if self.each < self.size {
            self.each
        } else {
            self.size
        };
        Self {
            count: each,
            each,
            size: each,
            owned: self.owned,
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            count: self.count.max(other.count),
            each: self.each.max(other.each),
            size: self.size.max(other.size),
            owned: self.owned | other.owned,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            count: self.count.saturating_add(other.count),
            each: self.each.max(other.each),
            size: self.size.saturating_add(other.size),
            owned: self.owned | other.owned,
        }
    }

    /// Units of building it.
    fn copy(self) -> u64 {
        self.size / COPIED_A_UNIT
    }
}

/// Faults of an expression that the walk of the fence has passed: it may cost too much, or its
/// regular expressions can't be known or are too large.
pub(super) fn check(root: Root, expression: &IdedExpr) -> Vec<String> {
    let mut estimate = Estimate {
        root,
        bound: Vec::new(),
        units: 0,
        faults: Vec::new(),
    };
    estimate.expression(expression);
    let units = estimate.units;
    let mut faults = estimate.faults;
    if units > COST_LIMIT {
        faults.push(format!(
            "may cost {units} units on the largest {}; at most {COST_LIMIT} are allowed. Macros \
             inside macros, long texts and what makes texts longer cost most",
            root.name()
        ));
    }
    faults
}

struct Estimate<'e> {
    root: Root,
    /// Names that the macros around bind, innermost last.
    bound: Vec<(&'e str, Bound)>,
    units: u64,
    faults: Vec<String>,
}

impl<'e> Estimate<'e> {
    fn spend(&mut self, units: u64) {
        self.units = self.units.saturating_add(units);
    }

    /// Recursion as deep as the tree, which the fence's walk has bounded.
    fn expression(&mut self, expression: &'e IdedExpr) -> Bound {
        self.spend(1);
        match &expression.expr {
            Expr::Literal(literal) => literal_bound(literal),
            Expr::Ident(name) => self.ident(name),
            Expr::Select(select) => {
                let operand = self.expression(&select.operand);
                self.member(&select.operand, operand, Some(&select.field))
            }
            Expr::List(list) => {
                let elements = list.elements.iter();
                let items: Vec<Bound> = elements.map(|e| self.expression(e)).collect();
                self.built(&items)
            }
            Expr::Map(map) => {
                let mut items = Vec::with_capacity(map.entries.len());
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        let key = self.expression(&entry.key);
                        items.push(key.plus(self.expression(&entry.value)));
                    }
                }
                self.built(&items)
            }
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            // Refused by the walk.
            Expr::Struct(_) | Expr::Unspecified => Bound::SCALAR,
        }
    }

    /// A list or map of values that were just built.
    fn built(&mut self, items: &[Bound]) -> Bound {
        let each = items.iter().map(|b| b.size).max().unwrap_or(0);
        let size = items
            .iter()
            .fold(0, |sum: u64, b| sum.saturating_add(b.size));
        let count = items.len() as u64;
        let bound = Bound {
            count,
            each,
            size: size.saturating_add(16 * count),
            owned: true,
        };
        self.spend(count.saturating_add(bound.copy()));
        bound
    }

    fn ident(&self, name: &str) -> Bound {
        let bound = self.bound.iter().rev().find(|(n, _)| *n == name);
        match (bound, self.root) {
            (Some((_, bound)), _) => *bound,
            (None, Root::Event | Root::Incoming) => Bound::list(18, 256 * 4_352),
            (None, Root::Node) => NODE_PART,
        }
    }

    /// A field of a value, or an element at an index.
    fn member(&mut self, operand: &IdedExpr, of: Bound, name: Option<&str>) -> Bound {
        let is_root = matches!(&operand.expr, Expr::Ident(root) if root == self.root.name())
            && !self.bound.iter().any(|(n, _)| *n == self.root.name());
        match (is_root, self.root) {
            (true, Root::Event | Root::Incoming) => {
                let field = event_field(name);
                // Fields of an event are built when they are read; an entry takes an allocation.
                let entries = if field.count == field.size {
                    0
                } else {
                    field.count
                };
                self.spend(entries.saturating_mul(4));
                field
            }
            (true, Root::Node) => NODE_PART,
            // Parts of a node are read in place; how deep they are is not known.
            (false, Root::Node) if of.size >= NODE_PART.size => NODE_PART,
            (false, Root::Event | Root::Incoming | Root::Node) => of.element(),
        }
    }

    fn comprehension(&mut self, c: &'e ComprehensionExpr) -> Bound {
        let range = self.expression(&c.iter_range);
        let start = self.expression(&c.accu_init);
        let before = self.units;
        self.bound.push((&c.iter_var, range.element()));
        let second = c.iter_var2.as_deref();
        self.bound
            .extend(second.map(|name| (name, range.element())));
        self.bound.push((&c.accu_var, start));
        self.expression(&c.loop_cond);
        let step = self.expression(&c.loop_step);
        let turn = self.units - before;
        // Each turn copies the element; all of them together are the range.
        let copies = if range.owned { range.copy() } else { 0 };
        self.units = before
            .saturating_add(range.count.saturating_mul(turn.saturating_add(1)))
            .saturating_add(copies);
        // A macro's step adds the same to what was there before at every turn.
        let end = Bound {
            count: grown(start.count, step.count, range.count),
            each: start.each.max(step.each),
            size: grown(start.size, step.size, range.count),
            owned: true,
        };
        if let Some((_, accumulator)) = self.bound.last_mut() {
            *accumulator = end;
        }
        let result = self.expression(&c.result);
        let names = 2 + usize::from(second.is_some());
        self.bound.truncate(self.bound.len() - names);
        result
    }

    fn call(&mut self, call: &'e CallExpr) -> Bound {
        let parts: Vec<&IdedExpr> = call
            .target
            .as_deref()
            .into_iter()
            .chain(&call.args)
            .collect();
        let bounds: Vec<Bound> = parts.iter().map(|p| self.expression(p)).collect();
        let of = |index: usize| bounds.get(index).copied().unwrap_or(Bound::SCALAR);
        let (first, second, third) = (of(0), of(1), of(2));
        match call.func_name.as_str() {
            operators::INDEX => {
                let name = parts.get(1).and_then(|p| super::fence::literal_text(p));
                let operand = parts.first().copied().map(|p| self.member(p, first, name));
                operand.unwrap_or(first)
            }
            operators::CONDITIONAL => second.or(third),
            operators::ADD => self.made(first.plus(second)),
            operators::IN => {
                let each = second.element().size.min(first.size) / COMPARED_A_UNIT;
                self.spend(second.count.saturating_mul(1 + each));
                Bound::SCALAR
            }
            function => self.function(function, &parts, [first, second, third]),
        }
    }

    /// A function; the bounds are those of its parts, the receiver first.
    fn function(
        &mut self,
        name: &str,
        parts: &[&'e IdedExpr],
        [first, second, third]: [Bound; 3],
    ) -> Bound {
        match name {
            "replace" => {
                // An empty `from` stands before every character and at the end.
                let from = parts.get(1).and_then(|p| super::fence::literal_text(p));
                let least = from.map_or(0, str::len).max(1) as u64;
                let times = (first.size / least).saturating_add(1);
                let size = first.size.saturating_add(times.saturating_mul(third.size));
                self.made(Bound::text(size))
            }
            "join" => {
                let separator = if parts.len() > 1 { second.size } else { 0 };
                let parted = first.count.saturating_mul(separator);
                self.made(Bound::text(first.size.saturating_add(parted)))
            }
            "split" => {
                let made = Bound {
                    count: first.size.saturating_add(1),
                    each: first.size,
                    size: first.size.saturating_mul(2),
                    owned: true,
                };
                self.spend(made.count);
                self.made(made)
            }
            "string" | "trim" | "lowerAscii" | "upperAscii" | "reverse" | "substring" => {
                self.made(Bound::text(first.size.max(32)))
            }
            "charAt" => {
                self.spend(first.copy());
                Bound::text(4)
            }
            "indexOf" | "lastIndexOf" => {
                // The engine compares at every place.
                let work = first.size.saturating_mul(second.size / 16 + 1) / 4;
                self.spend(work);
                Bound::SCALAR
            }
            "matches" => {
                self.regex(parts.last().copied(), first);
                Bound::SCALAR
            }
            _ => {
                // Comparisons and tests look at most at the whole of the shorter one.
                self.spend(first.size.min(second.size.max(8)) / COMPARED_A_UNIT);
                if matches!(name, "contains" | "size") {
                    self.spend(first.size / SEARCHED_A_UNIT);
                }
                Bound::SCALAR
            }
        }
    }

    /// A value that is copied into being.
    fn made(&mut self, bound: Bound) -> Bound {
        self.spend(bound.copy());
        Bound {
            owned: true,
            ..bound
        }
    }

    fn regex(&mut self, pattern: Option<&IdedExpr>, text: Bound) {
        let Some(pattern) = pattern.and_then(super::fence::literal_text) else {
            let fault = "matches() with a pattern that is no literal text, so that its size can't \
                         be known";
            self.faults.push(fault.to_owned());
            return;
        };
        let built = regex::RegexBuilder::new(pattern)
            .size_limit(REGEX_LIMIT)
            .build();
        if let Err(error) = built {
            let error = error
                .to_string()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ");
            let error: String = error.chars().take(200).collect();
            self.faults
                .push(format!("matches() with a bad pattern: {error}"));
        }
        let length = pattern.len() as u64;
        self.spend(REGEX_COST.saturating_add(text.size.saturating_mul(length / 8 + 1) / 16));
    }
}

/// Any part of a node, as the assumptions of this module say.
const NODE_PART: Bound = Bound::list(1_024, 4 * 1_024);

/// Bounds of `wire::validate`; a computed or unknown name may be any.
fn event_field(name: Option<&str>) -> Bound {
    match name {
        Some("message") => Bound::text(16 * 1024),
        Some("errorCode") => Bound::list(64, 256),
        Some("version" | "isFatal" | "isHealthy" | "recommendedAction" | "processingStrategy") => {
            Bound::SCALAR
        }
        Some("quarantineOverrides" | "drainOverrides" | "generatedTimestamp") => Bound::list(2, 24),
        Some(
            "agent"
            | "componentClass"
            | "checkName"
            | "nodeName"
            | "id"
            | "customRecommendedAction",
        ) => Bound::text(256),
        // `entitiesImpacted`, `metadata`: 256 pairs of a name and a value of 4 KiB.
        Some(_) | None => Bound::list(256, 4_352),
    }
}

fn literal_bound(literal: &LiteralValue) -> Bound {
    match literal {
        LiteralValue::String(text) => Bound::text(text.inner().len() as u64),
        LiteralValue::Bytes(bytes) => Bound::text(bytes.inner().len() as u64),
        LiteralValue::Boolean(_)
        | LiteralValue::Double(_)
        | LiteralValue::Int(_)
        | LiteralValue::Null
        | LiteralValue::UInt(_) => Bound::SCALAR,
    }
}

fn grown(start: u64, step: u64, turns: u64) -> u64 {
    let more = step.saturating_sub(start).saturating_mul(turns);
    start.saturating_add(more)
}
