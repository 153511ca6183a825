// What is known about one thing: the tooltip, the panel of the selected operation, memory at the cursor.

const LINKS = 8;
const OWNERS = 8;
/** What a column of the largest buffers has room for: longer names lose their middle, and stay different. */
const OWNER_NAME = 11;
const STALLS = 4;
const SUMS = 6;

/** A tooltip or list of label and value: rows that have no value are left out. */
function pairs(rows) {
  return rows.filter(([, value]) => value !== '' && value !== null && value !== undefined);
}

function definitionList(rows, className) {
  const list = element('dl', className);
  for (const [label, value] of pairs(rows)) {
    const cell = element('dd', '', typeof value === 'string' ? value : undefined);
    if (typeof value !== 'string') cell.append(value);
    list.append(element('dt', '', label), cell);
  }
  return list;
}

function describeHit(hit) {
  if (hit.slice >= 0) return describeSlice(hit.view, hit.slice);
  if (hit.stall >= 0) return describeStall(hit.view, hit.stall);
  if (hit.buffer >= 0) return describeBuffer(hit.view, hit.buffer);
  return null;
}

function describeSlice(view, slice) {
  const op = view.slices.op[slice];
  const start = view.slices.start[slice];
  return {
    title: nameOf(op),
    rows: [
      ['', whatOf(op)],
      ['node', nodeOf(op)],
      ['kind', KINDS[ops.kind[op]]],
      ['start', momentText(start)],
      ['duration', formatNanos(durationOf(view, slice))],
      ['exposed', isCollective(op) ? formatNanos(view.slices.exposed[slice]) : ''],
      ...sizeRows(op),
      ['group', groupOf(op)],
      ['source', clean(ops.source[op], 200)],
    ],
  };
}

function describeStall(view, stall) {
  const { start, end, of, at, cause } = view.stalls;
  const host = cause[stall] === HOST;
  return {
    title: host ? 'compute waits for the host' : 'compute stands still',
    rows: [
      ['for', of[stall] >= 0 ? nameOf(of[stall]) : ''],
      ['before', at[stall] >= 0 ? nameOf(at[stall]) : ''],
      ['cause', CAUSES[cause[stall]] || ''],
      ['start', momentText(start[stall])],
      [host ? 'duration' : 'exposed', formatNanos(end[stall] - start[stall])],
    ],
  };
}

function sizeRows(op) {
  return [
    [isCollective(op) ? 'message' : 'traffic', ops.bytes[op] >= 0 ? formatBytes(ops.bytes[op]) : ''],
    ['flops', ops.flops[op] > 0 ? formatFlops(ops.flops[op]) : ''],
  ];
}

function groupOf(op) {
  const group = data.groups[ops.group[op]];
  return group ? clean(group.name, 60) + (group.ranks ? ' (' + clean(group.ranks, 80) + ')' : '') : '';
}

function showTip(event, content) {
  if (!content) return hideTip();
  const tip = byId('tip');
  const [first, ...rest] = content.rows;
  const lead = first[0] === '' ? first[1] : '';
  tip.replaceChildren(element('b', 'name', content.title));
  if (lead) tip.append(element('p', '', lead));
  tip.append(definitionList(first[0] === '' ? rest : content.rows));
  tip.hidden = false;
  placeTip(tip, event.clientX, event.clientY);
}

/** Beside the pointer, on the side where there is room. */
function placeTip(tip, x, y) {
  const { offsetWidth: width, offsetHeight: height } = tip;
  const left = x + 16 + width > innerWidth ? x - width - 12 : x + 16;
  const top = y + 18 + height > innerHeight ? y - height - 12 : y + 18;
  tip.style.left = Math.max(4, Math.min(left, innerWidth - width - 4)) + 'px';
  tip.style.top = Math.max(4, top) + 'px';
}

function hideTip() {
  byId('tip').hidden = true;
}

/** An operation's name that leads to it. */
function opLink(op, most = 36) {
  const link = element('button', 'link name', withoutMiddle(ops.label[op] || ops.name[op], most) || '(unnamed)');
  link.type = 'button';
  link.title = [nameOf(op), KINDS[ops.kind[op]], whatOf(op)].filter(Boolean).join('\u2002');
  link.addEventListener('click', () => {
    goTo(op);
    // The panel was built anew, and the link with it: a user of the keyboard continues at its head.
    byId('details').querySelector('h2').focus({ preventScroll: true });
  });
  return link;
}

