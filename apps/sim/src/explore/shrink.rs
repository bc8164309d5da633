//! Minimizes a world that violates a rule: removes parts as long as the world still violates the
//! same rule.

use super::scene::{Keys, RandomWorld};
use super::{ExtraRules, RuleFault, check_text};

/// Minimized world, and the rule that it violates.
#[derive(Debug, Clone)]
pub struct Shrunk {
    /// World that is left after the removal of parts.
    pub scene: RandomWorld,
    /// Violation of the rule in the minimized world.
    pub fault: RuleFault,
    /// Number of worlds that the shrinker tried.
    pub tried: usize,
}

/// Minimizes a world that violates a rule. Runs at most `tries_max` worlds.
///
/// A smaller world is accepted if it violates the same rule. Flows are removed first, because this
/// makes their hosts and links removable.
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
        // Generate the candidates again after each success, because the removal changed their
        // indices.
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

/// Returns all worlds that lack one part of this world. Worlds that lack a larger part come first.
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

/// Returns the world without a host. `None` if a flow needs the host.
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

/// Returns the world without a switch. The switch must be a leaf, or join two links, which then
/// become one. `None` for other switches.
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
            // Merge the impairments of both links. The keys of the link that is kept take
            // precedence.
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

/// Iterates over all worlds with one key less.
fn keys_gone(scene: &RandomWorld) -> impl Iterator<Item = RandomWorld> + '_ {
    let count = all_keys(&mut scene.clone()).iter().map(|keys| keys.len()).sum::<usize>();
    (0..count).filter_map(|nth| {
        let mut scene = scene.clone();
        let mut left = nth;
        for keys in all_keys(&mut scene) {
            if left < keys.len() {
                // Keep the rate of a link if its queueing discipline requires it.
                let (key, _) = keys.remove(left);
                let needed = key == "rate" && keys.iter().any(|(key, _)| *key == "qdisc");
                return (!needed).then_some(scene);
            }
            left -= keys.len();
        }
        None
    })
}

/// Returns the lists of keys of all parts.
fn all_keys(scene: &mut RandomWorld) -> Vec<&mut Keys> {
    let flows = scene.flows.iter_mut().map(|flow| &mut flow.keys);
    let links = scene.links.iter_mut().flat_map(|link| [&mut link.keys, &mut link.back]);
    flows.chain(links).chain(scene.hosts.iter_mut().map(|host| &mut host.keys)).collect()
}

/// Returns the world with one size of a flow halved. `None` if the size is minimal.
fn half(scene: &RandomWorld, flow: usize, size: usize) -> Option<RandomWorld> {
    let (key, bytes) = scene.flows[flow].sizes[size];
    let least = u64::from(key != "back");
    let mut scene = scene.clone();
    scene.flows[flow].sizes[size].1 = (bytes / 2).max(least);
    (bytes > least).then_some(scene)
}
