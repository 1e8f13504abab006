"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

// Text goes into the page as text alone, whatever it holds.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") made.style.cssText = value; // as an attribute, a server's policy would forbid it
    else if (value !== false && value !== undefined) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

function drawn(tag, attributes = {}, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) name === "style" ? (made.style.cssText = value) : made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const bytes = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
const shown = (token) => token.replace(/^[▁Ġ]/, "") || token || "·";
const digits = (number) => {
  if (number === 0) return "0";
  const size = Math.abs(number);
  return size >= 1000 || size < 0.001 ? number.toExponential(2) : number.toPrecision(3);
};

// A cell's color: from the paper to blue, to orange where negative.
function shade(canvas, rows, columns, value) {
  canvas.width = columns;
  canvas.height = rows;
  const style = getComputedStyle(document.documentElement);
  const part = (name) => style.getPropertyValue(name).split(",").map(Number);
  const low = part("--map-low"), high = part("--map-high"), negative = part("--negative");
  const image = new ImageData(columns, rows);
  for (let place = 0; place < rows * columns; place++) {
    const amount = Math.max(-1, Math.min(1, value(place))), end = amount < 0 ? negative : high, share = Math.abs(amount);
    for (let color = 0; color < 3; color++) image.data[4 * place + color] = low[color] + (end[color] - low[color]) * share;
    image.data[4 * place + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

const redraws = new Set();
const tip = byId("tip");
function tell(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${Math.max(6, Math.min(y + 14, innerHeight - box.height - 8))}px`;
}
const hush = () => { tip.hidden = true; };

function cellAt(canvas, event) {
  const box = canvas.getBoundingClientRect();
  const at = (place, size, count) => Math.max(0, Math.min(count - 1, Math.floor((place / size) * count)));
  return [at(event.clientY - box.top, box.height, canvas.height), at(event.clientX - box.left, box.width, canvas.width)];
}

/* head of the page */
byId("about").textContent = `${data.model}: ${data.kind}, ${data.parameters.toLocaleString("en")} parameters, ${data.steps.length} steps`;
byId("text").textContent = data.text;
document.title = `${data.text.slice(0, 60)} – Clearhead`;
if (data.output !== undefined) {
  byId("output").textContent = data.output;
  byId("output").hidden = false;
}
for (const part of document.querySelectorAll("[data-for=seq2seq]")) part.hidden = !data.tree;

const theme = byId("theme");
function dress(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  theme.setAttribute("aria-pressed", String(dark));
  theme.textContent = dark ? "Light" : "Dark";
  for (const redraw of redraws) redraw();
}
theme.addEventListener("click", () => dress(document.documentElement.dataset.theme !== "dark"));
dress(matchMedia("(prefers-color-scheme: dark)").matches);

/* tokens */
for (const [name, row] of [["source", data.source], ["target", data.target]]) {
  if (!row.length) continue;
  const list = element("ol", { class: `chips ${name}`, "aria-label": `${name} tokens` });
  row.slice(0, 400).forEach((token, place) => list.append(element("li", { title: token }, element("span", {}, String(place)), token)));
  const more = row.length > 400 ? ` (the first 400 of ${row.length})` : ` (${row.length})`;
  byId("token-rows").append(element("h3", { class: "steps-title" }, (data.target.length ? name[0].toUpperCase() + name.slice(1) : "Tokens") + more), list);
}
if (data.cut) byId("token-rows").append(element("p", { class: "hint" }, "The text was longer than the model takes, and has been cut."));

/* pipeline */
const SUBLAYERS = {
  attention: "Self-attention", cross_attention: "Cross-attention", feedforward: "Feed forward",
  attention_residual: "Add & norm", cross_attention_residual: "Add & norm", feedforward_residual: "Add & norm",
};
const PARTS = { positions: "+ Positions", embedding: "Embedding", source_embedding: "Embedding", target_embedding: "Embedding", output: "Logits", pooler: "Pooler", norm: "Norm" };

function placeOf(path) {
  const names = path.split(".");
  const at = names.indexOf("layers");
  if (at >= 0) return { half: names[at - 1] || "encoder", layer: Number(names[at + 1]), part: names[at + 2] || "" };
  const half = names[0].startsWith("target") || names[0] === "output" || names[0] === "decoder" ? "decoder" : "encoder";
  const part = names[0] === half ? names[1] || "norm" : names[0];
  return { half, layer: -1, part: part.endsWith("embedding") && names[1] === "positions" ? "positions" : part };
}

const halves = {};
data.steps.forEach((step, number) => {
  const place = placeOf(step.path);
  const half = (halves[place.half] ??= { before: new Map(), layers: [], after: new Map() });
  const group = place.layer >= 0 ? (half.layers[place.layer] ??= new Map()) : half.layers.length ? half.after : half.before;
  if (!group.has(place.part)) group.set(place.part, []);
  group.get(place.part).push(number);
});

let chosenBox = null;
function box(title, kind, numbers, where) {
  const button = element("button", { type: "button", class: `box ${kind}`, "aria-current": "false" }, title);
  button.addEventListener("click", () => choose(button, title, numbers, where));
  return button;
}

function choose(button, title, numbers, where) {
  if (chosenBox) chosenBox.setAttribute("aria-current", "false");
  chosenBox = button;
  button.setAttribute("aria-current", "true");
  const list = byId("steps");
  list.replaceChildren(element("h3", { class: "steps-title" }, `${where}${title}: ${numbers.length} step${numbers.length > 1 ? "s" : ""}`));
  for (const number of numbers) list.append(stepDetails(data.steps[number], number));
}

function stepDetails(step, number) {
  const details = element("details", { class: "step" },
    element("summary", {}, element("span", { class: "operation" }, `${number + 1}. ${step.operation}`), element("span", { class: "shape" }, step.named_shape)));
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector(".inside")) return;
    const inside = element("div", { class: "inside" });
    const formula = element("div");
    formula.innerHTML = step.mathml; // made of the equation's own letters, none of them from outside
    inside.append(formula);
    const facts = element("dl", { class: "numbers" });
    const fact = (name, value) => facts.append(element("div", {}, element("dt", {}, name), element("dd", {}, value)));
    fact("where", step.path);
    fact("numbers", step.dtype);
    if (step.parameters) fact("parameters", step.parameters.toLocaleString("en"));
    for (const name of ["mean", "std", "min", "max"]) if (step.values) fact(name, digits(step.values[name]));
    inside.append(facts, heat(step));
    details.append(inside);
  });
  return details;
}

function heat(step) {
  const { rows, columns, largest } = step.heat;
  const numbers = new Int8Array(bytes(step.heat.data).buffer);
  const canvas = element("canvas", { role: "img", "aria-label": `Heat map of ${step.operation}: ${rows} by ${columns} numbers from ${digits(-largest)} to ${digits(largest)}` });
  const redraw = () => shade(canvas, rows, columns, (place) => numbers[place] / 127);
  redraw();
  redraws.add(redraw);
  canvas.style.width = "100%";
  canvas.style.height = `${Math.max(24, Math.min(220, rows * 9))}px`;
  canvas.addEventListener("pointermove", (event) => {
    const [row, column] = cellAt(canvas, event);
    tell(`row ${row}, column ${column}: ${digits((numbers[row * columns + column] / 127) * largest)} ± ${digits(largest / 254)}`, event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", hush);
  return element("div", {}, canvas, element("div", { class: "ends" }, element("span", {}, "orange: negative"), element("span", {}, `${rows} × ${columns}, largest ${digits(largest)}`)));
}

function stackOf(name, half) {
  const stack = element("div", { class: "stack" });
  const where = Object.keys(halves).length > 1 ? `${name}, ` : "";
  for (const [part, numbers] of half.before) stack.append(box(PARTS[part] || part, "embedding", numbers, where));
  if (half.layers.length) {
    const layer = element("div", { class: "layer" });
    const select = element("select", { "aria-label": `Layer of the ${name}` });
    half.layers.forEach((_, number) => select.append(element("option", { value: number }, `layer ${number + 1} of ${half.layers.length}`)));
    const show = () => {
      const number = Number(select.value);
      layer.replaceChildren();
      for (const [part, numbers] of half.layers[number]) layer.append(box(SUBLAYERS[part] || part, part.endsWith("_residual") ? "residual" : part.includes("attention") ? "attention" : "feedforward", numbers, `${where}layer ${number + 1}, `));
      layer.append(element("h4", {}, `${half.layers.length} ×`));
    };
    select.addEventListener("change", show);
    show();
    stack.append(layer, select);
  }
  for (const [part, numbers] of half.after) stack.append(box(PARTS[part] || part, "", numbers, where));
  return element("div", {}, element("h3", {}, name[0].toUpperCase() + name.slice(1)), stack);
}
const figure = element("div", { class: "halves" });
for (const [name, half] of Object.entries(halves)) figure.append(stackOf(name, half));
byId("figure").append(figure);
figure.querySelector(".box")?.click();

/* attention */
const PART_NAMES = { encoder: "Encoder", decoder: "Decoder (causal)", cross: "Cross" };
const view = { part: null, layer: 0, head: 0, row: 0, column: 0 };

function tokensOf(part) {
  if (part === "cross") return [data.target, data.source];
  return part === "decoder" ? [data.target, data.target] : [data.source, data.source];
}

function attention() {
  const parts = [...new Set(data.attention.map((one) => one.part))];
  if (!parts.length) return;
  view.part = parts.includes("cross") ? "cross" : parts[0];
  const tabs = element("div", { class: "bar", role: "group", "aria-label": "Which attention" });
  for (const part of parts) {
    tabs.append(element("button", { type: "button", "data-part": part, onclick: () => { view.part = part; view.layer = 0; view.head = 0; render(); } }, PART_NAMES[part] || part));
  }
  const layers = element("select", { id: "layer", onchange: () => { view.layer = Number(layers.value); render(); } });
  tabs.append(element("label", { for: "layer" }, "Layer"), layers);
  const grid = element("div", { class: "grid", role: "listbox", "aria-label": "Heads", "aria-orientation": "horizontal" });
  const map = element("canvas", { id: "map", tabindex: "0", role: "img" });
  const caption = element("p", { class: "hint", id: "cell", "aria-live": "polite" });
  const lines = element("div", { class: "scroll", id: "lines" });
  const heading = element("h3");
  byId("attention-view").append(tabs, grid, element("div", { class: "large" }, element("div", {}, heading, map, caption), element("div", {}, element("h3", {}, "Lines"), lines)));

  function current() {
    return data.attention.find((one) => one.part === view.part && one.layer === view.layer);
  }

  function render() {
    for (const tab of tabs.querySelectorAll("button")) tab.setAttribute("aria-pressed", String(tab.dataset.part === view.part));
    const these = data.attention.filter((one) => one.part === view.part);
    layers.replaceChildren(...these.map((one) => element("option", { value: one.layer, selected: one.layer === view.layer }, String(one.layer))));
    grid.replaceChildren();
    current().heads.forEach((head, place) => {
      const small = element("canvas", { "aria-hidden": "true" });
      const numbers = bytes(head.data);
      shade(small, head.rows, head.columns, (at) => numbers[at] / 255);
      const button = element("button", { type: "button", role: "option", "aria-selected": String(place === view.head), tabindex: place === view.head ? "0" : "-1", "aria-label": `Head ${head.head}`, onclick: () => pick(place) }, small, `head ${head.head}`);
      grid.append(button);
    });
    large();
  }

  function pick(place) {
    view.head = place;
    [...grid.children].forEach((button, number) => {
      button.setAttribute("aria-selected", String(number === place));
      button.tabIndex = number === place ? 0 : -1;
    });
    large();
  }

  grid.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const count = grid.children.length;
    pick((view.head + move + count) % count);
    grid.children[view.head].focus();
  });

  function weight(row, column) {
    const head = current().heads[view.head];
    return bytesOf(head)[row * head.columns + column] / 255;
  }
  const decoded = new WeakMap();
  function bytesOf(head) {
    if (!decoded.has(head)) decoded.set(head, bytes(head.data));
    return decoded.get(head);
  }

  // A cell of a large map stands for several tokens, and has their largest weight.
  function names(side, place, cells, length) {
    const tokens = tokensOf(view.part)[side];
    const first = Math.floor((place * length) / cells), last = Math.ceil(((place + 1) * length) / cells) - 1;
    return last > first ? `${first} to ${last}` : `${first} “${shown(tokens[first] ?? "")}”`;
  }

  function describe(row, column) {
    const one = current(), head = one.heads[view.head];
    return `${names(0, row, head.rows, one.queries)} attends to ${names(1, column, head.columns, one.keys)}: ${weight(row, column).toFixed(3)} ± 0.002`;
  }

  function large() {
    const one = current(), head = one.heads[view.head], numbers = bytesOf(head);
    heading.textContent = `${PART_NAMES[view.part] || view.part}, layer ${view.layer}, head ${head.head}`;
    shade(map, head.rows, head.columns, (place) => numbers[place] / 255);
    const pooled = head.rows < one.queries || head.columns < one.keys ? `, of ${one.queries} by ${one.keys} tokens` : "";
    map.setAttribute("aria-label", `Attention map, ${head.rows} queries down by ${head.columns} keys across${pooled}. Arrow keys move from cell to cell.`);
    view.row = Math.min(view.row, head.rows - 1);
    view.column = Math.min(view.column, head.columns - 1);
    caption.textContent = describe(view.row, view.column);
    drawLines(one, head, numbers);
  }

  function mark(row, column) {
    view.row = row;
    view.column = column;
    caption.textContent = describe(row, column);
  }
  map.addEventListener("pointermove", (event) => {
    const [row, column] = cellAt(map, event);
    mark(row, column);
    tell(describe(row, column), event.clientX, event.clientY);
  });
  map.addEventListener("pointerleave", hush);
  map.addEventListener("click", (event) => { const [row] = cellAt(map, event); emphasize(row); });
  map.addEventListener("keydown", (event) => {
    const move = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const { rows, columns } = current().heads[view.head];
    mark(Math.max(0, Math.min(rows - 1, view.row + move[0])), Math.max(0, Math.min(columns - 1, view.column + move[1])));
    emphasize(view.row);
  });

  let emphasize = () => {};
  function drawLines(one, head, numbers) {
    const most = 60, step = 21, width = 420;
    if (head.rows < one.queries || head.rows > most || head.columns > most) {
      lines.replaceChildren(element("p", { class: "hint" }, `Lines are drawn for up to ${most} tokens.`));
      emphasize = () => {};
      return;
    }
    const [queries, keys] = tokensOf(view.part);
    const height = step * Math.max(head.rows, head.columns) + 10;
    const picture = drawn("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", role: "img", "aria-label": "Lines from each query, on the left, to the keys that it attends to" });
    const paths = [];
    for (let row = 0; row < head.rows; row++) {
      for (let column = 0; column < head.columns; column++) {
        const share = numbers[row * head.columns + column] / 255;
        if (share < 0.04) continue;
        const line = drawn("line", { x1: 132, y1: row * step + 14, x2: width - 132, y2: column * step + 14, stroke: "var(--accent)", "stroke-width": 0.6 + 4 * share, "stroke-opacity": 0.12 + 0.88 * share });
        paths.push([row, line]);
        picture.append(line);
      }
    }
    emphasize = (row) => { for (const [own, line] of paths) line.style.opacity = row === null || own === row ? 1 : 0.06; };
    const word = (token, x, y, anchor) => {
      const text = drawn("text", { x, y, "text-anchor": anchor }, shown(token).slice(0, 18));
      picture.append(text);
      return text;
    };
    for (let row = 0; row < head.rows; row++) {
      const text = word(queries[row] ?? "", 126, row * step + 18, "end");
      text.addEventListener("pointerenter", () => emphasize(row));
      text.addEventListener("pointerleave", () => emphasize(null));
    }
    for (let column = 0; column < head.columns; column++) word(keys[column] ?? "", width - 126, column * step + 18, "start");
    lines.replaceChildren(picture);
  }
  redraws.add(render);
  render();
}
attention();

/* probabilities */
function chanceCell(one) {
  const chance = Math.exp(one.log_prob);
  return [element("span", { class: "chance", style: `width:${Math.round(70 * chance)}px` }), `${(100 * chance).toFixed(1)} %`];
}
if (data.chosen) {
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...["", "token", "probability", "nearly"].map((name) => element("th", { scope: "col" }, name)))));
  const body = element("tbody");
  data.chosen.forEach((one, place) => {
    const near = one.near.filter((other) => other.token !== one.token).slice(0, 3);
    body.append(element("tr", {}, element("td", {}, String(place)), element("td", { title: one.token }, shown(one.token)), element("td", {}, ...chanceCell(one)),
      element("td", { class: "near" }, near.map((other) => `${shown(other.token)} ${(100 * Math.exp(other.log_prob)).toFixed(1)} %`).join("   "))));
  });
  table.append(body);
  byId("word-view").append(table);
}

/* beams */
if (data.tree) {
  const wide = 132, tall = 40, margin = 70;
  const beams = Math.max(...data.tree.map((column) => column.length), 1);
  const width = margin + data.tree.length * wide + 10, height = beams * tall + 16;
  const picture = drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "The beams, step by step from left to right" });
  const middle = (beam) => beam * tall + tall / 2 + 4;
  picture.append(drawn("text", { x: 8, y: middle(0) + 4 }, shown(data.target[0] ?? "")));
  data.tree.forEach((column, step) => {
    const x = margin + step * wide;
    column.forEach((node, beam) => {
      const from = step ? middle(node.from) : middle(0), start = step ? x - wide + 96 : 52;
      const bend = (start + x) / 2;
      picture.append(drawn("path", { class: `link${node.best ? " best" : ""}`, d: `M${start},${from} C${bend},${from} ${bend},${middle(beam)} ${x},${middle(beam)}` }));
    });
  });
  data.tree.forEach((column, step) => {
    const x = margin + step * wide;
    column.forEach((node, beam) => {
      const others = node.near.map((other) => `${shown(other.token)} ${other.log_prob.toFixed(2)}`).join(", ");
      const said = `${shown(node.token)}: ${node.log_prob.toFixed(3)}, in all ${node.total.toFixed(3)}. Best here: ${others}`;
      const group = drawn("g", { class: `node${node.best ? " best" : ""}`, tabindex: "0", role: "img", "aria-label": said });
      group.append(drawn("rect", { x, y: middle(beam) - 15, width: 96, height: 30, rx: 7 }),
        drawn("text", { x: x + 7, y: middle(beam) - 1 }, shown(node.token).slice(0, 12)), drawn("text", { x: x + 7, y: middle(beam) + 12, class: "dim", style: "font-size:10px" }, node.total.toFixed(2)));
      group.addEventListener("pointermove", (event) => tell(said, event.clientX, event.clientY));
      group.addEventListener("pointerleave", hush);
      group.addEventListener("focus", () => { const place = group.getBoundingClientRect(); tell(said, place.left, place.bottom); });
      group.addEventListener("blur", hush);
      picture.append(group);
    });
  });
  byId("beam-view").append(picture);
  for (const one of data.outputs) {
    byId("beam-outputs").append(element("li", {}, one.text, element("span", {}, `score ${one.score.toFixed(3)}, log-probability ${one.log_prob.toFixed(3)}`)));
  }
}
addEventListener("keydown", (event) => { if (event.key === "Escape") hush(); });
document.documentElement.dataset.ready = "yes";
