/* Figure 1 from the steps of the model: boxes are buttons, with wires behind them */
const SUBLAYERS = { attention: "Self-attention", cross_attention: "Cross-attention", feedforward: "Feed forward" };
const PARTS = {
  positions: "+ Positions", embedding: "Embedding", source_embedding: "Embedding", target_embedding: "Embedding",
  relative_bias: "Relative bias", output: "Logits", pooler: "Pooler", norm: "Norm",
  pooling: "Pooling", normalize: "Normalize", head: "Classifier",
};
const AXES = {
  B: "texts in the batch", L: "tokens", Lq: "query tokens (rows)", Lk: "key tokens (columns)", D: "width of a token's vector", "3D": "queries, keys and values side by side",
  "2D": "keys and values side by side", H: "heads", d_k: "width of a query or key in a head", d_v: "width of a value in a head", F: "inner width of the feed-forward network",
  "2F": "its two halves side by side", HK: "width of all heads together", "2HK": "keys and values side by side", "3HK": "queries, keys and values side by side", V: "entries of the vocabulary", C: "labels", E: "width of the embedding",
};

function locate(path) {
  const names = path.split(".");
  const at = names.indexOf("layers");
  if (at >= 0) return { half: names[at - 1] || "encoder", layer: Number(names[at + 1]), part: names[at + 2] || "" };
  const half = names[0].startsWith("target") || names[0] === "output" || names[0] === "decoder" ? "decoder" : "encoder";
  const part = names[0] === half ? names[1] || "norm" : names[0];
  return { half, layer: -1, part: part.endsWith("embedding") && names[1] === "positions" ? "positions" : part };
}

// Return the boxes of each half: before its layers, in each layer, and after its layers. A pre-norm is a separate box.
function figureOf(steps) {
  const halves = {};
  steps.forEach((step, number) => {
    const { half: name, layer, part } = locate(step.path);
    const half = (halves[name] ??= { before: [], layers: [], after: [] });
    const boxes = layer >= 0 ? (half.layers[layer] ??= []) : half.layers.length ? half.after : half.before;
    const last = layer >= 0 ? boxes.at(-1) : boxes.find((one) => one.part === part);
    if (last?.part === part) last.numbers.push(number);
    else boxes.push({ part, numbers: [number] });
  });
  return halves;
}

const operations = (one) => one.numbers.map((number) => data.steps[number].operation);
const adds = (one) => one.part.endsWith("_residual") && operations(one).includes("add");

function titleOf(one, half) {
  if (one.part.endsWith("_residual")) {
    const norm = operations(one).some((name) => name.includes("norm"));
    return adds(one) ? (norm ? "Add & Norm" : "Add") : norm ? "Norm" : "Dropout";
  }
  if (one.part === "attention" && half === "decoder") return "Masked self-attention";
  return SUBLAYERS[one.part] || PARTS[one.part] || one.part;
}

const kindOf = (one) => one.part.endsWith("_residual") || one.part === "norm" ? "residual" : one.part.includes("attention") ? "attention" : one.part in SUBLAYERS ? "feedforward" : "embedding";

const figure = {
  halves: figureOf(data.steps), box: element("div", { class: "halves" }), wires: svgElement("svg", { class: "wires", "aria-hidden": "true" }), selected: null,
};

function box(one, half, layer) {
  const title = titleOf(one, half);
  const where = `${Object.keys(figure.halves).length > 1 ? `${half}, ` : ""}${layer === null ? "" : `layer ${layer}, `}${title}`;
  const button = element("button", { type: "button", class: `box ${kindOf(one)}`, "aria-current": "false", "aria-controls": "steps", "data-part": one.part }, title);
  button.select = (open = new Set()) => {
    figure.selected?.setAttribute("aria-current", "false");
    figure.selected = button;
    button.setAttribute("aria-current", "true");
    showSteps(where, one.numbers, open);
  };
  button.addEventListener("click", () => button.select());
  if (adds(one)) button.dataset.adds = "yes";
  return button;
}

function stackOf(name, half) {
  const stack = element("div", { class: "stack" });
  for (const one of half.before) stack.append(box(one, name, null));
  const select = element("select", { "aria-label": `Layer of the ${name}`, "data-half": name });
  half.layers.forEach((_, number) => select.append(element("option", { value: number }, `layer ${number}`)));
  if (half.layers.length) {
    const boxes = element("div", { class: "boxes" });
    const fill = () => boxes.replaceChildren(...half.layers[select.value].map((one) => box(one, name, Number(select.value))));
    fill();
    select.addEventListener("change", () => { changeLayer(boxes, fill); wire(); });
    stack.append(element("div", { class: "layer" }, element("span", { class: "many" }, `${half.layers.length} ×`), boxes));
  }
  for (const one of half.after) stack.append(box(one, name, null));
  const [into, out] = name === "decoder" ? ["target, shifted right", "probabilities"] : ["source", data.labels ? "label probabilities" : "vector"];
  const ends = Object.keys(figure.halves).length === 1 || name === "decoder";
  return element("div", { class: `half ${name}` }, element("div", { class: "bar" }, element("h3", {}, name[0].toUpperCase() + name.slice(1)), select),
    ends ? element("p", { class: "flow out" }, out) : "", stack, element("p", { class: "flow into" }, into));
}

