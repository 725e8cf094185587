const data = JSON.parse(document.getElementById("data").textContent);
const runs = data.runs, several = runs.length > 1;
runs.forEach((r, i) => (r.ink = colour(i)));

// ---- light and dark: the system's wish until the reader has another ----
const themes = {
  dark: matchMedia("(prefers-color-scheme: dark)"),
  get chosen() { try { return localStorage.getItem("vitrum-theme"); } catch { return this.own; } },
  set chosen(name) { this.own = name; try { localStorage.setItem("vitrum-theme", name); } catch {} },
  get now() { return this.chosen ?? (this.dark.matches ? "dark" : "light"); },
  apply() { document.documentElement.dataset.theme = this.now; document.dispatchEvent(new Event("theme")); },
};
themes.apply();
themes.dark.addEventListener("change", () => themes.apply());
const toggle = h("button", { "aria-label": "switch between light and dark", title: "light or dark", onclick: () => {
  themes.chosen = themes.now === "dark" ? "light" : "dark";
  themes.apply();
} }, "◐ theme");

// ---- what a run came to ----
const lastOf = (list) => (list || []).reduce((kept, x) => x ?? kept, null);
const results = (r) => {
  const m = r.metrics, at = m.test_acc.reduce((best, x, i) => (x != null && (best < 0 || x > m.test_acc[best]) ? i : best), -1);
  const rates = m.images_per_second.filter((x) => x != null).sort((a, b) => a - b);
  return {
    best: at < 0 ? null : m.test_acc[at], bestEpoch: at < 0 ? null : m.epoch[at], last: lastOf(m.test_acc), top5: lastOf(m.test_top5),
    trainLoss: lastOf(m.train_loss), testLoss: lastOf(m.test_loss), trainAcc: lastOf(m.train_acc), epochs: lastOf(m.epoch) ?? 0,
    rate: rates.length ? rates[rates.length >> 1] : null, seconds: m.seconds.reduce((a, x) => a + (x ?? 0), 0),
  };
};
const recipe = (r, key) => r.recipe.find(([k]) => k === key)?.[1];
const unquoted = (text) => { try { return String(JSON.parse(text)); } catch { return text; } };
const className = (r, i) => r.classes[i] ?? String(i);
const states = { running: "running; this page reloads itself", finished: "finished", stopped: "stopped before its end", empty: "no epoch finished yet" };

const table = (head, rows, props = {}) => h("div", { class: `scroll ${props.tall ? "tall" : ""}`, tabindex: 0, role: "region", "aria-label": props.label },
  h("table", { class: "data" }, h("thead", {}, h("tr", {}, head.map((t, i) => h("th", { scope: "col", class: props.num?.(i) ? "num" : null }, t)))),
    h("tbody", {}, rows)));
const section = (id, title, ...content) => h("section", { id, "aria-label": title }, h("h2", {}, title), ...content);

// ---- figures ----
const figure = (value, label) => h("div", { class: "card figure" }, h("b", {}, value), h("span", {}, label));
const figures = (r) => {
  const f = results(r), all = [];
  if (f.best != null) all.push(figure(number.percent(f.best), `best test accuracy, epoch ${f.bestEpoch}`));
  if (f.last != null && f.last !== f.best) all.push(figure(number.percent(f.last), "test accuracy at the end"));
  if (f.trainLoss != null) all.push(figure(number.loss(f.trainLoss), f.testLoss == null ? "training loss" : `training loss; test ${number.loss(f.testLoss)}`));
  all.push(figure(`${f.epochs} / ${r.epochs}`, `epochs in ${number.time(f.seconds)}`));
  if (f.rate != null) all.push(figure(number.count(f.rate), "images a second (median)"));
  if (r.model) all.push(figure(number.short(r.model.parameters), `parameters; ${number.short(r.model.macs)} MACs an image`));
  return h("div", { class: "figures" }, all);
};

