// The upper canvas: cursor, hover, selection, dependencies, and arrows from a collective to its wait.

function drawMarks() {
  marks.clearRect(0, 0, layout.width, layout.height);
  marks.save();
  marks.beginPath();
  marks.rect(layout.gutter - 1, 0, layout.width - layout.gutter + 1, layout.height);
  marks.clip();
  if (state.range) drawRange();
  if (state.cursor) drawCursor();
  const { hover: under } = state;
  if (under && under.slice >= 0) outlineSlice(under.view, under.slice, { colour: colours.ink, width: 1 });
  if (state.selected) drawSelection();
  marks.restore();
  if (stage.matches(':focus-visible')) drawKeyboardLane();
}

/** The selected range, from edge to edge of its view. */
function drawRange() {
  const pane = paneOf(state.range.view);
  if (!pane) return;
  const [left, right] = [state.range.from, state.range.to].map((time) => snap(xAt(time)));
  marks.globalAlpha = 0.16;
  marks.fillStyle = colours.accent;
  marks.fillRect(left, pane.top, right - left, pane.bottom - pane.top);
  marks.globalAlpha = 1;
  marks.fillRect(left, pane.top, 1.5, pane.bottom - pane.top);
  marks.fillRect(right - 1.5, pane.top, 1.5, pane.bottom - pane.top);
}

function paneOf(view) {
  return layout.panes.find((pane) => pane.view === view);
}

/** The rectangle of a slice in stage coordinates, or null where its view is not shown. */
function boxOf(view, slice) {
  const pane = paneOf(view);
  if (!pane) return null;
  const row = pane.rows[view.slices.lane[slice]];
  const left = xAt(view.slices.start[slice]);
  const right = Math.max(left + 2, xAt(view.slices.end[slice]));
  return { left, right, y: row.y, height: row.height };
}

function outlineSlice(view, slice, style) {
  const box = boxOf(view, slice);
  if (!box || box.right < layout.gutter || box.left > layout.width) return;
  const left = Math.max(snap(box.left), layout.gutter - 20);
  const right = Math.min(snap(box.right), layout.width + 20);
  const out = style.width / 2;
  marks.beginPath();
  marks.rect(left - out, box.y - out, right - left - 1 + 2 * out, box.height + 2 * out);
  strokeWithEdge(style);
}

/** Strokes the path between two edges of paper, so that it stands out from any slice. */
function strokeWithEdge(style) {
  marks.strokeStyle = colours.paper;
  marks.lineWidth = style.width + 2.5;
  marks.stroke();
  marks.strokeStyle = style.colour;
  marks.lineWidth = style.width;
  marks.setLineDash(style.dash || []);
  marks.stroke();
  marks.setLineDash([]);
}

/** A line at the cursor's time, its time on the ruler, and a dot on each memory curve. */
function drawCursor() {
  const x = snap(xAt(state.cursor.time));
  if (x < layout.gutter || x > layout.width) return;
  marks.fillStyle = colours.soft;
  marks.fillRect(x, RULER - 8, 1, layout.height - RULER + 8);
  marks.font = '600 11px ' + SANS;
  marks.textBaseline = 'middle';
  // As exact as a pixel is at this zoom.
  const text = ruleLabel(state.cursor.time, pixelStep());
  const width = marks.measureText(text).width + 10;
  const left = Math.min(Math.max(layout.gutter, x - width / 2), layout.width - width);
  marks.fillStyle = colours.ink;
  marks.fillRect(left, 2, width, 17);
  marks.fillStyle = colours.paper;
  marks.fillText(text, left + 5, 11);
  for (const pane of layout.panes) drawMemoryDot(pane, x);
}

function drawMemoryDot(pane, x) {
  const { memory } = pane.view;
  if (!memory || state.cursor.time > pane.view.length) return;
  const bytes = memory.bytes[cursorEntry(pane.view)];
  const y = pane.memory.y + pane.memory.height - bytes / memoryTop() * (pane.memory.height - 6);
  marks.beginPath();
  marks.arc(x + 0.5, y, 3.5, 0, 2 * Math.PI);
  marks.fillStyle = colours.paper;
  marks.fill();
  marks.lineWidth = 1.5;
  marks.strokeStyle = colours.memory;
  marks.stroke();
}

/** The entry of a view's memory curve that the cursor points at. */
function cursorEntry(view) {
  const { cursor } = state;
  if (cursor.entry !== null && cursor.view === view) return cursor.entry;
  return memoryAt(view.memory, cursor.time);
}

function drawSelection() {
  const { op } = state.selected;
  for (const pane of layout.panes) {
    for (const dep of ops.deps[op]) markDependency(pane.view, dep);
    outlineOp(pane.view, op);
    for (const wait of waitsOf(op)) drawWaitArrow(pane, op, wait);
  }
  if (data.compare && layout.panes.length === 2) joinViews(op);
}

