// Input: pointer, wheel and keys of the timeline, and what they select.

const pointers = new Map();
let drag = null; // { x, from, to, moved }
let pinch = null; // { distance, time, span }

/** What lies at a point of the stage: its view, lane, and slice or stall. */
function hitAt(x, y) {
  const pane = layout.panes.find((candidate) => y >= candidate.top && y <= candidate.bottom);
  if (!pane || x < layout.gutter) return null;
  const row = pane.rows.find((candidate) => y >= candidate.y && y < candidate.y + candidate.height + LANE_GAP);
  const hit = { view: pane.view, lane: row ? row.lane : null, slice: -1, stall: -1, buffer: -1 };
  if (!row && pane.memory) hit.buffer = bufferAt(pane, x, y);
  if (!row) return hit;
  hit.slice = sliceNear(pane.view, row.lane, x);
  if (hit.slice < 0 && row.lane.number === pane.view.computeLane) hit.stall = stallNear(pane.view, x);
  return hit;
}

/** The slice at x, or the longest within two pixels: a pixel may hold many, and the longest matters most. */
function sliceNear(view, lane, x) {
  const { start, end, exposed } = view.slices;
  const time = timeAt(x);
  const reach = timeAt(x + 2) - time;
  let best = -1;
  let slice = firstIndex(lane.from, lane.to, (at) => end[at] >= time - reach);
  for (; slice < lane.to && start[slice] <= time + reach; slice += 1) {
    if (start[slice] <= time && end[slice] > time && end[slice] - start[slice] > 2 * reach) return slice;
    const weight = (at) => end[at] - start[at] + 1e3 * exposed[at];
    if (best < 0 || weight(slice) > weight(best)) best = slice;
  }
  // A stall is wider than the slice beside it: it is what is meant.
  const beside = best >= 0 && (time < start[best] || time >= end[best]);
  return beside && lane.number === view.computeLane && stallNear(view, x) >= 0 ? -1 : best;
}

function stallNear(view, x) {
  const time = timeAt(x);
  const reach = timeAt(x + 1.5) - time;
  const { start, end } = view.stalls;
  const stall = firstIndex(0, start.length, (at) => end[at] >= time - reach);
  return stall < start.length && start[stall] <= time + reach ? stall : -1;
}

/** Selects an operation everywhere: timeline, panel, tables. */
function select(op, where) {
  const view = (where && where.view) || views[state.shown[state.shown.length - 1]];
  const slice = where && where.slice >= 0 ? where.slice : mainSlice(view, op);
  state.selected = { op, view, slice };
  state.range = null;
  noteAddress();
  redraw(1);
  showDetails();
  markRows();
  byId('live').textContent = announce();
}

/** Selects all that lies between two times of a view. */
function selectRange(from, to, view) {
  state.selected = null;
  state.range = { from: Math.max(view.begin, from), to: Math.min(longest, to), view };
  noteAddress();
  redraw(1);
  showDetails();
  markRows();
  const { exposed } = rangeOf(view, state.range.from, state.range.to);
  byId('live').textContent = 'range of ' + formatNanos(to - from) + ', exposed ' + formatNanos(exposed);
}

/** Of many launches the most exposed one, or else the longest. */
function mainSlice(view, op) {
  const { exposed } = view.slices;
  const more = (slice, than) => exposed[slice] - exposed[than] || durationOf(view, slice) - durationOf(view, than);
  let best = -1;
  for (const slice of slicesOf(view, op)) {
    if (best < 0 || more(slice, best) > 0) best = slice;
  }
  return best;
}

/** Selects and brings into sight; what runs on another rank alone is shown there. */
function goTo(op, where) {
  const shownThere = state.shown.map((index) => views[index]).find((view) => slicesOf(view, op).length > 0);
  const home = shownThere || views.find((view) => slicesOf(view, op).length > 0);
  if (!data.compare && home && !state.shown.includes(home.index)) chooseView(home.index);
  select(op, where || (data.compare || !home ? null : { view: home, slice: -1 }));
  const { view, slice } = state.selected;
  if (slice >= 0) reveal(view.slices.start[slice], view.slices.end[slice]);
  else if (timeOf(view, op) >= 0) reveal(timeOf(view, op), timeOf(view, op));
}

