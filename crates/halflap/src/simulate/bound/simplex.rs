//! A small linear program that grows: columns are added, and it is solved again from the last
//! solution.
//!
//! Minimises the cost of non-negative columns so that each row's sum is at most its limit. The
//! solution provides multipliers for a bound that holds for any multipliers: a rounding error here
//! can make the bound weaker, but not wrong.

/// A tableau. Column `row` of the first ones is the slack of that row.
pub(super) struct Simplex {
    columns: Vec<Vec<f64>>,
    reduced: Vec<f64>,
    basis: Vec<usize>,
    limit: Vec<f64>,
    value: f64,
    /// Rows that must be met exactly: their slack stays out once it is out.
    exact: Vec<bool>,
}

/// Less than this is rounding.
const TINY: f64 = 1e-10;

impl Simplex {
    pub(super) fn new(limit: Vec<f64>, exact: Vec<bool>) -> Simplex {
        let rows = limit.len();
        let unit = |row: usize| (0..rows).map(|other| f64::from(u8::from(other == row))).collect();
        Simplex {
            columns: (0..rows).map(unit).collect(),
            reduced: vec![0.0; rows],
            basis: (0..rows).collect(),
            limit,
            value: 0.0,
            exact,
        }
    }

    /// Adds a column: its entries by row, and its cost. Returns its number.
    pub(super) fn add(&mut self, entries: &[(usize, f64)], cost: f64) -> usize {
        let mut column = vec![0.0; self.limit.len()];
        let mut reduced = cost;
        for &(row, entry) in entries {
            column.iter_mut().zip(&self.columns[row]).for_each(|(to, unit)| *to += entry * unit);
            reduced += entry * self.reduced[row];
        }
        self.columns.push(column);
        self.reduced.push(reduced);
        self.columns.len() - 1
    }

    /// The remainder of a row's limit, if its own slack variable is in the basis.
    pub(super) fn limit_of(&self, row: usize) -> f64 {
        self.limit[row]
    }

    /// The dual value of a row: how much lower the cost would be with one more unit of its limit.
    pub(super) fn worth(&self, row: usize) -> f64 {
        self.reduced[row].max(0.0)
    }

    /// The cost of the solution.
    pub(super) fn value(&self) -> f64 {
        self.value
    }

    /// The value of a column.
    pub(super) fn taken(&self, column: usize) -> f64 {
        let row = self.basis.iter().position(|&other| other == column);
        row.map_or(0.0, |row| self.limit[row])
    }

    /// Brings a column into the basis in place of a row's.
    pub(super) fn pivot(&mut self, row: usize, column: usize) {
        let pivot = self.columns[column].clone();
        let factor = 1.0 / pivot[row];
        let reduced = self.reduced[column];
        for (other, reduces) in self.columns.iter_mut().zip(&mut self.reduced) {
            let scaled = other[row] * factor;
            if scaled != 0.0 {
                other.iter_mut().zip(&pivot).for_each(|(entry, &times)| *entry -= times * scaled);
                other[row] = scaled;
                *reduces -= reduced * scaled;
            }
        }
        let scaled = self.limit[row] * factor;
        self.limit.iter_mut().zip(&pivot).for_each(|(limit, &times)| *limit -= times * scaled);
        self.limit[row] = scaled;
        self.value += reduced * scaled;
        self.basis[row] = column;
    }

    /// Pivots until no column improves the solution, or this many times.
    pub(super) fn solve(&mut self, most: usize) {
        for _ in 0..most {
            let rows = self.limit.len();
            let may_enter = |&column: &usize| column >= rows || !self.exact[column];
            let cheapest = (0..self.columns.len())
                .filter(may_enter)
                .min_by(|&a, &b| self.reduced[a].total_cmp(&self.reduced[b]))
                .filter(|&column| self.reduced[column] < -TINY);
            let Some(column) = cheapest else { return };
            let entries = &self.columns[column];
            let ratio = |&row: &usize| self.limit[row].max(0.0) / entries[row];
            let leaves = (0..rows).filter(|&row| entries[row] > TINY);
            let Some(row) = leaves.min_by(|a, b| {
                ratio(a).total_cmp(&ratio(b)).then(entries[*b].total_cmp(&entries[*a]))
            }) else {
                return;
            };
            self.pivot(row, column);
        }
    }
}
