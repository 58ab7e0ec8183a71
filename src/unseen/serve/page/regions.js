// Boxes of a detector, dropped with their photos as COCO's JSON: each is cut here, sent as an image, and drawn in place.

import { called } from "/cards.js";

const $ = (id) => document.getElementById(id);
const PAD = 0.1; // margin on each side, of the longer side of a box, as on the command line
const SMALLEST = 8, MOST = 1000; // pixels of a box, boxes of a photo
const SHOWN = 24; // photos on screen
const places = new WeakMap(); // part of a photo -> where it lies, and on which drawing

// The parts of the photos among some files, and what was left out; null where there is no file of boxes.
export async function cutBoxes(files) {
  const table = files.find((file) => file.name.endsWith(".json"));
  if (!table) return null;
  const data = JSON.parse(await table.text());
  if (!data.images || !data.annotations) throw new Error(`expected COCO's images and annotations in ${table.name}, got none`);
  const names = new Map(data.images.map((one) => [one.id, one.file_name.split("/").at(-1)]));
  const parts = [], skipped = [];
  for (const photo of files.filter((file) => file.type.startsWith("image/"))) {
    const boxes = data.annotations.filter((one) => names.get(one.image_id) === photo.name).slice(0, MOST);
    if (!boxes.length) { skipped.push({ key: photo.name, reason: "no boxes" }); continue; }
    const picture = await createImageBitmap(photo), drawing = drawn(photo, picture);
    for (const [i, { bbox: [x, y, width, height] }] of boxes.entries()) {
      const name = `${photo.name}#${i + 1}`;
      const left = Math.max(0, x), top = Math.max(0, y);
      const box = [left, top, Math.min(x + width, picture.width) - left, Math.min(y + height, picture.height) - top];
      if (!(Math.min(box[2], box[3]) >= SMALLEST)) { skipped.push({ key: name, reason: "box empty, outside or too small" }); continue; }
      const part = new File([await cut(picture, box)], name, { type: "image/png" });
      places.set(part, { drawing, box, number: i + 1 });
      parts.push(part);
    }
    picture.close();
  }
  return { parts, skipped };
}

async function cut(picture, [x, y, width, height]) {
  const half = (0.5 + PAD) * Math.max(width, height), middle = [x + width / 2, y + height / 2];
  const [left, top] = middle.map((at) => Math.max(0, Math.round(at - half)));
  const right = Math.min(picture.width, Math.round(middle[0] + half)), bottom = Math.min(picture.height, Math.round(middle[1] + half));
  const canvas = new OffscreenCanvas(right - left, bottom - top);
  canvas.getContext("2d").drawImage(picture, -left, -top);
  return canvas.convertToBlob({ type: "image/png" });
}

const shape = (kind, set) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(set)) made.setAttribute(name, value);
  return made;
};

function drawn(photo, { width, height }) {
  const drawing = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": photo.name });
  const figure = Object.assign(document.createElement("figure"), { tabIndex: 0 });
  const url = URL.createObjectURL(photo);
  drawing.append(shape("image", { width, height, href: url }));
  figure.append(drawing, Object.assign(document.createElement("figcaption"), { textContent: photo.name }));
  $("scenes").prepend(figure);
  $("scenes").hidden = false;
  while ($("scenes").childElementCount > SHOWN) {
    URL.revokeObjectURL($("scenes").lastElementChild.querySelector("image").getAttribute("href"));
    $("scenes").lastElementChild.remove();
  }
  return drawing;
}

// Draw the verdict on a part where it lies; nothing for a whole photo.
export function mark(part, verdict) {
  const place = places.get(part);
  if (!place) return;
  const { drawing, box: [x, y, width, height], number } = place, line = drawing.viewBox.baseVal.width / 160;
  const group = shape("g", { class: `is-${verdict.verdict}` });
  const title = shape("title", {}), words = shape("text", { x: x + 2 * line, y: y + 7 * line, "font-size": 6 * line, "stroke-width": line });
  title.textContent = `${part.name}: ${verdict.verdict}, nearest ${verdict.nearest}, ${Math.round(100 * verdict.p_known)} %${verdict.likely ? `, or: ${verdict.likely}` : ""}`;
  words.textContent = `${number} ${called(verdict)}`;
  group.append(title, shape("rect", { x, y, width, height, "stroke-width": line }), words);
  drawing.append(group);
}
