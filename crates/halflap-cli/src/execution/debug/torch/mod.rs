//! `halflap debug -- COMMAND`: the guide for a user's torch program. Each stage runs the command
//! once more under torch's own variables and reads what is printed.

mod generated;
mod launches;
mod lifetimes;
mod python;
mod run;
mod suspect;

use std::path::Path;
use std::time::{Duration, Instant};

use super::child::{End, signal_name, text};
use super::report::{Diagnosis, Kind, Report, Reproduced};
use crate::args;
use crate::exit::Failed;
use generated::{GeneratedCall, GeneratedGraph};
use lifetimes::LifetimeFinding;
use python::{Exception, Frame};
use run::{CommandRun, CommandSession, Guard, Stand, Variables};
use suspect::{LastCall, Suspect};

/// Walks the guide.
pub fn debug(args: &args::Debug, folder: &Path, is_loud: bool) -> Result<Report, Failed> {
    let mut session = CommandSession::open(args, folder, is_loud)?;
    let finding = walk(&mut session)?;
    session.report.finding = finding;
    Ok(session.report)
}

fn walk(session: &mut CommandSession<'_>) -> Result<Option<Diagnosis>, Failed> {
    let plain = session.run("plain", Variables::plain())?;
    let result = match &plain.exception() {
        Some((_, exception)) => format!("{}: {}", plain.end, exception.message),
        None => plain.end.to_string(),
    };
    session.report.stage("plain run", result);
    if plain.end == End::TimedOut {
        return hang(session, &plain).map(Some);
    }
    let conclusive = plain.exception().filter(|(_, exception)| is_conclusive(exception));
    if let Some((rank, exception)) = conclusive.filter(|_| plain.crash().is_none()) {
        return Ok(Some(raised(session, &plain, rank, &exception)));
    }
    // Memory comes before values: an invalid write makes other kernels look guilty. These runs also
    // check the values of compiled graphs.
    let guarded = match guard(session)? {
        Guarded::Crashed(finding) => return Ok(Some(*finding)),
        Guarded::Ran(guarded) => guarded,
    };
    // A program that fails only with guard pages may need more memory than there is.
    let fails_alone = |ran: &CommandRun| !ran.end.is_good() && Bad::said_by(ran).is_none();
    let sanity = match plain.end.is_good() && guarded.iter().any(fails_alone) {
        true => Some(check_values(session)?),
        false => None,
    };
    let checked: Vec<&CommandRun> = sanity.iter().chain(&guarded).collect();
    let lifetime = lifetime(session, &plain, &checked)?;
    if let Some(found) = lifetime.as_ref().filter(|found| found.spoils_values) {
        return Ok(Some(found.finding.clone()));
    }
    if let Some(found) = not_numbers(session, sanity.as_ref(), &guarded)? {
        return Ok(Some(found));
    }
    // A fault that does not recur with guard pages still happened once.
    if plain.crash().is_some() {
        return crashed(session, &plain, Guard::Off).map(Some);
    }
    let failed = [Some(&plain), sanity.as_ref()];
    let failed = failed.into_iter().flatten().find(|ran| !ran.end.is_good());
    let failed = failed.map(|ran| match ran.exception() {
        Some((rank, exception)) => raised(session, ran, rank, &exception),
        None => left(session, ran),
    });
    Ok(failed.or(lifetime.map(|found| found.finding)))
}

const NOTHING_COMPILED: &str = "nothing was compiled: the program called no function of \
    torch.compile, so the checks of compiled graphs had nothing to check";

/// Whether a buffer's lifetime is wrong. If something else already is, that matters only where an
/// operator of the user's may be why: compiled kernels keep, free and resize nothing.
fn lifetime(
    session: &mut CommandSession<'_>,
    plain: &CommandRun,
    checked: &[&CommandRun],
) -> Result<Option<LifetimeFinding>, Failed> {
    let graphs: Vec<GeneratedGraph> = checked.first().map_or(Vec::new(), |ran| ran.graphs());
    if graphs.is_empty() {
        session.report.notes.push(NOTHING_COMPILED.to_owned());
        return Ok(None);
    }
    let is_wrong = |ran: &&CommandRun| Bad::said_by(ran).is_some();
    let is_known = !plain.end.is_good() || checked.iter().any(is_wrong);
    let has_operators = graphs.iter().flat_map(|graph| &graph.calls).any(GeneratedCall::is_custom);
    match is_known && !has_operators {
        true => Ok(None),
        false => lifetimes::check(session),
    }
}

