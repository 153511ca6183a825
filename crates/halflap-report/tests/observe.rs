//! Traces: what is read, what is refused, and figures against brute force.

#[path = "../../halflap/tests/common/random.rs"]
#[allow(dead_code)]
mod random;

use std::io::{self, Read};

use halflap::collective::CollectiveKind;
use halflap::units::{Bytes, Nanos};
use halflap_report::observe::{
    Analysis, Class, Drawing, Rank, RankTimeline, Trace, TraceError, TraceLimits, kernel_times,
    read_trace,
};
use halflap_report::page::observed_page;
use random::Random;
use serde_json::{Value, json};

fn read(text: &str) -> Result<Trace, TraceError> {
    read_trace(text.as_bytes(), TraceLimits::default())
}

fn rank(trace: &Value) -> Rank {
    Rank::of(&read(&trace.to_string()).unwrap(), "t.json")
}

fn said(text: &str) -> String {
    read(text).map(|_| "accepted".to_owned()).unwrap_or_else(|error| error.to_string())
}

/// An event of a GPU stream; times in nanoseconds.
fn gpu(name: &str, stream: i64, start: i64, time: i64) -> Value {
    let category = if name.starts_with("Mem") { "gpu_memcpy" } else { "kernel" };
    let args = json!({ "device": 0, "stream": stream, "correlation": start });
    json!({ "ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream,
        "ts": start as f64 / 1e3, "dur": time as f64 / 1e3, "args": args })
}

