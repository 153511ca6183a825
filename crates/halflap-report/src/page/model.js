// The data, indexed for drawing: slices by lane and by operation, stalls, memory.

const KINDS = [
  'compute', 'collective', 'synchronous collective', 'wait', 'memory copy or set', 'several small operations',
];
const CAUSES = [
  'needed', 'synchronous', 'waiting for the host', 'end of step', 'queued', 'transfer', 'wake-up',
];
/** The cause of stalls that communication has no part in: the host had not issued it yet. */
const HOST = 2;
const COLLECTIVE = 1;
const SYNCHRONOUS = 2;
const COPY = 4;

const report = JSON.parse(byId('data').textContent);
/** Which part of the program is shown: another one is another load of this file, by the address. */
const addressed = readAddress();
const shownPart = Math.max(0, Math.min(addressed.part || 0, report.parts.length - 1));
const data = report.parts[shownPart];
const ops = data.ops;
// What people call an operation, if its program says so.
if (!ops.label || ops.label.length === 0) ops.label = ops.name.map(() => '');
const opCount = ops.name.length;
if (!data.buffers.class) data.buffers.class = [];
const views = data.views.map(buildView);
/** The time axis is the same for all views. */
const longest = Math.max(1, ...views.map((view) => Math.max(view.length, view.bound || 0)));
const collectiveOf = invertWaits();
const opByName = indexNames();

function buildView(raw, index) {
  const slices = {
    lane: Int32Array.from(raw.slices.lane),
    op: Int32Array.from(raw.slices.op),
    start: Float64Array.from(raw.slices.start),
    end: Float64Array.from(raw.slices.end),
    exposed: Float64Array.from(raw.slices.exposed),
  };
  const { begin, length, bound, headline } = raw;
  const view = { index, name: clean(raw.name, 24), begin: begin || 0, length, bound, headline, slices };
  view.stalls = sortStalls(raw.stalls);
  view.byOp = indexByOp(slices);
  view.lanes = raw.lanes.map((lane, number) => buildLane(view, lane, number));
  view.computeLane = busiestLane(view);
  view.memory = raw.memory && raw.memory.time.length > 0 ? buildMemory(raw.memory) : null;
  view.sections = sectionsOf(view);
  if (view.memory) view.memory.bands = bandsOf(view.memory);
  view.collectives = listCollectives(view);
  matchStalls(view);
  view.spans = { exposed: stallSpans(view, false), host: stallSpans(view, true) };
  view.budget = budgetOf(view, raw.spent);
  return view;
}

/** By time: they come by collective. */
function sortStalls(raw) {
  const order = raw.start.map((_, stall) => stall).sort((a, b) => raw.start[a] - raw.start[b]);
  const columns = ['start', 'end', 'of', 'at', 'cause'];
  return Object.fromEntries(columns.map((column) => [column, order.map((stall) => raw[column][stall])]));
}

function buildLane(view, lane, number) {
  const { lane: of } = view.slices;
  const from = firstIndex(0, of.length, (slice) => of[slice] >= number);
  const to = firstIndex(from, of.length, (slice) => of[slice] > number);
  const name = clean(lane.name, 80);
  return { number, name, note: clean(lane.note || '', 80), kind: lane.kind, from, to, hatches: [] };
}

/** The lane that stalls are shown in: of several compute streams the one that computes most. */
function busiestLane(view) {
  const busy = (lane) => {
    let sum = 0;
    for (let slice = lane.from; slice < lane.to; slice += 1) sum += durationOf(view, slice);
    return sum;
  };
  const lanes = view.lanes.filter((lane) => lane.kind === 'compute').map((lane) => [busy(lane), lane.number]);
  return lanes.reduce((most, lane) => (lane[0] > most[0] ? lane : most), lanes[0] || [0, 0])[1];
}

