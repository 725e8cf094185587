const data = JSON.parse(document.getElementById("data").textContent);
const runs = data.runs, several = runs.length > 1, mixed = several && data.compare.groups.length > 1, onDifferent = mixed ? "on different images" : null;
Chart.epochs = runs.flatMap((r) => r.metrics.epoch).reduce(([low, high], e) => [Math.min(low, e), Math.max(high, e)], [Infinity, -Infinity]);
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
const states = { running: "running; this page reloads itself", finished: "finished", stopped: "stopped before its end", empty: "no epoch finished yet" };

// What scrolls fades out on the sides where there is more.
const watch = (box) => {
  const mark = () => {
    const more = (name, hidden) => box.style.setProperty(name, hidden > 1 ? "36px" : "0px");
    more("--right", box.scrollWidth - box.clientWidth - box.scrollLeft), more("--left", box.scrollLeft);
    more("--below", box.scrollHeight - box.clientHeight - box.scrollTop);
  };
  box.addEventListener("scroll", mark, { passive: true });
  const sizes = new ResizeObserver(mark);
  for (const part of [box, ...box.children]) sizes.observe(part);
  return box;
};
const scroller = (props, ...content) => watch(h("div", { tabindex: 0, role: "region", ...props, class: `scroll ${props.class ?? ""}` }, ...content));
const table = (head, rows, props = {}) => scroller({ class: props.tall ? "tall" : "", "aria-label": props.label },
  h("table", { class: "data" }, h("thead", {}, h("tr", {}, head.map((t, i) => h("th", { scope: "col", class: props.num?.(i) ? "num" : null }, t)))),
    h("tbody", {}, rows)));
const section = (id, title, ...content) => h("section", { id, "aria-label": title }, h("h2", {}, title), ...content);

// ---- figures ----
const figure = (value, label) => h("div", { class: "card figure" }, h("b", {}, value), h("span", {}, label));
const figures = (r) => {
  const f = results(r), all = [];
  if (f.best != null) all.push(figure(number.percent(f.best), `best test accuracy, epoch ${f.bestEpoch}`));
  if (f.last != null && f.last !== f.best) all.push(figure(number.percent(f.last), r.state === "running" ? "latest test accuracy" : "test accuracy at the end"));
  if (f.trainLoss != null) all.push(figure(number.loss(f.trainLoss), f.testLoss == null ? "training loss" : `training loss; test ${number.loss(f.testLoss)}`));
  all.push(figure(`${f.epochs} / ${r.epochs}`, `epochs in ${number.time(f.seconds)}`));
  if (f.rate != null) all.push(figure(number.count(f.rate), "images a second (median)"));
  if (r.test_images) all.push(figure(number.count(r.test_images), r.train_images ? `test images; ${number.count(r.train_images)} to train on` : "test images"));
  if (r.model) all.push(figure(number.short(r.model.parameters), `parameters; ${number.short(r.model.macs)} MACs an image`));
  return h("div", { class: "figures" }, all);
};

// Name, value, how it is written; 1 where more is better, -1 where less is; whether that holds on the same images only.
const columns = [
  ["best test acc.", (f) => f.best, number.percent, 1, true], ["epoch", (f) => f.bestEpoch, number.count, 0], ["last test acc.", (f) => f.last, number.percent, 1, true],
  ["train loss", (f) => f.trainLoss, number.loss, -1, true], ["test loss", (f) => f.testLoss, number.loss, -1, true], ["images, train + test", (f, r) => (r.test_images ? `${r.train_images ? number.count(r.train_images) : "?"} + ${number.count(r.test_images)}` : null), (x) => x ?? "–", 0], ["epochs", (f) => f.epochs, number.count, 0],
  ["images/s", (f) => f.rate, number.count, 1], ["time", (f) => f.seconds, number.time, -1],
  ["parameters", (f, r) => r.model?.parameters, number.count, 0], ["MACs", (f, r) => r.model?.macs, (x) => (x == null ? "–" : number.short(x)), 0],
];
const comparison = () => {
  const all = runs.map((r) => columns.map(([, of]) => of(results(r), r)));
  const best = columns.map(([, , , sign, onImages], c) => {
    const values = all.map((row) => row[c]).filter((x) => x != null);
    return sign && values.length > 1 && !(onImages && mixed) ? (sign > 0 ? Math.max(...values) : Math.min(...values)) : NaN;
  });
  return table(["run", ...columns.map(([name]) => name)], runs.map((r, i) => h("tr", {},
    h("td", {}, h("span", { class: "pill", style: { "--ink": r.ink } }, r.name)),
    columns.map(([, , format], c) => h("td", { class: all[i][c] === best[c] ? "num best" : "num" }, format(all[i][c]))))), { num: (i) => i > 0, label: "final figures" });
};
const differences = () => {
  const keys = [...new Set(runs.flatMap((r) => r.recipe.map(([k]) => k)))];
  const rows = keys.filter((k) => new Set(runs.map((r) => recipe(r, k) ?? "")).size > 1);
  if (!rows.length) return h("p", { class: "muted" }, "All runs have the same recipe.");
  return table(["key", ...runs.map((r) => r.name)], rows.map((k) => h("tr", {}, h("td", {}, h("code", {}, k)),
    runs.map((r) => h("td", { class: "wrap" }, h("code", {}, recipe(r, k) ?? "–"))))), { label: "recipe differences" });
};