/// The same, of a collective in the group of ranks 0 and 1.
fn collective(stream: i64, start: i64, time: i64, more: Value) -> Value {
    let mut event = gpu("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", stream, start, time);
    let args = json!({ "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "BFloat16",
        "Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]" });
    for more in [args, more] {
        event["args"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    }
    event
}

fn trace(events: Vec<Value>) -> Value {
    json!({ "schemaVersion": 1, "traceEvents": events })
}

/// Streams that overlap, with touching, nested and empty slices, on a small clock.
fn random_events(random: &mut Random) -> Vec<Value> {
    let streams = [
        ("gemm", 7),
        ("triton_1", 8),
        ("nccl_AllReduce", 20),
        ("ncclDevKernel_SendRecv", 21),
        ("Memcpy", 9),
    ];
    let mut events = Vec::new();
    for (name, stream) in streams {
        let mut at = random.below(50) as i64;
        for _ in 0..random.below(12) {
            let time = random.pick(&[0, 1, 3, 10, 40]);
            events.push(gpu(&format!("{name}_{}", random.below(2)), stream, at, time));
            at += time + random.pick(&[0, 0, 1, 7, -(time / 2)]);
        }
    }
    events.push(gpu("gemm", 7, 0, 1));
    events
}

/// For each moment, whether it lies in a slice of a class.
fn moments(trace: &Trace, class: Class, span: (i64, i64)) -> Vec<bool> {
    let runs = |moment: i64| {
        trace.of_class(class).any(|slice| slice.start.0 <= moment && moment < slice.end.0)
    };
    (span.0..span.1).map(runs).collect()
}

#[test]
fn figures_are_those_of_brute_force() {
    let mut random = Random(1);
    for case in 0..400 {
        let read = read(&trace(random_events(&mut random)).to_string()).unwrap();
        let rank = Rank::of(&read, "t");
        let first = read.slices.iter().map(|slice| slice.start.0).min().unwrap();
        let last = read.slices.iter().map(|slice| slice.end.0).max().unwrap();
        let of = |class| moments(&read, class, (first, last));
        let (compute, communication, memory) =
            (of(Class::Compute), of(Class::Communication), of(Class::Memory));
        let count = |holds: &dyn Fn(usize) -> bool| {
            Nanos((0..compute.len()).filter(|&at| holds(at)).count() as f64)
        };
        let times = rank.times;
        assert_eq!(times.span, Nanos((last - first) as f64), "{case}");
        assert_eq!(times.compute, count(&|at| compute[at]), "{case}");
        assert_eq!(times.communication, count(&|at| communication[at]), "{case}");
        assert_eq!(times.memory, count(&|at| memory[at]), "{case}");
        assert_eq!(times.overlapped, count(&|at| communication[at] && compute[at]), "{case}");
        assert_eq!(times.exposed, count(&|at| communication[at] && !compute[at]), "{case}");
        let beside = count(&|at| communication[at] && !compute[at] && memory[at]);
        assert_eq!(times.exposed_beside_memory, beside, "{case}");
        assert_eq!(
            times.idle,
            count(&|at| !communication[at] && !compute[at] && !memory[at]),
            "{case}"
        );
        collectives_add_up(&read, &rank, (first, &compute));
    }
}

/// Every exposed moment is charged to the collective that began first, and hidden time is
/// compute's.
fn collectives_add_up(trace: &Trace, rank: &Rank, (first, compute): (i64, &[bool])) {
    let mut charged = vec![0.0; rank.collectives.len()];
    for (at, _) in compute.iter().enumerate().filter(|(_, computes)| !**computes) {
        let moment = first + at as i64;
        let runs =
            |ran: halflap_report::observe::BusyStretch| ran.start.0 <= moment && moment < ran.end.0;
        if let Some(place) = rank.collectives.iter().position(|collective| runs(collective.ran)) {
            charged[place] += 1.0;
        }
    }
    assert_eq!(
        rank.collectives.iter().map(|collective| collective.exposed.0).collect::<Vec<_>>(),
        charged
    );
    assert_eq!(
        rank.operations.iter().map(|used| used.exposed.0).sum::<f64>(),
        rank.times.exposed.0
    );
    for collective in &rank.collectives {
        let (start, end) = (collective.ran.start.0 - first, collective.ran.end.0 - first);
        let hidden =
            compute[start as usize..end as usize].iter().filter(|computes| **computes).count();
        assert_eq!(collective.hidden, Nanos(hidden as f64));
        let beside = |slice: &&halflap_report::observe::Slice| {
            slice.start < collective.ran.end && slice.end > collective.ran.start
        };
        let kernels =
            trace.of_class(Class::Compute).filter(beside).filter(|slice| slice.start < slice.end);
        let mut shares = std::collections::BTreeMap::new();
        for slice in kernels {
            let shared = slice.end.min(collective.ran.end) - slice.start.max(collective.ran.start);
            if shared > Nanos::ZERO {
                *shares.entry(slice.kernel).or_insert(0.0) += shared.0;
            }
        }
        let longest = shares.values().copied().fold(0.0, f64::max);
        assert_eq!(collective.behind.first().map_or(0.0, |(_, time)| time.0), longest);
        assert_eq!(collective.behind.len(), shares.len().min(3));
        assert_eq!(collective.stall.is_some(), collective.exposed > Nanos::ZERO);
    }
}

#[test]
fn timelines_are_bounded_and_do_not_overlap() {
    let mut random = Random(2);
    for _ in 0..100 {
        let read = read(&trace(random_events(&mut random)).to_string()).unwrap();
        let rank = Rank::of(&read, "t");
        let whole = RankTimeline::of(&read, &rank, 1000);
        assert!(whole.slices.iter().all(|drawn| drawn.what != Drawing::Several));
        let exposed: f64 = whole.slices.iter().map(|drawn| drawn.exposed.0).sum();
        let paused: f64 = whole.pauses.iter().map(|pause| pause.when.time().0).sum();
        assert_eq!((exposed, paused), (rank.times.exposed.0, rank.times.exposed.0));
        for most in [1, 8, 20, 1000] {
            let drawn = RankTimeline::of(&read, &rank, most);
            assert!(
                drawn.slices.len() <= most.max(drawn.lanes.len() * 2),
                "{} of {most}",
                drawn.slices.len()
            );
            let sum: f64 = drawn.slices.iter().map(|drawn| drawn.exposed.0).sum();
            assert_eq!(sum, exposed);
            for pair in drawn.slices.windows(2) {
                let ordered = pair[0].lane < pair[1].lane || pair[0].when.end <= pair[1].when.start;
                assert!(ordered && pair[0].lane <= pair[1].lane, "{pair:?}");
            }
        }
    }
}

/// Gives a byte at a time.
struct Trickle<'a>(&'a [u8]);

impl Read for Trickle<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (Some((first, rest)), Some(place)) = (self.0.split_first(), into.first_mut()) else {
            return Ok(0);
        };
        *place = *first;
        self.0 = rest;
        Ok(1)
    }
}

#[test]
fn it_does_not_matter_where_reads_end() {
    // More than a window, with an event that does not fit one.
    let mut random = Random(3);
    let mut events: Vec<Value> =
        (0..2000).flat_map(|_| random_events(&mut random)).take(3000).collect();
    events[1500]["name"] = json!("y".repeat(700_000));
    let text = trace(events).to_string();
    let whole = read(&text).unwrap();
    let trickled = read_trace(Trickle(text.as_bytes()), TraceLimits::default()).unwrap();
    assert_eq!(
        (whole.slices, whole.kernels, whole.bytes),
        (trickled.slices, trickled.kernels, text.len() as u64)
    );
}

