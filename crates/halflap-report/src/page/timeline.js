// The timeline: layout, and the lower canvas with lanes, memory and the time ruler.
//
// Two canvases lie above each other, so that a moving cursor redraws marks alone (marks.js). A frame
// costs what is in sight: slices narrower than two pixels become a part of a pixel column's height, only
// exposed ones keep a mark of their own.

const RULER = 26;
const TITLE = 22;
const LANE = { compute: 32, communication: 28 };
/** In a lane of communication the exposed part of a collective is hatched below its name. */
const UNDERSIDE = 12;
const LANE_GAP = 3;
const MEMORY = 84;
const PANE_GAP = 12;
/** No closer look than this many nanoseconds from edge to edge. */
const CLOSEST = 20;
const MONO = 'ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "Liberation Mono", monospace';
const SANS = 'Inter, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif';

/** What the canvases take from the style sheet. */
const COLOURS = [
  'paper', 'ink', 'soft', 'line', 'grid', 'beyond', 'compute', 'on-compute', 'comm', 'on-comm', 'wait', 'copy', 'several',
  'owned-input', 'owned-gathered', 'owned-reduced', 'owned-other',
  'exposed', 'exposed-soft', 'host', 'host-soft', 'memory', 'memory-soft', 'bound', 'accent',
];
/** The colour of each kind of operation. */
const FILLS = ['compute', 'comm', 'comm', 'wait', 'copy', 'several'];

const stage = byId('stage');
const base = byId('base').getContext('2d');
const marks = byId('marks').getContext('2d');

const state = {
  from: 0,
  to: longest,
  shown: firstShown(),
  range: null, // { from, to, view }
  selected: null, // { op, view, slice }: slice is -1 where the operation has none
  hover: null, // { view, lane, slice, stall }
  buffer: -1, // the buffer whose band was chosen
  cursor: null, // { time, view, entry }: entry pins one entry of the memory curve
  lane: { pane: 0, row: 0 }, // what the keyboard points at
  frame: 0,
  frames: 0,
};

/** A measured step is looked at beside its simulation; of a run's ranks, the slowest sets the pace. */
function firstShown() {
  const isBeside = data.compare || data.views[0].name === 'simulated';
  if (data.compare || data.command !== 'run') return isBeside ? [0, 1] : [0];
  const ranks = data.views.map((_, index) => index).slice(isBeside ? 1 : 0);
  const slowest = ranks.reduce((most, index) => (data.views[index].length > data.views[most].length ? index : most), ranks[0]);
  return isBeside ? [0, slowest] : [slowest];
}

const layout = { width: 0, height: 0, gutter: 0, panes: [], ratio: 1, character: 6.6 };
let colours = {};
let patterns = {};
let due = 0; // 1: marks, 2: all

/** Asks for a frame; `level` 2 redraws the lanes, too. */
function redraw(level) {
  if (due === 0) requestAnimationFrame(drawFrame);
  due = Math.max(due, level);
}

function drawFrame() {
  const began = performance.now();
  const level = due;
  due = 0;
  if (level === 2) drawBase();
  drawMarks();
  state.frame = performance.now() - began;
  state.frames += 1;
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  colours = Object.fromEntries(COLOURS.map((name) => [name, style.getPropertyValue('--' + name).trim()]));
  patterns = { exposed: makeHatch(), host: makeDots() };
}

/** Diagonal stripes: exposed time must be told apart without colours. */
function makeHatch() {
  return makePattern(7, 'exposed', (pen, size) => {
    pen.lineWidth = size * 0.32;
    for (const shift of [-size, 0, size]) {
      pen.beginPath();
      pen.moveTo(shift - 2, size + 2);
      pen.lineTo(shift + size + 2, -2);
      pen.stroke();
    }
  });
}

/** Dots: compute waits for the host, which no other order would change. */
function makeDots() {
  return makePattern(6, 'host', (pen, size) => {
    pen.beginPath();
    pen.arc(size / 2, size / 2, size / 4, 0, 2 * Math.PI);
    pen.fill();
  });
}

