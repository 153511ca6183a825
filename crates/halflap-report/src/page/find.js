// Finding any operation by its name, and what lies in a range of time.

const FOUND = 12;
const TOP = 6;

/** What an operation is found by, made when first searched. */
let findable = null;

function findableText(op) {
  if (!findable) {
    const text = (at) => [ops.name[at], ops.label[at], ops.what[at], ops.source[at]].filter(Boolean).join('\n');
    findable = ops.name.map((_, at) => text(at).toLowerCase());
  }
  return findable[op];
}

/** Operations that have every word: collectives first, then by their place in the program. */
function findOps(text) {
  const words = text.toLowerCase().match(/\S+/g) || [];
  if (words.length === 0) return { list: [], count: 0 };
  const list = [];
  for (let op = 0; op < opCount; op += 1) {
    if (words.every((word) => findableText(op).includes(word))) list.push(op);
  }
  const exact = (op) => Number(ops.name[op].toLowerCase() === words.join(' '));
  list.sort((a, b) => exact(b) - exact(a) || isCollective(b) - isCollective(a) || a - b);
  return { list: list.slice(0, FOUND), count: list.length };
}

/** The search box of the timeline, with what it finds below it. */
function listenToFind() {
  const box = byId('find');
  const list = byId('found');
  let at = 0;
  const close = () => {
    list.hidden = true;
    box.setAttribute('aria-expanded', 'false');
  };
  const mark = () => [...list.querySelectorAll('[role=option]')].forEach((item, number) => {
    item.setAttribute('aria-selected', String(number === at));
  });
  const fill = () => {
    const found = findOps(box.value);
    at = 0;
    const rest = found.count - found.list.length;
    const items = found.list.map((op) => foundItem(op, () => { goTo(op); close(); }));
    if (rest > 0) items.push(element('li', 'rest', 'and ' + formatCount(rest) + ' more'));
    if (found.count === 0) items.push(element('li', 'rest', 'Nothing found.'));
    list.replaceChildren(...items);
    list.hidden = box.value.trim() === '';
    box.setAttribute('aria-expanded', String(!list.hidden));
    mark();
  };
  box.addEventListener('input', fill);
  box.addEventListener('focus', fill);
  box.addEventListener('blur', close);
  box.addEventListener('keydown', (event) => {
    const items = list.querySelectorAll('[role=option]');
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && items.length > 0) at = (at + step + items.length) % items.length;
    else if (event.key === 'Enter' && items[at]) { items[at].choose(); stage.focus({ preventScroll: true }); }
    else if (event.key === 'Escape') { box.value = ''; close(); stage.focus({ preventScroll: true }); }
    else return;
    event.preventDefault();
    mark();
  });
}

function foundItem(op, choose) {
  const item = element('li', '', [element('span', 'name', nameOf(op)), ' ', element('span', 'soft', foundNote(op))]);
  item.setAttribute('role', 'option');
  item.choose = choose;
  // Before the box loses the focus, and the list with it.
  item.addEventListener('pointerdown', (event) => { event.preventDefault(); choose(); });
  return item;
}

function foundNote(op) {
  return [nodeOf(op), clean(ops.what[op], 40) || KINDS[ops.kind[op]]].filter(Boolean).join(', ');
}

function focusFind() {
  byId('find').focus();
  byId('find').select();
}

/** What lies in a range of a view: how long it computes, communicates and stands still, and what takes longest. */
function rangeOf(view, from, to) {
  const inside = (start, end) => Math.max(0, Math.min(end, to) - Math.max(start, from));
  const clipped = (start, end) => [Math.max(start, from), Math.min(end, to)];
  const spans = { compute: [], communication: [] };
  const time = new Map();
  const { start, end, op } = view.slices;
  for (const lane of view.lanes) {
    const first = firstIndex(lane.from, lane.to, (at) => end[at] > from);
    for (let slice = first; slice < lane.to && start[slice] < to; slice += 1) {
      const own = inside(start[slice], end[slice]);
      if (own <= 0) continue;
      if (spans[lane.kind]) spans[lane.kind].push(clipped(start[slice], end[slice]));
      time.set(op[slice], (time.get(op[slice]) || 0) + own);
    }
  }
  const stalls = view.spans.exposed.filter((span) => span.end > from && span.start < to);
  return {
    compute: lengthOfUnion(spans.compute),
    communication: lengthOfUnion(spans.communication),
    exposed: lengthOfUnion(stalls.map((span) => clipped(span.start, span.end))),
    top: [...time].sort((a, b) => b[1] - a[1]).slice(0, TOP),
    count: time.size,
  };
}

/** The panel of a selected range. */
function rangePanel() {
  const { from, to, view } = state.range;
  const sums = rangeOf(view, from, to);
  const close = element('button', 'close', '\u00d7');
  close.type = 'button';
  close.setAttribute('aria-label', 'Clear the range');
  close.addEventListener('click', () => { clearSelection(); stage.focus({ preventScroll: true }); });
  const where = momentText(from) + ' to ' + momentText(to) + (views.length > 1 ? ', ' + view.name : '');
  const rows = [
    ['length', formatNanos(to - from)],
    ['compute', formatNanos(sums.compute)],
    ['communication', formatNanos(sums.communication)],
    ['exposed', formatNanos(sums.exposed)],
    ['operations', formatCount(sums.count)],
  ];
  const top = sums.top.map(([op, time]) => [
    element('td', 'cut', [opLink(op)]), element('td', 'number', formatNanos(time)),
  ]);
  const head = element('h2', '', 'Range');
  head.tabIndex = -1;
  return [
    element('div', 'head', [head, close]), element('p', 'hint', where), definitionList(rows),
    tableOf('', [element('th', '', 'longest in it'), element('th', 'number', 'time')], top),
  ];
}
