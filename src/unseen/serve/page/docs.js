// The API's document, drawn without anybody else's script.

const { paths, components } = await (await fetch("/openapi.json")).json();
const made = (kind, text = "", more = {}) => Object.assign(document.createElement(kind), { textContent: text, ...more });
const anchor = (verb, path) => `${verb}-${path}`.replaceAll(/[^a-z0-9]+/gi, "-");
const named = (schema) => schema?.$ref?.split("/").at(-1) ?? schema?.anyOf?.map(named).join(" or ") ?? schema?.type ?? "anything";

// A schema in words: each field with its kind, its range and what it means.
function fields(schema) {
  const whole = schema?.$ref ? components.schemas[named(schema)] : schema;
  const list = document.createElement("dl");
  if (whole?.description) list.append(made("p", whole.description, { className: "soft" }));
  for (const [name, field] of Object.entries(whole?.properties ?? {})) {
    const kind = field.enum ? field.enum.join(" | ") : field.const ?? (field.items ? `list of ${named(field.items)}` : named(field));
    const rest = ["minimum", "maximum", "maxLength", "default"].filter((key) => field[key] !== undefined).map((key) => `${key} ${JSON.stringify(field[key])}`);
    list.append(made("dt", `${name}${whole.required?.includes(name) ? " (needed)" : ""}`), made("dd", [kind, ...rest, field.description].filter(Boolean).join(" · ")));
  }
  return list;
}

function folded(title, ...parts) {
  const box = document.createElement("details");
  box.append(made("summary", title), ...parts);
  return box;
}

function example(verb, path, route) {
  const kinds = Object.keys(route.requestBody?.content ?? {});
  const body = kinds.includes("application/octet-stream") ? " --data-binary @rows.f32 -H 'content-type: application/octet-stream'"
    : kinds.includes("application/json") ? " -d '{}' -H 'content-type: application/json'" : "";
  return `curl${verb === "get" ? "" : ` -X ${verb.toUpperCase()}`}${body} -H "authorization: Bearer $KEY" ${location.origin}${path}`;
}

function described(verb, path, route) {
  const section = made("section", "", { id: anchor(verb, path) }), title = document.createElement("h2");
  title.append(made("span", verb.toUpperCase(), { className: "verb" }), path);
  section.append(title, made("p", route.description ?? route.summary ?? ""), made("pre", example(verb, path, route)));
  if (route.parameters?.length) {
    const list = document.createElement("dl");
    for (const one of route.parameters) list.append(made("dt", `${one.name} (${one.in}${one.required ? ", needed" : ""})`), made("dd", [named(one.schema), one.description].filter(Boolean).join(" · ")));
    section.append(folded("Parameters", list));
  }
  for (const [media, { schema }] of Object.entries(route.requestBody?.content ?? {})) {
    section.append(folded(`Body as ${media}`, schema.description ? made("p", schema.description) : "", fields(schema)));
  }
  for (const [status, answer] of Object.entries(route.responses ?? {})) {
    const schema = answer.content?.["application/json"]?.schema;
    section.append(folded(`Answer ${status}${schema ? `: ${named(schema)}` : ""}`, made("p", answer.description ?? ""), fields(schema)));
  }
  return section;
}

const routes = Object.entries(paths).flatMap(([path, verbs]) => Object.entries(verbs).map(([verb, route]) => [verb, path, route]));
const contents = document.createElement("ul");
contents.className = "toc";
for (const [verb, path] of routes) {
  const item = document.createElement("li");
  item.append(made("a", `${verb.toUpperCase()} ${path}`, { href: `#${anchor(verb, path)}` }));
  contents.append(item);
}
const codes = made("section", "", { id: "codes" });
codes.append(made("h2", "Codes of errors"), made("p", components.schemas.Error.properties.code.enum.join(", ")));
document.getElementById("routes").append(contents, ...routes.map((route) => described(...route)), codes);
