// The what-if sweep: step time over memory limit, a curve for each bandwidth.

const SVG = 'http://www.w3.org/2000/svg';
/** As many looks as there are shapes; more curves begin again. */
const SHAPES = ['circle', 'square', 'triangle', 'diamond', 'down', 'bar', 'pillar', 'plus'];
const DASHES = ['', '7 3', '2 3', '9 3 2 3', '1 4', '12 4', '5 2 1 2 1 2', '3 6'];

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
  // What lies below others is wider than they are, so that it is still seen.
  curves.forEach((curve, number) => plot.append(sweepCurve(scale, curve, { number, below: curves.length - 1 - number })));
  plot.append(...boundLabels(scale, curves), ...missedLimits(scale, curves), ...sweepLabels(scale, curves));
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
  const nowhere = data.sweep.curves.flatMap((curve) => curve.points).some((point) => point.step_time === null);
  if (nowhere) parts.push(svg('text', { x: edge.left, y: bottom + 51 }, '\u00d7 no order found within this limit'));
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

function sweepCurve(scale, curve, look) {
  const tone = 'curve tone' + look.number % SHAPES.length;
  const reached = curve.points.filter((point) => point.step_time !== null).sort((a, b) => a.limit - b.limit);
  const path = 'M' + reached.map((point) => scale.x(point.limit) + ' ' + scale.y(point.step_time)).join('L');
  const bound = scale.y(curve.bound);
  const group = svg('g', { class: tone });
  group.append(across(scale, bound, 'bound'));
  const step = { d: path, class: 'step', 'stroke-width': 2 + 0.7 * look.below };
  if (reached.length > 0) group.append(svg('path', { ...step, 'stroke-dasharray': DASHES[look.number % DASHES.length] }));
  for (const point of reached) group.append(sweepPoint(scale, curve, point, look));
  return group;
}

function sweepPoint(scale, curve, point, { number, below }) {
  const [x, y] = [scale.x(point.limit), scale.y(point.step_time)];
  const path = shapePath(SHAPES[number % SHAPES.length], [x, y], 4.5 + 0.9 * below);
  return markPoint([x, y], svg('path', { d: path, class: 'mark' }), describePoint(curve, point));
}

/** Limits that no order was found for: one cross for all bandwidths, on the axis. */
function missedLimits(scale, curves) {
  const missed = new Map();
  for (const curve of curves) {
    for (const point of curve.points.filter(({ step_time: time }) => time === null)) {
      missed.set(point.limit, (missed.get(point.limit) || []).concat({ curve, point }));
    }
  }
  const y = scale.height - scale.edge.bottom;
  return [...missed].map(([limit, of]) => {
    const mark = svg('path', { d: shapePath('cross', [scale.x(limit), y], 5), class: 'mark infeasible' });
    return markPoint([scale.x(limit), y], mark, describeMissed(limit, of));
  });
}

/** A mark that tells what it stands for. */
function markPoint([x, y], mark, content) {
  const area = svg('circle', { cx: x, cy: y, r: 12, class: 'area' });
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
  const rows = [
    ['memory limit', limitText(point.limit)],
    ['step time', formatNanos(point.step_time)],
    ['of the bound', fixed(point.step_time / curve.bound, 3) + 'x'],
    ['exposed', formatNanos(point.exposed)],
    ['peak memory', formatBytes(point.peak)],
  ];
  return { title: factor(curve.bandwidth) + ' bandwidth', rows };
}

/** A search that found nothing proves nothing: it says how far it came. */
function describeMissed(limit, of) {
  const smallest = of.filter(({ point }) => point.smallest_peak)
    .map(({ curve, point }) => [factor(curve.bandwidth) + ' bandwidth', 'reached ' + formatBytes(point.smallest_peak)]);
  return { title: 'no order found', rows: [['memory limit', limitText(limit)], ...smallest] };
}

function limitText(limit) {
  return formatBytes(limit) + ' (' + factor(limit / data.sweep.input_peak) + ' of the input peak)';
}

function shapePath(shape, [x, y], r) {
  switch (shape) {
    case 'square': return `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`;
    case 'triangle': return `M${x} ${y - r - 1}L${x + r + 1} ${y + r}H${x - r - 1}z`;
    case 'diamond': return `M${x} ${y - r - 2}L${x + r + 2} ${y}L${x} ${y + r + 2}L${x - r - 2} ${y}z`;
    case 'down': return `M${x} ${y + r + 1}L${x + r + 1} ${y - r}H${x - r - 1}z`;
    case 'bar': return `M${x - r - 2} ${y - r / 2}h${2 * r + 4}v${r}h${-2 * r - 4}z`;
    case 'pillar': return `M${x - r / 2} ${y - r - 2}h${r}v${2 * r + 4}h${-r}z`;
    case 'plus': return `M${x - r} ${y}H${x + r}M${x} ${y - r}V${y + r}`;
    case 'cross': return `M${x - r} ${y - r}L${x + r} ${y + r}M${x + r} ${y - r}L${x - r} ${y + r}`;
    default: return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
  }
}

/** Each curve is named at its end; names that would touch are moved apart. */
function sweepLabels(scale, curves) {
  const ends = curves.map((curve, number) => {
    const reached = curve.points.filter((point) => point.step_time !== null).sort((a, b) => a.limit - b.limit);
    return reached.length === 0 ? null : { number, curve, y: scale.y(reached[reached.length - 1].step_time) };
  }).filter(Boolean);
  const x = scale.width - scale.edge.right + 12;
  const places = apart(ends.map(({ y }) => y + 4), 15, scale.height - scale.edge.bottom);
  return ends.map(({ number, curve }, at) => {
    return svg('text', { x, y: places[at], class: 'name tone' + number % SHAPES.length }, factor(curve.bandwidth));
  });
}

/** What no order can beat, above its line; in the colour of the line, since labels that would touch are moved apart. */
function boundLabels(scale, curves) {
  const places = apart(curves.map((curve) => scale.y(curve.bound) - 4), 12, scale.height - scale.edge.bottom - 4);
  return curves.map((curve, number) => {
    const text = (scale.width < 600 ? '' : 'bound ') + formatNanos(curve.bound);
    const look = { class: 'of-bound tone' + number % SHAPES.length };
    return svg('text', { x: scale.edge.left + 4, y: places[number], ...look }, text);
  });
}

/** Heights moved so that they are at least so far apart, and none is below the lowest. */
function apart(heights, gap, lowest) {
  const order = heights.map((_, at) => at).sort((a, b) => heights[a] - heights[b]);
  const places = [...heights];
  let until = -Infinity;
  for (const at of order) until = places[at] = Math.max(heights[at], until + gap);
  until = lowest + gap;
  for (const at of order.reverse()) until = places[at] = Math.min(places[at], until - gap);
  return places;
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
  const smallest = point.smallest_peak ? 'reached ' + formatBytes(point.smallest_peak) : '';
  return [...row, 'no order found', bound, '', smallest];
}