function opLinks(list) {
  const line = element('span', 'links');
  for (const op of list.slice(0, LINKS)) line.append(opLink(op), ' ');
  if (list.length > LINKS) line.append(moreLinks(line, list));
  return list.length > 0 ? line : '';
}

function moreLinks(line, list) {
  const more = element('button', 'link', (list.length - LINKS) + ' more');
  more.type = 'button';
  more.addEventListener('click', () => {
    more.remove();
    // Bounded: an operation of a huge graph may have thousands.
    for (const op of list.slice(LINKS, 200)) line.append(opLink(op), ' ');
    if (list.length > 200) line.append('and ' + (list.length - 200) + ' more');
  });
  return more;
}

/** A sentence in which names of operations lead to them. */
function linkedSentence(text) {
  const line = element('span', '');
  for (const word of clean(text, 600).split(/(\s+)/)) {
    const bare = word.replace(/[,;:.]$/, '');
    const op = opByName.get(bare);
    if (op >= 0) line.append(opLink(op), word.slice(bare.length));
    else line.append(word);
  }
  return line;
}

function showDetails() {
  const panel = byId('details');
  panel.replaceChildren();
  if (!state.selected) {
    panel.append(...(state.range ? rangePanel() : exposedSummary()));
    return;
  }
  const { op } = state.selected;
  const close = element('button', 'close', '\u00d7');
  close.type = 'button';
  close.setAttribute('aria-label', 'Clear the selection');
  close.addEventListener('click', () => {
    clearSelection();
    stage.focus({ preventScroll: true });
  });
  const head = element('h2', 'name', wholeNameOf(op));
  head.tabIndex = -1;
  panel.append(element('div', 'head', [head, close]));
  if (ops.what[op]) panel.append(element('p', 'what', whatOf(op)));
  panel.append(timesTable(op));
  panel.append(definitionList(detailRows(op)));
}

/** Without a selection: which operations compute stood still for, and why. */
function exposedSummary() {
  const compared = data.compare ? views : state.shown.map((index) => views[index]);
  const what = (op) => clean(ops.what[op] || '', 60) || nameOf(op);
  const byWhat = compared.map((view) => sumStalls(view, (stall) => what(view.stalls.of[stall])));
  const byCause = compared.map((view) => sumStalls(view, (stall) => CAUSES[view.stalls.cause[stall]] || 'unknown'));
  const causes = new Set(byCause.flatMap((sums) => [...sums.keys()]));
  const hint = element('p', 'hint', 'Click an operation, or press e for the next exposed collective.');
  const none = byWhat.every((sums) => sums.size === 0);
  const sums = none
    ? [element('p', '', 'None: compute never stands still for a collective.')]
    : [sumsTable('operation', byWhat, compared)];
  // Where all of it has one cause, there is nothing to compare.
  if (causes.size > 1) sums.push(sumsTable('cause', byCause, compared));
  return [element('h2', '', 'Exposed communication'), ...sums, hint];
}

/** The time of all stalls by a key, but for those that the host is to blame for. */
function sumStalls(view, keyOf) {
  const sums = new Map();
  view.stalls.of.forEach((op, stall) => {
    if (op < 0 || view.stalls.cause[stall] === HOST) return;
    const key = keyOf(stall);
    sums.set(key, (sums.get(key) || 0) + view.stalls.end[stall] - view.stalls.start[stall]);
  });
  return sums;
}

function sumsTable(title, sums, compared) {
  const total = (key) => sums.reduce((sum, of) => sum + (of.get(key) || 0), 0);
  const keys = [...new Set(sums.flatMap((of) => [...of.keys()]))].sort((a, b) => total(b) - total(a));
  const rest = keys.splice(SUMS);
  const names = compared.map((view) => element('th', 'number', views.length > 1 ? view.name : 'time'));
  const time = (of, key) => element('td', 'number', formatNanos(of.get(key) || 0));
  const rows = keys.map((key) => [element('td', '', key), ...sums.map((of) => time(of, key))]);
  if (rest.length > 0) {
    const of = (sum) => rest.reduce((all, key) => all + (sum.get(key) || 0), 0);
    const times = sums.map((sum) => element('td', 'number', formatNanos(of(sum))));
    rows.push([element('td', '', rest.length + ' more'), ...times]);
  }
  return tableOf('', [element('th', '', title), ...names], rows);
}

