//! The same, with the program rewritten at every point where that makes its step shorter.

use halflap::memory::Budget;
use halflap::units::{Bytes, Nanos};

use super::{Optimum, SweepPoint, SweepRules};
use crate::args::{self, Rewrites, SearchArgs};
use crate::exit::Failed;
use crate::progress::Bar;
use crate::schedule;
use crate::source::Subject;

/// What changed programs are searched for with.
pub struct ChangedSweep<'a> {
    args: &'a args::WhatIf,
    subject: &'a Subject,
    schedule: args::Schedule,
}

impl<'a> ChangedSweep<'a> {
    pub fn new(
        args: &'a args::WhatIf,
        rewrites: &Rewrites,
        subject: &'a Subject,
        rules: &SweepRules,
    ) -> Result<ChangedSweep<'a>, Failed> {
        let search = SearchArgs {
            effort: Some(rules.effort),
            threads: args.threads,
            collective_order: args.collectives.collective_order,
            ..SearchArgs::default()
        };
        let schedule = args::Schedule {
            search,
            rewrite: Some(rewrites.clone()),
            order_collectives: args.collectives.order_collectives,
            no_advice: true,
            machine: args.machine.clone(),
            ..args::Schedule::new(args.graph.clone())
        };
        schedule::refuse(subject.hlo.is_some(), &schedule)?;
        Ok(ChangedSweep { args, subject, schedule })
    }

    /// All points, for a program whose input order needs this much memory.
    pub fn points(&self, memory: &[Budget], peak: Bytes) -> Result<Vec<SweepPoint>, Failed> {
        let bar = Bar::new("sweeping");
        let all = memory.len() * self.args.bandwidth.len();
        let mut memory = memory.to_vec();
        memory.sort_by_key(|memory| memory.limit(peak));
        let mut points: Vec<SweepPoint> = Vec::with_capacity(all);
        for &bandwidth in &self.args.bandwidth {
            let mut best: Option<Optimum> = None;
            for &budget in &memory {
                if bar.show(points.len() as f64 / all as f64).is_break() {
                    return Err(Failed::Stopped);
                }
                let (bound, found) = self.point(bandwidth, budget)?;
                // What fits into less memory fits into more.
                best = match (best, found) {
                    (Some(best), Some(found)) if found.step_time < best.step_time => Some(found),
                    (best, found) => best.or(found),
                };
                let limit = budget.limit(peak);
                let found = best.ok_or(None);
                points.push(SweepPoint { bandwidth, limit, bound, found });
            }
        }
        bar.clear();
        Ok(points)
    }

    /// One point: the bound of what was found, and what that is, if anything fits.
    fn point(&self, bandwidth: f64, budget: Budget) -> Result<(Nanos, Option<Optimum>), Failed> {
        let mut subject = self.subject.clone();
        subject.source.model.costs.speedup = Some(bandwidth);
        let mut schedule = self.schedule.clone();
        schedule.search.memory_budget = Some(budget);
        let found = match schedule::changed(subject, &schedule) {
            Ok(found) => found,
            Err(Failed::NothingFits(_)) => return Ok((Nanos::ZERO, None)),
            Err(failed) => return Err(failed),
        };
        let figures = found
            .figures()
            .ok_or_else(|| Failed::OurBug("a changed program has no figures".to_owned()))?;
        let optimum = Optimum {
            step_time: figures.step_time.after,
            exposed: figures.exposed.after,
            peak: figures.peak.after,
            order_alone: found.order_alone(),
        };
        Ok((figures.bound.unwrap_or(Nanos::ZERO), Some(optimum)))
    }
}
