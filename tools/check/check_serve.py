"""Speaks to `vitrum serve` with clients that others wrote, and runs every example of docs/serving.md as it stands.

    tools/python.sh tools/check/check_serve.py [--vitrum build/release/vitrum] [--port 20100] [--only NAME ...]

Peers (tools/check/requirements.txt): tritonclient, openai, KServe's SDK, schemathesis with all its checks, openapi-spec-validator,
kubernetes-validate; from Debian, where installed: promtool (prometheus), nginx, haproxy, node, systemd-analyze. What is not
installed is said and skipped. Trains a small model on Fashion-MNIST first. Exit status 1 where something is wrong.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from serving import ROOT, Server, check, data_uri, fashion_photos, finish, form, make_model, png


def skip(what):
    print("skipped:", what, "is not installed")


def answers_of_classify(vitrum, model, photos, folder):
    """What `vitrum classify` prints, photo by photo."""
    paths = []
    for i, photo in enumerate(photos):
        paths.append(folder / f"{i}.png")
        paths[-1].write_bytes(photo)
    out = subprocess.run([vitrum, "classify", *paths, "--model", model, "--top-k", "5", "--json"], check=True, capture_output=True, text=True)
    return [json.loads(line)["predictions"] for line in out.stdout.splitlines()]


def check_equal_bits(server, env):
    """The same numbers, digit for digit, however many ask at once and in whatever form."""
    photos = fashion_photos(256)
    want = answers_of_classify(env.vitrum, env.model, photos, env.folder)
    for workers in (1, 8, 64):
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            got = list(pool.map(server.classify, photos))
        check(all(status == 200 for status, _ in got), f"bits: all are answered at {workers} at once")
        check([r["predictions"] for _, r in got] == want, f"bits: the answers are classify's at {workers} at once")
    for start in range(0, 256, 32):
        body, headers = form(photos[start:start + 32])
        status, _, text = server.ask("POST", "/v1/classify", body, headers)
        check(status == 200 and [r["predictions"] for r in json.loads(text)["results"]] == want[start:start + 32], "bits: of 32 in one form")


def check_triton(server, env):
    import numpy as np
    import tritonclient.http as triton
    from tritonclient.utils import InferenceServerException
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=4)
    check(client.is_server_live() and client.is_server_ready() and client.is_model_ready("small"), "triton: live, ready, model ready")
    about = client.get_server_metadata()
    check(about["name"] == "vitrum" and "binary_tensor_data" in about["extensions"], "triton: server metadata")
    card = client.get_model_metadata("small")
    check({t["name"] for t in card["inputs"]} == {"image", "pixels"}, "triton: inputs of the metadata")
    check(client.is_model_ready("small", card["versions"][0]), "triton: this version is ready")
    photos = fashion_photos(4)

    def infer(photos, binary, outputs):
        image = triton.InferInput("image", [len(photos)], "BYTES")
        # Photos are no text, so the form without binary tensors takes them in base64.
        import base64
        data = photos if binary else [base64.b64encode(p) for p in photos]
        image.set_data_from_numpy(np.array(data, dtype=object), binary_data=binary)
        return client.infer("small", [image], outputs=outputs, request_id="7")

    results = {}
    for binary in (True, False):
        wanted = [triton.InferRequestedOutput(n, binary_data=binary) for n in ("logits", "features", "labels")]
        answer = infer(photos, binary, wanted)
        results[binary] = [answer.as_numpy(n) for n in ("logits", "features", "labels")]
        check(answer.get_response()["id"] == "7", "triton: the id comes back")
    for a, b in zip(results[True], results[False]):
        same = a.shape == b.shape and [getattr(x, "decode", lambda: x)() for x in a.ravel()] == list(b.ravel())
        check(same, f"triton: binary and JSON tensors are the same bits: {a} {b}")
    check(results[True][0].shape == (4, 10), "triton: the shape of the logits")
    best = infer(photos, True, [triton.InferRequestedOutput("logits", class_count=3)]).as_numpy("logits")
    check(best.shape == (4, 3), "triton: classification gives three a photo")
    value, index, label = best[0][0].decode().split(":", 2)
    logits = results[True][0][0]
    check(np.float32(value) == logits.max() and int(index) == logits.argmax() and label == results[True][2][0].decode(), "triton: value:index:label")
    shape = next(t["shape"] for t in card["inputs"] if t["name"] == "pixels")[1:]
    pixels = np.random.default_rng(1).integers(0, 256, (2, *shape), dtype=np.uint8)
    both = []
    for binary in (True, False):
        tensor = triton.InferInput("pixels", list(pixels.shape), "UINT8")
        tensor.set_data_from_numpy(pixels, binary_data=binary)
        both.append(client.infer("small", [tensor]).as_numpy("logits"))
    check((both[0] == both[1]).all(), "triton: pixels, binary and JSON")
    handles = [client.async_infer("small", [tensor]) for _ in range(8)]
    check(all((h.get_result().as_numpy("logits") == both[0]).all() for h in handles), "triton: async_infer")
    for name, photo in (("none", photos[0]), ("small", b"no photo")):
        image = triton.InferInput("image", [1], "BYTES")
        image.set_data_from_numpy(np.array([photo], dtype=object))
        try:
            client.infer(name, [image])
            check(False, "triton: a bad request is refused")
        except InferenceServerException as e:
            check(e.message(), "triton: and says why")


def check_openai(server, env):
    import openai
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
    uris = [data_uri(p) for p in fashion_photos(3)]
    asked = client.embeddings.create(model="small", input=uris)  # base64, the package's own default
    plain = client.embeddings.create(model="small", input=uris, encoding_format="float")
    check([e.index for e in asked.data] == [0, 1, 2], "openai: three embeddings in order")
    import numpy as np
    same = all(np.array_equal(np.float32(a.embedding), np.float32(b.embedding)) for a, b in zip(asked.data, plain.data))
    check(same, "openai: base64 and float are the same numbers")
    check(all(abs(sum(x * x for x in e.embedding) - 1) < 1e-5 for e in plain.data), "openai: of length one")
    check([m.id for m in client.models.list()] == ["small"] and client.models.retrieve("small").id == "small", "openai: models")
    for kind, call in ((openai.NotFoundError, lambda: client.embeddings.create(model="none", input=uris)),
                       (openai.BadRequestError, lambda: client.embeddings.create(model="small", input="https://example.org/a.png")),
                       (openai.UnprocessableEntityError, lambda: client.embeddings.create(model="small", input="bm8gcGhvdG8="))):
        try:
            call()
            check(False, f"openai: {kind.__name__} is raised")
        except kind as e:
            check(e.body and e.body.get("message"), f"openai: {kind.__name__} has a message")


def check_kserve(server, env):
    import asyncio
    import base64
    from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
    photos = fashion_photos(2)

    async def speak():
        client = InferenceRESTClient(RESTConfig(protocol="v2"))
        base = f"http://127.0.0.1:{server.port}"
        check(await client.is_server_live(base), "kserve: live")
        check(await client.is_server_ready(base), "kserve: ready")
        check(await client.is_model_ready(base, "small"), "kserve: model ready")
        image = InferInput("image", [2], "BYTES", [base64.b64encode(p).decode() for p in photos])
        answer = await client.infer(base, InferRequest("small", [image], request_id="9"), "small")
        out = answer.outputs[0]
        check(out.name == "logits" and list(out.shape) == [2, 10] and answer.id == "9", "kserve: logits in JSON")
        binary = InferInput("image", [2], "BYTES")
        import numpy as np
        binary.set_data_from_numpy(np.array(photos, dtype=object), binary_data=True)
        again = await client.infer(base, InferRequest("small", [binary]), "small")
        check(np.array_equal(again.outputs[0].as_numpy().astype("f4").ravel(), out.as_numpy().astype("f4").ravel()), "kserve: binary, the same bits")

    asyncio.run(speak())


def check_openapi(server, env):
    from openapi_spec_validator import validate
    described = json.loads(server.ask("GET", "/openapi.json")[2])
    validate(described)
    settings = env.folder / "schemathesis.toml"
    # All checks. What no schema can say (bytes are a photo, the data fits the shape, the dimension is the model's) may be refused though the schema allows it.
    settings.write_text('[checks.positive_data_acceptance]\nexpected-statuses = ["2xx", "3xx", 401, 403, 404, 429, 422, 503]\n\n'
                        '[[operations]]\ninclude-path-regex = "/(infer|embeddings)$"\nchecks.positive_data_acceptance.expected-statuses = '
                        '["2xx", "3xx", 400, 401, 403, 404, 429, 422, 503]\n')
    (env.folder / "photos_hook.py").write_text(
        "import schemathesis\nfrom hypothesis import strategies as st\n"
        f"PHOTOS = {[png(5, 4), png(28, 28, grey=True), png(1, 1)]!r}\n"
        "for kind in ('image/png', 'image/jpeg', 'image/webp', 'application/octet-stream'):\n"
        "    schemathesis.openapi.media_type(kind, st.sampled_from(PHOTOS))\n")
    tool = pathlib.Path(sys.executable).parent / "schemathesis"
    for label, hooks in (("random bytes", {}), ("photos", {"SCHEMATHESIS_HOOKS": "photos_hook", "PYTHONPATH": str(env.folder)})):
        run = subprocess.run([tool, "--config-file", settings, "run", f"http://127.0.0.1:{server.port}/openapi.json", "--checks", "all",
                              "--max-examples", "50", "--suppress-health-check", "all", "--no-color"],
                             capture_output=True, text=True, cwd=env.folder, env={**os.environ, **hooks})
        cases = re.search(r"(\d+) generated", run.stdout)
        check(run.returncode == 0, f"schemathesis, {label}:\n{run.stdout[-6000:]}{run.stderr[-2000:]}")
        print(f"schemathesis, {label}: {cases.group(1) if cases else 'no'} cases")


def check_metrics(server, env):
    if not shutil.which("promtool"):
        return skip("promtool")
    server.classify(fashion_photos(1)[0])
    text = server.ask("GET", "/metrics")[2]
    run = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    check(run.returncode == 0 and not run.stderr and not run.stdout, f"promtool: {run.stdout.decode()}{run.stderr.decode()}")


def moved(text, ports):
    """A configuration as it stands, on other ports."""
    return re.sub("|".join(map(str, ports)), lambda m: str(ports[int(m.group())]), text)


def check_proxies(server, env):
    second = Server(env.vitrum, {"small": env.model}, server.port + 2)
    photo, big = fashion_photos(1)[0], png(700, 500)
    want = server.classify(photo)[1]
    for name, command in (("nginx", ["nginx", "-p", str(env.folder), "-g", "daemon off; pid nginx.pid; error_log stderr;", "-c"]),
                          ("haproxy", ["haproxy", "-db", "-f"])):
        if not shutil.which(name):
            skip(name)
            continue
        source = (ROOT / "deploy/proxy" / ("nginx.conf" if name == "nginx" else "haproxy.cfg")).read_text()
        front = server.port + (1 if name == "nginx" else 3)
        path = env.folder / f"{name}.conf"
        path.write_text(moved(source, {8080: server.port, 8081: front, 8082: second.port}))
        proxy = subprocess.Popen([*command, path], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            import requests
            base = f"http://127.0.0.1:{front}"
            host = {"Host": f"photos.example:{front}"} if name == "nginx" else {}
            for _ in range(100):
                try:
                    if requests.get(base + "/v2/health/ready", headers=host).status_code == 200:
                        break
                except requests.ConnectionError:
                    pass
                time.sleep(0.05)
            with requests.Session() as session:
                session.headers.update(host)
                for i in range(20):
                    answer = session.post(base + "/v1/classify", data=photo)
                    check(answer.status_code == 200 and answer.json()["results"][0] == want, f"{name}: a photo through it: {answer.text}")
                check(session.post(base + "/v1/classify", data=big).status_code == 200, f"{name}: a larger one")
                check(session.post(base + "/v1/classify", data=iter([photo])).status_code == 200, f"{name}: a chunked one")
                check(session.post(base + "/v1/classify", data=iter([big[:1000], big[1000:]])).status_code == 200, f"{name}: in two chunks")
                check(session.get(base + "/").status_code == 200, f"{name}: the page")
                origin = "http://" + host["Host"] if host else base
                mine = session.post(base + "/v1/classify", data=photo, headers={"Origin": origin})
                check(mine.status_code == 200, f"{name}: the page's own origin: {mine.text}")
                check(session.post(base + "/v1/classify", data=photo, headers={"Origin": "http://evil.example"}).status_code == 403, f"{name}: a foreign origin")
                check(session.post(base + "/v1/classify", data=b"x" * (33 << 20)).status_code == 413, f"{name}: too much")
        finally:
            proxy.terminate()
            proxy.wait()
    second.stop()


def check_deploy(server, env):
    import kubernetes_validate
    import yaml
    for document in yaml.safe_load_all((ROOT / "deploy/kubernetes/vitrum.yaml").read_text()):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    import kserve
    import kubernetes.client

    def typed(value, kind):
        """Made of the SDK's own classes, which know their fields and which of them are required."""
        inner = re.fullmatch(r"(?:list\[|dict\(str, ?|list\(|dict\[str, ?)(.*)[\])]", kind)
        if inner:
            return [typed(v, inner[1]) for v in value] if kind.startswith("list") else {k: typed(v, inner[1]) for k, v in value.items()}
        cls = getattr(kserve, kind, None) or getattr(kserve.models, kind, None) or getattr(kubernetes.client, kind, None)
        if cls is None:
            return value
        names = {json_name: name for name, json_name in cls.attribute_map.items()}
        for name in value:
            check(name in names, f"kserve: {kind} has no field {name}")
        return cls(**{names[k]: typed(v, cls.openapi_types[names[k]]) for k, v in value.items() if k in names})

    for document in yaml.safe_load_all((ROOT / "deploy/kserve/vitrum.yaml").read_text()):
        version = document["apiVersion"].split("/")[1]
        typed(document, "V" + version[1:] + document["kind"])
    # What the files say to run is an option of the binary.
    usage = subprocess.run([env.vitrum, "serve", "--help"], capture_output=True, text=True).stdout
    for path in ("kubernetes/vitrum.yaml", "kserve/vitrum.yaml", "systemd/vitrum-serve.service"):
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", (ROOT / "deploy" / path).read_text()):
            check(option in usage, f"deploy/{path}: {option} is an option")


