//! Flame graphs as HTML elements. A caller is above its callees, and widths are proportional to
//! time.

use std::collections::BTreeMap;
use std::fmt::Write;

use towpath_chart::escaped;

use super::data::Flame;

/// Fraction of all samples below which a function is merged into its caller.
const PART_MIN: f64 = 0.002;
/// Height of a row on the page in em.
const ROW_EM: f64 = 1.3;

/// A function with its samples, including those of its callees.
#[derive(Default)]
struct Frame {
    samples: u64,
    below: BTreeMap<String, Frame>,
}

impl Frame {
    fn of(stacks: &BTreeMap<String, u64>) -> Self {
        let mut all = Self::default();
        for (stack, samples) in stacks {
            let mut at = &mut all;
            at.samples += samples;
            for name in stack.split(';') {
                at = at.below.entry(name.to_owned()).or_default();
                at.samples += samples;
            }
        }
        all
    }

    /// Merges functions with fewer than `min` samples into their callers.
    fn cut(&mut self, min: u64) {
        self.below.retain(|_, frame| frame.samples >= min);
        self.below.values_mut().for_each(|frame| frame.cut(min));
    }

    fn depth(&self) -> usize {
        self.below.values().map(|frame| 1 + frame.depth()).max().unwrap_or(0)
    }

    /// Adds the frame and its callees as folded stacks.
    fn fold(&self, name: &str, stacks: &mut BTreeMap<String, u64>) {
        let own = self.samples - self.below.values().map(|frame| frame.samples).sum::<u64>();
        if own > 0 && !name.is_empty() {
            stacks.insert(name.to_owned(), own);
        }
        for (below, frame) in &self.below {
            let name = if name.is_empty() { below.clone() } else { format!("{name};{below}") };
            frame.fold(&name, stacks);
        }
    }
}

/// Returns the stacks without functions that are too small to be visible.
pub fn pruned(stacks: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut all = Frame::of(stacks);
    all.cut((all.samples as f64 * PART_MIN).ceil() as u64);
    let mut pruned = BTreeMap::new();
    all.fold("", &mut pruned);
    pruned
}

/// Renders the graphs of a case, one per side; empty without profiles.
pub fn of(flames: &[&Flame]) -> String {
    if flames.is_empty() {
        return String::new();
    }
    let mut text = "<details><summary>Where the time is</summary>".to_owned();
    for flame in flames {
        let all = Frame::of(&flame.stacks);
        let title = format!("{}: {} samples of {} a second", flame.side, all.samples, flame.hz);
        let height = ROW_EM * (all.depth() + 1) as f64;
        let _ = write!(text, "<h4>{}</h4><div class=\"flame\">", escaped(&title));
        let _ = write!(text, "<div class=\"all\" style=\"height:{height:.1}em\">");
        let whole = Place { left: 0., row: 0, all: all.samples as f64 };
        draw(&mut text, "all", &all, whole);
        text += "</div></div>";
    }
    text + "</details>"
}

#[derive(Clone, Copy)]
struct Place {
    /// Position of the left edge, in samples.
    left: f64,
    row: usize,
    /// Total width, in samples.
    all: f64,
}

fn draw(text: &mut String, name: &str, frame: &Frame, at: Place) {
    let percent = |samples: f64| 100. * samples / at.all.max(1.);
    let (left, width) = (percent(at.left), percent(frame.samples as f64));
    let (top, class, name_escaped) = (ROW_EM * at.row as f64, class(name, at.row), escaped(name));
    let _ = write!(
        text,
        "<i class=\"{class}\" style=\"left:{left:.3}%;width:{width:.3}%;top:{top:.1}em\" \
         title=\"{name_escaped}: {width:.1} %\">{name_escaped}</i>"
    );
    let mut left = at.left;
    for (name, frame) in &frame.below {
        draw(text, name, frame, Place { left, row: at.row + 1, ..at });
        left += frame.samples as f64;
    }
}

/// Returns the CSS class of a function's colour.
fn class(name: &str, row: usize) -> &'static str {
    match name {
        _ if row < 2 => "role",
        _ if name.ends_with("_[k]") || name == "[kernel]" => "linux",
        _ if name.contains("towpath") || name.contains("preload") => "ours",
        _ => "other",
    }
}

/// CSS rules for the page.
pub const STYLE: &str = "\
.flame{overflow:hidden;margin:.2rem 0 1rem}\
.flame .all{position:relative;min-width:100%;font-size:11px}\
.flame i{position:absolute;height:1.2em;overflow:hidden;white-space:nowrap;cursor:pointer;\
box-sizing:border-box;\
font:normal 11px/1.3 system-ui,sans-serif;padding-left:2px;\
border-right:1px solid var(--back);color:#111}\
.flame .role{background:#d8d4c8}.flame .linux{background:#b4bac6}\
.flame .ours{background:#86b4f0}.flame .other{background:#c5d6a5}";

/// Script that zooms to the clicked function; a click on the top row shows the whole graph again.
pub const SCRIPT: &str = "\
document.querySelectorAll('.flame').forEach(f=>f.addEventListener('click',e=>{\
const i=e.target;if(i.tagName!=='I')return;const a=f.firstElementChild;\
const l=parseFloat(i.style.left),w=parseFloat(i.style.width);\
a.style.width=100*100/w+'%';a.style.marginLeft=-100*l/w+'%'}));";

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks(all: &[(&str, u64)]) -> BTreeMap<String, u64> {
        all.iter().map(|&(stack, samples)| (stack.to_owned(), samples)).collect()
    }

    #[test]
    fn what_is_too_small_is_left_to_who_called_it() {
        let pruned = pruned(&stacks(&[("a;b", 999), ("a;c;d", 1), ("a;c;e", 2), ("z", 1)]));
        assert_eq!(pruned, stacks(&[("a;b", 999), ("a;c", 3)].map(|it| it)));
    }

    #[test]
    fn a_graph_has_all_frames_side_by_side() {
        let flame = Flame {
            case: "x".into(),
            side: "a & b".into(),
            hz: 499,
            stacks: stacks(&[("program;m<T>;w_[k]", 3), ("client", 1)]),
        };
        let text = of(&[&flame]);
        assert!(text.contains("a &amp; b: 4 samples of 499 a second"), "{text}");
        assert!(text.contains("left:25.000%;width:75.000%;top:2.6em\" title=\"m&lt;T&gt;: 75.0 %"));
        assert!(text.contains("class=\"linux\""));
        // Elements: the whole graph, client, program, m and w.
        assert_eq!(text.matches("<i ").count(), 5);
        assert_eq!(of(&[]), "");
    }
}
