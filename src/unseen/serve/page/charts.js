// The chart of the page: recent margins with the threshold.

const $ = (id) => document.getElementById(id);
const BINS = 40;
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

export function drawMargins(page) {
  const margins = page.margins, threshold = page.tried ?? page.threshold, box = room($("histogram"));
  const low = Math.min(threshold, ...margins, -1), high = Math.max(threshold, ...margins, 1);
  const x = (margin) => box.left + ((margin - low) / (high - low)) * (box.right - box.left);
  const counts = Array(BINS).fill(0);
  for (const margin of margins) counts[Math.min(BINS - 1, Math.floor(((margin - low) / (high - low)) * BINS))] += 1;
  const most = Math.max(1, ...counts), width = (box.right - box.left) / BINS;
  const bars = counts.map((count, i) => drawn("rect", {
    class: low + ((i + 0.5) / BINS) * (high - low) >= threshold ? "bar above" : "bar", rx: 1.5,
    x: box.left + i * width + 0.5, width: width - 1,
    y: box.bottom - (count / most) * (box.bottom - box.top), height: (count / most) * (box.bottom - box.top),
  }));
  const ticks = steps(low, high).map((tick) => drawn("text", { x: x(tick), y: HEIGHT - 10, "text-anchor": "middle" }, tick));
  const side = x(threshold) > (box.left + box.right) / 2 ? { dx: -14, "text-anchor": "end" } : { dx: 14 };
  $("histogram").replaceChildren(...bars, ...ticks,
    drawn("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    ...(page.tried === null ? [] : [drawn("line", { class: "use", x1: x(page.threshold), x2: x(page.threshold), y1: box.top, y2: box.bottom })]),
    drawn("line", { class: "threshold", x1: x(threshold), x2: x(threshold), y1: 12, y2: box.bottom }),
    drawn("circle", { class: "grip", cx: x(threshold), cy: 12, r: 9 }),
    drawn("text", { class: "flag", x: x(threshold), y: 17, ...side }, page.tried === null ? "threshold in use" : "what if"));
  Object.assign($("threshold"), { min: low, max: high });
  $("threshold").value = threshold;
  $("threshold-value").textContent = threshold.toFixed(2);
  $("follow").hidden = page.tried === null;
  const above = margins.filter((margin) => margin >= threshold).length;
  const share = margins.length ? Math.round((100 * above) / margins.length) : 0;
  $("accepted").textContent = `${above.toLocaleString("en")} of the last ${margins.length.toLocaleString("en")} samples (${share} %) ` +
    `would be called known.${page.warming ? " The threshold in use is still warming up." : ""}${likelyRecall(page.recall)}`;
  page.scale = { low, high, box };
}

function likelyRecall(interval) {
  const [low, high] = (interval ?? []).map((share) => Math.round(100 * share));
  return interval ? ` The threshold in use likely keeps ${low} to ${high} % of the known samples.` : "";
}

// Four to eight round numbers between two others.
function steps(low, high) {
  const rough = 10 ** Math.floor(Math.log10(high - low));
  const step = [rough / 5, rough / 2, rough, 2 * rough].find((size) => (high - low) / size <= 8) ?? rough;
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(6)));
}

export function dragThreshold(page, event) {
  if (event.buttons !== 1 || !page.scale) return;
  const edge = $("histogram").getBoundingClientRect(), { box } = page.scale;
  const place = event.clientX - edge.left;
  const share = Math.min(1, Math.max(0, (place - box.left) / (box.right - box.left)));
  page.tried = page.scale.low + share * (page.scale.high - page.scale.low);
  drawMargins(page);
}