#[test]
fn every_form_of_a_trace_is_the_same() {
    let plain = read(
        r#"{"traceEvents":[{"ph":"X","cat":"kernel","name":"k","ts":1.5,"dur":2,"args":{"stream":7,"device":0}}]}"#,
    );
    let plain = plain.unwrap();
    for text in [
        // Other fields before and after, white space, a byte-order mark.
        "\u{feff} {\"a\":[1,{\"b\":[]}],\"displayTimeUnit\":\"ms\",\n\"traceEvents\" : [ { \"ph\" : \"X\" , \"cat\":\"kernel\",\"name\":\"k\",\"ts\":1.5,\"dur\":2,\"args\":{\"stream\":7,\"device\":0}} ] , \"baseTimeNanoseconds\": 17, \"z\": {\"y\": null}}\n",
        // Any sequence of fields; numbers as strings; an older category; a comma too many.
        r#"{"traceEvents":[{"args":{"device":"0","stream":"7"},"dur":"2.0","ts":"1.5","name":"k","cat":"Kernel","ph":"X"},]}"#,
        // The bare list, also without its end.
        r#"[{"ph":"X","cat":"kernel","name":"k","ts":1.5,"dur":2,"args":{"stream":7,"device":0}}]"#,
        r#"[{"ph":"X","cat":"kernel","name":"k","ts":15e-1,"dur":2,"args":{"stream":7,"device":0}},"#,
        // Stream and device from thread and process; of two fields the last counts; what is no
        // work.
        r#"{"traceEvents":[{},{"ph":"X","cat":"cuda_sync","name":"Context Sync","ts":0,"dur":99},{"ph":"X","cat":"gpu_user_annotation","name":"nccl:all_gather","ts":0,"dur":99},
            {"ph":"M","name":"process_name","args":{"name":"x"}},{"ph":"X","cat":"kernel","name":"Stream Wait Event","ts":0,"dur":99},
            {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":"stream 7","ts":1.5,"dur":9,"dur":2,"args":{"occupancy":NaN,"x":-inf}}]}"#,
    ] {
        let other = read(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(
            (&other.slices, &other.kernels, &other.lanes),
            (&plain.slices, &plain.kernels, &plain.lanes),
            "{text}"
        );
    }
}

#[test]
fn what_the_profiler_knows_of_collectives_is_kept() {
    let mut trace = trace(vec![
        collective(20, 10, 5, json!({ "Process Group Ranks": "[0, 1, ...]", "Seq": 4 })),
        gpu("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", 21, 12, 2),
    ]);
    trace["distributedInfo"] =
        json!({ "rank": 1, "world_size": "2", "pg_config": [{ "pg_name": "0", "ranks": [0, 1] }] });
    let rank = rank(&trace);
    assert_eq!((rank.rank, rank.world_size), (Some(1), Some(2)));
    let [known, bare] = rank.collectives.as_slice() else { panic!("{:?}", rank.collectives) };
    assert_eq!(
        (known.operation, known.bytes, known.sequence),
        (CollectiveKind::AllReduce, Some(Bytes(2000)), Some(4))
    );
    assert_eq!(rank.groups[known.group].ranks.as_deref(), Some(&[0, 1][..]));
    assert_eq!((bare.operation, bare.bytes), (CollectiveKind::ReduceScatter, None));
    assert_eq!(rank.groups[bare.group].name.text(), "stream 21");
}

#[test]
fn bad_traces_are_refused_with_the_place() {
    let event = |field: &str| {
        format!(
            "{{\"traceEvents\": [\n{{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k1\",{field}}}]}}"
        )
    };
    let time = "it must be a number of microseconds";
    let at = "line 2 column 45 (byte 62), event 0 'k1'";
    assert_eq!(said(&event("\"dur\":1")), format!("{at}: 'ts' is missing; {time}"));
    for (field, found) in
        [("NaN", "NaN"), ("[1]", "[1]"), ("\"x\"", "\"x\""), ("1e99", "1e99, which is too large")]
    {
        let text = said(&event(&format!("\"ts\":{field}")));
        assert!(
            text.starts_with("line 2 column ")
                && text.ends_with(&format!(", event 0 'k1': 'ts' is {found}; {time}")),
            "{text}"
        );
    }
    for (text, right) in [
        ("", "no 'traceEvents': a trace is a JSON object with a list of that name"),
        ("{}", "no 'traceEvents'"),
        ("hello", "line 1 column 1 (byte 0): not JSON: expected an object with 'traceEvents'"),
        (
            "{\"traceEvents\": {}}",
            "line 1 column 17 (byte 16): not JSON: expected a list of events",
        ),
        ("{\"traceEvents\": []}", "none of its 0 events is work of a GPU"),
        (
            "{\"traceEvents\": [{\"ph\":\"X\"}]}",
            "none of its 1 events is work of a GPU (category kernel",
        ),
        (
            "{\"traceEvents\": [{\"name\":\"n\",\"ts\":None}]}",
            "line 1 column 35 (byte 34), event 0 'n': not JSON: expected a value",
        ),
        (
            "{\"traceEvents\": [{\"name\":\"n\"",
            "line 1 column 29 (byte 28), event 0 'n': the text ends here",
        ),
        (
            "{\"traceEvents\": [1]}",
            "line 1 column 18 (byte 17), event 0: not JSON: expected an object",
        ),
        ("{\"distributedInfo\": [], \"traceEvents\": []}", "'distributedInfo' is malformed: "),
    ] {
        let found = said(text);
        assert!(found.starts_with(right), "{text}: {found}");
    }
    let good = trace(vec![gpu("k", 7, 1, 1)]).to_string();
    assert!(said(&format!("{good} x")).contains("not JSON: expected nothing more"));
    let deep = format!("{{\"traceEvents\": [], \"x\": {}", "[".repeat(10_000));
    assert!(said(&deep).contains("too deep"), "{}", said(&deep));
}

#[test]
fn limits_hold() {
    let text = trace((0..20).map(|at| gpu(&format!("k{at}"), at, at, 1)).collect()).to_string();
    let said = |limits| read_trace(text.as_bytes(), limits).unwrap_err().to_string();
    let all = TraceLimits::default();
    assert!(
        said(TraceLimits { slices: 19, ..all })
            .ends_with("event 19 'k19': more than 19 events of a GPU: profile fewer steps")
    );
    assert!(
        said(TraceLimits { kernels: 5, ..all })
            .ends_with("event 5 'k5': more than 5 different kernels: profile fewer steps")
    );
    assert!(said(TraceLimits { lanes: 3, ..all }).contains("more than 3 GPU streams"));
    let nccl = trace(vec![gpu("nccl", 7, 1, 1), gpu("nccl", 7, 3, 1)]).to_string();
    let refused =
        read_trace(nccl.as_bytes(), TraceLimits { collectives: 1, ..all }).unwrap_err().to_string();
    assert!(refused.contains("more than 1 collectives"), "{refused}");
    let huge = format!("{{\"traceEvents\":[{{\"name\":\"{}\"}}]}}", "x".repeat(70 << 20));
    assert!(self::said(&huge).contains("one value is larger than 64 MiB"), "{}", self::said(&huge));
}

#[test]
fn odd_durations_are_counted() {
    let mut events = vec![gpu("k", 7, 10, 5), gpu("k", 7, 20, -5), gpu("k", 7, 30, 5)];
    events[2].as_object_mut().unwrap().remove("dur");
    let rank = rank(&trace(events));
    assert_eq!((rank.oddities.negative, rank.oddities.endless), (1, 1));
    assert_eq!((rank.times.compute, rank.times.span), (Nanos(5.0), Nanos(20.0)));
}

#[test]
fn damage_never_panics() {
    let mut random = Random(5);
    let mut base = trace(random_events(&mut random));
    base["traceEvents"].as_array_mut().unwrap().push(collective(20, 4, 9, json!({ "Seq": 3 })));
    base["distributedInfo"] =
        json!({ "rank": 0, "pg_config": [{ "pg_name": "0", "ranks": "[0, 1]" }] });
    let text = base.to_string().into_bytes();
    let mut refused = 0;
    for _ in 0..3000 {
        let mut damaged = text.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(damaged.len());
            match random.below(4) {
                0 => damaged.truncate(at.max(1)),
                1 => damaged[at] = random.below(256) as u8,
                2 => drop(damaged.remove(at)),
                _ => damaged.insert(at, random.pick(b"{}[]\",:\\-0e.n ")),
            }
        }
        match read_trace(damaged.as_slice(), TraceLimits::default()) {
            Ok(trace) => {
                let rank = Rank::of(&trace, "t");
                let timeline = RankTimeline::of(&trace, &rank, 50);
                let analysis = Analysis::of(vec![rank.clone(), rank]);
                observed_page("t", &analysis, &[timeline.clone(), timeline]);
            }
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().is_empty());
            }
        }
    }
    assert!((1000..3000).contains(&refused), "{refused}");
}

