"""Opens the page of `vitrum serve` in a real browser and uses it: drop, choose, paste and photograph; labels, overlay, card; a wrong
file, a broken one, a server that is gone and comes back, one that asks for a key; phone and desktop, light and dark; keyboard alone;
what a screen reader is told; contrast of every text; no message on the console and nothing that the policy refuses.

    venv/bin/python tools/check/check_serve_page.py [--vitrum build/release/vitrum] [--chromium /usr/bin/chromium] [--shots DIR]
        [--model DIR --photo FILE]

Needs playwright (and axe-core-python, where it is installed) and a chromium. Trains a small model on Fashion-MNIST where none is
given. Exit status 1 where something is wrong.
"""

import argparse
import base64
import json
import pathlib
import sys
import tempfile
import time

from playwright.sync_api import sync_playwright

from serving import ROOT, Server, check, fashion_photos, finish, make_model

# Ratio of luminances of each visible text and what is behind it.
CONTRAST = """() => {
  const rgb = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
  const over = (top, below) => { const a = top[3] === undefined ? 1 : top[3]; return [0, 1, 2].map(i => a * top[i] + (1 - a) * below[i]); };
  const behind = e => { if (!e) return [255, 255, 255]; const c = rgb(getComputedStyle(e).backgroundColor); return c[3] === 0 ? behind(e.parentElement) : over(c, c[3] === undefined ? c : behind(e.parentElement)); };
  const out = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || !e.checkVisibility() || e.closest("option, script, .hidden")) continue;
    const back = behind(e), fore = over(rgb(getComputedStyle(e).color), back);
    const [a, b] = [light(fore), light(back)].sort((x, y) => y - x);
    out.push([e.tagName + "#" + e.id + " " + e.textContent.trim().slice(0, 30), (a + .05) / (b + .05)]);
  }
  return out;
}"""
PASTE = """([data, name, type]) => {
  const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0)), held = new DataTransfer();
  held.items.add(new File([bytes], name, { type }));
  document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: held, bubbles: true }));
}"""
DROP = """([data, name, type]) => {
  const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0)), held = new DataTransfer();
  held.items.add(new File([bytes], name, { type }));
  for (const kind of ["dragenter", "dragover", "drop"])
    document.getElementById("drop").dispatchEvent(new DragEvent(kind, { dataTransfer: held, bubbles: true, cancelable: true }));
}"""


def until(page, expression, arg=None, seconds=30):
    """Asks again and again from outside: the page's policy lets nobody evaluate text in it."""
    end = time.time() + seconds
    while time.time() < end:
        if page.evaluate(expression, arg):
            return
        page.wait_for_timeout(30)
    raise TimeoutError(expression)


class Tab:
    """A page that notes whatever it says. `expected` are the browser's own words on answers that are no success."""

    def __init__(self, browser, base, width=1280, height=860, scheme="light", **more):
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, permissions=["camera"], **more)
        self.page = self.context.new_page()
        self.noise, self.expected = [], ()
        self.page.on("console", lambda m: self.note(m.text))
        self.page.on("pageerror", lambda e: self.note(str(e)))
        self.page.on("request", lambda r: None if r.url.startswith((base, "blob:", "data:")) else self.note("asked for " + r.url))
        self.page.add_init_script("document.addEventListener('securitypolicyviolation', e => console.error('refused by the policy: ' + e.violatedDirective))")
        self.page.goto(base)
        until(self.page, "document.querySelector('#card dd')")

    def note(self, text):
        if not any(e in text for e in self.expected):
            self.noise.append(text)

    def status(self):
        return self.page.inner_text("#status")

    def wait_answer(self, count=5):
        until(self.page, f"document.querySelectorAll('#labels li').length === {count} && !document.getElementById('labels').hidden")

    def wait_bad(self):
        until(self.page, "document.getElementById('status').className === 'bad'")

    def close(self, where):
        check(not self.noise, f"{where}: no message on the console: {self.noise}")
        self.context.close()


def encoded(photo, name="photo.png", kind="image/png"):
    return [base64.b64encode(photo).decode(), name, kind]


def check_contrast(tab, where):
    for text, ratio in tab.page.evaluate(CONTRAST):
        check(ratio >= 4.5, f"{where}: contrast {ratio:.2f} of {text}")


def check_axe(tab, where):
    try:
        from axe_core_python.sync_playwright import Axe
    except ImportError:
        return
    script = pathlib.Path(sys.modules["axe_core_python"].__path__[0]) / "axe.min.js"
    tab.page.evaluate(script.read_text())
    found = tab.page.evaluate("() => axe.run()")["violations"]
    check(not found, f"{where}: axe: {[(v['id'], v['help'], [n['html'] for n in v['nodes']][:3]) for v in found]}")


