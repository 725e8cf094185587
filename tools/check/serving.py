"""What the checks of `vitrum serve` share: a model, a server, raw connections, and a list of what went wrong."""

import atexit
import base64
import gzip
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import threading
import time
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
failures = []


def check(condition, text):
    """Notes what is wrong and goes on; returns whether it was right."""
    if not condition:
        failures.append(text)
        print("WRONG:", text, flush=True)
    return bool(condition)


def finish():
    print("all well" if not failures else f"{len(failures)} wrong", flush=True)
    return 1 if failures else 0


def make_model(vitrum, out, steps=60, seed=0):
    """A small ViT of 28 x 28 grey images, trained for a moment on Debian's Fashion-MNIST; its directory."""
    subprocess.run([vitrum, "train", "--model", "vit_small28", "--data", "fashion-mnist", "--out", out, "-q", "--seed", str(seed),
                    "--set", f"max_steps={steps}"], check=True, stdout=subprocess.DEVNULL)
    return pathlib.Path(out) / "best"


def png(width, height, rows=None, grey=False):
    """A PNG without Pillow; `rows` are its bytes, a gradient where they are not given."""
    channels = 1 if grey else 3
    if rows is None:
        rows = bytes((x * 3 + y * 5 + c * 70) & 255 for y in range(height) for x in range(width) for c in range(channels))
    raw = b"".join(b"\0" + rows[y * width * channels:(y + 1) * width * channels] for y in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0 if grey else 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def fashion_photos(count):
    """PNGs of the first images of Fashion-MNIST's test set."""
    with gzip.open("/usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz") as file:
        data = file.read()[16:16 + 784 * count]
    return [png(28, 28, data[784 * i:784 * (i + 1)], grey=True) for i in range(count)]


class Server:
    """`vitrum serve` as a process of its own. `log` has its request lines where --json is among the options."""

    def __init__(self, vitrum, models, port, *options, json_log=True, wait=True, env=None, stdout=None):
        self.port, self.lines, self.errors = port, [], []
        command = [str(vitrum), "serve", "--listen", f"127.0.0.1:{port}", *(["--json"] if json_log else []), *map(str, options)]
        for name, path in models.items():
            command += ["--model", f"{name}={path}"]
        self.process = subprocess.Popen(command, stdout=stdout or subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **(env or {})})
        atexit.register(self.process.kill)
        for stream, lines in ((self.process.stdout, self.lines), (self.process.stderr, self.errors)):
            if stream:
                threading.Thread(target=self._read, args=(stream, lines), daemon=True).start()
        if wait:
            self.wait_ready()

    @staticmethod
    def _read(stream, lines):
        for line in stream:
            lines.append(line.rstrip("\n"))
            if len(lines) > 20000:
                del lines[:10000]

    def wait_ready(self, seconds=60):
        end = time.time() + seconds
        while time.time() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}: {self.errors}")
            try:
                if self.ask("GET", "/v2/health/ready")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise RuntimeError("the server does not become ready")

    def connect(self, timeout=20):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def ask(self, method, path, body=b"", headers=None, host="localhost", timeout=20):
        """Status, headers and body of one request on a connection of its own; status 0 where none came."""
        with self.connect(timeout) as s:
            s.sendall(request_bytes(method, path, body, headers, host, close=True))
            return read_answer(s, method)

    def classify(self, photo, top_k=5):
        status, _, body = self.ask("POST", f"/v1/classify?top_k={top_k}", photo)
        return status, json.loads(body)["results"][0] if body else None

    def metric(self, name):
        for line in self.ask("GET", "/metrics")[2].decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        return None

    def rss(self):
        """Bytes of resident memory."""
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024
        return 0

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def alive(self):
        return self.process.poll() is None

    def stop(self, number=signal.SIGTERM, seconds=60):
        """Its exit code."""
        if self.alive():
            self.process.send_signal(number)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "does not stop"


def request_bytes(method, path, body=b"", headers=None, host="localhost", close=False):
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    if close:
        lines.append("Connection: close")
    lines += [f"{k}: {v}" for k, v in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def read_answer(s, method="GET", buffer=None):
    """One answer by its Content-Length. `buffer` (a bytearray) keeps what is behind it for the next."""
    data = buffer if buffer is not None else bytearray()
    try:
        while b"\r\n\r\n" not in data:
            more = s.recv(65536)
            if not more:
                return 0, {}, b""
            data += more
        head, _, _ = bytes(data).partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:])}
        length = 0 if method == "HEAD" else int(headers.get("content-length", 0))
        start = len(head) + 4
        while len(data) < start + length:
            more = s.recv(65536)
            if not more:
                return 0, headers, b""
            data += more
        body = bytes(data[start:start + length])
        del data[:start + length]
        return int(lines[0].split()[1]), headers, body
    except (ConnectionError, socket.timeout, TimeoutError):
        return 0, {}, b""


def form(photos):
    """A multipart body and its content type."""
    body = b"".join(b'--cut\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n' + p + b"\r\n" for p in photos)
    return body + b"--cut--\r\n", {"Content-Type": "multipart/form-data; boundary=cut"}


def data_uri(photo):
    return "data:image/png;base64," + base64.b64encode(photo).decode()