/// Two ranks whose collectives end together on a clock that is `ahead` on the second; `late` is
/// when each rank arrives, `end` when all are done.
fn two_ranks(
    ahead: i64,
    late: &[(i64, i64, i64)],
    more: impl Fn(usize, usize) -> Option<Value>,
) -> Analysis {
    let events = |rank: usize| {
        let event = |(number, &(first, second, end)): (usize, &(i64, i64, i64))| {
            let start = if rank == 0 { first } else { second };
            Some(collective(20, start + ahead * rank as i64, end - start, more(rank, number)?))
        };
        let mut trace = trace(late.iter().enumerate().filter_map(event).collect());
        trace["distributedInfo"] = json!({ "rank": rank, "world_size": 2 });
        self::rank(&trace)
    };
    Analysis::of(vec![events(0), events(1)])
}

/// Random arrivals, one collective every millisecond or so.
fn arrivals(random: &mut Random, count: i64) -> Vec<(i64, i64, i64)> {
    let mut at = 1_000_000;
    let mut arrival = || {
        at += 1_000_000 + random.below(300_000) as i64;
        let mut late = || random.pick(&[0, 0, 20_000, 300_000]);
        (at + late(), at + late(), at + 500_000)
    };
    (0..count).map(|_| arrival()).collect()
}

