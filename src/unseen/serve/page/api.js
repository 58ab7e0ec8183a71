// Calls of the API, with the key of this tab.

const $ = (id) => document.getElementById(id);

export async function ask(path, options = {}) {
  const key = sessionStorage.getItem("key");
  const headers = { ...(key && { authorization: `Bearer ${key}` }), ...options.headers };
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) {
    await unlock();
    return ask(path, options);
  }
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({ message: answer.statusText }));
    throw new Error(said.message);
  }
  return answer;
}

export const json = async (path, options) => (await ask(path, options)).json();

function unlock() {
  $("unlock").showModal();
  return new Promise((done) => {
    $("unlock").addEventListener("close", () => { sessionStorage.setItem("key", $("key").value.trim()); done(); }, { once: true });
  });
}