function clearSelection() {
  if (state.buffer >= 0) redraw(2);
  state.buffer = -1;
  memoryShown = '';
  state.selected = null;
  state.range = null;
  noteAddress();
  redraw(1);
  showDetails();
  showMemory();
  markRows();
  byId('live').textContent = 'nothing selected';
}

function announce() {
  const { op, view, slice } = state.selected;
  const parts = [nameOf(op), clean(ops.what[op], 60), KINDS[ops.kind[op]]];
  if (slice >= 0) {
    parts.push('starts at ' + momentText(view.slices.start[slice]), 'takes ' + formatNanos(durationOf(view, slice)));
    if (isCollective(op)) parts.push('exposed ' + formatNanos(view.slices.exposed[slice]));
  }
  return parts.filter(Boolean).join(', ');
}

function stagePoint(event) {
  const box = stage.getBoundingClientRect();
  return { x: event.clientX - box.left, y: event.clientY - box.top };
}

function onPointerDown(event) {
  if (event.button > 0) return;
  const point = stagePoint(event);
  pointers.set(event.pointerId, point);
  stage.setPointerCapture(event.pointerId);
  if (pointers.size === 2) startPinch();
  else drag = { x: point.x, from: state.from, to: state.to, moved: false, range: event.shiftKey ? viewAt(point) : null };
}

/** The view that a range at a point would be of. */
function viewAt({ y }) {
  const pane = layout.panes.find((candidate) => y <= candidate.bottom) || layout.panes[layout.panes.length - 1];
  return pane.view;
}

function startPinch() {
  const [a, b] = [...pointers.values()];
  drag = null;
  pinch = { distance: Math.max(10, Math.abs(a.x - b.x)), time: timeAt((a.x + b.x) / 2), span: state.to - state.from };
}

function onPointerMove(event) {
  const point = stagePoint(event);
  if (pointers.has(event.pointerId)) pointers.set(event.pointerId, point);
  if (pinch && pointers.size === 2) return movePinch();
  if (drag) {
    if (Math.abs(point.x - drag.x) > 3) drag.moved = true;
    if (drag.moved && drag.range) return dragRange(point.x);
    if (drag.moved) return dragTo(point.x);
  }
  if (event.pointerType !== 'touch') hover(point, event);
}

function movePinch() {
  const [a, b] = [...pointers.values()];
  const span = pinch.span * pinch.distance / Math.max(10, Math.abs(a.x - b.x));
  const middle = (a.x + b.x) / 2;
  const from = pinch.time - (middle - layout.gutter) / plotWidth() * span;
  show(from, from + span);
}

function dragRange(x) {
  hideTip();
  const [from, to] = [drag.x, Math.max(layout.gutter, x)].map(timeAt).sort((a, b) => a - b);
  if (to > from) selectRange(from, to, drag.range);
}

function dragTo(x) {
  stage.classList.add('dragging');
  const by = (drag.x - x) / plotWidth() * (drag.to - drag.from);
  show(drag.from + by, drag.to + by);
  state.hover = null;
  hideTip();
}

function hover(point, event) {
  state.hover = hitAt(point.x, point.y);
  const view = state.hover ? state.hover.view : null;
  const time = Math.max(0, timeAt(point.x));
  state.cursor = point.x >= layout.gutter ? { time, view, entry: null } : null;
  redraw(1);
  showMemory();
  if (state.hover) showTip(event, describeHit(state.hover));
  else showTip(event, describeGutter(point));
}

/** Names of lanes are cut where they are drawn. */
function describeGutter({ x, y }) {
  if (x >= layout.gutter) return null;
  const rows = layout.panes.flatMap((pane) => pane.rows);
  const row = rows.find((candidate) => y >= candidate.y && y < candidate.y + candidate.height);
  return row ? { title: row.lane.name, rows: [['', row.lane.note]] } : null;
}

