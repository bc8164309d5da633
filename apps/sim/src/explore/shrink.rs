//! A shrinker: takes away parts of a world as long as the same rule is broken without them.

use super::scene::{Keys, RandomWorld};
use super::{ExtraRules, RuleFault, check_text};

/// A small world, and the rule that it breaks.
#[derive(Debug, Clone)]
pub struct Shrunk {
    /// World.
    pub scene: RandomWorld,
    /// Fault in that world.
    pub fault: RuleFault,
    /// Worlds that were tried.
    pub tried: usize,
}

/// Makes a world that breaks a rule smaller, with at most `tries_max` runs.
///
/// A smaller world counts when it breaks the same rule. Flows go first, since each of them takes
/// hosts and links with it.
pub fn shrink(
    scene: &RandomWorld,
    fault: &RuleFault,
    rules: ExtraRules,
    tries_max: usize,
) -> Shrunk {
    let mut best = Shrunk { scene: scene.clone(), fault: fault.clone(), tried: 0 };
    loop {
        let mut is_smaller = false;
        let mut at = 0;
        // Candidates are made anew after each success: their places have moved.
        while let Some(smaller) = candidates(&best.scene).into_iter().nth(at) {
            if best.tried >= tries_max {
                return best;
            }
            best.tried += 1;
            match check_text(&smaller.to_toml(), rules) {
                Err(fault) if fault.rule == best.fault.rule => {
                    (best.scene, best.fault) = (smaller, fault);
                    is_smaller = true;
                }
                _ => at += 1,
            }
        }
        if !is_smaller {
            return best;
        }
    }
}

/// Worlds with one part less, those with the largest parts gone first.
fn candidates(scene: &RandomWorld) -> Vec<RandomWorld> {
    let flows = (0..scene.flows.len()).filter(|_| scene.flows.len() > 1).map(|at| {
        let mut scene = scene.clone();
        scene.flows.remove(at);
        scene
    });
    let hosts = scene.hosts.iter().filter_map(|host| without_host(scene, &host.name));
    let switches = scene.switches.iter().filter_map(|name| without_switch(scene, name));
    let sizes = (0..scene.flows.len()).flat_map(move |at| {
        (0..scene.flows[at].sizes.len()).filter_map(move |size| half(scene, at, size))
    });
    flows.chain(hosts).chain(switches).chain(keys_gone(scene)).chain(sizes).collect()
}

/// The world without a host that no flow needs.
fn without_host(scene: &RandomWorld, name: &str) -> Option<RandomWorld> {
    let is_used = scene.flows.iter().any(|flow| flow.ends.iter().any(|end| end == name));
    if is_used || scene.hosts.len() <= 2 {
        return None;
    }
    let mut scene = scene.clone();
    scene.hosts.retain(|host| host.name != name);
    scene.links.retain(|link| !link.ends.iter().any(|end| end == name));
    Some(scene)
}

/// The world without a switch that is a leaf, or has two links that become one.
fn without_switch(scene: &RandomWorld, name: &str) -> Option<RandomWorld> {
    let is_at = |ends: &[String; 2]| ends.iter().any(|end| end == name);
    let own: Vec<usize> =
        (0..scene.links.len()).filter(|at| is_at(&scene.links[*at].ends)).collect();
    let mut scene = scene.clone();
    match own[..] {
        [] => {}
        [leaf] => drop(scene.links.remove(leaf)),
        [first, second] => {
            let gone = scene.links.remove(second);
            let far = gone.ends.into_iter().find(|end| end != name)?;
            let kept = &mut scene.links[first];
            *kept.ends.iter_mut().find(|end| *end == name)? = far;
            // The impairments of both links, where they do not contradict each other.
            for (key, value) in gone.keys {
                if !kept.keys.iter().any(|(other, _)| *other == key) {
                    kept.keys.push((key, value));
                }
            }
        }
        _ => return None,
    }
    scene.switches.retain(|switch| switch != name);
    Some(scene)
}

/// Worlds with one key less.
fn keys_gone(scene: &RandomWorld) -> impl Iterator<Item = RandomWorld> + '_ {
    let count = all_keys(&mut scene.clone()).iter().map(|keys| keys.len()).sum::<usize>();
    (0..count).filter_map(|nth| {
        let mut scene = scene.clone();
        let mut left = nth;
        for keys in all_keys(&mut scene) {
            if left < keys.len() {
                // A discipline needs its rate, a flow its own.
                let (key, _) = keys.remove(left);
                let needed = key == "rate" && keys.iter().any(|(key, _)| *key == "qdisc");
                return (!needed).then_some(scene);
            }
            left -= keys.len();
        }
        None
    })
}

/// The keys of all parts.
fn all_keys(scene: &mut RandomWorld) -> Vec<&mut Keys> {
    let flows = scene.flows.iter_mut().map(|flow| &mut flow.keys);
    let links = scene.links.iter_mut().flat_map(|link| [&mut link.keys, &mut link.back]);
    flows.chain(links).chain(scene.hosts.iter_mut().map(|host| &mut host.keys)).collect()
}

/// The world with half of the bytes of a flow.
fn half(scene: &RandomWorld, flow: usize, size: usize) -> Option<RandomWorld> {
    let (key, bytes) = scene.flows[flow].sizes[size];
    let least = u64::from(key != "back");
    let mut scene = scene.clone();
    scene.flows[flow].sizes[size].1 = (bytes / 2).max(least);
    (bytes > least).then_some(scene)
}
