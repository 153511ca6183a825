// Tables: sorted, searched, and drawn only as far as they are in sight; rows and timeline select each other.

const ROW = 26; // pixels; the style sheet has the same
const SPARE = 8; // rows drawn above and below what is in sight
/** Windows narrower than this show what matters most beside the name; the rest is reached by scrolling. */
const NARROW = 620;
const LEADING = ['exposed', 'was', 'held by', 'total', 'idle', 'time'];
/** What a table leaves out where it is wider than its place, the first of them first; a button shows all. */
const LEAST = ['source', 'does', 'moved', 'group', 'least of a rank', 'ranks', 'stalls at', 'class', 'fused', 'trace', 'hidden',
  'bus rate', 'of best', 'was', 'operation', 'memory', 'median', 'start', 'size'];
const tables = data.tables.map(buildTable);

function buildTable(raw, number) {
  const list = raw.rows.map((_, row) => row);
  const table = { raw, number, list, sort: { column: -1, down: false }, words: [], at: 0, drawn: null };
  table.off = new Set();
  table.isWhole = false;
  table.maxima = raw.columns.map((column, at) => (column.bar ? largest(raw.rows, at) : 0));
  table.rowOf = new Map();
  raw.op.forEach((op, row) => { if (op >= 0 && !table.rowOf.has(op)) table.rowOf.set(op, row); });
  table.text = null;
  table.names = {};
  table.order = orderOfColumns(raw.columns);
  buildFrame(table);
  // The column with bars is what the table is about: the longest come first.
  const leading = raw.columns.findIndex((column) => column.bar);
  if (leading >= 0) sortBy(table, leading);
  return table;
}

function orderOfColumns(columns) {
  const all = columns.map((_, at) => at);
  if (innerWidth >= NARROW) return all;
  const place = (at) => {
    const leading = LEADING.indexOf(columns[at].title);
    return at === 0 ? -1 : leading < 0 ? LEADING.length : leading;
  };
  return all.sort((a, b) => place(a) - place(b) || a - b);
}

function largest(rows, column) {
  return rows.reduce((most, row) => Math.max(most, Math.abs(row[column] || 0)), 0);
}

function buildFrame(table) {
  const { raw, number } = table;
  const title = element('h2', '', clean(raw.title, 80));
  title.id = 'table-title-' + number;
  table.count = element('span', 'count');
  table.count.setAttribute('role', 'status');
  const bar = element('div', 'bar', [title, table.count]);
  table.all = allButton(table);
  bar.append(table.all);
  if (raw.rows.length > 8) bar.append(searchBox(table));
  table.body = element('tbody');
  table.cells = raw.columns.map((column, at) => headCell(table, column, at));
  table.head = element('thead', '', [element('tr', '', table.order.map((at) => table.cells[at]))]);
  table.element = element('table', 'rows', [table.head, table.body]);
  table.element.setAttribute('aria-labelledby', title.id);
  table.element.setAttribute('aria-rowcount', raw.rows.length + 1);
  table.scroller = element('div', 'scroll rows-scroll', [table.element]);
  table.scroller.addEventListener('scroll', () => requestAnimationFrame(() => drawRows(table)));
  table.body.addEventListener('click', (event) => onRowClick(table, event));
  table.body.addEventListener('keydown', (event) => onRowKey(table, event));
  table.nothing = element('p', 'nothing', 'Nothing found.');
  table.section = element('section', 'table', [bar, table.scroller, table.nothing]);
  table.section.setAttribute('aria-labelledby', title.id);
}

/** Shows the columns that were left out, or leaves them out again. */
function allButton(table) {
  const button = element('button', 'more-columns');
  button.type = 'button';
  button.hidden = true;
  button.addEventListener('click', () => {
    table.isWhole = !table.isWhole;
    fitColumns(table);
  });
  return button;
}