/** Start, duration, exposed time and place of an operation in each view. */
function timesTable(op) {
  const compared = data.compare ? views : [state.selected.view];
  const head = [element('th', '', KINDS[ops.kind[op]]), ...compared.map((view) => element('th', 'number', view.name))];
  const all = timeRows(op).map(([label, ofView]) => [label, compared.map(ofView)]);
  const rows = all.filter(([, texts]) => texts.some(Boolean));
  const cells = ([label, texts]) => [explained(element('th', '', label), label), ...texts.map((text) => element('td', 'number', text))];
  return tableOf('times', head, rows.map(cells));
}

function timeRows(op) {
  const { selected } = state;
  const own = (view) => (selected.view === view && selected.slice >= 0 ? selected.slice : mainSlice(view, op));
  const ofSlice = (value) => (view) => (own(view) >= 0 ? formatNanos(value(view, own(view))) : '');
  const launches = (view) => slicesOf(view, op).length;
  return [
    ['start', (view) => formatTime(own(view) >= 0 ? view.slices.start[own(view)] : timeOf(view, op))],
    ['queued', (view) => queuedText(view, op)],
    ['duration', ofSlice(durationOf)],
    ['exposed', isCollective(op) ? ofSlice((view, slice) => view.slices.exposed[slice]) : () => ''],
    ['launches', (view) => (launches(view) > 1 ? String(launches(view)) : '')],
    ['in all', (view) => (launches(view) > 1 ? formatNanos(sumOfSlices(view, op)) : '')],
    ['exposed in all', (view) => (launches(view) > 1 && isCollective(op) ? formatNanos(exposedOf(view, op)) : '')],
    ['place', (view) => placeText(view, op)],
  ];
}

/** A time, or nothing where it is not known. */
function formatTime(time) {
  return time >= 0 ? momentText(time) : '';
}

function placeText(view, op) {
  const place = view.memory ? view.memory.place[op] : -1;
  return place >= 0 ? (place + 1) + ' of ' + view.memory.order.length : '';
}

function sumOfSlices(view, op) {
  return slicesOf(view, op).reduce((sum, slice) => sum + durationOf(view, slice), 0);
}

/** How long a collective was issued but its stream was busy with others. */
function queuedText(view, op) {
  const own = slicesOf(view, op);
  if (!isCollective(op) || own.length !== 1 || !view.memory || view.memory.place[op] < 0) return '';
  const queued = view.slices.start[own[0]] - view.memory.time[2 * view.memory.place[op]];
  return queued > 0.5 ? formatNanos(queued) : '';
}

function detailRows(op) {
  const told = rowDetails(op).map(([label, text]) => [clean(label, 40), linkedSentence(text)]);
  return [
    ['moved', movedText(op)],
    ...told,
    ['stalls', stallLines(op)],
    ['waited at', opLinks(isCollective(op) ? ops.waits[op] : [])],
    ['waits for', opLinks(collectiveOf.get(op) || [])],
    ['needs', opLinks(ops.deps[op])],
    ['needed by', opLinks(dependentsOf(op))],
    ...sizeRows(op),
    ['group', groupOf(op)],
    ['node', nodeOf(op)],
    ['source', clean(ops.source[op], 400)],
  ];
}

/** How far an operation moved between the views: places in the order, and time. */
function movedText(op) {
  if (!data.compare) return '';
  const [before, after] = views;
  const parts = [];
  if (before.memory && after.memory && before.memory.place[op] >= 0) {
    const places = after.memory.place[op] - before.memory.place[op];
    const far = Math.abs(places) + (Math.abs(places) === 1 ? ' place ' : ' places ') + (places < 0 ? 'earlier' : 'later');
    parts.push(places === 0 ? 'same place' : far);
  }
  const time = timeOf(after, op) - timeOf(before, op);
  if (Math.abs(time) >= 0.5) parts.push('starts ' + formatNanos(Math.abs(time)) + (time < 0 ? ' earlier' : ' later'));
  return parts.join('; ');
}

/** Where compute stood still for it, in the views that are shown. */
function stallLines(op) {
  const lines = element('span', 'lines');
  for (const view of data.compare ? state.shown.map((index) => views[index]) : [state.selected.view]) {
    const { start, end, of, at, cause } = view.stalls;
    const own = of.map((other, stall) => (other === op ? stall : -1)).filter((stall) => stall >= 0);
    // Of many launches the chosen one comes first.
    const chosen = (stall) => Number(view === state.selected.view && view.stalls.slice[stall] === state.selected.slice);
    own.sort((a, b) => chosen(b) - chosen(a) || a - b);
    for (const stall of own.slice(0, STALLS)) {
      const line = element('span', '', [formatNanos(end[stall] - start[stall]) + ', ' + (CAUSES[cause[stall]] || '')]);
      if (data.compare) line.prepend(view.name + ': ');
      if (at[stall] >= 0) line.append(', before ', opLink(at[stall]));
      lines.append(line);
    }
    if (own.length > STALLS) lines.append(element('span', '', 'and ' + (own.length - STALLS) + ' more'));
  }
  return lines.childElementCount > 0 ? lines : '';
}

