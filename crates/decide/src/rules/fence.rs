//! What a CEL expression may be: checked on its syntax tree before it is ever evaluated.
//!
//! The engine has no limits of its own. The walk uses a stack of its own, so no tree can exhaust
//! the thread's; parsing, which recurses, happens on a thread with a stack of [`PARSER_STACK`].

use std::collections::BTreeSet;
use std::sync::Arc;

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::{Env, Program};

use super::{Root, cost, types};

/// Longest source, in bytes.
pub(super) const SOURCE_LIMIT: usize = 4 * 1024;
/// Deepest tree.
const DEPTH_LIMIT: usize = 64;
/// Most nodes of a tree, macros expanded.
const NODE_LIMIT: usize = 1000;
/// Macros within macros: each multiplies the work by the length of its list.
const MACRO_LIMIT: usize = 2;
/// Stack of the parsing thread, in bytes. The parser refuses more than 96 levels; unoptimised
/// it needs below 2 MiB for these (`tests::deep_sources_are_refused`).
const PARSER_STACK: usize = 16 * 1024 * 1024;

/// Functions beside the operators, of the standard library and the strings extension.
const FUNCTIONS: [&str; 20] = [
    "bool",
    "charAt",
    "contains",
    "double",
    "endsWith",
    "indexOf",
    "int",
    "join",
    "lastIndexOf",
    "lowerAscii",
    "matches",
    "replace",
    "reverse",
    "size",
    "split",
    "startsWith",
    "string",
    "substring",
    "trim",
    "upperAscii",
];

const OPERATORS: [&str; 18] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::SUBSTRACT,
    operators::ADD,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::GREATER_EQUALS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::LESS,
    operators::NEGATE,
    operators::INDEX,
    operators::IN,
];

/// A parsed expression and the paths of its event or node that it reads.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) program: Program,
    pub(super) paths: BTreeSet<Vec<String>>,
    /// What is odd about it, though it may match.
    pub(super) warnings: Vec<String>,
}

/// Parses and checks one expression.
pub(super) fn check(env: &Arc<Env>, root: Root, source: &str) -> Result<Checked, Vec<String>> {
    if source.len() > SOURCE_LIMIT {
        return Err(vec![format!(
            "{} bytes; at most {SOURCE_LIMIT} are allowed",
            source.len()
        )]);
    }
    if source.trim().is_empty() {
        return Err(vec!["the expression is empty".to_owned()]);
    }
    let env = Arc::clone(env);
    let source = source.to_owned();
    let parse = move || parse_and_walk(&env, root, &source);
    let thread = std::thread::Builder::new()
        .name("cel-parser".to_owned())
        .stack_size(PARSER_STACK)
        .spawn(parse)
        .map_err(|error| vec![format!("no thread to parse it on: {error}")])?;
    thread
        .join()
        .unwrap_or_else(|_| Err(vec!["the parser gave up on it".to_owned()]))
}

fn parse_and_walk(env: &Env, root: Root, source: &str) -> Result<Checked, Vec<String>> {
    let program = env
        .compile(source)
        .map_err(|errors| vec![format!("not valid CEL: {}", one_line(&errors.to_string()))])?;
    let mut walk = Walk::new(root);
    walk.run(program.expression());
    if !walk.faults.is_empty() {
        return Err(walk.faults.into_iter().collect());
    }
    let paths = walk.paths;
    let faults = cost::check(root, program.expression());
    if !faults.is_empty() {
        return Err(faults);
    }
    let found = types::check(root, program.expression());
    if !found.may_match && !found.mistakes.is_empty() {
        let never = |mistake| format!("can never match: {mistake}");
        return Err(found.mistakes.into_iter().map(never).collect());
    }
    Ok(Checked {
        program,
        paths,
        warnings: found.mistakes,
    })
}

fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(300).collect()
}

/// Where a node of the tree stands.
#[derive(Clone, Copy)]
struct Place {
    depth: usize,
    macros: usize,
    /// Index into [`Walk::scopes`].
    scope: usize,
}

/// Names that a macro binds.
struct Bindings {
    parent: Option<usize>,
    names: Vec<String>,
}

struct Walk<'e> {
    root: Root,
    scopes: Vec<Bindings>,
    open: Vec<(&'e IdedExpr, Place)>,
    nodes: usize,
    faults: BTreeSet<String>,
    paths: BTreeSet<Vec<String>>,
}

impl<'e> Walk<'e> {
    fn new(root: Root) -> Self {
        Self {
            root,
            scopes: vec![Bindings {
                parent: None,
                names: Vec::new(),
            }],
            open: Vec::new(),
            nodes: 0,
            faults: BTreeSet::new(),
            paths: BTreeSet::new(),
        }
    }

    fn run(&mut self, expression: &'e IdedExpr) {
        let place = Place {
            depth: 1,
            macros: 0,
            scope: 0,
        };
        self.open.push((expression, place));
        while let Some((expression, place)) = self.open.pop() {
            self.nodes += 1;
            if place.depth > DEPTH_LIMIT {
                self.refuse(format!("nested deeper than {DEPTH_LIMIT} levels"));
                return;
            }
            if self.nodes > NODE_LIMIT {
                self.refuse(format!("more than {NODE_LIMIT} nodes"));
                return;
            }
            self.visit(expression, place);
        }
    }

    fn refuse(&mut self, fault: String) {
        self.faults.insert(fault);
    }