/** Leaves columns out until the rest fits, unless all are wanted; narrow windows scroll. */
function fitColumns(table) {
  const { raw, scroller } = table;
  table.element.classList.remove('tight');
  if (table.off.size > 0) setOff(table, new Set());
  // Every look at a width makes the browser lay the page out, unless nothing has changed since the last one.
  const over = () => (innerWidth < NARROW || table.isWhole ? 0 : scroller.scrollWidth - scroller.clientWidth);
  const left = LEAST.map((title) => raw.columns.findIndex((column) => column.title === title));
  const least = left.filter((at) => at > 0 && at !== table.sort.column);
  for (let excess = over(); excess > 0 && least.length > 0; excess = over()) {
    const off = new Set(table.off);
    while (excess > 0 && least.length > 0) {
      const at = least.shift();
      excess -= table.cells[at].offsetWidth;
      off.add(at);
    }
    setOff(table, off);
  }
  // The last resort: names are cut, and their cells' titles have them.
  table.element.classList.toggle('tight', over() > 0);
  table.all.hidden = table.off.size === 0 && !table.isWhole;
  table.all.textContent = table.isWhole ? 'Fewer columns' : '+' + table.off.size + (table.off.size > 1 ? ' columns' : ' column');
  table.all.title = [...table.off].map((at) => raw.columns[at].title).join(', ');
  table.all.setAttribute('aria-expanded', String(table.isWhole));
}

function setOff(table, off) {
  table.off = off;
  table.cells.forEach((cell, at) => { cell.hidden = off.has(at); });
  drawRows(table, true);
}

function searchBox(table) {
  const box = element('input', 'search');
  box.type = 'search';
  box.placeholder = 'Search';
  box.setAttribute('aria-label', 'Search ' + clean(table.raw.title, 80));
  box.addEventListener('input', () => {
    table.words = wordsOf(box.value);
    keepWidths(table);
    refill(table);
  });
  box.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') { box.value = ''; table.words = []; refill(table); box.blur(); stage.focus(); }
    if (event.key === 'ArrowDown' || event.key === 'Enter') { event.preventDefault(); focusRow(table, 0); }
  });
  table.search = box;
  return box;
}

/** What is searched for: a number goes with its unit, every other word for itself. */
function wordsOf(text) {
  return text.toLowerCase().match(/[\d.,]+ (?:[num]?s|b|[kmgtpe]ib|earlier|later)(?!\S)|\S+/g) || [];
}

/** Columns stay where they are while the rows below them come and go. */
function keepWidths(table) {
  const widths = table.cells.map((cell) => cell.getBoundingClientRect().width);
  table.cells.forEach((cell, at) => { cell.style.minWidth = widths[at] + 'px'; });
}

function headCell(table, column, at) {
  const button = explained(element('button', '', clean(column.title, 40)), column.title);
  button.type = 'button';
  button.addEventListener('click', () => sortBy(table, at));
  const cell = element('th', (isNumber(column) ? 'number' : '') + (column.bar ? ' metered' : ''), [button]);
  cell.scope = 'col';
  cell.setAttribute('aria-sort', 'none');
  return cell;
}

function isNumber(column) {
  return column.type !== 'text';
}

/** Numbers begin with the largest, text with the first; a second press turns it around. */
function sortBy(table, column) {
  const { sort } = table;
  const down = sort.column === column ? !sort.down : isNumber(table.raw.columns[column]);
  table.sort = { column, down };
  table.cells.forEach((cell, at) => {
    cell.setAttribute('aria-sort', at !== column ? 'none' : down ? 'descending' : 'ascending');
  });
  refill(table);
}

/** Filters and sorts anew, and shows the beginning. */
function refill(table) {
  const { rows } = table.raw;
  table.list = rows.map((_, row) => row);
  const found = (row) => table.words.every((word) => searchText(table, row).includes(word));
  if (table.words.length > 0) table.list = table.list.filter(found);
  const { column, down } = table.sort;
  if (column >= 0) {
    const order = isNumber(table.raw.columns[column]) ? compareNumbers : compareText;
    table.list.sort((a, b) => order(rows[a][column], rows[b][column], down) || a - b);
  }
  table.at = 0;
  table.scroller.scrollTop = 0;
  drawRows(table, true);
}

// Cells without a value come last in both directions, and so does what is not known.
function compareNumbers(a, b, down) {
  const none = (value) => typeof value !== 'number';
  if (none(a) || none(b)) return none(a) - none(b);
  return down ? b - a : a - b;
}

const collator = new Intl.Collator('en', { numeric: true });

function compareText(a, b, down) {
  if (!a || !b) return (!a) - (!b);
  const order = collator.compare(a.slice(0, 200), b.slice(0, 200));
  return down ? -order : order;
}

/** All that the cells of a row say, made when first searched. */
function searchText(table, row) {
  if (!table.text) {
    const { columns, rows } = table.raw;
    const words = (cell, at) => cellText(columns[at], cell);
    table.text = rows.map((cells) => cells.map(words).join('\n').toLowerCase());
  }
  return table.text[row];
}