fn waits(late: &[(i64, i64, i64)]) -> (f64, f64) {
    let wait = |a: i64, b: i64| (b - a).max(0) as f64;
    let sum = |wait: &dyn Fn(&(i64, i64, i64)) -> f64| late.iter().map(wait).sum();
    (sum(&|(a, b, _)| wait(*a, *b)), sum(&|(a, b, _)| wait(*b, *a)))
}

#[test]
fn waiting_is_told_from_transfer_whatever_the_clocks_say() {
    let mut random = Random(7);
    for ahead in [0, 7_000_000, -123_456_789, 3_600_000_000_000] {
        let late = arrivals(&mut random, 40);
        let found = two_ranks(ahead, &late, |_, _| Some(json!({})));
        assert_eq!(found.peers.matches.len(), 40, "{ahead}");
        assert_eq!(found.peers.clocks, [Some(Nanos::ZERO), Some(Nanos(ahead as f64))]);
        let zeros = found.zeros();
        assert_eq!(zeros[1] - zeros[0], Nanos(ahead as f64), "one time axis for both");
        let begins = [0, 1].map(|rank| found.ranks[rank].first - zeros[rank]);
        assert_eq!(begins[0].min(begins[1]), Nanos::ZERO, "the earliest begins it");
        let (first, second) = waits(&late);
        assert_eq!(
            (found.peers.ranks[0].waiting.0, found.peers.ranks[1].waiting.0),
            (first, second)
        );
        assert!(!found.peers.incomplete());
        for (matched, (a, b, end)) in found.peers.matches.iter().zip(&late) {
            assert_eq!(matched.transfer, Nanos((end - a.max(b)) as f64));
            assert_eq!(matched.last, usize::from(b > a));
        }
    }
}

#[test]
fn traces_that_differ_in_extent_are_not_paired_by_counting() {
    let mut random = Random(8);
    for (from, to, hole) in [(5, 40, 99), (0, 31, 99), (3, 38, 20), (0, 40, 0)] {
        let late = arrivals(&mut random, 40);
        let has = |rank: usize, number: usize| {
            rank == 0 || ((from..to).contains(&number) && number != hole)
        };
        let found =
            two_ranks(2_000_000, &late, |rank, number| has(rank, number).then(|| json!({})));
        let there = (0..40).filter(|&number| has(1, number)).count();
        assert_eq!(found.peers.matches.len(), there, "{from} {to} {hole}");
        assert_eq!(found.peers.ranks[0].unmatched, 40 - there);
        for matched in &found.peers.matches {
            let end = |place: usize, ahead: i64| {
                found.ranks[place].collectives[matched.of[place].collective].ran.end.0 - ahead
            };
            assert_eq!(end(0, 0), end(1, 2_000_000));
        }
    }
}