/// The run in which compiled graphs check their values, without guard pages.
fn check_values(session: &mut CommandSession<'_>) -> Result<CommandRun, Failed> {
    let sanity = session.run("sanity", Variables::sanity())?;
    session.report.stage("sanity checks", sanity.end.to_string());
    Ok(sanity)
}

/// The results of the runs with guard pages.
enum Guarded {
    Crashed(Box<Diagnosis>),
    Ran(Vec<CommandRun>),
}

/// Runs it with guard pages behind tensors, and then before them.
fn guard(session: &mut CommandSession<'_>) -> Result<Guarded, Failed> {
    let mut guarded = Vec::new();
    for guard in [Guard::End, Guard::Start] {
        let ran = session.run(guard.stage(), Variables::guarded(guard))?;
        let (name, what) = match guard {
            Guard::Start => ("guard before", "every tensor right after a guard page"),
            _ => ("guard behind", "every tensor right before a guard page"),
        };
        session.report.stage(name, format!("{what}: {}", ran.end));
        if ran.crash().is_some() {
            return Ok(Guarded::Crashed(Box::new(crashed(session, &ran, guard)?)));
        }
        guarded.push(ran);
        if session.has_no_guard() {
            break;
        }
    }
    Ok(Guarded::Ran(guarded))
}

/// A program that exits by itself, without an exception: its last output says why.
fn left(session: &CommandSession<'_>, ran: &CommandRun) -> Diagnosis {
    let words = ran.last_words();
    let what = match words.is_empty() {
        true => format!("the program {} by itself, without any output", ran.end),
        false => {
            format!("the program {} by itself; its last output: {}", ran.end, words.join(" / "))
        }
    };
    let mut finding = Diagnosis::new(Kind::Exception, what);
    finding.reproduce = Some(session.again(&ran.variables));
    finding.shown = Some(Reproduced::Yes);
    finding
}

/// Errors that neither values nor memory can cause.
fn is_conclusive(exception: &Exception) -> bool {
    const OF_THE_PROGRAM: [&str; 9] = [
        "ImportError",
        "ModuleNotFoundError",
        "SyntaxError",
        "NameError",
        "AttributeError",
        "TypeError",
        "FileNotFoundError",
        "PermissionError",
        "NotImplementedError",
    ];
    let name = exception.message.split(':').next().unwrap_or_default();
    is_about_inputs(exception) || OF_THE_PROGRAM.contains(&name)
}

/// Errors about inputs of another shape or type.
fn is_about_inputs(exception: &Exception) -> bool {
    let words = [
        "shapes cannot be multiplied",
        "size of tensor",
        "sizes of tensors",
        "expected size",
        "expected stride",
        "unmatched",
        "wrong number of dimensions",
        "same dtype",
        "must have the same",
        "must have same",
        "size mismatch",
        "expected scalar type",
        "shape '",
        "to have shape",
        "dimension",
        "Given groups=",
    ];
    let message = exception.message.to_lowercase();
    words.iter().any(|word| message.contains(&word.to_lowercase()))
}

fn raised(
    session: &CommandSession<'_>,
    ran: &CommandRun,
    rank: Option<usize>,
    exception: &Exception,
) -> Diagnosis {
    let left = ran.silent_ranks();
    let freed = exception.freed_buffer();
    let (kind, what) = match exception {
        _ if let Some((buffer, frame)) = freed => (Kind::Lifetime, freed_early(buffer, frame)),
        _ if is_about_inputs(exception) => (Kind::WrongInput, exception.message.clone()),
        _ if exception.is_echo() && !left.is_empty() => (Kind::Apart, left_alone(&left, exception)),
        _ => (Kind::Exception, exception.message.clone()),
    };
    let mut finding = Diagnosis::new(kind, what);
    finding.rank = rank;
    finding.source = own(exception.frames.iter().rev());
    let operator = exception.message.split_once("torch.ops.").map(|(_, rest)| {
        rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_' && letter != '.')
            .next()
            .unwrap_or("")
    });
    finding.kernel = operator.map(|name| format!("torch.ops.{name}"));
    if let Some((buffer, frame)) = freed {
        finding.buffer = Some(buffer.to_owned());
        finding.kernel = Some(frame.callee().to_owned());
    }
    finding.reproduce = Some(session.again(&ran.variables));
    finding.shown = Some(Reproduced::Yes);
    finding
}

