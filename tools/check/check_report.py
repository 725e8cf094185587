"""Opens reports in a real browser: values of curves, hover, axes, the images of a confusion cell, comparison, runs on different
data, a thousand classes, themes, widths, and names that try to be code.

    tools/python.sh tools/check/check_report.py [--vitrum build/release/vitrum] [--chromium /usr/bin/chromium] [--shots DIR]

Makes its own runs: one as long as a CIFAR run (300 epochs, 10,000 test images) whose class names, path and recipe are
markup, a shorter one to compare with, one on other data with some of the same classes, and one of 1,000 classes. Needs numpy and playwright with a chromium; screenshots go to DIR. Exit
status 1 where something is wrong.
"""

import argparse
import csv
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np
from playwright.sync_api import sync_playwright

EVIL = "<script>alert(1)</script>"
NAMES = [EVIL, '"><img src=x onerror=alert(2)>', "</title></style>", "cat & dog", "deer", "a very long class name that has no end", "frog", "été", "日本", "truck"]
failures = []


def check(condition, text):
    if not condition:
        failures.append(text)
        print("WRONG:", text)


def write_cifar(folder, train, test, seed=1, names=NAMES):
    """Images of one soft blob each, its colour and place by class."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    y, x = np.mgrid[0:32, 0:32]

    def records(count):
        out = bytearray()
        for i in range(count):
            label = i % 10
            blob = np.exp(-((x - 6 - 2 * label) ** 2 + (y - 26 + 2 * label) ** 2) / 60)
            noise = rng.integers(0, 40, (3, 32, 32))
            tint = np.array([label * 25, 250 - label * 25, (label * 97) % 255]).reshape(3, 1, 1)
            out += bytes([label]) + np.clip(blob * tint + noise, 0, 255).astype(np.uint8).tobytes()
        return bytes(out)

    for i in range(1, 6):
        (folder / f"data_batch_{i}.bin").write_bytes(records(train // 5))
    (folder / "test_batch.bin").write_bytes(records(test))
    (folder / "batches.meta.txt").write_text("\n".join(names) + "\n")


def train(vitrum, data, out, *options):
    subprocess.run([vitrum, "train", "--model", "vit_lite_cifar", "--data", f"cifar10:{data}", "--batch-size", "16", "--out", out, "-q",
                    "--set", "max_steps=1", "--set", "augment=crop-flip", *options], check=True, stdout=subprocess.DEVNULL)


def pretend(run, epochs, best, seed):
    """Puts the metrics of a long run in place of a step's, and predictions of 10,000 images."""
    rng = np.random.default_rng(seed)
    t = np.arange(1, epochs + 1) / epochs
    loss = 2.2 * np.exp(-4 * t) + 0.15 + rng.normal(0, 0.01, epochs)
    test = 2.1 * np.exp(-3.5 * t) + 0.45 + rng.normal(0, 0.02, epochs)
    accuracy = best - (best - 0.3) * np.exp(-5 * t) + rng.normal(0, 0.002, epochs)
    rate = 1e-3 * (1 + np.cos(np.pi * t)) / 2
    rows = [["epoch", "step", "train_loss", "train_loss_sum", "train_acc", "test_loss", "test_acc", "test_top5", "lr", "images_per_second", "seconds"]]
    for i in range(epochs):
        rows.append([i + 1, 391 * (i + 1), loss[i], 391 * loss[i], min(1, accuracy[i] + 0.03), test[i], accuracy[i], 0.99, rate[i], 21000 + rng.normal(0, 300), 2.4])
    with open(run / "metrics.csv", "w") as file:
        file.writelines(",".join(str(c) for c in row) + "\n" for row in rows)
    text = "index,label,prediction,probability,second,second_probability,label_probability\n"
    for i in range(10000):
        label = i % 10
        guess = label if rng.random() < accuracy[-1] else int((label + rng.choice([1, 2, 7])) % 10)
        p = rng.uniform(0.4, 1)
        text += f"{i},{label},{guess},{p:.6g},{(guess + 1) % 10},{(1 - p) * 0.8:.6g},{p if guess == label else (1 - p) * 0.1:.6g}\n"
    (run / "predictions.csv").write_text(text)
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(re.sub(r"max_steps = \d+", "max_steps = 0", re.sub(r"epochs = \d+", f"epochs = {epochs}", config, count=1)))