function onPointerUp(event) {
  const point = stagePoint(event);
  const clicked = drag && !drag.moved && pointers.size === 1;
  endPointer(event);
  if (!clicked) return;
  const hit = hitAt(point.x, point.y);
  if (event.pointerType === 'touch') hover(point, event);
  if (!hit || !selectHit(hit)) clearSelection();
}

/** Selects a slice, or the collective that a stall is for; says whether there was one. */
function selectHit({ view, slice, stall, buffer }) {
  if (buffer >= 0) return selectBuffer(view, buffer);
  if (slice >= 0) select(view.slices.op[slice], { view, slice });
  else if (stall >= 0) select(view.stalls.of[stall], { view, slice: view.stalls.slice[stall] });
  return slice >= 0 || stall >= 0;
}

/** Shows what is known of a buffer; its maker and last user are a click away. */
function selectBuffer(view, buffer) {
  state.buffer = buffer;
  memoryShown = '';
  redraw(2);
  showMemory();
  const { title, rows } = describeBuffer(view, buffer);
  byId('live').textContent = [title, ...rows.map(([label, text]) => label + ' ' + text)].join(', ');
  return true;
}

function endPointer(event) {
  pointers.delete(event.pointerId);
  drag = null;
  pinch = null;
  stage.classList.remove('dragging');
}

function onPointerLeave() {
  if (drag) return;
  state.hover = null;
  state.cursor = null;
  hideTip();
  showMemory();
  redraw(1);
}

/** Plain or with ctrl (a pinch on a touch pad): zoom; sideways or with shift: pan. */
function onWheel(event) {
  const lines = event.deltaMode === 1 ? 16 : 1;
  const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
  const whole = state.to - state.from >= longest * 1.0199;
  // Nothing to zoom out of: the page scrolls instead.
  if (!sideways && !event.ctrlKey && !event.metaKey && whole && event.deltaY > 0) return;
  event.preventDefault();
  if (sideways) return pan((event.deltaX || event.deltaY) * lines / plotWidth());
  const strength = event.ctrlKey ? 0.01 : 0.002;
  const factor = Math.exp(Math.max(-1, Math.min(1, event.deltaY * lines * strength)));
  zoomAt(timeAt(Math.max(layout.gutter, stagePoint(event).x)), factor);
}

function onDoubleClick(event) {
  const point = stagePoint(event);
  const hit = hitAt(point.x, point.y);
  if (!hit) return;
  if (hit.slice < 0 && hit.stall < 0) return fit();
  const spans = hit.slice >= 0 ? hit.view.slices : hit.view.stalls;
  const at = hit.slice >= 0 ? hit.slice : hit.stall;
  const margin = (spans.end[at] - spans.start[at]) * 0.3;
  show(spans.start[at] - margin, spans.end[at] + margin);
}

/** Key, what it does, and how that is said in the list of keys. */
const KEYS = [
  { keys: ['ArrowLeft', 'a'], does: () => pan(-0.12), label: '\u2190 \u2192 or a d', says: 'pan' },
  { keys: ['ArrowRight', 'd'], does: () => pan(0.12) },
  { keys: ['+', '=', 'w'], does: () => zoomAt(zoomCentre(), 1 / 1.5), label: '+ \u2212 or w s', says: 'zoom' },
  { keys: ['-', '_', 's'], does: () => zoomAt(zoomCentre(), 1.5) },
  { keys: ['0', 'Home'], does: fit, label: '0 or Home', says: 'show all of it' },
  { keys: ['n'], does: () => stepCollective(1, false), label: 'n p', says: 'next, previous collective' },
  { keys: ['p'], does: () => stepCollective(-1, false) },
  { keys: ['e'], does: () => stepCollective(1, true), label: 'e E', says: 'next, previous exposed collective' },
  { keys: ['E'], does: () => stepCollective(-1, true) },
  { keys: [']'], does: () => stepSlice(1), label: '] [', says: 'next, previous slice of the lane' },
  { keys: ['['], does: () => stepSlice(-1) },
  { keys: ['z'], does: zoomToSelected, label: 'z', says: 'zoom to the selection' },
  { keys: ['.'], does: () => moveCursor(1, 1), label: ', .', says: 'move the time cursor' },
  { keys: [','], does: () => moveCursor(-1, 1) },
  { keys: ['>'], does: () => moveCursor(1, 0), label: '< >', says: 'move it by one step of the memory curve' },
  { keys: ['<'], does: () => moveCursor(-1, 0) },
  { keys: ['ArrowUp'], does: () => moveLane(-1), label: '\u2191 \u2193', says: 'choose a lane' },
  { keys: ['ArrowDown'], does: () => moveLane(1) },
  { keys: ['Enter', ' '], does: selectAtCursor, label: 'Enter', says: 'select what the time cursor points at' },
];