/// Explains generated code that reads a deleted name.
fn freed_early(buffer: &str, frame: &Frame) -> String {
    let Frame { file, line, .. } = frame;
    let kernel = frame.callee();
    format!("Inductor's generated code frees {buffer} before {kernel} uses it ({file}:{line})")
}

/// Explains a rank's message that another rank left.
fn left_alone(left: &[usize], exception: &Exception) -> String {
    let ranks: Vec<String> = left.iter().map(usize::to_string).collect();
    let who = if left.len() == 1 { "rank" } else { "ranks" };
    format!(
        "{who} {} ended without an error while others waited for it: {}",
        ranks.join(", "),
        exception.message
    )
}

/// The innermost line of the program itself; for a compiled function, which Python only knows by
/// its decorator, also where it is called.
fn own<'a>(frames: impl Iterator<Item = &'a Frame>) -> Vec<String> {
    let own: Vec<&Frame> = frames.filter(|frame| frame.is_own()).take(2).collect();
    let count = if own.first().is_some_and(|frame| frame.code.starts_with('@')) { 2 } else { 1 };
    own.into_iter().take(count).map(Frame::render).collect()
}

/// What torch's check reported about values.
struct Bad {
    rank: Option<usize>,
    exception: Exception,
    is_infinite: bool,
}

impl Bad {
    fn said_by(ran: &CommandRun) -> Option<Bad> {
        ran.exceptions().into_iter().find_map(|(rank, exception)| Bad::of(rank, exception))
    }

    fn of(rank: Option<usize>, exception: Exception) -> Option<Bad> {
        let code = exception.frames.last().map_or("", |frame| frame.code.as_str());
        let is_about =
            |word: &str, other: &str| code.contains(word) || exception.message.contains(other);
        let is_nan = is_about(".isnan()", "one NaN");
        let is_infinite = is_about(".isinf()", "one INF") && !is_nan;
        (is_nan || is_infinite).then_some(Bad { rank, exception, is_infinite })
    }

    fn words(&self) -> &'static str {
        if self.is_infinite { "an infinity" } else { "NaN" }
    }
}

/// Whether torch's checks found NaN, and if so which kernel made it. New memory is NaN in the first
/// of the guarded runs and finite in the second: a value that is bad only in the first was never
/// written, and runs without guards show it at random.
fn not_numbers(
    session: &mut CommandSession<'_>,
    sanity: Option<&CommandRun>,
    guarded: &[CommandRun],
) -> Result<Option<Diagnosis>, Failed> {
    let is_good = |ran: &CommandRun| Bad::said_by(ran).is_none();
    match guarded {
        [end, start] if !is_good(end) && (is_good(start) || sanity.is_some_and(is_good)) => {
            blame(session, end, Guard::End)
        }
        _ => match sanity.into_iter().chain(guarded).find(|ran| !is_good(ran)) {
            Some(ran) => blame(session, ran, Guard::Off),
            None => Ok(None),
        },
    }
}

fn blame(
    session: &mut CommandSession<'_>,
    ran: &CommandRun,
    guard: Guard,
) -> Result<Option<Diagnosis>, Failed> {
    let Some(bad) = Bad::said_by(ran) else { return Ok(None) };
    let stage = if guard == Guard::Off { "values" } else { "values-guarded" };
    let values = session.run_until_bad(stage, Variables::values(guard, &[]), bad.is_infinite)?;
    session.report.stage("values", format!("of every kernel: {}", values.end));
    let found = values.first_bad(bad.is_infinite);
    let is_found = found.is_some();
    let (rank, suspect) = found.map_or((bad.rank, None), |(rank, suspect)| (rank, Some(suspect)));
    let kernels: Vec<String> = match &suspect {
        Some(Suspect::Kernel { call, producers, .. }) => {
            producers.iter().chain([call]).map(|call| call.kernel.clone()).collect()
        }
        _ => Vec::new(),
    };
    let mut finding = accuse(suspect, &bad, guard);
    if finding.source.is_empty() {
        finding.source = own(bad.exception.frames.iter().rev());
    }
    finding.rank = rank;
    let kernels: Vec<&str> = kernels.iter().map(String::as_str).collect();
    let again = Variables::values(guard, &kernels);
    finding.reproduce = Some(session.again(&again));
    // Without the names of kernels it is the run that was just made.
    let is_shown = kernels.is_empty() || {
        let ran = session.run_until_bad("again", again, bad.is_infinite)?;
        ran.first_bad(bad.is_infinite).is_some()
    };
    let shown = if is_shown { Reproduced::Yes } else { Reproduced::NotThisTime };
    finding.shown = is_found.then_some(shown);
    Ok(Some(finding))
}