/** The view whose memory is shown: the cursor's, or else the last one. */
function memoryView() {
  const { cursor } = state;
  if (cursor && cursor.view && cursor.view.memory) return cursor.view;
  const shown = state.shown.map((index) => views[index]).filter((view) => view.memory);
  return shown[shown.length - 1] || null;
}

let memoryShown = ''; // what the panel holds now, so that a moving pointer does not rebuild the same

function showMemory() {
  const panel = byId('memory');
  const view = memoryView();
  panel.hidden = !view;
  if (!view) return;
  const atPeak = !state.cursor || state.cursor.time > view.length;
  const entry = atPeak ? view.memory.peak : cursorEntry(view);
  const key = [view.index, entry, atPeak, state.buffer].join();
  if (key === memoryShown) return;
  memoryShown = key;
  const op = view.memory.order[entry >> 1];
  const [before, after] = entry & 1 ? ['after ', ' freed'] : ['while ', ' runs'];
  const where = element('p', 'hint', [before, opLink(op), after + ', at ' + momentText(view.memory.time[entry])]);
  const parts = [memoryHead(view, entry, atPeak), where, ownersTable(view.memory, entry)];
  const own = state.buffer - view.memory.firstBuffer;
  if (own >= 0 && own < view.memory.freedBy.length) parts.unshift(...bufferPanel(view));
  const compared = (data.compare ? views : [view]).filter((one) => one.memory);
  if (atPeak) parts.push(classTable(compared));
  panel.replaceChildren(...parts);
}

function memoryHead(view, entry, atPeak) {
  const title = (atPeak ? 'Peak memory' : 'Memory') + (views.length > 1 ? ' ' + view.name : '');
  const bytes = element('b', 'number', formatBytes(view.memory.bytes[entry]));
  return element('div', 'head', [element('h2', '', title), bytes]);
}

function ownersTable(memory, entry) {
  const { top, count } = liveBuffers(memory, entry, OWNERS);
  const total = Math.max(1, memory.bytes[entry]);
  const { size } = data.buffers;
  const names = shortNames(top.map((buffer) => data.buffers.name[buffer]), OWNER_NAME);
  const short = (buffer) => names.get(data.buffers.name[buffer]);
  const rows = top.map((buffer) => ownerRow(buffer, short(buffer), size[buffer] / total, size[buffer] / size[top[0]]));
  const rest = Math.max(0, memory.bytes[entry] - top.reduce((sum, buffer) => sum + size[buffer], 0));
  if (count > top.length) rows.push(restRow(count - top.length, rest, rest / total));
  const titles = ['buffer', 'made by', 'size', 'share'];
  return tableOf('owners', titles.map((name, at) => element('th', at > 1 ? 'number' : '', name)), rows);
}

/** What is alive beside the largest. */
function restRow(count, bytes, part) {
  const texts = [count + ' more', '', formatBytes(bytes), share(part)];
  const classes = ['rest', 'rest', 'rest number', 'rest number meter'];
  return texts.map((text, at) => element('td', classes[at], text));
}

/** `part` is of all that is alive, `length` of the longest bar. */
function ownerRow(buffer, name, part, length) {
  const maker = data.buffers.maker[buffer];
  const cell = element('td', 'number', share(part));
  addMeter(cell, length, '');
  const makerCell = element('td', 'cut', maker >= 0 ? [opLink(maker, OWNER_NAME - 1)] : 'input');
  const nameCell = element('td', 'name cut', name);
  nameCell.title = clean(data.buffers.name[buffer], 160);
  return [nameCell, makerCell, element('td', 'number', formatBytes(data.buffers.size[buffer])), cell];
}

function share(part) {
  return fixed(100 * part, 1) + '%';
}

function describeCursor() {
  const { cursor } = state;
  const memory = cursor.view && cursor.view.memory;
  const alive = memory ? ', ' + formatBytes(memory.bytes[cursorEntry(cursor.view)]) + ' alive' : '';
  return momentText(cursor.time) + alive;
}
