// ---- classes: accuracy of each, and which are taken for which ----
const limits = { bars: 60, matrix: 40, pairs: 10, manyPairs: 50 };

// Rows are classes: where each run has them, null where it does not.
const classRows = (shown) => several ? data.compare.classes.map((at) => shown.map((r) => at[runs.indexOf(r)])) : shown[0].classes.map((name, c) => [c]);
const accuracy = (r, c) => (c != null && r.totals[c]?.[0] ? r.totals[c][1] / r.totals[c][0] : null);
const bars = (shown, at) => {
  const first = at.findIndex((c) => c != null), name = className(shown[first], at[first]), shares = shown.map((r, i) => accuracy(r, at[i]));
  return [h("span", { class: "name", title: name }, name),
    h("div", {}, shown.map((r, i) => h("div", { class: "track", title: several ? `${r.name}: ${number.percent(shares[i])}` : null },
      shares[i] == null ? null : h("i", { style: { width: `${100 * shares[i]}%`, "--ink": shown.length > 1 ? r.ink : "var(--accent)" } })))),
    h("span", { class: "muted" }, shares.map(number.percent).join(" · "), shown.length > 1 ? null : ` of ${number.count(shown[0].totals[at[0]][0])}`)];
};
const classBars = (shown) => {
  const rows = classRows(shown).filter((at) => at.some((c, i) => accuracy(shown[i], c) != null));
  if (!rows.length) return h("p", { class: "muted" }, "No class of these runs has the same name.");
  const worst = (at) => Math.min(...shown.map((r, i) => accuracy(r, at[i]) ?? Infinity)), many = rows.length > limits.bars;
  const box = h("div", { class: shown.length > 1 ? "classes several" : "classes" }), state = { sorted: many, all: !many };
  const fill = () => {
    const order = state.sorted ? [...rows].sort((a, b) => worst(a) - worst(b)) : rows;
    box.replaceChildren(...order.slice(0, state.all ? undefined : limits.bars).flatMap((at) => bars(shown, at)));
  };
  fill();
  const sort = switched("worst first", (on) => { state.sorted = on; fill(); });
  sort.setAttribute("aria-pressed", many);
  const more = many ? h("button", { class: "more", onclick: () => { state.all = true; more.remove(); fill(); } }, `show all ${number.count(rows.length)} classes`) : null;
  return h("div", { class: "card" }, h("div", { class: "bar" }, h("h3", {}, "Accuracy by class"), sort), scroller({ class: "tall", "aria-label": "accuracy by class" }, box), more);
};

