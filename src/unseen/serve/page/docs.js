// The API's document, drawn without anybody else's script.

const { paths } = await (await fetch("/openapi.json")).json();
for (const [path, verbs] of Object.entries(paths)) {
  for (const [verb, route] of Object.entries(verbs)) {
    const section = document.createElement("section");
    const title = document.createElement("h2");
    const word = Object.assign(document.createElement("span"), { className: "verb", textContent: verb.toUpperCase() });
    title.append(word, path);
    section.append(title);
    for (const [media, { schema }] of Object.entries(route.requestBody?.content ?? {})) {
      const what = Object.assign(document.createElement("p"), { textContent: media });
      const body = Object.assign(document.createElement("pre"), { textContent: JSON.stringify(schema, null, 1) });
      section.append(what, body);
    }
    document.getElementById("routes").append(section);
  }
}
