// The page: talks to the API beside it and to nothing else.

const $ = (id) => document.getElementById(id);
const LATEST = 60; // verdicts on screen
const BATCH = 8; // images in one request
const BINS = 40;

const PICTURES = 256; // kept for verdicts that may still be on screen

const page = {
  stream: null, scores: [], line: 0, cut: null, names: 0, listening: null, points: [], moved: [], held: [], paused: false,
  pictures: new Map(), // sequence number -> { url, name }
};

// --- asking ---

async function ask(path, options = {}) {
  const key = sessionStorage.getItem("key");
  const headers = { ...(key && { authorization: `Bearer ${key}` }), ...options.headers };
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) {
    await unlock();
    return ask(path, options);
  }
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({ message: answer.statusText }));
    throw new Error(said.message);
  }
  return answer;
}

const json = async (path, options) => (await ask(path, options)).json();
const at = (verb = "") => `/v1/streams/${page.stream}${verb && "/" + verb}`;

function unlock() {
  $("unlock").showModal();
  return new Promise((done) => {
    $("unlock").addEventListener("close", () => { sessionStorage.setItem("key", $("key").value.trim()); done(); }, { once: true });
  });
}

function tell(error) {
  $("notice").hidden = !error;
  $("notice").textContent = error ? error.message : "";
}

const guarded = (work) => async (...given) => {
  tell(null);
  try { await work(...given); } catch (error) { tell(error); }
};

// --- streams ---

async function listStreams(wanted) {
  const { streams } = await json("/v1/streams");
  $("stream").replaceChildren(...streams.map((one) => {
    const option = new Option(`${one.name || one.id}${one.status === "ready" ? "" : ` (${one.status})`}`, one.id);
    option.disabled = one.status === "opening";
    return option;
  }));
  const chosen = streams.find((one) => one.id === wanted) ?? streams.find((one) => one.status === "ready") ?? streams[0];
  if (chosen) await choose(chosen.id);
  else { page.stream = null; live(false, "no stream yet"); }
}

async function choose(id) {
  page.listening?.abort();
  for (const { url } of page.pictures.values()) URL.revokeObjectURL(url);
  page.pictures.clear();
  Object.assign(page, { stream: id, scores: [], cut: null, names: 0, moved: [], held: [] });
  $("stream").value = id;
  $("verdicts").replaceChildren();
  $("labels").replaceChildren();
  const { latest } = await refresh();
  listen();
  await look(latest.filter((verdict) => verdict.pictured));
  if (page.stream === id) for (const verdict of latest) show(verdict);
  await showNames();
}

async function refresh() {
  if (!page.stream) return { latest: [] };
  const info = await json(at());
  if (info.status !== "ready") throw new Error(info.reason || `this stream is ${info.status}`);
  const history = await json(at("history"));
  showInfo(info);
  Object.assign(page, { scores: history.margins, points: history.points });
  draw();
  return history;
}

function showInfo(info) {
  const { counts, threshold, labels } = info;
  for (const name of ["seen", "known", "unknown"]) $(name).textContent = counts[name].toLocaleString("en");
  $("coverage").textContent = `${Math.round(100 * info.coverage)} %`;
  const moved = Object.values(info.moved);
  $("moved-box").hidden = $("moved-legend").hidden = !moved.length;
  if (moved.length) {
    $("moved").textContent = Math.max(...moved).toPrecision(2);
    page.moved = [...page.moved, { seq: info.seq, moved: Math.max(...moved) }].slice(-400);
  }
  $("drift").className = info.drifting ? "alarm" : "";
  $("drift").firstElementChild.textContent = info.drifting ? "alarm" : "steady";
  page.line = threshold.line ?? 0;
  page.warming = threshold.warming;
  $("space").textContent =
    `${labels.names.toLocaleString("en")} names + ${labels.negatives.toLocaleString("en")} negatives · ` +
    `${labels.encoder || "no encoder named"} · detector ${info.detector} · fingerprint ${labels.fingerprint.slice(0, 8)}`;
  showSnapshots(info.snapshots);
}

async function showNames() {
  const { names, total } = await json(at(`labels?offset=${page.names}`));
  for (const { name, nearest } of names) {
    const row = $("labels").insertRow();
    row.insertCell().textContent = name;
    row.insertCell().textContent = nearest.map((one) => `${one.name} (${one.cosine.toFixed(2)})`).join(", ") || "none";
  }
  if (!page.names) {
    const few = names.slice(0, 8).map((one) => one.name).join(", ");
    $("knows").textContent = `It knows ${few}${total > 8 ? ` and ${(total - 8).toLocaleString("en")} more` : ""}. Anything else should be called unknown.`;
  }
  page.names += names.length;
  $("more").hidden = page.names >= total;
}