const columns = [
  ["best test acc.", (f) => f.best, number.percent, 1], ["epoch", (f) => f.bestEpoch, number.count, 0], ["last test acc.", (f) => f.last, number.percent, 1],
  ["train loss", (f) => f.trainLoss, number.loss, -1], ["test loss", (f) => f.testLoss, number.loss, -1], ["epochs", (f) => f.epochs, number.count, 0],
  ["images/s", (f) => f.rate, number.count, 1], ["time", (f) => f.seconds, number.time, -1],
  ["parameters", (f, r) => r.model?.parameters, number.count, 0], ["MACs", (f, r) => r.model?.macs, (x) => (x == null ? "–" : number.short(x)), 0],
];
const comparison = () => {
  const all = runs.map((r) => columns.map(([, of]) => of(results(r), r)));
  const best = columns.map(([, , , sign], c) => {
    const values = all.map((row) => row[c]).filter((x) => x != null);
    return sign && values.length > 1 ? (sign > 0 ? Math.max(...values) : Math.min(...values)) : NaN;
  });
  return table(["run", ...columns.map(([name]) => name)], runs.map((r, i) => h("tr", {},
    h("td", {}, h("span", { class: "pill", style: { color: r.ink } }, h("span", {}, r.name))),
    columns.map(([, , format], c) => h("td", { class: all[i][c] === best[c] ? "num best" : "num" }, format(all[i][c]))))), { num: (i) => i > 0, label: "final figures" });
};
const differences = () => {
  const keys = [...new Set(runs.flatMap((r) => r.recipe.map(([k]) => k)))];
  const rows = keys.filter((k) => new Set(runs.map((r) => recipe(r, k) ?? "")).size > 1);
  if (!rows.length) return h("p", { class: "muted" }, "All runs have the same recipe.");
  return table(["key", ...runs.map((r) => r.name)], rows.map((k) => h("tr", {}, h("td", {}, h("code", {}, k)),
    runs.map((r) => h("td", { class: "wrap" }, h("code", {}, recipe(r, k) ?? "–"))))), { label: "recipe differences" });
};

// ---- curves: one run in two colours, several in one each with the training side dotted ----
const series = (...pairs) => runs.flatMap((r) => pairs.map(([key, name], i) => ({
  name: several ? (name && pairs.length > 1 ? `${r.name} ${name}` : r.name) : name,
  ink: several ? r.ink : colour(pairs.length > 1 ? i : 2), dash: several && pairs.length > 1 && i === 0, x: r.metrics.epoch, y: r.metrics[key],
})));
const curves = () => h("div", { class: "grid" }, [
  new Chart({ title: "Loss", format: number.loss, series: series(["train_loss", "train"], ["test_loss", "test"]), logs: true }),
  new Chart({ title: "Accuracy", format: number.percent, factor: 100, ceiling: 1, series: series(["train_acc", "train"], ["test_acc", "test"]) }),
  new Chart({ title: "Learning rate", format: number.rate, series: series(["lr", "lr"]) }),
  new Chart({ title: "Images a second", format: number.count, series: series(["images_per_second", "training"]) }),
].map((c) => c.element));

// ---- classes ----
const totals = (r) => {
  const all = r.classes.map(() => ({ n: 0, right: 0 }));
  for (const [t, p, n] of r.confusion) {
    (all[t] ??= { n: 0, right: 0 }).n += n;
    if (t === p) all[t].right += n;
  }
  return all;
};
const classBars = (shown) => {
  const counts = shown.map(totals), size = Math.max(0, ...counts.map((c) => c.length)), box = h("div", { class: shown.length > 1 ? "classes several" : "classes" });
  const share = (i, c) => (counts[i][c]?.n ? counts[i][c].right / counts[i][c].n : null);
  const order = (worst) => [...Array(size).keys()].filter((c) => share(0, c) != null).sort((a, b) => (worst ? share(0, a) - share(0, b) || a - b : a - b));
  const fill = (worst) => box.replaceChildren(...order(worst).flatMap((c) => [
    h("span", { class: "name", title: className(shown[0], c) }, className(shown[0], c)),
    h("div", {}, shown.map((r, i) => h("div", { class: "track", title: several ? `${r.name}: ${number.percent(share(i, c))}` : null },
      h("i", { style: { width: `${100 * (share(i, c) ?? 0)}%`, "--ink": shown.length > 1 ? r.ink : "var(--accent)" } })))),
    h("span", { class: "muted" }, shown.map((r, i) => number.percent(share(i, c))).join(" · "), shown.length > 1 ? null : ` of ${number.count(counts[0][c].n)}`)]));
  fill(false);
  const sort = h("button", { "aria-pressed": "false", onclick: (e) => {
    const worst = e.currentTarget.getAttribute("aria-pressed") === "false";
    e.currentTarget.setAttribute("aria-pressed", worst);
    fill(worst);
  } }, "worst first");
  return h("div", { class: "card" }, h("div", { class: "bar" }, h("h3", {}, "Accuracy by class"), sort), h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "accuracy by class" }, box));
};

