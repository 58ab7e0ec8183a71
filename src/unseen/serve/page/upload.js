// Images that a person drops, pastes or chooses: sent a few at a time, and shown with their verdicts.

import { json } from "/api.js";
import { cutBoxes, mark } from "/regions.js";

const $ = (id) => document.getElementById(id);
const BATCH = 8; // images in one request
const SHOWN = 20; // names of files that were skipped
const state = { at: null, run: null, stream: null, picture: null, show: null };

export function attach(given) {
  Object.assign(state, given);
  for (const id of ["files", "folder"]) $(id).onchange = state.run((event) => send(event.target.files));
}

async function send(files) {
  if (!state.stream()) throw new Error("create a stream first");
  const cut = await cutBoxes([...files]);
  const images = cut?.parts ?? [...files].filter((file) => file.type.startsWith("image/"));
  const skipped = cut?.skipped ?? [...files].filter((file) => !images.includes(file)).map((file) => ({ key: file.name, reason: "not an image" }));
  if (!images.length) throw new Error("expected images, got none; choose picture files");
  showSkipped(skipped);
  const verb = $("learn").checked ? "observe" : "score";
  Object.assign($("sending"), { hidden: false, max: images.length, value: 0 });
  try {
    for (let first = 0; first < images.length; first += BATCH) {
      skipped.push(...await sendPart(images.slice(first, first + BATCH), verb));
      showSkipped(skipped);
      $("sending").value = first + BATCH;
    }
  } finally {
    $("sending").hidden = true;
  }
}

async function sendPart(files, verb) {
  const form = new FormData();
  for (const file of files) form.append("images", file);
  let found;
  try {
    found = await json(state.at(verb), { method: "POST", body: form, headers: { "idempotency-key": crypto.randomUUID() } });
  } catch (error) {
    if (error.code !== "image") throw error; // none of these could be read
    return files.map((file) => ({ key: file.name, reason: "cannot be read" }));
  }
  const skipped = found.skipped ?? [], left = files.filter((_, i) => !skipped.some((one) => one.index === i));
  found.verdicts.forEach((verdict, i) => {
    const seen = { url: URL.createObjectURL(left[i]), name: left[i].name };
    if (verdict.seq !== undefined) state.picture(verdict.seq, seen);
    state.show(verdict, seen);
    mark(left[i], verdict);
  });
  return skipped;
}

// What was left out and why: the others are judged.
function showSkipped(skipped) {
  $("skipped").hidden = !skipped.length;
  $("skipped-count").textContent = `Skipped ${skipped.length === 1 ? "one file" : `${skipped.length} files`}:`;
  $("skipped-names").replaceChildren(...skipped.slice(0, SHOWN).map(({ key, reason }) =>
    Object.assign(document.createElement("li"), { textContent: `${key}: ${reason}` })));
}

for (const name of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(name, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", name === "dragover");
    if (name === "drop") state.run(send)(event.dataTransfer.files);
  });
}
document.addEventListener("paste", (event) => {
  if (event.clipboardData.files.length) state.run(send)(event.clipboardData.files);
});