/** A square of a colour on its soft form, again and again. */
function makePattern(pixels, colour, paint) {
  const size = Math.round(pixels * layout.ratio);
  const tile = document.createElement('canvas');
  tile.width = size;
  tile.height = size;
  const pen = tile.getContext('2d');
  pen.fillStyle = colours[colour + '-soft'];
  pen.fillRect(0, 0, size, size);
  pen.strokeStyle = pen.fillStyle = colours[colour];
  paint(pen, size);
  const pattern = base.createPattern(tile, 'repeat');
  // The pattern is made of device pixels, the canvas is scaled to CSS pixels.
  pattern.setTransform(new DOMMatrix().scale(1 / layout.ratio));
  return pattern;
}

/** Places the panes of the shown views below each other and sizes the canvases. */
function arrange() {
  layout.width = stage.clientWidth;
  layout.gutter = gutterWidth();
  layout.ratio = window.devicePixelRatio || 1;
  let y = RULER;
  layout.panes = state.shown.map((index) => {
    const pane = arrangePane(views[index], y);
    y = pane.bottom + PANE_GAP;
    return pane;
  });
  layout.height = y - PANE_GAP + 4;
  stage.style.height = layout.height + 'px';
  for (const pen of [base, marks]) {
    pen.canvas.width = Math.round(layout.width * layout.ratio);
    pen.canvas.height = Math.round(layout.height * layout.ratio);
    pen.setTransform(layout.ratio, 0, 0, layout.ratio, 0, 0);
  }
  base.font = '11px ' + MONO;
  layout.character = base.measureText('0000000000').width / 10;
  state.lane.pane = Math.min(state.lane.pane, layout.panes.length - 1);
  readColours();
  redraw(2);
}

/** What the names of lanes and what is said below them need, within reason. */
function gutterWidth() {
  const widths = state.shown.flatMap((index) => views[index].lanes).map((lane) => {
    base.font = '11.5px ' + SANS;
    const name = base.measureText(lane.name).width;
    base.font = '10px ' + SANS;
    return Math.max(name, base.measureText(lane.note).width) + 10;
  });
  const [least, most] = layout.width < 620 ? [96, 112] : [116, layout.width / 5];
  return Math.round(Math.max(least, Math.min(most, ...[Math.max(0, ...widths)])));
}

function arrangePane(view, top) {
  const band = view.sections.length > 1 ? { y: top + TITLE - 2 } : null;
  let y = top + TITLE + (band ? BAND : 0);
  const rows = view.lanes.map((lane) => {
    const row = { lane, y, height: LANE[lane.kind] || LANE.communication };
    y += row.height + LANE_GAP;
    return row;
  });
  const memory = view.memory ? { y: y + 5, height: MEMORY } : null;
  return { view, top, band, rows, memory, bottom: memory ? memory.y + memory.height : y };
}

function plotWidth() {
  return Math.max(1, layout.width - layout.gutter - 8);
}

function xAt(time) {
  return layout.gutter + (time - state.from) / (state.to - state.from) * plotWidth();
}

function timeAt(x) {
  return state.from + (x - layout.gutter) / plotWidth() * (state.to - state.from);
}

/** To a whole device pixel, so that edges are sharp. */
function snap(x) {
  return Math.round(x * layout.ratio) / layout.ratio;
}

/** Shows a range of time, within the axis and no closer than CLOSEST. */
function show(from, to) {
  const span = Math.min(longest * 1.02, Math.max(CLOSEST, to - from));
  const middle = (from + to) / 2;
  const start = Math.max(0, Math.min(longest * 1.02 - span, middle - span / 2));
  state.from = start;
  state.to = start + span;
  noteAddress();
  redraw(2);
}

function fit() {
  show(0, longest * 1.02);
}

/** Zooms by a factor (below 1: closer) so that `time` stays where it is. */
function zoomAt(time, factor) {
  const span = state.to - state.from;
  const next = Math.min(longest * 1.02, Math.max(CLOSEST, span * factor));
  const from = time - (time - state.from) * next / span;
  show(from, from + next);
}

function pan(part) {
  const by = part * (state.to - state.from);
  show(state.from + by, state.to + by);
}

/** Brings a time into sight; too small to be seen, it is also enlarged. */
function reveal(start, end) {
  const span = state.to - state.from;
  const width = (end - start) / span * plotWidth();
  const inSight = end > state.from + 0.02 * span && start < state.to - 0.02 * span;
  if (inSight && width > 3) return;
  const wide = width > 3 ? Math.max(span, (end - start) * 1.2) : Math.max((end - start) * 12, span / 40, CLOSEST);
  const middle = (start + end) / 2;
  show(middle - wide / 2, middle + wide / 2);
}