/** A collective's waits; of a wait, itself. */
function waitsOf(op) {
  return isCollective(op) ? ops.waits[op] : [];
}

function outlineOp(view, op) {
  const chosen = state.selected;
  const own = slicesOf(view, op);
  // Thousands of launches of one kernel: those in sight, and of those too narrow to tell apart one each pixel.
  let edge = -Infinity;
  for (const slice of own) {
    const right = xAt(view.slices.end[slice]);
    if (right < layout.gutter || xAt(view.slices.start[slice]) > layout.width || right < edge + 1) continue;
    edge = right;
    const main = own.length === 1 || (chosen.view === view && chosen.slice === slice);
    outlineSlice(view, slice, { colour: colours.accent, width: main ? 2.5 : 1 });
  }
  const instant = own.length === 0 || (own.length === 1 && view.slices.end[own[0]] === view.slices.start[own[0]]);
  if (instant) markInstant(view, op, colours.accent);
}

/** An operation that takes no time: a flag at its place on the compute lane. */
function markInstant(view, op, colour) {
  const pane = paneOf(view);
  const time = timeOf(view, op);
  if (!pane || !(time >= state.from && time <= state.to)) return;
  const x = snap(xAt(time));
  const row = pane.rows[view.computeLane];
  marks.fillStyle = colour;
  marks.fillRect(x - 0.75, row.y - 3, 1.5, row.height + 6);
  marks.beginPath();
  marks.moveTo(x - 5, row.y - 8);
  marks.lineTo(x + 5, row.y - 8);
  marks.lineTo(x, row.y - 1);
  marks.fill();
}

function markDependency(view, dep) {
  const own = slicesOf(view, dep);
  if (own.length === 0) return;
  outlineSlice(view, own[0], { colour: colours.ink, width: 1.5, dash: [3, 2] });
  const box = boxOf(view, own[0]);
  if (!box) return;
  const x = Math.min(box.right, Math.max(box.left, box.right));
  marks.fillStyle = colours.ink;
  marks.beginPath();
  marks.arc(x, box.y, 3, 0, 2 * Math.PI);
  marks.fill();
}

/** From the end of a collective to where the program waits for it. */
function drawWaitArrow(pane, op, wait) {
  const { view } = pane;
  const own = slicesOf(view, op);
  const time = timeOf(view, wait);
  if (own.length === 0 || !(time >= 0)) return;
  const box = boxOf(view, own[0]);
  const row = pane.rows[view.computeLane];
  const below = box.y > row.y;
  // Along the edge of the lane, where it crosses no names.
  const from = { x: box.right, y: below ? box.y + 1 : box.y + box.height - 1 };
  const to = { x: xAt(time), y: below ? row.y + row.height : row.y };
  markInstant(view, wait, colours.accent);
  // The program waits until its very end: the flag says so, and there is no room for an arrow.
  if (Math.abs(to.x - from.x) < 8) return;
  marks.beginPath();
  marks.moveTo(from.x, from.y);
  marks.bezierCurveTo(from.x + 0.7 * (to.x - from.x), from.y, to.x, from.y, to.x, to.y + (below ? 6 : -6));
  strokeWithEdge({ colour: colours.accent, width: 1.75 });
  drawArrowHead(to, below ? 1 : -1);
}

function drawArrowHead(tip, side) {
  marks.fillStyle = colours.accent;
  marks.beginPath();
  marks.moveTo(tip.x, tip.y);
  marks.lineTo(tip.x - 4.5, tip.y + side * 8);
  marks.lineTo(tip.x + 4.5, tip.y + side * 8);
  marks.fill();
}

/** A thin line from the operation before to the same one after: how far it moved in time. */
function joinViews(op) {
  const boxes = layout.panes.map((pane) => {
    const own = slicesOf(pane.view, op);
    return own.length > 0 ? boxOf(pane.view, own[0]) : null;
  });
  if (!boxes[0] || !boxes[1]) return;
  marks.beginPath();
  marks.moveTo((boxes[0].left + boxes[0].right) / 2, boxes[0].y + boxes[0].height + 3);
  marks.lineTo((boxes[1].left + boxes[1].right) / 2, boxes[1].y - 3);
  strokeWithEdge({ colour: colours.accent, width: 1, dash: [4, 3] });
}

/** The lane that Enter would take a slice from. */
function drawKeyboardLane() {
  const pane = layout.panes[state.lane.pane];
  const row = pane && pane.rows[state.lane.row];
  if (!row) return;
  marks.fillStyle = colours.accent;
  marks.fillRect(layout.gutter - 5, row.y, 3, row.height);
}
