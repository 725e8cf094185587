// The page of `vitrum serve`: a photo in, labels out. No framework, nothing from elsewhere.
(() => {
  "use strict";
  const $ = id => document.getElementById(id);
  const state = { blob: null, url: null, overlayUrl: null, models: [], key: "", ticket: 0, stream: null };

  const headers = () => (state.key ? { Authorization: "Bearer " + state.key } : {});
  const model = () => $("model").value;

  function say(text, bad = false) {
    $("status").textContent = text;
    $("status").classList.toggle("bad", bad);
  }

  // Why a request failed, in words for a person.
  async function problemOf(response) {
    if (response.status === 401) {
      $("key-form").hidden = false;
      $("key").focus();
      return "This server asks for an API key.";
    }
    let detail = "";
    try {
      const body = await response.json();
      const first = body.results && body.results.find(r => r.error);
      detail = (first && first.error) || (body.error && body.error.message) || body.error || "";
    } catch { /* not JSON */ }
    if (response.status === 429) return "The server is busy. Try again in a moment.";
    return detail ? detail[0].toUpperCase() + detail.slice(1) : "The server answered " + response.status + ".";
  }

  async function ask(path, blob) {
    let response;
    try {
      response = await fetch(path, { method: blob ? "POST" : "GET", body: blob || undefined,
        headers: blob ? { ...headers(), "Content-Type": blob.type || "application/octet-stream" } : headers() });
    } catch {
      throw new Error("The server cannot be reached.");
    }
    if (!response.ok) throw new Error(await problemOf(response));
    return response;
  }

  function showPhoto(url, description) {
    $("photo").src = url;
    $("photo").alt = description;
    $("photo").hidden = false;
    $("invite").hidden = true;
  }

  function setOverlay(on) {
    $("overlay").setAttribute("aria-pressed", on ? "true" : "false");
    $("overlay").textContent = on ? "Show the photo" : "Show attention";
  }

  function showLabels(predictions) {
    $("labels").replaceChildren(...predictions.map(p => {
      const item = document.createElement("li"), bar = document.createElement("span"),
        text = document.createElement("span"), name = document.createElement("span"),
        share = document.createElement("span");
      bar.className = "bar", text.className = "text", name.className = "name", share.className = "share";
      bar.style.width = (100 * p.probability).toFixed(2) + "%";
      name.textContent = p.label;
      share.textContent = (100 * p.probability).toFixed(1) + " %";
      text.append(name, share);
      item.append(bar, text);
      return item;
    }));
  }

  async function classify() {
    if (!state.blob) return;
    const ticket = ++state.ticket;
    $("labels").replaceChildren();
    $("latency").textContent = "";
    say("Looking …");
    const start = performance.now();
    try {
      const response = await ask("/v1/classify?top_k=5&model=" + encodeURIComponent(model()), state.blob);
      const result = (await response.json()).results[0];
      if (ticket !== state.ticket) return;  // a newer photo is on its way
      if (result.error) throw new Error(result.error);
      showLabels(result.predictions);
      const best = result.predictions[0];
      say(best.label + ", " + (100 * best.probability).toFixed(1) + " %");
      $("latency").textContent = Math.round(performance.now() - start) + " ms from photo to answer";
      $("overlay").disabled = false;
    } catch (error) {
      if (ticket === state.ticket) say(error.message, true);
    }
  }

  function take(blob) {
    if (!blob) return;
    stopCamera();
    if (blob.type && !blob.type.startsWith("image/")) {
      say("That is not an image.", true);
      return;
    }
    if (state.url) URL.revokeObjectURL(state.url);
    if (state.overlayUrl) URL.revokeObjectURL(state.overlayUrl);
    state.blob = blob, state.url = URL.createObjectURL(blob), state.overlayUrl = null;
    $("overlay").disabled = true;
    setOverlay(false);
    showPhoto(state.url, "The photo you gave");
    classify();
  }

  async function toggleOverlay() {
    if ($("overlay").getAttribute("aria-pressed") === "true") {
      showPhoto(state.url, "The photo you gave");
      setOverlay(false);
      return;
    }
    $("overlay").disabled = true;
    try {
      if (!state.overlayUrl) {
        const response = await ask("/v1/explain?model=" + encodeURIComponent(model()), state.blob);
        state.overlayUrl = URL.createObjectURL(await response.blob());
      }
      showPhoto(state.overlayUrl, "Where the model looked: bright parts had its attention");
      setOverlay(true);
    } catch (error) {
      say(error.message, true);
    }
    $("overlay").disabled = false;
  }

  function stopCamera() {
    if (!state.stream) return;
    state.stream.getTracks().forEach(track => track.stop());
    state.stream = null;
    $("camera").hidden = true;
    $("photograph").textContent = "Use the camera";
  }

  async function photograph() {
    const video = $("camera");
    if (state.stream) {
      const canvas = document.createElement("canvas");
      canvas.width = video.videoWidth, canvas.height = video.videoHeight;
      canvas.getContext("2d").drawImage(video, 0, 0);
      canvas.toBlob(take, "image/jpeg", 0.92);
      return;
    }
    try {
      state.stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch {
      say("The camera cannot be used.", true);
      return;
    }
    video.srcObject = state.stream;
    video.hidden = false;
    $("photo").hidden = $("invite").hidden = true;
    $("photograph").textContent = "Take the photo";
    await video.play();
  }

  function showCard() {
    const card = state.models.find(m => m.id === model());
    if (!card) return;
    const rows = [["Architecture", card.architecture],
      ["Parameters", card.parameters.toLocaleString("en") ],
      ["Classes", card.classes ? card.classes.toLocaleString("en") : "none"],
      ["Image size", card.width + " × " + card.height],
      ["Precision", card.precision + " on " + card.device],
      ["Version", card.version]];
    if (card.accuracy !== undefined)
      rows.splice(3, 0, ["Accuracy", (100 * card.accuracy).toFixed(2) + " % on " + card.data]);
    $("card").replaceChildren(...rows.flatMap(([name, value]) => {
      const dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = name, dd.textContent = value;
      return [dt, dd];
    }));
  }

  async function loadModels() {
    try {
      state.models = (await (await ask("/v1/models")).json()).data;
    } catch (error) {
      say(error.message, true);
      return;
    }
    $("model").replaceChildren(...state.models.map(m => new Option(m.id, m.id)));
    $("key-form").hidden = true;
    showCard();
    if (state.blob) classify();
  }

  $("file").addEventListener("change", event => { take(event.target.files[0]); event.target.value = ""; });
  $("model").addEventListener("change", () => {
    state.overlayUrl = null;
    if (state.url) showPhoto(state.url, "The photo you gave");
    setOverlay(false);
    showCard();
    classify();
  });
  $("overlay").addEventListener("click", toggleOverlay);
  $("photograph").addEventListener("click", photograph);
  $("key-form").addEventListener("submit", event => {
    event.preventDefault();
    state.key = $("key").value.trim();
    loadModels();
  });
  document.addEventListener("paste", event => {
    const item = [...event.clipboardData.items].find(i => i.type.startsWith("image/"));
    if (item) take(item.getAsFile());
  });
  for (const kind of ["dragover", "dragleave", "drop"])
    document.addEventListener(kind, event => {
      event.preventDefault();
      $("drop").classList.toggle("over", kind === "dragover");
      if (kind === "drop") take(event.dataTransfer.files[0]);
    });
  if (window.isSecureContext && navigator.mediaDevices) $("photograph").hidden = false;
  loadModels();
})();