// ---- runs that were not tested on the same images ----
const someNames = (r) => r.classes.slice(0, 5).join(", ") + (r.classes.length > 5 ? ", …" : "");
const tested = (r) => r.test_images ? `${number.count(r.test_images)} images of ${number.count(r.classes.length)} classes: ${someNames(r)}` : "which images is not known";
const warning = () => h("div", { class: "card notes warning", role: "note" }, h("h2", {}, "These runs were tested on different images"),
  h("p", {}, "Their accuracies and losses do not say which run is better, so none is marked as the best. Curves share a plot only to show their shapes. Classes are compared where they have the same name: ",
    data.compare.classes.length ? `${number.count(data.compare.classes.length)} in common.` : "none in common."),
  h("ul", {}, data.compare.groups.map((g) => h("li", {}, h("b", {}, g.map((i) => runs[i].name).join(", ")), `: ${tested(runs[g[0]])}`))));

// ---- curves: one run in two colours, several in one each with the training side dotted ----
const series = (...pairs) => runs.flatMap((r) => pairs.map(([key, name], i) => ({
  name: several ? (name && pairs.length > 1 ? `${r.name} ${name}` : r.name) : name,
  ink: several ? r.ink : colour(pairs.length > 1 ? i : 2), dash: several && pairs.length > 1 && i === 0, x: r.metrics.epoch, y: r.metrics[key],
})));
const hasAccuracy = runs.some((r) => lastOf(r.metrics.train_acc) != null || lastOf(r.metrics.test_acc) != null);
const curves = () => h("div", { class: "grid" }, [
  new Chart({ title: "Loss", mark: onDifferent, format: number.loss, series: series(["train_loss", "train"], ["test_loss", "test"]), logs: true }),
  hasAccuracy && new Chart({ title: "Accuracy", mark: onDifferent, format: number.percent, factor: 100, ceiling: 1, series: series(["train_acc", "train"], ["test_acc", "test"]) }),
  new Chart({ title: "Learning rate", format: number.rate, series: series(["lr", "lr"]) }),
  new Chart({ title: "Images a second", format: number.count, series: series(["images_per_second", "training"]) }),
].filter(Boolean).map((c) => c.element));

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
  if (r.totals.length) {
    if (!several) parts.push(section("classes", "Classes", classBars([r])));
    parts.push(section("confusion", "Confusion", confusion(r)));
  }
  if (r.mistakes.length) parts.push(section("mistakes", "Worst mistakes", h("p", { class: "muted small" }, "Wrong, and surest of it: the true class, then what the model said. Some may be labelled wrongly."), tiles(r, r.mistakes, mistaken(r))));
  if (r.uncertain.length) parts.push(section("uncertain", "Most uncertain", h("p", { class: "muted small" }, "Smallest distance between the first guess and the second; the true class is marked."), tiles(r, r.uncertain, guesses(r))));
  if (r.reconstructions) parts.push(section("reconstructions", "Reconstructions", h("p", { class: "muted small" }, "Each photo as the model is given it, what it sees of it, and what it fills in. A patch that was asked for without its mean and deviation is drawn with the photo's."), h("img", { class: "wide", src: r.reconstructions, alt: "photos, hidden and filled in" })));
  if (r.augmented.length) parts.push(section("samples", "Training samples", h("p", { class: "muted small" }, "The first images of the first epoch, resized and augmented as the model is given them."), augmented(r)));
  if (r.model) parts.push(section("model", "Model", layers(r)));
  parts.push(section("recipe", "Recipe and environment", h("div", { class: "grid" }, pairs("Recipe", r.recipe), pairs(`Environment, seed ${recipe(r, "seed") ?? "–"}`, [["run", r.path], ...environment(r)]))));
  return parts.filter(Boolean);
};

const panel = h("div", { id: "details", role: several ? "tabpanel" : null });
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
const measured = runs.some((r) => r.metrics.epoch.length), judged = runs.filter((r) => r.totals.length);
const links = () => watch(h("nav", { "aria-label": "sections" }, [["curves", "Curves", measured], ["differences", "Differences", several], ["classes", "Classes", judged.length], ["confusion", "Confusion", judged.length],
  ["mistakes", "Mistakes", runs.some((r) => r.mistakes.length)], ["uncertain", "Uncertain", runs.some((r) => r.uncertain.length)], ["reconstructions", "Reconstructions", runs.some((r) => r.reconstructions)], ["samples", "Samples", runs.some((r) => r.augmented.length)],
  ["model", "Model", runs.some((r) => r.model)], ["recipe", "Recipe", true]].filter(([, , there]) => there).map(([id, name]) => h("a", { href: `#${id}` }, name))));

document.body.prepend(h("main", { class: "page" }, header(), links(), mixed ? warning() : null,
  several ? h("div", { class: "card" }, comparison()) : figures(runs[0]),
  measured ? section("curves", "Curves", curves()) : h("p", { class: "muted" }, "No epoch is finished yet: curves appear after the first one."),
  several ? section("differences", "Recipe differences", h("div", { class: "card" }, differences())) : null,
  several && judged.length ? section("classes", "Classes", mixed ? h("p", { class: "muted small" }, "Classes of the same name, on different images.") : null, classBars(judged)) : null,
  several ? tabs() : null, panel,
  h("footer", {}, `Made by Vitrum ${data.version}, ${data.made}.`, data.plots.length ? ` The plots as files beside this page: ${data.plots.join(", ")}.` : "")), dialog);
select(runs[0]);
if (runs.some((r) => r.state === "running")) setInterval(() => dialog.open || location.reload(), 15000);