/** A cell's value as it is shown; a start is told exactly enough to tell two apart. */
function cellText(column, value) {
  if (typeof value === 'string') return clean(value, 600);
  if (column.title === 'start' && typeof value === 'number') return formatMoment(value, longest > 1e6 ? 1e3 : 1);
  return formatAs(column.type, value);
}

function countText(table) {
  const { list, raw } = table;
  const [shown, all] = [list.length, raw.rows.length].map(formatCount);
  if (!raw.cut) return shown === all ? all : shown + ' of ' + all;
  const [whole, which] = raw.cut;
  const kept = all + ' of ' + formatCount(whole) + ', ' + clean(which, 40);
  return shown === all ? kept : shown + ' found among ' + kept;
}

/** Draws the rows in sight, with space instead of the others. */
function drawRows(table, anew) {
  const { list, scroller } = table;
  const first = Math.max(0, Math.floor(scroller.scrollTop / ROW) - SPARE);
  const last = Math.min(list.length, Math.ceil((scroller.scrollTop + scroller.clientHeight) / ROW) + SPARE);
  const key = first + ' ' + last;
  if (!anew && key === table.drawn) return;
  table.drawn = key;
  // Drawing must not take the focus away from a row that stays.
  const focused = table.body.contains(document.activeElement);
  const rows = [spacer(first * ROW)];
  for (let at = first; at < last; at += 1) rows.push(drawRow(table, at));
  rows.push(spacer((list.length - last) * ROW));
  table.body.replaceChildren(...rows);
  table.nothing.hidden = list.length > 0 || table.words.length === 0;
  const count = countText(table);
  // The count is announced: it may only change when it is another.
  if (table.count.textContent !== count) table.count.textContent = count;
  if (focused) rowElement(table, table.at)?.focus({ preventScroll: true });
}

function spacer(height) {
  const row = element('tr', 'spacer');
  row.setAttribute('aria-hidden', 'true');
  row.style.height = height + 'px';
  return row;
}

function drawRow(table, at) {
  const { raw, list } = table;
  const row = list[at];
  const cells = table.order.map((number) => drawCell(table, row, number));
  const line = element('tr', raw.op[row] >= 0 ? 'linked' : '', cells);
  line.dataset.at = at;
  line.tabIndex = at === table.at ? 0 : -1;
  line.setAttribute('aria-rowindex', at + 2);
  markRow(line, state.selected !== null && raw.op[row] === state.selected.op);
  return line;
}

function markRow(line, chosen) {
  line.classList.toggle('chosen', chosen);
  if (chosen) line.setAttribute('aria-current', 'true');
  else line.removeAttribute('aria-current');
}

function drawCell(table, row, number) {
  const column = table.raw.columns[number];
  const value = table.raw.rows[row][number];
  const text = cellText(column, value);
  const cell = element('td', isNumber(column) ? 'number' : '', number === 0 ? shortName(table, value) : text);
  cell.hidden = table.off.has(number);
  if (value === 0) cell.classList.add('zero');
  if (column.type === 'text' && text.length > 14) cell.title = text;
  if (number === 0) cell.classList.add('name');
  if (column.title === 'held by') cell.classList.add('whole');
  if (column.bar) addMeter(cell, Math.abs(value || 0) / (table.maxima[number] || 1), column.title);
  return cell;
}

/** What the first column says, cut so that no two of it look the same. */
function shortName(table, value) {
  const room = innerWidth < NARROW ? 22 : innerWidth < 1100 ? 34 : 46;
  if (!table.names[room]) {
    const names = table.raw.rows.map((row) => String(row[0] ?? ''));
    const bare = table.raw.title === 'kernels' ? bareNames(names) : new Map(names.map((name) => [name, name]));
    const short = shortNames([...bare.values()], room);
    table.names[room] = new Map(names.map((name) => [name, short.get(bare.get(name))]));
  }
  return table.names[room].get(String(value ?? ''));
}

/** A bar beside a number; orange means exposed here as everywhere. */
function addMeter(cell, part, title) {
  cell.classList.add('meter');
  if (title === 'exposed' || title === 'was') cell.classList.add('hot');
  cell.style.setProperty('--part', part);
}

function rowElement(table, at) {
  return table.body.querySelector('tr[data-at="' + at + '"]');
}

function onRowClick(table, event) {
  const line = event.target.closest('tr[data-at]');
  if (!line) return;
  focusRow(table, Number(line.dataset.at));
  chooseRow(table, Number(line.dataset.at));
}