/// The description of a suspect.
fn accuse(suspect: Option<Suspect>, bad: &Bad, guard: Guard) -> Diagnosis {
    let kind = match (guard, bad.is_infinite) {
        (Guard::Off, true) => Kind::Infinity,
        (Guard::Off, false) => Kind::NotANumber,
        _ => Kind::Uninitialised,
    };
    let words = bad.words();
    match suspect {
        Some(Suspect::Kernel { call, went_in, came_out, .. }) => {
            let what = match guard {
                Guard::Off => format!("{} makes {words} from finite numbers", call.title()),
                _ => format!("{} passes on memory that no kernel has written", call.title()),
            };
            let mut finding = Diagnosis::new(kind, what);
            (finding.went_in, finding.came_out) = (went_in, came_out);
            finding.source = call.source.clone();
            finding.kernel = Some(call.title());
            finding
        }
        Some(Suspect::Input(tensor)) => {
            let what = format!(
                "{} of a compiled graph is given {words}: it comes from outside",
                tensor.value.buffer
            );
            let mut finding = Diagnosis::new(kind, what);
            finding.went_in = vec![tensor.value];
            finding
        }
        None => {
            let code = bad.exception.frames.last().map_or("", |frame| frame.code.as_str());
            Diagnosis::new(
                kind,
                format!("a compiled graph has {words} among its inputs or outputs ({code})"),
            )
        }
    }
}

/// A program that a signal ended: which kernel it was in, and what went into that.
fn crashed(
    session: &mut CommandSession<'_>,
    ran: &CommandRun,
    guard: Guard,
) -> Result<Diagnosis, Failed> {
    let names = session.run("names", Variables::names(guard))?;
    // It need not recur without guard pages.
    let (witness, found) = match names.crash() {
        Some(_) => (&names, names.last_call()),
        None => (ran, None),
    };
    let (rank, signal) = witness.crash().unwrap_or_default();
    let said =
        found.as_ref().map_or("no kernel of a compiled graph".to_owned(), |last| last.call.title());
    session.report.stage("kernel names", format!("{}; it was in {said}", names.end));
    let fault = witness.guard_fault(rank);
    let stack = own(witness.stack(rank).iter());
    let place = found.as_ref().map(|last| last.call.title()).or_else(|| stack.first().cloned());
    let place = place.unwrap_or_else(|| "the program".to_owned());
    let (kind, what) = match &fault {
        Some(fault) => (fault.kind(), format!("{place} {}", fault.words())),
        None => (Kind::Crash, format!("{place} ends with {}", signal_name(signal))),
    };
    let mut finding = Diagnosis::new(kind, what);
    finding.rank = rank;
    if let Some(last) = &found {
        finding.kernel = Some(last.call.title());
        finding.source = last.call.source.clone();
        around(session, last, guard, &mut finding)?;
    }
    finding.source.extend(
        stack.into_iter().filter(|line| !finding.source.contains(line)).collect::<Vec<_>>(),
    );
    finding.reproduce = Some(session.again(&witness.variables));
    // It is the run that showed it.
    finding.shown = Some(Reproduced::Yes);
    Ok(finding)
}

/// The values of a kernel and those that made its inputs, and of no other.
fn around(
    session: &mut CommandSession<'_>,
    last: &LastCall,
    guard: Guard,
    finding: &mut Diagnosis,
) -> Result<(), Failed> {
    let LastCall { call, producers } = last;
    let kernels: Vec<&str> =
        producers.iter().chain([call]).map(|call| call.kernel.as_str()).collect();
    let values = session.run("values", Variables::values(guard, &kernels))?;
    session.report.stage("values", format!("of {}: {}", kernels.join(", "), values.end));
    finding.went_in = values.last_values(finding.rank, call);
    Ok(())
}

