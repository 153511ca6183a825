// The page: headline, facts, switches, colours; then everything is set going.

/** Cards of headline values: before and after in a comparison, else of the shown views. */
function showCards() {
  const compared = data.compare ? views.slice(0, 2) : state.shown.map((index) => views[index]);
  const labels = new Set(compared.flatMap((view) => view.headline.map(({ label }) => label)));
  byId('cards').replaceChildren(...[...labels].map((label) => card(compared, label)));
}

function card(compared, label) {
  const found = compared.map((view) => view.headline.find((item) => item.label === label));
  // A figure that only one of two views has is zero in the other.
  const items = found.map((item) => item || { ...found.find(Boolean), value: 0, note: '' });
  const last = items[items.length - 1];
  const made = element('div', 'card', [explained(element('h2', '', clean(last.label, 60)), last.label)]);
  const values = element('p', 'values');
  if (data.compare) {
    const [was, now] = [items[0], last].map(figureText);
    values.append(element('span', 'was', was), element('span', 'to', ' \u2192 '), element('b', '', now), ' ');
    values.append(changeOf(items[0], last));
  } else {
    items.forEach((item, number) => {
      if (items.length > 1) values.append(element('span', 'of', compared[number].name + ' '));
      values.append(element('b', '', figureText(item)), ' ');
    });
  }
  // A note belongs to one value; beside two of equal rank it would be taken for both.
  const note = data.compare || items.length === 1 ? last.note : '';
  made.append(values, element('p', 'note', clean(note || '', 160)));
  return made;
}

function figureText(item) {
  return item.value === null ? '?' : formatAs(item.unit, item.value);
}

/** How much a value changed, for better or worse. */
function changeOf(before, after) {
  const sense = { less: -1, more: 1 }[after.better] || 0;
  const good = Math.sign(after.value - before.value) * sense;
  const tone = good > 0 ? 'good' : good < 0 ? 'bad' : '';
  return element('span', 'change ' + tone, formatChange(before.value, after.value));
}

/** Where the time goes: one bar a view, on one scale. */
function showBudget() {
  const compared = data.compare ? views.slice(0, 2) : state.shown.map((index) => views[index]);
  byId('budget').replaceChildren(element('h2', '', 'Where the time goes'), ...compared.map(budgetBar));
}

const PARTS = { host: 'waiting for the host' };

function budgetBar(view) {
  const parts = view.budget;
  const widest = Math.max(1, ...views.map(({ begin, length, bound }) => Math.max(length - begin, bound || 0)));
  const bar = element('div', 'track');
  for (const [name, time] of parts) {
    const part = element('span', 'part ' + name);
    part.style.width = 100 * time / widest + '%';
    bar.append(part);
  }
  if (view.bound) {
    const line = element('span', 'bound');
    line.style.left = 100 * view.bound / widest + '%';
    bar.append(line);
  }
  const said = (name) => PARTS[name] || name;
  const text = parts.map(([name, time]) => said(name) + ' ' + formatNanos(time)).join(', ');
  bar.setAttribute('role', 'img');
  bar.setAttribute('aria-label', view.name + ': ' + text);
  const value = ([name, time]) => [element('i', 'key ' + name), said(name) + ' ', element('b', '', formatNanos(time))];
  const values = element('p', 'parts', parts.map((part) => element('span', part[0], value(part))));
  if (views.length === 1) bar.classList.add('alone');
  const name = views.length > 1 ? [element('span', 'of', view.name)] : [];
  return element('div', 'line', [...name, bar, values]);
}

/** What would make the step shorter: first of all, because it is what a reader can act on. */
function showAdvice() {
  const lines = data.advice || [];
  const filled = (made, { text, action, typed }) => {
    made.append(element('span', '', clean(text, 400)));
    if (action) made.append(' ', element(typed ? 'code' : 'span', 'action', clean(action, 300)));
    return made;
  };
  byId('advice').hidden = lines.length === 0;
  byId('advice-list').replaceChildren(...lines.map((line) => filled(element('li'), line)));
  byId('advice-lead').hidden = !data.lead;
  if (data.lead) byId('advice-lead').replaceChildren(filled(element('p', 'first'), data.lead), element('p', '', data.beyond));
  byId('advice-note').textContent = data.advice_note || '';
}

