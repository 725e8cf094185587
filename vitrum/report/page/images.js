// ---- images: tiles, and a dialog that shows one of them or those of a pair of classes ----
const className = (r, i) => r.classes[i] ?? String(i);
const dialog = h("dialog", { "aria-label": "images", onclick: (e) => e.target === dialog && dialog.close() });
const show = (...content) => {
  dialog.replaceChildren(...content);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
};
const picture = (t, source, alt) => source ? h("img", { src: source, alt, class: t.small ? "pixels" : null }) : h("div", { class: "blank" }, `#${t.index}`);
const share = (p) => (p == null ? "–" : `${(100 * p).toFixed(p > 0.9995 ? 2 : 1)} %`);
const described = (r, t) => t.label === t.guess ? `${className(r, t.label)}, recognised` : `${className(r, t.label)}, taken for ${className(r, t.guess)}`;
// `back`: what the dialog showed before, where it was open already.
const open = (r, t, back) => {
  const row = (name, value) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "wrap" }, value));
  show(h("div", { class: "pair" }, picture(t, t.image, className(r, t.label)), t.overlay ? picture(t, t.overlay, "what the model looked at") : null),
    h("table", { class: "data" }, h("tbody", {}, row("image", `#${t.index} ${t.name}`), row("true class", `${className(r, t.label)}, given ${share(t.own)}`),
      row("first guess", `${className(r, t.guess)}, ${share(t.p)}`), row("second guess", `${className(r, t.second)}, ${share(t.p2)}`))),
    h("div", { class: "buttons" }, back ? h("button", { onclick: back }, "Back") : null, h("button", { onclick: () => dialog.close() }, "Close")));
};

// Some first: on a phone they are a page already.
const few = (box) => {
  if (box.children.length <= 18) return box;
  box.classList.add("few");
  const more = h("button", { class: "more", onclick: () => { box.classList.remove("few"); more.remove(); } }, `show all ${box.children.length}`);
  return h("div", {}, box, more);
};
const switched = (name, turn) => h("button", { "aria-pressed": "false", onclick: (e) => {
  const on = e.currentTarget.getAttribute("aria-pressed") === "false";
  e.currentTarget.setAttribute("aria-pressed", on);
  turn(on);
} }, name);
const tile = (r, t, caption, overlay, back) => h("button", { class: "tile", title: t.name, onclick: () => open(r, t, back) }, picture(t, (overlay && t.overlay) || t.image, described(r, t)), caption(t));
const tiles = (r, list, caption) => {
  const box = h("div", { class: "tiles" }), fill = (overlay) => box.replaceChildren(...list.map((t) => tile(r, t, caption, overlay)));
  fill(false);
  if (!list.some((t) => t.overlay)) return few(box);
  return h("div", {}, h("div", { class: "bar" }, h("span", { class: "muted small" }, "With attention: what the model looked at keeps its light and colour."), switched("show attention", fill)), few(box));
};
const line = (name, p, kind) => h("div", { class: kind, title: name }, h("span", {}, name), p == null ? null : h("b", {}, `${Math.round(100 * p)} %`));
const mistaken = (r) => (t) => [line(className(r, t.label)), line(className(r, t.guess), t.p, "wrong")];
const guesses = (r) => (t) => [[t.guess, t.p], [t.second, t.p2]].map(([c, p]) => line(className(r, c), p, c === t.label ? "right" : c === t.guess ? "wrong" : "muted"));
const augmented = (r) => few(h("div", { class: "tiles" }, r.augmented.map((t) => h("div", { class: "tile", title: t.name }, picture(t, t.image, className(r, t.label)), line(className(r, t.label), null, "muted")))));

// The images of class t that were taken for p, as far as the page holds them: surest first.
const photosOf = (r, t, p) => {
  const seen = new Set();
  return [...r.mistakes, ...r.confused, ...r.uncertain].filter((x) => x.label === t && x.guess === p && !seen.has(x.index) && seen.add(x.index)).sort((a, b) => b.p - a.p);
};
const openPair = (r, t, p, n) => {
  const list = photosOf(r, t, p), all = n === 1 ? "1 image" : `${number.count(n)} images`, again = () => openPair(r, t, p, n);
  show(h("h3", {}, t === p ? `${className(r, t)}, recognised` : `${className(r, t)} taken for ${className(r, p)}`),
    h("p", { class: "muted small" }, list.length === n ? `${all}.` : list.length ? `${list.length} of ${all}: this page holds no more of them.` : `${all}, of which this page holds none.`),
    h("div", { class: "tiles" }, list.map((x) => tile(r, x, guesses(r), false, again))),
    h("div", { class: "buttons" }, h("button", { onclick: () => dialog.close() }, "Close")));
};