/** Keys that work anywhere on the page. */
const PAGE_KEYS = [
  { keys: ['Escape'], does: clearSelection, label: 'Escape', says: 'clear the selection' },
  { keys: ['v'], does: nextViews, label: 'v', says: 'switch the views' },
  { keys: ['/'], does: focusFind, label: '/', says: 'find any operation' },
  { keys: ['t'], does: focusSearch, label: 't', says: 'search the table' },
  { keys: ['?'], does: () => byId('keys').showModal(), label: '?', says: 'this list' },
];

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (byId('keys').open || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const onStage = event.target === stage || event.target === document.body;
  // Space and Enter press buttons, arrows and Home move in tables: only on the timeline are they ours.
  const known = PAGE_KEYS.concat(onStage || event.key.length === 1 ? KEYS : []);
  const found = known.find(({ keys }) => keys.includes(event.key));
  if (!found || (event.key === ' ' && !onStage)) return;
  event.preventDefault();
  // What is under the pointer has nothing to do with what the keys point at.
  hideTip();
  found.does();
}

function zoomCentre() {
  const { selected, cursor } = state;
  const inSight = (time) => time > state.from && time < state.to;
  if (cursor && inSight(cursor.time)) return cursor.time;
  if (selected && selected.slice >= 0) {
    const { start, end } = selected.view.slices;
    const middle = (start[selected.slice] + end[selected.slice]) / 2;
    if (inSight(middle)) return middle;
  }
  return (state.from + state.to) / 2;
}

function activeView() {
  if (state.selected && state.shown.includes(state.selected.view.index)) return state.selected.view;
  const pane = layout.panes[layout.panes.length - 1];
  return pane.view;
}

/** To the next collective by start; without a selection, from the left edge of what is in sight. */
function stepCollective(direction, exposedOnly) {
  const view = activeView();
  const list = exposedOnly ? view.collectives.filter((slice) => view.slices.exposed[slice] > 0) : view.collectives;
  if (list.length === 0) return;
  const { selected } = state;
  const own = selected && selected.view === view ? list.indexOf(selected.slice) : -1;
  const time = selected && selected.slice >= 0 ? view.slices.start[selected.slice] : state.from;
  const after = firstIndex(0, list.length, (at) => view.slices.start[list[at]] >= time);
  const next = own >= 0 ? own + direction : direction > 0 ? after : after - 1;
  const slice = list[(next + list.length) % list.length];
  goTo(view.slices.op[slice], { view, slice });
}

function stepSlice(direction) {
  const pane = layout.panes[state.lane.pane];
  const { selected } = state;
  if (pane.rows.length === 0) return;
  const view = selected ? selected.view : pane.view;
  if (selected && selected.slice >= 0) {
    const lane = view.lanes[view.slices.lane[selected.slice]];
    const slice = Math.min(lane.to - 1, Math.max(lane.from, selected.slice + direction));
    return goTo(view.slices.op[slice], { view, slice });
  }
  const { lane } = pane.rows[state.lane.row];
  const slice = firstIndex(lane.from, lane.to, (at) => view.slices.end[at] > state.from);
  if (slice < lane.to) goTo(view.slices.op[slice], { view, slice });
}