// Show another layer, and keep the same box selected and the same steps open.
function changeLayer(boxes, fill) {
  const old = [...boxes.children], index = old.indexOf(figure.selected);
  const open = new Set([...document.querySelectorAll("details.step[open]")].map((one) => one.dataset.tail));
  const same = (one) => one.dataset.part === old[index]?.dataset.part && one.dataset.adds === old[index]?.dataset.adds;
  fill();
  if (index >= 0) ([...boxes.children].find(same) || boxes.firstChild).select(open);
}

/* wires */
function wire() {
  const origin = figure.box.getBoundingClientRect();
  const at = (one) => {
    const rect = one.getBoundingClientRect(), left = rect.left - origin.left, top = rect.top - origin.top;
    return { left, right: left + rect.width, top, bottom: top + rect.height, x: left + rect.width / 2, y: top + rect.height / 2 };
  };
  figure.wires.replaceChildren(arrowHead());
  const line = (d, kind = "") => figure.wires.append(svgElement("path", { class: `wire ${kind}`, d, "marker-end": "url(#arrow)" }));
  for (const half of figure.box.querySelectorAll(".half")) {
    const boxes = [...half.querySelectorAll(".box")], places = boxes.map(at);
    const into = at(half.querySelector(".into")), out = half.querySelector(".out");
    const ends = [into, ...places, ...(out ? [at(out)] : [])];
    ends.slice(1).forEach((one, number) => line(`M${one.x},${ends[number].top} V${one.bottom + 1}`));
    residuals(half, boxes, places, into, line);
  }
  memory(at, line);
}

function arrowHead() {
  const head = svgElement("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" });
  head.append(svgElement("path", { class: "head", d: "M0,0 L8,4 L0,8 z" }));
  return head;
}

// Draw the residual connection from below a sub-layer, or below its pre-norm, to the addition.
function residuals(half, boxes, places, into, line) {
  let first = null;
  boxes.forEach((one, number) => {
    if (!one.closest(".boxes")) return;
    first ??= number;
    if (one.dataset.adds !== "yes") return;
    const start = places[first], end = places[number], below = number && first ? places[first - 1].top : into.top;
    const y = Math.min(start.bottom + 9, (start.bottom + below) / 2), left = half.classList.contains("encoder");
    const side = left ? end.left - 13 : end.right + 13;
    line(`M${start.x},${y} H${left ? side + 6 : side - 6} Q${side},${y} ${side},${y - 6} V${end.y + 6} Q${side},${end.y} ${left ? side + 6 : side - 6},${end.y} H${left ? end.left - 1 : end.right + 1}`, "residual");
    first = null;
  });
}

// Draw the memory from the encoder's last box to the decoder's cross-attention.
function memory(at, line) {
  const last = [...figure.box.querySelectorAll(".encoder .box")].at(-1), cross = figure.box.querySelector(".decoder [data-part=cross_attention]");
  if (!last || !cross) return;
  const from = at(last), to = at(cross), half = at(figure.box.querySelector(".half.decoder"));
  const layer = last.closest(".layer"), top = (layer ? at(layer).top : from.top) - 14, x = half.left - 4, down = to.y > top ? 1 : -1;
  line(`M${from.x},${from.top} V${top + 8} Q${from.x},${top} ${from.x + 8},${top} H${x - 8} Q${x},${top} ${x},${top + 8 * down} V${to.y - 8 * down} Q${x},${to.y} ${x + 8},${to.y} H${to.left - 1}`, "memory");
}

for (const [name, half] of Object.entries(figure.halves)) figure.box.append(stackOf(name, half));
figure.box.prepend(figure.wires);
byId("figure").append(figure.box);
const depth = Math.max(...Object.values(figure.halves).map((half) => half.layers.length));
byId("figure-hint").textContent = `Figure 1 of the paper for this model, read from bottom to top. “${depth} ×” means ${plural(depth, "layer")}, one after another. The lines at the side are residual connections: they add the input of a box to its result. Select a box, then open a step to see its equation, shape and values.`;
const named = new Set(data.steps.flatMap((step) => step.shape.map(([name]) => name)));
byId("axes").textContent = `${Object.entries(AXES).filter(([name]) => named.has(name)).map(([name, meaning]) => `${name} = ${meaning}`).join(", ")}.`;
new ResizeObserver(wire).observe(figure.box);
wire();
figure.box.querySelector(".box")?.select();
