"use strict";
const element = (tag, text, ...children) => {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  node.append(...children);
  return node;
};

function typeName(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.anyOf) return schema.anyOf.map(typeName).join(" or ");
  if (schema.type === "array") return `list of ${typeName(schema.items ?? {})}`;
  const bounds = [["minimum", "≥"], ["maximum", "≤"]].filter(([key]) => key in schema).map(([key, sign]) => ` ${sign} ${schema[key]}`);
  return (schema.type ?? "anything") + bounds.join("");
}

function fields(name, schemas) {
  const table = element("table", "", element("caption", name));
  const { properties = {}, required = [], description } = schemas[name];
  if (description) table.append(element("tr", "", Object.assign(element("td", description), { colSpan: 3 })));
  for (const [field, schema] of Object.entries(properties)) {
    const note = [required.includes(field) ? "required" : "", schema.description ?? ""].filter(Boolean).join(": ");
    table.append(element("tr", "", element("th", field), element("td", typeName(schema)), element("td", note)));
  }
  return table;
}

function schemaNames(schema, schemas, names = new Set()) {
  for (const [, name] of JSON.stringify(schema ?? {}).matchAll(/#\/components\/schemas\/(\w+)/g)) {
    if (!names.has(name)) schemaNames(schemas[name], schemas, names.add(name));
  }
  return names;
}

fetch("/openapi.json").then((response) => response.json()).then((api) => {
  const schemas = api.components.schemas;
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const details = element("details", "", element("summary", "", element("code", `${method.toUpperCase()} ${path}`), ` ${operation.description ?? ""}`));
      const response = operation.responses["200"]?.content?.["application/json"]?.schema;
      for (const name of schemaNames([operation.requestBody, response], schemas)) details.append(fields(name, schemas));
      document.getElementById("paths").append(details);
    }
  }
  document.documentElement.dataset.ready = "yes";
});
