//! Distinguishes differences from noise with the exact rank-sum test of Mann and Whitney, which
//! supports ties.
//!
//! Runs of the same server vary by chance. If two servers are equal, every order of their runs is
//! equally likely. The test counts the orders in which the two servers lie at least as far apart as
//! measured. The test assumes no distribution, and a single slow run cannot decide the result.

/// Significance level. A difference is reported if the probability of a chance result is at most
/// this value.
///
/// A comparison has three figures, so fewer than 3 of 100 comparisons of equal servers report one.
pub const SIGNIFICANT: f64 = 0.01;

/// Returns the probability that the runs of equal servers are at least as far apart as `a` and `b`.
pub fn rank_sum_p(a: &[f64], b: &[f64]) -> f64 {
    let all: Vec<f64> = a.iter().chain(b).copied().collect();
    // Use doubled ranks, which are integers even if tied values share a mean rank.
    let rank = |value: f64| {
        let less = all.iter().filter(|&&other| other < value).count();
        let equal = all.iter().filter(|&&other| other == value).count();
        2 * less + equal + 1
    };
    let ranks: Vec<usize> = all.iter().map(|&value| rank(value)).collect();
    let centre = a.len() * (all.len() + 1);
    let distance = ranks[..a.len()].iter().sum::<usize>().abs_diff(centre);
    let ways = ways(&ranks, a.len());
    let far = ways.iter().enumerate().filter(|(sum, _)| sum.abs_diff(centre) >= distance);
    far.map(|(_, count)| count).sum::<f64>() / ways.iter().sum::<f64>()
}

/// Returns the number of subsets of `len` ranks for each sum of the ranks.
fn ways(ranks: &[usize], len: usize) -> Vec<f64> {
    let most: usize = ranks.iter().sum();
    let mut ways = vec![vec![0.; most + 1]; len + 1];
    ways[0][0] = 1.;
    for &rank in ranks {
        for chosen in (1..=len).rev() {
            let (less, more) = ways.split_at_mut(chosen);
            for sum in rank..=most {
                more[0][sum] += less[chosen - 1][sum - rank];
            }
        }
    }
    ways.swap_remove(len)
}

/// Ratio of two figures with its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Ratio {
    /// Lower bound of the confidence interval.
    pub low: f64,
    /// Median of the ratios of all pairs (Hodges-Lehmann estimator).
    pub middle: f64,
    /// Upper bound of the confidence interval.
    pub high: f64,
}

/// Returns the ratio of `b` to `a`, with the 99 % confidence interval of the rank-sum test.
///
/// Returns `None` if there are no values, or if a value is not positive.
pub fn ratio(a: &[f64], b: &[f64]) -> Option<Ratio> {
    if a.is_empty() || b.is_empty() || a.iter().chain(b).any(|&value| value <= 0.) {
        return None;
    }
    let mut ratios: Vec<f64> = b.iter().flat_map(|b| a.iter().map(move |a| b / a)).collect();
    ratios.sort_by(f64::total_cmp);
    // Compute the distribution of U from sums of ranks without ties. U is the number of pairs in
    // which B is below A.
    let ranks: Vec<usize> = (1..=a.len() + b.len()).collect();
    let ways = ways(&ranks, a.len());
    let total: f64 = ways.iter().sum();
    let least = a.len() * (a.len() + 1) / 2;
    let mut below = 0.;
    let mut outside = 0;
    for count in &ways[least..] {
        below += count;
        if below / total > SIGNIFICANT / 2. {
            break;
        }
        outside += 1;
    }
    let first = outside.max(1) - 1;
    Some(Ratio {
        low: ratios[first],
        middle: median(&ratios),
        high: ratios[ratios.len() - 1 - first],
    })
}

/// Returns the median. For an even number of values, this is the mean of the middle two. Returns
/// zero if there are no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.,
        len if len % 2 == 1 => sorted[len / 2],
        len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn is_near(value: f64, wanted: f64) {
        assert!((value - wanted).abs() < 1e-4, "{value}, not {wanted}");
    }

    #[test]
    fn probabilities_are_those_of_the_tables() {
        // In 2 of 252 orders, five values are completely separate from the other five.
        is_near(rank_sum_p(&[1., 2., 3., 4., 5.], &[6., 7., 8., 9., 10.]), 2. / 252.);
        is_near(rank_sum_p(&[6., 7., 8., 9., 10.], &[1., 2., 3., 4., 5.]), 2. / 252.);
        // The U statistic of these samples is 1. There are 252 ways to divide ten ranks equally,
        // and 4 of them are at least as extreme.
        is_near(rank_sum_p(&[1., 2., 3., 4., 6.], &[5., 7., 8., 9., 10.]), 4. / 252.);
        is_near(rank_sum_p(&[1., 2.], &[3., 4.]), 2. / 6.);
        is_near(rank_sum_p(&[1.; 5], &[1.; 5]), 1.);
        // With ties, pairs of the ranks 1, 2.5, 2.5, 4 have the sums 3.5, 3.5, 5, 5, 6.5, 6.5.
        is_near(rank_sum_p(&[1., 2.], &[2., 3.]), 4. / 6.);
    }

    #[test]
    fn ties_are_counted_exactly() {
        // The ranks are 1, 2.5, 2.5, 4, 5, 6. 2 of 20 sums of three ranks are as extreme as
        // 1+2.5+2.5 or 4+5+6.
        is_near(rank_sum_p(&[1., 2., 2.], &[3., 4., 5.]), 2. / 20.);
    }

    #[test]
    fn fifty_rounds_do_not_overflow() {
        let a: Vec<f64> = (0..50).map(f64::from).collect();
        let b: Vec<f64> = a.iter().map(|value| value + 100.).collect();
        let p = rank_sum_p(&a, &b);
        assert!(p > 0. && p < 1e-20, "{p}");
    }

    #[test]
    fn intervals_exclude_one_exactly_where_the_test_finds_a_difference() {
        let a = [100., 101., 102., 103., 104.];
        let clear = ratio(&a, &a.map(|value| value * 1.25)).expect("positive");
        is_near(clear.middle, 1.25);
        assert!(clear.low > 1.15 && clear.high < 1.35, "{clear:?}");
        let b = [99., 102.5, 101.5, 100.5, 104.5];
        assert!(rank_sum_p(&a, &b) > SIGNIFICANT);
        let none = ratio(&a, &b).expect("positive");
        assert!(none.low < 1. && none.high > 1., "{none:?}");
        assert_eq!(ratio(&[0., 1.], &[1., 2.]), None);
        assert_eq!(ratio(&[], &[1.]), None);
    }

    #[test]
    fn medians_of_even_counts_lie_between() {
        assert_eq!((median(&[3., 1., 2.]), median(&[4., 1., 2., 3.]), median(&[])), (2., 2.5, 0.));
    }
}