function showFacts() {
  const term = (label) => explained(element('dt', '', clean(label, 40)), label);
  const fact = ([label, text]) => [term(label), element('dd', '', clean(text, 300))];
  byId('facts').replaceChildren(...data.facts.map((pair) => element('div', '', fact(pair))));
}

/** What can be shown: for a comparison both, before or after; for ranks one, or two below each other. */
function showSwitch() {
  if (views.length < 2) return;
  if (data.compare) return byId('switch').append(compareSwitch());
  byId('switch').append(viewChoice(0), viewChoice(1));
}

const CHOICES = [['Both', [0, 1]], ['Before', [0]], ['After', [1]]];

function compareSwitch() {
  const group = element('div', 'segments');
  group.setAttribute('role', 'group');
  group.setAttribute('aria-label', 'Views');
  for (const [label, shown] of CHOICES) {
    const button = element('button', '', label);
    button.type = 'button';
    button.dataset.shown = shown.join();
    button.addEventListener('click', () => showViews(shown));
    group.append(button);
  }
  return group;
}

function viewChoice(number) {
  const box = element('select');
  box.id = 'view-' + number;
  box.setAttribute('aria-label', number === 0 ? 'View' : 'View below it');
  if (number === 1) box.append(new Option('none below', ''));
  views.forEach((view, index) => box.append(new Option(view.name, index)));
  box.value = String(state.shown[number] ?? '');
  box.addEventListener('change', () => {
    const chosen = ['view-0', 'view-1'].map((id) => byId(id).value).filter((value) => value !== '');
    showViews(chosen.map(Number));
  });
  return box;
}

function showViews(shown) {
  state.shown = [...new Set(shown)];
  state.hover = null;
  state.cursor = null;
  memoryShown = '';
  noteAddress();
  for (const button of document.querySelectorAll('.segments button')) {
    button.setAttribute('aria-pressed', String(button.dataset.shown === state.shown.join()));
  }
  state.lane = { pane: 0, row: 0 };
  arrange();
  if (!data.compare) {
    showCards();
    showBudget();
  }
  showTables();
  showMemory();
  // What is selected stays so, in a view that is shown.
  if (state.selected && !state.shown.includes(state.selected.view.index)) select(state.selected.op);
  else showDetails();
}

/** Key v: the next choice of views. */
function nextViews() {
  if (views.length < 2) return;
  if (data.compare) {
    const at = CHOICES.findIndex(([, shown]) => shown.join() === state.shown.join());
    return showViews(CHOICES[(at + 1) % CHOICES.length][1]);
  }
  chooseView((state.shown[0] + 1) % views.length);
}

/** Shows a rank in the upper place. */
function chooseView(index) {
  byId('view-0').value = String(index);
  showViews([index, ...state.shown.slice(1)]);
}

const LEGEND = [
  ['compute', 'compute'], ['comm', 'communication'], ['copy', 'copies'], ['exposed', 'exposed'],
  ['host', 'waiting for the host'], ['bound', 'lower bound'],
];

function showLegend() {
  const missing = {
    copy: !ops.kind.includes(COPY),
    host: !views.some((view) => view.spans.host.length > 0),
    bound: !views.some((view) => view.bound),
  };
  const used = LEGEND.filter(([name]) => !missing[name]);
  const entry = ([name, text]) => explained(element('span', '', [element('i', 'key ' + name), text]), text);
  byId('legend').replaceChildren(...used.map(entry));
}

/** What the last choice was, where the browser remembers it for this file. */
function rememberedTheme() {
  try {
    return localStorage.getItem('halflap-theme');
  } catch {
    return null;
  }
}

/** Remembers a choice; one that is the system's own is forgotten, so that the page follows the system again. */
function rememberTheme(dark, isSystems) {
  try {
    if (isSystems) localStorage.removeItem('halflap-theme');
    else localStorage.setItem('halflap-theme', dark ? 'dark' : 'light');
  } catch {
    // It is only a convenience.
  }
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  const button = byId('theme');
  button.setAttribute('aria-pressed', String(dark));
  button.textContent = dark ? 'Light' : 'Dark';
  button.setAttribute('aria-label', dark ? 'Light colours' : 'Dark colours');
  readColours();
  redraw(2);
}