function showSnapshots(snapshots) {
  $("snapshots").replaceChildren(...snapshots.toReversed().map((one) => {
    const item = document.createElement("li");
    const text = document.createElement("span");
    text.textContent = `after block ${one.snapshot} · ${one.kind} · ${new Date(1000 * one.time).toLocaleString()}`;
    item.append(text, button("Restore", async () => {
      await ask(at("restore"), { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ snapshot: one.snapshot }) });
      await refresh();
    }, `Restore the snapshot after block ${one.snapshot}`));
    if (one.kind === "kept") {
      item.append(button("Delete", async () => { await ask(at(`snapshots/${one.snapshot}`), { method: "DELETE" }); await refresh(); }));
    }
    return item;
  }));
}

function button(text, work, label = text) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.ariaLabel = label;
  made.onclick = guarded(work);
  return made;
}

// --- verdicts ---

function live(on, text = on ? "live" : "not connected") {
  $("live").className = on ? "on" : "";
  $("live").textContent = text;
}

async function listen() {
  const control = (page.listening = new AbortController());
  let wait = 500;
  while (!control.signal.aborted) {
    try {
      const answer = await ask(at("events"), { signal: control.signal });
      live(true);
      wait = 500;
      for await (const event of events(answer.body)) heard(event);
    } catch (error) {
      if (control.signal.aborted) return;
    }
    live(false, "reconnecting");
    await new Promise((done) => setTimeout(done, (wait = Math.min(2 * wait, 8000))));
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").find((line) => line.startsWith("data: "));
      if (data) yield JSON.parse(data.slice(6));
    }
  }
}

function heard(message) {
  if (page.paused) {
    page.held = [...page.held, message].slice(-LATEST);
    $("pause").textContent = "Go on";
    return;
  }
  page.line = message.line ?? page.line;
  const margins = message.verdicts.map((verdict) => verdict.margin).filter((margin) => margin !== null);
  page.scores = [...page.scores, ...margins].slice(-2048);
  const stream = page.stream;
  const appear = () => { if (stream === page.stream) message.verdicts.forEach((verdict) => show(verdict)); };
  if (message.pictured) look(message.verdicts).then(appear);
  else appear();
  soon();
}

function pause() {
  page.paused = !page.paused;
  $("pause").ariaPressed = String(page.paused);
  $("pause").textContent = page.paused ? "Go on" : "Pause";
  for (const message of page.held.splice(0)) heard(message);
}

// Fetched and not linked, because a picture needs the key too.
async function look(verdicts) {
  const stream = page.stream;
  const missing = verdicts.filter((verdict) => !page.pictures.has(verdict.seq));
  await Promise.all(missing.map(async ({ seq }) => {
    try {
      const data = await (await ask(at(`pictures/${seq}`))).blob();
      if (stream === page.stream && !page.pictures.has(seq)) picture(seq, { url: URL.createObjectURL(data), name: "" });
    } catch { /* it is no longer kept */ }
  }));
}

function picture(seq, made) {
  page.pictures.set(seq, made);
  if (page.pictures.size > PICTURES) {
    const [oldest, { url }] = page.pictures.entries().next().value;
    page.pictures.delete(oldest);
    URL.revokeObjectURL(url);
  }
}

function show(verdict, seen = page.pictures.get(verdict.seq)) {
  const known = $(`seq-${verdict.seq}`);
  const item = known ?? document.createElement("li");
  if (verdict.seq !== undefined) item.id = `seq-${verdict.seq}`;
  item.className = verdict.known ? "is-known" : "is-unknown";
  const share = Math.round(100 * verdict.confidence);
  item.title = `${seen?.name ? `${seen.name}\n` : ""}sample ${verdict.seq ?? "not learned from"}\n${share} % confidence that it is known, ` +
    `nearest name ${verdict.nearest}${verdict.taught ? "\nlearned from" : ""}`;
  const frame = seen ? Object.assign(new Image(), { src: seen.url, alt: seen.name }) : part("span", "none", verdict.seq ?? "—");
  const bar = part("div", "bar", "");
  bar.append(document.createElement("i"));
  bar.firstChild.style.width = `${share}%`;
  const note = [`${share} %`, verdict.known ? "" : `${verdict.nearest}?`, verdict.warming ? "warming up" : ""];
  item.replaceChildren(frame, bar, part("div", "what", verdict.name ?? "unknown"), part("small", "", note.filter(Boolean).join(" · ")));
  if (!known) $("verdicts").prepend(item);
  while ($("verdicts").childElementCount > LATEST) $("verdicts").lastElementChild.remove();
}