function zoomToSelected() {
  const { selected } = state;
  if (!selected || selected.slice < 0) return;
  const start = selected.view.slices.start[selected.slice];
  const end = selected.view.slices.end[selected.slice];
  show(start - (end - start) * 0.5, end + (end - start) * 0.5);
}

/** Moves the time cursor to the next entry of the memory curve that is `pixels` away; without one, by pixels. */
function moveCursor(direction, pixels) {
  const { view } = layout.panes[state.lane.pane];
  const time = state.cursor ? state.cursor.time : (state.from + state.to) / 2;
  if (!view.memory) {
    const step = (state.to - state.from) / plotWidth() * (pixels ? 8 : 1);
    state.cursor = { time: Math.max(0, Math.min(longest, time + direction * step)), view, entry: null };
  } else {
    const from = state.cursor ? cursorEntry(view) : memoryAt(view.memory, time);
    const least = (state.to - state.from) / plotWidth() * 4 * pixels;
    const entry = nextEntry(view.memory, from, least, direction);
    state.cursor = { time: view.memory.time[entry], view, entry };
  }
  follow(state.cursor.time);
  showMemory();
  byId('live').textContent = describeCursor();
  redraw(1);
}

function nextEntry(memory, from, least, direction) {
  const inside = (entry) => Math.max(0, Math.min(memory.time.length - 1, entry));
  const near = (entry) => Math.abs(memory.time[entry] - memory.time[from]) < least;
  let entry = inside(from + direction);
  while (near(entry) && entry !== inside(entry + direction)) entry += direction;
  return entry;
}

/** Keeps a time in sight by panning as little as needed. */
function follow(time) {
  const span = state.to - state.from;
  if (time < state.from) show(time - span * 0.1, time + span * 0.9);
  else if (time > state.to) show(time - span * 0.9, time + span * 0.1);
}

function moveLane(direction) {
  const places = layout.panes.flatMap((pane, number) => pane.rows.map((_, row) => ({ pane: number, row })));
  const at = places.findIndex((place) => place.pane === state.lane.pane && place.row === state.lane.row);
  if (places.length === 0) return;
  state.lane = places[Math.max(0, Math.min(places.length - 1, at + direction))];
  const pane = layout.panes[state.lane.pane];
  byId('live').textContent = 'lane ' + pane.rows[state.lane.row].lane.name + ', ' + pane.view.name;
  redraw(1);
}

function selectAtCursor() {
  const pane = layout.panes[state.lane.pane];
  if (pane.rows.length === 0) return;
  const { lane } = pane.rows[state.lane.row];
  const x = xAt(state.cursor ? state.cursor.time : (state.from + state.to) / 2);
  const slice = sliceNear(pane.view, lane, x);
  const stall = lane.number === pane.view.computeLane ? stallNear(pane.view, x) : -1;
  selectHit({ view: pane.view, slice, stall });
}

function listenToInput() {
  stage.addEventListener('pointerdown', onPointerDown);
  stage.addEventListener('pointermove', onPointerMove);
  stage.addEventListener('pointerup', onPointerUp);
  stage.addEventListener('pointercancel', endPointer);
  stage.addEventListener('pointerleave', onPointerLeave);
  stage.addEventListener('wheel', onWheel, { passive: false });
  stage.addEventListener('dblclick', onDoubleClick);
  stage.addEventListener('focus', () => redraw(1));
  stage.addEventListener('blur', () => redraw(1));
  document.addEventListener('keydown', onKey);
  byId('zoom-in').addEventListener('click', () => zoomAt(zoomCentre(), 1 / 1.5));
  byId('zoom-out').addEventListener('click', () => zoomAt(zoomCentre(), 1.5));
  byId('fit').addEventListener('click', fit);
  byId('previous').addEventListener('click', () => stepCollective(-1, true));
  byId('following').addEventListener('click', () => stepCollective(1, true));
}
