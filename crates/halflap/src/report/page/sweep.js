// The what-if sweep: step time over memory limit, a curve for each bandwidth.

const SVG = 'http://www.w3.org/2000/svg';
const SHAPES = ['circle', 'square', 'triangle', 'diamond', 'cross'];
const DASHES = ['', '7 3', '2 3', '9 3 2 3', '1 4'];

function svg(tag, attributes, content) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (typeof content === 'string') made.textContent = content;
  else if (content) made.append(...content);
  return made;
}

function showSweep() {
  if (!data.sweep) return;
  byId('sweep').hidden = false;
  byId('sweep-table').replaceChildren(sweepTable());
  // Where there is room, the values stand beside the curves.
  byId('sweep').querySelector('details').open = innerWidth > 1180;
  drawSweep();
}

/** Scales of the plot: `x` of a limit, `y` of a time. */
function sweepScale() {
  const width = Math.max(280, byId('sweep-plot').clientWidth);
  const height = width < 600 ? 280 : 366;
  const edge = { left: 64, right: width < 600 ? 56 : 84, top: 16, bottom: 58 };
  const points = data.sweep.curves.flatMap((curve) => curve.points);
  const reached = points.map((point) => point.step_time).filter((time) => time !== null);
  const times = reached.concat(data.sweep.curves.map((curve) => curve.bound));
  const limits = points.map((point) => point.limit);
  const padded = (low, high, part) => [low - (high - low || high || 1) * part, high + (high - low || high || 1) * part];
  const [lowest, highest] = padded(Math.min(...times), Math.max(...times), 0.08);
  const [least, most] = padded(Math.min(...limits), Math.max(...limits), 0.04);
  const x = (limit) => edge.left + (limit - least) / (most - least) * (width - edge.left - edge.right);
  const y = (time) => height - edge.bottom - (time - lowest) / (highest - lowest) * (height - edge.top - edge.bottom);
  return { width, height, edge, x, y, lowest, highest, limits: [...new Set(limits)].sort((a, b) => a - b) };
}

function drawSweep() {
  if (!data.sweep) return;
  const scale = sweepScale();
  const { width, height } = scale;
  const plot = svg('svg', { width, height, viewBox: `0 0 ${width} ${height}`, role: 'group' });
  plot.setAttribute('aria-label', 'Step time over memory limit, a curve for each bandwidth; the table has the values');
  plot.append(...sweepAxes(scale));
  const curves = [...data.sweep.curves].sort((a, b) => a.bandwidth - b.bandwidth);
  curves.forEach((curve, number) => plot.append(sweepCurve(scale, curve, number)));
  plot.append(...sweepLabels(scale, curves));
  byId('sweep-plot').replaceChildren(plot);
}

function sweepAxes(scale) {
  const { edge, height } = scale;
  const bottom = height - edge.bottom;
  const parts = [];
  const step = niceStep((scale.highest - scale.lowest) / 5);
  for (let time = Math.ceil(scale.lowest / step) * step; time <= scale.highest; time += step) {
    parts.push(across(scale, scale.y(time), 'grid'));
    parts.push(svg('text', { x: edge.left - 8, y: scale.y(time) + 4, class: 'end' }, formatNanos(time)));
  }
  parts.push(across(scale, bottom, 'axis'));
  const nowhere = data.sweep.curves.flatMap((curve) => curve.points).filter((point) => point.step_time === null);
  for (const limit of new Set(nowhere.map((point) => point.limit))) {
    parts.push(svg('text', { x: scale.x(limit), y: bottom + 49, class: 'middle soft' }, 'no order fits'));
  }
  return parts.concat(limitTicks(scale, bottom));
}

/** A line from edge to edge. */
function across(scale, y, className) {
  return svg('line', { x1: scale.edge.left, x2: scale.width - scale.edge.right, y1: y, y2: y, class: className });
}

function limitTicks(scale, bottom) {
  const parts = [];
  let until = -Infinity;
  for (const limit of scale.limits) {
    const x = scale.x(limit);
    parts.push(svg('line', { x1: x, x2: x, y1: bottom, y2: bottom + 5, class: 'axis' }));
    if (x < until) continue;
    until = x + 62;
    parts.push(svg('text', { x, y: bottom + 19, class: 'middle' }, formatBytes(limit)));
    const share = factor(limit / data.sweep.input_peak) + ' input';
    parts.push(svg('text', { x, y: bottom + 34, class: 'middle soft' }, share));
  }
  return parts;
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((times) => times * power).find((step) => step >= least);
}

function factor(value) {
  return Number(value.toPrecision(3)) + 'x';
}