def check_names(tab, where):
    """What a screen reader has to say of everything one can use."""
    session = tab.context.new_cdp_session(tab.page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    seen = {}
    for node in nodes:
        if node.get("ignored"):
            continue
        role, name = node.get("role", {}).get("value"), node.get("name", {}).get("value", "")
        seen.setdefault(role, []).append(name)
        focusable = any(p["name"] == "focusable" and p["value"].get("value") for p in node.get("properties", []))
        if focusable and role != "RootWebArea":
            check(name.strip(), f"{where}: a {role} has a name")
    check("Model" in " ".join(seen.get("combobox", [])), f"{where}: the choice of models is named: {seen.get('combobox')}")
    check(any("Choose a photo" in n for n in seen.get("button", [])), f"{where}: the file chooser is named: {seen.get('button')}")
    check(seen.get("status") is not None, f"{where}: there is a live region")
    check(len(seen.get("heading", [])) >= 4 and "main" in seen and "banner" in seen, f"{where}: headings and landmarks")
    live = tab.page.get_attribute("#status", "aria-live")
    check(live == "polite", f"{where}: answers are read out")


def check_use(browser, base, photos, top, shots, suffix, **window):
    tab = Tab(browser, base, **window)
    where = suffix
    shots and tab.page.screenshot(path=shots / f"empty-{suffix}.png")
    check_contrast(tab, where + ", empty")
    check_axe(tab, where + ", empty")
    overflow = tab.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    check(overflow <= 0, f"{where}: {overflow} pixels stand out at the side")
    tab.page.evaluate(DROP, encoded(photos[0]))
    tab.wait_answer(min(5, len(top[0])))
    names = tab.page.eval_on_selector_all("#labels .name", "e => e.map(x => x.textContent)")
    shares = tab.page.eval_on_selector_all("#labels .share", "e => e.map(x => x.textContent)")
    check(names == [p["label"] for p in top[0]], f"{where}: labels as classify has them: {names}")
    check(shares == [f"{100 * p['probability']:.1f} %" for p in top[0]], f"{where}: shares: {shares}")
    tab.page.wait_for_timeout(450)  # bars grow
    widths = tab.page.eval_on_selector_all("#labels .bar", "e => e.map(x => x.getBoundingClientRect().width / x.parentElement.getBoundingClientRect().width)")
    check(all(abs(w - p["probability"]) < 0.03 for w, p in zip(widths, top[0])), f"{where}: bars as long as the shares: {widths}")
    check(tab.status().startswith(top[0][0]["label"]), f"{where}: the best one is read out: {tab.status()}")
    check("ms" in tab.page.inner_text("#latency"), f"{where}: how long it took")
    card = tab.page.inner_text("#card")
    check("parameters" in card and "Classes" in card and "Version" in card, f"{where}: the card: {card}")
    shots and tab.page.screenshot(path=shots / f"answer-{suffix}.png", full_page=True)
    check_contrast(tab, where)
    check_axe(tab, where)
    tab.page.click("#overlay")
    until(tab.page, "document.getElementById('overlay').getAttribute('aria-pressed') === 'true'")
    check("looked at" in tab.page.get_attribute("#photo", "alt"), f"{where}: the overlay is described")
    until(tab.page, "document.getElementById('photo').complete && document.getElementById('photo').naturalWidth > 0")
    shots and tab.page.screenshot(path=shots / f"overlay-{suffix}.png", full_page=True)
    tab.page.click("#overlay")
    check(tab.page.get_attribute("#photo", "alt") == "The photo you gave", f"{where}: back to the photo")
    tab.page.evaluate(PASTE, encoded(photos[1]))
    until(tab.page, "t => document.querySelector('#labels .name')?.textContent === t", arg=top[1][0]["label"])
    tab.page.set_input_files("#file", {"name": "x.png", "mimeType": "image/png", "buffer": photos[0]})
    until(tab.page, "t => document.querySelector('#labels .name')?.textContent === t", arg=top[0][0]["label"])
    check_names(tab, where)
    overflow = tab.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    check(overflow <= 0, f"{where}: {overflow} pixels stand out at the side")
    tab.close(where)


def check_wrong_files(browser, base, photos, shots):
    tab = Tab(browser, base)
    tab.page.evaluate(DROP, encoded(b"hello", "notes.txt", "text/plain"))
    tab.wait_bad()
    check("not a photo" in tab.status() and tab.page.is_visible("#invite"), f"wrong file: {tab.status()}")
    tab.expected = ("status of 422",)  # the browser says so itself
    for name, data in (("broken.png", photos[0][:60]), ("text.png", b"hello"), ("empty.png", b"")):
        tab.page.evaluate(DROP, encoded(data, name))
        tab.expected = ("status of 422", "status of 400")
        tab.wait_bad()
        check(tab.page.is_disabled("#overlay") and not tab.page.is_visible("#labels"), f"{name}: nothing is left of an older answer")
        until(tab.page, "!document.getElementById('invite').hidden")
    shots and tab.page.screenshot(path=shots / "wrong-file.png")
    check_contrast(tab, "wrong file")
    tab.page.evaluate(DROP, encoded(photos[0]))
    tab.wait_answer()
    tab.close("wrong files")


def check_server_gone(browser, options, model, photos, shots):
    port = options.port + 1
    server = Server(options.vitrum, {"small": model}, port)
    tab = Tab(browser, f"http://127.0.0.1:{port}")
    server.stop()
    tab.expected = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")
    tab.page.evaluate(DROP, encoded(photos[0]))
    tab.wait_bad()
    check(tab.status() == "The server cannot be reached." and tab.page.is_visible("#retry"), f"server gone: {tab.status()}")
    shots and tab.page.screenshot(path=shots / "gone.png")
    check_contrast(tab, "server gone")
    server = Server(options.vitrum, {"small": model}, port)
    tab.page.click("#retry")
    tab.wait_answer()
    check(not tab.page.is_visible("#retry"), "server back: no more to try")
    tab.close("server gone")
    server.stop()


def check_key(browser, options, model, photos, folder, shots):
    port = options.port + 2
    (folder / "keys").write_text("open sesame\n")
    server = Server(options.vitrum, {"small": model}, port, "--api-key-file", folder / "keys")
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{port}")
    page.wait_for_selector("#key-form:not([hidden])")
    shots and page.screenshot(path=shots / "key.png")
    page.keyboard.type("open sesame")  # the field has the focus
    page.keyboard.press("Enter")
    until(page, "document.querySelector('#card dd')")
    page.evaluate(DROP, encoded(photos[0]))
    until(page, "document.querySelectorAll('#labels li').length === 5")
    context.close()
    server.stop()


def check_keyboard(browser, base, photos):
    """Tab and Enter alone reach everything, in the order of the page, and the focus can be seen."""
    tab = Tab(browser, base)
    reached = []
    for _ in range(12):
        tab.page.keyboard.press("Tab")
        name, outline = tab.page.evaluate("""() => { const e = document.activeElement;
          const shown = e.id === 'file' ? e.nextElementSibling : e;
          return [e.id || e.textContent, getComputedStyle(shown).outlineStyle]; }""")
        if name in reached or name.strip().startswith("Vitrum"):
            break
        reached.append(name)
        check(outline != "none", f"keyboard: the focus on {name} can be seen")
    check(reached[:3] == ["model", "file", "photograph"] and "Call it from a program" in reached, f"keyboard: {reached}")
    tab.page.focus("#file")
    with tab.page.expect_file_chooser() as chooser:
        tab.page.keyboard.press("Enter")
    chooser.value.set_files({"name": "x.png", "mimeType": "image/png", "buffer": photos[0]})
    tab.wait_answer()
    tab.page.focus("#overlay")
    for pressed in ("true", "false"):
        tab.page.keyboard.press("Space")
        until(tab.page, "p => document.getElementById('overlay').getAttribute('aria-pressed') === p", arg=pressed)
        check(tab.page.evaluate("document.activeElement.id") == "overlay", "keyboard: the focus stays on the button")
    tab.page.focus("#photograph")
    tab.page.keyboard.press("Enter")
    until(tab.page, "document.getElementById('camera').videoWidth > 0")
    tab.page.keyboard.press("Enter")
    until(tab.page, "document.getElementById('camera').hidden")
    tab.wait_answer()
    tab.close("keyboard")


def check_docs_page(browser, base, shots):
    context = browser.new_context(viewport={"width": 390, "height": 800})
    page = context.new_page()
    noise = []
    page.on("console", lambda m: noise.append(m.text))
    page.goto(base + "/docs")
    check(not noise, f"docs: {noise}")
    check(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0, "docs: nothing stands out at the side")
    shots and page.screenshot(path=shots / "docs.png", full_page=True)
    context.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vitrum", default=str(ROOT / "build/release/vitrum"))
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--port", type=int, default=20120)
    parser.add_argument("--shots")
    parser.add_argument("--model")
    parser.add_argument("--photo", nargs=2)
    options = parser.parse_args()
    shots = pathlib.Path(options.shots) if options.shots else None
    shots and shots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        folder = pathlib.Path(folder)
        model = options.model or make_model(options.vitrum, folder / "run")
        photos = [pathlib.Path(p).read_bytes() for p in options.photo] if options.photo else fashion_photos(2)
        server = Server(options.vitrum, {"small": model}, options.port)
        base = f"http://127.0.0.1:{options.port}"
        top = [server.classify(p)[1]["predictions"] for p in photos]
        browser = play.chromium.launch(executable_path=options.chromium, args=[
            "--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"])
        for scheme in ("light", "dark"):
            check_use(browser, base, photos, top, shots, f"desktop-{scheme}", scheme=scheme)
            check_use(browser, base, photos, top, shots, f"phone-{scheme}", scheme=scheme, width=390, height=844, has_touch=True, is_mobile=True)
        check_wrong_files(browser, base, photos, shots)
        check_server_gone(browser, options, model, photos, shots)
        check_key(browser, options, model, photos, folder, shots)
        check_keyboard(browser, base, photos)
        check_docs_page(browser, base, shots)
        browser.close()
        code = server.stop()
        check(code == 0, f"the server ends with {code}: {server.errors[-3:]}")
    return finish()


if __name__ == "__main__":
    sys.exit(main())