const matrix = (r) => {
  const n = r.classes.length, sums = totals(r), counts = new Map(r.confusion.map(([t, p, c]) => [t * n + p, c]));
  const about = (t, p) => `${className(r, t)} taken for ${className(r, p)}: ${number.count(counts.get(t * n + p) ?? 0)} of ${number.count(sums[t]?.n ?? 0)}`;
  if (n > 40) return heatmap(r, n, counts, sums, about);
  const cell = (t, p) => {
    const c = counts.get(t * n + p) ?? 0, share = c && c / sums[t].n, depth = Math.round(100 * share ** 0.6);
    return h("td", { class: c ? (depth > 50 ? "hi" : null) : "zero", title: about(t, p), style: { background: c ? `color-mix(in srgb, var(--cell) ${Math.max(4, depth)}%, transparent)` : "none" } }, String(c));
  };
  const all = [...Array(n).keys()];
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "confusion matrix" }, h("table", { class: "matrix" },
    h("thead", {}, h("tr", {}, h("th", {}), all.map((p) => h("th", { scope: "col", title: className(r, p) }, h("span", {}, className(r, p)))))),
    h("tbody", {}, all.map((t) => h("tr", {}, h("th", { scope: "row", title: className(r, t) }, className(r, t)), all.map((p) => cell(t, p)))))),
    h("p", { class: "axis-name" }, "rows: true class, columns: predicted"));
};
// Too many classes for numbers: a picture, and what is under the pointer in words.
const heatmap = (r, n, counts, sums, about) => {
  const canvas = h("canvas", { width: n, height: n, role: "img", "aria-label": "confusion matrix", style: { width: `${Math.max(n, 480)}px` } });
  const words = h("p", { class: "axis-name" }, "rows: true class, columns: predicted"), context = canvas.getContext("2d");
  const paint = () => {
    context.clearRect(0, 0, n, n);
    context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--cell");
    for (const [at, c] of counts) {
      context.globalAlpha = Math.max(0.15, (c / sums[Math.floor(at / n)].n) ** 0.6);
      context.fillRect(at % n, Math.floor(at / n), 1, 1);
    }
  };
  paint();
  document.addEventListener("theme", paint);
  canvas.addEventListener("pointermove", (e) => {
    const box = canvas.getBoundingClientRect(), at = (x, size) => Math.min(n - 1, Math.max(0, Math.floor((x / size) * n)));
    words.textContent = about(at(e.clientY - box.top, box.height), at(e.clientX - box.left, box.width));
  });
  return h("div", {}, canvas, words);
};
const confusions = (r) => {
  const sums = totals(r), most = r.confusion.filter(([t, p]) => t !== p).sort((a, b) => b[2] - a[2]).slice(0, 10);
  if (!most.length) return h("p", { class: "muted" }, "No mistakes at all.");
  return table(["true", "taken for", "images", "share"], most.map(([t, p, n]) => h("tr", {}, h("td", { class: "wrap" }, className(r, t)), h("td", { class: "wrap" }, className(r, p)),
    h("td", { class: "num" }, number.count(n)), h("td", { class: "num" }, number.percent(n / sums[t].n)))), { num: (i) => i > 1, label: "most frequent mistakes" });
};

