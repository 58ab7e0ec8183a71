// The page: talks to the API beside it and to nothing else.

import { ask, events, json } from "/api.js";
import { fill, isolated, movesByArrows } from "/cards.js";
import * as groups from "/groups.js";
import * as review from "/review.js";
import * as upload from "/upload.js";
import { explain } from "/why.js";
import { dragThreshold, drawMargins } from "/charts.js";
import { cancel, created } from "/jobs.js";

const $ = (id) => document.getElementById(id);
const LATEST = 60; // verdicts on screen
const NAMES = 100; // known names on screen, before a click shows more

const PICTURES = 256; // kept for verdicts that may still be on screen

const page = {
  last: null, // the number of the last sample that was shown
  counted: null, later: [], // counts as of a sample, and the verdicts that came after it
  stream: null, ended: null, margins: [], threshold: 0, tried: null, known: [], listening: null, held: [], paused: false,
  pictures: new Map(), // sequence number -> { url, name }
};

// --- requests ---

const at = (verb = "") => `/v1/streams/${page.stream}${verb && "/" + verb}`;

// Once a stream has ended, what still asks for it gets a 404 that says less than why it ended.
function showError(error) {
  const text = error && error.status !== 404 ? error.message : page.ended ?? error?.message ?? "";
  $("notice").hidden = !text;
  $("notice").textContent = text;
}

const reportingErrors = (work) => async (...given) => {
  showError(null);
  try { await work(...given); } catch (error) { showError(error); }
};

// --- streams ---

async function listStreams(wanted) {
  const { streams, spaces } = await json("/v1/streams");
  $("create-offered").replaceChildren(new Option("none", ""), ...spaces.map((name) => new Option(name)));
  $("create-offer").hidden = !spaces.length;
  $("stream").replaceChildren(...streams.map((one) => {
    const option = new Option(`${isolated(one.name || one.id)}${one.status === "ready" ? "" : ` (${one.status})`}`, one.id);
    option.disabled = one.status === "opening";
    return option;
  }));
  const chosen = streams.find((one) => one.id === wanted) ?? streams.find((one) => one.status === "ready") ?? streams[0];
  if (chosen) await choose(chosen.id);
  else {
    page.stream = page.ended = null;
    live(false, "no stream yet");
    setTimeout(reportingErrors(() => page.stream ?? listStreams()), 2000);
  }
}

async function choose(id) {
  page.listening?.abort();
  for (const { url } of page.pictures.values()) URL.revokeObjectURL(url);
  page.pictures.clear();
  Object.assign(page, { stream: id, ended: null, margins: [], tried: null, known: [], held: [], last: null, counted: null, later: [] });
  $("stream").value = id;
  $("verdicts").replaceChildren();
  const { latest } = await refresh();
  page.last = latest.at(-1)?.seq ?? page.counted.seq - 1; // what came since is sent first
  listen();
  await fetchThumbnails(latest.filter((verdict) => verdict.pictured));
  if (page.stream === id) for (const verdict of latest) show(verdict);
  await showNames();
  review.clear();
  await groups.choose();
}

async function refresh() {
  if (!page.stream) return { latest: [] };
  const info = await json(`${at()}?recent=true`);
  if (info.status !== "ready") live(false, info.status);
  if (info.status !== "ready") throw new Error(info.reason || `this stream is ${info.status}`);
  showInfo(info);
  page.margins = info.recent.margins;
  drawMargins(page);
  return info.recent;
}

