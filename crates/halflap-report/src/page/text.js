// Text: units as units.rs prints them, names made harmless, and elements built without markup.

/** Rounds as Rust does: a tie goes to the even digit, where toFixed goes up. */
function fixed(value, decimals) {
  const text = value.toFixed(decimals);
  // Only j / 2^(decimals + 1) with an odd j lies exactly between two decimals.
  if (Math.abs(value * 2 ** (decimals + 1)) % 2 !== 1) return text;
  if (Number(text[text.length - 1]) % 2 === 0) return text;
  const step = 10 ** -decimals;
  return (value - Math.sign(value) * step / 4).toFixed(decimals);
}

function threeDigits(value) {
  const size = Math.abs(value);
  if (size >= 100 || size === Math.trunc(size)) return fixed(value, 0);
  return fixed(value, size >= 10 ? 1 : 2);
}

function formatNanos(ns) {
  const size = Math.abs(ns);
  if (size >= 1e9) return threeDigits(ns / 1e9) + ' s';
  if (size >= 1e6) return threeDigits(ns / 1e6) + ' ms';
  if (size >= 1e3) return threeDigits(ns / 1e3) + ' us';
  return threeDigits(ns) + ' ns';
}

function formatBytes(bytes) {
  const units = ['KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  let value = bytes;
  let power = 0;
  while (Math.abs(value) >= 1024 && power < units.length) {
    value /= 1024;
    power += 1;
  }
  return power === 0 ? bytes + ' B' : threeDigits(value) + ' ' + units[power - 1];
}

/** Floating-point operations, in powers of a thousand. */
function formatFlops(flops) {
  const units = ['', ' k', ' M', ' G', ' T', ' P', ' E'];
  let value = flops;
  let power = 0;
  while (value >= 1000 && power < units.length - 1) {
    value /= 1000;
    power += 1;
  }
  return threeDigits(value) + units[power];
}

/** A rate, in powers of a thousand as data sheets have it. */
function formatRate(rate, unit) {
  const scaled = formatFlops(rate);
  return scaled + (scaled.includes(' ') ? '' : ' ') + unit;
}

function formatPlaces(places) {
  if (places === 0) return 'same place';
  return Math.abs(places) + (places < 0 ? ' earlier' : ' later');
}

/** A point in time: to `step` nanoseconds, where three digits are not as exact. */
function formatMoment(time, step) {
  const units = [[1e9, ' s'], [1e6, ' ms'], [1e3, ' us']];
  const [scale, unit] = units.find(([least]) => Math.abs(time) >= least) || [1, ' ns'];
  const decimals = Math.max(0, Math.min(9, Math.ceil(Math.log10(scale / step) - 1e-9)));
  const exact = (time / scale).toFixed(decimals);
  const short = threeDigits(time / scale);
  return (exact.length > short.length ? exact : short) + unit;
}

const FORMATS = {
  ns: formatNanos,
  bytes: formatBytes,
  count: formatCount,
  ratio: (value) => fixed(value, 3) + 'x',
  percent: (value) => fixed(value, 1) + '%',
  rate: (value) => formatRate(value, 'B/s'),
  flops: (value) => formatRate(value, 'FLOP/s'),
  places: (value) => (value === 0 ? '0' : formatPlaces(value)),
  text: (value) => clean(value, 160),
};

/** A cell or headline value as text; nothing for null. */
function formatAs(type, value) {
  if (value === null || value === undefined) return '';
  return (FORMATS[type] || FORMATS.text)(value);
}

/** How much less or more, in percent of what was. */
function formatChange(before, after) {
  if (before === after) return 'unchanged';
  if (before === 0) return 'was 0';
  const percent = 100 * Math.abs(after - before) / Math.abs(before);
  const digits = percent < 0.05 ? '< 0.1' : fixed(percent, 1);
  return digits + (after < before ? '% less' : '% more');
}

// Control characters, line separators and everything that changes the direction of text.
const HARMFUL = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;

/** Foreign text for one line: cut first, since it may be megabytes, then without control characters. */
function clean(text, most) {
  let short = String(text);
  if (short.length > most) {
    short = short.slice(0, most - 1);
    // A cut must not leave half of a character.
    if (/[\ud800-\udbff]$/.test(short)) short = short.slice(0, -1);
    short += '\u2026';
  }
  return short.replace(HARMFUL, '\ufffd');
}

/** The same without its middle: names of kernels differ at their ends. */
function withoutMiddle(text, most) {
  const whole = clean(text, 2000);
  if (whole.length <= most) return whole;
  const end = Math.floor((most - 1) / 2);
  return clean(whole, most - end) + whole.slice(-end).replace(/^[\udc00-\udfff]/, '');
}

/** Short forms of names, each as different from the others as the names are. */
function shortNames(names, most) {
  const short = new Map();
  const alike = new Map();
  for (const name of new Set(names)) {
    const cut = withoutMiddle(name, most);
    alike.set(cut, (alike.get(cut) || []).concat(name));
  }
  for (const [cut, group] of alike) {
    const from = group.length > 1 ? commonStart(group) : 0;
    for (const name of group) short.set(name, group.length > 1 ? around(name, from, most) : cut);
  }
  return short;
}

/** Names of kernels without the arguments of templates and functions, where that leaves them different. */
function bareNames(names) {
  const bareOf = (name) => name.replace(/^void /, '').replaceAll('(anonymous namespace)::', '').split(/[<(]/)[0].trim() || name;
  const all = [...new Set(names)];
  const seen = new Map();
  for (const name of all) seen.set(bareOf(name), (seen.get(bareOf(name)) || 0) + 1);
  const known = new Set(all);
  const isOwn = (name) => seen.get(bareOf(name)) === 1 && (bareOf(name) === name || !known.has(bareOf(name)));
  return new Map(all.map((name) => [name, isOwn(name) ? bareOf(name) : name]));
}

function commonStart(names) {
  const differs = (at) => names.some((name) => name[at] !== names[0][at]);
  let at = 0;
  while (at < names[0].length && !differs(at)) at += 1;
  return at;
}

/** A name's beginning, and what stands at a place in it. */
function around(name, at, most) {
  const head = Math.floor(most / 3);
  return clean(name, head) + withoutMiddle(name.slice(Math.max(head, at - 4)), most - head);
}

/** A whole number that can be read. */
function formatCount(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, ',');
}

/** What words on the page mean; a label without an entry explains itself. */
const HELP = {
  'step time': 'How long one step takes.',
  'exposed communication': 'How long compute stands still for communication: what overlap would save at most.',
  'peak memory': 'The most bytes that are alive at any time of the step.',
  'waiting for the host': 'Compute stands still because the host has not issued the next operation yet.',
  'lower bound': 'No order of the program takes less time: what is above it is the most that a better order can save.',
  robustness: 'What is saved if run times differ: every time a little longer or shorter, slower links, ranks that are late.',
  exposed: 'How long compute stands still for this collective.',
  was: 'How long compute stood still for it before.',
  'held by': 'What keeps it from being hidden: moved further, it would break this.',
  'stopped by': 'Why the passes did not move it further.',
  'stalls at': 'The operation that waits for it.',
  moved: 'How many places it moved in the order.',
  queued: 'Issued, but it had not begun: its stream was busy with others, or a rank had not arrived.',
  place: 'Its place in the order of issue.',
  time: 'How long it runs.',
  start: 'When it begins.',
  size: 'The larger of what goes in and what comes out.',
  group: 'The ranks that take part.',
  'bus rate': 'Size by time, multiplied by how often a byte passes the bus of a rank: it can be compared with a link.',
  'of best': 'Of the highest bus rate in its group. Latency: fewer bytes would not make it shorter.',
  'FLOP/s': 'Floating-point operations in a second.',
  'of peak': 'Of what the device does in dense bf16; for kernels that compute with bf16 or f16.',
  'of bf16 peak': 'Of what the device does in dense bf16.',
  transfer: 'Compute stood still while the data were on their way.',
  'wake-up': 'The data were there, and compute had not gone on yet.',
  hidden: 'How long compute ran at the same time.',
};

/** An element that explains its own words where the pointer rests. */
function explained(made, label) {
  if (Object.hasOwn(HELP, label)) made.title = HELP[label];
  return made;
}

/** A new element with a class and text or children. */
function element(tag, className, content) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (Array.isArray(content)) made.append(...content);
  else if (content !== undefined) made.textContent = content;
  return made;
}

/** A plain table: its head, and rows of cells. */
function tableOf(className, head, rows) {
  const line = (cells) => element('tr', '', cells);
  return element('table', className, [element('thead', '', [line(head)]), element('tbody', '', rows.map(line))]);
}

function byId(id) {
  return document.getElementById(id);
}

/** The first index in [from, to) for which `reached` holds; it must hold for all after it. */
function firstIndex(from, to, reached) {
  let low = from;
  let high = to;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (reached(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}
