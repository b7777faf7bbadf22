//! Ranges of remote memory that are being read or written. They decide whether a request must wait.

use super::{Direction, Span};

/// A range in which the numbers of readers and of writers are the same for every byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    span: Span,
    readers: u32,
    writers: u32,
}

/// Multiset of ranges that are read or written, as a sorted vector of disjoint segments. A lookup is a binary search,
/// and the vector is not reallocated once it has reached its maximum length.
#[derive(Clone, Debug, Default)]
pub struct InFlightRanges {
    segments: Vec<Segment>,
}

impl InFlightRanges {
    /// Returns the index of the first segment that ends after `at`.
    fn first_after(&self, region: u32, at: u64) -> usize {
        self.segments.partition_point(|s| (s.span.region, s.span.end) <= (region, at))
    }

    /// Returns whether a request must not be executed concurrently with one of the ranges: they have a byte in common,
    /// and at least one of the two accesses writes.
    pub fn conflicts(&self, direction: Direction, span: &Span) -> bool {
        self.segments[self.first_after(span.region, span.start)..]
            .iter()
            .take_while(|s| s.span.overlaps(span))
            .any(|s| s.writers > 0 || direction == Direction::Write)
    }

    /// Adds a range.
    pub fn add(&mut self, direction: Direction, span: Span) {
        let mut at = self.split(span.region, span.start);
        let mut start = span.start;
        while start < span.end {
            let next = self.segments.get(at).map(|s| s.span).filter(|next| next.overlaps(&span));
            let end = match next {
                Some(next) if next.start == start => {
                    self.split(span.region, span.end);
                    next.end.min(span.end)
                }
                gap => {
                    let end = gap.map_or(span.end, |next| next.start);
                    let span = Span { start, end, ..span };
                    self.segments.insert(at, Segment { span, readers: 0, writers: 0 });
                    end
                }
            };
            let segment = &mut self.segments[at];
            match direction {
                Direction::Read => segment.readers += 1,
                Direction::Write => segment.writers += 1,
            }
            (start, at) = (end, at + 1);
        }
    }

    /// Reverts one [`InFlightRanges::add`] of exactly this range.
    ///
    /// # Panics
    /// If a part of the range was not added in this direction: an error of the caller.
    pub fn remove(&mut self, direction: Direction, span: Span) {
        let first = self.split(span.region, span.start);
        let after = self.split(span.region, span.end);
        for segment in &mut self.segments[first..after] {
            let count = match direction {
                Direction::Read => &mut segment.readers,
                Direction::Write => &mut segment.writers,
            };
            *count = count.checked_sub(1).expect("a range that was added");
        }
        let mut at = 0;
        self.segments.retain(|s| {
            at += 1;
            at <= first || at > after || s.readers + s.writers > 0
        });
    }

    /// Splits the segment that contains `at`, so that `at` is a boundary. Returns the index of the first segment that
    /// does not begin before it.
    fn split(&mut self, region: u32, at: u64) -> usize {
        let index = self.first_after(region, at);
        let Some(segment) = self.segments.get_mut(index) else { return index };
        if segment.span.region != region || segment.span.start >= at {
            return index;
        }
        let head = Segment { span: Span { end: at, ..segment.span }, ..*segment };
        segment.span.start = at;
        self.segments.insert(index, head);
        index + 1
    }

    /// Removes all ranges, and retains the allocation.
    pub fn clear(&mut self) {
        self.segments.clear();
    }

    /// Returns whether there is no range.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(start: u64, len: u64) -> Span {
        Span::new(0, start, len).unwrap()
    }

    #[test]
    fn detects_conflicts_of_readers_and_writers() {
        let mut coverage = InFlightRanges::default();
        coverage.add(Direction::Read, span(10, 10));
        assert!(!coverage.conflicts(Direction::Read, &span(0, 100)));
        assert!(coverage.conflicts(Direction::Write, &span(19, 1)));
        assert!(!coverage.conflicts(Direction::Write, &span(20, 5)), "adjacent is not overlapping");
        assert!(!coverage.conflicts(Direction::Write, &span(0, 10)));
        coverage.add(Direction::Write, span(20, 5));
        assert!(coverage.conflicts(Direction::Read, &span(0, 100)));
        assert!(!coverage.conflicts(Direction::Write, &Span { region: 1, ..span(10, 10) }));
        coverage.remove(Direction::Read, span(10, 10));
        coverage.remove(Direction::Write, span(20, 5));
        assert!(coverage.is_empty());
    }

    fn spans() -> impl Strategy<Value = (Direction, Span)> {
        (any::<bool>(), 0..2_u32, 0..24_u64, 1..12_u64).prop_map(|(reads, region, start, len)| {
            let direction = if reads { Direction::Read } else { Direction::Write };
            (direction, Span::new(region, start, len).unwrap())
        })
    }

    proptest! {
        /// Compares it with a list that is searched linearly.
        #[test]
        fn matches_a_linear_list(steps in prop::collection::vec((spans(), any::<u8>()), 1..60)) {
            let mut coverage = InFlightRanges::default();
            let mut list: Vec<(Direction, Span)> = Vec::new();
            for ((direction, span), choice) in steps {
                let wanted = list.iter().any(|(other, covered)| {
                    covered.overlaps(&span) && (*other == Direction::Write || direction == Direction::Write)
                });
                prop_assert_eq!(coverage.conflicts(direction, &span), wanted);
                if choice % 3 == 0 && !list.is_empty() {
                    let (direction, span) = list.swap_remove(usize::from(choice) % list.len());
                    coverage.remove(direction, span);
                } else {
                    coverage.add(direction, span);
                    list.push((direction, span));
                }
                prop_assert!(coverage.segments.is_sorted_by_key(|s| (s.span.region, s.span.start)));
                prop_assert!(coverage.segments.windows(2).all(|w| !w[0].span.overlaps(&w[1].span)));
                prop_assert_eq!(coverage.is_empty(), list.is_empty());
            }
        }
    }
}
