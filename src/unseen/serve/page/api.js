// Calls of the API, with the key of this tab.

const $ = (id) => document.getElementById(id);

export async function ask(path, options = {}) {
  const key = sessionStorage.getItem("key");
  const headers = { ...(key && { authorization: `Bearer ${key}` }), ...options.headers };
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) {
    await unlock(key);
    return ask(path, options);
  }
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({ message: answer.statusText }));
    throw Object.assign(new Error(said.message), { status: answer.status, code: said.code });
  }
  return answer;
}

export const json = async (path, options) => (await ask(path, options)).json();

// A thumbnail of a sample; the service says which samples have one.
export async function picture(path) {
  const url = URL.createObjectURL(await (await ask(path)).blob());
  const image = Object.assign(new Image(), { alt: "" });
  image.onload = image.onerror = () => URL.revokeObjectURL(url);
  image.src = url;
  return image;
}

// Server-sent events of a response, parsed.
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").find((line) => line.startsWith("data: "));
      if (data) yield JSON.parse(data.slice(6));
    }
  }
}

function unlock(refused) {
  $("unlock-why").textContent = refused
    ? "The key of this tab is no longer good: it was revoked, or it expired. Enter another."
    : "This service needs a key. It stays in this tab.";
  if (!$("unlock").open) $("unlock").showModal();
  return new Promise((done) => {
    $("unlock").addEventListener("close", () => { sessionStorage.setItem("key", $("key").value.trim()); done(); }, { once: true });
  });
}
