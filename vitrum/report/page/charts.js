"use strict";
// Elements by name; every text goes in as text, never as markup.
const h = (tag, props, ...children) => {
  const e = document.createElement(tag);
  for (const [key, value] of Object.entries(props || {}))
    if (key === "style") for (const [k, v] of Object.entries(value)) e.style.setProperty(k, v);
    else if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
    else if (value === true) e.setAttribute(key, "");
    else if (value !== false && value != null) e.setAttribute(key, value);
  e.append(...children.flat().filter((c) => c != null));
  return e;
};
const s = (tag, props, ...children) => {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(props)) e.setAttribute(key, value);
  e.append(...children);
  return e;
};
const colour = (i) => `var(--c${i % 8})`;

const number = {
  percent: (x) => (x == null ? "–" : (100 * x).toFixed(2) + " %"),
  loss: (x) => (x == null ? "–" : x.toFixed(4)),
  rate: (x) => (x == null ? "–" : x === 0 ? "0" : Math.abs(x) < 1e-3 ? x.toExponential(2).replace(/\.?0+e/, "e") : x.toPrecision(3).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "")),
  count: (x) => (x == null ? "–" : Math.round(x).toLocaleString("en")),
  short: (x) => {
    const units = ["", " k", " M", " G", " T"];
    let i = 0;
    while (x >= 1000 && i < 4) (x /= 1000), ++i;
    return (i ? x.toFixed(x < 10 ? 2 : 1) : x) + units[i];
  },
  time: (t) => {
    if (!(t >= 0)) return "–";
    if (t < 60) return t.toFixed(1) + " s";
    const all = Math.round(t), m = Math.floor(all / 60);
    return m < 60 ? `${m} min ${all % 60} s` : `${Math.floor(m / 60)} h ${m % 60} min`;
  },
};

// Multiples of 1, 2 or 5 times a power of ten from `low` to `high`.
const ticks = (low, high, count) => {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw)), lead = raw / power;
  const step = power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10), all = [];
  for (let i = Math.floor(low / step + 1e-9); i <= Math.ceil(high / step - 1e-9); ++i) all.push(i * step);
  return all;
};
// All numbers of an axis alike: the same digits behind the point, and where these would be many a power of ten for all of them.
const superscript = (n) => String(n).replace(/./g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));
const axisLabels = (at, step) => {
  const largest = Math.max(...at.map(Math.abs)), plain = Math.ceil(-Math.log10(step) - 1e-9);
  const power = plain > 4 || largest >= 1e6 ? Math.floor(Math.log10(largest) + 1e-9) : 0, digits = Math.max(0, plain + power);
  return { texts: at.map((x) => (Math.abs(x) < step / 2 ? 0 : x / 10 ** power).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })), unit: power ? `×10${superscript(power)}` : "" };
};
// Of a log scale: powers of ten where it spans many, else as many digits as the smallest needs.
const logLabels = (at) => {
  const logs = at.map(Math.log10), low = Math.floor(Math.min(...logs) + 1e-9), high = Math.max(...logs);
  const tens = logs.every((l) => Math.abs(l - Math.round(l)) < 1e-9);
  if (tens && (low < -3 || high > 4)) return { texts: logs.map((l) => `10${superscript(Math.round(l))}`), unit: "" };
  const power = low < -3 || high >= 6 ? low : 0, digits = Math.max(0, power - low) + (tens || at.length > 2 ? 0 : 2);
  return { texts: at.map((x) => (x / 10 ** power).toFixed(digits)), unit: power ? `×10${superscript(power)}` : "" };
};

// Every chart follows the epoch under the pointer of any of them.
const charts = [];
const point = (epoch, from) => charts.forEach((c) => c.point(epoch, c === from));