function drawBase() {
  base.clearRect(0, 0, layout.width, layout.height);
  drawRuler();
  for (const pane of layout.panes) drawPane(pane);
  drawGutter();
}

/** Steps of 1, 2 or 5 with at least 90 pixels between two labels. */
function ruleStep() {
  const least = (state.to - state.from) * 90 / plotWidth();
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least);
}

/** Points in time are told to the microsecond, or as exactly as a pixel is at this zoom. */
function momentText(time) {
  return formatMoment(time, Math.min(1e3, pixelStep()));
}

function pixelStep() {
  return 10 ** Math.floor(Math.log10((state.to - state.from) / 200));
}

/** One unit for the whole ruler, with the decimals that the step needs. */
function ruleLabel(time, step) {
  const scale = state.to >= 1e9 ? 1e9 : state.to >= 1e6 ? 1e6 : state.to >= 1e3 ? 1e3 : 1;
  const unit = { 1e9: 's', 1e6: 'ms', 1e3: 'us', 1: 'ns' }[scale];
  const decimals = Math.max(0, Math.ceil(Math.log10(scale / step) - 1e-9));
  return time === 0 ? '0' : (time / scale).toFixed(decimals) + ' ' + unit;
}

function drawRuler() {
  const step = ruleStep();
  const bottom = layout.height;
  base.font = '11px ' + SANS;
  base.textBaseline = 'middle';
  base.textAlign = 'left';
  for (let number = Math.ceil(state.from / step); number * step <= state.to; number += 1) {
    const x = snap(xAt(number * step));
    base.fillStyle = colours.grid;
    base.fillRect(x, RULER - 6, 1, bottom - RULER + 6);
    base.fillStyle = colours.soft;
    const text = ruleLabel(number * step, step);
    if (x + 4 + base.measureText(text).width < layout.width) base.fillText(text, x + 4, 11);
  }
  base.fillStyle = colours.line;
  base.fillRect(layout.gutter, RULER - 1, plotWidth(), 1);
}

function drawPane(pane) {
  base.save();
  base.beginPath();
  base.rect(layout.gutter, pane.top, plotWidth(), pane.bottom - pane.top + 2);
  base.clip();
  drawSections(pane);
  for (const row of pane.rows) drawLane(pane.view, row);
  if (pane.memory) drawMemory(pane);
  drawEnd(pane);
  drawBound(pane);
  base.restore();
}

/** A lane: its slices, then what is exposed. */
function drawLane(view, row) {
  base.fillStyle = colours.beyond;
  base.fillRect(layout.gutter, row.y, plotWidth(), row.height);
  const labels = drawSlices(view, row);
  drawHatches(underside(row), row.lane.hatches, 'exposed');
  if (row.lane.number === view.computeLane) {
    drawHatches(row, view.spans.host, 'host');
    drawHatches(row, view.spans.exposed, 'exposed');
  }
  drawLabels(labels, row);
}

function underside(row) {
  return { y: row.y + row.height - UNDERSIDE, height: UNDERSIDE };
}

function colourOf(op) {
  return colours[FILLS[ops.kind[op]] || 'compute'];
}

/** Draws wide slices one by one and the rest as density; gives the slices that have room for a name. */
function drawSlices(view, row) {
  const { start, end, op } = view.slices;
  const { from, to } = row.lane;
  const scale = plotWidth() / (state.to - state.from);
  const density = new Float32Array(Math.ceil(plotWidth()) + 2);
  const labels = [];
  let colour = '';
  let slice = firstIndex(from, to, (at) => end[at] > state.from);
  for (; slice < to && start[slice] < state.to; slice += 1) {
    const left = (start[slice] - state.from) * scale;
    const width = (end[slice] - start[slice]) * scale;
    if (width < 2) {
      // A wait often takes no time at all.
      if (width > 0) gather(density, left, left + width);
      continue;
    }
    const next = colourOf(op[slice]);
    if (next !== colour) base.fillStyle = colour = next;
    const x = snap(layout.gutter + left);
    const right = snap(layout.gutter + left + width);
    base.fillRect(x, row.y, Math.max(1, right - x - (width > 4 ? 1 : 0)), row.height);
    if (width > 26) labels.push(slice);
  }
  // A lane holds one kind of work: its first slice has the colour of all.
  drawColumns(density, row, to > from ? colourOf(op[from]) : colours.compute, 2);
  return labels.map((at) => ({ op: op[at], left: xAt(start[at]), right: xAt(end[at]) }));
}

