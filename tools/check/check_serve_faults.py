"""Runs every row of the fault table of `vitrum serve`: attacks, smuggled requests, overload, signals, swaps and broken files under
load, clients that leave, and a machine that runs out of descriptors, disk or memory; last, a soak of mixed requests.

    python3 tools/check/check_serve_faults.py [--vitrum build/release/vitrum] [--port 20140] [--only NAME ...] [--quick]
        [--requests 1000000]

Needs nothing but Python; the soak needs wrk. --quick takes a tenth of the repetitions and leaves the soak out. Exit status 1 where a row does not
hold; figures go to stdout.
"""

import argparse
import json
import os
import pathlib
import random
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from serving import (ROOT, Server, check, data_uri, fashion_photos, finish, form, make_model, png, read_answer, request_bytes)
from serving_clients import Good, Load, fine, flood, silent_clients, slow_clients

MB = 1 << 20


def attacks(env):
    server = env.start("--max-connections", 1200, "--max-per-address", 1200)
    server.classify(env.photo)
    line = b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\n"
    chunked = line + b"Transfer-Encoding: chunked\r\n\r\n"
    rows = {
        "a header line of 256 MB": lambda: flood(server, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", b"x" * MB, 256 * MB),
        "Content-Length of 100 MB": lambda: flood(server, line + b"Content-Length: 104857600\r\n\r\n", b"x" * MB, 100 * MB),
        "a chunked body of 256 MB": lambda: flood(server, chunked, b"100000\r\n" + b"x" * MB + b"\r\n", 256 * MB),
        "two million header fields": lambda: flood(server, b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"".join(b"X%d: y\r\n" % i for i in range(10000)), 30 * MB),
        "chunks of one byte, a million": lambda: flood(server, chunked, b"1\r\nx\r\n" * 10000, 6 * 33 * MB),
        "a chunk of size -2": lambda: flood(server, chunked, b"-2\r\n", 4),
        "1,000 clients, a byte a second": lambda: slow_clients(server, 1000),
        "1,000 clients that say nothing": lambda: silent_clients(server, 1000),
    }
    want = {"a header line of 256 MB": 431, "Content-Length of 100 MB": 413, "a chunked body of 256 MB": 413,
            "two million header fields": 431, "chunks of one byte, a million": 413, "a chunk of size -2": 400}
    for name, attack in rows.items():
        before = server.rss()
        with Good(server, env.photo) as good:
            found = attack()
        grown = (server.rss() - before) / MB
        check(good.worst < env.patience, f"attacks, {name}: a good client waits {1e3 * good.worst:.0f} ms")
        check(set(good.statuses) == {200}, f"attacks, {name}: a good client is told {good.statuses}")
        check(grown < 32, f"attacks, {name}: memory grows by {grown:.1f} MB")
        if name in want:
            # A client that sends without reading may lose the answer to its own flood, but never the end.
            check(found[0] in (want[name], 0), f"attacks, {name}: answered {found[0]}")
        else:
            check(found[1] == 0 and found[0] <= 11, f"attacks, {name}: {found[1]} are left after {found[0]:.1f} s")
        print(f"  {name}: {found}, memory {grown:+.1f} MB, a good client waits {1e3 * good.worst:.0f} ms at most")
    env.end(server)


def smuggling(env):
    server = env.start()
    line, get = b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\n", b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = b"GET /v2/health/live HTTP/1.1\r\n"
    cases = [
        line + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        line + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        line + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        line + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        line + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        line + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        line + b"Transfer-Encoding: chunked\r\n\r\n1;x=y\r\na\r\n0\r\n\r\n",
        line + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\na\r\n0\r\n\r\n",
        line + b"Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
        line + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
        line + b"Content-Length: 1\r\nContent-Length: 31\r\n\r\na",
        line + b"Content-Length: 1, 1\r\n\r\na",
        line + b"Content-Length: +1\r\n\r\na",
        line + b"Content-Length: -1\r\n\r\n",
        line + b"Content-Length: 0x1\r\n\r\na",
        line + b"Host: other\r\nContent-Length: 1\r\n\r\na",
        b"POST /v1/classify HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        head + b"\r\n",
        head + b"Host: localhost\r\n X: folded\r\n\r\n",
        b"GET  /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v2/health/live HTTP/1.1\nHost: localhost\n\n",
        b"GET /v2/%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://other/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        head + b"Host: localhost\r\nX\x00Y: a\r\n\r\n",
        head + b"Host: localhost\r\nX: a\rb\r\n\r\n",
    ]
    before = server.metric('vitrum_requests_total{route="GET /v2/health/live",status="200"}') or 0
    for case in cases:
        with server.connect() as s:
            s.sendall(case + get)
            status = read_answer(s)[0]
            rest = b""
            try:
                while more := s.recv(4096):
                    rest += more
            except ConnectionError:
                pass
            check(status == 400, f"smuggling: {status} for {case}")
            check(rest == b"", f"smuggling: more is answered than asked: {case}")
    after = server.metric('vitrum_requests_total{route="GET /v2/health/live",status="200"}') or 0
    check(after == before, f"smuggling: {after - before:.0f} second requests ran")
    print(f"  {len(cases)} cases")
    env.end(server)


def overload(env):
    """Ten times what the server can do, by a client that sends when requests are due, whatever became of the others."""
    server = env.start("--max-connections", 4000, "--max-per-address", 4000)
    photo, seconds = env.folder / "heavy.png", 4 if env.quick else 12
    photo.write_bytes(env.heavy)

    def load(rate, connections):
        done = subprocess.run([env.vitrum, "bench", "--mode", "serve", "--url", f"http://127.0.0.1:{env.port}/v1/classify", "--rate",
                               str(rate), "--connections", str(connections), "--duration", str(seconds), "--json", str(photo)],
                              check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    alone, full = load(5, 4), load("max", 8)
    capacity, settled = full["requests_per_second"], server.rss()
    over = load(10 * capacity, 3000)
    grown = server.rss() - settled
    counts = {int(status): n for status, n in over["statuses"].items()}
    one, p99 = (result["latency_ms"]["p99"] / 1000 for result in (alone, over))
    check(set(counts) <= {200, 429, 503} and over["unanswered"] == 0, f"overload: {counts}, {over['unanswered']} unanswered")
    check(counts.get(429, 0) > 0 and counts.get(200, 0) >= 0.5 * capacity * seconds, f"overload: work goes on: {counts}")
    check(p99 <= 2 * one + 2, f"overload: p99 of accepted ones is {p99:.2f} s; alone {one:.3f} s")
    check(grown < 64 * MB, f"overload: memory grows by {grown / MB:.0f} MB")
    print(f"  {capacity:.0f} photos/s, {10 * capacity:.0f} asked for: {counts}; p99 of accepted ones {p99:.2f} s, alone {one:.3f} s; "
          f"memory {grown / MB:+.0f} MB")
    env.end(server)


def sigterm(env):
    lost = done = 0
    times = 100 if not env.quick else 10
    for i in range(times):
        server = env.start()
        with Load(server, env.mixed, fine, threads=8, stop_at_close=True) as load:
            time.sleep(0.05 + 0.2 * random.Random(i).random())
            code = server.stop()
        check(code == 0, f"sigterm: exit code {code}")
        check(not load.wrong, f"sigterm: {load.wrong[:3]}")
        lost, done = lost + load.lost, done + load.done
    check(lost == 0, f"sigterm: {lost} requests of {done} were lost")
    print(f"  {times} times: {done} answered, {lost} lost")


def swaps(env):
    folder = env.folder / "swapped"
    folder.mkdir(exist_ok=True)
    current = folder / "model"

    def point(to):
        (folder / "next").symlink_to(to)
        os.replace(folder / "next", current)

    answers = {}
    for model in (env.model, env.other):
        single = Server(env.vitrum, {"small": model}, env.port + 5)
        answer = json.loads(single.ask("POST", "/v1/classify", env.photo)[2])
        answers[answer["version"]] = answer["results"]
        single.stop()
    check(len(answers) == 2, "swaps: two versions")
    point(env.model)
    admin = folder / "admin.sock"
    server = Server(env.vitrum, {"small": current}, env.port, "--admin", f"unix:{admin}")
    seen = {}

    def judge(answer):
        if answer[0] != 200:
            return fine(answer)
        body = json.loads(answer[2])
        seen[body["version"]] = seen.get(body["version"], 0) + 1
        return None if body["results"] == answers.get(body["version"]) else f"neither the old nor the new: {answer[2][:200]}"

    def swap(to):
        point(to)
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(admin))
            s.settimeout(60)
            s.sendall(request_bytes("POST", "/v2/repository/models/small/load", close=True))
            return read_answer(s)[0]

    times = 1000 if not env.quick else 60
    with Load(server, [request_bytes("POST", "/v1/classify", env.photo)], judge, threads=4) as load:
        marks = []
        for i in range(times):
            check(swap(env.other if i % 2 == 0 else env.model) == 200, f"swaps: swap {i} works")
            if i in (times // 5, times - 1):
                marks.append((server.rss(), server.descriptors(), server.threads()))
        # Broken replacements: the old one serves on.
        broken = folder / "broken"
        shutil.copytree(env.model, broken)
        (broken / "model.safetensors").write_bytes((env.model / "model.safetensors").read_bytes()[:5000])
        before = load.done
        check(swap(broken) == 400, "swaps: a truncated file is refused")
        (broken / "config.json").write_text("{")
        check(swap(broken) == 400, "swaps: a broken config is refused")
        check(swap(folder / "nowhere") == 400, "swaps: a missing directory is refused")
        server.process.send_signal(1)  # SIGHUP: all of them anew
        time.sleep(1)
        check(load.done > before, "swaps: the old one serves on")
    check(any("small" in line for line in server.errors), f"swaps: SIGHUP tells what it could not load: {server.errors}")
    check(not load.wrong and load.lost == 0, f"swaps: {len(load.wrong)} wrong, {load.lost} lost: {load.wrong[:3]}")
    check(len(seen) == 2, f"swaps: both versions answered: {seen}")
    (rss, fds, threads), (rss2, fds2, threads2) = marks
    # Two descriptors and the memory of one model may be in either state: old requests end on the old one.
    check(abs(fds2 - fds) <= 8 and threads2 == threads, f"swaps: descriptors {fds} -> {fds2}, threads {threads} -> {threads2}")
    check(rss2 - rss < max(16 * MB, 0.05 * rss), f"swaps: memory {rss / MB:.0f} -> {rss2 / MB:.0f} MB")
    print(f"  {times} swaps, {load.done} answers ({seen}), memory {rss / MB:.1f} -> {rss2 / MB:.1f} MB, descriptors {fds} -> {fds2}")
    env.end(server)


def photos(env):
    """Images that cost others dearly, between two good ones."""
    server = env.start()
    good = server.classify(env.photo)[1]
    grey = lambda w, h: png(w, h, bytes(w * h), grey=True)
    liar = bytearray(png(4, 4))
    liar[16:24] = (65535).to_bytes(4, "big") * 2
    cases = {"a header of 65535 x 65535": bytes(liar), "100 megapixels in 100 KB": grey(10000, 10000), "1 x 1": grey(1, 1),
             "65535 x 1": grey(65535, 1), "1 x 65535": grey(1, 65535), "truncated": env.photo[:100], "49 megapixels": grey(7000, 7000),
             "no data": env.photo[:33], "nothing": b"\x89PNG\r\n\x1a\n", "text": b"hello", "a JPEG's beginning": b"\xff\xd8\xff\xe0\x00\x10JFIF\x00",
             "a gzip bomb": b"\x1f\x8b" + bytes(1000)}
    refused = {"a header of 65535 x 65535", "100 megapixels in 100 KB", "truncated", "no data", "nothing", "text", "a JPEG's beginning", "a gzip bomb"}
    before = server.rss()
    for name, photo in cases.items():
        status = server.ask("POST", "/v1/classify", photo)[0]
        check(status == 422 if name in refused else status in (200, 422), f"photos, {name}: {status}")
        body, headers = form([env.photo, photo, env.photo])
        status, _, text = server.ask("POST", "/v1/classify", body, headers)
        results = json.loads(text)["results"] if text else [None] * 3
        check(status == 200 and results[0] == good and results[2] == good, f"photos, {name}: its neighbours are unaffected: {status}")
        check(server.ask("POST", "/v1/explain", photo)[0] in ((422,) if name in refused else (200, 422)), f"photos, {name}: explained")
    check(server.alive(), "photos: the server lives")
    grown = (server.rss() - before) / MB
    check(grown < 64, f"photos: memory grows by {grown:.0f} MB")
    print(f"  {len(cases)} kinds, memory {grown:+.0f} MB")
    env.end(server)


def settled(server, seconds=15):
    """Waits until nothing is under way any more; what is left."""
    end = time.time() + seconds
    while time.time() < end:
        left = {n: server.metric(n) for n in ("vitrum_connections", "vitrum_body_bytes", "vitrum_images_waiting")}
        if left == {"vitrum_connections": 1, "vitrum_body_bytes": 0, "vitrum_images_waiting": 0}:
            return None
        time.sleep(0.1)
    return left


def leaving(env):
    server = env.start()
    request = request_bytes("POST", "/v1/classify", env.photo)
    heavy = request_bytes("POST", "/v1/classify", env.heavy)
    for _ in range(20):
        server.ask("POST", "/v1/classify", env.heavy)
    before, fds = server.rss(), server.descriptors()
    rounds = 40 if not env.quick else 5
    for _ in range(rounds):
        clients = []
        for i in range(50):
            s = server.connect()
            s.sendall(request[:len(request) * i // 50] or b"P")  # somewhere in header or body
            clients.append(s)
        for i, s in enumerate(clients):
            if i % 2:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # with a reset
            s.close()
    check(settled(server) is None, f"leaving: mid-body: {settled(server, 1)}")
    taken, run = server.metric("vitrum_images_total"), server.metric("vitrum_batch_images_sum")
    clients = []
    for _ in range(100):
        s = server.connect()
        s.sendall(heavy)
        clients.append(s)
    time.sleep(0.1)
    for s in clients:
        s.close()
    check(settled(server, 60) is None, f"leaving: mid-model: {settled(server, 1)}")
    taken, run = server.metric("vitrum_images_total") - taken, server.metric("vitrum_batch_images_sum") - run
    check(run < 0.7 * max(taken, 1), f"leaving: {run:.0f} of {taken:.0f} images were run for nobody")
    grown = (server.rss() - before) / MB
    check(server.descriptors() <= fds + 1 and grown < 48, f"leaving: descriptors {fds} -> {server.descriptors()}, memory {grown:+.0f} MB")
    check(server.classify(env.photo)[0] == 200, "leaving: it serves on")
    print(f"  {rounds * 50} left while sending; of {taken:.0f} images whose clients left, {run:.0f} were run; memory {grown:+.1f} MB")
    env.end(server)


def descriptors(env):
    server = env.start()
    soft = server.descriptors() + 20
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (soft, soft))
    clients = [server.connect() for _ in range(60)]  # the kernel takes them; the server cannot
    cpu = cpu_seconds(server)
    time.sleep(1)
    cpu = cpu_seconds(server) - cpu
    check(server.alive(), "EMFILE: the server lives")
    check(cpu < 0.3, f"EMFILE: accepting pauses, {cpu:.2f} s of processor in a second")
    for s in clients:
        s.close()
    check(server.classify(env.photo)[0] == 200, "EMFILE: it serves on")
    print(f"  60 connections for 20 descriptors, {cpu:.2f} s of processor in a second")
    env.end(server)


def cpu_seconds(server):
    fields = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def full_disk(env):
    with open("/dev/full", "w") as full:
        server = Server(env.vitrum, {"small": env.model}, env.port, stdout=full)
        with Load(server, env.mixed, fine, threads=4) as load:
            time.sleep(1)
        check(load.done > 50 and not load.wrong and not load.lost, f"ENOSPC: {load.done} answered, {load.wrong[:3]}, {load.lost} lost")
        print(f"  {load.done} answered with a full disk under the log")
        env.end(server)
    # A log that nobody reads: the pipe is full, and requests go on.
    server = Server(env.vitrum, {"small": env.model}, env.port, stdout=open(os.devnull, "w"))
    env.end(server)


def memory(env):
    server = env.start()
    server.classify(env.heavy)
    size = next(int(l.split()[1]) * 1024 for l in pathlib.Path(f"/proc/{server.process.pid}/status").read_text().splitlines() if l.startswith("VmSize"))
    limit = size + 24 * MB
    resource.prlimit(server.process.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    big = png(7000, 7000, bytes(7000 * 7000), grey=True)
    requests = [request_bytes("POST", "/v1/classify", big), request_bytes("POST", "/v1/classify", b"x" * (30 * MB)),
                request_bytes("POST", "/v1/explain", big), request_bytes("POST", "/v1/classify", env.heavy)]
    counts = {}

    def judge(answer):
        counts[answer[0]] = counts.get(answer[0], 0) + 1
        return None if answer[0] in (200, 413, 422, 429, 503) else fine(answer)

    with Load(server, requests, judge, threads=6) as load:
        time.sleep(6 if not env.quick else 2)
    check(server.alive(), "bad_alloc: the server lives")
    check(not load.wrong, f"bad_alloc: {load.wrong[:3]}")
    check(counts.get(503, 0) + load.lost > 0, f"bad_alloc: memory did run out: {counts}")
    resource.prlimit(server.process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    check(settled(server) is None, f"bad_alloc: nothing is left: {settled(server, 1)}")
    check(server.classify(env.photo)[0] == 200, "bad_alloc: it serves on")
    print(f"  answers {counts}, {load.lost} connections closed")
    env.end(server)


def doors(env):
    """Every route of openapi.json without a key, by another name, from another origin."""
    (env.folder / "keys").write_text("secret\n")
    server = Server(env.vitrum, {"small": env.model}, env.port, "--api-key-file", env.folder / "keys")
    key = {"Authorization": "Bearer secret"}
    described = json.loads(server.ask("GET", "/openapi.json")[2])
    version = json.loads(server.ask("GET", "/v2/models/small", headers=key)[2])["versions"][0]
    count = 0
    for path, operations in described["paths"].items():
        path = path.replace("{model}", "small").replace("{version}", version)
        for method, operation in operations.items():
            method = method.upper()
            if operation.get("security") != []:
                for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
                    check(server.ask(method, path, headers=headers)[0] == 401, f"doors: {method} {path} without a key")
                    count += 1
            for host in ("evil.example", "localhost.evil.example", "127.0.0.1.nip.io"):
                check(server.ask(method, path, headers=key, host=host)[0] == 403, f"doors: {method} {path} by the name {host}")
                count += 1
            for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
                check(server.ask(method, path, headers={**key, **headers})[0] == 403, f"doors: {method} {path} from {headers}")
                count += 1
            check(server.ask(method, path, headers=key)[0] not in (401, 403), f"doors: {method} {path} with the key")
    print(f"  {count} refusals")
    env.end(server)


def soak(env):
    """Good and bad requests of every kind from wrk."""
    if env.quick or not shutil.which("wrk"):
        print("  skipped:", "--quick" if env.quick else "wrk is not installed")
        return
    server = Server(env.vitrum, {"small": env.model}, env.port, stdout=subprocess.DEVNULL)
    script = env.folder / "mixed.lua"
    body, _ = form(fashion_photos(3))
    (env.folder / "form.bin").write_bytes(body)
    (env.folder / "photo.png").write_bytes(env.photo)
    uri = json.dumps({"input": data_uri(env.photo)})
    script.write_text(f'''
local function read(name) local f = io.open(name, "rb") local t = f:read("*a") f:close() return t end
local photo, forms = read("{env.folder}/photo.png"), read("{env.folder}/form.bin")
local list = {{}}
init = function()
  local kinds = {{
    {{"POST", "/v1/classify?top_k=3", photo}}, {{"POST", "/v1/classify", forms, "multipart/form-data; boundary=cut"}},
    {{"POST", "/v1/embed", photo}}, {{"POST", "/v1/embeddings", '{uri}', "application/json"}}, {{"GET", "/v2/health/ready"}},
    {{"GET", "/v1/models"}}, {{"GET", "/metrics"}}, {{"GET", "/"}}, {{"GET", "/v2/models/small"}},
    {{"POST", "/v1/classify", "no photo"}}, {{"POST", "/v1/classify", photo:sub(1, 90)}}, {{"GET", "/nothing"}}, {{"POST", "/v1/embeddings", "{{", "application/json"}},
    {{"POST", "/v2/models/small/infer", "{{}}", "application/json"}}, {{"DELETE", "/v1/models"}}}}
  for i, k in ipairs(kinds) do list[i] = wrk.format(k[1], k[2], {{["Content-Type"] = k[4] or "application/octet-stream"}}, k[3] or "") end
end
local i = 0
request = function() i = i + 1 return list[i % #list + 1] end
local counts = {{}}
''')
    command = ["wrk", "-t1", "-c32", "--timeout", "30s", "-s", script, f"http://localhost:{env.port}"]

    def total():
        text = server.ask("GET", "/metrics")[2].decode()
        counts = {}
        for line in text.splitlines():
            if line.startswith("vitrum_requests_total{"):
                status = int(line.split('status="')[1][:3])
                counts[status] = counts.get(status, 0) + int(line.split()[-1])
        return counts

    subprocess.run(["wrk", "-d10s", *command[1:]], stdout=subprocess.DEVNULL, check=True)
    settled(server)
    begin = (server.rss(), server.descriptors(), server.threads())
    start, first, rounds = time.time(), total(), 0
    before = sum(first.values())
    while sum(total().values()) - before < env.requests and time.time() - start < env.soak_seconds:
        rounds += 1
        subprocess.run(["wrk", "-d30s", *command[1:]], stdout=subprocess.DEVNULL, check=True)
        print(f"  {sum(total().values()) - before} requests, {server.rss() / MB:.1f} MB", flush=True)
    took, counts = time.time() - start, {k: v - first.get(k, 0) for k, v in total().items() if v > first.get(k, 0)}
    check(server.alive() and settled(server) is None, "soak: the server is idle again")
    end = (server.rss(), server.descriptors(), server.threads())
    # When wrk ends, what its 32 connections wait for is dropped, and noted as 504.
    check(counts.pop(504, 0) <= 32 * rounds, "soak: only clients that left are told of a deadline")
    check(end[0] <= 1.05 * begin[0], f"soak: memory {begin[0] / MB:.1f} -> {end[0] / MB:.1f} MB")
    check(end[1:] == begin[1:], f"soak: descriptors and threads {begin[1:]} -> {end[1:]}")
    check(set(counts) <= {200, 400, 404, 405, 422, 429}, f"soak: {counts}")
    print(f"  {sum(counts.values())} mixed requests in {took:.0f} s: {counts}; memory {begin[0] / MB:.1f} -> {end[0] / MB:.1f} MB, "
          f"descriptors {begin[1]} -> {end[1]}, threads {begin[2]} -> {end[2]}")
    env.end(server)


ROWS = {"attacks": attacks, "smuggling": smuggling, "overload": overload, "sigterm": sigterm, "swaps": swaps, "photos": photos,
        "leaving": leaving, "descriptors": descriptors, "full_disk": full_disk, "memory": memory, "doors": doors, "soak": soak}


class Env:
    def start(self, *options):
        return Server(self.vitrum, {"small": self.model}, self.port, *options)

    def end(self, server):
        check(server.alive(), "the server lives to the end")
        code = server.stop()
        check(code == 0, f"the server ends with {code}: {server.errors[-5:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vitrum", default=str(ROOT / "build/release/vitrum"))
    parser.add_argument("--port", type=int, default=20140)
    parser.add_argument("--only", nargs="*", choices=ROWS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--soak-seconds", type=float, default=7 * 3600)
    parser.add_argument("--patience", type=float, default=0.1, help="seconds that a good client may wait during an attack")
    env = parser.parse_args(namespace=Env())
    with tempfile.TemporaryDirectory() as folder:
        env.folder = pathlib.Path(folder)
        env.model, env.other = make_model(env.vitrum, env.folder / "a"), make_model(env.vitrum, env.folder / "b", seed=1)
        env.photo, env.heavy = fashion_photos(1)[0], png(2400, 1600)
        env.mixed = [request_bytes("POST", "/v1/classify", env.photo), request_bytes("POST", "/v1/classify", *form(fashion_photos(3))),
                     request_bytes("GET", "/v1/models"), request_bytes("POST", "/v1/embed", env.photo)]
        for name in env.only or ROWS:
            start = time.time()
            print(f"{name}:", flush=True)
            try:
                ROWS[name](env)
            except Exception as e:
                check(False, f"{name}: {type(e).__name__}: {e}")
            print(f"{name}: {time.time() - start:.1f} s", flush=True)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
