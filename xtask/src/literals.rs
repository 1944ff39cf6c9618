//! What a source says to people: its string literals. The texts' tests of `crates/cli` read them
//! with this module too.

/// The string literals of a source, one a line; comments are left out.
pub(crate) fn of(source: &str) -> String {
    let lines = source.lines().map(str::trim_start);
    let code: Vec<&str> = lines.filter(|line| !line.starts_with("//")).collect();
    let code = code.join("\n").replace("'\"'", "").replace("\\\n", "");
    let (mut text, mut inside, mut escaped) = (String::new(), false, false);
    for c in code.chars() {
        match c {
            '"' if !escaped => {
                inside = !inside;
                text.push('\n');
            }
            c if inside => text.push(c),
            _ => {}
        }
        escaped = c == '\\' && !escaped;
    }
    text
}
