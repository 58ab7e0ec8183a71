// Groups of the unknown samples of a stream, and edits of its names: promote, dismiss, rename, retire, undo.

import { json, picture } from "/api.js";
import { isolated, part } from "/cards.js";
import { explain } from "/why.js";

const $ = (id) => document.getElementById(id);
const SHOWN = 12; // groups on screen
const PICTURES = 6; // of one group

const state = { at: null, run: null, changed: null, corrected: null, edit: 0, loading: 0 };

// `at` gives a path of the stream, `run` reports errors, `changed` shows names and counts again, `corrected` a correction.
export function attach({ at, run, changed, corrected }) {
  Object.assign(state, { at, run, changed, corrected });
  $("group").onclick = run(() => group());
  $("undo").onclick = run(() => edit("undo", {}));
}

export async function choose() {
  $("groups").replaceChildren();
  $("group-count").textContent = "";
  await showUndo();
  await group({ quietly: true });
}

export async function edit(verb, body) {
  const options = { method: "POST", headers: { "content-type": "application/json" } };
  try {
    const record = await json(state.at("edits"), { ...options, body: JSON.stringify({ verb, ...body, after: state.edit }) });
    $("group-said").textContent = sentence(record);
  } finally { // after a conflict too: someone else has changed the names
    await showUndo();
    await group({ quietly: true });
    await state.changed();
  }
}

const similar = (names) => (names?.length ? ` It says nearly the same as ${names.map(isolated).join(", ")}.` : "");

function sentence(record) {
  if (record.verb === "promote") return `${record.name} is a known name now; ${record.now_named} of ${record.images} samples are known by it.${similar(record.similar_names)}`;
  if (record.verb === "undo") return `Edit ${record.undone} (${record.of}) is undone.`;
  if (record.verb === "dismiss") return `Group ${record.group} is not shown again.`;
  if (record.verb === "rename") return `${record.name} is called ${record.new} now.`;
  return record.verb === "retire" ? `${record.name} is a negative now.` : "Your word is kept.";
}

export async function showUndo() {
  const { edits } = await json(state.at("review"));
  const undone = new Set(edits.map((one) => one.undone));
  const open = edits.filter((one) => one.verb !== "undo" && !undone.has(one.edit));
  state.edit = edits.at(-1)?.edit ?? 0;
  $("undo").hidden = !open.length;
  if (open.length) $("undo").textContent = `Undo ${open.at(-1).verb} ${isolated(String(open.at(-1).name ?? open.at(-1).group ?? ""))}`.trim();
}

// Readers of the screen, and tests, are told when the groups on it are about to be replaced.
async function group({ quietly = false } = {}) {
  state.loading += 1;
  $("groups").ariaBusy = "true";
  try {
    show(await json(state.at("groups")));
  } catch (error) {
    if (!quietly || error.code !== "state") throw error;
    $("group-count").textContent = "No unknown samples yet.";
  } finally {
    state.loading -= 1;
    $("groups").ariaBusy = String(state.loading > 0);
  }
}

function show(found) {
  state.edit = found.edit;
  const grouped = found.groups.reduce((sum, one) => sum + one.size, 0);
  $("group-count").textContent = found.groups.length
    ? `${grouped.toLocaleString("en")} unknown samples in ${found.groups.length} groups${found.groups.length > SHOWN ? `, the largest ${SHOWN} shown` : ""}.`
    : "No groups yet: fewer than three unknown samples belong together.";
  $("groups").replaceChildren(...found.groups.slice(0, SHOWN).map(card));
}

function card(one) {
  const item = document.createElement("li");
  const title = part("h3", "", `Group ${one.number} · ${one.size} samples`);
  if (one.growing) title.append(part("span", "growing", "growing"));
  const note = one.looks_known ? `may be ${isolated(one.nearest)} that was rejected` : `nearest known name ${isolated(one.nearest)}`;
  const names = part("div", "names", "");
  const field = Object.assign(part("input", "", ""), { placeholder: "name", maxLength: 128, ariaLabel: `Name for group ${one.number}` });
  for (const { word, share } of one.suggestions.slice(0, 4)) {
    names.append(action(`${isolated(word)} ${Math.round(100 * share)} %`, () => { field.value = word; field.focus(); }));
  }
  const form = document.createElement("form");
  form.onsubmit = (event) => {
    event.preventDefault();
    state.run(() => edit("promote", { group: one.number, name: field.value.trim() }))();
  };
  form.append(field, Object.assign(part("button", "primary", "Promote"), { type: "submit" }));
  form.append(action("Dismiss", state.run(() => edit("dismiss", { group: one.number }))));
  item.append(title, part("small", "soft", note), pictures(one), names, form);
  return item;
}

function pictures(one) {
  const row = part("div", "row", "");
  const shown = (one.pictured.length ? one.pictured : one.exemplars).slice(0, PICTURES);
  for (const seq of shown) {
    const look = action("", state.run(() => explain(state.at, seq, state.corrected)));
    look.title = look.ariaLabel = `Why is sample ${seq} unknown?`;
    look.className = "look";
    look.textContent = seq;
    if (one.pictured.includes(seq)) picture(state.at(`pictures/${seq}`)).then((image) => look.replaceChildren(image), () => null /* no longer kept */);
    row.append(look);
  }
  return row;
}

// Buttons for a row of the table of names.
export function nameActions(name) {
  const cell = document.createElement("td");
  cell.append(
    action("Rename", state.run(async () => {
      const wanted = prompt(`What should ${name} be called?`, name)?.trim();
      if (wanted && wanted !== name) await edit("rename", { name, new: wanted });
    }), `Rename ${name}`),
    action("Retire", state.run(async () => {
      if (confirm(`Images of ${name} will be unknown from now on. Go on?`)) await edit("retire", { name });
    }), `Retire ${name}`),
  );
  return cell;
}

function action(text, work, label = "") {
  const made = Object.assign(document.createElement("button"), { type: "button", textContent: text, onclick: work });
  if (label) made.ariaLabel = label;
  return made;
}
