"use strict";
const element = (tag, text, ...children) => {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
};

function kind(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" or ");
  if (schema.anyOf) return schema.anyOf.map(kind).join(" or ");
  if (schema.type === "array") return `list of ${kind(schema.items ?? {})}`;
  const bounds = [["minimum", "≥"], ["maximum", "≤"]].filter(([key]) => key in schema).map(([key, sign]) => ` ${sign} ${schema[key]}`);
  return (schema.type ?? "anything") + bounds.join("");
}

function fields(name, schemas) {
  const table = element("table", "", element("caption", name));
  const { properties = {}, required = [], description } = schemas[name];
  if (description) table.append(element("tr", "", Object.assign(element("td", description), { colSpan: 3 })));
  for (const [field, schema] of Object.entries(properties)) {
    const note = [required.includes(field) ? "required" : "", schema.description ?? ""].filter(Boolean).join(": ");
    table.append(element("tr", "", element("th", field), element("td", kind(schema)), element("td", note)));
  }
  return table;
}

function named(schema, schemas, found = new Set()) {
  for (const [, name] of JSON.stringify(schema ?? {}).matchAll(/#\/components\/schemas\/(\w+)/g)) {
    if (!found.has(name)) named(schemas[name], schemas, found.add(name));
  }
  return found;
}

fetch("/openapi.json").then((response) => response.json()).then((told) => {
  const schemas = told.components.schemas;
  for (const [path, methods] of Object.entries(told.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const details = element("details", "", element("summary", "", element("code", `${method.toUpperCase()} ${path}`), ` ${operation.description ?? ""}`));
      const good = operation.responses["200"]?.content?.["application/json"]?.schema;
      for (const name of named([operation.requestBody, good], schemas)) details.append(fields(name, schemas));
      document.getElementById("paths").append(details);
    }
  }
  document.documentElement.dataset.ready = "yes";
});