def many_classes(run, source, count):
    """A copy of a run whose predictions are of `count` classes."""
    shutil.copytree(source, run)
    text = "index,label,prediction,probability,second,second_probability,label_probability\n"
    for i in range(10000):
        label = i % count
        guess = label if i % 4 else (label * 7 + i) % count
        text += f"{i},{label},{guess},0.8,{(guess + 1) % count},0.1,0.05\n"
    (run / "predictions.csv").write_text(text)


def metrics(run):
    with open(run / "metrics.csv") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


class Page:
    """A page that collects whatever goes wrong in it."""

    def __init__(self, browser, path, width, scheme):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.noise, self.where = [], f"{path.name} {width} {scheme}"
        self.page.on("console", lambda m: self.noise.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.noise.append(str(e)))
        self.page.on("dialog", lambda d: (self.noise.append("dialog " + d.message), d.dismiss()))
        self.page.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else self.noise.append("asked for " + r.url))
        self.page.goto(f"file://{path}")
        self.page.wait_for_selector("main")
        self.page.wait_for_timeout(150)

    def __getattr__(self, name):
        return getattr(self.page, name)

    def close(self):
        check(not self.noise, f"{self.where}: {self.noise}")
        self.context.close()


def check_look(browser, path, shots):
    for width in (390, 1280):
        for scheme in ("light", "dark"):
            page = Page(browser, path, width, scheme)
            check(page.evaluate("document.documentElement.scrollWidth") <= width, f"{page.where}: wider than the window")
            dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 19, 25)"
            check(dark == (scheme == "dark"), f"{page.where}: theme")
            if shots:
                page.screenshot(path=str(shots / f"{path.stem}-{width}-{scheme}.png"), full_page=True)
            page.click("text=theme")
            check((page.evaluate("document.documentElement.dataset.theme") == "dark") != dark, f"{page.where}: toggle")
            page.reload()
            check((page.evaluate("document.documentElement.dataset.theme") == "dark") != dark, f"{page.where}: the choice is kept")
            page.close()


def check_curves(page, rows):
    """The drawn path is an affine image of the values, and the legend has the last ones."""
    for title, keys, factor in (("Loss", ("train_loss", "test_loss"), 1), ("Accuracy", ("train_acc", "test_acc"), 100), ("Learning rate", ("lr",), 1), ("Images a second", ("images_per_second",), 1)):
        card = f'[data-chart="{title}"]'
        paths = page.eval_on_selector_all(f"{card} path.curve", "all => all.map(p => p.getAttribute('d'))")
        check(len(paths) == len(keys), f"{title}: {len(paths)} curves")
        ends = []
        for d, key in zip(paths, keys):
            points = np.array([float(n) for n in re.findall(r"-?[\d.]+", d)]).reshape(-1, 2)
            values = np.array([row[key] for row in rows])
            check(len(points) == len(values), f"{title}: {len(points)} points of {len(values)}")
            slope, start = np.polyfit(values, points[:, 1], 1)
            worst = np.abs(slope * values + start - points[:, 1]).max()
            check(slope < 0 and worst < 0.1, f"{title} {key}: off by {worst} pixels")
            ends.append((slope, start))
        check(len(ends) < 2 or np.allclose(ends[0], ends[1], rtol=1e-2), f"{title}: both curves on one scale")
        shown = page.inner_text(f"{card} .legend")
        last = rows[-1][keys[-1]]
        text = f"{100 * last:.2f} %" if factor == 100 else f"{last:.4f}" if title == "Loss" else f"{last:,.0f}" if last > 1000 else ""
        check(text in shown, f"{title}: legend '{shown}' without {text}")


