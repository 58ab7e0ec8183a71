// Images that a person drops, pastes or chooses: sent a few at a time, and shown with their verdicts.

import { json } from "/api.js";

const $ = (id) => document.getElementById(id);
const BATCH = 8; // images in one request
const state = { at: null, run: null, stream: null, picture: null, show: null };

export function attach(given) {
  Object.assign(state, given);
  for (const id of ["files", "folder"]) $(id).onchange = state.run((event) => send(event.target.files));
}

async function send(files) {
  const images = [...files].filter((file) => file.type.startsWith("image/"));
  if (!state.stream()) throw new Error("create a stream first");
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
  const { verdicts } = await json(state.at(verb), { method: "POST", body: form, headers: { "idempotency-key": crypto.randomUUID() } });
  verdicts.forEach((verdict, i) => {
    const seen = { url: URL.createObjectURL(files[i]), name: files[i].name };
    if (verdict.seq !== undefined) state.picture(verdict.seq, seen);
    state.show(verdict, seen);
  });
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
