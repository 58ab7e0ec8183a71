// Why one sample got its verdict, in a dialog, with a field for the word of a person.

import { json, picture } from "/api.js";
import { isolated, part } from "/cards.js";

const $ = (id) => document.getElementById(id);
const percent = (share) => (share > 0 && share < 0.005 ? "under 1 %" : `${Math.round(100 * share)} %`);
const words = (list) => list.map((one) => `${isolated(one.word)} ${percent(one.share)}`).join(", ");

function frame(at, seq, isThis) {
  const made = part("span", isThis ? "this" : "", "");
  made.title = isThis ? "this sample" : `similar sample ${seq}`;
  picture(at(`pictures/${seq}`)).then((image) => made.append(Object.assign(image, { alt: made.title })), () => made.remove() /* no longer kept */);
  return made;
}

// `changed` shows what follows from a correction.
export async function explain(at, seq, changed) {
  const found = await json(at(`explain/${seq}`));
  $("why-title").textContent = `${found.key ?? `Sample ${seq}`}`;
  $("why-sentence").textContent = found.why;
  const away = Math.abs(found.margin - found.threshold).toFixed(2), side = found.margin >= found.threshold ? "above" : "below";
  const similar = found.similar.map((one) => `${one.seq} (${one.known ? isolated(one.nearest) : "unknown"}, ${one.cosine.toFixed(2)})`);
  const rows = {
    margin: `${found.margin.toFixed(2)}, ${away} ${side} the threshold of ${found.threshold.toFixed(2)}; the text alone gives ` +
      `${found.text_margin.toFixed(2)}, the stream added ${found.learned_margin.toFixed(2)}`,
    "your names": words(found.names),
    "against it": words(found.negatives) || "no negatives in this label space",
    "looks like": similar.join(", ") || "no earlier sample is kept",
  };
  $("why-rows").replaceChildren(...Object.entries(rows).flatMap(([name, text]) => [part("dt", "", name), part("dd", "", text)]));
  $("why-pictures").replaceChildren(...found.pictured.map((one) => frame(at, one, one === seq)));
  $("why-word").value = "";
  $("why-save").onclick = async () => {
    const word = $("why-word").value.trim();
    try {
      const body = JSON.stringify({ verb: "correct", names: { [seq]: word || "unknown" } });
      await json(at("edits"), { method: "POST", headers: { "content-type": "application/json" }, body });
      $("why").close();
      await changed();
    } catch (error) { $("why-said").textContent = error.message; }
  };
  $("why-said").textContent = "";
  $("why").showModal();
}