// ---- images ----
const dialog = h("dialog", { "aria-label": "image", onclick: (e) => e.target === dialog && dialog.close() });
const picture = (t, source, alt) => source ? h("img", { src: source, alt, class: t.small ? "pixels" : null }) : h("div", { class: "blank" }, `#${t.index}`);
const share = (p) => `${(100 * p).toFixed(p > 0.9995 ? 2 : 1)} %`;
const open = (r, t) => {
  const row = (name, value) => h("tr", {}, h("td", { class: "muted" }, name), h("td", { class: "wrap" }, value));
  dialog.replaceChildren(h("div", { class: "pair" }, picture(t, t.image, className(r, t.label)), t.overlay ? picture(t, t.overlay, "attention") : null),
    h("table", { class: "data" }, h("tbody", {}, row("image", `#${t.index} ${t.name}`), row("true class", `${className(r, t.label)}, given ${share(t.own)}`),
      row("first guess", `${className(r, t.guess)}, ${share(t.p)}`), row("second guess", `${className(r, t.second)}, ${share(t.p2)}`))),
    h("p", {}), h("button", { onclick: () => dialog.close() }, "Close"));
  dialog.showModal();
};
// A dozen first: on a phone they are a page already.
const few = (box) => {
  if (box.children.length <= 12) return box;
  box.classList.add("few");
  const more = h("button", { class: "more", onclick: () => { box.classList.remove("few"); more.remove(); } }, `show all ${box.children.length}`);
  return h("div", {}, box, more);
};
const tiles = (r, list, caption) => {
  const box = h("div", { class: "tiles" }), fill = (overlay) => box.replaceChildren(...list.map((t) =>
    h("button", { class: "tile", title: t.name, onclick: () => open(r, t) }, picture(t, (overlay && t.overlay) || t.image, `${className(r, t.label)}, taken for ${className(r, t.guess)}`), caption(t))));
  fill(false);
  if (!list.some((t) => t.overlay)) return few(box);
  const attention = h("button", { "aria-pressed": "false", onclick: (e) => {
    const on = e.currentTarget.getAttribute("aria-pressed") === "false";
    e.currentTarget.setAttribute("aria-pressed", on);
    fill(on);
  } }, "show attention");
  return h("div", {}, h("div", { class: "bar" }, h("span", { class: "muted small" }, "What the model looked at is drawn over the image."), attention), few(box));
};
const mistakes = (r) => tiles(r, r.mistakes, (t) => [h("div", {}, className(r, t.label)), h("div", { class: "wrong" }, `→ ${className(r, t.guess)} ${share(t.p)}`)]);
const uncertain = (r) => tiles(r, r.uncertain, (t) => [h("div", { class: t.guess === t.label ? "right" : "wrong" }, `${className(r, t.guess)} ${share(t.p)}`),
  h("div", { class: t.second === t.label ? "right" : "muted" }, `${className(r, t.second)} ${share(t.p2)}`)]);
const augmented = (r) => few(h("div", { class: "tiles" }, r.augmented.map((t) => h("div", { class: "tile", title: t.name }, picture(t, t.image, className(r, t.label)), h("div", { class: "muted" }, className(r, t.label))))));

// ---- model, recipe, environment ----
const layers = (r) => {
  const deepest = Math.max(...r.model.layers.map(([, , depth]) => depth)), holder = h("div", {});
  const fill = (depth) => holder.replaceChildren(table(["layer", "type", "output", "parameters", "MACs"], r.model.layers.filter((l) => l[2] <= depth).map(([name, type, level, output, parameters, macs]) =>
    h("tr", {}, h("td", { style: { "padding-left": `${10 + 16 * level}px` } }, level ? name.split(".").pop() : r.model.name), h("td", { class: "muted" }, type), h("td", {}, output.join(" × ")),
      h("td", { class: "num" }, parameters ? number.count(parameters) : "–"), h("td", { class: "num" }, macs ? number.short(macs) : "–"))), { num: (i) => i > 2, tall: true, label: "layers" }));
  const levels = h("select", { "aria-label": "levels of the tree", onchange: (e) => fill(Number(e.currentTarget.value)) },
    [...Array(deepest).keys()].map((d) => h("option", { value: d + 1, selected: d + 1 === Math.min(2, deepest) }, d + 1 === deepest ? "all levels" : `${d + 1} level${d ? "s" : ""}`)));
  fill(Math.min(2, deepest));
  return h("div", { class: "card" }, h("div", { class: "bar" }, h("span", { class: "muted small" },
    `${r.model.name}: ${number.count(r.model.parameters)} parameters, ${number.short(r.model.macs)} MACs an image of ${r.model.size.join(" × ")}`), levels), holder);
};
const pairs = (title, list) => h("div", { class: "card" }, h("div", { class: "bar" }, h("h3", {}, title)),
  table(["key", "value"], list.map(([k, v]) => h("tr", {}, h("td", {}, h("code", {}, k)), h("td", { class: "wrap" }, h("code", {}, String(v))))), { tall: true, label: title }));
const environment = (r) => { try { return Object.entries(JSON.parse(r.environment)); } catch { return []; } };

