"use strict";
// Filter, sort and correct groups; corrections leave the page as commands and as a CSV, never by themselves.
const groups = document.getElementById("groups");
const articles = () => [...groups.querySelectorAll("article")];
const quoted = (text) => "'" + text.replaceAll("'", "'\\''") + "'";
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
    if (one.querySelector(".dismiss").checked) commands.push(`unseen dismiss ${one.dataset.number} --state STATE`);
    else if (word) commands.push(`unseen promote ${one.dataset.number} ${quoted(word)} --state STATE`);
    for (const field of one.querySelectorAll("[data-key]"))
      if (field.value.trim()) rows.push([field.dataset.key, field.value.trim()]);
  }
  const out = document.getElementById("out");
  out.hidden = false;
  out.querySelector("pre").textContent = commands.join("\n") || "# no group has a name or is dismissed yet";
  const text = rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
  document.getElementById("csv").href = "data:text/csv;charset=utf-8," + encodeURIComponent(text);
  document.getElementById("csv").textContent = `corrections.csv (${rows.length - 1} images)`;
  out.scrollIntoView();
}

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