def check_hover(page, rows):
    box = page.locator('[data-chart="Loss"] svg').bounding_box()
    page.locator('[data-chart="Loss"]').scroll_into_view_if_needed()
    box = page.locator('[data-chart="Loss"] svg').bounding_box()
    epoch = 120
    x = box["x"] + 54 + (epoch - 1) / (len(rows) - 1) * (box["width"] - 68)
    page.mouse.move(x, box["y"] + 100)
    tip = page.inner_text('[data-chart="Loss"] .tip')
    check(f"epoch {epoch}" in tip, f"hover says '{tip}'")
    check(f"{rows[epoch - 1]['train_loss']:.4f}" in tip and f"{rows[epoch - 1]['test_loss']:.4f}" in tip, f"hover values '{tip}'")
    check(f"{100 * rows[epoch - 1]['test_acc']:.2f} %" in page.inner_text('[data-chart="Accuracy"] .legend'), "the other charts follow")
    page.mouse.move(5, 5)
    check(not page.is_visible('[data-chart="Loss"] .tip'), "the tip goes away")
    page.focus('[data-chart="Accuracy"] svg')
    page.keyboard.press("Home")
    check("epoch 1" in page.inner_text('[data-chart="Accuracy"] .tip'), "keys move the cursor")
    before = page.get_attribute('[data-chart="Loss"] path.curve', "d")
    page.click('[data-chart="Loss"] .bar button')
    check(page.get_attribute('[data-chart="Loss"] path.curve', "d") != before, "log scale")
    page.click('[data-chart="Loss"] .legend button >> nth=0')
    check(page.locator('[data-chart="Loss"] path.curve').count() == 1, "a curve can be hidden")


def check_names(page):
    text = page.inner_text("main")
    for name in NAMES:
        check(name in text, f"class '{name}' is shown")
    check(page.evaluate("document.querySelectorAll('img[src=x], main script').length") == 0, "names are text")
    page.click("#mistakes button.tile >> nth=0")
    check(page.is_visible("dialog"), "an image opens")
    check("true class" in page.inner_text("dialog"), "and says what it is")
    page.keyboard.press("Escape")
    check(not page.is_visible("dialog"), "and closes")
    check(page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)"), "every image loads")


def check_axes(page):
    """All numbers of an axis have the same digits; the plots of a column and of a row are in line."""
    boxes = {}
    for title in ("Loss", "Accuracy", "Learning rate", "Images a second"):
        texts = page.eval_on_selector_all(f'[data-chart="{title}"] svg text[text-anchor=end]', "all => all.map(t => t.textContent)")
        numbers = [t for t in texts if re.fullmatch(r"[\d,]+(\.\d+)?", t)][:-1]
        check(len({len(t.partition(".")[2]) for t in numbers}) == 1, f"{title}: axis {texts}")
        boxes[title] = page.locator(f'[data-chart="{title}"] svg').bounding_box()
        line = page.eval_on_selector(f'[data-chart="{title}"] .axis', "p => p.getAttribute('d')")
        check(line.startswith("M54 "), f"{title}: margins {line}")
    check(boxes["Loss"]["x"] == boxes["Learning rate"]["x"] and boxes["Loss"]["width"] == boxes["Learning rate"]["width"], "a column of plots is in line")
    if boxes["Accuracy"]["x"] > boxes["Loss"]["x"]:
        check(boxes["Accuracy"]["y"] == boxes["Loss"]["y"], "a row of plots is in line")