/// A program that hangs: where it is.
fn hang(session: &mut CommandSession<'_>, plain: &CommandRun) -> Result<Diagnosis, Failed> {
    let stands = plain.standing();
    if stands.len() > 1 {
        let mut finding = Diagnosis::new(Kind::Hang, waiting(&stands));
        finding.source =
            stands.iter().map(|stand| format!("rank {}: {}", stand.rank, stand.words)).collect();
        finding.reproduce = Some(session.again(&plain.variables));
        finding.shown = Some(Reproduced::Yes);
        return Ok(finding);
    }
    let names = session.run("names", Variables::names(Guard::Off))?;
    let found = names.last_call();
    let said =
        found.as_ref().map_or("no kernel of a compiled graph".to_owned(), |last| last.call.title());
    session.report.stage("kernel names", format!("{}; it was in {said}", names.end));
    let rank = plain.rank_that_says().flatten();
    let stack = own(plain.stack(rank).iter());
    let place = found.as_ref().map(|last| last.call.title()).or_else(|| stack.first().cloned());
    let place = place.as_deref().unwrap_or("the start");
    let what = format!(
        "nothing happens after {place}; a program that is only slow needs a longer --timeout"
    );
    let mut finding = Diagnosis::new(Kind::Hang, what);
    finding.rank = rank;
    finding.source = found.as_ref().map_or(Vec::new(), |last| last.call.source.clone());
    finding.kernel = found.map(|last| last.call.title());
    finding.source.extend(stack);
    finding.reproduce = Some(session.again(&names.variables));
    let shown = if names.end == End::TimedOut { Reproduced::Yes } else { Reproduced::NotThisTime };
    finding.shown = Some(shown);
    Ok(finding)
}

/// What ranks that wait for each other are waiting in.
fn waiting(stands: &[Stand]) -> String {
    let mut collectives: Vec<(&str, Vec<String>)> = Vec::new();
    for stand in stands {
        let Some(name) = &stand.collective else { continue };
        match collectives.iter_mut().find(|(other, _)| other == name) {
            Some((_, ranks)) => ranks.push(stand.rank.to_string()),
            None => collectives.push((name, vec![stand.rank.to_string()])),
        }
    }
    if collectives.len() < 2 {
        return "the ranks wait: each line says where".to_owned();
    }
    let each = |(name, ranks): &(&str, Vec<String>)| match ranks.len() {
        1 => format!("rank {} in {name}", ranks[0]),
        _ => format!("ranks {} in {name}", ranks.join(", ")),
    };
    let each: Vec<String> = collectives.iter().map(each).collect();
    format!("ranks issue collectives in different orders, and wait: {}", each.join("; "))
}

/// How often the output of a running program is checked.
const LOOK: Duration = Duration::from_secs(1);

/// Says when it is time to check a file again.
fn every_so_often() -> impl FnMut() -> bool {
    let mut last = Instant::now();
    move || {
        let is_due = last.elapsed() > LOOK;
        if is_due {
            last = Instant::now();
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_in_different_collectives_have_different_orders() {
        let stand = |rank: usize, collective: Option<&str>| Stand {
            rank,
            words: String::new(),
            collective: collective.map(str::to_owned),
        };
        let words = waiting(&[
            stand(0, Some("all_reduce")),
            stand(1, Some("all_gather_into_tensor")),
            stand(2, Some("all_reduce")),
        ]);
        let expected = "ranks issue collectives in different orders, and wait: ranks 0, 2 in \
                        all_reduce; rank 1 in all_gather_into_tensor";
        assert_eq!(words, expected);
        for other in [Some("all_reduce"), None] {
            let words = waiting(&[stand(0, Some("all_reduce")), stand(1, other)]);
            assert_eq!(words, "the ranks wait: each line says where");
        }
    }

    #[test]
    fn errors_of_the_program_need_no_further_runs() {
        let raised = |message: &str| {
            is_conclusive(&Exception { message: message.to_owned(), frames: Vec::new() })
        };
        assert!(raised("ModuleNotFoundError: No module named 'data'"));
        assert!(raised("RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 4x3)"));
        assert!(!raised("RuntimeError: the loss is negative"));
        assert!(!raised("UnboundLocalError: cannot access local variable 'buf19'"));
    }
}