/** Spans in a pattern where they are wide enough, else gathered in pixel columns. */
function drawHatches(band, spans, look) {
  const columns = new Float32Array(Math.ceil(plotWidth()) + 2);
  const scale = plotWidth() / (state.to - state.from);
  const first = firstIndex(0, spans.length, (at) => spans[at].end > state.from);
  for (let at = first; at < spans.length && spans[at].start < state.to; at += 1) {
    const left = (Math.max(spans[at].start, state.from) - state.from) * scale;
    const right = (Math.min(spans[at].end, state.to) - state.from) * scale;
    if (right - left < 3) gather(columns, left, right);
    else drawHatch(band, [snap(layout.gutter + left), snap(layout.gutter + right) - 1], look);
  }
  drawColumns(columns, band, colours[look], 5);
}

function drawHatch(band, [left, right], look) {
  base.fillStyle = patterns[look];
  base.fillRect(left, band.y, right - left, band.height);
  base.fillStyle = colours[look];
  base.fillRect(left, band.y + band.height - 2, right - left, 2);
  base.fillRect(left, band.y, right - left, 2);
}

/** Adds a narrow span to the columns that it touches. */
function gather(columns, left, right) {
  for (let column = Math.max(0, Math.floor(left)); column < right && column < columns.length; column += 1) {
    columns[column] += Math.max(1e-6, Math.min(right, column + 1) - Math.max(left, column));
  }
}

/** Their part of a column is its height: the picture is true to the sum, and the least is still seen. */
function drawColumns(columns, band, colour, least) {
  const heightOf = (part) => (part === 0 ? 0 : Math.round(Math.max(least, Math.min(1, part) * band.height)));
  base.fillStyle = colour;
  for (let column = 0, until = 0; column < columns.length; column = until) {
    const height = heightOf(columns[column]);
    for (until = column + 1; until < columns.length && heightOf(columns[until]) === height;) until += 1;
    if (height > 0) base.fillRect(layout.gutter + column, band.y + band.height - height, until - column, height);
  }
}

/** Names inside their slices, as much of them as fits. */
function drawLabels(labels, row) {
  base.font = '11px ' + MONO;
  base.textBaseline = 'middle';
  for (const { op, left, right } of labels) {
    const x = Math.max(left, layout.gutter) + 5;
    const room = Math.floor((Math.min(right, layout.width) - x - 5) / layout.character);
    // A few letters of a long name say nothing.
    if (room < Math.min(nameOf(op).length, 6)) continue;
    base.fillStyle = isCollective(op) ? colours['on-comm'] : colours['on-compute'];
    const height = row.lane.kind === 'compute' ? row.height : row.height - UNDERSIDE;
    base.fillText(labelOf(op, room), x, row.y + height / 2 + 1);
  }
}

function labelOf(op, room) {
  const name = nameOf(op);
  const what = whatOf(op);
  const both = what && name.length + what.length + 1 <= Math.max(room, name.length + 8) ? name + ' ' + what : name;
  return clean(both, room);
}

/** The curve of live bytes: in each pixel column its highest value, so that no peak is lost. */
function drawMemory(pane) {
  const { memory } = pane.view;
  const { y, height } = pane.memory;
  const top = memoryTop();
  const level = (bytes) => y + height - bytes / top * (height - 6);
  const corners = cornersOf(memory, level);
  base.beginPath();
  base.moveTo(layout.gutter, y + height);
  trace(corners);
  base.lineTo(xAt(Math.min(state.to, pane.view.length)), y + height);
  base.closePath();
  base.fillStyle = colours['memory-soft'];
  base.fill();
  drawBands(pane, level);
  base.strokeStyle = colours.memory;
  base.lineWidth = 1.25;
  base.beginPath();
  trace(corners);
  base.stroke();
  base.fillStyle = colours.line;
  base.fillRect(layout.gutter, snap(y + height), plotWidth(), 1);
  if (memory.limit !== null && memory.limit !== undefined) drawLimit(snap(level(memory.limit)));
  drawPeak(memory, level);
}