def check_cells(page):
    """A cell of the matrix opens its images, by pointer and by keys, and says how many there are."""
    cell = page.locator(".matrix td button").nth(1)
    about = cell.get_attribute("aria-label")
    cell.click()
    check("this page holds" in page.inner_text("dialog") or "images." in page.inner_text("dialog"), f"'{about}' opens")
    page.keyboard.press("Escape")
    check(page.locator(".matrix td button[tabindex='0']").count() == 1, "one stop for the tab key")
    page.focus(".matrix td button[tabindex='0']")
    page.keyboard.press("ArrowRight")
    name = page.evaluate("document.activeElement.getAttribute('aria-label')")
    check("taken for" in name, f"arrows go to the next cell: '{name}'")
    page.keyboard.press("Enter")
    check(page.is_visible("dialog") and page.locator("dialog button.tile img").count() >= 1, "Enter opens its photos")
    page.locator("dialog button.tile").first.press("Enter")
    check("true class" in page.inner_text("dialog"), "a photo of it opens")
    page.click("dialog >> text=Back")
    check("taken for" in page.inner_text("dialog h3"), "and leads back")
    page.keyboard.press("Escape")
    check(page.evaluate("document.activeElement.getAttribute('aria-label')") == name, "the focus is where it was")


def check_scrolling(page):
    """What is wider than the window fades out where there is more, and only there."""
    for box in page.query_selector_all(".scroll, nav"):
        more, fade = box.evaluate("b => [b.scrollWidth - b.clientWidth - b.scrollLeft > 1, getComputedStyle(b).getPropertyValue('--right')]")
        check((fade != "0px") == more, f"{page.where}: {box.get_attribute('aria-label')} fades by {fade}")
    unnamed = page.evaluate("[...document.querySelectorAll('button, [role=region], select, a')].filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.querySelector('img[alt]'))).length")
    check(unnamed == 0, f"{page.where}: {unnamed} controls without a name")
    check(page.evaluate("[...document.images].every(i => i.alt)"), f"{page.where}: images without words")


def check_different_data(browser, path):
    page = Page(browser, path, 1280, "light")
    check("different images" in page.inner_text(".warning"), "it says that the data differs")
    check(page.locator('[data-chart="Loss"] .mark-different').count() == 1, "curves are marked")
    head = page.eval_on_selector_all("main > .card thead th", "all => all.map(t => t.textContent)")
    best = page.eval_on_selector_all("main > .card td.best", "all => all.map(t => t.cellIndex)")
    check(not {head[i] for i in best} & {"best test acc.", "last test acc.", "train loss", "test loss"}, "no accuracy is the best")
    shown = page.eval_on_selector_all("#classes .name", "all => all.map(t => t.textContent)")
    check(sorted(shown) == sorted(NAMES[:4]), f"only classes of the same name: {shown}")
    titles = page.eval_on_selector_all("#classes .track", "all => all.map(t => t.title)")
    page.click("[role=tab] >> nth=1")
    rows = dict(zip(page.eval_on_selector_all(".matrix tbody th", "all => all.map(t => t.textContent)"), page.eval_on_selector_all(
        ".matrix tbody tr", "rows => rows.map((r, i) => Number(r.cells[i + 1].textContent || 0) / [...r.cells].slice(1).reduce((a, c) => a + Number(c.textContent || 0), 0))")))
    for i, name in enumerate(shown):
        check(f"{100 * rows[name]:.2f} %" in titles[2 * i + 1], f"'{name}' has the number of its own class: {titles[2 * i + 1]}, {rows[name]}")
    page.close()


def check_many_classes(browser, path):
    check(path.stat().st_size < 1e6, f"1,000 classes: {path.stat().st_size} bytes")
    for width in (390, 1280):
        page = Page(browser, path, width, "light")
        check(page.locator(".matrix, canvas").count() == 0, "no matrix of 1,000 classes")
        check(page.locator("#confusion tbody tr").count() == 50, "the worst pairs")
        check(page.locator("#classes .track").count() == 60, "the worst classes")
        page.click("#confusion .link >> nth=0")
        check(page.is_visible("dialog"), "a pair opens")
        page.keyboard.press("Escape")
        page.click("#classes .more")
        check(page.locator("#classes .track").count() == 1000, "all classes where asked for")
        check(page.evaluate("document.documentElement.scrollWidth") <= width, "1,000 classes: wider than the window")
        page.close()