/** For each operation its slices: `list` from `first[op]` to `first[op + 1]`. */
function indexByOp(slices) {
  const first = new Int32Array(opCount + 1);
  for (const op of slices.op) first[op + 1] += 1;
  for (let op = 0; op < opCount; op += 1) first[op + 1] += first[op];
  const next = first.slice();
  const list = new Int32Array(slices.op.length);
  slices.op.forEach((op, slice) => { list[next[op]++] = slice; });
  return { first, list };
}

function slicesOf(view, op) {
  return view.byOp.list.subarray(view.byOp.first[op], view.byOp.first[op + 1]);
}

function buildMemory(raw) {
  const memory = {
    time: Float64Array.from(raw.time),
    bytes: Float64Array.from(raw.bytes),
    order: Int32Array.from(raw.order),
    firstBuffer: raw.first_buffer || 0,
    freedBy: Int32Array.from(raw.freed_by),
    limit: raw.limit,
    place: new Int32Array(opCount).fill(-1),
    peak: 0,
  };
  memory.order.forEach((op, place) => { memory.place[op] = place; });
  memory.bytes.forEach((bytes, entry) => { if (bytes > memory.bytes[memory.peak]) memory.peak = entry; });
  return memory;
}

/** The slices of collectives, by start. */
function listCollectives(view) {
  const { op, start } = view.slices;
  const list = [];
  for (let slice = 0; slice < op.length; slice += 1) {
    if (isCollective(op[slice])) list.push(slice);
  }
  return list.sort((a, b) => start[a] - start[b]);
}

function durationOf(view, slice) {
  return view.slices.end[slice] - view.slices.start[slice];
}

function isCollective(op) {
  return ops.kind[op] === COLLECTIVE || ops.kind[op] === SYNCHRONOUS;
}

/** Which part of a slice is exposed: where compute stood still for it; without such a stall, its end. */
function matchStalls(view) {
  const { stalls, slices } = view;
  const seen = new Set();
  stalls.slice = stalls.of.map((op, stall) => findSlice(view, op, stalls.start[stall], stalls.end[stall]));
  const add = (slice, start, end) => {
    if (end > start) view.lanes[slices.lane[slice]].hatches.push({ start, end, slice });
  };
  stalls.slice.forEach((slice, stall) => {
    if (slice < 0) return;
    seen.add(slice);
    if (stalls.cause[stall] === HOST) return;
    add(slice, Math.max(slices.start[slice], stalls.start[stall]), Math.min(slices.end[slice], stalls.end[stall]));
  });
  slices.exposed.forEach((exposed, slice) => {
    if (exposed === 0 || seen.has(slice)) return;
    add(slice, Math.max(slices.start[slice], slices.end[slice] - exposed), slices.end[slice]);
  });
  for (const lane of view.lanes) lane.hatches.sort((a, b) => a.start - b.start);
}

/** The slice of `op` that overlaps a time, or the last before it. */
function findSlice(view, op, start, end) {
  if (op < 0) return -1;
  const list = slicesOf(view, op);
  const after = firstIndex(0, list.length, (at) => view.slices.start[list[at]] >= end);
  return after === 0 ? -1 : list[after - 1];
}

/** Where the time of a view goes: what its parts are, and how long. `spent` is exact where slices were merged. */
function budgetOf(view, spent) {
  const { compute, exposed, host = 0, copies = 0 } = spent || countedBudget(view);
  const idle = Math.max(0, view.length - view.begin - compute - exposed - host - copies);
  const all = [['compute', compute], ['exposed', exposed], ['host', host], ['copies', copies], ['idle', idle]];
  return all.filter(([, time]) => time >= 0.5);
}

function countedBudget(view) {
  const busy = [];
  for (const lane of view.lanes) {
    if (lane.kind !== 'compute') continue;
    for (let slice = lane.from; slice < lane.to; slice += 1) {
      busy.push([view.slices.start[slice], view.slices.end[slice]]);
    }
  }
  const compute = lengthOfUnion(busy);
  const length = (host) => lengthOfUnion(stallSpans(view, host).map(({ start, end }) => [start, end]));
  return { compute, exposed: length(false), host: length(true) };
}