class Chart {
  // series: {name, ink, dash, x: [epochs], y: [values or null]}; `factor` turns values into what the axis is labelled with.
  constructor({ title, mark, format, factor = 1, floor = 0, ceiling = Infinity, series, logs = false }) {
    Object.assign(this, { format, factor, floor, ceiling, log: false, at: null });
    this.series = series.filter((l) => l.y.some((y) => y != null)).map((l) => ({ ...l, shown: true }));
    const ends = this.series.map((l) => `${l.name} ${format(l.y.reduce((kept, y) => y ?? kept, null))}`);
    this.svg = s("svg", { role: "img", tabindex: 0, "aria-label": `${title} by epoch; at the end ${ends.join(", ")}. Arrow keys read the epochs.` });
    this.tip = h("div", { class: "tip", hidden: true, "aria-live": "polite" });
    this.plot = h("div", { class: "chart" }, this.svg, this.tip);
    this.values = this.series.map(() => h("b", {}));
    const legend = h("div", { class: "legend" }, this.series.map((l, i) =>
      h("button", { "aria-pressed": "true", title: "show or hide", onclick: (e) => this.toggle(i, e.currentTarget) },
        h("span", { class: l.dash ? "key dash" : "key", style: { "--ink": l.ink } }), h("span", { class: "name" }, l.name), this.values[i])));
    const scale = logs && h("button", { "aria-pressed": "false", onclick: (e) => {
      this.log = !this.log;
      e.currentTarget.setAttribute("aria-pressed", this.log);
      this.draw();
    } }, "log");
    this.element = h("section", { class: "card", "data-chart": title }, h("div", { class: "bar" }, h("h3", {}, factor === 100 ? `${title}, %` : title, mark ? h("span", { class: "mark-different" }, mark) : null), scale || null), legend, this.plot);
    this.plot.addEventListener("pointermove", (e) => point(this.nearest(e), this));
    this.plot.addEventListener("pointerdown", (e) => point(this.nearest(e), this));
    this.plot.addEventListener("pointerleave", () => point(null, this));
    this.svg.addEventListener("keydown", (e) => this.key(e));
    this.svg.addEventListener("blur", () => point(null, this));
    new ResizeObserver(() => this.draw()).observe(this.plot);
    charts.push(this);
    this.legend();
  }

  toggle(i, button) {
    this.series[i].shown = !this.series[i].shown;
    button.setAttribute("aria-pressed", this.series[i].shown);
    this.draw();
  }

  key(e) {
    const all = this.epochs, step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[e.key];
    if (e.key === "Escape") return point(null, this);
    if (!step || !all.length) return;
    e.preventDefault();
    const i = this.at == null ? all.length - 1 : all.indexOf(this.at);
    point(all[Math.min(all.length - 1, Math.max(0, i + step))], this);
  }

  usable(y) { return y != null && Math.abs(y) < 1e100 && (!this.log || y > 0); }

  extent() {
    let low = Infinity, high = -Infinity;
    for (const l of this.series) if (l.shown) for (const y of l.y) if (this.usable(y)) (low = Math.min(low, y)), (high = Math.max(high, y));
    return low <= high ? [low, high] : [this.log ? 0.1 : 0, 1];
  }