def check_systemd(server, env):
    if not shutil.which("systemd-analyze"):
        return skip("systemd-analyze")
    unit = env.folder / "vitrum-serve.service"
    text = (ROOT / "deploy/systemd/vitrum-serve.service").read_text()
    unit.write_text(text.replace("/usr/bin/vitrum", str(pathlib.Path(env.vitrum).resolve())))
    run = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    check(run.returncode == 0 and not run.stderr, f"systemd-analyze verify: {run.stderr}")
    run = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", unit], capture_output=True, text=True)
    level = re.search(r"exposure level for [^:]*: (\S+)", run.stdout)
    print("systemd-analyze security:", level.group(1) if level else run.stdout[-300:] + run.stderr)
    check(level and float(level.group(1)) <= 2.0, "systemd-analyze security: at most 2.0")


def check_documented(server, env):
    """Every block of docs/serving.md, word for word, but for port and the model's name."""
    text = (ROOT / "docs/serving.md").read_text()
    folder = env.folder / "documented"
    folder.mkdir(exist_ok=True)
    for name, photo in zip(("photo.jpg", "a.jpg", "b.png"), fashion_photos(3)):
        (folder / name).write_bytes(photo)
    admin = folder / "admin.sock"
    own = Server(env.vitrum, {"best": env.model, "cats": env.model}, server.port + 4, "--admin", f"unix:{admin}")
    try:
        ran = 0
        for language, block in re.findall(r"```(\w+)\n(.*?)```", text, re.S):
            block = block.replace("127.0.0.1:8080", f"127.0.0.1:{own.port}").replace("localhost:8080", f"127.0.0.1:{own.port}")
            if language == "sh":
                for line in block.splitlines():
                    if not line.startswith("curl"):
                        continue
                    run = subprocess.run(line.replace("curl ", "curl -sSf ", 1), shell=True, cwd=folder, capture_output=True, text=True)
                    check(run.returncode == 0 and run.stdout, f"docs: {line}: {run.stdout}{run.stderr}")
                    ran += 1
            elif language == "python":
                run = subprocess.run([sys.executable, "-c", block], cwd=folder, capture_output=True, text=True)
                check(run.returncode == 0 and run.stdout.strip(), f"docs: {block}{run.stdout}{run.stderr}")
                ran += 1
            elif language == "js":
                if not shutil.which("node"):
                    skip("node (the example of fetch runs in check_serve_page.py, too)")
                    continue
                script = ("import fs from 'node:fs'; const file = fs.readFileSync('photo.jpg'); const real = fetch;\n"
                          f"globalThis.fetch = (path, o) => real('http://127.0.0.1:{own.port}' + path, o);\n" + block)
                (folder / "example.mjs").write_text(script)
                run = subprocess.run(["node", "example.mjs"], cwd=folder, capture_output=True, text=True)
                check(run.returncode == 0 and run.stdout.strip(), f"docs: {block}{run.stdout}{run.stderr}")
                ran += 1
        check(ran >= 6, f"docs: {ran} examples were found")
        print(f"docs/serving.md: {ran} examples ran")
    finally:
        own.stop()


CHECKS = {"bits": check_equal_bits, "triton": check_triton, "openai": check_openai, "kserve": check_kserve, "openapi": check_openapi,
          "metrics": check_metrics, "proxies": check_proxies, "deploy": check_deploy, "systemd": check_systemd, "docs": check_documented}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vitrum", default=str(ROOT / "build/release/vitrum"))
    parser.add_argument("--port", type=int, default=20100)
    parser.add_argument("--only", nargs="*", choices=CHECKS)
    parser.add_argument("--model", help="a model directory of 10 classes; one is trained where it is left out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options.folder = pathlib.Path(folder)
        options.model = options.model or make_model(options.vitrum, options.folder / "run")
        server = Server(options.vitrum, {"small": options.model}, options.port, "--host", "photos.example")
        try:
            for name in options.only or CHECKS:
                start = time.time()
                try:
                    CHECKS[name](server, options)
                except Exception as e:  # a peer's own complaint
                    check(False, f"{name}: {type(e).__name__}: {e}")
                print(f"{name}: {time.time() - start:.1f} s", flush=True)
        finally:
            check(server.stop() == 0, "the server ends with 0")
    return finish()


if __name__ == "__main__":
    sys.exit(main())
