"use strict";
// Filter, sort and correct groups; corrections leave the page as commands and as a CSV, never by themselves.
const groups = document.getElementById("groups");
const articles = () => [...groups.querySelectorAll("article")];
const quoted = (text) => "'" + text.replaceAll("'", "'\\''") + "'";
const state = /^[\w./-]+$/.test(groups.dataset.state) ? groups.dataset.state : quoted(groups.dataset.state);
const words = new Map(); // your word by key, from the exemplars and from the table
const cell = (text) => '"' + text.replace(/^(?=[=+\-@\t\r])/, "'").replaceAll('"', '""') + '"'; // no formula in a spreadsheet

function filter() {
  const wanted = document.getElementById("find").value.toLowerCase();
  const hideKnown = document.getElementById("known").checked;
  for (const one of articles()) {
    const text = (one.textContent + one.dataset.keys + one.querySelector(".word").value).toLowerCase();
    one.hidden = !text.includes(wanted) || (hideKnown && one.dataset.known === "1");
  }
}

function sort() {
  const by = document.getElementById("sort").value;
  const sign = by === "number" ? 1 : -1;
  groups.append(...articles().sort((a, b) => sign * (a.dataset[by] - b.dataset[by])));
}

function choose(article, word) {
  article.querySelector(".word").value = word;
  mark(article);
}

function mark(article) {
  const word = article.querySelector(".word").value;
  for (const chip of article.querySelectorAll(".chip")) chip.classList.toggle("chosen", chip.dataset.word === word);
  article.classList.toggle("dismissed", article.querySelector(".dismiss").checked);
}

function corrections() {
  const commands = [], rows = [["key", "name"]];
  for (const one of articles()) {
    const word = one.querySelector(".word").value.trim();
    if (one.querySelector(".dismiss").checked) commands.push(`unseen dismiss ${one.dataset.number} --state ${state}`);
    else if (word) commands.push(`unseen promote ${one.dataset.number} ${quoted(word)} --state ${state}`);
  }
  rows.push(...words);
  if (words.size) commands.push(`unseen review --corrections corrections.csv --state ${state}`);
  const out = document.getElementById("out");
  out.hidden = false;
  out.querySelector("pre").textContent = commands.join("\n") || "# no group has a name or is dismissed yet";
  const text = rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
  document.getElementById("csv").href = "data:text/csv;charset=utf-8," + encodeURIComponent(text);
  document.getElementById("csv").textContent = `corrections.csv (${rows.length - 1} images)`;
  out.scrollIntoView();
}

function say(field) {
  const word = field.value.trim();
  if (word) words.set(field.dataset.key, word);
  else words.delete(field.dataset.key);
}

// The table of all kept images: key, verdict, name, nearest, margin, group, an earlier word of a person, label.
function review() {
  const SHOWN = 50, $ = (id) => document.getElementById(id);
  const kept = JSON.parse($("kept").textContent), threshold = Number($("kept").dataset.threshold);
  const number = new Map(kept.map((row, place) => [row, place]));
  const verdict = (word) => (row) => row[1] === word;
  const keeps = {
    all: () => true, unknown: verdict("unknown"), doubtful: verdict("doubtful"), known: verdict("known"),
    corrected: (row) => row[6] || words.has(row[0]),
  };
  const orders = {
    "nearest to the threshold": (a, b) => Math.abs(a[4] - threshold) - Math.abs(b[4] - threshold),
    newest: (a, b) => number.get(b) - number.get(a),
    group: (a, b) => (a[5] || Infinity) - (b[5] || Infinity),
  };
  const line = (row) => {
    const made = document.createElement("tr"), [key, verdict, name, nearest, margin, group] = row;
    for (const text of [key, name ?? verdict, nearest, margin.toFixed(2), group || ""]) made.insertCell().textContent = text;
    const field = Object.assign(document.createElement("input"), { value: words.get(key) ?? "", placeholder: row[6] ?? "correct", ariaLabel: `correct ${key}` });
    field.setAttribute("list", "names");
    field.dataset.key = key;
    made.insertCell().append(field);
    return made;
  };
  const draw = () => {
    const wanted = $("review-find").value.trim().toLowerCase(), keep = keeps[$("review-kind").value];
    const found = kept.filter((row) => keep(row) && `${row[0]} ${row[3]} ${row[7]} ${words.get(row[0]) ?? ""}`.toLowerCase().includes(wanted));
    found.sort(orders[$("review-sort").value]);
    $("review-rows").replaceChildren(...found.slice(0, SHOWN).map(line));
    $("review-count").textContent = `${found.length.toLocaleString("en")} of ${kept.length.toLocaleString("en")}${found.length > SHOWN ? `, ${SHOWN} shown` : ""}`;
  };
  for (const id of ["review-find", "review-kind", "review-sort"]) $(id).addEventListener("input", draw);
  draw();
}

if (document.getElementById("review")) review();
document.addEventListener("input", (event) => event.target.dataset.key && say(event.target));
document.getElementById("find").addEventListener("input", filter);
document.getElementById("known").addEventListener("change", filter);
document.getElementById("sort").addEventListener("change", sort);
document.getElementById("export").addEventListener("click", corrections);
groups.addEventListener("input", (event) => mark(event.target.closest("article")));
groups.addEventListener("click", (event) => {
  const chip = event.target.closest(".chip");
  if (chip) choose(chip.closest("article"), chip.dataset.word);
});
groups.addEventListener("keydown", (event) => {
  const here = event.target.closest("article");
  if (event.target !== here) return;
  const shown = articles().filter((one) => !one.hidden);
  const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
  const chips = here.querySelectorAll(".chip");
  if (step) {
    (shown[shown.indexOf(here) + step] || here).focus();
    event.preventDefault();
  } else if (event.key >= "1" && event.key <= String(chips.length)) choose(here, chips[event.key - 1].dataset.word);
  else if (event.key === "d") {
    const box = here.querySelector(".dismiss");
    box.checked = !box.checked;
    mark(here);
  }
});
