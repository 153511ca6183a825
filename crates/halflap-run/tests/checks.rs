//! Every check of a run finds what it is there for, and nothing where all is well.
//!
//! Fatal faults run in a separate process: this program again, with the name of an ignored test.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use halflap::graph::Assignment;
use halflap::order::Order;
use halflap_hlo::LoweredModule;
use halflap_hlo::Module;
use halflap_hlo::plan::build;
use halflap_run::check::{
    Checks, EXIT_CODE, Fault, Filter, Forbidden, MemorySource, Origins, Side, Strictness,
    ValueLevel, ValueOptions, catch_faults, read_values,
};
use halflap_run::exec::{Failure, Options, Outcome, Prepared, run};
use halflap_run::kernel::Libraries;
use halflap_run::tensor::Tensor;

/// A module of so many ranks on arrays of four numbers, of which the entry is given after `p`.
fn module(ranks: usize, computations: &str, body: &str) -> Module {
    let text = format!(
        "HloModule m, num_partitions={ranks}\nsum {{\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] \
         add(a, b)\n}}\n{computations}\nENTRY e {{\n p = f32[4] parameter(0)\n{body}\n}}\n"
    );
    Module::read(text.clone()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// `n` is used twice; `x` is the square root of what is below zero, where `p` is above.
const ROOTS: &str = " n = f32[4] negate(p)
 r = f32[4] all-reduce(n), channel_id=1, replica_groups={}, use_global_device_ids=true, to_apply=sum
 x = f32[4] sqrt(n), metadata={source_file=\"m.py\" source_line=7}
 s = f32[4] all-reduce(x), channel_id=2, replica_groups={}, use_global_device_ids=true, to_apply=sum
 ROOT t = f32[4] add(r, s)";

struct Job {
    module: Module,
    options: Options,
    libraries: Libraries,
    given: [f32; 4],
}

impl Job {
    fn new(module: Module, checks: Checks) -> Job {
        let options = Options { checks, timeout: Duration::from_millis(500), ..Options::default() };
        Job { module, options, libraries: Libraries::default(), given: [-1.0, -2.0, -3.0, -4.0] }
    }

    fn prepared(&self) -> Prepared {
        let units = LoweredModule::of(&self.module).unwrap().units;
        let mut program = build(&self.module, &units, Assignment::SharedRanks, |unit| {
            Order::of_input(&units[unit].lowered.graph)
        })
        .unwrap();
        Fault::spoil(&self.options.checks.faults, &mut program).unwrap();
        let looks_inside = self.options.checks.origins.is_some();
        Prepared::compile(&self.module, &program, &self.libraries, looks_inside).unwrap()
    }

    fn run_as(&self, program: Prepared) -> Result<Outcome, Failure> {
        let program = Arc::new(program);
        let inputs = vec![vec![Tensor::of(&[4], &self.given)]; program.ranks];
        run(&vec![program.clone(); program.ranks], inputs, &self.options)
    }

    fn run(&self) -> Result<Outcome, Failure> {
        self.run_as(self.prepared())
    }

    fn fails(&self) -> Failure {
        self.run().expect_err("something is wrong, and nothing was found")
    }
}

fn fault(text: &str) -> Vec<Fault> {
    vec![text.parse().unwrap()]
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("halflap-checks-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn lifetimes() {
    let checks = Checks { lifetimes: Strictness::Assert, ..Checks::default() };
    Job::new(module(2, "", ROOTS), checks.clone()).run().unwrap();
    for place in ["free-early=n", "free-late=n"] {
        let job = Job::new(module(2, "", ROOTS), Checks { faults: fault(place), ..checks.clone() });
        let Failure::Lifetime(found) = job.fails() else { panic!("{place}: {}", job.fails()) };
        assert_eq!((found.buffer.as_str(), found.rank), ("n", 0), "{place}");
    }
}

#[test]
fn numbers_that_are_none() {
    for (forbidden, value) in [(Forbidden::Nan, f32::NAN), (Forbidden::Infinity, f32::NEG_INFINITY)]
    {
        let checks = Checks { forbidden: Some(forbidden), ..Checks::default() };
        let mut job = Job::new(module(2, "", ROOTS), checks);
        job.run().unwrap();
        job.given[2] = value;
        let Failure::NotFinite(found) = job.fails() else { panic!("{}", job.fails()) };
        assert_eq!(
            (found.kernel.as_str(), found.is_input, found.index.as_slice()),
            ("n", true, &[2][..])
        );
        job.given[2] = 3.0;
        let Failure::NotFinite(found) = job.fails() else { panic!("{}", job.fails()) };
        assert_eq!(
            (found.kernel.as_str(), found.is_input, found.source.as_deref()),
            ("x", false, Some("m.py:7"))
        );
    }
}

#[test]
fn who_contributes_a_nan_is_blamed_and_not_who_receives_it() {
    let groups = "channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true";
    for collective in [
        format!("f32[4] all-reduce(p), {groups}, to_apply=sum"),
        format!("f32[16] all-gather(p), {groups}, dimensions={{0}}"),
        "f32[4] collective-permute(p), channel_id=1, source_target_pairs={{3,0},{2,1}}".to_owned(),
    ] {
        let checks = Checks { forbidden: Some(Forbidden::Nan), ..Checks::default() };
        let job = Job::new(module(4, "", &format!(" ROOT r = {collective}")), checks);
        let program = Arc::new(job.prepared());
        let mut inputs = vec![vec![Tensor::of(&[4], &job.given)]; 4];
        for (rank, number) in [(2, 2.0), (3, f32::NAN)] {
            inputs[rank] = vec![Tensor::of(&[4], &[0.0, number, 0.0, 0.0])];
        }
        let failure = run(&vec![program; 4], inputs, &job.options).expect_err("a NaN was given");
        let Failure::NotFinite(found) = failure else { panic!("{failure}") };
        assert_eq!((found.rank, found.is_input, found.index), (3, true, vec![1]), "{collective}");
    }
}

/// Every rank receives from the one before it, computes and sends on: the receiver's step comes
/// before the one that makes the NaN, and before the send that it waits for.
#[test]
fn who_makes_a_nan_is_blamed_and_not_who_receives_it_in_a_message() {
    let pairs =
        "channel_id=1, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2}}}";
    let body = format!(
        " t = token[] after-all()\n r = (f32[4], u32[], token[]) recv(t), {pairs}\n \
         d = (f32[4], token[]) recv-done(r), channel_id=1\n \
         y = f32[4] get-tuple-element(d), index=0\n n = f32[4] negate(y)\n i = u32[] partition-id()\n \
         f = f32[] convert(i)\n b = f32[4] broadcast(f), dimensions={{}}\n z = f32[] constant(0)\n \
         c = f32[4] broadcast(z), dimensions={{}}\n q = f32[4] divide(c, b)\n m = f32[4] add(q, n)\n \
         s = (f32[4], u32[], token[]) send(m, t), {pairs}\n u = token[] send-done(s), channel_id=1\n \
         ROOT o = f32[4] add(m, p)"
    );
    let checks = Checks { forbidden: Some(Forbidden::Nan), ..Checks::default() };
    let mut job = Job::new(module(3, "", &body), checks);
    job.options.timeout = Duration::from_secs(60);
    for _ in 0..10 {
        let began = std::time::Instant::now();
        let Failure::NotFinite(found) = job.fails() else { panic!("{}", job.fails()) };
        assert!(began.elapsed() < Duration::from_secs(10), "ranks waited for each other");
        assert_eq!((found.rank, &*found.kernel, found.is_received), (0, "q", false));
    }
}

#[test]
fn a_rank_that_stands_for_another_is_called_that() {
    let text = " i = u32[] partition-id()\n f = f32[] convert(i)\n b = f32[4] broadcast(f), dimensions={}\n m = f32[4] \
                negate(b)\n ROOT x = f32[4] log(m)";
    let mut job = Job::new(
        module(1, "", text),
        Checks { forbidden: Some(Forbidden::Nan), ..Checks::default() },
    );
    job.options.stands_for = Some((5, 8));
    let Failure::NotFinite(found) = job.fails() else { panic!("{}", job.fails()) };
    assert_eq!((found.rank, found.kernel.as_str()), (5, "x"));
}

const FUSED: &str = "far {
 x = f32[4] parameter(0)
 i = s32[] parameter(1)
 two = s32[] constant(2)
 j = s32[] multiply(i, two)
 ROOT d = f32[2] dynamic-slice(x, j), dynamic_slice_sizes={2}
}
marks {
 y = f32[4] parameter(0)
 least = f32[] constant(-2.5)
 limit = f32[4] broadcast(least), dimensions={}
 m = pred[4] compare(y, limit), direction=GT
 none = f32[] constant(nan)
 nones = f32[4] broadcast(none), dimensions={}
 ROOT s = f32[4] select(m, y, nones)
}
total {
 w = f32[4] parameter(0)
 z = f32[] constant(0)
 ROOT q = f32[] reduce(w, z), dimensions={0}, to_apply=sum
}";

/// A slice beyond its array; NaN that mark elements, alone and in a sum with others.
#[test]
fn fusions_are_looked_into() {
    let found = |result: &str| {
        let body = format!(
            " three = s32[] constant(3)\n a = f32[2] fusion(p, three), kind=kLoop, calls=far\n \
             b = f32[4] fusion(p), kind=kLoop, calls=marks\n \
             c = f32[] fusion(b), kind=kLoop, calls=total\n ROOT t = {result}"
        );
        let origins = Origins::default();
        let checks = Checks { origins: Some(origins.clone()), ..Checks::default() };
        Job::new(module(1, FUSED, &body), checks).run().unwrap();
        origins.to_json()
    };
    let marked = found("(f32[2], f32[4]) tuple(a, b)");
    let clamped = &marked["clamped"][0];
    assert_eq!((&clamped["kernel"], &clamped["index"]), (&"a".into(), &6.into()));
    assert_eq!((&clamped["most"], &clamped["dropped"]), (&2.into(), &false.into()));
    let picked = &marked["nan"][0];
    assert_eq!((&picked["how"], &picked["kernel"]), (&"picked".into(), &"b".into()));
    assert_eq!(picked["instruction"], "s");
    let summed = found("(f32[2], f32[]) tuple(a, c)");
    assert_eq!(
        (&summed["nan"][0]["how"], &summed["nan"][0]["kernel"]),
        (&"made".into(), &"c".into())
    );
}

#[test]
fn the_peak() {
    let job = Job::new(module(2, "", ROOTS), Checks::default());
    let mut program = job.prepared();
    let planned = program.peak;
    program.peak -= 4;
    let failure = job.run_as(program).err();
    assert_eq!(
        failure,
        Some(Failure::MemoryDiffers { rank: 0, requested: planned, planned: planned - 4 })
    );
    job.run().unwrap();
}

#[test]
fn memory_that_is_not_there() {
    let text = " c = f32[] constant(1)\n b = f32[10000000,10000000] broadcast(c), dimensions={}\n e = \
                f32[10000000,10000000] exponential(b)\n ROOT s = f32[1,1] slice(e), slice={[0:1],[0:1]}";
    for memory in [MemorySource::Cached, MemorySource::Marked, MemorySource::Guarded(Side::End)] {
        let failure = Job::new(module(1, "", text), Checks { memory, ..Checks::default() }).fails();
        let Failure::NoMemory { buffer, bytes, .. } = &failure else { panic!("{failure}") };
        assert_eq!((buffer.as_str(), *bytes), ("b", 400_000_000_000_000), "{memory:?}");
    }
}

#[test]
fn collectives() {
    let folder = folder("flight");
    let checks = Checks { recorder: Some(folder.join("flight.json")), ..Checks::default() };
    Job::new(module(4, "", ROOTS), checks.clone()).run().unwrap();
    for place in ["skip-collective=1:s", "stall=1:x"] {
        let job = Job::new(module(4, "", ROOTS), Checks { faults: fault(place), ..checks.clone() });
        let failure = job.fails();
        let Failure::Apart { account, .. } = &failure else { panic!("{place}: {failure}") };
        assert_eq!(
            (account.ranks.as_slice(), account.collective.as_str()),
            (&[1][..], "s"),
            "{place}"
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Ranks whose data takes them another way are named all of them, however early the first of them
/// is met.
#[test]
fn all_that_went_another_way() {
    let folder = folder("another-way");
    let checks = Checks { recorder: Some(folder.join("flight.json")), ..Checks::default() };
    let sum = |name: &str, channel: usize| {
        format!(
            "{name} {{\n x = f32[4] parameter(0)\n ROOT {name}_sum = f32[4] all-reduce(x), channel_id={channel}, \
             replica_groups={{{{0,1,2,3,4,5,6,7}}}}, use_global_device_ids=true, to_apply=sum\n}}\n"
        )
    };
    let text = " id = u32[] partition-id()\n five = u32[] constant(5)\n few = pred[] compare(id, \
                five), direction=GE\n ROOT c = f32[4] conditional(few, p, p), true_computation=rare, \
                false_computation=usual";
    for _ in 0..8 {
        let failure =
            Job::new(module(8, &(sum("rare", 2) + &sum("usual", 3)), text), checks.clone()).fails();
        let Failure::Apart { account, .. } = &failure else { panic!("{failure}") };
        assert_eq!(
            (account.ranks.as_slice(), account.collective.as_str()),
            (&[5, 6, 7][..], "usual_sum")
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Others wait in a collective, but it is the kernel that does not return which is at fault.
#[test]
fn a_kernel_that_does_not_come_back() {
    let job =
        Job::new(module(4, "", ROOTS), Checks { faults: fault("stall=1:n"), ..Checks::default() });
    let told = job.fails().to_json();
    assert_eq!(
        (told["kind"].as_str(), told["rank"].as_u64()),
        (Some("timed-out"), Some(1)),
        "{told}"
    );
    assert_eq!((told["kernel"].as_str(), told["account"].is_null()), (Some("n"), true), "{told}");
}

#[test]
fn values() {
    let folder = folder("values");
    let values =
        ValueOptions { level: ValueLevel::Save, filter: Filter::new("n"), folder: folder.clone() };
    Job::new(module(2, "", ROOTS), Checks { values: Some(values), ..Checks::default() })
        .run()
        .unwrap();
    let saved = read_values(&folder).unwrap();
    assert_eq!(saved.len(), 2);
    for of_rank in &saved {
        let launched: Vec<_> =
            of_rank.entries.iter().filter(|entry| entry.when != "input").collect();
        assert!(launched.iter().all(|entry| entry.kernel == "n"));
        let [before, after] = [launched[0], launched[1]].map(|entry| of_rank.load(entry).unwrap());
        assert_eq!(before.slice::<f32>(), [-1.0, -2.0, -3.0, -4.0]);
        assert_eq!(after.slice::<f32>(), [1.0, 2.0, 3.0, 4.0]);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A loop while its counter is below six, which a turn makes of the last one.
fn counting(turn: &str) -> Module {
    let state = "(s32[], f32[4])";
    let computations = format!(
        "goes {{\n s = {state} parameter(0)\n i = s32[] get-tuple-element(s), index=0\n six = s32[] constant(6)\n ROOT g \
         = pred[] compare(i, six), direction=LT\n}}\nturn {{\n t = {state} parameter(0)\n j = s32[] \
         get-tuple-element(t), index=0\n x = f32[4] get-tuple-element(t), index=1\n one = s32[] constant(1)\n k = s32[] \
         {turn}(j, one)\n y = f32[4] add(x, x)\n ROOT u = {state} tuple(k, y)\n}}"
    );
    let body = format!(
        " zero = s32[] constant(0)\n b = {state} tuple(zero, p)\n w = {state} while(b), condition=goes, body=turn, \
         metadata={{source_file=\"m.py\" source_line=3}}\n ROOT r = f32[4] get-tuple-element(w), index=1"
    );
    module(2, &computations, &body)
}

#[test]
fn loops_without_an_end() {
    Job::new(counting("add"), Checks::default()).run().unwrap();
    let Failure::Endless(endless) = Job::new(counting("multiply"), Checks::default()).fails()
    else {
        panic!()
    };
    assert_eq!(
        (endless.name.as_str(), endless.source.as_deref(), endless.period),
        ("w", Some("m.py:3"), Some(1))
    );
    assert!(endless.turns > 1);
    // A counter that counts the wrong way ends eventually: only an explicit limit ends it early.
    let mut job = Job::new(counting("subtract"), Checks::default());
    job.options.timeout = Duration::from_millis(50);
    job.options.loop_limit = Some(Duration::from_millis(200));
    let Failure::Endless(endless) = job.fails() else { panic!() };
    assert_eq!(endless.period, None);
}

/// Functions that do what they should not, compiled; nothing without a compiler.
fn library() -> Option<Libraries> {
    const SOURCE: &str = "
        #include <pthread.h>
        #include <unistd.h>
        static float *kept;
        static void twice(float *out, const float *in) { for (int i = 0; i < 4; i++) out[i] = 2 * in[i]; }
        void keeps(void *out, const void **ins) { kept = (float *)ins[0], twice(out, ins[0]); }
        void writes(void *out, const void **ins) { twice(out, ins[0]), *(volatile float *)kept = 1; }
        void beyond(void *out, const void **ins) { twice(out, ins[0]), ((volatile float *)out)[4] = 1; }
        static void *later(void *at) { return usleep(100000), *(volatile float *)at = 1, at; }
        void starts(void *out, const void **ins) {
            pthread_t thread;
            twice(out, ins[0]), pthread_create(&thread, 0, later, out), pthread_detach(thread);
        }
    ";
    let folder = folder(&format!("library-{:?}", std::thread::current().id()));
    let (source, library) = (folder.join("calls.c"), folder.join("calls.so"));
    std::fs::write(&source, SOURCE).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-pthread", "-o"])
        .args([&library, &source])
        .status();
    let loaded = compiled
        .is_ok_and(|status| status.success())
        .then(|| Libraries::load_trusted(&[&library]).unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
    loaded
}

fn call(target: &str) -> Module {
    let body = format!(
        " n = f32[4] negate(p)\n k = f32[4] custom-call(n), custom_call_target=\"keeps\"\n c = f32[4] custom-call(k), \
         custom_call_target=\"{target}\"\n d = f32[4] add(c, n)\n ROOT r = f32[4] add(d, k)"
    );
    module(1, "", &body)
}

#[test]
fn marks() {
    let Some(libraries) = library() else { return };
    let checks = Checks { memory: MemorySource::Marked, ..Checks::default() };
    Job { libraries: libraries.clone(), ..Job::new(call("keeps"), checks.clone()) }.run().unwrap();
    let failure = Job { libraries, ..Job::new(call("beyond"), checks) }.fails();
    let Failure::Overrun(found) = &failure else { panic!("{failure}") };
    assert_eq!((found.side, found.offset), (Side::End, 0));
    assert!(found.buffers.contains(&"c".to_owned()), "{failure}");
}

/// Runs an ignored test of this program, which does not return, and gives what it said.
fn last_words(test: &str) -> String {
    let own = std::env::current_exe().unwrap();
    let done =
        Command::new(own).args(["--exact", test, "--ignored", "--nocapture"]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(EXIT_CODE), "{said}");
    said
}

/// Live buffers are accessible only to the tasks that use them.
fn guarded(faults: Vec<Fault>) -> Checks {
    catch_faults(None);
    Checks {
        memory: MemorySource::Guarded(Side::End),
        launch_blocking: true,
        faults,
        ..Checks::default()
    }
}

#[test]
fn memory_of_others() {
    let input = last_words("writes_to_its_input");
    assert!(
        input.contains(": kernel 'n'") && input.contains("must only read: buffer 'p'"),
        "{input}"
    );
    let freed = last_words("reads_what_was_freed");
    assert!(freed.contains(": kernel 'x' (m.py:7)") && freed.contains("of buffer 'n'"), "{freed}");
    assert!(freed.contains("freed after kernel"), "{freed}");
    if library().is_none() {
        return;
    }
    let alive = last_words("writes_to_what_is_alive");
    assert!(alive.contains("kernel 'c'") && alive.contains("buffer 'n'"), "{alive}");
    assert!(alive.contains("which is alive and was not given to it"), "{alive}");
    let behind = last_words("writes_behind_its_end");
    assert!(
        behind.contains("kernel 'c', step")
            && behind.contains("right behind the end of buffer 'c'"),
        "{behind}"
    );
    let later = last_words("leaves_a_thread");
    assert!(later.contains("a thread that kernel 'c'") && later.contains("freed after"), "{later}");
}

#[test]
#[ignore = "ends its process: another test runs it as a child"]
fn writes_to_its_input() {
    Job::new(module(2, "", ROOTS), guarded(fault("mutate-input=n"))).fails();
}

#[test]
#[ignore = "ends its process: another test runs it as a child"]
fn reads_what_was_freed() {
    Job::new(module(2, "", ROOTS), guarded(fault("free-early=n"))).fails();
}

fn calls(target: &str) {
    let libraries = library().unwrap();
    Job { libraries, ..Job::new(call(target), guarded(Vec::new())) }.run().unwrap();
}

#[test]
#[ignore = "ends its process: another test runs it as a child"]
fn writes_to_what_is_alive() {
    calls("writes");
}

#[test]
#[ignore = "ends its process: another test runs it as a child"]
fn writes_behind_its_end() {
    calls("beyond");
}

#[test]
#[ignore = "ends its process: another test runs it as a child"]
fn leaves_a_thread() {
    calls("starts");
}

#[test]
fn nothing_where_all_is_well() {
    for memory in [
        MemorySource::Cached,
        MemorySource::Marked,
        MemorySource::Guarded(Side::End),
        MemorySource::Guarded(Side::Start),
    ] {
        for launch_blocking in [false, true] {
            let checks = Checks {
                memory,
                launch_blocking,
                lifetimes: Strictness::Assert,
                forbidden: Some(Forbidden::Infinity),
                ..Checks::default()
            };
            Job::new(module(8, "", ROOTS), checks.clone()).run().unwrap();
            Job::new(counting("add"), checks).run().unwrap();
        }
    }
}