function part(kind, name, text) {
  return Object.assign(document.createElement(kind), { className: name, textContent: text });
}

let due = null;
function soon() {
  due ??= setTimeout(() => { due = null; refresh().catch(tell); }, 1000);
  drawScores();
}

async function send(files) {
  const images = [...files].filter((file) => file.type.startsWith("image/"));
  if (!page.stream) throw new Error("create a stream first");
  if (!images.length) throw new Error("expected images, got none; choose picture files");
  const verb = $("learn").checked ? "observe" : "score";
  Object.assign($("sending"), { hidden: false, max: images.length, value: 0 });
  try {
    for (let first = 0; first < images.length; first += BATCH) {
      await sendPart(images.slice(first, first + BATCH), verb);
      $("sending").value = first + BATCH;
    }
  } finally {
    $("sending").hidden = true;
  }
}

async function sendPart(files, verb) {
  const form = new FormData();
  for (const file of files) form.append("images", file);
  const { verdicts } = await json(at(verb), { method: "POST", body: form, headers: { "idempotency-key": crypto.randomUUID() } });
  verdicts.forEach((verdict, i) => {
    const seen = { url: URL.createObjectURL(files[i]), name: files[i].name };
    if (verdict.seq !== undefined) picture(verdict.seq, seen);
    show(verdict, seen);
  });
}

// --- drawing ---

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 220;

// Drawn at the size it is shown, so that text is as large on a phone.
function room(svg) {
  const width = Math.max(240, svg.clientWidth);
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  return { left: 44, right: width - 12, top: 26, bottom: HEIGHT - 30 };
}

function drawn(kind, attributes, text) {
  const node = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function draw() {
  drawScores();
  drawTime();
}

function drawScores() {
  const scores = page.scores, cut = page.cut ?? page.line, box = room($("histogram"));
  const low = Math.min(cut, ...scores, -1), high = Math.max(cut, ...scores, 1);
  const x = (score) => box.left + ((score - low) / (high - low)) * (box.right - box.left);
  const counts = Array(BINS).fill(0);
  for (const score of scores) counts[Math.min(BINS - 1, Math.floor(((score - low) / (high - low)) * BINS))] += 1;
  const most = Math.max(1, ...counts), width = (box.right - box.left) / BINS;
  const bars = counts.map((count, i) => drawn("rect", {
    class: low + ((i + 0.5) / BINS) * (high - low) >= cut ? "bar above" : "bar", rx: 1.5,
    x: box.left + i * width + 0.5, width: width - 1,
    y: box.bottom - (count / most) * (box.bottom - box.top), height: (count / most) * (box.bottom - box.top),
  }));
  const ticks = steps(low, high).map((tick) => drawn("text", { x: x(tick), y: HEIGHT - 10, "text-anchor": "middle" }, tick));
  const side = x(cut) > (box.left + box.right) / 2 ? { dx: -14, "text-anchor": "end" } : { dx: 14 };
  $("histogram").replaceChildren(...bars, ...ticks,
    drawn("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    ...(page.cut === null ? [] : [drawn("line", { class: "use", x1: x(page.line), x2: x(page.line), y1: box.top, y2: box.bottom })]),
    drawn("line", { class: "cut", x1: x(cut), x2: x(cut), y1: 12, y2: box.bottom }),
    drawn("circle", { class: "grip", cx: x(cut), cy: 12, r: 9 }),
    drawn("text", { class: "flag", x: x(cut), y: 17, ...side }, page.cut === null ? "line in use" : "what if"));
  Object.assign($("cut"), { min: low, max: high });
  $("cut").value = cut;
  $("cut-value").textContent = cut.toFixed(2);
  $("follow").hidden = page.cut === null;
  const above = scores.filter((score) => score >= cut).length;
  const share = scores.length ? Math.round((100 * above) / scores.length) : 0;
  $("accepted").textContent = `${above.toLocaleString("en")} of the last ${scores.length.toLocaleString("en")} samples (${share} %) ` +
    `would be called known.${page.warming ? " The line in use is still warming up." : ""}`;
  page.scale = { low, high, box };
}

// Four to eight round numbers between two others.
function steps(low, high) {
  const rough = 10 ** Math.floor(Math.log10(high - low));
  const step = [rough / 5, rough / 2, rough, 2 * rough].find((size) => (high - low) / size <= 8) ?? rough;
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(6)));
}