function showInfo(info) {
  const { counts, threshold, labels } = info;
  Object.assign(page, { counted: { ...counts, seq: info.seq }, later: page.later.filter((verdict) => verdict.seq >= info.seq) });
  showCounts();
  const taught = counts.taught_known + counts.taught_unknown;
  $("coverage").textContent = counts.seen ? `${Math.round((100 * taught) / counts.seen)} %` : "—";
  $("drift").className = info.drift >= 1 ? "alarm" : "";
  $("drift").firstElementChild.textContent = info.drift >= 1 ? "alarm" : "steady";
  const raised = info.alarm.raised_at !== null;
  $("alarm").className = raised ? "alarm" : "";
  $("alarm").firstElementChild.textContent = raised ? "alarm" : info.alarm.allowed === null ? "measuring" : "usual";
  $("alarm").title = raised ? `more unknown than usual since about sample ${info.alarm.raised_at}` : "";
  $("noted").hidden = !raised;
  page.threshold = threshold.value ?? 0;
  page.warming = threshold.warming;
  page.recall = threshold.recall_interval;
  $("space").textContent =
    `${labels.names.toLocaleString("en")} names + ${labels.negatives.toLocaleString("en")} negatives · ` +
    `${labels.encoder || "no encoder named"} · detector ${info.detector} · fingerprint ${labels.fingerprint.slice(0, 8)}`;
  showSnapshots(info.snapshots);
}

// What the last refresh counted and what came since, so that the counts agree with the verdicts on screen.
function showCounts() {
  if (!page.counted) return;
  const known = page.later.filter((verdict) => verdict.verdict !== "unknown").length;
  const counts = { seen: page.later.length, known, unknown: page.later.length - known };
  for (const name of ["seen", "known", "unknown"]) $(name).textContent = (page.counted[name] + counts[name]).toLocaleString("en");
}

async function namesChanged() {
  await Promise.all([showNames(), refresh(), review.reload()]);
}

const corrected = () => Promise.all([groups.showUndo(), review.reload()]);

async function showNames() {
  page.known = (await json(at("space?format=json"))).names;
  const few = page.known.slice(0, 8).map(isolated).join(", ");
  const more = page.known.length > 8 ? ` and ${(page.known.length - 8).toLocaleString("en")} more` : "";
  $("knows").textContent = `It knows ${few}${more}. Anything else should be called unknown.`;
  $("labels").replaceChildren();
  moreNames();
}

function moreNames() {
  const shown = $("labels").childElementCount;
  for (const name of page.known.slice(shown, shown + NAMES)) {
    const row = $("labels").insertRow();
    row.insertCell().textContent = isolated(name);
    row.append(groups.nameActions(name));
  }
  $("more").hidden = $("labels").childElementCount >= page.known.length;
}

function showSnapshots(snapshots) {
  $("snapshots").replaceChildren(...snapshots.toReversed().map((one) => {
    const item = document.createElement("li");
    const text = document.createElement("span");
    text.textContent = `after block ${one.snapshot} · ${one.kind} · ${new Date(1000 * one.time).toLocaleString()}`;
    item.append(text, button("Restore", async () => {
      await restore(one.snapshot);
    }, `Restore the snapshot after block ${one.snapshot}`));
    return item;
  }));
}

async function restore(snapshot) {
  await ask(at("restore"), { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ snapshot }) });
  await refresh();
}

function button(text, work, label = text) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.ariaLabel = label;
  made.onclick = reportingErrors(work);
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
      const headers = page.last === null ? {} : { "last-event-id": String(page.last) };
      const answer = await ask(at("events"), { signal: control.signal, headers });
      live(true);
      wait = 500;
      for await (const event of events(answer.body)) onEvent(event);
    } catch (error) {
      if (control.signal.aborted) return;
      if (error.status === 404 || error.status === 403) {
        page.ended = error.status === 404 ? "This stream was deleted." : "The key of this tab may not read this stream.";
        showError(null);
        return live(false, "ended");
      }
    }
    live(false, "reconnecting");
    await new Promise((done) => setTimeout(done, (wait = Math.min(2 * wait, 8000))));
  }
}

function onEvent(message) {
  if (message.verdicts) onVerdicts(message);
  else refreshSoon(); // some were missed: counts and curves have them
}

function onVerdicts(message) {
  if (page.paused) {
    page.held = [...page.held, message].slice(-LATEST);
    $("pause").textContent = "Go on";
    return;
  }
  page.threshold = message.verdicts.at(-1).threshold ?? page.threshold;
  page.last = message.verdicts.at(-1).seq;
  page.later.push(...message.verdicts.filter((verdict) => !page.counted || verdict.seq >= page.counted.seq));
  showCounts();
  const margins = message.verdicts.map((verdict) => verdict.margin).filter((margin) => margin !== null);
  page.margins = [...page.margins, ...margins].slice(-2048);
  const stream = page.stream;
  const appear = () => { if (stream === page.stream) message.verdicts.forEach((verdict) => show(verdict)); };
  if (message.pictured) fetchThumbnails(message.verdicts).then(appear);
  else appear();
  refreshSoon();
}