const takenFor = (r, t, p, n) => `${className(r, t)} ${t === p ? "recognised" : `taken for ${className(r, p)}`}: ${number.count(n)} of ${number.count(r.totals[t]?.[0] ?? 0)}`;
// One stop for the tab key; from there arrow keys go to the next cell that holds images.
const walkCells = (e) => {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key], from = e.target.closest("td");
  if (!step || !from) return;
  e.preventDefault();
  const rows = [...e.currentTarget.tBodies[0].rows];
  for (let y = rows.indexOf(from.parentNode) + step[0], x = from.cellIndex + step[1]; rows[y]?.cells[x]; y += step[0], x += step[1]) {
    const next = rows[y].cells[x].querySelector("button");
    if (!next) continue;
    e.target.tabIndex = -1, next.tabIndex = 0;
    return next.focus();
  }
};
const matrix = (r) => {
  const n = r.classes.length, counts = new Map(r.confusion.map(([t, p, c]) => [t * n + p, c]));
  if (n > limits.matrix) return heatmap(r, n, counts);
  const cell = (t, p) => {
    const c = counts.get(t * n + p) ?? 0, depth = c && Math.max(4, Math.round(100 * (c / r.totals[t][0]) ** 0.6)), about = takenFor(r, t, p, c);
    if (!c) return h("td", { title: about });
    return h("td", { title: about, style: { background: `color-mix(in srgb, var(--cell) ${depth}%, transparent)`, "--on": `var(--${depth > 80 ? "hi" : depth > 70 ? "mid" : "lo"})` } },
      h("button", { tabindex: -1, "aria-label": about, onclick: () => openPair(r, t, p, c) }, String(c)));
  };
  const all = [...Array(n).keys()], grid = h("table", { class: "matrix", style: { "min-width": `${80 + 24 * n}px` }, onkeydown: walkCells },
    h("thead", {}, h("tr", {}, h("td", {}), all.map((p) => h("th", { scope: "col", title: className(r, p) }, h("span", {}, className(r, p)))))),
    h("tbody", {}, all.map((t) => h("tr", {}, h("th", { scope: "row", title: className(r, t) }, className(r, t)), all.map((p) => cell(t, p))))));
  const first = grid.querySelector("button");
  if (first) first.tabIndex = 0;
  return h("div", {}, scroller({ tabindex: -1, "aria-label": "confusion matrix" }, grid), h("p", { class: "axis-name" }, "Rows: true class, columns: predicted. A cell opens its images."));
};
// Too many classes for numbers: a picture, and what is under the pointer in words.
const heatmap = (r, n, counts) => {
  const canvas = h("canvas", { width: n, height: n, role: "img", "aria-label": "confusion matrix; the most frequent mistakes are in the table", style: { width: `${Math.max(n, 480)}px` } });
  const words = h("p", { class: "axis-name" }, "Rows: true class, columns: predicted."), context = canvas.getContext("2d");
  const paint = () => {
    context.clearRect(0, 0, n, n);
    context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--cell");
    for (const [at, c] of counts) {
      context.globalAlpha = Math.max(0.15, (c / r.totals[Math.floor(at / n)][0]) ** 0.6);
      context.fillRect(at % n, Math.floor(at / n), 1, 1);
    }
  };
  paint();
  document.addEventListener("theme", paint);
  const under = (e) => {
    const box = canvas.getBoundingClientRect(), at = (x, size) => Math.min(n - 1, Math.max(0, Math.floor((x / size) * n)));
    const t = at(e.clientY - box.top, box.height), p = at(e.clientX - box.left, box.width);
    return [t, p, counts.get(t * n + p) ?? 0];
  };
  canvas.addEventListener("pointermove", (e) => (words.textContent = takenFor(r, ...under(e))));
  canvas.addEventListener("click", (e) => { const [t, p, c] = under(e); if (c) openPair(r, t, p, c); });
  return h("div", {}, canvas, words);
};
const mostFrequent = (r, count) => {
  const wrong = r.confusion.filter(([t, p]) => t !== p).sort((a, b) => b[2] - a[2]), most = wrong.slice(0, count);
  if (!most.length) return h("p", { class: "muted" }, "No mistakes at all.");
  return h("div", {}, table(["true", "taken for", "images", "share"], most.map(([t, p, n]) => h("tr", {}, h("td", { class: "wrap" }, className(r, t)), h("td", { class: "wrap" }, className(r, p)),
    h("td", { class: "num" }, h("button", { class: "link", "aria-label": takenFor(r, t, p, n), onclick: () => openPair(r, t, p, n) }, number.count(n))), h("td", { class: "num" }, number.percent(n / r.totals[t][0])))),
  { num: (i) => i > 1, tall: true, label: "most frequent mistakes" }), h("p", { class: "muted small" }, `${number.count(most.length)} of ${number.count(r.pairs)} pairs of classes that were mistaken; a count opens its images.`));
};
// Of a thousand classes nobody reads a matrix: the worst pairs are what there is to see.
const confusion = (r) => {
  const drawn = r.every_pair, list = h("div", { class: "card" }, h("div", { class: "bar" }, h("h3", {}, "Most frequent mistakes")), mostFrequent(r, drawn ? limits.pairs : limits.manyPairs));
  return drawn ? h("div", { class: "grid wide" }, h("div", { class: "card" }, matrix(r)), list) : list;
};
