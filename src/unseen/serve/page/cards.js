// One verdict on screen: a picture, a name, and in words how probable the verdict is.

// A name written from right to left stays where it is in a sentence.
export const isolated = (name) => (/[\u0590-\u08ff\ufb1d-\ufefc]/.test(name) ? `\u2068${name}\u2069` : name);

// As on the command line: what is doubtful has a question mark.
export const called = ({ verdict, name }) => (verdict === "unknown" ? verdict : `${isolated(name)}${verdict === "doubtful" ? "?" : ""}`);

export function fill(item, verdict, seen) {
  const share = Math.round(100 * verdict.p_known), probable = verdict.name ? share : 100 - share;
  const words = probable < 50 ? `only ${probable} %` : `${probable} % likely`; // as on the command line
  item.title = `${verdict.key ? `${verdict.key}\n` : ""}sample ${verdict.seq ?? "not learned from"}\n${share} % p_known that it is known, ` +
    `nearest name ${verdict.nearest}`;
  const frame = seen ? Object.assign(new Image(), { src: seen.url, alt: seen.name }) : part("span", "none", verdict.seq ?? "—");
  const bar = part("div", "bar", "");
  bar.append(document.createElement("i"));
  bar.firstChild.style.width = `${share}%`;
  const what = Object.assign(part("button", "what", called(verdict)), { type: "button", tabIndex: -1 });
  const note = [words, verdict.likely ? `or: ${isolated(verdict.likely)}` : "", verdict.name ? "" : `near ${isolated(verdict.nearest)}`,
    verdict.warming ? "young" : ""];
  item.replaceChildren(frame, bar, what, part("small", "", note.filter(Boolean).join(" · ")));
}

// One stop of the Tab key for a whole list: arrows move between the buttons in it, Enter presses one.
export function movesByArrows(list) {
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const buttons = [...list.querySelectorAll("button")], at = buttons.indexOf(document.activeElement);
    buttons[Math.max(0, Math.min(buttons.length - 1, at + step))]?.focus();
    event.preventDefault();
  });
}

export function part(kind, name, text) {
  return Object.assign(document.createElement(kind), { className: name, textContent: text });
}