/** Both views have one scale, so that they can be compared. */
function memoryTop() {
  const tops = state.shown.map((index) => views[index].memory).filter(Boolean)
    .map((memory) => Math.max(memory.bytes[memory.peak], memory.limit || 0));
  return Math.max(1, ...tops) * 1.04;
}

/** The corners of the curve, x and y in turn: in each pixel column where it comes in, its highest value and where it
 * leaves. */
function cornersOf(memory, level) {
  const { time, bytes } = memory;
  let entry = memoryAt(memory, state.from);
  let y = level(bytes[entry]);
  const corners = [layout.gutter, y];
  for (entry += 1; entry < time.length && time[entry] <= state.to;) {
    const column = Math.floor(xAt(time[entry]));
    const next = firstFrom(time, entry + 1, timeAt(column + 1));
    const highest = Math.min(y, level(mostAlive(memory, entry, next)));
    corners.push(column, y);
    y = level(bytes[next - 1]);
    if (highest < y) corners.push(column, highest);
    corners.push(column, y);
    entry = next;
  }
  const last = entry < time.length ? state.to : Math.min(state.to, Math.max(time[time.length - 1], 0));
  corners.push(xAt(last), y);
  return corners;
}

/** The first place from `at` on whose time is reached, which is near: in doubling steps. */
function firstFrom(time, at, reached) {
  let [low, high] = [at, at];
  for (let step = 1; high < time.length && time[high] < reached; step *= 2) {
    low = high + 1;
    high += step;
  }
  return firstIndex(low, Math.min(high, time.length), (place) => time[place] >= reached);
}

function trace(corners) {
  for (let at = 0; at < corners.length; at += 2) base.lineTo(corners[at], corners[at + 1]);
}

const BLOCK = 64;

/** The most that is alive from one entry of the curve up to another; of whole blocks it is known, so that a curve with
 * many entries in a pixel is drawn as fast as one with few. */
function mostAlive(memory, from, to) {
  const { bytes } = memory;
  memory.blocks ??= Float64Array.from({ length: Math.floor(bytes.length / BLOCK) },
    (_, block) => bytes.slice(block * BLOCK, (block + 1) * BLOCK).reduce((most, one) => Math.max(most, one)));
  let most = -Infinity;
  for (let at = from; at < to;) {
    const isWhole = at % BLOCK === 0 && at + BLOCK <= to;
    most = Math.max(most, isWhole ? memory.blocks[at / BLOCK] : bytes[at]);
    at += isWhole ? BLOCK : 1;
  }
  return most;
}

function drawLimit(y) {
  base.save();
  base.strokeStyle = colours.ink;
  base.setLineDash([2, 3]);
  base.lineWidth = 1;
  base.beginPath();
  base.moveTo(layout.gutter, y + 0.5);
  base.lineTo(layout.width, y + 0.5);
  base.stroke();
  base.restore();
}

function drawPeak(memory, level) {
  const x = xAt(memory.time[memory.peak]);
  if (x < layout.gutter || x > layout.width) return;
  const y = level(memory.bytes[memory.peak]);
  base.fillStyle = colours.memory;
  base.beginPath();
  base.moveTo(x, y + 1);
  base.lineTo(x - 4, y - 6);
  base.lineTo(x + 4, y - 6);
  base.fill();
  const text = 'peak ' + formatBytes(memory.bytes[memory.peak]);
  base.font = '11px ' + SANS;
  const width = base.measureText(text).width;
  const left = x + width + 12 > layout.width - 8 ? x - width - 8 : x + 8;
  base.fillStyle = colours.paper;
  base.globalAlpha = 0.85;
  base.fillRect(left - 3, y + 4, width + 6, 14);
  base.globalAlpha = 1;
  base.fillStyle = colours.ink;
  base.fillText(text, left, y + 11.5);
}