/** When compute stood still: for collectives, or for the host. */
function stallSpans(view, host) {
  const { start, end, cause } = view.stalls;
  const spans = start.map((from, stall) => ({ start: from, end: end[stall], host: cause[stall] === HOST }));
  return spans.filter((span) => span.host === host);
}

function lengthOfUnion(spans) {
  spans.sort((a, b) => a[0] - b[0]);
  let sum = 0;
  let until = -Infinity;
  for (const [start, end] of spans) {
    if (end > until) sum += end - Math.max(start, until);
    until = Math.max(until, end);
  }
  return sum;
}

/** For each wait its collectives. */
function invertWaits() {
  const of = new Map();
  ops.waits.forEach((waits, op) => {
    for (const wait of waits) {
      if (!of.has(wait)) of.set(wait, []);
      of.get(wait).push(op);
    }
  });
  return of;
}

/** Names that stand for one operation alone, so that a sentence's words can lead to it. */
function indexNames() {
  const byName = new Map();
  for (const names of [ops.name, ops.label]) {
    names.forEach((name, op) => {
      if (name.length > 0 && name.length < 200) byName.set(name, byName.has(name) ? -1 : op);
    });
  }
  return byName;
}

/** What people call an operation: its parameter or module, where that is known; else its name. */
function nameOf(op) {
  return withoutMiddle(ops.label[op] || ops.name[op], 120) || '(unnamed)';
}

/** The name of an operation in the program that was read, where people call it something else. */
function nodeOf(op) {
  return ops.label[op] ? clean(ops.name[op], 200) : '';
}

/** As much of a name as the page was given. */
function wholeNameOf(op) {
  return clean(ops.label[op] || ops.name[op], 600) || '(unnamed)';
}

function whatOf(op) {
  return clean(ops.what[op], 240);
}

/** When an operation begins; a wait that takes no time has no slice, but a place in the order. */
function timeOf(view, op) {
  const own = slicesOf(view, op);
  if (own.length > 0) return view.slices.start[own[0]];
  const place = view.memory ? view.memory.place[op] : -1;
  if (place >= 0) return view.memory.time[2 * place];
  const stall = view.stalls.at.indexOf(op);
  return stall < 0 ? NaN : view.stalls.end[stall];
}

/** How long nothing hides an operation in a view, over all its slices. */
function exposedOf(view, op) {
  return slicesOf(view, op).reduce((sum, slice) => sum + view.slices.exposed[slice], 0);
}

/** The operations that depend on `op`. */
function dependentsOf(op) {
  const list = [];
  ops.deps.forEach((deps, other) => { if (deps.includes(op)) list.push(other); });
  return list;
}

/** The entry of the memory curve that holds at a time. */
function memoryAt(memory, time) {
  return Math.max(0, firstIndex(0, memory.time.length, (entry) => memory.time[entry] > time) - 1);
}

/** The largest buffers that are alive at an entry: at most `most`, and how many there are. */
function liveBuffers(memory, entry, most) {
  const { size, maker } = data.buffers;
  const place = entry >> 1;
  const freed = entry & 1;
  const top = [];
  let count = 0;
  for (let number = 0; number < memory.freedBy.length; number += 1) {
    const buffer = memory.firstBuffer + number;
    if (maker[buffer] >= 0 && memory.place[maker[buffer]] > place) continue;
    const last = memory.freedBy[number];
    if (last >= 0 && memory.place[last] < place + freed) continue;
    count += 1;
    if (top.length === most && size[buffer] <= size[top[most - 1]]) continue;
    const at = firstIndex(0, top.length, (rank) => size[top[rank]] < size[buffer]);
    top.splice(at, 0, buffer);
    if (top.length > most) top.pop();
  }
  return { top, count };
}