  vertical() {
    let [low, high] = this.extent();
    if (this.log) {
      // Round numbers where the curve spans decades, else the ends of the data.
      const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), at = [];
      for (let p = first; p <= last; ++p) for (const lead of last - first > 3 ? [1] : [1, 2, 5]) at.push(lead * 10 ** p);
      const inside = at.filter((t) => t >= low * 0.999 && t <= high * 1.001);
      return { at: inside.length > 1 ? inside : [low, high === low ? low * 1.1 : high], from: Math.log(low), to: Math.log(high === low ? low * 1.1 : high), step: 0 };
    }
    if (low - this.floor < 0.5 * (high - this.floor)) low = Math.min(low, this.floor);
    if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high))) high += Math.abs(high) / 2 || 1;
    const at = ticks(low, high, 5), step = at[1] - at[0];
    if (at[at.length - 1] > this.ceiling && high <= this.ceiling) at[at.length - 1] = this.ceiling;
    return { at, from: at[0], to: at[at.length - 1], step };
  }

  draw() {
    const width = this.plot.clientWidth, height = 230, left = 54, right = 14, top = 14, bottom = 26;
    if (!width) return;
    this.epochs = [...new Set(this.series.flatMap((l) => l.x))].sort((a, b) => a - b);
    const [low, high] = Chart.epochs, first = Number.isFinite(low) ? low : 0, last = Math.max(Number.isFinite(high) ? high : 1, first + 1), y = this.vertical();
    this.px = (e) => left + ((e - first) / (last - first)) * (width - left - right);
    this.py = (v) => height - bottom - (((this.log ? Math.log(v) : v) - y.from) / (y.to - y.from)) * (height - top - bottom);
    const parts = [];
    const at = y.at.map((t) => t * this.factor), labels = y.step ? axisLabels(at, y.step * this.factor) : logLabels(at);
    y.at.forEach((t, i) => {
      parts.push(s("path", { class: "gridline", d: `M${left} ${this.py(t)}H${width - right}` }));
      parts.push(s("text", { x: left - 8, y: this.py(t) + 4, "text-anchor": "end" }, labels.texts[i]));
    });
    if (labels.unit) parts.push(s("text", { x: left + 4, y: 9 }, labels.unit));
    parts.push(s("text", { x: left - 8, y: height - 8, "text-anchor": "end" }, "epoch"));
    parts.push(s("path", { class: "axis", d: `M${left} ${height - bottom}H${width - right}` }));
    let free = -Infinity;
    const whole = ticks(first, last, Math.max(2, Math.floor(width / 90))).filter((t) => Number.isInteger(t) && t > first && t < last);
    for (const e of high > low ? [first, ...whole, last] : [first]) {
      const x = this.px(e);
      if (x - free < 34 || (e !== last && this.px(last) - x < 34)) continue;
      parts.push(s("text", { x, y: height - 8, "text-anchor": e === last ? "end" : e === first ? "start" : "middle" }, String(e)));
      free = x;
    }
    for (const l of this.series) if (l.shown) parts.push(...this.curve(l));
    this.cursor = s("g", {});
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...parts, this.cursor);
    this.point(this.at, false);
  }

  curve(l) {
    const points = l.x.map((x, i) => [x, l.y[i]]).filter(([, y]) => this.usable(y)).map(([x, y]) => [this.px(x), this.py(y)]);
    if (!points.length) return [];
    const d = points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
    const line = s("path", { class: l.dash ? "curve dash" : "curve", d, style: `stroke:${l.ink}` });
    // A handful of epochs: show where they are.
    return points.length > 30 ? [line] : [line, ...points.map(([cx, cy]) => s("circle", { cx, cy, r: 2.4, style: `fill:${l.ink}` }))];
  }

  nearest(e) {
    const x = e.clientX - this.plot.getBoundingClientRect().left;
    return (this.epochs || []).reduce((best, t) => (best == null || Math.abs(this.px(t) - x) < Math.abs(this.px(best) - x) ? t : best), null);
  }

  value(l, epoch) { const i = l.x.indexOf(epoch); return i < 0 ? null : l.y[i]; }

  legend() {
    this.series.forEach((l, i) => {
      const last = this.at == null ? l.y.reduce((kept, y) => y ?? kept, null) : this.value(l, this.at);
      this.values[i].textContent = this.format(last);
    });
  }

  point(epoch, mine) {
    this.at = epoch;
    this.legend();
    if (!this.cursor) return;
    this.cursor.replaceChildren();
    this.tip.hidden = epoch == null || !mine;
    if (epoch == null) return;
    const x = this.px(epoch), rows = this.series.filter((l) => l.shown && this.usable(this.value(l, epoch)));
    if (this.epochs.includes(epoch)) this.cursor.append(s("path", { class: "cross", d: `M${x} 14V204` }));
    for (const l of rows) this.cursor.append(s("circle", { cx: x, cy: this.py(this.value(l, epoch)), r: 4, style: `fill:${l.ink};stroke:var(--card);stroke-width:2` }));
    if (!mine) return;
    this.tip.replaceChildren(h("div", { class: "muted" }, `epoch ${epoch}`), ...rows.map((l) =>
      h("div", {}, h("span", { class: l.dash ? "key dash" : "key", style: { "--ink": l.ink } }), h("span", { class: "name" }, l.name), h("b", {}, this.format(this.value(l, epoch))))));
    const wide = this.plot.clientWidth, own = this.tip.offsetWidth;
    this.tip.style.left = `${x + 14 + own > wide ? Math.max(0, x - 14 - own) : x + 14}px`;
  }
}
