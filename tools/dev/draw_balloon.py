"""Draws the picture that the gallery explains: a hot-air balloon over hills, every pixel from a formula.

    python3 tools/dev/draw_balloon.py OUT.jpg

Needs numpy and pillow.
"""

import sys

import numpy as np
from PIL import Image

WIDTH, HEIGHT, FINE = 640, 480, 2  # FINE: samples a pixel and axis


def mix(a, b, t):
    return np.asarray(a) * (1 - t[..., None]) + np.asarray(b) * t[..., None]


def clouds(x, y, rng):
    """Smooth noise of four octaves, stretched along the horizon."""
    total = np.zeros_like(x)
    for octave in range(4):
        cells = 4 * 2 ** octave
        grid = rng.random((cells, 2 * cells))
        u, v = x * cells * 1.4 % (2 * cells), y * cells * 1.8 % cells
        i, j = v.astype(int) % cells, u.astype(int) % (2 * cells)
        below, right = (i + 1) % cells, (j + 1) % (2 * cells)
        fu, fv = (u - j) ** 2 * (3 - 2 * (u - j)), (v - i) ** 2 * (3 - 2 * (v - i))
        value = ((grid[i, j] * (1 - fu) + grid[i, right] * fu) * (1 - fv) +
                 (grid[below, j] * (1 - fu) + grid[below, right] * fu) * fv)
        total += value / 2 ** octave
    return total / 1.875


def envelope(x, y):
    """(inside, across, down): across the balloon in -1..1 on its round side, down from top to mouth in 0..1."""
    down = (y + 0.30) / 0.56
    t = np.clip(down, 0, 1)
    radius = 0.235 * np.sqrt(np.clip(1 - (2 * t / 1.12 - 1) ** 2, 0, None))
    radius = np.where(t > 0.56, 0.235 * (1 - 0.86 * (np.clip(t - 0.56, 0, 1) / 0.44) ** 1.5), radius)
    return (down > 0) & (down < 1) & (np.abs(x) < radius), x / np.maximum(radius, 1e-6), t


def main(path):
    rng = np.random.default_rng(4)
    y, x = np.mgrid[0:HEIGHT * FINE, 0:WIDTH * FINE].astype(float)
    x, y = (x + 0.5) / (HEIGHT * FINE), (y + 0.5) / (HEIGHT * FINE)

    picture = mix([58, 110, 190], [205, 222, 236], np.clip(y * 1.15, 0, 1))
    cover = np.clip((clouds(x, y, rng) - 0.55) * 4, 0, 1) * np.clip(1.1 - y, 0, 1)
    picture = mix(picture, [250, 250, 252], 0.85 * cover)
    for base, height, near, far in ((0.80, 0.05, [112, 138, 122], [140, 165, 160]), (0.87, 0.06, [74, 110, 60], [96, 132, 80]),
                                    (0.94, 0.05, [46, 82, 36], [70, 104, 52])):
        edge = base + height * np.sin(x * 7 + base * 40) * 0.4 + height * np.sin(x * 17 + base * 90) * 0.15
        texture = clouds(x * 6, y * 9, rng)
        inside = (y > edge)[..., None]
        picture = np.where(inside, mix(far, near, np.clip((y - edge) * 8, 0, 1)) * (0.85 + 0.3 * texture[..., None]), picture)

    bx, by = x - 0.60, y - 0.40
    inside, across, down = envelope(bx, by)
    angle = np.arcsin(np.clip(across, -1, 1))
    gore = np.floor((angle / np.pi + 0.5) * 9).astype(int)
    colours = np.array([[196, 34, 40], [244, 190, 44], [226, 92, 30], [244, 232, 214]])[gore % 4]
    band = (np.abs(down - 0.5) < 0.07)[..., None]
    colours = np.where(band, [38, 62, 128], colours)
    seam = np.abs((angle / np.pi + 0.5) * 9 % 1 - 0.5) > 0.47
    light = 0.55 + 0.5 * np.clip(np.cos(angle + 0.6), 0, 1) * (1 - 0.25 * down)
    colours = colours * (light * np.where(seam, 0.75, 1))[..., None]
    picture = np.where(inside[..., None], colours, picture)

    for end in (-0.026, -0.010, 0.010, 0.026):  # ropes
        t = (by - 0.25) / 0.085
        rope = (t > 0) & (t < 1) & (np.abs(bx - end * (1.25 - 0.25 * t)) < 0.0016)
        picture = np.where(rope[..., None], [60, 45, 35], picture)
    basket = (np.abs(bx) < 0.030 - 0.05 * (by - 0.33)) & (by > 0.33) & (by < 0.378)
    weave = 0.8 + 0.2 * np.sign(np.sin(bx * 900) * np.sin(by * 700))
    shade = 0.7 + 0.4 * np.clip(-bx / 0.03, -1, 1)
    picture = np.where(basket[..., None], np.array([140, 92, 48]) * (weave * shade)[..., None], picture)

    picture += rng.normal(0, 2.5, picture.shape)
    fine = np.clip(picture, 0, 255).reshape(HEIGHT, FINE, WIDTH, FINE, 3).mean((1, 3))
    Image.fromarray(fine.round().astype(np.uint8)).save(path, quality=85)


if __name__ == "__main__":
    main(sys.argv[1])