function chooseRow(table, at) {
  const op = table.raw.op[table.list[at]];
  if (op < 0) return;
  const { view } = table.raw;
  goTo(op, view === null || view === undefined ? null : { view: views[view], slice: -1 });
  // Beside the table the panel has what is to be known; where it stands above, it must be brought into sight.
  const panel = document.querySelector('.panel');
  if (getComputedStyle(panel).position === 'sticky') return;
  const box = panel.getBoundingClientRect();
  if (box.bottom < 40 || box.top > innerHeight - 40) panel.scrollIntoView({ block: 'nearest' });
}

function onRowKey(table, event) {
  const page = Math.max(1, Math.floor(table.scroller.clientHeight / ROW) - 2);
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
  if (event.key in steps) focusRow(table, table.at + steps[event.key]);
  else if (event.key === 'Enter' || event.key === ' ') chooseRow(table, table.at);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

/** Moves the one row that the keyboard can reach. */
function focusRow(table, at) {
  if (table.list.length === 0) return;
  const old = rowElement(table, table.at);
  if (old) old.tabIndex = -1;
  table.at = Math.max(0, Math.min(table.list.length - 1, at));
  scrollToRow(table, table.at);
  const line = rowElement(table, table.at);
  line.tabIndex = 0;
  line.focus({ preventScroll: true });
}

/** Scrolls inside the table alone, and draws what comes into sight. */
function scrollToRow(table, at) {
  const { scroller } = table;
  const room = roomOf(table);
  const least = Math.ceil(((at + 1) * ROW - room) / ROW) * ROW;
  if (at * ROW < scroller.scrollTop) scroller.scrollTop = at * ROW;
  else if ((at + 1) * ROW > scroller.scrollTop + room) scroller.scrollTop = least;
  drawRows(table);
}

/** The height of the rows in sight: the window may cut a table off; one below it has all its own. */
function roomOf(table) {
  const box = table.scroller.getBoundingClientRect();
  const head = table.head.offsetHeight;
  const cut = Math.min(box.bottom, innerHeight) - box.top - head;
  return cut >= 2 * ROW ? cut : table.scroller.clientHeight - head;
}

/** Marks the rows of the selected operation, and scrolls to them. */
function markRows() {
  for (const table of tables) {
    if (!table.section.isConnected) continue;
    const row = state.selected ? table.rowOf.get(state.selected.op) : undefined;
    const at = row === undefined ? -1 : table.list.indexOf(row);
    if (at >= 0) scrollToRow(table, at);
    for (const line of table.body.querySelectorAll('tr[data-at]')) {
      markRow(line, state.selected !== null && table.raw.op[table.list[line.dataset.at]] === state.selected.op);
    }
  }
}

/** What tables say about an operation beyond their columns. */
function rowDetails(op) {
  for (const table of tables) {
    const row = table.rowOf.get(op);
    if (row !== undefined && table.raw.details && tableInSight(table)) return table.raw.details[row] || [];
  }
  return [];
}

function tableInSight(table) {
  const { view } = table.raw;
  if (view === null || view === undefined) return true;
  // Of before and after, the one that is shown last: with both, what came of it.
  return data.compare ? view === state.shown[state.shown.length - 1] : state.shown.includes(view);
}

/** Shows the tables of the shown views. */
function showTables() {
  byId('tables').replaceChildren(...tables.filter(tableInSight).map((table) => table.section));
  sizeTables();
}

/** A table has a dozen rows; alone it has the rest of the window. */
function sizeTables() {
  const shown = tables.filter(tableInSight);
  for (const table of shown) {
    arrangeColumns(table);
    const top = table.scroller.getBoundingClientRect().top + scrollY;
    const rest = shown.length === 1 ? innerHeight - top - 72 : 0;
    const head = table.head.offsetHeight;
    table.scroller.style.maxHeight = head + ROW * Math.max(12, Math.floor((rest - head) / ROW)) + 'px';
    drawRows(table, true);
    fitColumns(table);
  }
}

/** Another width of the window: columns in its order, as wide as they need. */
function arrangeColumns(table) {
  table.order = orderOfColumns(table.raw.columns);
  table.cells.forEach((cell) => { cell.style.minWidth = ''; });
  table.head.rows[0].replaceChildren(...table.order.map((at) => table.cells[at]));
}

function focusSearch() {
  const first = tables.find((table) => tableInSight(table) && table.search);
  if (!first) return;
  first.search.focus();
  first.search.select();
}