def check_comparison(browser, path, runs):
    page = Page(browser, path, 1280, "light")
    check(page.locator("main > .card tbody tr").count() == len(runs), "a row a run")
    best = max(range(len(runs)), key=lambda i: max(r["test_acc"] for r in runs[i]))
    marked = page.locator("main > .card tbody tr").nth(best).locator("td").nth(1)
    check("best" in (marked.get_attribute("class") or ""), "the best is marked")
    check(page.locator('[data-chart="Loss"] path.curve').count() == 2 * len(runs), "curves of all runs")
    check("lr" in page.inner_text("#differences") and "0.002" in page.inner_text("#differences"), "recipe differences")
    first = page.inner_text("#recipe")
    page.click("[role=tab] >> nth=1")
    check(page.inner_text("#recipe") != first, "tabs show another run")
    check(page.get_attribute("[role=tab] >> nth=1", "aria-selected") == "true", "and say so")
    page.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vitrum", default="build/release/vitrum")
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    parser.add_argument("--shots", type=pathlib.Path)
    args = parser.parse_args()
    if args.shots:
        args.shots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        data = root / "<b>data<b>"
        long, short = root / "runs" / "<i>long & <i>", root / "runs" / "short"
        write_cifar(data, 50, 20)
        train(args.vitrum, data, long)
        train(args.vitrum, data, short, "--lr", "0.002")
        write_cifar(data, 500, 10000)
        pretend(long, 300, 0.94, 1)
        pretend(short, 60, 0.91, 2)
        other = root / "runs" / "other"
        write_cifar(root / "other", 50, 20, 2, ["new a", "new b", *reversed(NAMES[:4]), "new c", "new d", "new e", "new f"])
        train(args.vitrum, root / "other", other)
        write_cifar(root / "other", 50, 10000, 2, ["new a", "new b", *reversed(NAMES[:4]), "new c", "new d", "new e", "new f"])
        pretend(other, 60, 0.5, 3)
        many_classes(root / "runs" / "many", long, 1000)
        page, both, different, many = (root / f"{name}.html" for name in ("long", "both", "different", "many"))
        start, used = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([args.vitrum, "report", long, "--output", page], check=True, stdout=subprocess.DEVNULL)
        took, now = time.time() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
        print(f"report of 300 epochs and 10,000 images: {took:.2f} s ({cpu:.2f} s of a core) with its plots, {page.stat().st_size / 1e6:.2f} MB")
        check(page.stat().st_size < 3e6, "size")
        subprocess.run([args.vitrum, "report", long, short, "--output", both], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([args.vitrum, "report", long, other, "--output", different], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([args.vitrum, "report", root / "runs" / "many", "--output", many], check=True, stdout=subprocess.DEVNULL)
        for name in sorted(root.glob("*.png")) if args.shots else []:
            shutil.copy(name, args.shots)
        with sync_playwright() as p:
            browser = p.chromium.launch(executable_path=args.chromium, args=["--no-sandbox"])
            check_look(browser, page, args.shots)
            check_look(browser, both, args.shots)
            check_look(browser, different, args.shots)
            check_different_data(browser, different)
            check_many_classes(browser, many)
            for width in (390, 1280):
                one = Page(browser, page, width, "light")
                check_curves(one, metrics(long))
                check_axes(one)
                check_scrolling(one)
                check_cells(one)
                check_hover(one, metrics(long))
                check_names(one)
                one.close()
            check_comparison(browser, both, [metrics(long), metrics(short)])
            browser.close()
    print("wrong" if failures else "all as it should be")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