function sweepCurve(scale, curve, number) {
  const tone = 'curve tone' + number % 5;
  const reached = curve.points.filter((point) => point.step_time !== null).sort((a, b) => a.limit - b.limit);
  const path = 'M' + reached.map((point) => scale.x(point.limit) + ' ' + scale.y(point.step_time)).join('L');
  const bound = scale.y(curve.bound);
  const group = svg('g', { class: tone });
  const text = 'bound ' + formatNanos(curve.bound);
  group.append(svg('text', { x: scale.edge.left + 4, y: bound - 4, class: 'of-bound' }, text));
  group.append(across(scale, bound, 'bound'));
  if (reached.length > 0) group.append(svg('path', { d: path, class: 'step', 'stroke-dasharray': DASHES[number % 5] }));
  for (const point of curve.points) group.append(sweepPoint(scale, curve, point, number));
  return group;
}

function sweepPoint(scale, curve, point, number) {
  const infeasible = point.step_time === null;
  // On the axis the curves' crosses would lie on each other.
  const aside = infeasible ? (number - (data.sweep.curves.length - 1) / 2) * 14 : 0;
  const x = scale.x(point.limit) + aside;
  const y = infeasible ? scale.height - scale.edge.bottom : scale.y(point.step_time);
  const [shape, className] = infeasible ? ['cross', 'mark infeasible'] : [SHAPES[number % 5], 'mark'];
  const mark = svg('path', { d: shapePath(shape, x, y), class: className });
  const area = svg('circle', { cx: x, cy: y, r: 12, class: 'area' });
  const content = describePoint(curve, point);
  const spoken = content.rows.map(([label, value]) => label + ' ' + value).join(', ');
  const made = svg('g', { class: 'point', tabindex: 0, role: 'img' }, [area, mark]);
  made.setAttribute('aria-label', content.title + ', ' + spoken);
  const tell = () => {
    const box = area.getBoundingClientRect();
    showTip({ clientX: box.left + box.width / 2, clientY: box.top + box.height / 2 }, content);
  };
  made.addEventListener('pointerenter', tell);
  made.addEventListener('focus', tell);
  made.addEventListener('pointerleave', hideTip);
  made.addEventListener('blur', hideTip);
  return made;
}

function describePoint(curve, point) {
  const share = factor(point.limit / data.sweep.input_peak) + ' of the input peak';
  const rows = [['memory limit', formatBytes(point.limit) + ' (' + share + ')']];
  if (point.step_time === null) {
    rows.push(['step time', 'no order fits']);
    if (point.smallest_peak) rows.push(['smallest peak', formatBytes(point.smallest_peak)]);
  } else {
    rows.push(['step time', formatNanos(point.step_time)]);
    rows.push(['of the bound', fixed(point.step_time / curve.bound, 3) + 'x']);
    rows.push(['exposed', formatNanos(point.exposed)]);
    rows.push(['peak memory', formatBytes(point.peak)]);
  }
  return { title: factor(curve.bandwidth) + ' bandwidth', rows };
}

function shapePath(shape, x, y) {
  const r = 5;
  switch (shape) {
    case 'square': return `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`;
    case 'triangle': return `M${x} ${y - r - 1}L${x + r + 1} ${y + r}H${x - r - 1}z`;
    case 'diamond': return `M${x} ${y - r - 2}L${x + r + 2} ${y}L${x} ${y + r + 2}L${x - r - 2} ${y}z`;
    case 'cross': return `M${x - r} ${y - r}L${x + r} ${y + r}M${x + r} ${y - r}L${x - r} ${y + r}`;
    default: return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
  }
}

/** Each curve is named at its end; names that would touch are moved apart. */
function sweepLabels(scale, curves) {
  const ends = curves.map((curve, number) => {
    const reached = curve.points.filter((point) => point.step_time !== null).sort((a, b) => a.limit - b.limit);
    return reached.length === 0 ? null : { number, curve, y: scale.y(reached[reached.length - 1].step_time) };
  }).filter(Boolean).sort((a, b) => a.y - b.y);
  let until = -Infinity;
  return ends.map(({ number, curve, y }) => {
    const at = Math.max(y + 4, until + 15);
    until = at;
    const x = scale.width - scale.edge.right + 10;
    return svg('text', { x, y: at, class: 'name tone' + number % 5 }, factor(curve.bandwidth));
  });
}

function sweepTable() {
  const names = ['bandwidth', 'memory limit', 'step time', 'bound', 'exposed', 'peak memory'];
  const rows = data.sweep.curves.flatMap((curve) => curve.points.map((point) => sweepRow(curve, point)));
  const cells = (tag) => (text) => element(tag, 'number', text);
  return tableOf('rows', names.map(cells('th')), rows.map((texts) => texts.map(cells('td'))));
}

function sweepRow(curve, point) {
  const row = [factor(curve.bandwidth), formatBytes(point.limit)];
  const bound = formatNanos(curve.bound);
  if (point.step_time !== null) {
    return [...row, formatNanos(point.step_time), bound, formatNanos(point.exposed), formatBytes(point.peak)];
  }
  const smallest = point.smallest_peak ? 'at least ' + formatBytes(point.smallest_peak) : '';
  return [...row, 'no order fits', bound, '', smallest];
}
