// What is shown is part of the address, so that a link leads to the same place.

/** `#part=1&views=0,1&from=..&to=..&op=..`; a bare number is a part. */
function readAddress() {
  const text = location.hash.slice(1);
  if (/^\d+$/.test(text)) return { part: Number(text) };
  const fields = new URLSearchParams(text);
  const number = (name) => (fields.has(name) && fields.get(name) !== '' ? Number(fields.get(name)) : NaN);
  const shown = (fields.get('views') || '').split(',').filter(Boolean).map(Number);
  return {
    part: number('part'), from: number('from'), to: number('to'), op: number('op'),
    shown, range: (fields.get('range') || '').split(',').filter(Boolean).map(Number),
  };
}

let addressDue = 0;

/** Writes the address a little later: a drag changes it with every frame. */
function noteAddress() {
  if (addressDue) return;
  addressDue = setTimeout(() => {
    addressDue = 0;
    const text = addressText();
    if (text === location.hash.slice(1)) return;
    history.replaceState(null, '', text ? '#' + text : location.pathname + location.search);
  }, 150);
}

function addressText() {
  const fields = new URLSearchParams();
  if (shownPart > 0) fields.set('part', shownPart);
  if (state.shown.join() !== firstShown().join()) fields.set('views', state.shown.join());
  const whole = state.from <= 0 && state.to >= longest;
  if (!whole) {
    fields.set('from', Math.round(state.from));
    fields.set('to', Math.round(state.to));
  }
  if (state.selected) fields.set('op', state.selected.op);
  if (state.range) fields.set('range', [state.range.from, state.range.to].map(Math.round).join());
  return fields.toString().replaceAll('%2C', ',');
}

/** Shows what the address asks for; whatever it has that is not there is left out. */
function applyAddress(asked) {
  const shown = (asked.shown || []).filter((index) => views[index]);
  if (shown.length > 0) {
    showViews(shown.slice(0, 2));
    shown.forEach((index, number) => { if (byId('view-' + number)) byId('view-' + number).value = String(index); });
  }
  if (asked.op >= 0 && asked.op < opCount) select(asked.op);
  const [first, last] = asked.range || [];
  if (last > first) selectRange(first, last, views[state.shown[state.shown.length - 1]]);
  if (asked.to > asked.from) show(asked.from, asked.to);
}