#[test]
fn numbers_decide_and_what_disagrees_is_not_paired() {
    let mut random = Random(9);
    let late = arrivals(&mut random, 20);
    let numbered = two_ranks(1_000, &late, |_, number| Some(json!({ "Seq": number })));
    assert_eq!(numbered.peers.matches.len(), 20);
    let other = |rank: usize, number: usize| rank == 1 && number == 4;
    let size = |rank, number| {
        if other(rank, number) {
            json!({ "In msg nelems": 9, "Out msg nelems": 9, "Seq": number })
        } else {
            json!({ "Seq": number })
        }
    };
    let disagreeing = two_ranks(1_000, &late, |rank, number| Some(size(rank, number)));
    assert_eq!(disagreeing.peers.matches.len(), 19);
    assert_eq!(disagreeing.peers.ranks[1].disagree, 1);
    let sends = two_ranks(0, &late, |_, _| Some(json!({ "Collective name": "send" })));
    assert_eq!((sends.peers.matches.len(), sends.peers.ranks[0].unmatched), (0, 20));
    assert_eq!(sends.peers.ranks[0].transfer_and_waiting(), None);
    let exchanges = two_ranks(0, &late, |_, _| Some(json!({ "Collective name": "sendrecv" })));
    assert_eq!(
        exchanges.peers.matches.len(),
        20,
        "one kernel for both directions is an exchange among all"
    );
    let larger = two_ranks(0, &late, |_, _| {
        Some(json!({ "Process Group Ranks": "[0, 1, 2]", "Group size": 3 }))
    });
    assert!(larger.peers.incomplete() && larger.peers.matches[0].missing == Some(1));
}

#[test]
fn what_happens_at_other_times_is_no_match() {
    let early: Vec<(i64, i64, i64)> =
        (0..6).map(|at| (at * 5_000_000, at * 5_000_000, at * 5_000_000 + 100_000)).collect();
    let found =
        two_ranks(0, &early, |rank, number| (rank == 0 || number % 2 == 1).then(|| json!({})));
    assert_eq!(found.peers.matches.len(), 3);
    // The launches of the second rank lie between those of the first, at their own distances.
    let first = trace(
        [0, 10, 30, 70].map(|at| collective(20, at * 1_000_000, 100_000, json!({}))).to_vec(),
    );
    let second =
        trace([3, 21, 44].map(|at| collective(20, at * 1_000_000, 100_000, json!({}))).to_vec());
    let found = Analysis::of(vec![rank(&first), rank(&second)]);
    assert!(found.peers.matches.len() <= 1, "{:?}", found.peers.matches);
}

#[test]
fn times_by_kernel_are_medians_without_waiting() {
    let late = [(0, 0, 500), (2_000_000, 2_300_000, 2_300_400), (4_000_000, 4_000_000, 4_000_900)];
    let mut found = two_ranks(0, &late, |_, _| Some(json!({})));
    let kernels =
        trace(vec![gpu("a", 7, 0, 5), gpu("a", 7, 10, 9), gpu("a", 7, 30, 1), gpu("b", 7, 40, 2)]);
    found.ranks.push(rank(&kernels));
    let found = Analysis::of(found.ranks);
    let times: Vec<(String, f64)> =
        kernel_times(&found).into_iter().map(|(name, time)| (name, time.0)).collect();
    let nccl = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)".to_owned();
    assert_eq!(times, [("a".to_owned(), 5.0), ("b".to_owned(), 2.0), (nccl, 500.0)]);
}

#[test]
fn hostile_names_are_bounded() {
    let names = ["<script>\"'", "\u{1b}[31m\n\r\0", "", "\u{202e}abc", &"<b>".repeat(4 << 20)];
    let rank = rank(&trace(
        names.iter().enumerate().map(|(at, name)| gpu(name, 7, at as i64 * 10, 5)).collect(),
    ));
    assert_eq!(rank.kernels.len(), 5);
    assert!(rank.kernels.as_slice().iter().all(|kernel| kernel.name.len() <= 1024));
    let analysis = Analysis::of(vec![rank]);
    let text = halflap_report::render_analysis(&analysis, 10, &Default::default());
    assert!(
        text.len() < 2000 && text.chars().all(|letter| letter == '\n' || !letter.is_control()),
        "{text}"
    );
    let mut file = Vec::new();
    halflap_report::write_analysis(&analysis, &mut file).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    assert_eq!(file["ranks"][0]["kernels"].as_array().unwrap().len(), 5);
}