    fn visit(&mut self, expression: &'e IdedExpr, place: Place) {
        match &expression.expr {
            Expr::Literal(_) => {}
            Expr::Unspecified => self.refuse("an unspecified expression".to_owned()),
            Expr::Struct(s) => {
                self.refuse(format!("builds a {:?}, which no rule needs", s.type_name));
            }
            Expr::Ident(name) => self.ident(name, place),
            Expr::Select(select) => {
                if !self.note_path(expression, place) {
                    self.descend(&select.operand, place);
                }
            }
            Expr::List(list) => {
                for element in &list.elements {
                    self.descend(element, place);
                }
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.descend(&entry.key, place);
                        self.descend(&entry.value, place);
                    }
                }
            }
            Expr::Call(call) => {
                if !is_allowed(&call.func_name) {
                    self.refuse(unknown_function(&call.func_name));
                }
                if self.note_path(expression, place) {
                    return;
                }
                for part in call.target.as_deref().into_iter().chain(&call.args) {
                    self.descend(part, place);
                }
            }
            Expr::Comprehension(c) => self.comprehension(c, place),
        }
    }

    fn comprehension(&mut self, c: &'e cel::common::ast::ComprehensionExpr, place: Place) {
        if place.macros + 1 > MACRO_LIMIT {
            self.refuse(format!("macros nested more than {MACRO_LIMIT} deep"));
        }
        self.descend(&c.iter_range, place);
        self.descend(&c.accu_init, place);
        let mut names = vec![c.iter_var.clone(), c.accu_var.clone()];
        names.extend(c.iter_var2.clone());
        self.scopes.push(Bindings {
            parent: Some(place.scope),
            names,
        });
        let inner = Place {
            macros: place.macros + 1,
            scope: self.scopes.len() - 1,
            ..place
        };
        for part in [&c.loop_cond, &c.loop_step, &c.result] {
            self.descend(part, inner);
        }
    }

    fn descend(&mut self, expression: &'e IdedExpr, place: Place) {
        let deeper = Place {
            depth: place.depth + 1,
            ..place
        };
        self.open.push((expression, deeper));
    }

    fn ident(&mut self, name: &str, place: Place) {
        if self.is_bound(name, place) {
            return;
        }
        let root = self.root.name();
        if name == root {
            self.paths.insert(Vec::new());
        } else {
            self.refuse(format!(
                "refers to {name:?}; this kind of rule sees only {root:?}"
            ));
        }
    }

    fn is_bound(&self, name: &str, place: Place) -> bool {
        let mut scope = Some(place.scope);
        while let Some(index) = scope {
            if self.scopes[index].names.iter().any(|n| n == name) {
                return true;
            }
            scope = self.scopes[index].parent;
        }
        false
    }

    /// Notes the path of a chain `node.a.b['c']` or `event.a['c']`, and of `'c' in node.a.b`. Answers whether the
    /// expression was such a chain, so that its parts need no look.
    fn note_path(&mut self, expression: &'e IdedExpr, place: Place) -> bool {
        if self.is_bound(self.root.name(), place) {
            return false;
        }
        if let Expr::Call(call) = &expression.expr
            && call.func_name == operators::IN
            && let [key, map] = call.args.as_slice()
            && let Some(key) = literal_text(key)
            && let Some(mut path) = chain(self.root, map)
        {
            path.push(key.to_owned());
            self.nodes += path.len();
            self.paths.insert(path);
            return true;
        }
        let Some(path) = chain(self.root, expression) else {
            return false;
        };
        self.nodes += path.len();
        self.paths.insert(path);
        true
    }
}

/// The path of a chain from `root`, root first; longer ones than the depth limit are none.
fn chain(root: Root, expression: &IdedExpr) -> Option<Vec<String>> {
    let mut path = Vec::new();
    let mut at = expression;
    for _ in 0..DEPTH_LIMIT {
        match &at.expr {
            Expr::Ident(name) if name == root.name() => {
                path.reverse();
                return Some(path);
            }
            Expr::Select(select) => {
                path.push(select.field.clone());
                at = &select.operand;
            }
            Expr::Call(call) if call.func_name == operators::INDEX => {
                let [map, key] = call.args.as_slice() else {
                    return None;
                };
                path.push(literal_text(key)?.to_owned());
                at = map;
            }
            Expr::Call(_)
            | Expr::Unspecified
            | Expr::Comprehension(_)
            | Expr::Ident(_)
            | Expr::List(_)
            | Expr::Literal(_)
            | Expr::Map(_)
            | Expr::Struct(_) => return None,
        }
    }
    None
}

pub(super) fn literal_text(expression: &IdedExpr) -> Option<&str> {
    match &expression.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        Expr::Literal(_)
        | Expr::Unspecified
        | Expr::Call(_)
        | Expr::Comprehension(_)
        | Expr::Ident(_)
        | Expr::List(_)
        | Expr::Map(_)
        | Expr::Select(_)
        | Expr::Struct(_) => None,
    }
}

fn is_allowed(function: &str) -> bool {
    OPERATORS.contains(&function)
        || FUNCTIONS.contains(&function)
        || function == operators::NOT_STRICTLY_FALSE
}

fn unknown_function(name: &str) -> String {
    if matches!(name, "duration" | "timestamp") || name.starts_with("get") {
        return format!("calls {name:?}: durations and timestamps are not available in rules");
    }
    format!(
        "calls {name:?}; allowed are the operators and {}",
        FUNCTIONS.join(", ")
    )
}
