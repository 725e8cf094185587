// The page of `vitrum serve`: a photo in, labels out. No framework, nothing from elsewhere.
(() => {
  "use strict";
  const $ = id => document.getElementById(id);
  const state = { blob: null, url: null, overlayUrl: null, models: [], key: "", ticket: 0, stream: null, again: null };

  const headers = () => (state.key ? { Authorization: "Bearer " + state.key } : {});
  const model = () => $("model").value;
  const percent = share => (100 * share).toFixed(1) + " %";

  // One line that a screen reader reads out. kind: "" (an answer), "idle" or "bad"; `again` is offered as a second try.
  function say(text, kind = "", again = null) {
    $("status").textContent = text;
    $("status").className = kind;
    $("retry").hidden = !again;
    state.again = again;
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
    if (response.status === 413) return "That photo is larger than this server takes.";
    if (response.status === 422) return "That file cannot be read as a photo: " + detail.replace(/^image: /, "") + ".";
    return detail ? detail[0].toUpperCase() + detail.slice(1) + "." : "The server answered " + response.status + ".";
  }

  class Problem extends Error {
    constructor(message, temporary, unreadable = false) { super(message); Object.assign(this, { temporary, unreadable }); }
  }

  async function ask(path, blob) {
    let response;
    try {
      response = await fetch(path, { method: blob ? "POST" : "GET", body: blob || undefined,
        headers: blob ? { ...headers(), "Content-Type": blob.type || "application/octet-stream" } : headers() });
    } catch {
      throw new Problem("The server cannot be reached.", true);
    }
    if (!response.ok)
      throw new Problem(await problemOf(response), response.status === 429 || response.status >= 500, response.status === 422);
    return response;
  }

  function showPhoto(url, description) {
    $("photo").src = url;
    $("photo").alt = description;
    $("photo").hidden = false;
    $("invite").hidden = true;
    $("drop").classList.add("full");
  }

  function showInvite() {
    $("photo").hidden = true;
    $("photo").removeAttribute("src");
    $("invite").hidden = false;
    $("drop").classList.remove("full");
  }

  function setOverlay(on) {
    $("overlay").setAttribute("aria-pressed", on ? "true" : "false");
  }

  function clearResult() {
    $("labels").replaceChildren();
    $("labels").hidden = $("latency").hidden = true;
    $("overlay").disabled = true;
    setOverlay(false);
  }

  function part(kind, text, ...children) {
    const made = document.createElement("span");
    made.className = kind;
    if (text) made.textContent = text;
    made.append(...children);
    return made;
  }

  function showLabels(predictions) {
    $("labels").replaceChildren(...predictions.map(p => {
      const item = document.createElement("li"), bar = part("bar");
      bar.style.width = percent(p.probability).replace(" ", "");
      const track = part("track", "", bar);
      track.setAttribute("aria-hidden", "true");  // the share says the same
      item.append(part("text", "", part("name", p.label), part("share", percent(p.probability))), track);
      return item;
    }));
    $("labels").hidden = false;
  }

  async function classify() {
    if (!state.blob) return;
    const ticket = ++state.ticket;
    clearResult();
    say("Looking …", "idle");
    $("drop").classList.add("working");
    const start = performance.now();
    try {
      const response = await ask("/v1/classify?top_k=5&model=" + encodeURIComponent(model()), state.blob);
      const result = (await response.json()).results[0];
      if (ticket !== state.ticket) return;  // a newer photo is on its way
      if (result.error) throw new Problem(result.error, false);
      const best = result.predictions[0];
      say(best.label + ", " + percent(best.probability));
      showLabels(result.predictions);
      $("latency").textContent = "Answered in " + Math.max(1, Math.round(performance.now() - start)) + " ms";
      $("latency").hidden = false;
      $("overlay").disabled = false;
    } catch (error) {
      if (ticket !== state.ticket) return;
      if (error.unreadable) showInvite();  // a browser shows what it can of a broken photo
      say(error.message, "bad", error.temporary ? classify : null);
    } finally {
      if (ticket === state.ticket) $("drop").classList.remove("working");
    }
  }

  function take(blob) {
    if (!blob) return;
    stopCamera();
    ++state.ticket;  // whatever is under way is about another photo
    clearResult();
    $("drop").classList.remove("working");
    for (const url of [state.url, state.overlayUrl]) if (url) URL.revokeObjectURL(url);
    state.blob = state.url = state.overlayUrl = null;
    if (blob.type && !blob.type.startsWith("image/")) {
      showInvite();
      say((blob.name ? "“" + blob.name + "”" : "That") + " is not a photo.", "bad");
      return;
    }
    state.blob = blob, state.url = URL.createObjectURL(blob);
    showPhoto(state.url, "The photo you gave");
    classify();
  }

  async function toggleOverlay() {
    if ($("overlay").getAttribute("aria-pressed") === "true") {
      showPhoto(state.url, "The photo you gave");
      setOverlay(false);
      return;
    }
    const ticket = state.ticket;
    $("overlay").setAttribute("aria-busy", "true");
    $("drop").classList.add("working");
    try {
      if (!state.overlayUrl) {
        const response = await ask("/v1/explain?model=" + encodeURIComponent(model()), state.blob);
        const picture = await response.blob();
        if (ticket !== state.ticket) return;
        state.overlayUrl = URL.createObjectURL(picture);
      }
      showPhoto(state.overlayUrl, "The photo with the parts the model looked at made bright");
      setOverlay(true);
    } catch (error) {
      if (ticket === state.ticket) say(error.message, "bad", error.temporary ? toggleOverlay : null);
    } finally {
      $("overlay").removeAttribute("aria-busy");
      if (ticket === state.ticket) $("drop").classList.remove("working");
    }
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
      say("The camera cannot be used.", "bad");
      return;
    }
    video.srcObject = state.stream;
    video.hidden = false;
    $("photo").hidden = $("invite").hidden = true;
    $("photograph").textContent = "Take the picture";
    await video.play();
  }

  const short = n => (n >= 1e9 ? (n / 1e9).toFixed(2) + " billion" : n >= 1e6 ? (n / 1e6).toFixed(1) + " million" : n.toLocaleString("en"));

  function showCard() {
    const card = state.models.find(m => m.id === model());
    if (!card) return;
    const rows = [["Architecture", card.architecture],
      ["Size", short(card.parameters) + " parameters"],
      ["Classes", card.classes ? card.classes.toLocaleString("en") : "none"],
      ["Looks at", card.width + " × " + card.height + " pixels"],
      ["Runs in", card.precision + " on " + card.device.replace(/ \(.*/, "")],
      ["Version", card.version]];
    if (card.accuracy !== undefined) rows.splice(3, 0, ["Accuracy", percent(card.accuracy) + " on " + card.data]);
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
      say(error.message, "bad", error.temporary ? loadModels : null);
      return;
    }
    $("model").replaceChildren(...state.models.map(m => new Option(m.id, m.id)));
    $("key-form").hidden = true;
    showCard();
    if (state.blob) classify();
    else say("Nothing yet.", "idle");
  }

  $("file").addEventListener("change", event => { take(event.target.files[0]); event.target.value = ""; });
  $("model").addEventListener("change", () => {
    if (state.overlayUrl) URL.revokeObjectURL(state.overlayUrl);
    state.overlayUrl = null;
    if (state.url) showPhoto(state.url, "The photo you gave");
    showCard();
    classify();
  });
  // A photo that this browser has no decoder for is still the server's to read.
  $("photo").addEventListener("error", showInvite);
  $("overlay").addEventListener("click", toggleOverlay);
  $("photograph").addEventListener("click", photograph);
  $("retry").addEventListener("click", () => state.again && state.again());
  $("key-form").addEventListener("submit", event => {
    event.preventDefault();
    state.key = $("key").value.trim();
    loadModels();
  });
  document.addEventListener("paste", event => {
    const file = [...event.clipboardData.files][0];
    if (file) take(file);
  });
  let inside = 0;  // enter and leave come for every element passed
  for (const kind of ["dragenter", "dragover", "dragleave", "drop"])
    document.addEventListener(kind, event => {
      event.preventDefault();
      inside = kind === "dragenter" ? inside + 1 : kind === "dragleave" ? inside - 1 : kind === "drop" ? 0 : inside;
      $("drop").classList.toggle("over", inside > 0);
      if (kind === "drop") take(event.dataTransfer.files[0]);
    });
  if (window.isSecureContext && navigator.mediaDevices) $("photograph").hidden = false;
  say("Nothing yet.", "idle");
  loadModels();
})();
