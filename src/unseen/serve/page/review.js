// The kept samples as a table: filter, sort, look at one, and export labels.

import { json } from "/api.js";
import { called, isolated, part } from "/cards.js";
import { explain } from "/why.js";

const $ = (id) => document.getElementById(id);
const SHOWN = 50; // rows at once
const SORTS = {
  newest: (a, b) => b.seq - a.seq,
  "largest margin": (a, b) => b.margin - a.margin,
  "smallest margin": (a, b) => a.margin - b.margin,
  group: (a, b) => (a.group || Infinity) - (b.group || Infinity) || b.seq - a.seq,
};
const state = { at: null, run: null, corrected: null, samples: [] };

export function attach({ at, run, corrected }) {
  Object.assign(state, { at, run, corrected });
  $("review-sort").replaceChildren(...Object.keys(SORTS).map((name) => new Option(name)));
  $("review-load").onclick = run(load);
  for (const id of ["review-filter", "review-sort", "review-find"]) $(id).oninput = draw;
  $("export").onclick = run(download);
}

export function clear() {
  state.samples = [];
  draw();
}

export async function load() {
  state.samples = (await json(state.at("review"))).samples;
  draw();
}

// Shows a correction, where the table is in use.
export const reload = () => (state.samples.length ? load() : null);

const is = (verdict) => (one) => one.verdict === verdict;
const FILTERS = { all: () => true, unknown: is("unknown"), doubtful: is("doubtful"), known: is("known"), corrected: (one) => one.user !== null };

function draw() {
  const wanted = $("review-find").value.trim().toLowerCase(), keeps = FILTERS[$("review-filter").value];
  const found = state.samples.filter((one) => keeps(one) && `${one.key} ${one.label} ${one.nearest}`.toLowerCase().includes(wanted));
  found.sort(SORTS[$("review-sort").value]);
  $("review-rows").replaceChildren(...found.slice(0, SHOWN).map(row));
  $("review-count").textContent = state.samples.length ? `${found.length.toLocaleString("en")} of ${state.samples.length.toLocaleString("en")} kept samples${found.length > SHOWN ? `, ${SHOWN} shown` : ""}` : "";
}

function row(one) {
  const line = document.createElement("tr"), said = one.user ? `${isolated(one.user)} (your word)` : called(one);
  const why = Object.assign(part("button", "", "Why?"), { type: "button", ariaLabel: `Why is sample ${one.seq} ${one.verdict}?` });
  why.onclick = state.run(() => explain(state.at, one.seq, state.corrected));
  for (const text of [one.key, said, isolated(one.nearest), one.margin.toFixed(2), one.group || ""]) line.append(part("td", "", text));
  line.append(document.createElement("td"));
  line.lastChild.append(why);
  return line;
}

// A cell that a spreadsheet would take for a formula is text.
const cell = (value) => `"${String(value ?? "").replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;

async function download() {
  await load();
  const names = Object.keys(state.samples[0] ?? { seq: 0 });
  const lines = [names, ...state.samples.map((one) => names.map((name) => one[name]))].map((row) => row.map(cell).join(","));
  const url = URL.createObjectURL(new Blob([lines.join("\r\n")], { type: "text/csv" }));
  Object.assign(document.createElement("a"), { href: url, download: "labels.csv" }).click();
}