// ---- the page ----
const noted = (r) => r.notes.length ? h("div", { class: "card notes small" }, r.notes.map((n) => h("p", {}, n))) : null;
const details = (r) => {
  const parts = [noted(r)];
  if (r.confusion.length) {
    if (!several) parts.push(section("classes", "Classes", classBars([r])));
    parts.push(section("confusion", "Confusion", h("div", { class: "grid wide" }, h("div", { class: "card" }, matrix(r)), h("div", { class: "card" }, h("div", { class: "bar" }, h("h3", {}, "Most frequent mistakes")), confusions(r)))));
  }
  if (r.mistakes.length) parts.push(section("mistakes", "Worst mistakes", h("p", { class: "muted small" }, "Wrong, and surest of it: what the model should have known, or what is labelled wrongly."), mistakes(r)));
  if (r.uncertain.length) parts.push(section("uncertain", "Most uncertain", h("p", { class: "muted small" }, "Smallest distance between the first guess and the second; the true class is marked."), uncertain(r)));
  if (r.augmented.length) parts.push(section("samples", "Training samples", h("p", { class: "muted small" }, "The first images of the first epoch, resized and augmented as the model is given them."), augmented(r)));
  if (r.model) parts.push(section("model", "Model", layers(r)));
  parts.push(section("recipe", "Recipe and environment", h("div", { class: "grid" }, pairs("Recipe", r.recipe), pairs(`Environment, seed ${recipe(r, "seed") ?? "–"}`, [["run", r.path], ...environment(r)]))));
  return parts.filter(Boolean);
};

const panel = h("div", { id: "details" });
const select = (chosen) => {
  panel.replaceChildren(...details(chosen));
  for (const tab of document.querySelectorAll("[role=tab]")) tab.setAttribute("aria-selected", tab.dataset.run === String(runs.indexOf(chosen)));
};
const tabs = () => h("div", { class: "tabs", role: "tablist", "aria-label": "details of a run" }, runs.map((r, i) =>
  h("button", { role: "tab", "data-run": i, "aria-controls": "details", onclick: () => select(r) }, h("span", { class: "key", style: { "--ink": r.ink } }), h("span", { class: "name" }, r.name))));
const header = () => h("header", { class: "head" }, h("div", {}, h("div", { class: "mark" }, several ? "Vitrum · comparison" : "Vitrum · training run"),
  h("h1", {}, several ? `${runs.length} runs` : runs[0].name),
  several ? h("p", { class: "muted small" }, "Details of each run are below the comparison.") : h("p", { class: "small" }, h("span", { class: `pill ${runs[0].state}` }, states[runs[0].state]),
    h("span", { class: "muted" }, ` · ${unquoted(recipe(runs[0], "model") ?? "?")} on ${unquoted(recipe(runs[0], "data") ?? "?")}`))), toggle);
const measured = runs.some((r) => r.metrics.epoch.length), judged = runs.filter((r) => r.confusion.length);
const links = () => h("nav", { "aria-label": "sections" }, [["curves", "Curves", measured], ["differences", "Differences", several], ["classes", "Classes", judged.length], ["confusion", "Confusion", judged.length],
  ["mistakes", "Mistakes", runs.some((r) => r.mistakes.length)], ["uncertain", "Uncertain", runs.some((r) => r.uncertain.length)], ["samples", "Samples", runs.some((r) => r.augmented.length)],
  ["model", "Model", runs.some((r) => r.model)], ["recipe", "Recipe", true]].filter(([, , there]) => there).map(([id, name]) => h("a", { href: `#${id}` }, name)));

document.body.prepend(h("main", { class: "page" }, header(), links(),
  several ? h("div", { class: "card" }, comparison()) : figures(runs[0]),
  measured ? section("curves", "Curves", curves()) : h("p", { class: "muted" }, "No epoch is finished yet: curves appear after the first one."),
  several ? section("differences", "Recipe differences", h("div", { class: "card" }, differences())) : null,
  several && judged.length ? section("classes", "Classes", classBars(judged)) : null,
  several ? tabs() : null, panel,
  h("footer", {}, `Made by Vitrum ${data.version}, ${data.made}.`, data.plots.length ? ` The plots as files beside this page: ${data.plots.join(", ")}.` : "")), dialog);
select(runs[0]);
if (runs.some((r) => r.state === "running")) setTimeout(() => dialog.open || location.reload(), 15000);
