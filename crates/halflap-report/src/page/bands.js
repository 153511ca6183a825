// Bands: forward, backward and layers above the lanes; the largest buffers under the memory curve.

const BAND = 16;
/** How many buffers have a band of their own. */
const OWNED = 32;
const CLASSES = ['inputs', 'gathered parameters', 'gradients', 'activations'];
const CLASS_COLOURS = ['owned-input', 'owned-gathered', 'owned-reduced', 'owned-other'];

/** torch's capture names a graph's file after what it is; all of the graph belongs to it. */
function filePhase() {
  const found = /(?:^|[_.-])(forward|backward|optimizer)(?=[_.-]|$)/i.exec(data.title);
  return found ? found[1].toLowerCase() : '';
}

let ofFile = null; // the same, found once

/** The layer that an operation's module or parameter is part of, as its name says. */
function layerOf(op) {
  const layer = /(?:^|[._/])((?:layers?|blocks?|stages?|h)[._]?\d+)(?=$|[._/])/i.exec(ops.label[op]);
  return layer ? layer[1] : '';
}

/** Forward or backward, where the graph of a measured step, JAX's transforms or the file's name say so. */
function phaseOf(op) {
  const source = ops.source[op] || '';
  const part = /^(?:issue )?(forward|backward|optimizer)\//.exec(ops.name[op]);
  if (part) return part[1];
  return /transpose\(/.test(source) ? 'backward' : /\bjvp\(/.test(source) ? 'forward' : (ofFile ??= filePhase());
}

/** The slice with which backward begins, of a step that no name tells apart: forward goes through the layers once,
 * and backward comes to the last of them again. */
function turningPoint(view, lane) {
  const layers = [];
  for (let slice = lane.from; slice < lane.to; slice += 1) {
    const op = view.slices.op[slice];
    if (phaseOf(op)) return -1;
    // Waits have the names of what they wait for, which belongs to other layers.
    if (ops.kind[op] !== 0) continue;
    const number = Number((/\d+$/.exec(layerOf(op)) || [NaN])[0]);
    // What is in no layer, and computes, ends a visit to one: the head and the loss lie between the two.
    const before = layers[layers.length - 1];
    if (!before || before.number !== number) layers.push({ number, slice });
  }
  const numbers = layers.map(({ number }) => number).filter((number) => number >= 0);
  const last = numbers.reduce((most, number) => Math.max(most, number), -1);
  const visits = layers.filter(({ number }) => number === last);
  const isReturned = last > 0 && numbers.length > 2 && numbers[0] === 0 && numbers[numbers.length - 1] === 0;
  return isReturned && visits.length === 2 ? visits[1].slice : -1;
}

/** What a step goes through; an optimizer's part comes after backward alone. */
const PHASES = ['forward', 'backward', 'optimizer'];
/** What a change of phase costs, as a part of all compute time: less of another phase is a constant that was moved. */
const CHANGE = 0.02;

/** The phase of each slice of a lane: the one that its operation's name says, but for short stretches between others.
 * What JAX's transforms did not make is the optimizer's after backward. Nothing, where names do not tell. */
function smoothPhases(view, lane) {
  const named = [];
  for (let slice = lane.from; slice < lane.to; slice += 1) {
    const op = view.slices.op[slice];
    const isNamed = ops.kind[op] === 0 && (ops.source[op] || '') !== '';
    if (isNamed) named.push({ slice, phase: PHASES.indexOf(phaseOf(op)), time: durationOf(view, slice) });
  }
  const change = CHANGE * named.reduce((sum, { time }) => sum + time, 0);
  if (!named.some(({ phase }) => phase === 0) || !named.some(({ phase }) => phase === 1)) return new Map();
  // The cheapest way through all of them: what is not of the phase that it is put in costs its time.
  let costs = [0, change, Infinity];
  const came = named.map(({ phase, time }) => {
    const from = PHASES.map((_, now) => PHASES.reduce((best, __, before) => {
      const cost = (at) => costs[at] + (at === now ? 0 : now === 2 && at === 0 ? Infinity : change);
      return cost(before) < cost(best) ? before : best;
    }, now));
    costs = from.map((before, now) => costs[before] + (before === now ? 0 : change)
      + (now === (phase < 0 ? 2 : phase) ? 0 : time));
    return from;
  });
  let at = costs.indexOf(Math.min(...costs));
  const phases = new Map();
  for (let number = named.length - 1; number >= 0; number -= 1) {
    phases.set(named[number].slice, PHASES[at]);
    at = came[number][at];
  }
  return phases;
}

/** Which part of the step a slice belongs to. */
function sectionOf(view, slice, known) {
  const op = view.slices.op[slice];
  const { turn, phases } = known;
  const phase = turn >= 0 ? (slice < turn ? 'forward' : 'backward') : phases.get(slice) ?? phaseOf(op);
  const layer = layerOf(op);
  // A file's phase goes with layers alone: without them, it says nothing that its title does not.
  if (phase === ofFile && !layer) return '';
  return [phase, layer].filter(Boolean).join(' ');
}

/** The sections of a view, one after the other; what has none goes on with the one before it. */
function sectionsOf(view) {
  const lane = view.lanes[view.computeLane];
  const sections = [];
  if (!lane || lane.kind !== 'compute') return sections;
  const known = { turn: turningPoint(view, lane), phases: smoothPhases(view, lane) };
  for (let slice = lane.from; slice < lane.to; slice += 1) {
    const name = ops.kind[view.slices.op[slice]] === 0 ? sectionOf(view, slice, known) : '';
    const [start, end] = [view.slices.start[slice], view.slices.end[slice]];
    const last = sections[sections.length - 1];
    if (last && (name === last.name || name === '')) last.end = Math.max(last.end, end);
    else if (name !== '') sections.push({ name, start, end });
  }
  return sections;
}

function drawSections(pane) {
  if (!pane.band) return;
  base.font = '10.5px ' + SANS;
  base.textBaseline = 'middle';
  const names = [...new Set(pane.view.sections.map(({ name }) => name))];
  for (const { name, start, end } of pane.view.sections) {
    const [left, right] = [Math.max(start, state.from), Math.min(end, state.to)].map((time) => snap(xAt(time)));
    if (right - left < 1) continue;
    base.fillStyle = names.indexOf(name) % 2 ? colours.grid : colours.line;
    base.fillRect(left, pane.band.y, Math.max(1, right - left - 1), BAND - 3);
    if (right - left < 24) continue;
    base.fillStyle = colours.ink;
    base.fillText(fitted(name, right - left - 8), left + 4, pane.band.y + (BAND - 3) / 2 + 0.5);
  }
}

/** When a buffer comes to life and goes, as entries of the memory curve. */
function lifeOf(memory, buffer) {
  const maker = data.buffers.maker[buffer];
  const last = memory.freedBy[buffer - memory.firstBuffer];
  const born = maker >= 0 ? 2 * memory.place[maker] : 0;
  const gone = last >= 0 ? 2 * memory.place[last] + 1 : memory.time.length;
  return { born, gone };
}

/** The largest buffers of a view as boxes, each above those before it: those of a class are together. */
function bandsOf(memory) {
  const { size } = data.buffers;
  const all = [];
  for (let number = 0; number < memory.freedBy.length; number += 1) {
    const buffer = memory.firstBuffer + number;
    if (size[buffer] > 0) all.push(buffer);
  }
  const largest = all.sort((a, b) => size[b] - size[a] || a - b).slice(0, OWNED);
  const classOf = (buffer) => data.buffers.class[buffer] ?? CLASSES.length - 1;
  const lives = largest.map((buffer) => ({ buffer, kind: classOf(buffer), ...lifeOf(memory, buffer) }));
  lives.sort((a, b) => a.kind - b.kind || a.born - b.born || a.buffer - b.buffer);
  const edges = [...new Set(lives.flatMap(({ born, gone }) => [born, gone]))].sort((a, b) => a - b);
  const boxes = [];
  for (let at = 0; at + 1 < edges.length; at += 1) {
    let level = 0;
    for (const { buffer, kind, born, gone } of lives) {
      if (born > edges[at] || gone <= edges[at]) continue;
      boxes.push({ buffer, kind, from: edges[at], to: edges[at + 1], low: level, high: level + size[buffer] });
      level += size[buffer];
    }
  }
  return boxes;
}

/** The memory curve's moment of an entry; beyond the last one, the end of the step. */
function entryTime(view, entry) {
  return entry < view.memory.time.length ? view.memory.time[entry] : view.length;
}

function drawBands(pane, level) {
  const { view } = pane;
  const chosen = state.buffer;
  for (const { buffer, kind, from, to, low, high } of view.memory.bands) {
    const [start, end] = [entryTime(view, from), entryTime(view, to)];
    if (end <= state.from || start >= state.to) continue;
    const [left, right] = [snap(xAt(Math.max(start, state.from))), snap(xAt(Math.min(end, state.to)))];
    const [top, bottom] = [level(high), level(low)];
    if (right - left < 0.5) continue;
    base.fillStyle = buffer === chosen ? colours.accent : colours[CLASS_COLOURS[kind]];
    base.fillRect(left, top, right - left, Math.max(0.5, bottom - top - (bottom - top > 3 ? 0.75 : 0)));
  }
}

/** The buffer whose band is at a point of a pane's memory. */
function bufferAt(pane, x, y) {
  const { memory } = pane.view;
  if (!pane.memory || y < pane.memory.y || y > pane.memory.y + pane.memory.height) return -1;
  const bytes = (pane.memory.y + pane.memory.height - y) / (pane.memory.height - 6) * memoryTop();
  const entry = memoryAt(memory, timeAt(x));
  const hit = memory.bands.find(({ from, to, low, high }) => entry >= from && entry < to && bytes >= low && bytes < high);
  return hit ? hit.buffer : -1;
}

function bufferRows(view, buffer) {
  const { born, gone } = lifeOf(view.memory, buffer);
  const [from, to] = [entryTime(view, born), entryTime(view, gone)];
  const maker = data.buffers.maker[buffer];
  const last = view.memory.freedBy[buffer - view.memory.firstBuffer];
  return { from, to, maker, last };
}

function describeBuffer(view, buffer) {
  const { from, to, maker, last } = bufferRows(view, buffer);
  return {
    title: clean(data.buffers.name[buffer], 120),
    rows: [
      ['class', CLASSES[data.buffers.class[buffer]] || ''],
      ['size', formatBytes(data.buffers.size[buffer])],
      ['alive', momentText(from) + ' to ' + momentText(to) + ' (' + formatNanos(to - from) + ')'],
      ['made by', maker >= 0 ? nameOf(maker) : 'input'],
      ['last used by', last >= 0 ? nameOf(last) : 'after the step'],
    ],
  };
}

/** The buffer that was chosen, in the panel of memory. */
function bufferPanel(view) {
  const buffer = state.buffer;
  const { from, to, maker, last } = bufferRows(view, buffer);
  const rows = [
    ['size', formatBytes(data.buffers.size[buffer])],
    ['class', CLASSES[data.buffers.class[buffer]] || ''],
    ['alive', momentText(from) + ' to ' + momentText(to) + ' (' + formatNanos(to - from) + ')'],
    ['made by', maker >= 0 ? opLinks([maker]) : 'input'],
    ['last used by', last >= 0 ? opLinks([last]) : 'after the step'],
  ];
  return [element('h2', 'name', clean(data.buffers.name[buffer], 120)), definitionList(rows)];
}

/** What is alive at the peak of each view, by class. */
function classTable(compared) {
  const sums = compared.map((view) => classSums(view.memory, view.memory.peak));
  const names = compared.map((view) => element('th', 'number', views.length > 1 ? view.name : 'size'));
  const head = [element('th', '', 'at the peak'), ...names];
  if (compared.length === 2) head.push(element('th', 'number', 'change'));
  const rows = CLASSES.map((name, kind) => [name, sums.map((sum) => sum[kind])]).filter(([, of]) => of.some(Boolean));
  const change = ([before, after]) => (after === before ? '0' : (after > before ? '+' : '\u2212') + formatBytes(Math.abs(after - before)));
  return tableOf('classes', head, rows.map(([name, of]) => {
    const key = element('i', 'key');
    key.style.background = 'var(--' + CLASS_COLOURS[CLASSES.indexOf(name)] + ')';
    const cells = [element('td', '', [key, name]), ...of.map((bytes) => element('td', 'number', formatBytes(bytes)))];
    if (of.length === 2) cells.push(element('td', 'number', change(of)));
    return cells;
  }));
}

function classSums(memory, entry) {
  const sums = CLASSES.map(() => 0);
  const place = entry >> 1;
  const freed = entry & 1;
  for (let number = 0; number < memory.freedBy.length; number += 1) {
    const buffer = memory.firstBuffer + number;
    const maker = data.buffers.maker[buffer];
    if (maker >= 0 && memory.place[maker] > place) continue;
    const last = memory.freedBy[number];
    if (last >= 0 && memory.place[last] < place + freed) continue;
    sums[data.buffers.class[buffer] ?? CLASSES.length - 1] += data.buffers.size[buffer];
  }
  return sums;
}
