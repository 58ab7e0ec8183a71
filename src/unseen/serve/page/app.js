// The page: talks to the API beside it and to nothing else.

const $ = (id) => document.getElementById(id);
const LATEST = 60; // verdicts on screen
const BATCH = 8; // images in one request
const BINS = 40;

const page = { stream: null, scores: [], line: 0, cut: null, names: 0, listening: null, pictures: [] };

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
  Object.assign(page, { stream: id, scores: [], cut: null, names: 0 });
  $("stream").value = id;
  $("verdicts").replaceChildren();
  $("labels").replaceChildren();
  await refresh();
  await showNames();
  listen();
}

async function refresh() {
  if (!page.stream) return;
  const [info, history] = await Promise.all([json(at()), json(at("history"))]);
  if (info.status !== "ready") throw new Error(info.reason || `this stream is ${info.status}`);
  showInfo(info);
  page.scores = history.margins;
  drawScores();
  drawTime(history.points);
}

function showInfo(info) {
  const { counts, threshold, labels } = info;
  for (const name of ["seen", "known", "unknown"]) $(name).textContent = counts[name].toLocaleString("en");
  $("coverage").textContent = `${Math.round(100 * info.coverage)} %`;
  const moved = Object.values(info.moved);
  $("moved").textContent = moved.length ? Math.max(...moved).toPrecision(2) : "—";
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

function heard({ verdicts, line }) {
  page.line = line ?? page.line;
  for (const verdict of verdicts) {
    show(verdict, page.pictures[verdict.seq]);
    if (verdict.margin !== null) page.scores.push(verdict.margin);
  }
  page.scores = page.scores.slice(-2048);
  soon();
}

function show(verdict, picture) {
  const known = $(`seq-${verdict.seq}`);
  const item = known ?? document.createElement("li");
  if (verdict.seq !== undefined) item.id = `seq-${verdict.seq}`;
  item.className = verdict.known ? "is-known" : "is-unknown";
  const frame = picture ? Object.assign(new Image(), { src: picture.url, alt: picture.name }) : document.createElement("span");
  if (!picture) { frame.className = "none"; frame.textContent = verdict.seq ?? "—"; }
  const what = document.createElement("div");
  what.className = "what";
  what.textContent = verdict.name ?? "unknown";
  const note = document.createElement("small");
  note.textContent = [verdict.known ? "" : `nearest: ${verdict.nearest}`, verdict.warming ? "warming up" : "",
    verdict.taught ? "taught" : "", picture?.name].filter(Boolean).join(" · ");
  what.append(note);
  const mark = document.createElement("div");
  mark.className = "mark";
  mark.textContent = `${verdict.known ? "✓ known" : "? unknown"} ${verdict.confidence.toFixed(2)}`;
  const meter = Object.assign(document.createElement("meter"), { value: verdict.confidence, ariaLabel: "confidence" });
  mark.append(document.createElement("br"), meter);
  item.replaceChildren(frame, what, mark);
  if (!known) $("verdicts").prepend(item);
  while ($("verdicts").childElementCount > LATEST) $("verdicts").lastElementChild.remove();
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
  for (let first = 0; first < images.length; first += BATCH) {
    const part = images.slice(first, first + BATCH);
    const form = new FormData();
    for (const file of part) form.append("images", file);
    const { verdicts } = await json(at(verb), { method: "POST", body: form, headers: { "idempotency-key": crypto.randomUUID() } });
    verdicts.forEach((verdict, i) => {
      const picture = { url: URL.createObjectURL(part[i]), name: part[i].name };
      if (verdict.seq !== undefined) page.pictures[verdict.seq] = picture;
      show(verdict, picture);
    });
  }
}

// --- drawing ---

const SVG = "http://www.w3.org/2000/svg";
const box = { left: 46, right: 590, top: 12, bottom: 190 };

function drawn(kind, attributes, text) {
  const node = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function drawScores() {
  const scores = page.scores;
  const cut = page.cut ?? page.line;
  const low = Math.min(cut, ...scores, -1), high = Math.max(cut, ...scores, 1);
  const x = (score) => box.left + ((score - low) / (high - low)) * (box.right - box.left);
  const counts = Array(BINS).fill(0);
  for (const score of scores) counts[Math.min(BINS - 1, Math.floor(((score - low) / (high - low)) * BINS))] += 1;
  const most = Math.max(1, ...counts), width = (box.right - box.left) / BINS;
  const bars = counts.map((count, i) => drawn("rect", {
    class: low + ((i + 0.5) / BINS) * (high - low) >= cut ? "bar above" : "bar",
    x: box.left + i * width + 0.5, width: width - 1,
    y: box.bottom - (count / most) * (box.bottom - box.top), height: (count / most) * (box.bottom - box.top),
  }));
  $("histogram").replaceChildren(...bars,
    drawn("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    drawn("text", { x: box.left, y: 212 }, low.toFixed(1)),
    drawn("text", { x: box.right, y: 212, "text-anchor": "end" }, `${high.toFixed(1)} more likely known →`),
    drawn("line", { class: "cut", x1: x(cut), x2: x(cut), y1: box.top - 6, y2: box.bottom }),
    drawn("circle", { class: "grip", cx: x(cut), cy: box.top, r: 7 }));
  Object.assign($("cut"), { min: low, max: high });
  $("cut").value = cut;
  $("cut-value").textContent = cut.toFixed(2);
  $("follow").hidden = page.cut === null;
  const above = scores.filter((score) => score >= cut).length;
  const share = scores.length ? Math.round((100 * above) / scores.length) : 0;
  $("accepted").textContent = `${above.toLocaleString("en")} of the last ${scores.length.toLocaleString("en")} samples (${share} %) ` +
    `would be called known.${page.warming ? " The line in use is still warming up." : ""}`;
  page.scale = { low, high };
}

function drawTime(points) {
  if (points.length < 2) {
    $("time").replaceChildren(drawn("text", { x: 300, y: 100, "text-anchor": "middle" }, "appears after the first few blocks"));
    return;
  }
  const first = points[0].seq, last = points.at(-1).seq;
  const x = (seq) => box.left + ((seq - first) / Math.max(1, last - first)) * (box.right - box.left);
  const y = (share) => box.bottom - share * (box.bottom - box.top);
  const curve = (name) => {
    let mean = points[0][name];
    return points.map((point) => `${x(point.seq).toFixed(1)},${y((mean += 0.3 * (point[name] - mean))).toFixed(1)}`).join(" ");
  };
  $("time").replaceChildren(
    ...[0, 0.5, 1].flatMap((share) => [
      drawn("line", { class: "axis", x1: box.left, x2: box.right, y1: y(share), y2: y(share) }),
      drawn("text", { x: 2, y: y(share) + 4 }, `${100 * share}%`),
    ]),
    drawn("polyline", { class: "curve taught", points: curve("taught") }),
    drawn("polyline", { class: "curve known", points: curve("known") }),
    drawn("text", { x: box.left, y: 212 }, `sample ${first.toLocaleString("en")}`),
    drawn("text", { x: box.right, y: 212, "text-anchor": "end" }, last.toLocaleString("en")));
}

function drag(event) {
  if (event.buttons !== 1 || !page.scale) return;
  const edge = $("histogram").getBoundingClientRect();
  const place = (600 * (event.clientX - edge.left)) / edge.width;
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