function listenToTheme() {
  const wish = matchMedia('(prefers-color-scheme: dark)');
  wish.addEventListener('change', () => { if (!rememberedTheme()) setTheme(wish.matches); });
  byId('theme').addEventListener('click', () => {
    const dark = document.documentElement.dataset.theme !== 'dark';
    rememberTheme(dark, dark === wish.matches);
    setTheme(dark);
  });
  const remembered = rememberedTheme();
  setTheme(remembered ? remembered === 'dark' : wish.matches);
  // Paper is white.
  let dark = false;
  addEventListener('beforeprint', () => {
    dark = document.documentElement.dataset.theme === 'dark';
    setTheme(false);
    drawFrame();
  });
  addEventListener('afterprint', () => setTheme(dark));
}

function showKeys() {
  const rows = KEYS.concat(PAGE_KEYS).filter(({ label }) => label).map(({ label, says }) => [label, says]);
  rows.push(['shift+drag', 'select a range of time']);
  rows.push(['drag, wheel, pinch', 'pan and zoom; shift+wheel pans'], ['double click', 'zoom to a slice']);
  for (const [label, says] of rows) {
    byId('keys-list').append(element('dt', '', [element('kbd', '', label)]), element('dd', '', says));
  }
  byId('help').addEventListener('click', () => byId('keys').showModal());
}

/**
 * For tests. `state()`: what is shown, selected and under the pointer, and how long the last frame took
 * in milliseconds. `xOf`, `yOf`: where an operation is drawn in a view, `xAt`: where a time is, in pixels of the
 * window.
 */
function exposeForTests() {
  const placeOf = (index, op) => {
    const view = views[index];
    const slice = mainSlice(view, op);
    return slice < 0 ? null : boxOf(view, slice);
  };
  window.halflap = Object.freeze({
    state: () => ({
      from: state.from,
      to: state.to,
      longest,
      shown: [...state.shown],
      selected: state.selected && state.selected.op,
      range: state.range && [state.range.from, state.range.to],
      hovered: state.hover && state.hover.slice >= 0 ? state.hover.view.slices.op[state.hover.slice] : null,
      cursor: state.cursor && state.cursor.time,
      frame: state.frame,
      frames: state.frames,
    }),
    xOf: (view, op) => {
      const box = placeOf(view, op);
      return box && stage.getBoundingClientRect().left + (box.left + box.right) / 2;
    },
    yOf: (view, op) => {
      const box = placeOf(view, op);
      return box && stage.getBoundingClientRect().top + box.y + box.height / 2;
    },
    sections: (view) => views[view].sections.map(({ name }) => name),
    xAt: (time) => stage.getBoundingClientRect().left + xAt(time),
    formatNanos,
    formatBytes,
  });
}

/** The computations of a module, of which one is shown. */
function showParts() {
  const select = byId('part');
  select.hidden = report.parts.length < 2;
  select.replaceChildren(...report.parts.map((part, index) => {
    const option = element('option', '', clean(part.part, 80));
    option.value = String(index);
    option.selected = index === shownPart;
    return option;
  }));
  select.addEventListener('change', () => {
    history.replaceState(null, '', '#part=' + select.value);
    location.reload();
  });
}

function begin() {
  document.title = clean(data.title, 120) + ' \u2013 halflap ' + clean(data.command, 20);
  byId('title').textContent = clean(data.title, 160);
  byId('command').textContent = clean(data.command, 20);
  byId('footer').textContent = 'halflap ' + clean(report.halflap, 20);
  showParts();
  showAdvice();
  showCards();
  showBudget();
  showFacts();
  showSwitch();
  showLegend();
  showKeys();
  listenToInput();
  listenToTheme();
  showSweep();
  listenToFind();
  showViews(state.shown);
  fit();
  applyAddress(addressed);
  exposeForTests();
  new ResizeObserver(onResize).observe(stage);
  addEventListener('resize', sizeTables);
}

/** The timeline sets its own height: only another width is news. */
function onResize() {
  if (stage.clientWidth === layout.width) return;
  arrange();
  drawSweep();
  sizeTables();
}

begin();