function drawTime() {
  const points = page.points, box = room($("time"));
  if (points.length < 2) {
    const middle = (box.left + box.right) / 2;
    $("time").replaceChildren(drawn("text", { x: middle, y: 100, "text-anchor": "middle" }, "appears after the first few blocks"));
    return;
  }
  const first = points[0].seq, last = points.at(-1).seq;
  const x = (seq) => box.left + ((seq - first) / Math.max(1, last - first)) * (box.right - box.left);
  const y = (share) => box.bottom - share * (box.bottom - box.top);
  const curve = (rows, name, most = 1, pace = 0.3) => {
    let mean = rows[0]?.[name];
    return rows.map((row) => `${x(row.seq).toFixed(1)},${y((mean += pace * (row[name] - mean)) / most).toFixed(1)}`).join(" ");
  };
  const moved = page.moved.filter((row) => row.seq >= first && row.seq <= last);
  const known = curve(points, "known");
  $("time").replaceChildren(
    ...[0, 0.5, 1].flatMap((share) => [
      drawn("line", { class: "axis", x1: box.left, x2: box.right, y1: y(share), y2: y(share) }),
      drawn("text", { x: box.left - 6, y: y(share) + 4, "text-anchor": "end" }, `${100 * share}%`),
    ]),
    drawn("polygon", { class: "area", points: `${box.left},${box.bottom} ${known} ${box.right},${box.bottom}` }),
    drawn("polyline", { class: "curve taught", points: curve(points, "taught") }),
    drawn("polyline", { class: "curve known", points: known }),
    ...(moved.length > 1 ? [drawn("polyline", { class: "curve moved", points: curve(moved, "moved", Math.max(...moved.map((row) => row.moved), 1e-9), 1) })] : []),
    drawn("text", { x: box.left, y: HEIGHT - 10 }, `sample ${first.toLocaleString("en")}`),
    drawn("text", { x: box.right, y: HEIGHT - 10, "text-anchor": "end" }, last.toLocaleString("en")));
}

function drag(event) {
  if (event.buttons !== 1 || !page.scale) return;
  const edge = $("histogram").getBoundingClientRect(), { box } = page.scale;
  const place = event.clientX - edge.left;
  const share = Math.min(1, Math.max(0, (place - box.left) / (box.right - box.left)));
  page.cut = page.scale.low + share * (page.scale.high - page.scale.low);
  drawScores();
}

// --- hands ---

$("stream").onchange = guarded(() => choose($("stream").value));
$("files").onchange = guarded((event) => send(event.target.files));
$("folder").onchange = guarded((event) => send(event.target.files));
$("cut").oninput = () => { page.cut = Number($("cut").value); drawScores(); };
$("follow").onclick = () => { page.cut = null; drawScores(); };
$("histogram").onpointerdown = (event) => { $("histogram").setPointerCapture(event.pointerId); drag(event); };
$("histogram").onpointermove = drag;
$("more").onclick = guarded(showNames);
$("pause").onclick = pause;
document.addEventListener("keydown", (event) => {
  if (event.key === "p" && !event.ctrlKey && !event.metaKey && !event.target.closest("input, textarea, select, dialog")) pause();
});
new ResizeObserver(() => { if (page.stream) draw(); }).observe($("histogram"));
$("take").onclick = guarded(async () => { await ask(at("snapshots"), { method: "POST" }); await refresh(); });
$("reset").onclick = guarded(async () => {
  if (!confirm("Forget everything this stream has learned?")) return;
  await ask(at("reset"), { method: "POST" });
  await refresh();
});
$("delete").onclick = guarded(async () => {
  if (!confirm("Delete this stream and its snapshots?")) return;
  await ask(at(), { method: "DELETE" });
  await listStreams();
});
$("state").onclick = guarded(async (event) => {
  event.preventDefault();
  const url = URL.createObjectURL(await (await ask(at("state"))).blob());
  Object.assign(document.createElement("a"), { href: url, download: `${page.stream}.safetensors` }).click();
});
$("state").href = "#";
$("new").onclick = () => $("create").showModal();
$("create-go").onclick = guarded(async () => {
  const file = $("create-space").files[0], wanted = { name: $("create-name").value };
  $("create").close();
  let options;
  if (file) {
    const body = new FormData();
    body.append("space", file);
    body.append("stream", JSON.stringify(wanted));
    options = { method: "POST", body };
  } else {
    wanted.names = $("create-names").value.split("\n").map((name) => name.trim()).filter(Boolean);
    options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(wanted) };
  }
  await listStreams((await json("/v1/streams", options)).id);
});
for (const name of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(name, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", name === "dragover");
    if (name === "drop") guarded(send)(event.dataTransfer.files);
  });
}
document.addEventListener("paste", (event) => {
  if (event.clipboardData.files.length) guarded(send)(event.clipboardData.files);
});

guarded(listStreams)();