function pause() {
  page.paused = !page.paused;
  $("pause").ariaPressed = String(page.paused);
  $("pause").textContent = page.paused ? "Go on" : "Pause";
  for (const message of page.held.splice(0)) onVerdicts(message);
}

// Fetched and not linked, because a picture needs the key too.
async function fetchThumbnails(verdicts) {
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
  const shown = $(`seq-${verdict.seq}`);
  const item = shown ?? document.createElement("li");
  if (verdict.seq !== undefined) item.id = `seq-${verdict.seq}`;
  item.className = `is-${verdict.verdict}`;
  fill(item, verdict, seen);
  if (verdict.seq !== undefined) item.querySelector(".what").onclick = reportingErrors(() => explain(at, verdict.seq, corrected));
  if (!shown) $("verdicts").prepend(item);
  while ($("verdicts").childElementCount > LATEST) $("verdicts").lastElementChild.remove();
}

let due = null;
function refreshSoon() {
  due ??= setTimeout(() => { due = null; refresh().catch(showError); }, 1000);
  drawMargins(page);
}

// --- controls ---

$("stream").onchange = reportingErrors(() => choose($("stream").value));
$("threshold").oninput = () => { page.tried = Number($("threshold").value); drawMargins(page); };
$("follow").onclick = () => { page.tried = null; drawMargins(page); };
$("histogram").onpointerdown = (event) => { $("histogram").setPointerCapture(event.pointerId); dragThreshold(page, event); };
$("histogram").onpointermove = (event) => dragThreshold(page, event);
$("more").onclick = moreNames;
$("pause").onclick = pause;
movesByArrows($("verdicts"));
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select, dialog")) return;
  if (event.key === "p") pause();
  if (event.key === "g") $("group").click();
});
new ResizeObserver(() => { if (page.stream) drawMargins(page); }).observe($("histogram"));
$("take").onclick = reportingErrors(async () => { await ask(at("snapshots"), { method: "POST" }); await refresh(); });
$("reset").onclick = reportingErrors(async () => {
  if (!confirm("Forget everything this stream has learned?")) return;
  await restore(0);
});
$("delete").onclick = reportingErrors(async () => {
  if (!confirm("Delete this stream and its snapshots?")) return;
  await ask(at(), { method: "DELETE" });
  await listStreams();
});
$("state").onclick = reportingErrors(async (event) => {
  event.preventDefault();
  const url = URL.createObjectURL(await (await ask(at("state"))).blob());
  Object.assign(document.createElement("a"), { href: url, download: `${page.stream}.safetensors` }).click();
});
$("state").href = "#";
$("new").onclick = () => $("create").showModal();
$("create-go").onclick = reportingErrors(async () => {
  const file = $("create-space").files[0], offered = $("create-offered").value, wanted = { name: $("create-name").value };
  $("create").close();
  let options;
  if (file) {
    const body = new FormData();
    body.append("space", file);
    body.append("stream", JSON.stringify(wanted));
    options = { method: "POST", body };
  } else {
    if (offered) wanted.space = offered;
    else wanted.names = $("create-names").value.split("\n").map((name) => name.trim()).filter(Boolean);
    options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(wanted) };
  }
  options.headers = { ...options.headers, "idempotency-key": crypto.randomUUID() };
  await listStreams(await created(await json("/v1/streams?wait=2", options)));
});
$("job-cancel").onclick = reportingErrors(cancel);
$("noted").onclick = reportingErrors(async () => {
  await ask(at("alarm"), { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
  await refresh();
});

groups.attach({ at, run: reportingErrors, changed: namesChanged, corrected });
review.attach({ at, run: reportingErrors, corrected });
upload.attach({ at, run: reportingErrors, stream: () => page.stream, picture, show });
reportingErrors(listStreams)();