/** Where a view begins and ends, and in a comparison how much sooner or later than the other. */
function drawEnd(pane) {
  const { view } = pane;
  const x = snap(xAt(view.length));
  base.fillStyle = colours.paper;
  base.globalAlpha = 0.65;
  base.fillRect(x + 1, pane.top + TITLE - 4, layout.width, pane.bottom - pane.top);
  const first = snap(xAt(view.begin));
  if (view.begin > 0) base.fillRect(layout.gutter, pane.top + TITLE - 4, first - layout.gutter, pane.bottom - pane.top);
  base.globalAlpha = 1;
  base.fillStyle = colours.ink;
  base.fillRect(x, pane.top + 4, 1.5, pane.bottom - pane.top - 4);
  if (view.begin > 0) base.fillRect(first, pane.top + 4, 1.5, pane.bottom - pane.top - 4);
  const saved = data.compare && view.index === 1 && pane.rows.length > 0 ? views[0].length - view.length : 0;
  const room = xAt(views[0].length) - x;
  base.font = '600 11px ' + SANS;
  const text = formatNanos(saved) + ' saved';
  if (saved > 0 && room > base.measureText(text).width + 14) {
    base.fillStyle = colours.ink;
    base.fillText(text, x + 8, pane.rows[0].y + pane.rows[0].height / 2);
    base.fillStyle = colours.soft;
    base.fillRect(x + 2, pane.rows[0].y + pane.rows[0].height - 4, room - 2, 1);
  }
}

function drawBound(pane) {
  const { bound } = pane.view;
  if (bound === null || bound === undefined) return;
  const x = snap(xAt(bound)) + 0.5;
  base.save();
  base.strokeStyle = colours.bound;
  base.lineWidth = 1.5;
  base.setLineDash([5, 3]);
  base.beginPath();
  base.moveTo(x, pane.top + 6);
  base.lineTo(x, pane.bottom);
  base.stroke();
  base.setLineDash([]);
  base.font = '11px ' + SANS;
  base.fillStyle = colours.bound;
  const text = 'bound ' + formatNanos(bound);
  const width = base.measureText(text).width;
  // To the left of its line, where the step's own end cannot be in the way.
  base.fillText(text, Math.max(x - width - 5, layout.gutter + 4), pane.top + 12);
  base.restore();
}

/** Names of views and lanes, to the left and above. */
function drawGutter() {
  base.textBaseline = 'middle';
  for (const pane of layout.panes) {
    const { view } = pane;
    drawViewName(view, pane.top + 12);
    for (const row of pane.rows) drawLaneName(row);
    if (pane.memory) drawMemoryName(pane);
  }
}

/** A view's name, and its length beside it. */
function drawViewName(view, y) {
  const length = formatNanos(view.length - view.begin);
  base.font = '11px ' + SANS;
  const room = layout.gutter - base.measureText(length).width - 12;
  base.font = '600 12px ' + SANS;
  base.fillStyle = colours.ink;
  // A trace may have several steps.
  const whole = data.command === 'analyze' ? 'trace' : 'step';
  const name = fitted(views.length > 1 ? view.name : whole, room);
  base.fillText(name, 0, y);
  const width = base.measureText(name).width;
  base.font = '11px ' + SANS;
  base.fillStyle = colours.soft;
  base.fillText(length, width + 6, y + 0.5);
}

function drawLaneName(row) {
  const middle = row.y + row.height / 2;
  const note = row.lane.note && row.height >= 24;
  base.font = '11.5px ' + SANS;
  base.fillStyle = colours.ink;
  base.fillText(fitted(row.lane.name, layout.gutter - 8), 0, note ? middle - 5.5 : middle);
  if (!note) return;
  base.font = '10px ' + SANS;
  base.fillStyle = colours.soft;
  base.fillText(fitted(row.lane.note, layout.gutter - 8), 0, middle + 7);
}

function drawMemoryName(pane) {
  const { memory } = pane.view;
  base.font = '11.5px ' + SANS;
  base.fillStyle = colours.ink;
  base.fillText('memory', 0, pane.memory.y + 16);
  if (memory.limit === null || memory.limit === undefined) return;
  base.font = '10px ' + SANS;
  base.fillStyle = colours.soft;
  base.fillText(fitted('limit ' + formatBytes(memory.limit), layout.gutter - 8), 0, pane.memory.y + 30);
}

/** As much of a text as fits, by the current font. */
function fitted(text, width) {
  if (base.measureText(text).width <= width) return text;
  const most = firstIndex(1, text.length, (length) => base.measureText(text.slice(0, length) + '\u2026').width > width);
  return text.slice(0, Math.max(1, most - 1)) + '\u2026';
}
